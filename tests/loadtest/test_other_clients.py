# SPDX-License-Identifier: Apache-2.0
"""The same load measured by SGLang's and vLLM's own clients: TPOT and TTFT must agree within 3 %.

Goal: figures that can be put beside those that others publish. Method: a server with known timing, the same number of
requests of the same length at a time, each client in turn. Their clients come with their whole engines, so these tests
run where SLACKTIER_SGLANG_BENCH (such as "python -m sglang.bench_serving") or SLACKTIER_VLLM_BENCH (such as "vllm bench
serve") says how to start one, and SLACKTIER_BENCH_TOKENIZER names a directory with a tokenizer for it.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from misbehaving_server import Behaviour, before_others, misbehaving

from slacktier_loadtest.handle import GeneratorOptions, running_generator
from slacktier_loadtest.script import BlockScript, RequestShape, SessionScript, TurnScript, message_json

USERS, REQUESTS, TOKENS = 4, 24, 48
AGREES = 0.03
BEHAVIOURS = {
    "plain": Behaviour(first_s=0.1, gap_s=0.02),
    "four tokens per chunk": Behaviour(first_s=0.1, gap_s=0.08, tokens_per_chunk=4),
}


def other_client(variable: str) -> list[str]:
    command = os.environ.get(variable)
    if not command or not os.environ.get("SLACKTIER_BENCH_TOKENIZER"):
        pytest.skip(f"needs {variable} and SLACKTIER_BENCH_TOKENIZER")
    return [*before_others(), *shlex.split(command)]


def ours(url: str, log: Path) -> tuple[float, float]:
    """Mean TPOT and TTFT in ms of our generator."""
    turns = tuple(TurnScript(message_json("user", "q"), message_json("assistant", "a"), TOKENS) for _ in range(6))
    users = tuple((SessionScript(f"s{user}", turns),) for user in range(USERS))
    script = BlockScript(users, (url,), RequestShape("messages", "", {"model": "misbehaving"}), {}, 20.0)
    assert script.request_count == REQUESTS
    with running_generator(GeneratorOptions(wrapper=tuple(before_others())), log) as generator:
        generator.wait_ready()
        records = [each.record for each in generator.run(script, lambda _: None).completed]
    assert len(records) == REQUESTS
    return fmean(r.tpot_ms or 0 for r in records), fmean(r.ttft_ms or 0 for r in records)


def run(command: list[str], result: Path) -> dict[str, Any]:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=170)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(result.read_text().splitlines()[-1])
    assert found["completed"] == REQUESTS
    return found


def agree(mine: float, theirs: float) -> None:
    assert abs(mine - theirs) <= AGREES * theirs, f"ours {mine:.3f} ms, theirs {theirs:.3f} ms"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", BEHAVIOURS)
def test_sglang_agrees(name: str, tmp_path: Path) -> None:
    client, result = other_client("SLACKTIER_SGLANG_BENCH"), tmp_path / "sglang.jsonl"
    with misbehaving(BEHAVIOURS[name]) as url:
        theirs = run(
            [
                *client, "--backend", "sglang-oai-chat", "--base-url", url, "--dataset-name", "random-ids",
                "--random-input-len", "16", "--random-output-len", str(TOKENS), "--random-range-ratio", "1",
                "--num-prompts", str(REQUESTS), "--max-concurrency", str(USERS), "--model", "misbehaving",
                "--tokenizer", os.environ["SLACKTIER_BENCH_TOKENIZER"], "--warmup-requests", "0", "--disable-tqdm",
                "--output-file", str(result),
            ],
            result,
        )  # fmt: skip
        tpot, ttft = ours(url, tmp_path / "log")
    agree(tpot, theirs["mean_tpot_ms"])
    agree(ttft, theirs["mean_ttft_ms"])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", BEHAVIOURS)
def test_vllm_agrees(name: str, tmp_path: Path) -> None:
    client, result = other_client("SLACKTIER_VLLM_BENCH"), tmp_path / "vllm.json"
    with misbehaving(BEHAVIOURS[name]) as url:
        theirs = run(
            [
                *client, "--backend", "openai-chat", "--endpoint", "/v1/chat/completions", "--base-url", url,
                "--dataset-name", "random", "--random-input-len", "16", "--random-output-len", str(TOKENS),
                "--num-prompts", str(REQUESTS), "--max-concurrency", str(USERS), "--model", "misbehaving",
                "--tokenizer", os.environ["SLACKTIER_BENCH_TOKENIZER"], "--num-warmups", "0", "--disable-tqdm",
                "--save-result", "--result-dir", str(tmp_path), "--result-filename", result.name,
            ],
            result,
        )  # fmt: skip
        tpot, ttft = ours(url, tmp_path / "log")
    agree(tpot, theirs["mean_tpot_ms"])
    agree(ttft, theirs["mean_ttft_ms"])
