# SPDX-License-Identifier: Apache-2.0
"""One guest under QEMU: its kernel, root disk, NVMe disks, shared folder, and QMP both for the host and inside.

The emulator is TCG, so that no /dev/kvm is needed; whatever is timed in the guest says nothing about real devices.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

KERNEL_ARGUMENTS: Final = (
    "console=ttyS0 loglevel=4 panic=-1 nokaslr mitigations=off tsc=reliable no_timer_check cryptomgr.notests "
    "rcupdate.rcu_expedited=1 random.trust_cpu=on nvme_core.io_timeout=2 nvme.poll_queues=1"
)
# Nehalem: the oldest model with SSE 4.2; each further instruction set makes the emulator slower, not faster.
MACHINE: Final = ("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-machine", "q35",
                  "-accel", "tcg,thread=multi,tb-size=256", "-cpu", "Nehalem", "-smp", "2")  # fmt: skip
POLL_S: Final = 0.2


@dataclass(frozen=True)
class Disk:
    """An emulated NVMe namespace over a file; nvme0 is /dev/nvme0n1 in the guest.

    Between its file and the namespace lies a block node NAME-raw, under which a test can put one that injects errors.
    """

    name: str
    path: Path

    def arguments(self, index: int) -> list[str]:
        name, node = self.name, f"node-name={self.name}"
        chain = (f"driver=file,{node}-file,filename={self.path}", f"driver=raw,{node}-raw,file={name}-file")
        devices = (
            # A root port each: only behind one can a disk be pulled out.
            f"pcie-root-port,id={name}-port,chassis={index + 1},slot={index + 1}",
            f"nvme,id={name},serial=SLACKTIER-{index},bus={name}-port",
            f"nvme-ns,drive={name}-raw,bus={name},logical_block_size=4096,physical_block_size=4096",
        )
        found = [argument for block in chain for argument in ("-blockdev", block)]
        for device in devices:
            found += ["-device", device]
        return found


@dataclass(frozen=True)
class Guest:
    """What a guest is made of.

    image   the directory that build-image.sh printed
    shared  the host's folder that is /out in the guest; `command` in it is run by sh, `exit-code` comes back
    work    for sockets and logs
    """

    image: Path
    shared: Path
    work: Path
    disks: tuple[Disk, ...]
    memory_mib: int = 2048

    def arguments(self) -> list[str]:
        qmp = self.work / "qmp"
        found = ["qemu-system-x86_64", *MACHINE, "-m", str(self.memory_mib)]
        found += ["-kernel", str(self.image / "vmlinuz"), "-initrd", str(self.image / "initrd.img")]
        found += ["-append", KERNEL_ARGUMENTS, "-serial", f"file:{self.console}"]
        root = f"driver=raw,node-name=root,read-only=on,file.driver=file,file.locking=off,file.filename={self.image}"
        found += ["-blockdev", f"{root}/root.img", "-device", "virtio-blk-pci,drive=root"]
        found += ["-device", "virtio-rng-pci"]
        found += ["-virtfs", f"local,path={self.shared},mount_tag=out,security_model=none,multidevs=remap"]
        # The guest's standard output, and a port by which tests inside reach this QEMU's own QMP.
        found += ["-device", "virtio-serial-pci", "-chardev", "stdio,id=out,signal=off"]
        found += ["-device", "virtconsole,chardev=out"]
        found += ["-chardev", f"socket,id=qmp,path={qmp},server=on,wait=off", "-mon", "chardev=qmp,mode=control"]
        found += ["-chardev", f"socket,id=inner,path={qmp},reconnect=1"]
        found += ["-device", "virtserialport,chardev=inner,name=qmp"]
        for index, disk in enumerate(self.disks):
            found += disk.arguments(index)
        return found

    @property
    def console(self) -> Path:
        return self.work / "console.log"

    def run(self, command: str, timeout_s: float) -> int | None:
        """The command's exit code; None if the guest did not say one within timeout_s."""
        (self.shared / "command").write_text(command)
        code = self.shared / "exit-code"
        code.unlink(missing_ok=True)
        # What the emulator itself says is mostly about the errors that tests inject.
        with (
            (self.work / "emulator.log").open("w") as log,
            subprocess.Popen(self.arguments(), stdin=subprocess.DEVNULL, stderr=log) as qemu,
        ):
            try:
                _wait(qemu, timeout_s)
            finally:
                if qemu.poll() is None:
                    qemu.kill()
        return int(code.read_text()) if code.exists() else None


def _wait(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(POLL_S)


def make_disks(directory: Path, sizes: Iterable[int]) -> tuple[Disk, ...]:
    """Empty, sparse disks of these many bytes: nvme0, nvme1, and so on."""
    disks = []
    for index, byte_count in enumerate(sizes):
        disk = Disk(f"nvme{index}", directory / f"nvme{index}.img")
        with disk.path.open("wb") as file:
            file.truncate(byte_count)
        disks.append(disk)
    return tuple(disks)
