# SPDX-License-Identifier: Apache-2.0
"""A cable between client and node that loses packets, that swallows all of them, that is pulled out.

Two soft RoCE devices at the ends of a veth pair. Both ends are this machine's own, so routes of their own keep the
kernel from taking the short way through the loopback device.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from node import NodeProcess
from rdma_support import TOKEN, assert_fails_in_time, core_over, spec_of, wait_until
from tables import SourceRows

from slacktier.errors import TierError
from slacktier_native.core import SourceSpec
from slacktier_native.rdma import RdmaSpec

NEAR, FAR = "near0", "far0"
BOTH_ENDS = f"""
ip link add {NEAR} mtu 4200 type veth peer name {FAR} mtu 4200
ip addr add 198.51.100.1/32 dev {NEAR}
ip addr add 198.51.100.2/32 dev {FAR}
sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.{NEAR}.rp_filter=0 net.ipv4.conf.{FAR}.rp_filter=0
sysctl -qw net.ipv4.conf.{NEAR}.accept_local=1 net.ipv4.conf.{FAR}.accept_local=1
ip link set {NEAR} up
ip link set {FAR} up
ip rule add pref 1 iif {NEAR} lookup local
ip rule add pref 1 iif {FAR} lookup local
ip rule add pref 2 to 198.51.100.0/24 lookup 100
ip rule add pref 3 lookup local
ip rule del pref 0
rdma link add {NEAR} type rxe netdev {NEAR}
rdma link add {FAR} type rxe netdev {FAR}
"""
ROUTES = f"""
ip route replace 198.51.100.2 dev {NEAR} src 198.51.100.1 table 100
ip route replace 198.51.100.1 dev {FAR} src 198.51.100.2 table 100
"""
NEITHER_END = f"""
rdma link delete {NEAR}
rdma link delete {FAR}
ip rule add pref 0 lookup local
ip rule del pref 1 iif {NEAR}
ip rule del pref 1 iif {FAR}
ip rule del pref 2
ip rule del pref 3
ip link delete {NEAR}
"""


def shell(script: str) -> None:
    subprocess.run(["sh", "-ec", script], check=True)


@pytest.fixture(scope="module")
def cable(in_guest: None) -> Iterator[None]:
    shell(BOTH_ENDS + ROUTES)
    yield
    shell(NEITHER_END)


@pytest.fixture
def node(cable: None, regions: dict[int, Path]) -> Iterator[NodeProcess]:
    """A memory node with layer 1 at the far end."""
    with NodeProcess(TOKEN, [regions[1]], device=FAR) as process:
        yield process


@pytest.fixture
def spec(node: NodeProcess) -> RdmaSpec:
    return spec_of(node, device=NEAR)


def lose(share: str) -> None:
    """Each end loses this share of the packets that it sends."""
    for end in (NEAR, FAR):
        subprocess.run(["tc", "qdisc", "replace", "dev", end, "root", "netem", "loss", share], check=True)


@pytest.fixture
def mended() -> Iterator[None]:
    """Whatever a test did to the cable is over after it."""
    yield
    mend()


def pull_out() -> None:
    subprocess.run(["ip", "link", "set", NEAR, "down"], check=True)


def plug_in() -> None:
    subprocess.run(["ip", "link", "set", NEAR, "up"], check=True)
    shell(ROUTES)  # the kernel forgot those of the end that was down


def mend() -> None:
    """Neither loses packets nor is pulled out any more; a cable that was whole stays so."""
    for end in (NEAR, FAR):
        subprocess.run(["tc", "qdisc", "del", "dev", end, "root"], check=False, capture_output=True)
    plug_in()


def packets_sent() -> int:
    return int(Path(f"/sys/class/net/{NEAR}/statistics/tx_packets").read_text())


@pytest.mark.usefixtures("mended")
def test_a_cable_that_loses_packets_costs_time_and_no_row(spec: RdmaSpec, source: dict[int, SourceRows]) -> None:
    with core_over(spec) as core:
        before = packets_sent()
        source[1].look_up(core, source[1].draw(300, seed=0))
        assert packets_sent() > before + 30  # the cable is in use, not the loopback device
        lose("1%")
        for seed in range(10):
            source[1].look_up(core, source[1].draw(300, seed))
        assert core.stats()[1]["bad_records"] == 0


@pytest.mark.usefixtures("mended")
@pytest.mark.parametrize("fault", [pull_out, lambda: lose("100%")], ids=["pulled", "swallows"])
def test_a_lone_node_behind_a_dead_cable_is_an_error_in_bounded_time_and_is_taken_up_again(
    spec: RdmaSpec, source: dict[int, SourceRows], fault: object
) -> None:
    with core_over(spec) as core:
        source[1].look_up(core, source[1].draw(300, seed=0))
        assert callable(fault)
        fault()
        started = time.monotonic()
        message = assert_fails_in_time(core, source[1], TierError)
        assert f"{spec.label}: read failed: " in message
        print(f"an error after {time.monotonic() - started:.1f} s")
        mend()
        wait_until(lambda: not core.links()[spec.label])
        source[1].look_up(core, source[1].draw(300, seed=2))


@pytest.mark.usefixtures("mended")
@pytest.mark.parametrize("fault", [pull_out, lambda: lose("100%")], ids=["pulled", "swallows"])
def test_with_a_second_replica_no_lookup_notices_a_dead_cable(
    spec: RdmaSpec, nvme: SourceSpec, source: dict[int, SourceRows], fault: object
) -> None:
    with core_over(spec, nvme) as core:
        source[1].look_up(core, source[1].draw(300, seed=0))
        assert callable(fault)
        fault()
        for seed in range(20):
            source[1].look_up(core, source[1].draw(300, seed))
        assert core.stats()[1]["failed_reads"] == core.stats()[1]["failed_steps"] == 0
        assert core.delivered()[1][nvme.label] > 0
