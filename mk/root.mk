# SPDX-License-Identifier: Apache-2.0
.PHONY: test-root
test-root: setup ## Loop devices, full disks, mounted devices, twenty kills; as root (sudo where it is not)
	@mk/system-packages.sh fio
	@if [ "$$(id -u)" = 0 ]; then $(PYTEST) tests/root; \
	else sudo --preserve-env=SLACKTIER_LEVEL_REPORT $(PYTEST) -p no:cacheprovider tests/root; fi
