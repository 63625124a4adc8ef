# SPDX-License-Identifier: Apache-2.0
"""A server that serves: its cache evicts, its sources are switched, its region is replaced, a hook raises."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from conftest import Fleet, Regions
from control import TOKEN, bind, counted
from engine_process import RELEASES
from material import tables
from servers import Server, ServerFailedError
from workload import ask, prompts

from slacktier import metrics

ROWS_CHECKED: Final = 1_000_000
SWITCHES: Final = 100
CACHE_ROWS: Final = 512  # of 25,874: far fewer than one prompt's rows
PROMPT_TOKENS: Final = 400
releases = pytest.mark.parametrize("release", [pytest.param(RELEASES[0], marks=pytest.mark.full), RELEASES[1]])


@contextmanager
def load(server: Server, clients: int = 3) -> Iterator[list[int]]:
    """Long prompts that share nothing, from several clients, until the end; yields each client's count of answers."""
    over = threading.Event()
    answered = [0] * clients

    def client(index: int) -> None:
        while not over.is_set():
            seed = 1000 + index + clients * answered[index]
            (prompt,) = prompts(1, seed, least=PROMPT_TOKENS, most=PROMPT_TOKENS)
            assert len(ask(server, prompt).tokens) > 0
            answered[index] += 1

    with ThreadPoolExecutor(clients) as pool:
        running = [pool.submit(client, index) for index in range(clients)]
        try:
            yield answered
        finally:
            over.set()
            for one in running:
                one.result()


@pytest.mark.timeout(1500)
@releases
def test_evictions_switches_and_resizes_under_load_never_give_a_wrong_row(
    release: str, fleet: Fleet, regions: dict[str, Regions], tmp_path: Path
) -> None:
    """Every row of every step is compared with the checkpoint's; a mismatch would end the server."""
    (tmp_path / "token").write_text(TOKEN)
    second = {
        layer: [shutil.copy(paths[0], tmp_path / f"{layer}.region")] for layer, paths in regions["engram"].items()
    }
    places = [
        tables(regions["engram"], cache_rows=CACHE_ROWS),
        tables(second, cache_rows=2 * CACHE_ROWS),
        tables(second, tier="dram", cache_rows=0),
        tables({layer: [*regions["engram"][layer], *second[layer]] for layer in second}, cache_rows=4 * CACHE_ROWS),
    ]
    with fleet.tiered(
        release, "engram", places[0], settings={"check": {"rate": 1.0}}, token=tmp_path / "token"
    ) as server:
        with load(server) as answered:
            while counted(server, metrics.ROWS_CHECKED) < ROWS_CHECKED:
                assert server.process.poll() is None, server.last_lines()
                time.sleep(0.5)
            evictions, before = counted(server, metrics.CACHE_EVICTIONS), sum(answered)
            for turn in range(SWITCHES):
                bind(server, {"tables": places[(turn + 1) % len(places)]})
        applied, answers = counted(server, metrics.BINDINGS), sum(answered)
        checked, wrong = counted(server, metrics.ROWS_CHECKED), counted(server, metrics.ROWS_MISMATCHED)
        failed = counted(server, metrics.LOOKUP_FAILURES) + counted(server, metrics.REQUESTS_ENDED)
    print(f"\n{release}: {checked:.0f} rows checked, {wrong:.0f} wrong, {evictions:.0f} evictions")
    print(f"{applied:.0f} bindings, {answers} requests ({answers - before} while switching), {failed:.0f} failed")
    assert evictions > CACHE_ROWS
    assert applied == SWITCHES
    assert answers > before
    assert (wrong, failed) == (0, 0)


def answer_or_error(server: Server, prompt: list[int]) -> list[int] | str:
    """Tokens, or what the client was told instead."""
    try:
        return ask(server, prompt).tokens
    except (OSError, ServerFailedError) as exc:
        return f"{type(exc).__name__}: {exc}"


@pytest.mark.timeout(900)
@releases
def test_region_replaced_under_a_running_server_gives_errors_never_a_wrong_token(
    release: str, fleet: Fleet, regions: dict[str, Regions], zero_regions: dict[str, Regions], tmp_path: Path
) -> None:
    """The file is overwritten with another table's pages, then put back: errors in between, right tokens after."""
    own = {layer: [shutil.copy(paths[0], tmp_path / f"{layer}.region")] for layer, paths in regions["engram"].items()}
    asked = prompts(8, seed=7)
    with (
        fleet.stock(release, "engram", ready=False) as stock,
        fleet.tiered(release, "engram", tables(own), ready=False) as server,
    ):
        for one in (stock, server):
            one.wait_ready()
        right = [ask(stock, prompt).tokens for prompt in asked]
        assert [answer_or_error(server, prompt) for prompt in asked[:4]] == right[:4]
        _overwrite(own, zero_regions["engram"])
        found = [answer_or_error(server, prompt) for prompt in asked[4:]]
        ready, why = server.control("/readyz")
        _overwrite(own, regions["engram"])
        end_s = time.monotonic() + 60
        while server.process.poll() is None and server.control("/readyz")[0] != 200 and time.monotonic() < end_s:
            time.sleep(0.2)
        recovered = [answer_or_error(server, prompt) for prompt in asked[4:]]
    print(f"\n{release}: {found[0]!r:.300}\nready: {ready} {why.strip()}")
    assert all(isinstance(one, str) for one in found), "a token came from rows that could not be read"
    assert all("row" in one for one in found if isinstance(one, str)), found
    assert ready == 503
    assert recovered == right[4:]


def _overwrite(target: Regions, source: Regions) -> None:
    """In place: a server that holds the file open reads the new bytes."""
    for layer, paths in target.items():
        with paths[0].open("r+b") as file:
            file.write(source[layer][0].read_bytes())


@pytest.mark.full
@pytest.mark.timeout(900)
@releases
def test_hook_that_raises_ends_the_server_and_no_token_is_served(
    release: str, fleet: Fleet, regions: dict[str, Regions]
) -> None:
    variables = {"ENGINE_ENV_ALSO": "fault", "ENGINE_FAULT": "hook"}
    with fleet.tiered(release, "engram", tables(regions["engram"]), variables=variables) as server:
        found = answer_or_error(server, prompts(1, seed=8)[0])
        code = server.wait_end(120)
        log = server.log.read_text(errors="replace")
    print(f"\n{release}: client: {found!r:.200}; exit code {code}")
    assert isinstance(found, str)
    assert code != 0
    assert "made to fail: hook" in log
