# SPDX-License-Identifier: Apache-2.0
"""What the operator knows of tierd: nothing is decided by half of a sync, and a watch without news is a connection."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import cast

import pytest

from slacktier.api import Change, ChangeType, Kind
from slacktier_operator import tierd_state
from slacktier_operator.tierd_client import TierdClient, TierdError
from slacktier_operator.tierd_state import TierdState


class Watches:
    """Each call is one watch: its events, then the connection breaks; the last one stays open."""

    def __init__(self, *watches: Sequence[Change]) -> None:
        self.left = list(watches)
        self.asked_from: list[int | None] = []

    async def watch(self, version: int | None, opened: Callable[[], None]) -> AsyncIterator[Change]:
        self.asked_from.append(version)
        opened()
        for change in self.left.pop(0):
            yield change
        if not self.left:
            await asyncio.Event().wait()
        raise TierdError("the connection broke")


def sync(version: int, resources: int) -> Change:
    return Change(type=ChangeType.SYNC, version=version, resources=resources)


def put(name: str, version: int) -> Change:
    return Change(type=ChangeType.PUT, kind=Kind.POOLS, name=name, version=version, item={"version": version})


async def follow(watches: Watches) -> tuple[TierdState, list[tuple[bool, list[str]]]]:
    """(the state at the end, what was known at every call that something changed)."""
    seen: list[tuple[bool, list[str]]] = []
    state = TierdState(
        cast(TierdClient, watches), lambda *_: seen.append((state.connected, sorted(state.items[Kind.POOLS])))
    )
    task = asyncio.create_task(state.follow())
    while watches.left:
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.02)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return state, seen


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tierd_state, "_RETRY_S", 0.0)


def test_a_sync_counts_when_it_is_whole_and_is_asked_for_again_when_it_broke_off() -> None:
    watches = Watches([sync(5, 2), put("a", 5)], [sync(5, 2), put("a", 5), put("b", 5), put("c", 6)])
    state, seen = asyncio.run(follow(watches))
    assert watches.asked_from == [None, None]
    assert {tuple(names) for connected, names in seen if connected} == {("a", "b"), ("a", "b", "c")}
    assert state.connected
    assert state.asked.is_set()


def test_what_was_known_stays_until_the_next_sync_is_whole() -> None:
    watches = Watches([sync(5, 1), put("a", 5)], [sync(9, 2), put("b", 9)], [])
    state, _ = asyncio.run(follow(watches))
    assert watches.asked_from == [None, 5, 5]
    assert sorted(state.items[Kind.POOLS]) == ["a"]


def test_a_watch_that_is_open_and_silent_is_a_connection() -> None:
    state, seen = asyncio.run(follow(Watches([sync(5, 0)], [])))
    assert state.connected
    assert [connected for connected, _ in seen] == [True, True, False, True]
