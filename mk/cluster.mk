# SPDX-License-Identifier: Apache-2.0
CLUSTER := tests/cluster/kubernetes
CLUSTER_CACHE := $(or $(SLACKTIER_CLUSTER_CACHE),$(HOME)/.cache/slacktier/cluster)
CLUSTER_IMAGES := operator tierd emulated loadtest

.PHONY: cluster-env cluster-images cluster-up cluster-down cluster-shell emulated-image test-cluster test-cluster-full
cluster-env: setup ## Build Kubernetes from source for the test cluster; once, some 12 minutes
	@$(CLUSTER)/build.sh $(CLUSTER_CACHE)

cluster-images: cluster-env ## Build our images for it, from our Dockerfile
	@$(CLUSTER)/images.sh $(CLUSTER_CACHE) $(CLUSTER_IMAGES)

cluster-up: cluster-images ## Start a Kubernetes of three nodes on this machine, in namespaces of its own, with our images
	@$(CLUSTER)/cluster.sh up --nodes 3 $(CLUSTER_IMAGES:%=--image $(CLUSTER_CACHE)/images/slacktier-%.tar)

cluster-down: ## End it; logs stay in build/cluster
	@$(CLUSTER)/cluster.sh down

cluster-shell: ## A shell in the cluster's network, with kubectl and KUBECONFIG set
	@$(CLUSTER)/cluster.sh exec bash

emulated-image: cluster-env ## Build the emulated engine's image alone, which is what test-cluster runs in pods
	@$(CLUSTER)/images.sh $(CLUSTER_CACHE) emulated

test-cluster: emulated-image helm-env ## Custom resources and operator on a real Kubernetes, as root; some 6 minutes
	$(PYTEST) tests/cluster --timeout 600

test-cluster-full: emulated-image helm-env ## The same with every fault, every flow of the window rule and 1,000 pods; some 25 minutes
	$(PYTEST) -s tests/cluster --full --timeout 900
