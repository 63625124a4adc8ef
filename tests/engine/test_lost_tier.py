# SPDX-License-Identifier: Apache-2.0
"""kill -9 of the tier under 32 streams: with a second replica nobody notices; without, clear errors, and recovery.

Rows come over TCP from processes of their own and none is cached, so each step reads. Every row is compared with the
checkpoint's. How 32 streams share batches is a matter of time, and rounding with it, so tokens are compared up to the
first that stock itself chose by less than rounding.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from conftest import Fleet, Regions
from engine_process import RELEASES
from material import tables_over_tcp
from row_server import row_server
from servers import Server, Shape
from workload import Answer, ask, body, decided, prompts

STREAMS: Final = 32
NEW_TOKENS: Final = 48
ASKED: Final = prompts(STREAMS, seed=11)
KILL_AFTER: Final = 64  # chunks that all streams together have had
READ_S: Final = 4.0
TOKEN: Final = b"a-token-of-one-test-run"
releases = pytest.mark.parametrize("release", [pytest.param(RELEASES[0], marks=pytest.mark.full), RELEASES[1]])


@dataclass
class Ended:
    """A stream's tokens, what it was told instead of more of them, and when it ended (monotonic clock)."""

    tokens: list[int]
    error: str
    at_s: float


class Streams:
    """All prompts at once; `chunks` counts what has arrived."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._lock = threading.Lock()
        self.chunks = 0

    def run(self, pool: ThreadPoolExecutor) -> list[Any]:
        return [pool.submit(self._one, prompt) for prompt in ASKED]

    def _one(self, prompt: list[int]) -> Ended:
        tokens: list[int] = []
        request = urllib.request.Request(
            self._server.url + "/generate",
            json.dumps({**body(NEW_TOKENS), "input_ids": prompt, "stream": True}).encode(),
            {"content-type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=300) as stream:
                for line in stream:
                    if not line.startswith(b"data: {"):
                        continue
                    chunk = json.loads(line.removeprefix(b"data: "))
                    if error := self._error_of(chunk):
                        return Ended(tokens, error, time.monotonic())
                    tokens = chunk["output_ids"]
                    with self._lock:
                        self.chunks += 1
        except OSError as exc:
            return Ended(tokens, f"{type(exc).__name__}: {exc}", time.monotonic())
        return Ended(tokens, "", time.monotonic())

    @staticmethod
    def _error_of(chunk: dict[str, Any]) -> str:
        if "error" in chunk:
            return str(chunk["error"])
        reason = chunk["meta_info"]["finish_reason"]
        return str(reason.get("message", reason)) if reason and reason.get("type") == "abort" else ""

    def wait_for(self, chunks: int) -> None:
        end_s = time.monotonic() + 120
        while self.chunks < chunks:
            assert time.monotonic() < end_s, f"{self.chunks} chunks of {chunks}\n{self._server.last_lines()}"
            time.sleep(0.02)


SETTINGS: Final = {"check": {"rate": 1.0}, "reads": {"timeout_s": READ_S}}
FLAGS: Final = ("--max-running-requests", str(STREAMS))


Expected = Callable[[Fleet, str, Shape], list[Answer]]


@pytest.fixture(scope="module")
def expected_of() -> Expected:
    """What stock answers to ASKED in each release and shape; asked once."""
    known: dict[tuple[str, Shape], list[Answer]] = {}

    def expected(fleet: Fleet, release: str, shape: Shape) -> list[Answer]:
        if (release, shape) not in known:
            with fleet.stock(release, "engram", shape) as stock:
                known[release, shape] = [ask(stock, prompt, NEW_TOKENS) for prompt in ASKED]
        return known[release, shape]

    return expected


def assert_right(found: list[list[int]], expected: list[Answer]) -> int:
    """The tokens compared; each has to be stock's."""
    compared = 0
    for tokens, answer in zip(found, expected, strict=True):
        sure = decided(answer)[: len(tokens)]
        assert tokens[: len(sure)] == sure
        compared += len(sure)
    return compared


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_bytes(TOKEN)
    return path


