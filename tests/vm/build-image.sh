#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the guest of `make test-vm`, unless it is there, and prints its directory: vmlinuz, initrd.img and a read-only
# root.img. Debian 12 from the host's apt, with the full kernel (soft RoCE and NVMe drivers), pyverbs, and the project's
# Python dependencies. Kept under ~/.cache/slacktier by a name made from what goes into it; needs root.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}
cache=$HOME/.cache/slacktier

packages=(mount kmod iproute2 procps util-linux busybox-static python3 python3-pyverbs
    ibverbs-providers rdma-core dmsetup liburing2 libstdc++6)
modules=(virtio_pci virtio_blk ext4 overlay virtio_console virtio_rng 9pnet_virtio 9p qemu_fw_cfg
    nvme dm_mod dm_delay rdma_rxe ib_uverbs rdma_ucm crc32_generic dummy veth sch_netem)
initrd_modules=(virtio_pci virtio_blk ext4 crc32c_generic overlay)

# The guest's Python is Debian's 3.11, whatever the host's is: its packages are asked for by that version.
requirements() {
    "$python" - "$here/../../pyproject.toml" <<'PY'
import sys, tomllib
project = tomllib.load(open(sys.argv[1], "rb"))["project"]
tests = ("pytest>", "pytest-timeout", "hypothesis")
print(*project["dependencies"], *(r for r in project["optional-dependencies"]["dev"] if r.startswith(tests)), sep="\n")
PY
}

init=$(cat "$here/guest-init") # once: it may change while this runs
key=$({ cat "$here/build-image.sh"; echo "$init"; requirements; } | sha256sum | cut -c1-12)
target=$cache/vm-$key
mkdir -p "$cache"
exec 9>"$cache/vm.lock"
flock 9
if [ -e "$target/complete" ]; then
    echo "$target"
    exit 0
fi

say() { printf 'vm image: %3d s: %s\n' "$SECONDS" "$*" >&2; }
[ "$(id -u)" = 0 ] || { echo 'vm image: needs root to build: run it as root or with sudo' >&2; exit 1; }
rm -rf "$cache"/vm-*/
work=$target/build
root=$work/root
mkdir -p "$work"/{kernel,initrd/bin,initrd/modules,initrd/proc,initrd/sys,initrd/dev,initrd/lower,initrd/over,initrd/new}

# Both at once: they wait for the network, not for each other.
say 'fetching the kernel and the Python packages'
fetch_kernel() {
    local package
    package=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9][^ ]*-amd64\)$/\1/p')
    [ -n "$package" ] || { echo 'vm image: apt knows no linux-image-amd64: this needs Debian 12' >&2; return 1; }
    (cd "$work/kernel" && apt-get -qq -o APT::Sandbox::User=root download "$package" >&2)
    dpkg-deb -x "$work"/kernel/linux-image-*.deb "$work/kernel"
    depmod -b "$work/kernel" "$(basename "$work"/kernel/lib/modules/*)"
}
fetch_kernel &
kernel_job=$!
requirements >"$work/requirements.txt"
"$python" -m pip install --quiet --disable-pip-version-check --no-compile --target "$work/site" --python-version 3.11 \
    --only-binary=:all: --implementation cp -r "$work/requirements.txt" >&2 &
pip_job=$!

say 'unpacking Debian'
sources=()
[ ! -s /etc/apt/sources.list.d/debian.sources ] || sources=(/etc/apt/sources.list.d/debian.sources)
mmdebstrap --quiet --mode=root --variant=essential --format=directory --include="${packages[*]}" \
    --aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Languages "none"' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    bookworm "$root" "${sources[@]}" >&2
wait "$kernel_job"
wait "$pip_job"

release=$(basename "$work"/kernel/lib/modules/*)
depends_of() { modprobe -d "$work/kernel" -S "$release" --show-depends "$1" | sed -n 's/^insmod \([^ ]*\).*/\1/p'; }

say "kernel $release: the modules that the guest loads"
for module in "${modules[@]}" "${initrd_modules[@]}"; do
    depends_of "$module"
done | sort -u | while read -r path; do
    install -D -m 644 "$path" "$root/lib/modules/$release/${path##*/"$release"/}"
done
cp "$work/kernel/lib/modules/$release"/modules.{order,builtin,builtin.modinfo} "$root/lib/modules/$release"
depmod -b "$root" "$release"
for module in "${initrd_modules[@]}"; do
    depends_of "$module"
done | awk '!seen[$0]++' | while read -r path; do
    cp "$path" "$work/initrd/modules/"
    basename "$path"
done >"$work/initrd/modules/order"

say 'Python packages, compiled: under emulation that takes the guest seconds at each start'
mkdir -p "$root/opt/slacktier" "$root/out"
mv "$work/site" "$root/opt/slacktier/site"
chroot "$root" python3 -m compileall -q /usr/lib/python3 /usr/lib/python3.11 /opt/slacktier/site >/dev/null || true
echo "$init" >"$root/sbin/guest-init"
chmod 755 "$root/sbin/guest-init"

say 'initramfs: a busybox that mounts the root disk under an overlay in memory'
cp "$root/bin/busybox" "$work/initrd/bin/busybox"
cat >"$work/initrd/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
while read -r module; do insmod "/modules/$module"; done </modules/order
until [ -b /dev/vda ]; do sleep 0.05; done
mount -t ext4 -o ro /dev/vda /lower
mount -t tmpfs over /over
mkdir /over/upper /over/work
mount -t overlay -o lowerdir=/lower,upperdir=/over/upper,workdir=/over/work overlay /new
mount --move /dev /new/dev
umount /proc /sys
exec switch_root /new /sbin/guest-init
INIT
chmod 755 "$work/initrd/init"
(cd "$work/initrd" && find . | cpio --quiet -o -H newc | gzip -1) >"$target/initrd.img"

say 'root disk'
truncate -s "$(($(du -sm "$root" | cut -f1) * 5 / 4 + 32))M" "$target/root.img"
mkfs.ext4 -q -F -O ^has_journal -m 0 -d "$root" "$target/root.img"

# Unpacked here: the kernel would take seconds to unpack itself under emulation.
"$python" - "$work/kernel/boot/vmlinuz-$release" "$target/vmlinuz" <<'PY'
import lzma, sys
packed = open(sys.argv[1], "rb").read()
at = packed.find(b"\xfd7zXZ\0")
image = lzma.LZMADecompressor().decompress(packed[at:]) if at >= 0 else b""
open(sys.argv[2], "wb").write(image if image.startswith(b"\x7fELF") else packed)
PY
rm -rf "$work"
echo "$release" >"$target/complete"
say "done: $(du -sh "$target" | cut -f1)"
echo "$target"
