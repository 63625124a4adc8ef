# SPDX-License-Identifier: Apache-2.0
"""`slacktier serve-rows` as a process, and the emulated engine reading from it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from emulated_support import LAYOUT, write_tables
from server_support import LiveServer

from slacktier.tiers import Tier
from slacktier_emulated.layers import LayerPlan, Source


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("0123456789abcdef0123456789abcdef\n")
    return path


def start(*words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from slacktier_cli.main import main; main()", "serve-rows", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@contextmanager
def served(paths: dict[int, Path], token: Path) -> Iterator[tuple[dict[str, Any], subprocess.Popen[str]]]:
    process = start(*paths.values(), "--token-file", token, "--listen", "127.0.0.1:0", "--json")
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline()), process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.timeout(60)
def test_emulated_engine_serves_from_it_and_from_the_disk_once_it_is_gone(tmp_path: Path, token: Path) -> None:
    paths = write_tables(tmp_path)
    with served(paths, token) as (ready, process):
        assert [layer["layer_id"] for layer in ready["layers"]] == list(LAYOUT.layer_ids)
        sources = {
            layer_id: (
                Source(Tier.TCP, (), address=ready["address"], token_file=token),
                Source(Tier.NVME, (path,)),
            )
            for layer_id, path in paths.items()
        }  # fmt: skip
        layers = tuple(LayerPlan(layer_id, chosen) for layer_id, chosen in sources.items())
        with LiveServer(paths, layers=layers) as live:
            body = {"prompt": [5, 6, 7, 8], "max_tokens": 4, "stream": False}
            assert httpx.post(f"{live.url}/v1/completions", json=body).status_code == 200
            assert 'slacktier_fallback_total{engine="emulated",layer="1"} 0.0' in httpx.get(f"{live.url}/metrics").text
            process.send_signal(signal.SIGTERM)
            _, told = process.communicate(timeout=20)
            assert (process.returncode, told.split()[0]) == (0, "served")
            assert httpx.post(f"{live.url}/v1/completions", json={**body, "prompt": [9, 9, 9]}).status_code == 200
            text = httpx.get(f"{live.url}/metrics").text
            assert 'slacktier_fallback_total{engine="emulated",layer="1"} 0.0' not in text
            change = {"layers": [{"layer_id": 1, "tier": "tcp", "address": ready["address"], "token_file": str(token)}]}
            answer = httpx.post(f"{live.url}/slacktier/control", json=change)
            assert answer.status_code != 200
            assert "connect failed" in answer.text
            assert httpx.post(f"{live.url}/v1/completions", json={**body, "prompt": [4, 4, 4]}).status_code == 200


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["{region}", "--token-file", "none"], "token file none: No such file"),
        (["{region}", "--listen", "7400", "--token-file", "{token}"], "address '7400': expected HOST:PORT"),
        (["{region}", "{region}", "--token-file", "{token}"], "of the same table as"),
        (["none.region", "--token-file", "{token}"], "none.region: no such file"),
        (
            ["{region}", "--listen", "192.0.2.1:1", "--token-file", "{token}"],
            "row server on 192.0.2.1:1",
        ),
    ],
)
def test_what_cannot_be_served_is_refused_at_once(tmp_path: Path, token: Path, words: list[str], says: str) -> None:
    paths = write_tables(tmp_path)
    names = {"region": paths[LAYOUT.layer_ids[0]], "token": token}
    process = start(*(word.format(**names) for word in words))
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (2, "")
    assert says in err
    assert len(err.strip().splitlines()) <= 2
