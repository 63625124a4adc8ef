# SPDX-License-Identifier: Apache-2.0
"""The resources that the head knows: specs in SQLite, all of it in memory, and the log of changes that watches read.

What is wanted (specs) and what must be remembered (facts, memory nodes' tokens among them) are durable before a call
returns. Statuses are observed anew after a restart, and regions' superblocks are the truth about copies, so statuses
are never written down. One thread owns a store.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from slacktier.api import KINDS, ChangeType, Kind, Part
from slacktier.errors import ConfigError, ContractError

SCHEMA_VERSION: Final = 1
CHANGES_KEPT: Final = 10_000
# Versions are reserved in blocks, so that they rise across restarts without a write per change of a status.
_VERSIONS_RESERVED: Final = 100_000
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS specs (
    kind TEXT NOT NULL, name TEXT NOT NULL, generation INTEGER NOT NULL, created_s REAL NOT NULL, spec TEXT NOT NULL,
    PRIMARY KEY (kind, name)
) STRICT;
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One resource; `encoded` is its JSON as a GET answers it, made when it is first asked for."""

    kind: Kind
    name: str
    version: int
    generation: int
    created_s: float
    spec: Part
    status: Part
    _encoded: list[bytes] = field(default_factory=list, compare=False, repr=False)

    def encoded(self, public: Callable[[Part], Part] | None = None) -> bytes:
        """JSON bytes; `public` turns a spec with secrets into what others may see, the same on every call."""
        if not self._encoded:
            shown = public(self.spec) if public else self.spec
            head = json.dumps(
                {"kind": self.kind.value, "name": self.name, "version": self.version, "generation": self.generation,
                 "created_s": self.created_s}
            )  # fmt: skip
            parts = (
                head[:-1],
                ', "spec": ',
                shown.model_dump_json(),
                ', "status": ',
                self.status.model_dump_json(),
                "}",
            )
            self._encoded.append("".join(parts).encode())
        return self._encoded[0]


@dataclass(frozen=True, slots=True)
class LoggedChange:
    version: int
    type: ChangeType
    kind: Kind
    name: str


