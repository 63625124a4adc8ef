# SPDX-License-Identifier: Apache-2.0
"""`slacktier loadtest compare` against real SGLang servers: stock, and with the plugin on two tiers.

Goal: what each placement costs a client here, with every request completed in every arm and equal answers. Method: one
stock server and one with the plugin, whose binding the load test itself switches between blocks.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import yaml
from conftest import Fleet, Regions
from engine_process import RELEASES
from material import tables
from servers import Server
from workload import END_ID, FIRST_ID

from slacktier_rowids.tokenizer import V4Tokenizer

TOKEN: Final = "a-token-of-one-test-run"  # noqa: S105
SESSIONS, TURNS = 4, 2
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


@pytest.mark.timeout(1200)
def test_every_request_completes_alike_in_every_arm(fleet: Fleet, regions: dict[str, Regions], tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    on_disk, in_memory = tables(regions["engram"], cache_rows=512), tables(regions["engram"], tier="dram", cache_rows=0)
    release = RELEASES[1]
    with fleet.stock(release, "engram") as stock, fleet.tiered(release, "engram", on_disk, token=token) as tiered:
        arms = [
            arm("stock", stock, None, token),
            arm("nvme", tiered, on_disk, token),
            arm("dram", tiered, in_memory, token),
        ]
        scenario = tmp_path / "arms.yaml"
        workload = {"sessions": SESSIONS, "turns_max": TURNS, "output_tokens": 8}
        scenario.write_text(
            yaml.safe_dump(
                {"title": "SGLang on a CPU", "targets": arms, "blocks": 2, "load": {"users": 1}, "workload": workload}
            )
        )
        done = subprocess.run(
            [
                sys.executable, "-c", "from slacktier_cli.main import main; main()", "loadtest", "compare",
                "--scenario", str(scenario), "--trace", str(trace(tmp_path / "ids.npz")), "--equal-answers",
                "--max-lag-ms", "5000", "--max-cpu", "5", "--json", "--out", str(tmp_path / "out"),
            ],
            capture_output=True, text=True, check=False, timeout=600,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout[:3000] + done.stderr[-2000:]
    report = json.loads(done.stdout)
    for each in report["arms"]:
        over = report["overheads"].get(each["name"])
        against = f", {over['tpot_pct']:+.1f} % against stock {over['interval_pct']}" if over else ""
        print(f"\n{each['name']}: TPOT {each['tpot_ms']['mean']:.1f} ms{against}, {each['completed']} requests")
    assert [each["name"] for each in report["arms"]] == ["stock", "nvme", "dram"]
    assert {each["completed"] for each in report["arms"]} == {2 * SESSIONS * TURNS}
