# SPDX-License-Identifier: Apache-2.0
"""The lookup core with row servers among its replicas: right rows from whoever has them, or an error that names why."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from test_lookup_core import ROWS, SEEDS, look_up, superblock, write_region
from test_rows_over_tcp import LIES, TABLE, TOKEN, lying_server

from slacktier.errors import ConfigError, SlackTierError, TierUnavailableError
from slacktier.tiers import Tier
from slacktier_native.core import LayerSetup, LookupCore, RowsSpec
from slacktier_native.rows import RowServer
from slacktier_native.sources import AnySource, SourceSpec

RNG = np.random.default_rng(5)


@pytest.fixture
def regions(tmp_path: Path) -> dict[int, Path]:
    return {i: write_region(tmp_path / f"layer{i}", superblock(i), SEEDS[i]) for i in SEEDS}


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_bytes(TOKEN + b"\n")
    return path


def serve(regions: dict[int, Path], port: int = 0) -> RowServer:
    return RowServer([SourceSpec(Tier.DRAM, (p,)) for p in regions.values()], TOKEN, port=port, timeout_s=0.5)


@pytest.fixture
def server(regions: dict[int, Path]) -> Iterator[RowServer]:
    with serve(regions) as opened:
        yield opened


def tcp(address: tuple[str, int], token_file: Path, layer_id: int = 1, **changes: object) -> RowsSpec:
    return RowsSpec(*address, token_file, layer_id, **{"timeout_s": 0.3, **changes})  # type: ignore[arg-type]


def nvme(regions: dict[int, Path], layer_id: int = 1) -> SourceSpec:
    return SourceSpec(Tier.NVME, (regions[layer_id],))


def dram(regions: dict[int, Path], layer_id: int = 1) -> SourceSpec:
    return SourceSpec(Tier.DRAM, (regions[layer_id],))


def random_steps(core: LookupCore, count: int = 5) -> None:
    for _ in range(count):
        look_up(core, RNG.integers(-1, ROWS, 400))


def until(condition: Callable[[], bool], timeout_s: float = 2.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.005)


def one_layer(*specs: AnySource, cache_rows: int = 0) -> LookupCore:
    return LookupCore([LayerSetup(1, specs, cache_rows)], lookups_max=4096)


def test_a_step_is_one_request_per_layer_and_each_row_travels_once(server: RowServer, token_file: Path) -> None:
    layers = [LayerSetup(i, (tcp(server.address, token_file, i),), 200) for i in SEEDS]
    with LookupCore(layers, lookups_max=4096) as core:
        random_steps(core, 10)
        misses = sum(stats["misses"] for stats in core.stats().values())
        label = f"tcp:127.0.0.1:{server.address[1]}"
        assert sum(rows[label] for rows in core.delivered().values()) == misses
        assert core.links() == {label: ""}
    server.close()
    assert server.stats()["requests"] == 20
    assert server.stats()["rows"] == misses


@pytest.mark.parametrize("table", [None, TABLE], ids=["any table", "this table"])
def test_the_table_may_be_named_or_be_the_only_one(
    server: RowServer, token_file: Path, table: uuid.UUID | None
) -> None:
    with one_layer(tcp(server.address, token_file, table=table)) as core:
        random_steps(core, 1)
        assert core.superblock(0).table_uuid == TABLE


@pytest.mark.parametrize("lie", LIES)
def test_rows_that_a_lying_server_spoils_come_from_the_next_replica(
    lie: str, regions: dict[int, Path], token_file: Path
) -> None:
    address, thread = lying_server(LIES[lie][0])
    with one_layer(tcp(address, token_file), nvme(regions)) as core:
        look_up(core, np.array([5, 6]))
        look_up(core, np.array([5, 6, 7]))
        stats = core.stats()[1]
        assert stats["failed_steps"] == 0
        assert stats["fallback_rows"] >= 4
        assert stats["bad_records"] + stats["read_errors"] > 0
    thread.join(2)
    assert not thread.is_alive()


@pytest.mark.parametrize("lie", LIES)
def test_a_lone_lying_server_is_an_error_and_no_row(lie: str, token_file: Path) -> None:
    address, _ = lying_server(LIES[lie][0])
    with one_layer(tcp(address, token_file), cache_rows=64) as core:
        for _ in range(2):
            core.begin([np.array([5, 6])])
            with pytest.raises(SlackTierError, match=r"layer 1 row [56] from tcp:127.0.0.1:\d+"):
                core.wait(0)
            with pytest.raises(ConfigError, match="without its rows"):
                core.gather(0, np.zeros((2, 264), np.uint8))
            core.end()
        assert core.stats()[1]["hits"] == 0


def test_orders_of_replicas_are_kept_and_mixed_at_run_time(
    server: RowServer, regions: dict[int, Path], token_file: Path
) -> None:
    with serve(regions) as second:
        a, b = tcp(server.address, token_file), tcp(second.address, token_file)
        orders: list[tuple[AnySource, ...]] = [
            (nvme(regions), a), (a, dram(regions)), (a, b), (b, nvme(regions), a), (dram(regions),), (b,),
        ]  # fmt: skip
        with one_layer(*orders[-1], cache_rows=100) as core:
            for specs in orders * 3:
                before = core.delivered()[1].get(specs[0].label, 0)
                core.set_sources(0, specs)
                random_steps(core, 2)
                assert core.delivered()[1][specs[0].label] > before
            assert core.stats()[1]["fallback_rows"] == core.stats()[1]["retries"] == 0


def test_a_server_that_ends_is_replaced_at_once_and_comes_back(regions: dict[int, Path], token_file: Path) -> None:
    server = serve(regions)
    spec = tcp(server.address, token_file)
    with one_layer(spec, nvme(regions)) as core:
        random_steps(core)
        server.close()
        random_steps(core)
        until(lambda: core.links()[spec.label] != "")
        before = core.delivered()[1][spec.label]
        with serve(regions, server.address[1]):
            until(lambda: core.links()[spec.label] == "")
            random_steps(core)
            assert core.delivered()[1][spec.label] > before
        assert core.stats()[1]["failed_steps"] == 0


def test_a_server_that_comes_back_with_other_rows_stays_out(
    regions: dict[int, Path], token_file: Path, tmp_path: Path
) -> None:
    server = serve(regions)
    spec = tcp(server.address, token_file)
    other = write_region(tmp_path / "other", superblock(1, source_digest=b"\7" * 32), 5)
    with one_layer(spec, dram(regions)) as core:
        random_steps(core, 1)
        server.close()
        with serve({1: other}, server.address[1]):
            until(lambda: "serves other rows" in core.links()[spec.label])
            random_steps(core)


def test_the_same_rows_of_a_new_epoch_are_taken_up_again(
    regions: dict[int, Path], token_file: Path, tmp_path: Path
) -> None:
    server = serve(regions)
    spec = tcp(server.address, token_file)
    restaged = write_region(tmp_path / "restaged", superblock(1, epoch=2), SEEDS[1])
    with one_layer(spec, dram(regions)) as core:
        random_steps(core, 1)
        server.close()
        with serve({1: restaged}, server.address[1]):
            until(lambda: core.links()[spec.label] == "" and core.stats()[1]["steps"] == 1)
            until(lambda: random_steps(core, 1) is None and core.links()[spec.label] == "")
            before = core.delivered()[1][spec.label]
            random_steps(core)
            assert core.delivered()[1][spec.label] > before
            assert core.stats()[1]["bad_records"] == 0


def test_a_server_that_is_away_at_the_start_needs_another_replica(regions: dict[int, Path], token_file: Path) -> None:
    server = serve(regions)
    server.close()
    spec = tcp(server.address, token_file)
    with pytest.raises(TierUnavailableError, match="connect failed"):
        one_layer(spec)
    with one_layer(spec, nvme(regions)) as core:
        random_steps(core)
        assert core.delivered()[1][spec.label] == 0
        with serve(regions, server.address[1]):
            until(lambda: core.links()[spec.label] == "")
            random_steps(core)
            assert core.delivered()[1][spec.label] > 0


def test_a_black_holed_server_costs_its_timeout_once(regions: dict[int, Path], token_file: Path) -> None:
    address, _ = lying_server(None)
    with one_layer(tcp(address, token_file, timeout_s=0.2), nvme(regions)) as core:
        start = time.monotonic()
        random_steps(core, 1)
        assert 0.19 < time.monotonic() - start < 0.5
        start = time.monotonic()
        random_steps(core, 5)
        assert time.monotonic() - start < 0.15


def test_a_refusal_or_another_table_is_an_error_at_the_start(
    server: RowServer, regions: dict[int, Path], token_file: Path, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("x" * 32)
    with pytest.raises(TierUnavailableError, match="wrong token"):
        one_layer(tcp(server.address, wrong), nvme(regions))
    with pytest.raises(TierUnavailableError, match="no such table or layer"):
        one_layer(tcp(server.address, token_file, table=uuid.UUID(int=8)), nvme(regions))
    other = write_region(tmp_path / "other", superblock(1, source_digest=b"\7" * 32), 5)
    with pytest.raises(ConfigError, match="not a replica"):
        one_layer(SourceSpec(Tier.NVME, (other,)), tcp(server.address, token_file))
    with pytest.raises(ConfigError, match=r"token file .* No such file"):
        one_layer(tcp(server.address, tmp_path / "none"))


def test_two_layers_of_one_connection_read_in_turn(server: RowServer, token_file: Path) -> None:
    spec = tcp(server.address, token_file)
    with LookupCore([LayerSetup(1, (spec,)), LayerSetup(1, (spec,))], lookups_max=4096) as core:
        ids = np.arange(300)
        core.begin([ids, ids + 300])
        assert [core.wait(i).pages for i in range(2)] == [20, 20]
        core.end()


def test_a_spec_says_what_is_wrong_with_it(token_file: Path) -> None:
    with pytest.raises(ConfigError, match="expected a host and a port"):
        RowsSpec("", 1, token_file, 1)
    with pytest.raises(ConfigError, match="timeout of 0 s"):
        RowsSpec("h", 1, token_file, 1, timeout_s=0)
    assert RowsSpec("fe80::1", 7400, token_file, 1).label == "tcp:[fe80::1]:7400"


def test_a_server_with_another_token_is_no_outage(regions: dict[int, Path], token_file: Path) -> None:
    address, _ = lying_server(None, token=b"y" * 32)
    with pytest.raises(TierUnavailableError, match="wrong token"):
        one_layer(tcp(address, token_file), nvme(regions))
