# SPDX-License-Identifier: Apache-2.0
.PHONY: oracle-env test-oracle
oracle-env: setup ## Build what test-oracle needs: 6 GB under ~/.cache/slacktier, once
	@PYTHON=$(PY) tests/oracle/setup.sh >/dev/null

test-oracle: oracle-env ## Row ids against the pinned SGLang releases' own code
	$(PYTEST) tests/oracle --timeout 600
