# SPDX-License-Identifier: Apache-2.0
"""Rows by one-sided READs from a memory node in another process, over soft RoCE: right bytes or a clear error."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from node import NodeProcess
from rdma_support import TOKEN, TOKEN_FILE, assert_fails_in_time, core_over, spec_of, wait_until
from tables import SourceRows, slacktier

from slacktier.errors import ConfigError, ContractError, TierError, TierUnavailableError
from slacktier.region import open_region
from slacktier.tiers import Tier
from slacktier_emulated.engine_process import layer_setup
from slacktier_emulated.layers import plan_layers
from slacktier_emulated.tables import check_plans
from slacktier_native.core import LayerSetup, LookupCore, SourceSpec
from slacktier_native.rdma import RdmaSpec, ReadUnit
from slacktier_native.rdma_ports import choose
from slacktier_tierd.memory_node import client
from slacktier_tierd.memory_node.config import MemoryNodeConfig


@pytest.fixture(scope="session")
def shared_node(regions: dict[int, Path]) -> Iterator[NodeProcess]:
    """A memory node with layer 1, for tests that do it no harm."""
    with NodeProcess(TOKEN, [regions[1]]) as process:
        yield process


@pytest.fixture
def node(regions: dict[int, Path]) -> Iterator[NodeProcess]:
    """A memory node with layer 1 of a test's own."""
    with NodeProcess(TOKEN, [regions[1]]) as process:
        yield process


@pytest.fixture
def node_of_two(regions: dict[int, Path]) -> Iterator[NodeProcess]:
    """A memory node with both layers."""
    with NodeProcess(TOKEN, list(regions.values())) as process:
        yield process


@pytest.fixture
def spec(node: NodeProcess) -> RdmaSpec:
    return spec_of(node)


def counters(core: LookupCore, spec: RdmaSpec) -> dict[str, int]:
    return core.rdma_counters(spec)


@pytest.mark.parametrize("unit", list(ReadUnit))
def test_100_000_rows_equal_the_source(shared_node: NodeProcess, source: dict[int, SourceRows], unit: ReadUnit) -> None:
    spec = spec_of(shared_node, unit=unit)
    ids = source[1].draw(100_000, seed=11)
    with core_over(spec) as core:
        for part in np.split(ids, 20):
            source[1].look_up(core, part)
        stats, seen = core.stats()[1], counters(core, spec)
    assert stats["retries"] == stats["failed_reads"] == stats["bad_records"] == 0
    assert seen["rows"] == 100_000 + 1  # the first one was the connection's own trial
    if unit is ReadUnit.RECORD:
        assert seen["reads"] == seen["rows"]
        assert seen["bytes"] == 272 * seen["rows"]
    else:
        assert seen["reads"] < seen["rows"]  # rows of one page came by one READ
        assert seen["bytes"] == 4096 * seen["reads"]
    assert seen["signalled"] < seen["reads"] / 8  # most READs ask for no completion


@pytest.mark.parametrize(("threads", "queue_pairs", "depth"), [(1, 1, 32), (1, 8, 64), (16, 1, 32), (3, 2, 4096)])
def test_any_threads_queue_pairs_and_depth_read_the_same(
    shared_node: NodeProcess, source: dict[int, SourceRows], threads: int, queue_pairs: int,
    depth: int,
) -> None:  # fmt: skip
    spec = spec_of(shared_node, threads=threads, queue_pairs=queue_pairs, depth=depth)
    with core_over(spec) as core:
        for count in (1, 31, 32, 33, 700, 5000):
            source[1].look_up(core, source[1].draw(count, seed=count))
        seen = counters(core, spec)
    assert seen["depth"] <= depth
    assert seen["reads_max"] >= 1


def test_two_layers_over_rdma_and_nvme_in_one_core(
    node_of_two: NodeProcess, nvme: SourceSpec, source: dict[int, SourceRows]
) -> None:
    layers = [LayerSetup(1, (nvme,), cache_rows=100), LayerSetup(14, (spec_of(node_of_two, 14),))]
    with LookupCore(layers, timeout_s=20.0) as core:
        for seed in range(5):
            source[1].look_up(core, source[1].draw(500, seed), 0)
            source[14].look_up(core, source[14].draw(500, seed), 1)


