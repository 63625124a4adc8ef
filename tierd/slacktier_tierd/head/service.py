# SPDX-License-Identifier: Apache-2.0
"""What the API's calls do: checks across resources, the store, and the world that decisions look at.

One event loop owns all of it. The loop that makes what is wanted so is reconcile.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from slacktier.api import (
    Access,
    BindingSpec,
    BindingStatus,
    Condition,
    ConditionStatus,
    InstanceSpec,
    InstanceStatus,
    Kind,
    LayerFigures,
    LayerInForce,
    MeasurementSpec,
    MeasurementStatus,
    Part,
    PoolSpec,
    ReplicaSpec,
    ReplicaState,
    ReplicaStatus,
    Report,
    SeedAccess,
    SeedPublic,
    SeedSpec,
    TableSpec,
)
from slacktier.errors import ConfigError, SlackTierError
from slacktier_tierd.head.access import ReplicaPlace, make_access
from slacktier_tierd.head.audit import audit
from slacktier_tierd.head.placing import (
    Copy,
    MemberFacts,
    PlaceId,
    RefusedError,
    World,
    check_sharing,
    decide_binding,
    in_force,
    predicted,
)
from slacktier_tierd.head.settings import Decider, HeadSettings
from slacktier_tierd.head.store import Entry, Store
from slacktier_tierd.head.tokens import Principal

S = TypeVar("S", bound=Part)


class ConflictError(SlackTierError):
    """The spec contradicts what is there."""


class NotFoundError(SlackTierError):
    """No such resource."""


def spec_of(entry: Entry | None, kind: type[S]) -> S | None:
    """An entry's spec as what it is."""
    return entry.spec if entry is not None and isinstance(entry.spec, kind) else None


def condition(
    kind: str, value: bool, reason: str, message: str, before: tuple[Condition, ...], now_s: float
) -> Condition:
    """A condition whose `since_s` moves only when its status does."""
    status = ConditionStatus.TRUE if value else ConditionStatus.FALSE
    old = next((each for each in before if each.type == kind), None)
    since = old.since_s if old is not None and old.status is status else now_s
    return Condition(type=kind, status=status, reason=reason, message=message[:4096], since_s=since)


