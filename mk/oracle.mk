# SPDX-License-Identifier: Apache-2.0
.PHONY: test-oracle
test-oracle: setup ## Row ids against the pinned SGLang releases' own code (builds a 6 GB environment once)
	@PYTHON=$(PY) tests/oracle/setup.sh >/dev/null
	$(PYTEST) tests/oracle --timeout 600
