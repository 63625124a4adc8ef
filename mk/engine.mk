# SPDX-License-Identifier: Apache-2.0
# -s: each check prints the figures that it holds. The libraries are what Mooncake, which moves the KV cache, is linked to.
.PHONY: engine-env test-engine test-engine-full
engine-env: setup ## Build what runs SGLang on a CPU: 7 GB under ~/.cache/slacktier, once
	@PYTHON=$(PY) tests/engine_env/build.sh >/dev/null

test-engine: engine-env ## The plugin in real SGLang servers on a CPU: the part that fits a CI run
	$(PYTEST) -s tests/engine

test-engine-full: engine-env ## The same over all releases, flags and ranks, and a table of 4 GiB: hours on two cores
	@mk/system-packages.sh libibverbs1 librdmacm1 libnl-3-200 libnl-route-3-200 libnuma1 liburing2
	$(PYTEST) -s tests/engine --full
