# SPDX-License-Identifier: Apache-2.0
.PHONY: helm-env test-chart
helm-env: ## Compile Helm for the chart's tests, where there is none; some 6 minutes, once
	@command -v $(or $(SLACKTIER_HELM),helm) >/dev/null || $(CLUSTER)/build.sh --only-helm $(CLUSTER_CACHE)

test-chart: setup helm-env ## The Helm chart, rendered and checked without a cluster
	$(PYTEST) tests/chart
