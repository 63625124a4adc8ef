# SPDX-License-Identifier: Apache-2.0
FUZZ_SECONDS ?= 30

.PHONY: test-fuzz fuzz
test-fuzz fuzz: setup ## Every parser of bytes from outside, 30 s each (FUZZ_SECONDS=N), with ASan and UBSan
	@$(PY) -m pip install -q --disable-pip-version-check -e '.[fuzz]'
	@mk/fuzz.sh $(FUZZ_SECONDS)
