# SPDX-License-Identifier: Apache-2.0
"""What cannot work is refused by name at the start; what breaks later never becomes a row."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import world

from slacktier.errors import ConfigError, ContractError, SlackTierError
from slacktier_engine import discard
from slacktier_engine.control import Watcher, apply_binding
from slacktier_engine.runtime import State
from slacktier_engine.settings import Binding


def raised(kind: type[SlackTierError], message: str, call: Callable[[], Any]) -> None:
    found = None
    try:
        call()
    except kind as exc:
        found = exc
    assert re.search(message, str(found)), f"expected {message!r}, found {found!r}"


def damage(region: Path) -> None:
    """Overwrite all data pages in place, as a device that goes bad under a running server."""
    with region.open("r+b") as file:
        file.seek(8192)
        file.write(bytes(region.stat().st_size - 8192))


def copied_regions(folder: Path, name: str) -> Path:
    return Path(shutil.copytree(folder / "regions", folder / name))


def check_another_table_is_refused_at_the_start(folder: Path) -> None:
    other = world.stage_all(world.write_checkpoint(folder / "other", seed=7), folder / "other-regions")
    raised(
        ContractError, "layer 14: .* rows differ from the checkpoint's",
        lambda: world.attached(world.settings_of(other, folder / "checkpoint")),
    )  # fmt: skip


def check_another_layer_is_refused_at_the_start(folder: Path) -> None:
    sources = [{"tier": "nvme", "paths": [str(folder / "regions" / "14.region")]}]
    raised(
        ConfigError, "holds layer 14, expected layer 1",
        lambda: world.attached(world.settings_of(folder / "regions", folder / "checkpoint", sources=sources)),
    )  # fmt: skip


def check_another_row_count_is_refused_at_the_start(folder: Path) -> None:
    rows = world.ROWS
    world.ROWS = 1000  # what the model has
    try:
        raised(
            ContractError, "65536 rows of 256 bytes .* layer 1 has 1000",
            lambda: world.attached(world.settings_of(folder / "regions", folder / "checkpoint")),
        )  # fmt: skip
    finally:
        world.ROWS = rows


def check_a_layer_without_sources_is_refused_at_the_start(folder: Path) -> None:
    settings = world.settings_of(folder / "regions", folder / "checkpoint")
    settings = settings.model_copy(update={"tables": settings.tables[:1]})
    raised(ConfigError, "layer 14 of the model is not configured", lambda: world.attached(settings))


def check_a_lookup_before_the_tier_is_attached_is_no_row(folder: Path) -> None:
    world.place_ranks(0, 1)
    tier = world.EngineTier(world.settings_of(folder / "regions", folder / "checkpoint"))
    model = world.Model(tier)
    raised(ContractError, "before the tier was attached", lambda: model.embed(0)(world.random_ids()[:, 0]))


def check_ids_that_the_hasher_did_not_compute_are_refused(folder: Path) -> None:
    tier, model = world.attached(
        world.settings_of(folder / "regions", folder / "checkpoint", on_read_failure="end_process")
    )
    ids = world.random_ids()
    world.engram.issue_after_hash(tier)(ids, None, None, world.batch())
    raised(ContractError, "did not compute in this step", lambda: model.embed(0)((ids[:, 0] + 1) % world.ROWS))
    tier.close()


def check_a_damaged_region_ends_the_process_where_that_is_asked(folder: Path) -> None:
    regions = copied_regions(folder, "damaged")
    tier, model = world.attached(
        world.settings_of(regions, folder / "checkpoint", cache_rows=0, on_read_failure="end_process")
    )
    damage(regions / "1.region")
    raised(ContractError, "layer 1 page .* nvme:.*1.region", lambda: world.run_step(tier, model, world.random_ids()))
    assert tier.state is State.FAILED
    tier.close()


def check_a_failed_step_carries_its_error_to_its_requests(folder: Path) -> None:
    """Zeros for the forward to end on, an error for each request, not ready, and ready again when the rows are back."""
    regions = copied_regions(folder, "failing")
    tier, model = world.attached(world.settings_of(regions, folder / "checkpoint", cache_rows=0))
    kept = (regions / "1.region").read_bytes()
    damage(regions / "1.region")
    reqs = [SimpleNamespace(skip_radix_cache_insert=False) for _ in range(2)]
    found: list[list[torch.Tensor]] = []

    def forward(scheduler: Any, batch: Any) -> SimpleNamespace:
        found.append(world.run_step(tier, model, world.random_ids()))
        return SimpleNamespace()

    result = discard.run_hook(tier)(forward, None, SimpleNamespace(reqs=reqs))
    assert "layer 1 page" in str(result.slacktier_error)
    assert all(req.skip_radix_cache_insert for req in reqs)
    assert not found[0][0].any()
    assert tier.state is State.FAILED
    watcher = Watcher(tier)
    watcher.look()
    assert tier.state is State.FAILED
    (regions / "1.region").write_bytes(kept)
    watcher.look()
    assert tier.state is State.READY
    again = discard.run_hook(tier)(forward, None, SimpleNamespace(reqs=reqs))
    assert not hasattr(again, "slacktier_error")
    assert world.same_bits(found[1][0], world.stock_embedding(1, world.tables())(world.random_ids()[:, 0]))
    tier.close()


def check_the_checker_sees_one_wrong_row(folder: Path) -> None:
    tier, _ = world.attached(world.settings_of(folder / "regions", folder / "checkpoint", check={"rate": 1.0}))
    table = tier.groups[0].tables[0]
    ids = world.random_ids()[:, 0].reshape(-1)
    rows = world.stock_embedding(1, world.tables())(ids)
    assert tier.groups[0].checker.compare(table, ids, rows) == len(ids)
    rows.view(torch.int16)[77, 5] ^= 1
    raised(
        ContractError,
        f"layer 1: 1 rows differ .* row {ids[77]}",
        lambda: tier.groups[0].checker.compare(table, ids, rows),
    )
    assert tier.counts.layers[1].mismatched == 1
    tier.close()


def check_nothing_is_served_after_a_wrong_row(folder: Path) -> None:
    """Even where requests could end by themselves, and although the tier itself answers."""
    tier, model = world.attached(world.settings_of(folder / "regions", folder / "checkpoint", check={"rate": 1.0}))
    tier.groups[0].checker.rows._tensors["layers.1.engram.embed.scale"] = torch.full(
        (world.ROWS, world.SCALES), 7, dtype=torch.uint8
    ).view(torch.float8_e8m0fnu)
    raised(ContractError, "rows differ from the checkpoint's", lambda: world.run_step(tier, model, world.random_ids()))
    assert tier.state is State.FAILED
    tier.close()


def check_other_rows_are_refused_at_run_time(folder: Path) -> None:
    other = world.stage_all(world.write_checkpoint(folder / "third", seed=9), folder / "third-regions")
    tier, model = world.attached(world.settings_of(folder / "regions", folder / "checkpoint"))
    wanted = [{"layer": 14, "sources": [{"tier": "nvme", "paths": [str(other / "14.region")]}], "cache_rows": 64}]
    binding = Binding.model_validate({"tables": wanted})
    raised(ContractError, "holds other rows than", lambda: apply_binding(tier, binding))
    ids = world.random_ids()
    assert world.same_bits(world.run_step(tier, model, ids)[1], world.stock_embedding(14, world.tables())(ids[:, 1]))
    assert (tier.counts.bindings_applied, tier.counts.bindings_refused) == (0, 1)
    tier.close()


def check_a_weight_update_with_other_rows_fails(folder: Path) -> None:
    tier, model = world.attached(world.settings_of(folder / "regions", folder / "checkpoint"))

    def update(seed: int) -> None:
        for name, tensor in world.tables(seed).items():
            if name.startswith("layers.14."):
                parameter = getattr(model.embed(1), name.rsplit(".", 1)[1])
                parameter.weight_loader(parameter, tensor)
        model.embed(1).finish_load("layer 14")

    update(0)
    assert tier.counts.cache_drops == 1
    raised(ContractError, "layer 14: the weight update brings other bytes for row", lambda: update(3))
    tier.close()
