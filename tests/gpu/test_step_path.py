# SPDX-License-Identifier: Apache-2.0
"""The step path end to end: ids published, looked up by the native core, filled, gathered; every bit compared."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch and triton")
pytest.importorskip("triton", reason="needs triton")

from slacktier.errors import ConfigError, ContractError, SlackTierError  # noqa: E402
from slacktier.page import RowFormat, State, Superblock  # noqa: E402
from slacktier_engine.kernels.system import INTERPRETED  # noqa: E402
from slacktier_engine.step import GpuStepPath  # noqa: E402
from slacktier_native.core import LayerSetup, LookupCore, MemorySpec  # noqa: E402
from slacktier_native.memory_table import MemoryTable  # noqa: E402
from slacktier_native.pages import pattern_fill  # noqa: E402
from slacktier_native.step_path import StepSettings  # noqa: E402

ROWS, COLUMNS, TOKENS_MAX, LAYERS = 5000, 24, 64, (1, 14)


class Table:
    """5000 rows in memory; the first 256 hold every (exponent, byte) pair, the rest follow the test pattern."""

    def __init__(self, seed: int) -> None:
        sb = Superblock(
            table_uuid=uuid.UUID(int=seed), layer_id=1, epoch=1, row_count=ROWS, payload_bytes=256, scale_bytes=8,
            row_format=RowFormat.FP8_E4M3_BLOCK_E8M0, model="test", revision="", source="pattern",
        )  # fmt: skip
        sb = replace(sb, state=State.COMPLETE, staged_pages=sb.page_count)
        self.weights, self.scales = np.empty((ROWS, 256), np.uint8), np.empty((ROWS, 8), np.uint8)
        pattern_fill(seed, 0, ROWS, 256, 8, self.weights, self.scales)
        codes, exponents = np.arange(256, dtype=np.uint8), np.arange(256, dtype=np.uint8)
        if INTERPRETED:  # its e4m3 has no NaN, and it rounds subnormals of bf16 wrongly
            codes[(codes & 0x7F) == 0x7F] = 0
            exponents = np.maximum(exponents, 10)
        self.weights[:256] = codes
        self.scales[:256] = exponents[:, None]
        self.pages = MemoryTable(sb, self.weights, self.scales, threads=2)

    def expected_bits(self, ids: np.ndarray, rank: int, tp: int) -> np.ndarray:
        """bf16 bits of the rows, by integer rounding on the CPU; NaNs as 0x7FFF, unowned rows zero."""
        owned = (ids >= 0) & (ids % tp == rank)
        at = np.where(owned, ids, 0)
        bits = dequantized_bits(self.weights[at], np.repeat(self.scales[at], 32, axis=1))
        bits[~owned] = 0
        return bits


def dequantized_bits(codes: np.ndarray, exponents: np.ndarray) -> np.ndarray:
    """bf16_rne(fp32(e4m3) * 2^(e - 127)) from the fields alone: exact in float64, then rounded once."""
    sign, field, mantissa = codes >> 7, (codes >> 3) & 15, (codes & 7).astype(np.float64)
    magnitude = np.where(field == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (field.astype(np.float64) - 7))
    scale = np.where(exponents == 255, np.inf, 2.0 ** (exponents.astype(np.float64) - 127))
    with np.errstate(invalid="ignore", over="ignore"):
        value = np.where(sign == 1, -magnitude, magnitude) * scale
        single = value.astype(np.float32)
    word = single.view(np.uint32).astype(np.uint64)
    rounded = ((word + 0x7FFF + ((word >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(value) | ((codes & 0x7F) == 0x7F), np.uint16(0x7FFF), rounded)


@pytest.fixture(scope="module")
def tables() -> list[Table]:
    return [Table(11), Table(14)]


def open_path(tables: list[Table], device: str, *, cache_rows: int = 400, tp: int = 1, rank: int = 0) -> GpuStepPath:
    layers = [LayerSetup(i, (MemorySpec(t.pages),), cache_rows=cache_rows) for i, t in zip(LAYERS, tables, strict=True)]
    core = LookupCore(
        layers, rank=rank, tp=tp, lookups_max=TOKENS_MAX * COLUMNS, io_threads=2, backend="posix", spin_us=100
    )
    return GpuStepPath(core, cache_rows_max=[2000, 2000], columns=COLUMNS, device=device, settings=StepSettings(5.0))


@pytest.fixture
def path(tables: list[Table], device: str) -> Iterator[GpuStepPath]:
    opened = open_path(tables, device)
    yield opened
    opened.close()


def outputs(tokens: int, device: str) -> list[torch.Tensor]:
    return [torch.full((tokens * COLUMNS, 256), 7.0, dtype=torch.bfloat16, device=device) for _ in LAYERS]


def run_step(path: GpuStepPath, ids: torch.Tensor, out: list[torch.Tensor], live: torch.Tensor | None = None) -> None:
    path.issue(ids, live)
    for k in range(len(LAYERS)):
        path.join(k, out[k])


def compare(tables: list[Table], ids: np.ndarray, out: list[torch.Tensor], rank: int = 0, tp: int = 1) -> None:
    for k, table in enumerate(tables):
        found = out[k].view(torch.int16).cpu().numpy().view(np.uint16)
        found = np.where((found & 0x7FFF) > 0x7F80, np.uint16(0x7FFF), found)
        np.testing.assert_array_equal(found, table.expected_bits(ids[:, k].ravel(), rank, tp))


def random_ids(rng: np.random.Generator, tokens: int) -> np.ndarray:
    skewed = rng.integers(0, ROWS // 8, (tokens, 2, COLUMNS))
    return np.where(rng.random((tokens, 2, COLUMNS)) < 0.5, skewed, rng.integers(0, ROWS, (tokens, 2, COLUMNS)))


def test_rows_are_bit_exact_through_hits_evictions_and_spills(
    tables: list[Table], path: GpuStepPath, device: str
) -> None:
    rng = np.random.default_rng(0)
    for tokens in (1, 8, TOKENS_MAX, 3, TOKENS_MAX):
        ids, out = random_ids(rng, tokens), outputs(tokens, device)
        run_step(path, torch.from_numpy(ids).to(device), out)
        compare(tables, ids, out)
    path.check()
    totals = path.core.stats()[14]
    assert totals["hits"] > 0
    assert totals["evictions"] > 0


def test_every_exponent_and_byte_is_exact(tables: list[Table], path: GpuStepPath, device: str) -> None:
    ids = np.zeros((11, 2, COLUMNS), np.int64)
    ids.transpose(1, 0, 2)[:] = np.arange(11 * COLUMNS).reshape(11, COLUMNS)
    out = outputs(11, device)
    run_step(path, torch.from_numpy(ids).to(device), out)
    compare(tables, ids, out)


def test_only_owned_rows_come_and_padding_costs_nothing(tables: list[Table], device: str) -> None:
    path = open_path(tables, device, rank=1, tp=4)
    ids = random_ids(np.random.default_rng(1), 8)
    live = np.array([3, 0, 9, 0, 1, 1, 0, 5])
    out = outputs(8, device)
    run_step(path, torch.from_numpy(ids).to(device), out, torch.from_numpy(live).to(device))
    masked = np.where(live[:, None, None] != 0, ids, -1)
    compare(tables, masked, out, rank=1, tp=4)
    record = path.records()[-1]
    assert record["owned"][0] == ((masked[:, 0] >= 0) & (masked[:, 0] % 4 == 1)).sum()
    path.close()


def test_cache_and_sources_change_between_steps(tables: list[Table], path: GpuStepPath, device: str) -> None:
    rng = np.random.default_rng(2)
    for rows in (0, 16, 2000, 320):
        path.set_cache_rows(0, rows)
        path.set_cache_rows(1, 2000 - rows)
        with path.between_steps() as core:
            core.set_sources(0, [MemorySpec(tables[0].pages)])
        for _ in range(2):
            ids, out = random_ids(rng, 20), outputs(20, device)
            run_step(path, torch.from_numpy(ids).to(device), out)
            compare(tables, ids, out)
    with pytest.raises(ConfigError, match="reserved"):
        path.set_cache_rows(0, 4000)


def test_bad_id_is_poison_and_a_named_error(tables: list[Table], path: GpuStepPath, device: str) -> None:
    ids, out = random_ids(np.random.default_rng(3), 4), outputs(4, device)
    bad = ids.copy()
    bad[2, 1, 5] = ROWS
    run_step(path, torch.from_numpy(bad).to(device), out)
    assert torch.isnan(out[1].float()).all()
    wait_for(path, 1)
    with pytest.raises(ContractError, match="layer 14 step 1: a row id is outside the table"):
        path.check()
    run_step(path, torch.from_numpy(ids).to(device), out)
    compare(tables, ids, out)
    path.check()


def wait_for(path: GpuStepPath, steps: int) -> None:
    until_s = time.monotonic() + 5
    while path.status().steps < steps:
        assert time.monotonic() < until_s


def test_shapes_that_do_not_fit_are_refused(path: GpuStepPath, device: str) -> None:
    with pytest.raises(SlackTierError, match="room for"):
        path.issue(torch.zeros((TOKENS_MAX + 1, 2, COLUMNS), dtype=torch.int64, device=device))
    with pytest.raises(ConfigError, match="row ids"):
        path.issue(torch.zeros((4, 1, COLUMNS), dtype=torch.int64, device=device))
