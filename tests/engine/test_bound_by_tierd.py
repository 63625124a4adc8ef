# SPDX-License-Identifier: Apache-2.0
"""A real SGLang server that tierd tells what to read from: bound at the start, and changed while it serves.

Goal: tokens are stock's before, while and after what tierd binds changes, also while ranks read from different places.
Method: a head with its Ray stages each table on disk and in a memory node; two ranks follow its binding, which the test
changes all through a run of requests. Then one rank alone is put on another source with another cache, and stays so: a
row's bytes are the same from wherever they come, so ranks need not change in the same step. Every row is compared with
the checkpoint's.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest
from conftest import Fleet, Regions
from control import TOKEN, bind, counted, sources_of
from engine_process import RELEASES
from material import LAYERS, tables
from servers import Server, Shape
from tierd_processes import Tierd, wait_until
from workload import SOME, Answer, converse, differences

from slacktier import metrics

INSTANCE: Final = "engine"
RANKS: Final = 2
SHAPE: Final = Shape(tp=RANKS)
CACHE_ROWS: Final = 512
PUSHES_MIN: Final = 4


@pytest.fixture
def tierd(checkpoints: dict[str, Path], tmp_path: Path) -> Iterator[Tierd]:
    """A head that has each of the model's tables on disk and in memory."""
    head = Tierd(tmp_path)
    try:
        disk = tmp_path / "disk"
        disk.mkdir()
        members = [{"name": "d0", "path": str(disk)}]
        head.put("pools/disk", {"tier": "nvme", "members": members, "read": {"a_us": 300, "b_us": 3}})
        head.put("pools/mem", {"tier": "tcp", "members": [{"name": "m0"}], "read": {"a_us": 200, "b_us": 0.1}})
        for layer in LAYERS["engram"]:
            head.put(f"tables/t{layer}", {"layer_id": layer, "checkpoint": {"path": str(checkpoints["engram"])}})
            for pool in ("disk", "mem"):
                head.put(f"replicas/t{layer}-{pool}", {"table": f"t{layer}", "pool": pool})
        head.wait_complete(*(f"t{layer}-{pool}" for layer in LAYERS["engram"] for pool in ("disk", "mem")))
        yield head
    finally:
        head.end()


def push(tierd: Tierd, pools: tuple[str, ...], cache_rows: int) -> None:
    """Bind the instance to these pools' replicas, in this order."""
    layers = [
        {"layer_id": layer, "replicas": [f"t{layer}-{pool}" for pool in pools], "cache_rows": cache_rows}
        for layer in LAYERS["engram"]
    ]
    tierd.put(f"bindings/{INSTANCE}", {"slo_pct": 400, "layers": layers})


def settings(tierd: Tierd) -> dict[str, Any]:
    needs = [
        {"layer_id": layer, "table": f"t{layer}", "window_ms": 5.0, "misses": [{"cache_rows": 0, "pages": 24}]}
        for layer in LAYERS["engram"]
    ]
    return {
        "check": {"rate": 1.0},
        "tierd": {
            "url": tierd.head.url, "token_file": str(tierd.token_file), "instance": INSTANCE, "report_s": 1,
            "needs": {"step_ms": 20, "ranks": RANKS, "slo_pct": 400, "cache_rows": 4 * CACHE_ROWS, "layers": needs},
        },
    }  # fmt: skip


@pytest.mark.timeout(1200)
def test_binding_pushed_while_two_ranks_serve_changes_no_token(
    fleet: Fleet, tierd: Tierd, regions: dict[str, Regions], tmp_path: Path
) -> None:
    release, token_file = RELEASES[1], tmp_path / "endpoint-token"
    token_file.write_text(TOKEN)
    with fleet.stock(release, "engram", SHAPE) as stock:
        expected = converse(stock, SOME)
    push(tierd, ("disk", "mem"), CACHE_ROWS)
    with (
        fleet.tiered(release, "engram", [], SHAPE, settings=settings(tierd), token=token_file) as server,
        ThreadPoolExecutor(1) as pool,
    ):
        assert all_read_from(server, ".region")
        pushes = push_while(tierd, server, running := pool.submit(converse, server, SOME))
        found = running.result()
        status = tierd.wait_in_force(INSTANCE)
        # Rank 0 alone elsewhere, without a cache: the other one stays where tierd has put it.
        bind(server, {"tables": tables(regions["engram"], tier="dram")})
        apart = [sources_of(server, rank) for rank in range(RANKS)]
        found_apart = converse(server, SOME)
        checked = [counted(server, metrics.ROWS_CHECKED, rank) for rank in range(RANKS)]
        wrong = [counted(server, metrics.ROWS_MISMATCHED, rank) for rank in range(RANKS)]
    print(f"\n{release} {SHAPE}: {SOME.requests} requests, {pushes} changes pushed meanwhile; apart: {apart}")
    print(f"rows checked per rank {checked}, wrong {wrong}; tierd says: {[each['tier'] for each in status['layers']]}")
    assert differences(expected, found) == []
    assert differences(expected, found_apart) == []
    assert pushes >= PUSHES_MIN
    assert apart[0] != apart[1]
    assert min(checked) > 0
    assert sum(wrong) == 0


def all_read_from(server: Server, marker: str) -> bool:
    return all(marker in label for rank in range(RANKS) for label in sources_of(server, rank).values())


def push_while(tierd: Tierd, server: Server, running: Future[dict[str, list[Answer]]]) -> int:
    """Change places and cache sizes until the requests are answered; each change is waited for on every rank."""
    places = itertools.cycle([(("mem", "disk"), 0), (("disk", "mem"), 2 * CACHE_ROWS), (("mem",), CACHE_ROWS)])
    for count, (pools, cache_rows) in enumerate(places):
        if running.done():
            return count
        push(tierd, pools, cache_rows)
        marker = ".region" if pools[0] == "disk" else "127.0.0.1:"
        wait_until(lambda marker=marker: all_read_from(server, marker), f"{pools[0]} on every rank")  # type: ignore[misc]
        time.sleep(0.2)
    raise AssertionError("places never end")
