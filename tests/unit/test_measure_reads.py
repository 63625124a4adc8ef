# SPDX-License-Identifier: Apache-2.0
"""`slacktier measure reads` gives back the delay model of an emulated device, and a file that a plan can use."""

import json
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slacktier.delay import DelayModel
from slacktier.errors import ConfigError
from slacktier.page import PAGE_BYTES, RowFormat, State, Superblock, encode_superblock
from slacktier.tiers import Tier
from slacktier.window_fit import fit_read_model
from slacktier_cli.planning.load import load_read_model
from slacktier_native.measure_reads import CoreReader, Load, loads_of, measure
from slacktier_native.pages import PageCodec, pattern_fill
from slacktier_native.rows import RowServer
from slacktier_native.sources import SourceSpec

ROWS = 15 * 400


@pytest.fixture(scope="module")
def region(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 pages of pattern rows."""
    sb = Superblock(
        table_uuid=uuid.UUID(int=7), layer_id=1, epoch=1, row_count=ROWS, payload_bytes=256, scale_bytes=8,
        row_format=RowFormat.FP8_E4M3_BLOCK_E8M0, model="test", revision="", source="pattern",
    )  # fmt: skip
    sb = replace(sb, state=State.COMPLETE, staged_pages=sb.page_count)
    weights, scales = np.empty((ROWS, 256), np.uint8), np.empty((ROWS, 8), np.uint8)
    pattern_fill(3, 0, ROWS, 256, 8, weights, scales)
    pages = np.empty(sb.page_count * PAGE_BYTES, np.uint8)
    PageCodec(sb).encode(0, sb.page_count, weights, scales, pages)
    path = tmp_path_factory.mktemp("region") / "layer1.region"
    path.write_bytes(encode_superblock(sb) * 2 + pages.tobytes())
    return path


def opener(spec: SourceSpec) -> Callable[[], CoreReader]:
    return lambda: CoreReader(spec, 1, pages_max=1024)


def test_loads_are_each_count_alone_doubled_and_before_the_most() -> None:
    assert loads_of((10, 40)) == [Load(10, 0), Load(10, 10), Load(10, 40), Load(40, 0), Load(40, 40)]


def test_fit_gives_back_the_delay_model_of_the_device(region: Path) -> None:
    # Slow on purpose: what this machine itself takes must be small beside it.
    slow = DelayModel("slow", 2_000.0, 40.0, 10.0)
    spec = SourceSpec(Tier.EMULATED, (region,), device="test-measure-slow", delay=slow)
    samples, reader = measure(opener(spec), pages=(10, 100), seconds=0.2)
    assert reader.label.startswith("emulated:test-measure-slow:")
    model = fit_read_model(samples).model
    assert model.a_us == pytest.approx(2_000, abs=800)
    assert model.b_us == pytest.approx(40, rel=0.15)
    assert model.c_us == pytest.approx(10, abs=6)


def test_ranks_read_at_the_same_time(region: Path) -> None:
    slow = DelayModel("slow", 500.0, 20.0, 20.0)
    spec = SourceSpec(Tier.EMULATED, (region,), device="test-measure-ranks", delay=slow)
    alone = {s.pages_own: s.read_us for s in measure(opener(spec), pages=(10, 60), seconds=0.1)[0] if not s.pages_other}
    both = measure(opener(spec), pages=(10, 60), seconds=0.1, ranks=2)[0]
    shared = {s.pages_own: s.read_us for s in both if not s.pages_other}
    # The device queues both ranks' pages, and the time is that of the slower rank.
    assert shared[60] > 1.4 * alone[60]


def test_region_too_small_for_the_step_is_refused(region: Path) -> None:
    with pytest.raises(ConfigError, match="400 pages, expected at least 600"):
        measure(opener(SourceSpec(Tier.DRAM, (region,))), pages=(10, 300))


@pytest.mark.parametrize("pages", [(10,), (10, 10), (0, 10)])
def test_counts_that_cannot_be_fitted_are_refused(region: Path, pages: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="expected at least two different ones"):
        measure(opener(SourceSpec(Tier.DRAM, (region,))), pages=pages)


@pytest.fixture
def measure_reads(slacktier: Any) -> Any:
    """measure_reads(*words): (exit code, stdout, stderr) of `slacktier measure reads WORDS`."""
    return lambda *words: slacktier("measure", "reads", *words)


QUICK = ("--pages", 10, "--pages", 80, "--seconds", 0.5)


def test_file_written_is_one_that_a_plan_reads(region: Path, tmp_path: Path, measure_reads: Any) -> None:
    out = tmp_path / "disk.yaml"
    code, shown, _ = measure_reads(region, *QUICK, "--out", out, "--json")
    assert code == 0
    printed = json.loads(shown)
    found = load_read_model(out)
    assert found.tier is Tier.NVME
    assert found.read.model_dump() == printed["read"]
    assert printed["read"]["pages_max"] == 160
    assert len(printed["measured"]) == found.samples


def test_existing_file_is_kept(region: Path, tmp_path: Path, measure_reads: Any) -> None:
    out = tmp_path / "disk.yaml"
    out.write_text("mine")
    code, _, err = measure_reads(region, *QUICK, "--out", out)
    assert code == 2
    assert out.read_text() == "mine"
    assert "exists" in err


def test_missing_directory_is_refused_before_anything_is_measured(
    region: Path, tmp_path: Path, measure_reads: Any
) -> None:
    out = tmp_path / "none" / "disk.yaml"
    code, _, err = measure_reads(region, "--seconds", 600, "--out", out)  # the test's own limit is far shorter
    assert code == 2
    assert f"--out {out}: no such directory" in err


def test_remote_node_is_measured_over_tcp(region: Path, tmp_path: Path, measure_reads: Any) -> None:
    token = tmp_path / "token"
    token.write_bytes(b"0123456789abcdef0123456789abcdef")
    with RowServer([SourceSpec(Tier.DRAM, (region,))], token.read_bytes()) as server:
        host, port = server.address
        address = f"tcp://{host}:{port}/{uuid.UUID(int=7)}/1"
        code, shown, _ = measure_reads(address, "--token", token, *QUICK, "--ranks", 2, "--json")
        assert code == 0
    found = json.loads(shown)
    assert (found["tier"], found["backend"]) == ("tcp", "rows")
    assert found["read"]["a_us"] > 0
    assert found["read"]["ranks_per_unit"] == 2
    # The server is gone: a clear error, not a traceback.
    code, _, err = measure_reads(address, "--token", token, *QUICK)
    assert code == 1
    assert "connect failed" in err


@pytest.mark.parametrize("address", ["node/x", "node:1/notauuid/1", "node", "node:99999999/a/1"])
@pytest.mark.parametrize("scheme", ["tcp", "rdma"])
def test_address_that_is_none_is_refused(scheme: str, address: str, tmp_path: Path, measure_reads: Any) -> None:
    address = f"{scheme}://{address}"
    code, _, err = measure_reads(address)
    assert code == 2
    assert "--token FILE" in err
    token = tmp_path / "token"
    token.write_bytes(b"0123456789abcdef0123456789abcdef")
    code, _, err = measure_reads(address, "--token", token)
    assert code == 2
    assert f"expected {scheme}://HOST:PORT/TABLE/LAYER" in err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--token", "token"), "--token is for tcp:// and rdma:// addresses"),
        (("--tier", "tape"), "--tier tape: expected nvme or dram"),
        (("--emulate", "tape"), "--emulate tape: expected one of paper-nvme-shared"),
    ],
)
def test_unknown_names_are_refused(
    region: Path,
    measure_reads: Any,
    words: tuple[str, ...],
    says: str,
) -> None:
    code, _, err = measure_reads(region, *words)
    assert code == 2
    assert says in err
