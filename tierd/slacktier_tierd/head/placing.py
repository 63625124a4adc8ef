# SPDX-License-Identifier: Apache-2.0
"""Where an instance's layers are read from, and what that does to others. Pure: no clock, no I/O, no store.

A device of the window rule is one member of one pool. An instance counts on the devices that its layers read first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from slacktier.api import BindingSpec, InstanceSpec, LayerBinding, LayerInForce, PoolSpec, ReplicaState
from slacktier.errors import ConfigError, SlackTierError
from slacktier.tiers import REMOTE_TIERS, Tier
from slacktier.window import Device, Layer, MissCurve, Place, Prediction, Problem, ReadModel, decide, predict

# Remote places without a copy that are offered to one decision: the ones with the fewest users.
_EMPTY_REMOTE_MAX: Final = 8
_FALLBACKS_MAX: Final = 4


class PlaceId(NamedTuple):
    """One member of one pool."""

    pool: str
    member: str

    def __str__(self) -> str:
        return f"{self.pool}/{self.member}"


@dataclass(frozen=True, slots=True)
class TableFacts:
    """What a decision needs to know of a table."""

    layer_id: int
    row_count: int
    row_bytes: int


@dataclass(frozen=True, slots=True)
class Copy:
    """A replica as it is. A striped one counts on its first member."""

    name: str
    table: str
    place: PlaceId
    state: ReplicaState


@dataclass(frozen=True, slots=True)
class MemberFacts:
    """A place as it is; node "" is the head's own."""

    place: PlaceId
    node: str
    is_ready: bool
    free_bytes: int


