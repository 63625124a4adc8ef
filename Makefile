# SPDX-License-Identifier: Apache-2.0
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
VENV := .venv
PY := $(VENV)/bin/python

.PHONY: help native lint
help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "%-16s %s\n", $$1, $$2}'

native: ## Compile the native library
	$(MAKE) -s -C engine_patch/native lib

lint: ## ruff, mypy, import-linter, codespell
	$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check . && $(VENV)/bin/mypy && $(VENV)/bin/lint-imports && $(VENV)/bin/codespell