def test_reads_go_on_while_the_node_is_stopped(shared_node: NodeProcess, source: dict[int, SourceRows]) -> None:
    """One-sided: the node's process does not run at all while its memory is read."""

    node, spec = shared_node, spec_of(shared_node)

    def state_and_ticks() -> tuple[str, ...]:
        fields = node.stat
        return fields[0], fields[11], fields[12]

    with core_over(spec) as core:
        source[1].look_up(core, source[1].draw(500, seed=0))
        node.freeze()
        try:
            time.sleep(0.2)
            before = state_and_ticks()
            assert before[0] == "T"
            for seed in range(20):
                source[1].look_up(core, source[1].draw(500, seed))
            assert state_and_ticks() == before
        finally:
            node.thaw()
        assert counters(core, spec)["rows"] == 21 * 500 + 1


def test_a_killed_node_is_an_error_in_bounded_time(
    node: NodeProcess, spec: RdmaSpec, source: dict[int, SourceRows]
) -> None:
    with core_over(spec) as core:
        source[1].look_up(core, source[1].draw(300, seed=0))
        node.kill()
        message = assert_fails_in_time(core, source[1], TierError)
        assert f"rdma:127.0.0.1:{node.port}: read failed: " in message
        assert core.stats()[1]["failed_reads"] > 0


def test_a_killed_node_costs_no_lookup_with_a_second_replica_and_is_taken_up_again(
    regions: dict[int, Path], nvme: SourceSpec, source: dict[int, SourceRows]
) -> None:
    with NodeProcess(TOKEN, [regions[1]]) as first:
        spec = spec_of(first)
        with core_over(spec, nvme) as core:
            source[1].look_up(core, source[1].draw(300, seed=0))
            first.kill()
            for seed in range(30):
                source[1].look_up(core, source[1].draw(300, seed))
            with NodeProcess(TOKEN, [regions[1]], first.port):
                wait_until(lambda: counters(core, spec)["connections"] == 2)
                before = counters(core, spec)["rows"]
                for seed in range(5):
                    source[1].look_up(core, source[1].draw(300, seed))
                assert counters(core, spec)["rows"] == before + 5 * 300
            assert core.stats()[1]["failed_reads"] == core.stats()[1]["failed_steps"] == 0


def test_a_deregistered_region_is_a_remote_access_error(
    node: NodeProcess, spec: RdmaSpec, source: dict[int, SourceRows]
) -> None:
    with core_over(spec) as core:
        source[1].look_up(core, source[1].draw(300, seed=0))
        node.order("deregister", layer_id=1)
        with pytest.raises(TierUnavailableError, match="rdma:"):
            source[1].look_up(core, source[1].draw(300, seed=1))
        assert counters(core, spec)["remote_access"] >= 1
        wait_until(lambda: counters(core, spec)["flushed"] >= 1)  # what was posted behind the READ that failed


def test_a_deregistered_region_costs_no_lookup_with_a_second_replica(
    node: NodeProcess, spec: RdmaSpec, nvme: SourceSpec, source: dict[int, SourceRows]
) -> None:
    with core_over(spec, nvme) as core:
        node.order("deregister", layer_id=1)
        for seed in range(10):
            source[1].look_up(core, source[1].draw(300, seed))
        assert core.stats()[1]["failed_reads"] == 0
        assert counters(core, spec)["remote_access"] >= 1


def test_a_withdrawn_region_ends_its_clients_and_no_others(
    node_of_two: NodeProcess, source: dict[int, SourceRows]
) -> None:
    spec = spec_of(node_of_two)
    with core_over(spec) as core, core_over(spec_of(node_of_two, 14), layer_id=14) as others:
        node_of_two.order("cut_off", layer_id=1)
        assert_fails_in_time(core, source[1], TierError)
        source[14].look_up(others, source[14].draw(300, seed=0))
    with pytest.raises(TierUnavailableError, match="no such table or layer"):
        core_over(spec)


@pytest.mark.parametrize(
    ("lie", "found"),
    [
        ({"key": 0x55}, "remote access error"),
        ({"address": 0x1000}, "remote access error"),
        ({"byte_count": 4096}, "the node's region has 4096 bytes"),
    ],
    ids=["wrong key", "wrong address", "too short"],
)
def test_a_wrong_key_or_range_is_found_when_connecting(
    node: NodeProcess, spec: RdmaSpec, lie: dict[str, int], found: str
) -> None:
    node.order("tell", layer_id=1, **lie)
    with pytest.raises(TierUnavailableError, match=found):
        core_over(spec)


