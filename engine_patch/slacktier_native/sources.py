# SPDX-License-Identifier: Apache-2.0
"""Where rows are read from: what a caller names, and the open C sources behind the names."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from slacktier.delay import DelayModel
from slacktier.errors import ConfigError, TierUnavailableError
from slacktier.page import PAGE_BYTES, SUPERBLOCK_PAGES, Superblock
from slacktier.region import open_region
from slacktier.tiers import Tier
from slacktier_native._lib import library
from slacktier_native.memory_table import MemoryTable
from slacktier_native.pages import PageCodec
from slacktier_native.rdma import RdmaLink, RdmaSpec
from slacktier_native.row_link import RowLink, RowsSpec

_SUPERBLOCKS_BYTES: Final = SUPERBLOCK_PAGES * PAGE_BYTES


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """Where one replica of a layer's rows is read from.

    tier    nvme: files or block devices, one path per stripe; dram: the same region, loaded into memory;
            emulated: dram whose rows are released as `delay` says, on the queue named `device`
    page_cache  of an nvme source with one path: map the file and leave its pages to the kernel's page cache
    """

    tier: Tier
    paths: tuple[Path, ...]
    device: str = ""
    delay: DelayModel | None = None
    page_cache: bool = False

    def __post_init__(self) -> None:
        if self.page_cache and (self.tier is not Tier.NVME or len(self.paths) != 1):
            raise ConfigError("a source through the page cache is an nvme source with one path")
        if self.tier not in (Tier.NVME, Tier.DRAM, Tier.EMULATED):
            raise ConfigError(f"source tier {self.tier.value} with paths: expected nvme, dram or emulated")
        if (self.tier is Tier.EMULATED) != bool(self.device):
            raise ConfigError(f"source tier {self.tier.value} with device {self.device!r}: emulated ones need a name")

    @property
    def label(self) -> str:
        """For messages and metrics; an emulated source always says so."""
        where = ",".join(str(path) for path in self.paths)
        return f"emulated:{self.device}:{where}" if self.tier is Tier.EMULATED else f"{self.tier.value}:{where}"


@dataclass(frozen=True, slots=True)
class PatternSource:
    """A table of the test pattern that takes no space: its pages are encoded when they are read. For benchmarks."""

    # As the other specs have them: no device's queue holds these rows back.
    tier: ClassVar[Tier] = Tier.EMULATED
    device: ClassVar[str] = ""
    delay: ClassVar[DelayModel | None] = None

    superblock: Superblock
    seed: int

    @property
    def label(self) -> str:
        return f"emulated:pattern:{self.seed}"


@dataclass(frozen=True, slots=True)
class MemorySpec:
    """A table that this process holds in memory: dram, or emulated where `delay` and `device` are given.

    One table may stand under several layers, as a bench does on a machine without room for more.
    """

    table: MemoryTable
    device: str = ""
    delay: DelayModel | None = None

    @property
    def tier(self) -> Tier:
        return Tier.EMULATED if self.device else Tier.DRAM

    @property
    def label(self) -> str:
        return f"emulated:{self.device}:memory" if self.device else "dram:memory"


PAGE_KINDS: Final = ("small", "transparent", "reserved")
RemoteSpec = RowsSpec | RdmaSpec
AnySource = SourceSpec | PatternSource | MemorySpec | RemoteSpec


class SourcePool:
    """Open C sources, shared between layers and kept while anything may switch back to them.

    A region's bytes are loaded into memory once, however many dram and emulated sources name it.
    """

    def __init__(self, *, allow_partial: bool = False) -> None:
        self._allow_partial = allow_partial
        self._open: dict[AnySource, tuple[int, Superblock]] = {}
        self._mapped: list[npt.NDArray[np.uint8]] = []  # outlive the sources that read from them
        self._links: dict[AnySource, RowLink | RdmaLink] = {}

    def get(self, spec: AnySource, *, like: Superblock | None = None) -> tuple[int, Superblock]:
        """(handle, superblock) of a source; raises ConfigError, ContractError or TierUnavailableError.

        like  a replica's superblock, with which a server that cannot be reached yet is taken for a link that is down
        """
        if spec not in self._open:
            self._open[spec] = self._open_link(spec, like) if isinstance(spec, RemoteSpec) else self._open_new(spec)
        handle, sb = self._open[spec]
        if spec.delay is not None:
            set_delay(spec.device, spec.delay)
        return handle, sb

    def _open_link(self, spec: RemoteSpec, like: Superblock | None) -> tuple[int, Superblock]:
        link = RdmaLink(spec, like=like) if isinstance(spec, RdmaSpec) else RowLink(spec, like=like)
        self._links[spec] = link
        return link.handle, link.superblock

    def rdma_counters(self, spec: RdmaSpec) -> dict[str, int]:
        """What an open RDMA source read, and its failures by kind."""
        link = self._links[spec]
        assert isinstance(link, RdmaLink)  # noqa: S101 - _open_link pairs them
        return link.counters()

    def memory_pages(self, spec: AnySource) -> str:
        """Which pages an open source has its table in: PAGE_KINDS; empty if it is not in memory."""
        handle, _ = self._open[spec]
        in_memory = isinstance(spec, SourceSpec) and spec.tier in (Tier.DRAM, Tier.EMULATED)
        return PAGE_KINDS[library().st_source_pages(handle)] if in_memory else ""

    def down_reason(self, spec: AnySource) -> str:
        """Why an open remote source's link is down; empty while it is up, and for local sources."""
        link = self._links.get(spec)
        return link.keeper.down_reason if link else ""

    def _open_new(self, spec: SourceSpec | PatternSource | MemorySpec) -> tuple[int, Superblock]:
        if isinstance(spec, PatternSource):
            return _open_pattern(spec)
        if spec.device:
            return self._open_emulated(spec)
        return _open_table(spec) if isinstance(spec, MemorySpec) else self._open_region(spec)

    def _open_region(self, spec: SourceSpec) -> tuple[int, Superblock]:
        with open_region(spec.paths, allow_partial=self._allow_partial) as region:
            sb, paths = region.superblock, region.paths
        if spec.page_cache:
            return self._open_mapped(spec, sb)
        layout = PageCodec(sb).layout
        names = (ctypes.c_char_p * len(paths))(*(os.fsencode(path) for path in paths))
        handle = ctypes.c_void_p()
        open_source = library().st_source_open_memory if spec.tier is Tier.DRAM else library().st_source_open_files
        rc = open_source(names, len(paths), ctypes.byref(layout), ctypes.byref(handle))
        return _opened(spec, rc, handle), sb

    def _open_mapped(self, spec: SourceSpec, sb: Superblock) -> tuple[int, Superblock]:
        with spec.paths[0].open("rb") as file:
            mapping = mmap.mmap(file.fileno(), _SUPERBLOCKS_BYTES + sb.page_count * PAGE_BYTES, prot=mmap.PROT_READ)
        mapping.madvise(mmap.MADV_RANDOM)
        pages = np.frombuffer(mapping, np.uint8)[_SUPERBLOCKS_BYTES:]
        handle = ctypes.c_void_p()
        layout = PageCodec(sb).layout
        rc = library().st_source_open_borrowed(
            ctypes.c_void_p(pages.ctypes.data), ctypes.byref(layout), ctypes.byref(handle)
        )
        self._mapped.append(pages)
        return _opened(spec, rc, handle), sb

    def _open_emulated(self, spec: SourceSpec | MemorySpec) -> tuple[int, Superblock]:
        memory = MemorySpec(spec.table) if isinstance(spec, MemorySpec) else SourceSpec(Tier.DRAM, spec.paths)
        base, sb = self.get(memory)
        handle = ctypes.c_void_p()
        rc = library().st_source_open_emulated(base, spec.device.encode(), ctypes.byref(handle))
        if rc == -errno.EINVAL:
            raise ConfigError(f"emulated device {spec.device!r}: expected 1 to 64 letters, digits, dots, dashes")
        return _opened(spec, rc, handle), sb

    def close(self) -> None:
        # Emulated sources hold a reference to their memory, so the order does not matter.
        for spec, (handle, _) in self._open.items():
            if spec not in self._links:
                library().st_source_close(handle)
        for link in self._links.values():
            link.close()
        self._open.clear()
        self._mapped.clear()
        self._links.clear()


