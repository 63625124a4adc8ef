# SPDX-License-Identifier: Apache-2.0
.PHONY: test-tierd
test-tierd: setup ## tierd: the API, a real Ray, processes killed under running streams
	$(PYTEST) tests/tierd
