# SPDX-License-Identifier: Apache-2.0
"""Which replica an instance is bound to, and when sharing a place is refused."""

from __future__ import annotations

import pytest

from slacktier.api import InstanceSpec, MeasurementSpec, PoolSpec, ReplicaState
from slacktier.errors import ConfigError
from slacktier_tierd.head.placing import (
    Copy,
    MemberFacts,
    PlaceId,
    RefusedError,
    TableFacts,
    World,
    decide_binding,
    in_force,
    predicted,
)

GIB = 1 << 30
DISK, MEMORY = PlaceId("nvme", "disk0"), PlaceId("mem", "m0")


def _pool(tier: str, member: str, read: dict[str, float], cost: float = 0.0) -> PoolSpec:
    place = {"name": member} if tier == "tcp" else {"name": member, "path": "/d"}
    return PoolSpec.model_validate({"tier": tier, "members": [place], "read": read, "cost_per_gib": cost})


def _world() -> World:
    """A cheap disk and a dear memory node, each with room for a table of 100,000 rows."""
    world = World()
    world.pools = {
        "nvme": _pool("nvme", "disk0", {"a_us": 300, "b_us": 3.05, "c_us": 0.37}, cost=0.1),
        "mem": _pool("tcp", "m0", {"a_us": 150, "b_us": 0.1}, cost=4.0),
    }
    world.tables = {"t1": TableFacts(1, 100_000, 264), "t14": TableFacts(14, 100_000, 264)}
    world.members = {place: MemberFacts(place, "", True, GIB) for place in (DISK, MEMORY)}
    return world


def _instance(slo_pct: float = 1.0, node: str = "", layers: tuple[int, ...] = (1, 14)) -> InstanceSpec:
    windows = {1: 0.27, 14: 9.35}
    return InstanceSpec.model_validate({
        "step_ms": 29.4, "slo_pct": slo_pct, "node": node,
        "layers": [
            {"layer_id": layer, "table": f"t{layer}", "window_ms": windows[layer],
             "misses": [{"cache_rows": 0, "pages": 600}]}
            for layer in layers
        ],
    })  # fmt: skip


def _bind(world: World, name: str, spec: InstanceSpec) -> None:
    """Decide, and note what the head would note."""
    decided = decide_binding(world, name, spec)
    for replica, (table, place) in decided.missing.items():
        world.set_copy(Copy(replica, table, place, ReplicaState.COMPLETE), replica)
    world.instances[name] = spec
    world.set_binding(name, decided.binding)


def test_short_window_goes_to_memory_and_long_one_to_the_disk() -> None:
    world = _world()
    decided = decide_binding(world, "a", _instance())
    firsts = {layer.layer_id: layer.replicas[0] for layer in decided.binding.layers}
    assert firsts == {1: "t1.mem.m0", 14: "t14.nvme.disk0"}
    assert decided.missing == {"t1.mem.m0": ("t1", MEMORY), "t14.nvme.disk0": ("t14", DISK)}
    assert "window 9.35 ms" in decided.sentences[14]


def test_copy_that_is_there_is_used_and_others_are_fallbacks() -> None:
    world = _world()
    world.set_copy(Copy("mine", "t14", DISK, ReplicaState.COMPLETE), "mine")
    world.set_copy(Copy("spare", "t14", MEMORY, ReplicaState.STAGING), "spare")
    world.set_copy(Copy("bad", "t14", MEMORY, ReplicaState.FAILED), "bad")
    decided = decide_binding(world, "a", _instance(layers=(14,)))
    assert decided.binding.layers[0].replicas == ("mine", "spare")
    assert decided.missing == {}


def test_disk_of_another_node_is_out_of_reach() -> None:
    decided = decide_binding(_world(), "a", _instance(node="elsewhere", layers=(14,)))
    assert decided.binding.layers[0].replicas == ("t14.mem.m0",)


def test_measured_read_model_takes_the_place_of_the_pools() -> None:
    world = _world()
    slow = MeasurementSpec.model_validate({"pool": "nvme", "member": "disk0", "read": {"a_us": 20_000}})
    world.measured[DISK] = slow.read.read_model()
    decided = decide_binding(world, "a", _instance(layers=(14,)))
    assert decided.binding.layers[0].replicas[0] == "t14.mem.m0"


def test_full_place_takes_no_further_table() -> None:
    world = _world()
    world.members[DISK] = MemberFacts(DISK, "", True, 1 << 20)
    decided = decide_binding(world, "a", _instance(layers=(14,)))
    assert decided.binding.layers[0].replicas[0] == "t14.mem.m0"


def test_nothing_within_the_slo_is_refused_with_the_numbers() -> None:
    world = _world()
    del world.members[MEMORY]
    with pytest.raises(RefusedError) as caught:
        decide_binding(world, "a", _instance())
    assert not caught.value.is_sharing
    assert caught.value.details["slo_pct"] == 1.0
    assert isinstance(caught.value.details["slowdown_pct"], float)
    assert caught.value.details["slowdown_pct"] > 1.0


def test_table_that_is_not_known_waits() -> None:
    world = _world()
    del world.tables["t14"]
    with pytest.raises(ConfigError, match="no table 't14'"):
        decide_binding(world, "a", _instance())


def test_instance_that_would_push_another_past_its_slo_is_refused_with_the_numbers() -> None:
    world = _world()
    del world.members[MEMORY]
    # 300 + 3.05 * 600 us for one instance: 7 of them are over the window of 9.35 ms, 4 are not.
    spec = _instance(layers=(14,))
    for at in range(4):
        _bind(world, f"i{at}", spec)
    patient = _instance(slo_pct=50.0, layers=(14,))
    while 0.3 + 1.83 * (len(world.users(DISK)) + 1) - 9.35 <= 0.01 * 29.4:
        _bind(world, f"i{len(world.users(DISK))}", patient)
    with pytest.raises(RefusedError, match=r"would slow i0 from 0\.34 % to") as caught:
        _bind(world, "last", patient)
    details = caught.value.details
    assert caught.value.is_sharing
    assert (details["instance"], details["slo_pct"], details["places"]) == ("i0", 1.0, ["nvme/disk0"])
    users = len(world.users(DISK))
    then = 0.3 + 3.05e-3 * 600 * (users + 1) - 9.35
    assert details["slowdown_pct_then"] == pytest.approx(100 * then / 29.4, abs=1e-3)


def test_prediction_follows_the_number_of_users() -> None:
    world = _world()
    del world.members[MEMORY]
    spec = _instance(layers=(14,), slo_pct=100.0)
    reads = []
    for at in range(3):
        _bind(world, f"i{at}", spec)
        prediction = predicted(world, "i0")
        assert prediction is not None
        reads.append(prediction.layers[0].read_ms)
    assert reads == pytest.approx([0.3 + 1.83 * users for users in (1, 2, 3)])
    world.set_binding("i1", None)
    assert world.users(DISK) == {"i0", "i2"}
    shown = in_force(world, "i0", {14: "because"})
    assert (shown[0].read_ms, shown[0].sentence) == (pytest.approx(0.3 + 1.83 * 2), "because")
