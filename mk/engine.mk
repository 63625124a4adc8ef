# SPDX-License-Identifier: Apache-2.0
.PHONY: engine-env
engine-env: setup ## Build what runs SGLang on a CPU: 7 GB under ~/.cache/slacktier, once
	@PYTHON=$(PY) tests/engine_env/build.sh >/dev/null
