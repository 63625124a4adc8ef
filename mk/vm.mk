# SPDX-License-Identifier: Apache-2.0
VM_PACKAGES := qemu-system-x86_64=qemu-system-x86 mmdebstrap cpio modprobe=kmod mkfs.ext4=e2fsprogs

.PHONY: test-vm vm-image
vm-image: setup ## Build the guest of test-vm: Debian packages, 400 MB under ~/.cache/slacktier, once
	@mk/system-packages.sh $(VM_PACKAGES)
	@if [ "$$(id -u)" = 0 ]; then PYTHON=$(PY) tests/vm/build-image.sh >/dev/null; \
	else sudo --preserve-env=HOME PYTHON=$(PY) tests/vm/build-image.sh >/dev/null; fi

test-vm: vm-image verbs-header native ## NVMe and RDMA on real kernel drivers, in a guest under software emulation
	$(PY) tests/vm/run.py
