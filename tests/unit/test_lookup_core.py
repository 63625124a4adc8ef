# SPDX-License-Identifier: Apache-2.0
"""The lookup core through its Python face, over real region files: right bytes or a clear error."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from pattern_regions import ROWS, SEEDS, superblock, write_region

from slacktier.delay import DelayModel
from slacktier.errors import ConfigError, ContractError, DeadlineMissedError, TierUnavailableError
from slacktier.page import PAGE_BYTES
from slacktier.tiers import Tier
from slacktier_native.core import LayerSetup, LookupCore, SourceSpec, set_delay
from slacktier_native.pages import pattern_check


@pytest.fixture
def regions(tmp_path: Path) -> dict[int, Path]:
    return {i: write_region(tmp_path / f"layer{i}.region", superblock(i), SEEDS[i]) for i in SEEDS}


def nvme(path: Path) -> SourceSpec:
    return SourceSpec(Tier.NVME, (path,))


@pytest.fixture(params=["auto", "own-reads", "posix"])
def core(regions: dict[int, Path], request: pytest.FixtureRequest) -> Iterator[LookupCore]:
    layers = [LayerSetup(i, (nvme(path),), cache_rows=200) for i, path in regions.items()]
    backend = "posix" if request.param == "posix" else "auto"
    with LookupCore(layers, backend=backend, own_reads=request.param == "own-reads", lookups_max=4096) as opened:
        yield opened


def look_up(core: LookupCore, ids: npt.NDArray[np.int64]) -> None:
    """One step of the same ids on every layer; every row must be the pattern's."""
    core.begin([ids] * len(core.layer_ids))
    for index, layer_id in enumerate(core.layer_ids):
        result = core.wait(index)
        assert result.hits + result.repeats + result.misses == result.owned
        out = np.full((ids.size, core.row_bytes(index)), 0xEE, np.uint8)
        core.gather(index, out)
        assert pattern_check(SEEDS[layer_id], ids, out, 256, 8) == (0, -1)
    core.end()


def test_rows_are_right_through_hits_repeats_evictions_and_padding(core: LookupCore) -> None:
    rng = np.random.default_rng(0)
    for count in (1, 50, 600, 3000):
        ids = rng.integers(-1, ROWS, count)
        look_up(core, ids)
        look_up(core, ids)
    stats = core.stats()[1]
    assert stats["hits"] > 0
    assert stats["repeats"] > 0
    assert stats["evictions"] > 0
    assert stats["failed_steps"] == 0


def test_second_step_hits_what_the_first_one_read(core: LookupCore) -> None:
    ids = np.arange(40, dtype=np.int64)
    look_up(core, ids)
    core.begin([ids, ids])
    results = [core.wait(0), core.wait(1)]
    core.end()
    assert [(r.hits, r.misses, r.pages, r.read_us) for r in results] == [(40, 0, 0, 0.0)] * 2


def test_sources_and_cache_change_between_steps(core: LookupCore, regions: dict[int, Path]) -> None:
    rng = np.random.default_rng(1)
    slow = DelayModel("unit", 500.0, 1.0, 0.5)
    for turn in range(12):
        for index, path in enumerate(regions.values()):
            spec = (
                nvme(path),
                SourceSpec(Tier.DRAM, (path,)),
                SourceSpec(Tier.EMULATED, (path,), device=f"unit-test-{os.getpid()}", delay=slow),
            )[turn % 3]
            core.set_sources(index, [spec])
            core.set_cache_rows(index, (0, 64, 5000)[(turn + index) % 3])
        look_up(core, rng.integers(0, ROWS, 500))
    Path(f"/dev/shm/slacktier-emulated-{os.getuid()}-unit-test-{os.getpid()}").unlink()


def test_rows_through_the_page_cache_are_the_same(regions: dict[int, Path]) -> None:
    layers = [LayerSetup(i, (SourceSpec(Tier.NVME, (path,), page_cache=True),)) for i, path in regions.items()]
    with LookupCore(layers, backend="posix", io_threads=4, lookups_max=4096) as core:
        look_up(core, np.random.default_rng(3).integers(-1, ROWS, 3000))


def test_emulated_rows_are_held_back_by_the_delay_model(regions: dict[int, Path]) -> None:
    device = f"unit-delay-{os.getpid()}"
    model = DelayModel("unit", 2000.0, 10.0, 1.0)
    layers = [LayerSetup(i, (SourceSpec(Tier.EMULATED, (p,), device, model),)) for i, p in regions.items()]
    with LookupCore(layers) as core:
        ids = np.arange(0, 3000, 30, dtype=np.int64)  # 100 rows on 100 pages
        core.begin([ids, ids])
        first, second = core.wait(0), core.wait(1)
        core.end()
    Path(f"/dev/shm/slacktier-emulated-{os.getuid()}-{device}").unlink()
    assert (first.pages, second.pages) == (100, 100)
    assert first.read_us >= 2000 + 100 * 10 + 100 * 1 - 1
    assert second.read_us >= 2000 + 200 * 10 - 1
    assert second.read_us < 50_000


