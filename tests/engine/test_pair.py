# SPDX-License-Identifier: Apache-2.0
"""Prefill and decode in two servers, the table replaced in both: the tokens of one stock server."""

from __future__ import annotations

import pair
import pytest
from conftest import Fleet, Regions
from engine_process import RELEASES
from material import tables
from servers import Shape, free_port
from workload import ask, decided, prompts

NEW_TOKENS = 16


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("release", RELEASES)
def test_pair_over_the_tier_answers_as_one_stock_server(
    release: str, fleet: Fleet, regions: dict[str, Regions]
) -> None:
    """A prompt is prefilled as in one server; decode steps may share batches otherwise, so rounding is allowed for."""
    asked, shape, port = prompts(8, seed=21), Shape(overlap=False), free_port()
    with fleet.stock(release, "engram", shape) as stock:
        expected = [ask(stock, prompt, NEW_TOKENS) for prompt in asked]
    roles = [
        fleet.tiered(
            release, "engram", tables(regions["engram"]), shape, ready=False,
            variables=pair.VARIABLES, flags=pair.flags(role, port),
        )
        for role in ("prefill", "decode")
    ]  # fmt: skip
    with pair.serving_pair(*roles, port) as both:
        found = [both.ask(prompt, NEW_TOKENS) for prompt in asked]
        assert all(server.control("/readyz")[0] == 200 for server in (both.prefill, both.decode))
    compared = 0
    for want, got in zip(expected, found, strict=True):
        sure = decided(want)
        assert got.tokens[: len(sure)] == sure
        compared += len(sure)
    print(f"\n{release}: {len(found)} requests through a pair, {compared} tokens compared with one stock server's")
    assert compared > len(found)
