# SPDX-License-Identifier: Apache-2.0
"""`slacktier loadtest compare` against real SGLang servers: stock, and with the plugin on two tiers.

Goal: what each placement costs a client here, with every request completed in every arm and equal answers. Method: one
stock server and one with the plugin, whose binding the load test itself switches between blocks.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Final

import material
import numpy as np
import pytest
import yaml
from conftest import Fleet, Regions
from control import TOKEN, counted
from engine_process import RELEASES
from material import tables, tables_over_tcp
from row_server import row_server
from servers import Server
from workload import END_ID, FIRST_ID

from slacktier import metrics
from slacktier_rowids.tokenizer import V4Tokenizer

SESSIONS, TURNS, BLOCKS, ANSWER_TOKENS = 4, 2, 3, 8
CACHE_ROWS: Final = 512
FLUSH: Final = {"url": "/flush_cache"}


def trace(path: Path) -> Path:
    """Sessions of ids that the small model has."""
    rng = np.random.default_rng(5)
    lengths = np.tile([24, 8], SESSIONS * TURNS)
    turn_count = 2 * TURNS
    np.savez(
        path, tokens=rng.integers(FIRST_ID, END_ID, lengths.sum(), dtype=np.uint32),
        session_offsets=np.arange(SESSIONS + 1, dtype=np.int64) * 32 * TURNS,
        turn_session=np.repeat(np.arange(SESSIONS, dtype=np.uint32), turn_count),
        turn_role=np.tile(np.array([1, 2], np.uint8), SESSIONS * TURNS),
        turn_start=np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64),
        turn_len=lengths.astype(np.uint32), vocab_size=np.int64(V4Tokenizer.load().vocab_size),
    )  # fmt: skip
    return path


def arm(name: str, server: Server, binding: list[dict[str, Any]] | None, token: Path) -> dict[str, Any]:
    bind = {
        "url": f"http://127.0.0.1:{server.control_port}/binding", "method": "PUT", "body": {"tables": binding},
        "token_file": str(token),
    }  # fmt: skip
    return {"name": name, "urls": [server.url], "switch": [*([bind] if binding is not None else []), FLUSH]}


@pytest.mark.timeout(900)
def test_every_request_completes_alike_in_every_arm(fleet: Fleet, regions: dict[str, Regions], tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.write_text(TOKEN)
    release, files = RELEASES[1], [paths[0] for paths in regions["engram"].values()]
    on_disk = tables(regions["engram"], cache_rows=CACHE_ROWS)
    with (
        row_server(token_file, files) as (_, port),
        fleet.stock(release, "engram", ready=False) as stock,
        fleet.tiered(release, "engram", on_disk, ready=False, token=token_file) as tiered,
    ):
        for server in (stock, tiered):
            server.wait_ready()
        over_tcp = tables_over_tcp([port], token_file, regions["engram"])
        report, shown = compare(
            [
                arm("stock", stock, None, token_file),
                arm("nvme", tiered, on_disk, token_file),
                arm("tcp", tiered, over_tcp, token_file),
            ],
            tmp_path,
        )
        lookups, bindings = counted(tiered, metrics.LOOKUPS), counted(tiered, metrics.BINDINGS)
    print(f"\n{release}, with the plugin {lookups:.0f} lookups:\n{shown}")
    assert [each["name"] for each in report["arms"]] == ["stock", "nvme", "tcp"]
    assert {each["completed"] for each in report["arms"]} == {BLOCKS * SESSIONS * TURNS}
    assert all(each["tpot_ms"]["mean"] > 0 for each in report["arms"])
    assert bindings == 2 * BLOCKS
    assert lookups > 0


def compare(arms: list[dict[str, Any]], folder: Path) -> tuple[dict[str, Any], str]:
    """The report, and what a person sees. A busy machine's generator lags; what that does, all arms share."""
    scenario, out = folder / "arms.yaml", folder / "out"
    workload = {"sessions": SESSIONS, "turns_max": TURNS, "output_tokens": ANSWER_TOKENS}
    # One user, so that each step has one sequence in every arm: rounding depends on how many share a matrix product.
    whole = {
        "title": "SGLang on a CPU", "targets": arms, "blocks": BLOCKS, "load": {"users": 1}, "workload": workload,
    }  # fmt: skip
    scenario.write_text(yaml.safe_dump(whole))
    done = subprocess.run(
        [
            material.SLACKTIER, "loadtest", "compare", "--scenario", scenario, "--trace", trace(folder / "ids.npz"),
            "--equal-answers", "--max-lag-ms", "5000", "--max-cpu", "5", "--out", out,
        ],
        capture_output=True, text=True, check=False, timeout=600, env={**os.environ, "COLUMNS": "120"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    return json.loads((out / "report.json").read_text()), done.stdout