def test_two_regions_swapped_are_found_when_connecting(node_of_two: NodeProcess, regions: dict[int, Path]) -> None:
    node_of_two.order("swap", first=1, second=14)
    for layer_id in regions:
        with pytest.raises((ContractError, TierUnavailableError), match=r"row 0 is not what it|the node's region has"):
            core_over(spec_of(node_of_two, layer_id), layer_id=layer_id)


IMPOSTERS: tuple[dict[str, Any], ...] = ({"layer_id": 14}, {"epoch": 7}, {"table_uuid": uuid.UUID(int=9)})


@pytest.mark.parametrize("unit", list(ReadUnit))
def test_rows_of_another_layer_epoch_or_table_are_never_taken(
    node: NodeProcess, nvme: SourceSpec, source: dict[int, SourceRows], unit: ReadUnit
) -> None:
    """The node's memory turns into another region's, and that into the next one's, while clients are connected."""
    spec = spec_of(node, unit=unit)
    ids = source[1].draw(300, seed=3)
    with core_over(spec) as alone, core_over(spec, nvme) as core:
        source[1].look_up(alone, ids)
        for imposter in IMPOSTERS:
            before = alone.stats()[1]["bad_records"], core.stats()[1]["bad_records"]
            node.order("overwrite", of=1, **imposter)
            with pytest.raises(ContractError, match="row "):
                source[1].look_up(alone, ids)
            source[1].look_up(core, ids)
            assert alone.stats()[1]["bad_records"] > before[0]
            assert core.stats()[1]["bad_records"] > before[1]
        assert core.stats()[1]["failed_reads"] == 0


def test_another_tables_server_is_refused(shared_node: NodeProcess) -> None:
    stranger = replace(spec_of(shared_node), table=uuid.UUID(int=5))
    with pytest.raises(TierUnavailableError, match=r"memory node refused layer 1 of .*: no such table or layer"):
        core_over(stranger)


def test_a_wrong_token_is_told_neither_address_nor_key(shared_node: NodeProcess, tmp_path: Path) -> None:
    before = shared_node.order()
    wrong = tmp_path / "token"
    wrong.write_bytes(b"x" * 32)
    with pytest.raises(TierUnavailableError, match="wrong token"):
        core_over(replace(spec_of(shared_node), token_file=wrong))
    wait_until(lambda: shared_node.order()["clients_refused"] == before["clients_refused"] + 1)
    assert shared_node.order()["clients_served"] == before["clients_served"]


@pytest.mark.parametrize("honest", [True, False])
def test_a_node_that_comes_back_with_another_epoch_is_taken_up_if_its_memory_has_it(
    regions: dict[int, Path], nvme: SourceSpec, source: dict[int, SourceRows], honest: bool
) -> None:
    """The same rows staged anew have other checksums; what a node says and what lies in its memory must agree."""
    with NodeProcess(TOKEN, [regions[1]]) as first:
        spec = spec_of(first)
        with core_over(spec, nvme) as core:
            first.kill()
            source[1].look_up(core, source[1].draw(300, seed=0))
            restage = ("restage", {"layer_id": 1, "memory_too": honest})
            with NodeProcess(TOKEN, [regions[1]], first.port, first=(restage,)) as second:
                wait_until(lambda: second.order()["clients_served"] >= (1 if honest else 2))
                if honest:
                    wait_until(lambda: not core.links()[spec.label])
                before = core.delivered()[1][spec.label]
                for seed in range(5):
                    source[1].look_up(core, source[1].draw(300, seed))
                assert core.delivered()[1][spec.label] - before == (5 * 300 if honest else 0)


def test_tierds_memory_node_serves_over_rdma(nvme: SourceSpec, source: dict[int, SourceRows], tmp_path: Path) -> None:
    config = MemoryNodeConfig(
        name="node", run_dir=str(tmp_path), tier=Tier.RDMA, host="127.0.0.1", port=0, token=TOKEN.decode(),
        paths=(str(nvme.paths[0]),),
    )  # fmt: skip
    client.start(config)
    try:
        wait_until(lambda: client.status(tmp_path, "node").state not in ("absent", "loading"))
        status = client.status(tmp_path, "node")
        assert status.state == "serving", status.message
        with core_over(RdmaSpec("127.0.0.1", status.port, TOKEN_FILE, 1)) as core:
            source[1].look_up(core, source[1].draw(300, seed=0))
        assert client.status(tmp_path, "node").stats["clients_served"] == 1
    finally:
        client.stop(tmp_path, "node")