def memory_of(handle: int) -> tuple[int, int]:
    """(address, bytes) of a memory source's pages, in order of page id; they stay there until it is closed."""
    byte_count = ctypes.c_uint64()
    address = library().st_source_memory(handle, ctypes.byref(byte_count))
    if address is None:
        raise ConfigError("not a source in memory")
    return int(address), byte_count.value


def _open_table(spec: MemorySpec) -> tuple[int, Superblock]:
    handle = ctypes.c_void_p()
    layout = PageCodec(spec.table.superblock).layout
    rc = library().st_source_open_borrowed(spec.table.address, ctypes.byref(layout), ctypes.byref(handle))
    return _opened(spec, rc, handle), spec.table.superblock


def _open_pattern(spec: PatternSource) -> tuple[int, Superblock]:
    handle = ctypes.c_void_p()
    layout = PageCodec(spec.superblock).layout
    rc = library().st_source_open_pattern(spec.seed, ctypes.byref(layout), ctypes.byref(handle))
    return _opened(spec, rc, handle), spec.superblock


def _opened(spec: AnySource, rc: int, handle: ctypes.c_void_p) -> int:
    """The handle that an open call filled in; raises TierUnavailableError with its errno if it did not."""
    if rc < 0 or handle.value is None:
        raise TierUnavailableError(
            f"{spec.label}: open failed: {os.strerror(-rc)}",
            tier=spec.tier.value, operation="open", target=spec.label, errno=-rc,
        )  # fmt: skip
    return handle.value


def set_delay(device: str, model: DelayModel) -> None:
    """Give a named emulated device this delay model, for all processes on the machine that use it."""
    rc = library().st_delay_set(device.encode(), model.a_us, model.b_us, model.c_us)
    if rc < 0:
        raise ConfigError(f"emulated device {device!r}: {os.strerror(-rc)}")