class RefusedError(SlackTierError):
    """A binding that is not made; `details` has the numbers, `is_sharing` whether others are the reason."""

    def __init__(self, message: str, *, is_sharing: bool, details: Mapping[str, object], hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.is_sharing = is_sharing
        self.details = dict(details)


class World:
    """What the head knows, indexed for decisions; the head keeps it up to date change by change."""

    def __init__(self) -> None:
        self.pools: dict[str, PoolSpec] = {}
        self.tables: dict[str, TableFacts] = {}
        self.copies: dict[str, Copy] = {}
        self.members: dict[PlaceId, MemberFacts] = {}
        self.measured: dict[PlaceId, ReadModel] = {}
        self.instances: dict[str, InstanceSpec] = {}
        self.bindings: dict[str, BindingSpec] = {}
        self._users: dict[PlaceId, set[str]] = {}
        self._used: dict[str, frozenset[PlaceId]] = {}
        self._copies_of: dict[str, set[str]] = {}
        self._bindings_of: dict[str, set[str]] = {}

    def set_copy(self, copy: Copy | None, name: str) -> None:
        """Note a replica; None: it is gone."""
        old = self.copies.pop(name, None)
        if old is not None:
            self._copies_of[old.table].discard(name)
        if copy is not None:
            self.copies[name] = copy
            self._copies_of.setdefault(copy.table, set()).add(name)
        if old is None or copy is None or old.place != copy.place:
            for binding in self.bindings_of(name):
                self._index(binding)

    def bindings_of(self, replica: str) -> frozenset[str]:
        """The bindings that name a replica, first or as a fallback."""
        return frozenset(self._bindings_of.get(replica, ()))

    def copies_of(self, table: str) -> list[Copy]:
        return [self.copies[name] for name in sorted(self._copies_of.get(table, ()))]

    def set_binding(self, name: str, spec: BindingSpec | None) -> None:
        """Note a binding; None: it is gone."""
        old = self.bindings.pop(name, None)
        for replica in _named(old):
            self._bindings_of[replica].discard(name)
        if spec is not None:
            self.bindings[name] = spec
        for replica in _named(spec):
            self._bindings_of.setdefault(replica, set()).add(name)
        self._index(name)

    def _index(self, name: str) -> None:
        for place in self._used.pop(name, frozenset()):
            self._users[place].discard(name)
        spec = self.bindings.get(name)
        if spec is None:
            return
        self._used[name] = self.places_of(spec)
        for place in self._used[name]:
            self._users.setdefault(place, set()).add(name)

    def places_of(self, spec: BindingSpec) -> frozenset[PlaceId]:
        """The places that a binding's layers read first."""
        return frozenset(
            self.copies[layer.replicas[0]].place for layer in spec.layers if layer.replicas[0] in self.copies
        )

    def users(self, place: PlaceId) -> set[str]:
        return self._users.get(place, set())

    def read_model(self, place: PlaceId) -> ReadModel | None:
        """As measured there, else as the pool says."""
        pool = self.pools.get(place.pool)
        given = pool.read.read_model() if pool is not None and pool.read is not None else None
        return self.measured.get(place, given)


def _named(spec: BindingSpec | None) -> set[str]:
    return {replica for layer in spec.layers for replica in layer.replicas} if spec else set()


def _layers(world: World, spec: InstanceSpec) -> tuple[Layer, ...]:
    layers = []
    for need in spec.layers:
        facts = world.tables.get(need.table)
        if facts is None:
            raise ConfigError(f"layer {need.layer_id}: no table {need.table!r}, or its source has not been read yet")
        if facts.layer_id != need.layer_id:
            raise ConfigError(f"layer {need.layer_id}: table {need.table!r} is layer {facts.layer_id}'s")
        curve = MissCurve(tuple((point.cache_rows, point.pages) for point in need.misses))
        layers.append(Layer(need.layer_id, need.window_ms, curve, facts.row_count, facts.row_bytes, need.tiers))
    return tuple(layers)


def _device(world: World, place: PlaceId, name: str, *, tables: Iterable[str] = ()) -> Device | None:
    """A place as a device of the rule, this instance among its users; None where no read model is known.

    tables  whose copies there do not count against its capacity
    """
    read, pool = world.read_model(place), world.pools.get(place.pool)
    if read is None or pool is None:
        return None
    facts = world.members.get(place)
    own = {copy.table for table in tables for copy in world.copies_of(table) if copy.place == place}
    held = sum(_table_bytes(world.tables[table]) for table in own if table in world.tables)
    return Device(
        str(place), pool.tier, read, units=pool.units, instances=len(world.users(place) - {name}) + 1,
        capacity_bytes=None if facts is None else facts.free_bytes + held, reads_per_s=pool.reads_per_s,
        cost_per_gib=pool.cost_per_gib,
    )  # fmt: skip


def _table_bytes(facts: TableFacts) -> int:
    return Layer(facts.layer_id, 0.0, MissCurve.flat(0), facts.row_count, facts.row_bytes).table_bytes


def _candidates(world: World, name: str, spec: InstanceSpec) -> list[PlaceId]:
    """Places that this instance could read from: those on its node, those with a copy, and the emptiest others."""
    holding = {
        copy.place
        for need in spec.layers
        for copy in world.copies_of(need.table)
        if copy.state is not ReplicaState.FAILED
    }
    chosen, empty = [], []
    for place, facts in world.members.items():
        pool = world.pools.get(place.pool)
        if pool is None or not facts.is_ready:
            continue
        if pool.tier not in REMOTE_TIERS:
            if facts.node == spec.node:
                chosen.append(place)
        elif place in holding:
            chosen.append(place)
        else:
            empty.append(place)
    empty.sort(key=lambda place: (len(world.users(place) - {name}), place))
    return sorted(chosen) + empty[:_EMPTY_REMOTE_MAX]


def _problem(spec: InstanceSpec, layers: tuple[Layer, ...], devices: tuple[Device, ...]) -> Problem:
    return Problem(
        layers=layers, devices=devices, step_ms=spec.step_ms, ranks=spec.ranks, s_ms=spec.s_ms, kappa_ms=spec.kappa_ms,
        slo_pct=spec.slo_pct, cache_rows=spec.cache_rows,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Decided:
    """A binding that decide() chose; missing: copies to be made first, by replica name."""

    binding: BindingSpec
    missing: Mapping[str, tuple[str, PlaceId]]
    sentences: Mapping[int, str]


def replica_name(table: str, place: PlaceId) -> str:
    """What a copy that tierd makes by itself is called."""
    return f"{table}.{place.pool}.{place.member}"


def decide_binding(world: World, name: str, spec: InstanceSpec) -> Decided:
    """The cheapest binding within the instance's SLO that pushes no other instance past its own.

    raises  ConfigError for tables that are not known, RefusedError where nothing fits, with the numbers
    """
    layers = _layers(world, spec)
    tables = [need.table for need in spec.layers]
    places = _candidates(world, name, spec)
    devices = {str(place): device for place in places if (device := _device(world, place, name, tables=tables))}
    if not devices:
        raise RefusedError(
            f"instance {name}: no place with a read model that it can read from", is_sharing=False,
            details={"places": [str(place) for place in places]},
            hint="give the pool a `read`, or PUT a measurement for its members",
        )  # fmt: skip
    decision = decide(_problem(spec, layers, tuple(devices.values())))
    if not decision.fits:
        raise RefusedError(
            f"instance {name}: {decision.summary}", is_sharing=False, hint="; ".join(decision.changes),
            details={"slowdown_pct": _finite(decision.slowdown_pct), "slo_pct": spec.slo_pct},
        )  # fmt: skip
    by_text = {str(place): place for place in places}
    bound, missing = [], {}
    for layer, table in zip(decision.layers, [_table_of(spec, x.layer_id) for x in decision.layers], strict=True):
        place = by_text[layer.device]
        here = [copy.name for copy in world.copies_of(table) if copy.place == place]
        first = here[0] if here else replica_name(table, place)
        if not here:
            missing[first] = (table, place)
        others = _fallbacks(world, spec, table, first, places)
        bound.append(
            LayerBinding(layer_id=layer.layer_id, replicas=(first, *others), cache_rows=layer.cache_rows)
        )  # fmt: skip
    binding = BindingSpec(decided_by="tierd", slo_pct=spec.slo_pct, layers=tuple(bound))
    used = frozenset(by_text[layer.device] for layer in decision.layers)
    check_sharing(world, name, used)
    return Decided(binding, missing, {layer.layer_id: layer.sentence for layer in decision.layers})


def _table_of(spec: InstanceSpec, layer_id: int) -> str:
    return next(need.table for need in spec.layers if need.layer_id == layer_id)


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None


def _fallbacks(world: World, spec: InstanceSpec, table: str, first: str, places: list[PlaceId]) -> tuple[str, ...]:
    """The table's other copies within reach, the one that answers a single page soonest first."""
    within = set(places)
    others = [
        copy
        for copy in world.copies_of(table)
        if copy.name != first and copy.place in within and copy.state is not ReplicaState.FAILED
    ]

    def one_page_us(copy: Copy) -> float:
        read = world.read_model(copy.place)
        return float("inf") if read is None else read.a_us + read.b_us

    ordered = sorted(others, key=lambda copy: (one_page_us(copy), copy.name))
    return tuple(copy.name for copy in ordered[: _FALLBACKS_MAX - 1])


def check_sharing(world: World, name: str, used: frozenset[PlaceId]) -> None:
    """Refuse what would push another instance past its SLO; raises RefusedError with the numbers.

    used  the places that `name` would read first
    """
    added = {place for place in used if name not in world.users(place)}
    affected = sorted({user for place in added for user in world.users(place)} - {name})
    for other in affected:
        before, after = predicted(world, other), predicted(world, other, more_at=added)
        spec = world.instances.get(other)
        if before is None or after is None or spec is None:
            continue
        limit = world.bindings[other].slo_pct
        now_pct, then_pct = (100 * x.slowdown_ms / spec.step_ms for x in (before, after))
        if then_pct > limit and then_pct > now_pct:
            shared = sorted(str(place) for place in added if other in world.users(place))
            raise RefusedError(
                f"instance {name} would slow {other} from {now_pct:.2f} % to {then_pct:.2f} % of a step on "
                f"{', '.join(shared)}; it is allowed {limit:g} %", is_sharing=True,
                details={
                    "instance": other, "places": shared, "slowdown_pct_now": round(now_pct, 4),
                    "slowdown_pct_then": round(then_pct, 4), "slo_pct": limit,
                    "instances_now": {str(place): len(world.users(place)) for place in sorted(added)},
                },
                hint="bind it to another place, give it more cache, or add a device",
            )  # fmt: skip


def predicted(world: World, name: str, *, more_at: Iterable[PlaceId] = ()) -> Prediction | None:
    """What the rule says of a binding in force, with one more user at each of `more_at`; None if that is not known."""
    spec, binding = world.instances.get(name), world.bindings.get(name)
    if spec is None or binding is None:
        return None
    more, devices, places = set(more_at), {}, []
    for layer in binding.layers:
        copy = world.copies.get(layer.replicas[0])
        device = None if copy is None else _device(world, copy.place, name)
        if copy is None or device is None:
            return None
        if copy.place in more:
            device = replace(device, instances=device.instances + 1)
        devices[device.name] = device
        places.append(Place(layer.layer_id, device.name, layer.cache_rows))
    try:
        layers = tuple(x for x in _layers(world, spec) if any(x.layer_id == y.layer_id for y in places))
        return predict(_problem(spec, layers, tuple(devices.values())), places)
    except ConfigError:  # a table whose source is not known, or a layer that the instance does not have
        return None


def in_force(world: World, name: str, sentences: Mapping[int, str]) -> tuple[LayerInForce, ...]:
    """Each layer of a binding with what the rule predicts for it."""
    binding, spec = world.bindings.get(name), world.instances.get(name)
    if binding is None:
        return ()
    prediction = predicted(world, name)
    costs = {cost.layer_id: cost for cost in prediction.layers} if prediction else {}
    windows = {need.layer_id: need.window_ms for need in spec.layers} if spec else {}
    shown = []
    for layer in binding.layers:
        copy = world.copies.get(layer.replicas[0])
        pool = world.pools.get(copy.place.pool) if copy else None
        cost = costs.get(layer.layer_id)
        shown.append(
            LayerInForce(
                layer_id=layer.layer_id, replica=layer.replicas[0], tier=pool.tier if pool else Tier.NVME,
                window_ms=windows.get(layer.layer_id, 0.0), read_ms=cost.read_ms if cost else 0.0,
                stall_ms=cost.stall_ms if cost else 0.0, margin_ms=cost.margin_ms if cost else 0.0,
                sentence=sentences.get(layer.layer_id, ""),
            )
        )  # fmt: skip
    return tuple(shown)