def test_only_the_ranks_own_rows_are_read(regions: dict[int, Path]) -> None:
    ids = np.arange(90, dtype=np.int64)
    with LookupCore([LayerSetup(1, (nvme(regions[1]),))], rank=1, tp=3) as core:
        core.begin([ids])
        result = core.wait(0)
        out = np.empty((90, 264), np.uint8)
        core.gather(0, out)
        core.end()
    assert (result.lookups, result.owned, result.misses) == (90, 30, 30)
    assert pattern_check(SEEDS[1], np.where(ids % 3 == 1, ids, -1), out, 256, 8) == (0, -1)


def flip(path: Path, offset: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[offset] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize("own_reads", [False, True])
def test_a_damaged_row_is_an_error_and_the_others_are_served(regions: dict[int, Path], own_reads: bool) -> None:
    with LookupCore([LayerSetup(1, (nvme(regions[1]),), cache_rows=64)], own_reads=own_reads) as core:
        flip(regions[1], 2 * PAGE_BYTES + 16 + 272 * 3 + 100)  # row 3
        core.begin([np.array([3, 40], np.int64)])
        with pytest.raises(ContractError, match=r"layer 1 page 0 .*row 3: row checksum"):
            core.wait(0)
        core.end()
        ids = np.array([4, 40], np.int64)
        core.begin([ids])
        core.wait(0)
        core.end()


@pytest.mark.parametrize("own_reads", [False, True])
def test_a_second_replica_serves_what_the_first_one_lost(
    regions: dict[int, Path], tmp_path: Path, own_reads: bool
) -> None:
    copy = tmp_path / "copy.region"
    copy.write_bytes(regions[1].read_bytes())
    with LookupCore([LayerSetup(1, (nvme(regions[1]), nvme(copy)))], own_reads=own_reads) as core:
        os.truncate(regions[1], 2 * PAGE_BYTES)  # reads past the end return 0 bytes
        ids = np.arange(0, ROWS, 7, dtype=np.int64)
        core.begin([ids])
        assert core.wait(0).retries > 0
        out = np.empty((ids.size, 264), np.uint8)
        core.gather(0, out)
        core.end()
    assert pattern_check(SEEDS[1], ids, out, 256, 8) == (0, -1)


def test_a_cut_off_region_without_replica_is_an_error(regions: dict[int, Path]) -> None:
    with LookupCore([LayerSetup(1, (nvme(regions[1]),))]) as core:
        os.truncate(regions[1], 2 * PAGE_BYTES)
        core.begin([np.array([5], np.int64)])
        with pytest.raises(TierUnavailableError, match="0 bytes, expected 4096"):
            core.wait(0)
        core.end()


def test_gather_without_wait_is_refused(core: LookupCore) -> None:
    ids = np.arange(500, dtype=np.int64)
    core.begin([ids, ids])
    with pytest.raises(ConfigError, match="buffer of 264 bytes"):
        core.gather(0, np.empty(264, np.uint8))
    core.wait(0)
    core.wait(1)
    core.end()
    with pytest.raises(ConfigError, match="without its rows"):
        core.gather(0, np.empty((500, 264), np.uint8))


def test_a_refused_begin_leaves_what_gather_expects(core: LookupCore) -> None:
    ids = np.arange(50, dtype=np.int64)
    core.begin([ids, ids])
    with pytest.raises(TierUnavailableError, match="a step is open"):
        core.begin([ids[:1], ids[:1]])
    core.wait(0)
    with pytest.raises(ConfigError, match="gather: buffer of 264 bytes, expected 13200"):
        core.gather(0, np.empty((1, 264), np.uint8))
    core.end()


@pytest.mark.parametrize("bad", [ROWS, -2, 2**40])
def test_ids_outside_the_table_are_named(core: LookupCore, bad: int) -> None:
    with pytest.raises(ConfigError, match=f"row id {bad}, expected -1 to {ROWS - 1}"):
        core.begin([np.array([1], np.int64), np.array([1, bad], np.int64)])


def test_a_region_of_another_layer_or_other_bytes_is_refused(regions: dict[int, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds layer 14, expected layer 1"):
        LookupCore([LayerSetup(1, (nvme(regions[14]),))])
    other = write_region(tmp_path / "other", superblock(1, source_digest=bytes([1] * 32)), seed=5)
    with pytest.raises(ConfigError, match="not a replica"):
        LookupCore([LayerSetup(1, (nvme(regions[1]), nvme(other)))])


def test_switching_to_other_bytes_drops_the_cache(regions: dict[int, Path], tmp_path: Path) -> None:
    other = write_region(tmp_path / "other", superblock(1, source_digest=bytes([1] * 32)), seed=5)
    ids = np.arange(50, dtype=np.int64)
    with LookupCore([LayerSetup(1, (nvme(regions[1]),), cache_rows=500)]) as core:
        look_up(core, ids)
        core.set_sources(0, [nvme(other)])
        core.begin([ids])
        assert core.wait(0).hits == 0
        out = np.empty((50, 264), np.uint8)
        core.gather(0, out)
        core.end()
    assert pattern_check(5, ids, out, 256, 8) == (0, -1)


def test_a_new_delay_model_owes_nothing_from_the_old_one(regions: dict[int, Path]) -> None:
    device = f"unit-poison-{os.getpid()}"
    shared = Path(f"/dev/shm/slacktier-emulated-{os.getuid()}-{device}")
    spec = SourceSpec(Tier.EMULATED, (regions[1],), device, DelayModel("slow", 0.0, 60e6, 0.0))
    ids = np.arange(0, 3000, 30, dtype=np.int64)
    try:
        with LookupCore([LayerSetup(1, (spec,))], timeout_s=0.05) as core:
            core.begin([ids])
            with pytest.raises(DeadlineMissedError):
                core.wait(0)
            core.end()
            set_delay(device, DelayModel("none", 0.0, 0.0, 0.0))
            look_up(core, ids)
    finally:
        shared.unlink()


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf"), 1e30])
def test_delays_out_of_range_are_refused(bad: float) -> None:
    with pytest.raises(ConfigError, match=r"expected 0 to 6e\+07"):
        DelayModel("bad", bad, 0.0, 0.0)


def test_what_each_source_delivered_is_counted_through_changes_of_sources(regions: dict[int, Path]) -> None:
    spec, other = nvme(regions[1]), SourceSpec(Tier.DRAM, (regions[1],))
    with LookupCore([LayerSetup(1, (spec, other))], lookups_max=64) as core:
        look_up(core, np.arange(10))
        core.set_sources(0, (other, spec))
        look_up(core, np.arange(20))
        look_up(core, np.arange(5))
        assert core.delivered() == {1: {spec.label: 10, other.label: 25}}
        assert core.delivered() == {1: {spec.label: 10, other.label: 25}}
        assert core.stats()[1]["fallback_rows"] == 0


def test_a_read_that_the_first_source_cannot_answer_counts_as_fallback(regions: dict[int, Path]) -> None:
    spec, other = nvme(regions[1]), SourceSpec(Tier.DRAM, (regions[1],))
    with LookupCore([LayerSetup(1, (spec, other))], lookups_max=64) as core:
        os.truncate(regions[1], PAGE_BYTES * 3)
        look_up(core, np.array([0, 2000, 2001]))
        stats = core.stats()[1]
        assert (stats["fallback_rows"], stats["read_errors"], stats["failed_steps"]) == (2, 2, 0)
        assert core.delivered() == {1: {spec.label: 1, other.label: 2}}


@pytest.mark.parametrize("own_reads", [False, True])
def test_closing_waits_for_reads_that_the_kernel_still_works_on(tmp_path: Path, own_reads: bool) -> None:
    """Its buffers go back to the heap: a late read would write over whoever has that memory next."""
    large = write_region(tmp_path / "large.region", superblock(1, row_count=60_000), SEEDS[1])
    damaged = write_region(tmp_path / "damaged.region", superblock(14, row_count=60_000), SEEDS[14])
    with damaged.open("r+b") as file:
        file.seek(2 * PAGE_BYTES)
        file.write(bytes(damaged.stat().st_size - 2 * PAGE_BYTES))
    ids = np.random.default_rng(1).integers(0, 60_000, 1000)
    for _ in range(20):
        core = LookupCore([LayerSetup(14, (nvme(damaged),)), LayerSetup(1, (nvme(large),))], own_reads=own_reads)
        core.begin([ids, ids])
        with pytest.raises(ContractError):
            core.wait(0)  # fails while the other layer's reads are on their way
        core.close()
        reused = [bytearray(4096) for _ in range(300)]
        assert not any(any(block) for block in reused)


def test_memory_of_a_table_is_told(regions: dict[int, Path]) -> None:
    dram, file = SourceSpec(Tier.DRAM, (regions[1],)), nvme(regions[1])
    with LookupCore([LayerSetup(1, (dram, file))], lookups_max=64) as core:
        look_up(core, np.arange(10))
        pages = core.memory_pages()
    assert list(pages) == [dram.label]
    assert pages[dram.label] in ("reserved", "transparent", "small")


def test_second_level_answers_what_fell_out_of_the_cache(regions: dict[int, Path]) -> None:
    setup = LayerSetup(1, (nvme(regions[1]),), cache_rows=16, host_cache_bytes=1 << 20)
    with LookupCore([setup], lookups_max=4096) as core:
        everything = np.arange(1000)
        look_up(core, everything)
        before = core.stats()[1]
        look_up(core, everything)
        stats = core.stats()[1]
        assert stats["pages"] == before["pages"]
        assert stats["host_hits"] == stats["misses"] - before["misses"] > 900
        core.set_host_cache(0, 0)
        look_up(core, everything)
        assert core.stats()[1]["pages"] > stats["pages"]
        assert core.stats()[1]["host_bytes"] == 0