class Store:
    """All resources. path: the database file, or None for one that lives in memory only."""

    def __init__(self, path: Path | None, *, now_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._entries: dict[Kind, dict[str, Entry]] = {kind: {} for kind in Kind}
        self._names: dict[Kind, list[str]] = {kind: [] for kind in Kind}
        self._kind_versions: dict[Kind, int] = dict.fromkeys(Kind, 0)
        self._changes: deque[LoggedChange] = deque(maxlen=CHANGES_KEPT)
        self._waiters: set[asyncio.Event] = set()
        self._database = _open(path)
        self.version = self._start_version()
        self._reserved = self.version
        self._oldest = self.version  # a watch can go on from here or later
        self._load()

    def _start_version(self) -> int:
        row = self._database.execute("SELECT value FROM meta WHERE key = 'versions_reserved'").fetchone()
        return int(row[0]) if row else 0

    def _load(self) -> None:
        rows = self._database.execute("SELECT kind, name, generation, created_s, spec FROM specs ORDER BY kind, name")
        for kind_text, name, generation, created_s, spec_text in rows.fetchall():
            kind = Kind(kind_text)
            try:
                spec = KINDS[kind].spec.model_validate_json(spec_text)
            except ValidationError as exc:
                raise ContractError(
                    f"state: {kind_text}/{name} cannot be read: {exc.errors()[0]['msg']}",
                    hint="it was written by another version; move the state file away and PUT what is wanted again",
                ) from exc
            version = self._next_version()
            self._entries[kind][name] = Entry(
                kind, name, version, generation, created_s, spec, KINDS[kind].status()
            )  # fmt: skip
            insort(self._names[kind], name)
            self._kind_versions[kind] = version
        self._oldest = self.version

    def _next_version(self) -> int:
        self.version += 1
        if self.version > self._reserved:
            self._reserved = self.version + _VERSIONS_RESERVED
            with self._database:
                self._database.execute(
                    "INSERT INTO meta VALUES ('versions_reserved', ?) ON CONFLICT (key) DO UPDATE SET value = ?",
                    (str(self._reserved), str(self._reserved)),
                )
        return self.version

    def get(self, kind: Kind, name: str) -> Entry | None:
        return self._entries[kind].get(name)

    def count(self, kind: Kind) -> int:
        return len(self._entries[kind])

    def all(self, kind: Kind) -> Iterator[Entry]:
        """Entries of a kind, in no order; do not change the kind meanwhile."""
        return iter(self._entries[kind].values())

    def page(self, kind: Kind, *, after: str, limit: int) -> tuple[list[Entry], str | None]:
        """Entries in order of names behind `after`, and the name to go on after."""
        names = self._names[kind]
        first = bisect_right(names, after) if after else 0
        chosen = names[first : first + limit]
        more = first + limit < len(names)
        return [self._entries[kind][name] for name in chosen], chosen[-1] if more and chosen else None

    def put(self, kind: Kind, name: str, spec: Part) -> tuple[Entry, bool, bool]:
        """Make the spec so, durably; returns the entry, whether it is new, and whether anything changed."""
        found = self._entries[kind].get(name)
        if found is not None and found.spec == spec:
            return found, False, False
        generation = found.generation + 1 if found else 1
        created_s = found.created_s if found else self._now_s()
        with self._database:
            self._database.execute(
                "INSERT OR REPLACE INTO specs VALUES (?, ?, ?, ?, ?)",
                (kind.value, name, generation, created_s, spec.model_dump_json()),
            )
        status = found.status if found else KINDS[kind].status()
        entry = Entry(kind, name, self._next_version(), generation, created_s, spec, status)
        self._keep(entry)
        return entry, found is None, True

    def set_status(self, kind: Kind, name: str, status: Part) -> bool:
        """Note what is so; False if nothing changed or the resource is gone."""
        found = self._entries[kind].get(name)
        if found is None or found.status == status:
            return False
        self._keep(replace(found, version=self._next_version(), status=status, _encoded=[]))
        return True

    def put_observed(self, kind: Kind, name: str, spec: Part, status: Part) -> None:
        """A resource that only the head writes (tasks): not durable."""
        found = self._entries[kind].get(name)
        created_s = found.created_s if found else self._now_s()
        self._keep(Entry(kind, name, self._next_version(), 1, created_s, spec, status))

    def _keep(self, entry: Entry) -> None:
        if entry.name not in self._entries[entry.kind]:
            insort(self._names[entry.kind], entry.name)
        self._entries[entry.kind][entry.name] = entry
        self._log(ChangeType.PUT, entry.kind, entry.name, entry.version)

    def delete(self, kind: Kind, name: str) -> bool:
        """Take a resource away, durably; False if it was not there."""
        if name not in self._entries[kind]:
            return False
        with self._database:
            self._database.execute("DELETE FROM specs WHERE kind = ? AND name = ?", (kind.value, name))
        del self._entries[kind][name]
        names = self._names[kind]
        del names[bisect_left(names, name)]
        self._log(ChangeType.DELETE, kind, name, self._next_version())
        return True

    def _log(self, change: ChangeType, kind: Kind, name: str, version: int) -> None:
        if len(self._changes) == CHANGES_KEPT:
            self._oldest = self._changes[0].version
        self._changes.append(LoggedChange(version, change, kind, name))
        self._kind_versions[kind] = version
        for waiter in self._waiters:
            waiter.set()

    def kind_version(self, kind: Kind) -> int:
        """Version of the newest change of that kind."""
        return self._kind_versions[kind]

    def changes_since(self, version: int) -> list[LoggedChange] | None:
        """Changes after `version` in order, each resource once; None if the log does not go back so far."""
        if not self._oldest <= version <= self.version:
            return None
        newest: dict[tuple[Kind, str], LoggedChange] = {}
        for change in reversed(self._changes):
            if change.version <= version:
                break
            newest.setdefault((change.kind, change.name), change)
        return sorted(newest.values(), key=lambda change: change.version)

    async def wait_beyond(self, version: Callable[[], bool], timeout_s: float) -> bool:
        """Until `version()` says that there is something newer, or the time is up."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        event = asyncio.Event()
        self._waiters.add(event)
        try:
            while not version():
                event.clear()
                left = deadline - loop.time()
                if left <= 0:
                    return False
                try:
                    await asyncio.wait_for(event.wait(), left)
                except TimeoutError:
                    return version()
            return True
        finally:
            self._waiters.discard(event)

    def secret(self, name: str, make: Callable[[], str]) -> str:
        """A secret that lasts as long as the state; made when it is first asked for."""
        found = self.fact(name)
        if found is None:
            found = make()
            self.set_fact(name, found)
        return found

    def fact(self, name: str) -> str | None:
        """Something that the head must remember and that is no spec; None if it was never noted."""
        row = self._database.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return str(row[0]) if row else None

    def set_fact(self, name: str, value: str | None) -> None:
        """Note a fact durably; None forgets it."""
        with self._database:
            if value is None:
                self._database.execute("DELETE FROM facts WHERE name = ?", (name,))
            else:
                self._database.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    def close(self) -> None:
        self._database.close()


def _open(path: Path | None) -> sqlite3.Connection:
    """The database, made where there is none and held by this process alone; raises ConfigError."""
    try:
        database = sqlite3.connect(":memory:" if path is None else path, timeout=0.5)
        if path is not None:
            path.chmod(0o600)  # it holds memory nodes' tokens
            database.execute("PRAGMA locking_mode = EXCLUSIVE")
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
        (found,) = database.execute("PRAGMA user_version").fetchone()
        if found not in (0, SCHEMA_VERSION):
            raise ConfigError(f"state {path}: schema {found}, expected {SCHEMA_VERSION}")
        with database:
            database.executescript(_SCHEMA)
            database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    except (sqlite3.Error, OSError) as exc:
        hint = "another head has it open" if "locked" in str(exc) else ""
        raise ConfigError(f"state {path}: {exc}", hint=hint) from exc
    return database