@pytest.mark.timeout(1200)
@releases
def test_kill_with_a_second_replica_ends_no_stream(
    release: str, fleet: Fleet, regions: dict[str, Regions], token_file: Path, expected_of: Expected
) -> None:
    expected, files = expected_of(fleet, release, Shape()), [paths[0] for paths in regions["engram"].values()]
    with (
        row_server(token_file, files) as (first, port),
        row_server(token_file, files) as (_, other_port),
        fleet.tiered(
            release,
            "engram",
            tables_over_tcp([port, other_port], token_file, regions["engram"]),
            settings=SETTINGS,
            flags=FLAGS,
        ) as server,
        ThreadPoolExecutor(STREAMS) as pool,
    ):
        streams = Streams(server)
        running = streams.run(pool)
        streams.wait_for(KILL_AFTER)
        first.kill()
        ended = [one.result() for one in running]
        ready = server.control("/readyz")[0]
    assert [one.error for one in ended if one.error] == []
    assert all(len(one.tokens) == NEW_TOKENS for one in ended)
    compared = assert_right([one.tokens for one in ended], expected)
    print(f"\n{release}: {STREAMS} streams of {NEW_TOKENS} tokens, 0 ended early; {compared} tokens compared")
    assert ready == 200


@pytest.mark.timeout(1200)
@releases
def test_kill_of_the_only_replica_ends_streams_with_the_cause_and_the_server_recovers(
    release: str, fleet: Fleet, regions: dict[str, Regions], token_file: Path, expected_of: Expected
) -> None:
    """Both releases can end single requests on one rank, so the server lives on and is ready once the tier is back."""
    expected, files = expected_of(fleet, release, Shape()), [paths[0] for paths in regions["engram"].values()]
    with row_server(token_file, files) as (tier, port), ThreadPoolExecutor(STREAMS) as pool:
        tables = tables_over_tcp([port], token_file, regions["engram"])
        with fleet.tiered(release, "engram", tables, settings=SETTINGS, flags=FLAGS) as server:
            streams = Streams(server)
            running = streams.run(pool)
            streams.wait_for(KILL_AFTER)
            tier.kill()
            killed_s = time.monotonic()
            ended = [one.result() for one in running]
            ready, why = server.control("/readyz")
            assert server.process.poll() is None, server.last_lines()
            with row_server(token_file, files, port):
                again = _ready_again(server, expected)
    cut = [one for one in ended if one.error]
    latest = max(one.at_s for one in cut) - killed_s
    compared = assert_right([one.tokens for one in ended], expected)
    print(f"\n{release}: {len(cut)} of {STREAMS} streams ended with an error, the last {latest:.1f} s after the kill")
    print(
        f"{cut[0].error:.200}\n{compared} tokens compared; not ready: {why.strip():.100}; ready again in {again:.1f} s"
    )
    assert cut
    assert all("slacktier" in one.error for one in cut), cut[0].error
    assert latest < 2 * READ_S + 10
    assert ready == 503


def _ready_again(server: Server, expected: list[Answer]) -> float:
    """Seconds until it is ready; then its answers have to be right."""
    started_s = time.monotonic()
    while server.control("/readyz")[0] != 200:
        assert time.monotonic() < started_s + 60, server.control("/readyz")[1]
        time.sleep(0.1)
    took_s = time.monotonic() - started_s
    assert_right([ask(server, prompt, NEW_TOKENS).tokens for prompt in ASKED[:4]], expected[:4])
    return took_s


@pytest.mark.full
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("release", RELEASES)
def test_kill_under_two_ranks_ends_the_process_with_the_named_error(
    release: str, fleet: Fleet, regions: dict[str, Regions], token_file: Path, expected_of: Expected
) -> None:
    """Ranks cannot agree to end single requests, so the process ends; started again, it is right."""
    shape = Shape(tp=2, overlap=False)
    expected, files = expected_of(fleet, release, shape), [paths[0] for paths in regions["engram"].values()]
    with row_server(token_file, files) as (tier, port), ThreadPoolExecutor(STREAMS) as pool:
        tables = tables_over_tcp([port], token_file, regions["engram"])
        with fleet.tiered(release, "engram", tables, shape, settings=SETTINGS) as server:
            streams = Streams(server)
            running = streams.run(pool)
            streams.wait_for(8)
            tier.kill()
            ended = [one.result() for one in running]
            code = server.wait_end(120)
            log = server.log.read_text(errors="replace")
        assert_right([one.tokens for one in ended], expected)
        assert code != 0
        assert "slacktier: rows of layer" in log
        with row_server(token_file, files, port), fleet.tiered(release, "engram", tables, shape) as server:
            compared = assert_right([ask(server, prompt, NEW_TOKENS).tokens for prompt in ASKED], expected)
    print(f"\n{release} tp2: exit code {code}; restarted: {compared} tokens compared")
