# SPDX-License-Identifier: Apache-2.0
"""The head's store: idempotent, durable, and a log of changes that a watch can follow."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from slacktier.api import ChangeType, Kind, PoolSpec, PoolStatus, TableSpec
from slacktier.errors import ConfigError, ContractError
from slacktier_tierd.head import store as store_module
from slacktier_tierd.head.store import Store

POOL = PoolSpec.model_validate({"tier": "nvme", "members": [{"name": "a", "path": "/a"}]})
OTHER = PoolSpec.model_validate({"tier": "nvme", "members": [{"name": "b", "path": "/b"}]})
TABLE = TableSpec.model_validate({"layer_id": 1, "synthetic": {"shape": "v41", "rows": 10}})


def test_same_spec_again_changes_nothing() -> None:
    store = Store(None)
    first, is_new, changed = store.put(Kind.POOLS, "p", POOL)
    again, is_new_again, changed_again = store.put(Kind.POOLS, "p", POOL)
    assert (is_new, changed, is_new_again, changed_again) == (True, True, False, False)
    assert again is first
    changed_entry, _, _ = store.put(Kind.POOLS, "p", OTHER)
    assert (changed_entry.generation, changed_entry.version > first.version) == (2, True)


def test_specs_and_facts_survive_a_restart_and_versions_rise(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.sqlite")
    store.put(Kind.POOLS, "p", POOL)
    store.set_status(Kind.POOLS, "p", PoolStatus(observed_generation=1))
    store.set_fact("assigned:r", "m")
    version = store.version
    store.close()
    again = Store(tmp_path / "s.sqlite")
    entry = again.get(Kind.POOLS, "p")
    assert entry is not None
    assert (entry.spec, entry.status, entry.generation) == (POOL, PoolStatus(), 1)
    assert again.fact("assigned:r") == "m"
    assert again.version > version
    again.close()


def test_second_head_on_one_state_file_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.sqlite")
    with pytest.raises(ConfigError, match="locked"):
        Store(tmp_path / "s.sqlite")
    store.close()


def test_state_of_another_version_is_told(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.sqlite")
    store.put(Kind.POOLS, "p", POOL)
    with store._database:
        store._database.execute('UPDATE specs SET spec = \'{"tier": "tape"}\'')
    store.close()
    with pytest.raises(ContractError, match="pools/p cannot be read"):
        Store(tmp_path / "s.sqlite")


def test_damaged_state_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s.sqlite").write_bytes(b"not a database at all, but long enough to be looked at" * 100)
    with pytest.raises(ConfigError, match="not a database"):
        Store(tmp_path / "s.sqlite")


def test_pages_come_in_order_of_names() -> None:
    store = Store(None)
    for name in ("c", "a", "b"):
        store.put(Kind.TABLES, name, TABLE)
    first, following = store.page(Kind.TABLES, after="", limit=2)
    assert ([entry.name for entry in first], following) == (["a", "b"], "b")
    rest, end = store.page(Kind.TABLES, after="b", limit=2)
    assert ([entry.name for entry in rest], end) == (["c"], None)


def test_changes_name_each_resource_once_and_in_order() -> None:
    store = Store(None)
    start = store.version
    store.put(Kind.TABLES, "a", TABLE)
    store.put(Kind.POOLS, "p", POOL)
    store.set_status(Kind.POOLS, "p", PoolStatus(observed_generation=1))
    store.delete(Kind.TABLES, "a")
    changes = store.changes_since(start)
    assert changes is not None
    assert [(change.type, change.name) for change in changes] == [(ChangeType.PUT, "p"), (ChangeType.DELETE, "a")]
    assert store.changes_since(store.version) == []
    assert store.changes_since(store.version + 1) is None


def test_version_older_than_the_log_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "CHANGES_KEPT", 4)
    store = Store(None)
    store._changes = type(store._changes)(maxlen=4)
    for at in range(9):
        store.put(Kind.TABLES, f"t{at}", TABLE)
    assert store.changes_since(2) is None
    recent = store.changes_since(store.version - 2)
    assert recent is not None
    assert [change.name for change in recent] == ["t7", "t8"]


def test_waiting_ends_with_the_change_that_is_waited_for() -> None:
    async def run() -> tuple[bool, bool]:
        store = Store(None)
        version = store.version
        waiting = asyncio.ensure_future(store.wait_beyond(lambda: store.version > version, 5.0))
        await asyncio.sleep(0)
        store.put(Kind.TABLES, "a", TABLE)
        return await waiting, await store.wait_beyond(lambda: False, 0.01)

    assert asyncio.run(run()) == (True, False)
