# SPDX-License-Identifier: Apache-2.0
"""Objects that went while no watch was open, or while the operator was not there: the next listing finds them out."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, cast

import pytest

from slacktier.api import Kind
from slacktier_operator.context import Context
from slacktier_operator.kube import Kube
from slacktier_operator.names import Key, instance_name, owner_of, replica_name, table_name
from slacktier_operator.reconciler import Reconciler
from slacktier_operator.settings import OperatorSettings
from slacktier_operator.store import Store
from slacktier_operator.tierd_client import TierdClient
from slacktier_operator.tierd_state import TierdState
from slacktier_operator.work_queue import WorkQueue


class Listing:
    """The API server's list: one pod is there, and one comes back while it is asked."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def list_all(self, kind: str) -> list[dict[str, Any]]:
        if kind != "Pod":
            return []
        self.store.put("Pod", pod("anew", version=2))
        return [pod("there")]


def pod(name: str, version: int = 1) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default", "resourceVersion": str(version), "uid": f"{name}{version}"}
    return {"metadata": metadata, "spec": {}, "status": {}}


async def one_resync() -> tuple[Store, list[Key]]:
    nobody, store = cast(TierdClient, None), Store()
    for name in ("gone", "there", "anew"):
        store.put("Pod", pod(name))
    context = Context(
        OperatorSettings("http://tierd"), cast(Kube, Listing(store)), nobody, TierdState(nobody, lambda *_: None),
        store, WorkQueue(),
    )  # fmt: skip
    seen = []

    context.state.items[Kind.BINDINGS] = {
        "default.before": {"spec": {"decided_by": "operator"}}, "default.theirs": {"spec": {"decided_by": "user"}},
    }  # fmt: skip

    async def handler(_: Context, key: Key) -> None:
        seen.append(key)

    reconciler = Reconciler(context, {"Pod": handler})
    tasks = [asyncio.create_task(reconciler.resync(0.01)), asyncio.create_task(reconciler.work())]
    while len(set(seen)) < 4:
        await asyncio.sleep(0.005)
    for task in tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    return store, seen


def test_what_went_unseen_is_forgotten_and_looked_at_once_more() -> None:
    store, seen = asyncio.run(asyncio.wait_for(one_resync(), 5))
    assert store.keys("Pod") == {Key("default", "there"), Key("default", "anew")}
    names = ("gone", "there", "anew", "before")
    assert set(seen) == {Key("default", name) for name in names}


def test_first_look_knows_all_before_anything_is_decided_and_keeps_what_is_newer() -> None:
    nobody, store = cast(TierdClient, None), Store()
    context = Context(
        OperatorSettings("http://tierd"), cast(Kube, Listing(store)), nobody, TierdState(nobody, lambda *_: None),
        store, WorkQueue(),
    )  # fmt: skip

    async def handler(_: Context, key: Key) -> None:
        raise AssertionError(key)

    asyncio.run(Reconciler(context, {"Pod": handler}).first_look())
    assert store.keys("Pod") == {Key("default", "there"), Key("default", "anew")}
    assert len(context.queue) == 2


@pytest.mark.parametrize(
    ("kind", "name", "owner"),
    [
        (Kind.POOLS, "memory", ("TierPool", Key("", "memory"))),
        (Kind.TABLES, table_name(Key("ns", "a.b"), 14), ("LookupTable", Key("ns", "a.b"))),
        (Kind.TABLES, "by-hand", None),
        (Kind.REPLICAS, replica_name(Key("ns", "tpl"), 1, "pool", "m.x"), ("TablePlacement", Key("ns", "tpl"))),
        (Kind.REPLICAS, "by-hand", None),
        (Kind.BINDINGS, instance_name(Key("ns", "pod.0")), ("Pod", Key("ns", "pod.0"))),
        (Kind.INSTANCES, "ns.pod", None),
    ],
)
def test_owner_is_read_from_the_name_that_was_made_of_it(kind: Kind, name: str, owner: tuple[str, Key] | None) -> None:
    assert owner_of(kind, name) == owner
