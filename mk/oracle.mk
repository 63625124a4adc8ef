# SPDX-License-Identifier: Apache-2.0
.PHONY: test-oracle
test-oracle: engine-env ## Row ids against the pinned SGLang releases' own code
	$(PYTEST) tests/oracle --timeout 600
