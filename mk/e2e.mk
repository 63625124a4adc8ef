# SPDX-License-Identifier: Apache-2.0
.PHONY: e2e e2e-full
e2e: cluster-images helm-env ## The chart on a real Kubernetes, root: every command of docs/kubernetes.md, load, faults, upgrade, uninstall
	$(PYTEST) -s tests/e2e --timeout 600

e2e-full: cluster-images helm-env engine-env ## The same through KubeRay's own operator as well, and with a real SGLang in a serving pod
	@$(CLUSTER)/build.sh --with-helm $(CLUSTER_CACHE)
	$(PYTEST) -s tests/e2e --full --timeout 900