class Service:
    """The head's state and what may be done to it. changed: set whenever the reconciler has something to look at."""

    def __init__(self, store: Store, settings: HeadSettings, *, now_s: Callable[[], float] = time.time) -> None:
        self.store, self.settings, self.now_s = store, settings, now_s
        self.world = World()
        self.places: dict[str, ReplicaPlace] = {}
        self.changed = asyncio.Event()
        self.sentences: dict[str, dict[int, str]] = {}
        self._accesses: dict[str, Access] = {}
        for kind in Kind:
            for entry in list(store.all(kind)):
                self._learn(kind, entry.name, entry.spec)

    def _learn(self, kind: Kind, name: str, spec: Part | None) -> None:
        """Keep the world as the store is; None: the resource is gone."""
        world = self.world
        if kind is Kind.POOLS:
            _set(world.pools, name, spec, PoolSpec)
            for place in [place for place in world.members if place.pool == name]:
                del world.members[place]
        elif kind is Kind.INSTANCES:
            _set(world.instances, name, spec, InstanceSpec)
            if spec is not None and name in self._accesses:
                self.refresh_access(name)  # which disks it reaches depends on its node
        elif kind is Kind.BINDINGS:
            world.set_binding(name, spec if isinstance(spec, BindingSpec) else None)
            self.refresh_access(name)
        elif kind is Kind.MEASUREMENTS:
            old = self.store.get(kind, name) if spec is None else None
            self._learn_measurement(spec, old)
        elif isinstance(spec, ReplicaSpec) and spec.members and name not in world.copies:
            place = PlaceId(spec.pool, spec.members[0])
            world.set_copy(Copy(name, spec.table, place, ReplicaState.PENDING), name)
        elif spec is None and kind is Kind.REPLICAS:
            self.set_place(name, None)
            world.set_copy(None, name)
        elif spec is None and kind is Kind.TABLES:
            world.tables.pop(name, None)

    def _learn_measurement(self, spec: Part | None, old: Entry | None) -> None:
        if isinstance(spec, MeasurementSpec):
            self.world.measured[PlaceId(spec.pool, spec.member)] = spec.read.read_model()
        elif (gone := spec_of(old, MeasurementSpec)) is not None:
            self.world.measured.pop(PlaceId(gone.pool, gone.member), None)

    def put(self, kind: Kind, name: str, spec: Part, by: Principal | None) -> tuple[Entry, bool]:
        """Make a spec so; returns the entry and whether it is new.

        raises  ConflictError for what contradicts other resources, RefusedError for sharing that is not allowed
        """
        before = self.store.get(kind, name)
        if before is not None and before.spec == spec:
            return before, False
        try:
            self._check(kind, name, spec, before)
        except SlackTierError as exc:
            audit("put", by=by, kind=kind.value, name=name, outcome="refused", why=str(exc))
            raise
        entry, is_new, _ = self.store.put(kind, name, spec)
        self._learn(kind, name, spec)
        audit("put", by=by, kind=kind.value, name=name, outcome="created" if is_new else "changed",
              generation=entry.generation)  # fmt: skip
        self.changed.set()
        return self.store.get(kind, name) or entry, is_new

    def _check(self, kind: Kind, name: str, spec: Part, before: Entry | None) -> None:
        if isinstance(spec, TableSpec):
            if before is not None:
                raise ConflictError(
                    f"table {name}: its source cannot be changed", hint="PUT another table under another name"
                )
        elif isinstance(spec, ReplicaSpec):
            self._check_replica(name, spec, spec_of(before, ReplicaSpec))
        elif isinstance(spec, BindingSpec):
            self._check_binding(name, spec)
        elif isinstance(spec, InstanceSpec) and self.settings.decider is Decider.TIERD:
            self._check_instance(name, spec)

    def _check_replica(self, name: str, spec: ReplicaSpec, before: ReplicaSpec | None) -> None:
        pool = self.world.pools.get(spec.pool)
        if pool is None:
            raise ConflictError(f"replica {name}: no pool {spec.pool!r}")
        if self.store.get(Kind.TABLES, spec.table) is None:
            raise ConflictError(f"replica {name}: no table {spec.table!r}")
        known = {member.name for member in pool.members}
        unknown = [member for member in spec.members if member not in known]
        if unknown:
            raise ConflictError(f"replica {name}: pool {spec.pool!r} has no member {unknown[0]!r}")
        if before is not None and (before.table, before.pool, before.members) != (spec.table, spec.pool, spec.members):
            raise ConflictError(
                f"replica {name}: table, pool and members cannot be changed", hint="DELETE it, then PUT it anew"
            )

    def _check_binding(self, name: str, spec: BindingSpec) -> None:
        for layer in spec.layers:
            for replica in layer.replicas:
                found = spec_of(self.store.get(Kind.REPLICAS, replica), ReplicaSpec)
                if found is None:
                    raise ConflictError(f"binding {name}: layer {layer.layer_id}: no replica {replica!r}")
                table = spec_of(self.store.get(Kind.TABLES, found.table), TableSpec)
                if table is not None and table.layer_id != layer.layer_id:
                    raise ConflictError(
                        f"binding {name}: layer {layer.layer_id}: replica {replica!r} holds layer {table.layer_id}"
                    )
        check_sharing(self.world, name, self.world.places_of(spec))

    def _check_instance(self, name: str, spec: InstanceSpec) -> None:
        """Decide at once if all is known, so that a refusal is the call's answer; else the reconciler decides later."""
        try:
            decide_binding(self.world, name, spec)
        except ConfigError:
            return  # tables that are not known yet
        except RefusedError as exc:
            if exc.is_sharing:
                raise

    def delete(self, kind: Kind, name: str, by: Principal | None) -> bool:
        """Take a resource away; raises ConflictError while others need it."""
        if self.store.get(kind, name) is None:
            return False
        self._check_unused(kind, name)
        old_measurement = kind is Kind.MEASUREMENTS
        if old_measurement:
            self._learn(kind, name, None)
        self.store.delete(kind, name)
        if not old_measurement:
            self._learn(kind, name, None)
        if kind is Kind.INSTANCES:
            self.drop_binding(name)
            self._accesses.pop(name, None)
        audit("delete", by=by, kind=kind.value, name=name, outcome="deleted")
        self.changed.set()
        return True

    def drop_binding(self, name: str) -> None:
        """Take away a binding that tierd made for an instance that is gone."""
        found = spec_of(self.store.get(Kind.BINDINGS, name), BindingSpec)
        if found is not None and found.decided_by == "tierd":
            self.store.delete(Kind.BINDINGS, name)
            self._learn(Kind.BINDINGS, name, None)
        self.store.delete(Kind.SEEDS, name)

    def _check_unused(self, kind: Kind, name: str) -> None:
        if kind is Kind.TABLES:
            users = [copy.name for copy in self.world.copies_of(name)]
            users += [entry.name for entry in self.store.all(Kind.REPLICAS)
                      if (spec := spec_of(entry, ReplicaSpec)) and spec.table == name]  # fmt: skip
        elif kind is Kind.POOLS:
            users = [entry.name for entry in self.store.all(Kind.REPLICAS)
                     if (spec := spec_of(entry, ReplicaSpec)) and spec.pool == name]  # fmt: skip
        elif kind is Kind.REPLICAS:
            users = sorted(self.world.bindings_of(name))
        else:
            return
        if users:
            raise ConflictError(
                f"{kind.value}/{name}: in use by {users[0]}" + (f" and {len(users) - 1} more" if users[1:] else ""),
                hint="DELETE what uses it first",
            )

    def set_copy(self, name: str, place: PlaceId, status: ReplicaStatus) -> None:
        """Note how a replica is, for decisions and for whoever watches it."""
        spec = spec_of(self.store.get(Kind.REPLICAS, name), ReplicaSpec)
        if spec is None:
            return
        copy = Copy(name, spec.table, place, status.state)
        if self.world.copies.get(name) != copy:
            self.world.set_copy(copy, name)
        self.store.set_status(Kind.REPLICAS, name, status)

    def set_place(self, name: str, place: ReplicaPlace | None) -> None:
        """Note where a replica can be read, or that it cannot; whoever is bound to it is told."""
        if self.places.get(name) == place:
            return
        if place is None:
            self.places.pop(name, None)
        else:
            self.places[name] = place
        for binding in self.world.bindings_of(name):
            self.refresh_access(binding)

    def set_member(self, facts: MemberFacts) -> None:
        self.world.members[facts.place] = facts

    def access(self, name: str) -> Access:
        """What an instance is told now; raises NotFoundError for one that nobody has PUT and nobody has bound."""
        found = self._accesses.get(name)
        if found is None:
            if name not in self.world.instances:
                raise NotFoundError(f"instances/{name}: not there", hint=f"PUT /v1/instances/{name} first")
            found = self.refresh_access(name)
        return found

    def refresh_access(self, name: str) -> Access:
        """Make the access anew; its version rises only if it differs."""
        made = make_access(
            name, 0, self.world.instances.get(name), self.world.bindings.get(name), self.places
        )  # fmt: skip
        old = self._accesses.get(name)
        if old is not None and old.model_copy(update={"version": 0}) == made:
            return old
        version = self.store.version + 1 if old is None else max(self.store.version, old.version) + 1
        self._accesses[name] = made.model_copy(update={"version": version})
        self._show_binding(name)
        return self._accesses[name]

    async def wait_access(self, name: str, version: int, wait_s: float) -> Access:
        """The access as soon as its version differs, or when the time is up. One that waits here is not silent."""
        entry = self.store.get(Kind.INSTANCES, name)
        if entry is not None and isinstance(entry.status, InstanceStatus):
            self.store.set_status(Kind.INSTANCES, name, entry.status.model_copy(update={"seen_s": self.now_s()}))
        await self.store.wait_beyond(lambda: self.access(name).version != version, wait_s)
        return self.access(name)

    def report(self, name: str, report: Report) -> None:
        """Note what an instance measured; raises NotFoundError."""
        entry = self.store.get(Kind.INSTANCES, name)
        if entry is None:
            raise NotFoundError(f"instances/{name}: not there", hint=f"PUT /v1/instances/{name} first")
        before = entry.status if isinstance(entry.status, InstanceStatus) else InstanceStatus()
        self.store.set_status(
            Kind.INSTANCES, name, before.model_copy(update={"seen_s": self.now_s(), "report": report})
        )  # fmt: skip
        self._show_binding(name)

    def _show_binding(self, name: str) -> None:
        """A binding's status: what is told, what is in force, what is predicted and what was measured."""
        entry = self.store.get(Kind.BINDINGS, name)
        if entry is None or not isinstance(entry.status, BindingStatus):
            return
        access = self._accesses.get(name)
        instance = self.store.get(Kind.INSTANCES, name)
        report = instance.status.report if instance and isinstance(instance.status, InstanceStatus) else None
        prediction, spec = predicted(self.world, name), self.world.instances.get(name)
        figures = {layer.layer_id: layer for layer in report.layers} if report else {}
        layers = tuple(_measured(layer, figures) for layer in in_force(self.world, name, self.sentences.get(name, {})))
        is_bound = access is not None and access.bound
        shown = entry.status.model_copy(update={
            "observed_generation": entry.generation,
            "access_version": access.version if access else 0,
            "in_force_version": report.in_force if report else 0,
            "slowdown_pct": 100 * prediction.slowdown_ms / spec.step_ms if prediction and spec else 0.0,
            "layers": layers,
            "conditions": (
                condition("TierReady", is_bound, "ReplicasComplete" if is_bound else "ReplicasMissing",
                          "" if is_bound or access is None else access.message, entry.status.conditions, self.now_s()),
                condition("InForce", bool(report and access and report.in_force == access.version),
                          "Applied" if report and access and report.in_force == access.version else "NotApplied",
                          report.message if report else "", entry.status.conditions, self.now_s()),
            ),
        })  # fmt: skip
        self.store.set_status(Kind.BINDINGS, name, shown)

    def decide(self, name: str) -> None:
        """Bind an instance by decide(), with copies that are missing as replicas of their own; notes a refusal."""
        entry = self.store.get(Kind.INSTANCES, name)
        spec = spec_of(entry, InstanceSpec)
        if entry is None or spec is None or not isinstance(entry.status, InstanceStatus):
            return
        reason, message, is_accepted = "Accepted", "", True
        try:
            decided = decide_binding(self.world, name, spec)
            for replica, (table, place) in decided.missing.items():
                wanted = ReplicaSpec(table=table, pool=place.pool, members=(place.member,))
                self.put(Kind.REPLICAS, replica, wanted, None)
            self.sentences[name] = dict(decided.sentences)
            self.put(Kind.BINDINGS, name, decided.binding, None)
        except RefusedError as exc:
            reason, is_accepted = "SharingRefused" if exc.is_sharing else "DoesNotFit", False
            message = f"{exc}; {exc.hint}" if exc.hint else str(exc)
        except SlackTierError as exc:
            reason, message, is_accepted = "TableUnknown", str(exc), False
        now = condition("PlanAccepted", is_accepted, reason, message, entry.status.conditions, self.now_s())
        self.store.set_status(
            Kind.INSTANCES, name,
            entry.status.model_copy(update={"observed_generation": entry.generation, "conditions": (now,)}),
        )  # fmt: skip

    def seed_access(self, name: str, asked_by: Principal) -> SeedAccess:
        """A prefill instance's seed server, told to bound instances; raises NotFoundError or ConflictError."""
        entry = self.store.get(Kind.SEEDS, name)
        spec = spec_of(entry, SeedSpec)
        if entry is None or spec is None:
            raise NotFoundError(f"seeds/{name}: not there")
        if asked_by.name != "*" and asked_by.name not in self.world.bindings:
            raise ConflictError(f"instance {asked_by.name} is not bound: seed servers are told to bound instances only")
        return SeedAccess(instance=name, version=entry.version, seed=spec)

    def set_measurement_status(self, name: str, drift: float | None) -> None:
        entry = self.store.get(Kind.MEASUREMENTS, name)
        if entry is not None:
            self.store.set_status(
                Kind.MEASUREMENTS, name,
                MeasurementStatus(observed_generation=entry.generation, measured_s=entry.created_s, drift=drift),
            )  # fmt: skip


def _measured(layer: LayerInForce, figures: dict[int, LayerFigures]) -> LayerInForce:
    found = figures.get(layer.layer_id)
    if found is None:
        return layer
    asked = found.hits + found.repeats + found.misses
    return layer.model_copy(update={
        "hit_rate": (found.hits + found.repeats) / asked if asked else None,
        "measured_read_ms": found.read_us_mean / 1000, "measured_stall_ms": found.stall_us_mean / 1000,
    })  # fmt: skip


def _set(into: dict[str, S], name: str, spec: Part | None, kind: type[S]) -> None:
    if isinstance(spec, kind):
        into[name] = spec
    else:
        into.pop(name, None)


def public_spec(kind: Kind) -> Callable[[Part], Part] | None:
    """What others may see of a spec that holds a secret."""
    if kind is Kind.SEEDS:
        return lambda spec: SeedPublic(layers=spec.layers) if isinstance(spec, SeedSpec) else spec
    return None


__all__ = ["ConflictError", "NotFoundError", "Service", "condition", "public_spec", "spec_of"]
