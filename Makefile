# SPDX-License-Identifier: Apache-2.0
# What people and CI call; `make help` lists it. Levels beyond `make test` are one file each in mk/.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := check

VENV := .venv
PY := $(VENV)/bin/python
PYTEST := $(PY) -m pytest
INSTALLED := $(VENV)/.installed-from-pyproject
NATIVE := engine_patch/native
# LeakSanitizer and ThreadSanitizer want fixed addresses where the kernel randomises more bits than they expect.
FIXED_ADDRESSES := $(shell setarch -R true 2>/dev/null && echo setarch -R)

.PHONY: check help setup packages native test test-unit test-property test-golden test-native test-native-asan \
	test-native-tsan lint format generate demo doctor clean

check: lint test-native test ## Lint, native tests, unit, property and golden: what CI runs first (plain `make`)

help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "%-18s %s\n", $$1, $$2}'

setup: packages $(INSTALLED) ## System packages (says which first), .venv and the native library
	@if command -v $(CC) >/dev/null; then $(MAKE) -s native; \
	else echo 'setup: no C compiler, so no native library: whatever reads a table will not run' >&2; fi

packages:
	@mk/system-packages.sh

# Made anew only when pyproject.toml changes: the install is editable.
$(INSTALLED): pyproject.toml | packages
	@mk/make-venv.sh $(VENV)
	@echo 'setup: installing Python packages into $(VENV)'
	@command -v $(CC) >/dev/null || export SLACKTIER_NATIVE=skip; \
	    $(PY) -m pip install -q --disable-pip-version-check -e '.[dev]'
	@touch $@

native: ## Compile the native library
	@$(MAKE) -s -C $(NATIVE) lib

test: setup ## Unit, property and golden tests; no root, no big download
	$(PYTEST) tests/unit tests/property tests/golden

test-unit test-property test-golden: test-%: setup
	$(PYTEST) tests/$*

test-native: packages ## The C core's own test programs
	@$(MAKE) -s -C $(NATIVE) test LEVEL=native

test-native-asan: packages ## The same under AddressSanitizer and UndefinedBehaviorSanitizer
	@$(MAKE) -s -C $(NATIVE) test LEVEL=native-asan SANITIZE=address,undefined RUN='$(FIXED_ADDRESSES)'

test-native-tsan: packages ## The same under ThreadSanitizer
	@$(MAKE) -s -C $(NATIVE) test LEVEL=native-tsan SANITIZE=thread RUN='$(FIXED_ADDRESSES)'

lint: setup ## ruff, mypy, import-linter, codespell, clang-format, shellcheck
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-logo
	$(VENV)/bin/codespell
	$(VENV)/bin/clang-format --dry-run --Werror $$(git ls-files -co --exclude-standard '*.c' '*.h')
	@if command -v shellcheck >/dev/null; then shellcheck $$(git grep --untracked -lE '^#!.*\b(ba)?sh$$' -- ':!*.py'); \
	else echo 'lint: shellcheck is not installed: shell scripts were not checked' >&2; fi

format: setup ## Rewrite Python and C in the project's format
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .
	$(VENV)/bin/clang-format -i $$(git ls-files -co --exclude-standard '*.c' '*.h')

generate: setup ## Write the generated files: custom resource definitions, the chart's copies, its table of values
	$(PY) -m slacktier_operator.crd_schema
	$(PY) helm/generate.py

demo: setup ## Stage a table, serve it from disk, replay sessions, say where each layer's table can live
	$(VENV)/bin/slacktier demo

doctor: setup ## Say what this machine has and lacks
	$(VENV)/bin/slacktier doctor

clean: ## Remove what was built; .venv stays
	rm -rf build engine_patch/slacktier_native/*.so *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

include $(wildcard mk/*.mk)
