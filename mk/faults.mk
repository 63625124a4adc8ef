# SPDX-License-Identifier: Apache-2.0
.PHONY: test-faults
test-faults: setup ## Disks and row servers that fail, die, fall silent or lie; FUSE, loop devices, network namespaces; root
	@if [ "$$(id -u)" = 0 ]; then $(PYTEST) tests/faults; \
	else sudo --preserve-env=SLACKTIER_LEVEL_REPORT $(PYTEST) -p no:cacheprovider tests/faults; fi
