# SPDX-License-Identifier: Apache-2.0
"""Which RDMA port and GID are chosen, on made-up machines; each thing that is missing is named with its remedy."""

from __future__ import annotations

from ipaddress import IPv4Address
from pathlib import Path

import pytest

from slacktier.errors import ConfigError
from slacktier_native.rdma_ports import Choice, Port, choose, list_ports, usable_gid

ZERO = "0000:0000:0000:0000:0000:0000:0000:0000"
FROM_MAC = "fe80:0000:0000:0000:1e34:daff:fe00:0001"
FROM_IP = "0000:0000:0000:0000:0000:ffff:0a00:0001"
V1, V2 = "IB/RoCE v1", "RoCE v2"


def add_port(
    sysfs: Path, device: str, number: int = 1, *, state: str = "4: ACTIVE", layer: str = "Ethernet",
    gids: tuple[tuple[str, str], ...] = ((FROM_MAC, V1), (FROM_MAC, V2), (FROM_IP, V1), (FROM_IP, V2), (ZERO, "")),
) -> None:  # fmt: skip
    """As the kernel shows it; the type of an empty GID cannot be read, so there is no file."""
    port = sysfs / device / "ports" / str(number)
    (port / "gids").mkdir(parents=True)
    (port / "gid_attrs" / "types").mkdir(parents=True)
    (port / "state").write_text(f"{state}\n")
    (port / "link_layer").write_text(f"{layer}\n")
    for index, (address, kind) in enumerate(gids):
        (port / "gids" / str(index)).write_text(f"{address}\n")
        if kind:
            (port / "gid_attrs" / "types" / str(index)).write_text(f"{kind}\n")


def test_the_first_active_port_and_its_roce_v2_gid_with_an_ip_address_are_found(tmp_path: Path) -> None:
    add_port(tmp_path, "mlx5_0", state="1: DOWN")
    add_port(tmp_path, "mlx5_1")
    assert choose(sysfs=tmp_path) == Choice("mlx5_1", 1, 3)


def test_what_is_named_is_taken(tmp_path: Path) -> None:
    for device in ("mlx5_0", "mlx5_1"):
        for number in (1, 2):
            add_port(tmp_path, device, number)
    assert choose("mlx5_1", 2, 0, sysfs=tmp_path) == Choice("mlx5_1", 2, 0)


def test_infiniband_is_addressed_from_its_first_gid(tmp_path: Path) -> None:
    add_port(tmp_path, "mlx5_0", layer="InfiniBand", gids=(("fe80:0000:0000:0000:0002:c903:0000:0001", ""),))
    assert choose(sysfs=tmp_path) == Choice("mlx5_0", 1, 0)


def test_a_gid_made_of_the_mac_is_taken_where_there_is_no_other(tmp_path: Path) -> None:
    add_port(tmp_path, "mlx5_0", gids=((FROM_MAC, V1), (FROM_MAC, V2)))
    (port,) = list_ports(tmp_path)
    gid = usable_gid(port)
    assert gid is not None
    assert (gid.index, gid.is_routable) == (1, False)


def test_a_port_without_a_usable_gid_is_passed_over(tmp_path: Path) -> None:
    add_port(tmp_path, "mlx5_0", gids=((FROM_MAC, V1), (ZERO, "")))
    add_port(tmp_path, "mlx5_1")
    assert choose(sysfs=tmp_path).device == "mlx5_1"


@pytest.mark.parametrize(
    ("asked", "message", "hint"),
    [
        ({"device": "mlx5_9"}, "RDMA mlx5_9 port any: no such port; found mlx5_0 port 1, mlx5_1 port 1", ""),
        ({"device": "mlx5_0", "port": 2}, "RDMA mlx5_0 port 2: no such port", ""),
        ({"device": "mlx5_0"}, "RDMA mlx5_0 port 1 is DOWN, expected ACTIVE", "ip link set NETDEV up"),
        ({"device": "mlx5_1", "gid_index": 4}, "mlx5_1 port 1: GID 4 is zero; not zero: 0: fe80::1e34", "name one of"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, asked: dict[str, object], message: str, hint: str) -> None:
    add_port(tmp_path, "mlx5_0", state="1: DOWN")
    add_port(tmp_path, "mlx5_1")
    with pytest.raises(ConfigError) as failed:
        choose(**asked, sysfs=tmp_path)  # type: ignore[arg-type]
    assert message in str(failed.value)
    assert hint in failed.value.hint


def test_zero_gids_only_are_named_with_the_remedy(tmp_path: Path) -> None:
    add_port(tmp_path, "mlx5_0", gids=((ZERO, ""), (ZERO, "")))
    with pytest.raises(ConfigError, match="mlx5_0 port 1: no usable GID; not zero: none") as failed:
        choose(sysfs=tmp_path)
    assert "an IP address" in failed.value.hint


def test_a_machine_without_rdma_is_told_so(tmp_path: Path) -> None:
    assert list_ports(tmp_path / "absent") == []
    with pytest.raises(ConfigError, match="no RDMA device on this machine") as failed:
        choose(sysfs=tmp_path / "absent")
    assert "name another tier" in failed.value.hint


def test_a_port_says_what_it_is(tmp_path: Path) -> None:
    add_port(tmp_path, "mlx5_0", gids=((ZERO, ""), (FROM_IP, V2)))
    (port,) = list_ports(tmp_path)
    assert isinstance(port, Port)
    assert (port.label, port.state, port.link_layer) == ("mlx5_0 port 1", "ACTIVE", "Ethernet")
    assert [(gid.index, gid.address.ipv4_mapped, gid.kind) for gid in port.gids] == [(1, IPv4Address("10.0.0.1"), V2)]
