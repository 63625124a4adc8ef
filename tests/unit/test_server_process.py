# SPDX-License-Identifier: Apache-2.0
"""`slacktier serve` as a person runs it: two processes, the real tokenizer, signals, an end that leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from emulated_support import write_tables

from slacktier.page import State
from slacktier_rowids.engram import EngramLayout, scaled_config
from slacktier_rowids.models import V41_CONFIG

CONFIG = scaled_config(V41_CONFIG, 101)
LAYOUT = EngramLayout.from_config(CONFIG)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    directory = tmp_path_factory.mktemp("tables")
    (directory / "config.json").write_text(json.dumps(CONFIG))
    return write_tables(directory, layout=LAYOUT)


def options(tables: dict[int, Path]) -> list[str]:
    config = tables[1].parent / "config.json"
    return [
        "serve", "--layer", f"1=nvme:{tables[1]}", "--layer", f"14=dram:{tables[14]}", "--config", str(config),
        "--tp", "1", "--port", "0", "--json",
    ]  # fmt: skip


@dataclass
class Running:
    """A server process that has said that it is ready."""

    process: subprocess.Popen[str]
    ready: dict[str, Any]

    @property
    def url(self) -> str:
        return str(self.ready["url"])

    def end(self) -> tuple[int, str]:
        """Exit code and what it wrote on stderr."""
        _, errors = self.process.communicate(timeout=20)
        return self.process.returncode, errors

    def stream(self, on_first: Callable[[], None], tokens: int) -> list[str]:
        """Lines of a streamed answer; on_first is called when the first has come."""
        body = {"prompt": "def main():", "max_tokens": tokens, "ignore_eos": True, "stream": True}
        lines: list[str] = []
        with httpx.stream("POST", f"{self.url}/v1/completions", json=body, timeout=20) as response:
            for line in response.iter_lines():
                if line and not lines:
                    on_first()
                if line:
                    lines.append(line)
        return lines


@pytest.fixture
def start(tables: dict[int, Path]) -> Iterator[Callable[..., Running]]:
    started: list[subprocess.Popen[str]] = []

    def start(*extra: str) -> Running:
        process = subprocess.Popen(
            [sys.executable, "-c", "from slacktier_cli.main import main; main()", *options(tables), *extra],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate(timeout=5)[1]
        return Running(process, json.loads(line))

    yield start
    for process in started:
        process.kill()
        process.communicate()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 5
    while is_alive(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.02)


def test_ready_line_then_an_answer_then_a_clean_end_on_sigterm(start: Callable[..., Running], tmp_path: Path) -> None:
    running = start("--record-lookups", str(tmp_path / "lookups.npz"))
    assert running.ready["pid"] == running.process.pid
    assert (running.ready["engine"], running.ready["model"]) == ("emulated", "deepseek-v4.1-flash-emulated")
    ready = httpx.get(f"{running.url}/readyz")
    assert (ready.status_code, ready.headers["x-slacktier-engine"]) == (200, "emulated")
    lines = running.stream(lambda: running.process.send_signal(signal.SIGTERM), tokens=10)
    assert (len(lines), lines[-1]) == (11, "data: [DONE]")
    assert running.end() == (0, "")
    wait_until_gone(running.ready["engine_pid"])
    with np.load(tmp_path / "lookups.npz", allow_pickle=False) as found:
        assert found["step_is_prefill"].tolist()[:3] == [1, 0, 0]
        assert len(found["rows_1"]) == (3 + 9) * 24


def test_second_signal_ends_running_streams_with_an_error(start: Callable[..., Running]) -> None:
    running = start()

    def twice() -> None:
        running.process.send_signal(signal.SIGINT)
        time.sleep(0.1)
        running.process.send_signal(signal.SIGINT)

    lines = running.stream(twice, tokens=100_000)
    assert json.loads(lines[-1].removeprefix("data: "))["error"]["message"] == "the server is shutting down"
    assert running.end() == (0, "")
    wait_until_gone(running.ready["engine_pid"])


def test_killed_engine_ends_streams_with_an_error_and_the_server_with_exit_code_1(
    start: Callable[..., Running],
) -> None:
    running = start()
    lines = running.stream(lambda: os.kill(running.ready["engine_pid"], signal.SIGKILL), tokens=100_000)
    error = json.loads(lines[-1].removeprefix("data: "))["error"]
    assert (error["type"], error["message"]) == ("server_error", "the engine process has ended")
    code, errors = running.end()
    assert code == 1
    assert errors == "slacktier: the engine process has ended; every running stream ends with an error\n"


def test_engine_ends_when_the_server_is_killed(start: Callable[..., Running]) -> None:
    running = start()
    running.process.kill()
    running.process.communicate(timeout=5)
    wait_until_gone(running.ready["engine_pid"])


def test_recording_that_cannot_be_written_is_one_line_and_exit_code_1(
    start: Callable[..., Running], tmp_path: Path
) -> None:
    target = tmp_path / "lookups.npz"
    running = start("--record-lookups", str(target))
    target.mkdir()  # after the start's check: the rename at the end fails
    running.process.send_signal(signal.SIGTERM)
    assert running.end() == (1, f"slacktier: --record-lookups {target}: not written: Is a directory\n")
    assert list(tmp_path.iterdir()) == [target]


def test_second_signal_ends_a_stopped_engine_at_once_and_waiting_calls_with_503(start: Callable[..., Running]) -> None:
    running = start("--drain-s", "60")
    os.kill(running.ready["engine_pid"], signal.SIGSTOP)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(httpx.get, f"{running.url}/slacktier/status", timeout=20)
        streaming = pool.submit(running.stream, lambda: None, 10)
        time.sleep(0.2)  # both are with the server; neither can be answered
        begin = time.monotonic()
        for _ in range(2):
            running.process.send_signal(signal.SIGTERM)
            time.sleep(0.1)
        code, errors = running.end()
        assert time.monotonic() - begin < 3
        assert waiting.result().status_code == 503
        assert "the server is shutting down" in streaming.result()[0]
    assert (code, errors) == (1, "slacktier: the engine did not end within 0.5 s and was killed\n")
    wait_until_gone(running.ready["engine_pid"])


Refusal = Callable[[list[str]], str]


@pytest.fixture
def refusal(slacktier: Any) -> Refusal:
    """refusal(arguments): what a start that is refused says; exit code 2, nothing on stdout, no traceback."""

    def call(arguments: list[str]) -> str:
        code, out, err = slacktier(*arguments)
        assert (code, out) == (2, "")
        lines = err.splitlines()
        assert lines[0].startswith("slacktier: ")
        assert all(line.startswith("hint: ") for line in lines[1:])
        return str(err)

    return call


def test_port_in_use_is_refused(tables: dict[int, Path], refusal: Refusal) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        found = refusal([*options(tables), "--port", port])
    assert f"127.0.0.1:{port}: cannot listen: Address already in use" in found


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (["--layer", "1=nvme:/nowhere"], "/nowhere: no such file"),
        (["--layer", "2=nvme:/nowhere"], "layer 2 is not in the profile: it knows layers 1, 14"),
        (["--engine", "sglang"], "--engine sglang: expected emulated"),
        (["--profile", "h100"], "profile h100"),
        (["--config", "v41"], "the model's layer 1 has 384006168"),
        (["--config", "qwen3.8"], "V4.1 Engram"),
        (["--rank", "1"], "--rank 1: expected below --tp 1"),
        (["--token-file", "/nowhere"], "--token-file /nowhere"),
        (["--record-lookups", "/nowhere/x.npz"], "no such directory"),
        (["--record-lookups", "/tmp"], "--record-lookups /tmp: is a directory"),
        (["--check-pattern", "3"], "layer1.region holds rows of another seed: 'tests pattern=7'"),
        (["--cache-rows", "1=x"], "--cache-rows '1=x'"),
        (["--cache-rows", "1=2147483648"], "layer 1: cache of 2147483648 rows"),
        (["--host", "192.0.2.1"], "cannot listen"),
    ],
)
def test_start_with_a_wrong_option_is_refused(
    changes: list[str], complaint: str, tables: dict[int, Path], refusal: Refusal,
) -> None:  # fmt: skip
    assert complaint in refusal([*options(tables), *changes])


@pytest.mark.parametrize(("state", "complaint"), [(State.STAGING, "not finished"), (State.PARTIAL, "not served")])
def test_unfinished_region_is_refused(
    state: State, complaint: str, tables: dict[int, Path], tmp_path: Path, refusal: Refusal,
) -> None:  # fmt: skip
    unfinished = write_tables(tmp_path, layout=LAYOUT, state=state)
    assert complaint in refusal([*options(tables), "--layer", f"1=nvme:{unfinished[1]}"])


def test_other_layers_region_and_another_tables_replica_are_refused(
    tables: dict[int, Path], tmp_path: Path, refusal: Refusal
) -> None:
    config = str(tables[1].parent / "config.json")
    swapped = ["serve", "--layer", f"1=nvme:{tables[14]}", "--config", config]
    assert "holds layer 14" in refusal(swapped)
    other = write_tables(tmp_path, layout=LAYOUT, seed=9)
    replica = [*options(tables), "--layer", f"1=nvme:{other[1]}"]
    assert "another table than" in refusal(replica)
