# SPDX-License-Identifier: Apache-2.0
"""The whole demo, small: real tables, the real server, real HTTP; what it leaves behind; how it ends when it must."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from slacktier.errors import ConfigError, SlackTierError
from slacktier_cli.demo import driver
from slacktier_cli.demo.arms import parse_arms
from slacktier_cli.demo.server import ServeOptions, ServerControl, ServerProcess, running_server
from slacktier_cli.demo.settings import DemoSettings
from slacktier_cli.demo.tables import TableStore
from slacktier_cli.demo.workloads import load_workload
from slacktier_cli.replay.client import CompletionClient

SLACKTIER = [sys.executable, "-c", "from slacktier_cli.main import main; main()"]
TALK = [
    {"role": "user", "content": "Where is the row cache resized?"},
    {"role": "assistant", "content": "In set_cache_rows, which keeps as many rows as fit the new size. " * 3},
    {"role": "user", "content": "And what happens to a step that is under way while somebody resizes it?"},
    {"role": "assistant", "content": "Nothing: sizes change between steps, never within one. " * 3},
]


def conversations(path: Path) -> Path:
    path.write_text("".join(json.dumps({"messages": TALK[: 2 + 2 * (index % 2)]}) + "\n" for index in range(6)))
    return path


def small(out: Path, **changes: Any) -> DemoSettings:
    """Seconds rather than minutes: tiny tables, two users, one round of two arms."""
    values: dict[str, Any] = {
        "arms": parse_arms(("dram", "nvme-split")), "sessions": 2,
        "blocks": 1, "block_seconds": 1.5, "history_tokens": 32, "turn_tokens": 16, "output_tokens": 16,
        "table_bytes": 4 << 20, "cache_rows": 2_000, "rows_checked_min": 12_000,
    }  # fmt: skip
    trace = changes.pop("trace", None) or conversations(out.parent / "talks.jsonl")
    return DemoSettings(out=out, trace=trace, **{**values, **changes})


def processes_naming(text: str) -> list[int]:
    """Process ids whose command line holds the text, ours not counted."""
    found = []
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit() and int(directory.name) != os.getpid():
            try:
                line = (directory / "cmdline").read_bytes()
            except OSError:
                continue  # it has ended since
            if text.encode() in line:
                found.append(int(directory.name))
    return found


def test_small_run_measures_checks_decides_and_cleans_up(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with (tmp_path / "log").open("w") as log:
        report = driver.run_demo(small(out), Console(file=log))
    assert report["faults"] == []
    assert report["mismatched_rows"] == 0
    assert report["rows_checked"] >= 12_000
    assert report["backend"] in ("uring", "posix")
    for arm in report["arms"].values():
        assert arm["tpot_ms"]["mean"] > 5  # the profile's step at this load is 5.5 ms or more, whatever the machine
        assert arm["requests"]["failed"] == 0
        assert [layer["window_ms"] > 0 for layer in arm["layers"].values()] == [True, True]
    assert report["arms"]["nvme-split"]["layers"]["1"]["hit_rate"] > report["arms"]["dram"]["layers"]["1"]["hit_rate"]
    assert report["clock_check"]["agrees_within_points"] <= 1.0
    assert "layer 14 on" in report["decision"].lower()
    assert json.loads((out / "report.json").read_text()) == json.loads(json.dumps(report))
    assert "<svg" in (out / "report.html").read_text()
    assert processes_naming(str(out)) == []
    assert TableStore(out / "tables", table_bytes=4 << 20, seed=1).missing() == []


def start(out: Path, *options: str) -> subprocess.Popen[str]:
    trace = conversations(out.parent / "talks.jsonl")
    command = [
        *SLACKTIER,
        "demo",
        "--out",
        str(out),
        "--trace",
        str(trace),
        "--size",
        "4M",
        "--sessions",
        "2",
        *options,
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_interrupted_run_takes_its_server_along(tmp_path: Path) -> None:
    out = tmp_path / "out"
    trace = conversations(tmp_path / "talks.jsonl")
    options = ["--out", str(out), "--trace", str(trace), "--size", "4M", "--sessions", "2", "--block-seconds", "60"]
    process = subprocess.Popen([*SLACKTIER, "demo", *options], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not processes_naming(f"{out}/lookups.npz") and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes_naming(f"{out}/lookups.npz")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode not in (0, 2)
    assert "Traceback" not in errors
    assert processes_naming(str(out)) == []


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--sessions", "0"], "sessions: 0, expected 1 to 1024"),
        (["--arms", "nvme"], "dram is missing"),
        (["--size", "big"], "size 'big'"),
        (["--trace", "/nonexistent/x.npz"], "no such file"),
        (["--trace", "/etc/hostname"], "expected a token file"),
        (["--profile", "h900"], "profile h900"),
        (["--size", "1K"], "no table fits"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(tmp_path: Path, slacktier: Any, options: list[str], error: str) -> None:
    code, shown, errors = slacktier("demo", "--out", tmp_path / "out", *options)
    lines = [line for line in errors.splitlines() if not line.startswith("hint: ")]
    assert (code, shown, len(lines)) == (2, "", 1)
    assert error in lines[0]
    assert not (tmp_path / "out").exists()


def test_output_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--out .*file/out: Not a directory"):
        driver.run_demo(
            small(tmp_path / "file" / "out", trace=conversations(tmp_path / "t.jsonl")), Console(quiet=True)
        )


def test_memory_that_is_too_small_is_said_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "available_memory_bytes", lambda: 100 << 20)
    with pytest.raises(ConfigError, match=r"the DRAM arm needs 0\.5 GiB of memory"):
        driver.run_demo(small(tmp_path / "out"), Console(quiet=True))
    assert not (tmp_path / "out").exists()


def test_server_that_ends_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    options = ServeOptions(
        tables=(), config=tmp_path / "none.json", tp=4, profile="v41-h200", log=tmp_path / "log",
        recording=tmp_path / "lookups.npz", sessions=1,
    )  # fmt: skip

    async def wait(server: ServerProcess) -> None:
        await ServerControl(server, CompletionClient(server.endpoint)).wait_ready()

    said = r"exit code 2: .*neither a shipped model"
    with running_server(options) as server, pytest.raises(SlackTierError, match=said):
        asyncio.run(wait(server))


def test_token_file_becomes_sessions_and_another_vocabulary_is_refused(tmp_path: Path) -> None:
    arrays = {
        "tokens": np.arange(5, dtype=np.uint32), "session_offsets": np.array([0, 5]),
        "turn_session": np.array([0, 0], np.uint32), "turn_role": np.array([1, 2], np.uint8),
        "turn_start": np.array([0, 3]), "turn_len": np.array([3, 2], np.uint32), "vocab_size": np.int64(100),
    }  # fmt: skip
    np.savez(tmp_path / "t.npz", **arrays)
    workload = load_workload(tmp_path / "t.npz", users=1, seed=0, encode=lambda _: [], vocab_size=100)
    assert [[turn.tokens.tolist() for turn in session.turns] for session in workload.sessions] == [[[0, 1, 2], [3, 4]]]
    with pytest.raises(ConfigError, match="vocab_size 100, the model's tokenizer has 129280"):
        load_workload(tmp_path / "t.npz", users=1, seed=0, encode=lambda _: [], vocab_size=129_280)
