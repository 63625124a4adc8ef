# SPDX-License-Identifier: Apache-2.0
.PHONY: test-loadtest
test-loadtest: setup ## The load generator against a misbehaving server, and the emulated engine's arms
	$(PYTEST) tests/loadtest
