# SPDX-License-Identifier: Apache-2.0
.PHONY: e2e
e2e: cluster-images helm-env ## The chart on a real Kubernetes, root: every command of docs/kubernetes.md, load, faults, upgrade, uninstall
	$(PYTEST) -s tests/e2e --timeout 600