def test_the_emulated_engine_reads_a_layer_over_rdma(shared_node: NodeProcess, source: dict[int, SourceRows]) -> None:
    """What `slacktier serve --layer 1=rdma@...` does before its server starts, for which the guest has no packages."""
    plans = plan_layers([f"1=rdma@{TOKEN_FILE}:127.0.0.1:{shared_node.port}"], ["1=100"], (1, 14))
    check_plans(plans, {1: len(source[1].rows)})
    with LookupCore([layer_setup(plan) for plan in plans], timeout_s=20.0) as core:
        for seed in range(3):
            source[1].look_up(core, source[1].draw(500, seed))


def test_reads_over_rdma_are_measured_into_a_read_model(shared_node: NodeProcess, nvme: SourceSpec) -> None:
    with open_region(nvme.paths) as region:
        table = region.superblock.table_uuid
    address = f"rdma://127.0.0.1:{shared_node.port}/{table}/1"
    found = json.loads(slacktier("measure", "reads", address, "--token", TOKEN_FILE, "--seconds", 2, "--json"))
    assert found["tier"] == "rdma"
    assert max(found["read"].values()) > 0
    assert min(sample["read_us"] for sample in found["measured"]) > 0


def test_a_missing_device_and_a_zero_gid_are_named(shared_node: NodeProcess) -> None:
    with pytest.raises(ConfigError, match="RDMA mlx5_9 port any: no such port; found rxe0 port 1"):
        core_over(spec_of(shared_node, device="mlx5_9"))
    with pytest.raises(ConfigError, match="rxe0 port 1: GID 9 is zero; not zero: 0: fe80::"):
        core_over(spec_of(shared_node, gid_index=9))
    assert choose().gid_index == 1  # the one that is made of the IP address


def test_a_port_that_is_down_is_an_error_and_a_doctor_line(shared_node: NodeProcess) -> None:
    subprocess.run(["ip", "link", "set", "test0", "down"], check=True)
    try:
        with pytest.raises(ConfigError, match="rxe0 port 1 is DOWN, expected ACTIVE"):
            core_over(spec_of(shared_node))
        checks = slacktier("doctor", "--json", exit_code=1)
    finally:
        subprocess.run(["ip", "link", "set", "test0", "up"], check=True)
    assert "rxe0 port 1 is DOWN" in checks


CLIENT = """
import rdma_support as t
from slacktier_native.rdma import ReadUnit
settings = t.RdmaSettings(unit=ReadUnit.PAGE)
run = lambda: t.core_over(t.RdmaSpec("127.0.0.1", int(sys.argv[2]), t.Path(sys.argv[3]), 1, settings=settings))
"""
NODE = """
import node as n
run = lambda: n.MemoryNode([n.SourceSpec(n.Tier.DRAM, (n.Path(sys.argv[4]),))], bytes(32)).start()
"""
RUN = """
from slacktier.errors import SlackTierError
try:
    run()
except SlackTierError as exc:
    sys.exit(f"{exc}; hint: {exc.hint}")
"""


@pytest.mark.parametrize("program", [CLIENT, NODE], ids=["client", "node"])
def test_a_short_memlock_limit_is_named_with_its_remedy(
    shared_node: NodeProcess, regions: dict[int, Path], tmp_path: Path, program: str
) -> None:
    """As a user without capabilities, under the limit that container runtimes give."""
    region = tmp_path / "region"
    region.write_bytes(regions[14].read_bytes())
    (tmp_path / "token").write_bytes(TOKEN)
    for path in (region, *region.parents):
        path.chmod(path.stat().st_mode | 0o555)
    code = f"import sys; sys.path.insert(0, sys.argv[1]){program}{RUN}"
    limited = ["prlimit", "--memlock=65536:65536", "setpriv", "--reuid=1000", "--clear-groups", "--inh-caps=-all"]
    arguments = [str(Path(__file__).parent), str(shared_node.port), str(tmp_path / "token"), str(region)]
    done = subprocess.run(
        [*limited, sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "Cannot allocate memory" in done.stderr, done.stderr
    assert "RLIMIT_MEMLOCK is 65536 bytes" in done.stderr
