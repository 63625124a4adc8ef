# SPDX-License-Identifier: Apache-2.0
"""Which RDMA ports this machine has and which GID of one to speak from, as the kernel's sysfs says; opens no device."""

from __future__ import annotations

import ipaddress
import resource
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from slacktier.errors import ConfigError

SYSFS: Final = Path("/sys/class/infiniband")
ROCE_V2: Final = "RoCE v2"
ACTIVE: Final = "ACTIVE"


class LinkLayer(StrEnum):
    """What a port speaks: RoCE over Ethernet is addressed by GID, InfiniBand by LID."""

    ETHERNET = "Ethernet"
    INFINIBAND = "InfiniBand"


@dataclass(frozen=True, slots=True)
class Gid:
    """One address of a port. kind: what the kernel calls it, `RoCE v2`, `IB/RoCE v1`, or "" where it says nothing."""

    index: int
    address: ipaddress.IPv6Address
    kind: str

    @property
    def is_routable(self) -> bool:
        """Made of an IP address that other hosts can reach, not of the MAC."""
        return not self.address.is_link_local


@dataclass(frozen=True, slots=True)
class Port:
    """A port of an RDMA device. state: ACTIVE, DOWN, INIT and so on; gids: those that are not zero."""

    device: str
    number: int
    state: str
    link_layer: str
    gids: tuple[Gid, ...]

    @property
    def label(self) -> str:
        return f"{self.device} port {self.number}"


@dataclass(frozen=True, slots=True)
class Choice:
    """A port and the index of the GID to speak from."""

    device: str
    port: int
    gid_index: int


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""  # an empty entry of the GID table has no type, and reading it fails


def _gids(port: Path) -> tuple[Gid, ...]:
    found = []
    for entry in (port / "gids").iterdir() if (port / "gids").is_dir() else ():
        text = _read(entry)
        address = ipaddress.IPv6Address(text) if text else ipaddress.IPv6Address(0)
        if int(address):
            found.append(Gid(int(entry.name), address, _read(port / "gid_attrs" / "types" / entry.name)))
    return tuple(sorted(found, key=lambda gid: gid.index))


def list_ports(sysfs: Path = SYSFS) -> list[Port]:
    """Every port of every device, in order of names."""
    if not sysfs.is_dir():
        return []
    ports = []
    for device in sorted(sysfs.iterdir()):
        for port in sorted((device / "ports").iterdir(), key=lambda path: int(path.name)):
            state = _read(port / "state").partition(":")[2].strip()
            ports.append(Port(device.name, int(port.name), state, _read(port / "link_layer"), _gids(port)))
    return ports


def usable_gid(port: Port) -> Gid | None:
    """The GID to speak from: on Ethernet RoCE v2 with an IP address, else RoCE v2; on InfiniBand the first."""
    if port.link_layer != LinkLayer.ETHERNET:
        return port.gids[0] if port.gids else None
    second = [gid for gid in port.gids if gid.kind == ROCE_V2]
    return next((gid for gid in second if gid.is_routable), second[0] if second else None)


def choose(device: str = "", port: int = 0, gid_index: int | None = None, *, sysfs: Path = SYSFS) -> Choice:
    """The port that is named, or the first active one that has a usable GID.

    device, port, gid_index  "", 0 and None: found
    raises  ConfigError that says what is missing and the remedy
    """
    ports = list_ports(sysfs)
    if not ports:
        raise ConfigError(
            "no RDMA device on this machine",
            hint="load the NIC's RDMA driver, or name another tier for this layer; in a pod ask for its rdma/ resource",
        )
    named = [p for p in ports if device in ("", p.device) and port in (0, p.number)]
    if not named:
        wanted = f"{device or 'any device'} port {port or 'any'}"
        raise ConfigError(f"RDMA {wanted}: no such port; found {', '.join(p.label for p in ports)}")
    active = [p for p in named if p.state == ACTIVE]
    if not active:
        raise ConfigError(
            f"RDMA {', '.join(f'{p.label} is {p.state}' for p in named)}, expected {ACTIVE}",
            hint="bring its link up: `ip link set NETDEV up`, or on InfiniBand start a subnet manager",
        )
    for candidate in active:
        if (choice := _with_gid(candidate, gid_index)) is not None:
            return choice
    raise _no_gid(active[0], gid_index)


def _with_gid(port: Port, gid_index: int | None) -> Choice | None:
    named = next((gid for gid in port.gids if gid.index == gid_index), None)
    gid = usable_gid(port) if gid_index is None else named
    return None if gid is None else Choice(port.device, port.number, gid.index)


def _no_gid(port: Port, gid_index: int | None) -> ConfigError:
    found = ", ".join(f"{gid.index}: {gid.address} ({gid.kind})" for gid in port.gids) or "none"
    if gid_index is not None:
        return ConfigError(
            f"RDMA {port.label}: GID {gid_index} is zero; not zero: {found}", hint="name one of these, or none"
        )
    return ConfigError(
        f"RDMA {port.label}: no usable GID; not zero: {found}",
        hint="give the port's network device an IP address: RoCE v2 GIDs are made of these",
    )


def memlock_hint(byte_count: int) -> str:
    """Why registering so much memory may have been refused, and what to do about it."""
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if limit == resource.RLIM_INFINITY:
        return ""
    return (
        f"RLIMIT_MEMLOCK is {limit} bytes, {byte_count} are wanted: `ulimit -l unlimited`, LimitMEMLOCK=infinity in a "
        "unit; in a pod the capability IPC_LOCK counts for root only, so raise the container runtime's limit"
    )
