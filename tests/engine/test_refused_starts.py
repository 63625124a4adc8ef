# SPDX-License-Identifier: Apache-2.0
"""A server that was asked to use the tier and cannot: it never lists its model, and its log names the cause.

SGLang logs a plugin that fails and serves on with its own table. So each case here would end in a server that answers,
and answers right, without the tier, if the plugin did nothing against it.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import material
import pytest
from conftest import Fleet, Regions
from engine_process import RELEASES
from servers import Server, ServerFailedError, free_port

from slacktier.page import PAGE_BYTES, SUPERBLOCK_PAGES, State, decode_superblock, encode_superblock
from slacktier.tiers import Tier
from slacktier_native.rows import RowServer
from slacktier_native.sources import SourceSpec

LIMIT_S: Final = 500.0


@dataclass
class Start:
    """What the server is told; `says`: what its log has to say; `tier`: a row server that runs meanwhile."""

    tables: list[dict[str, Any]]
    says: str
    settings: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    tier: RowServer | None = None


Make = Callable[[Regions, Regions, Path], Start]


def _fault(name: str) -> Make:
    def make(regions: Regions, zeros: Regions, folder: Path) -> Start:
        variables = {"ENGINE_ENV_ALSO": "fault", "ENGINE_FAULT": name}
        return Start(material.tables(regions), f"made to fail: {name}", variables=variables)

    return make


def _no_file(regions: Regions, zeros: Regions, folder: Path) -> Start:
    gone = folder / "gone.region"
    return Start(material.tables({**regions, 1: [gone]}), f"{gone}: no such file")


def _other_layer(regions: Regions, zeros: Regions, folder: Path) -> Start:
    return Start(material.tables({1: regions[3], 3: regions[3]}), "holds layer 3, expected layer 1")


def _other_rows(regions: Regions, zeros: Regions, folder: Path) -> Start:
    """Right shape and layer, another table's rows: only a comparison with the checkpoint can tell."""
    return Start(material.tables({**regions, 3: zeros[3]}), "rows differ from the checkpoint's")


def _other_row_count(regions: Regions, zeros: Regions, folder: Path) -> Start:
    path = folder / "larger.region"
    shape = ["--rows", "26000", "--payload-bytes", "32", "--scale-bytes", "1"]
    material.run([material.SLACKTIER, "stage", "--synthetic", "raw", "--layer", "1", *shape, "--target", path])
    return Start(material.tables({**regions, 1: [path]}), "the model's layer 1 has 25874")


def _half_staged(regions: Regions, zeros: Regions, folder: Path) -> Start:
    path = folder / "half.region"
    shutil.copy(regions[1][0], path)
    unfinish(path)
    return Start(material.tables({**regions, 1: [path]}), f"{path}")


def _missing_layer(regions: Regions, zeros: Regions, folder: Path) -> Start:
    return Start(material.tables({1: regions[1]}), "layer 3 of the model is not configured")


def _bad_setting(regions: Regions, zeros: Regions, folder: Path) -> Start:
    return Start(material.tables(regions), "lookups_max", settings={"lookups_max": 0})


def _over_tcp(port: int, folder: Path) -> list[dict[str, Any]]:
    (folder / "token").write_text("a-token-that-we-know")
    return material.tables_over_tcp([port], folder / "token", material.LAYERS["engram"])


def _tier_down(regions: Regions, zeros: Regions, folder: Path) -> Start:
    port = free_port()
    return Start(_over_tcp(port, folder), f"127.0.0.1:{port}: connect failed")


def _unauthorised(regions: Regions, zeros: Regions, folder: Path) -> Start:
    sources = [SourceSpec(Tier.DRAM, tuple(paths)) for paths in regions.values()]
    tier = RowServer(sources, b"a-token-that-only-the-tier-knows")
    return Start(_over_tcp(tier.address[1], folder), "wrong token", tier=tier)


CASES: Final[dict[str, Make]] = {
    "raise in register": _fault("register"),
    "raise in the first read": _fault("read"),
    "tier down": _tier_down,
    "unauthorised": _unauthorised,
    "no file": _no_file,
    "another layer's table": _other_layer,
    "another table": _other_rows,
    "another row count": _other_row_count,
    "half staged": _half_staged,
    "a layer without a table": _missing_layer,
    "a bad setting": _bad_setting,
}
CI: Final = ("raise in register", "another table")


def unfinish(path: Path) -> None:
    """Leave the region as a staging that was killed before its last page does."""
    raw = bytearray(path.read_bytes())
    for at in range(0, SUPERBLOCK_PAGES * PAGE_BYTES, PAGE_BYTES):
        sb = decode_superblock(bytes(raw[at : at + PAGE_BYTES]))
        half = replace(sb, state=State.STAGING, staged_pages=sb.page_count // 2)
        raw[at : at + PAGE_BYTES] = encode_superblock(half)
    path.write_bytes(bytes(raw))


def watch_it_fail(server: Server) -> None:
    """Until the server has ended: neither it nor its readiness endpoint may ever say that it is ready."""
    end_s = time.monotonic() + LIMIT_S
    while server.process.poll() is None:
        assert time.monotonic() < end_s, f"still running after {LIMIT_S:.0f} s\n{server.last_lines()}"
        assert server.control("/readyz")[0] != 200, "ready without the tier"
        with contextlib.suppress(OSError, ServerFailedError):
            server.get("/v1/models")
            raise AssertionError("serves without the tier")
        time.sleep(0.5)
    assert server.process.returncode != 0


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in CI else [pytest.mark.full]) for name in CASES])
@pytest.mark.parametrize("release", [pytest.param(RELEASES[0], marks=pytest.mark.full), RELEASES[1]])
def test_server_that_cannot_use_its_tier_ends_with_the_cause(
    release: str, name: str, fleet: Fleet, regions: dict[str, Regions], zero_regions: dict[str, Regions], tmp_path: Path
) -> None:
    start = CASES[name](regions["engram"], zero_regions["engram"], tmp_path)
    with fleet.tiered(
        release, "engram", start.tables, ready=False, settings=start.settings, variables=start.variables
    ) as server:
        with start.tier or contextlib.nullcontext():
            watch_it_fail(server)
        log = server.log.read_text(errors="replace")
    assert start.says in log, server.last_lines()
    print(f"\n{name}: {next(line for line in log.splitlines() if start.says in line)[:200]}")
