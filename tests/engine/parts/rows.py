# SPDX-License-Identifier: Apache-2.0
"""Rows from the tier against the engine's own embedding over the same checkpoint, bit for bit."""

from __future__ import annotations

from pathlib import Path

import torch
import world

from slacktier_engine.control import apply_binding
from slacktier_engine.cuda_step import CudaStepPath
from slacktier_engine.settings import Binding, Lossy
from slacktier_rowids.seen_set import SeenLayer, SeenSet


def check_all_scale_and_value_bytes_come_as_stock_makes_them(folder: Path) -> None:
    tier, model = world.attached(world.settings_of(folder / "regions", folder / "checkpoint"))
    expected = [world.stock_embedding(layer_id, world.tables()) for layer_id in world.LAYERS]
    tokens = -(-world.ROWS // world.COLUMNS)
    every = (torch.arange(tokens * world.COLUMNS) % world.ROWS).view(tokens, 1, world.COLUMNS).repeat(1, 2, 1)
    for ids in (*every.split(512), world.random_ids()):
        found = world.run_step(tier, model, ids)
        for k, stock in enumerate(expected):
            assert world.same_bits(found[k], stock(ids[:, k])), f"layer {world.LAYERS[k]}"
    tier.close()


def check_a_table_costs_the_process_no_row(folder: Path) -> None:
    tier, model = world.attached(world.settings_of(folder / "regions", folder / "checkpoint"))
    held = {name: tuple(value.shape) for name, value in model.named_parameters()}
    assert {shape[0] for shape in held.values()} == {0}, held
    assert len(held) == 4, held
    tier.close()


def check_stripes_of_two_ranks_add_up_to_stock(folder: Path) -> None:
    ids, shards, stripes = world.random_ids(), [], []
    for rank in range(2):
        tier, model = world.attached(
            world.settings_of(folder / "regions", folder / "checkpoint", check={"rate": 1.0}), rank=rank, tp=2
        )
        for k in range(2):
            model.embed(k)._reduce_owned_rows = lambda values: values  # both ranks are here: added up below
        stripes.append(world.run_step(tier, model, ids))
        owned = [tier.groups[0].core.stats()[layer_id]["owned"] for layer_id in world.LAYERS]
        assert all(0 < count < ids.numel() for count in owned), owned
        tier.close()
        shards.append([world.stock_embedding(k, world.tables())._owned_rows(ids[:, i]) for i, k in enumerate((1, 14))])
    for k in range(2):
        assert world.same_bits(stripes[0][k] + stripes[1][k], shards[0][k] + shards[1][k])


def check_padding_of_a_graph_costs_no_read_and_is_zero(folder: Path) -> None:
    tier, model = world.attached(world.settings_of(folder / "regions", folder / "checkpoint", cache_rows=0))
    before = tier.groups[0].core.stats()[1]["owned"]
    live = torch.ones(world.TOKENS, dtype=torch.int64)
    live[8:] = 0
    found = world.run_step(tier, model, world.random_ids(), world.batch(live=live))
    assert tier.groups[0].core.stats()[1]["owned"] - before == 8 * world.COLUMNS
    assert not found[0][8:].view(torch.int16).any()
    assert world.same_bits(found[0][:8], world.stock_embedding(1, world.tables())(world.random_ids()[:8, 0]))
    tier.close()


def check_a_slot_of_zero_says_nothing_in_a_prefill(folder: Path) -> None:
    tier, model = world.attached(world.settings_of(folder / "regions", folder / "checkpoint"))
    ids = world.random_ids()
    found = world.run_step(tier, model, ids, world.batch("extend", torch.zeros(world.TOKENS, dtype=torch.int64)))
    assert world.same_bits(found[1], world.stock_embedding(14, world.tables())(ids[:, 1]))
    tier.close()


def check_a_step_larger_than_one_pass_is_cut(folder: Path) -> None:
    tier, model = world.attached(world.settings_of(folder / "regions", folder / "checkpoint", lookups_max=100))
    ids = world.random_ids()
    found = world.run_step(tier, model, ids, world.batch("extend"))
    for k, layer_id in enumerate(world.LAYERS):
        assert world.same_bits(found[k], world.stock_embedding(layer_id, world.tables())(ids[:, k]))
    tier.close()


def check_idle_and_empty_batches_touch_nothing(folder: Path) -> None:
    tier, model = world.attached(world.settings_of(folder / "regions", folder / "checkpoint"))
    steps = tier.groups[0].core.stats()[1]["steps"]
    assert world.run_step(tier, model, world.random_ids(0))[0].shape == (0, world.COLUMNS, world.DIM)
    world.engram.issue_after_hash(tier)(world.random_ids(3), None, None, world.batch("idle"))
    assert tier.groups[0].core.stats()[1]["steps"] == steps
    tier.close()


def check_padding_of_an_idle_rank_is_zero(folder: Path) -> None:
    """With DP attention a rank without work joins the step with rows that nobody hashed."""
    tier, model = world.attached(world.settings_of(folder / "regions", folder / "checkpoint"))
    found = model.embed(0)(torch.zeros((3, world.COLUMNS), dtype=torch.int64), world.batch("idle"))
    assert found.shape == (3, world.COLUMNS, world.DIM)
    assert not found.view(torch.int16).any()
    tier.close()


def check_the_gpu_path_answers_alike_behind_the_same_seam(folder: Path) -> None:
    """Its kernels in Triton's interpreter, its side stream on this thread.

    The engine's kernel and its torch path differ where a row is not a number (scale 255, values 0x7F and 0xFF); ours
    are held to the one that runs on their device, so those rows are left out here.
    """
    settings = world.settings_of(folder / "regions", folder / "checkpoint")
    tier, model = world.attached(settings)
    cpu = tier.groups[0]
    core = tier._open(list(tier.setups.values()), 0, 1)
    gpu = CudaStepPath(core, cpu.tables, [64, 64], torch.device("cpu"), 10.0)
    ids, live = world.random_ids(4), torch.tensor([1, 1, 0, 1])
    expected = world.run_step(tier, model, ids, world.batch(live=live))
    gpu.issue(ids, live)
    for k in range(2):
        out = torch.empty((ids[:, k].numel(), world.DIM), dtype=torch.bfloat16)
        gpu.join(k, out)
        flat = ids[:, k].reshape(-1)
        numbers = (flat >> 8 != 255) & (flat & 0x7F != 0x7F) if k == 0 else flat >= 0
        wanted = expected[k].reshape(out.shape)
        assert world.same_bits(out[numbers], wanted[numbers]), f"layer {world.LAYERS[k]}"
    gpu.check()
    with gpu.between_steps() as held:
        assert held is core
    gpu.close()
    tier.close()


def check_lossy_skipping_zeroes_what_the_set_lacks(folder: Path) -> None:
    flags = torch.zeros(world.ROWS, dtype=torch.bool)
    flags[::2] = True
    SeenSet((SeenLayer.of_flags(14, flags.numpy()),)).write(folder / "seen.bin")
    settings = world.settings_of(folder / "regions", folder / "checkpoint", check={"rate": 1.0})
    tier, model = world.attached(settings)
    ids = world.random_ids()
    whole = world.run_step(tier, model, ids)
    apply_binding(tier, Binding(lossy=Lossy(seen_set=folder / "seen.bin", layers=(14,))))
    found = world.run_step(tier, model, ids)
    assert world.same_bits(found[0], whole[0])
    seen = ids[:, 1] % 2 == 0
    assert world.same_bits(found[1][seen], whole[1][seen])
    assert not found[1][~seen].view(torch.int16).any()
    assert tier.counts.layers[14].skipped == int((~seen).sum())
    apply_binding(tier, Binding(lossy_off=True))
    assert world.same_bits(world.run_step(tier, model, ids)[1], whole[1])
    tier.close()


def check_sources_and_sizes_change_under_load(folder: Path) -> None:
    """A tiny cache, so that rows are evicted all the time; every row of every step is compared with the checkpoint."""
    tier, model = world.attached(world.settings_of(folder / "regions", folder / "checkpoint", check={"rate": 1.0}))
    for turn in range(100):
        tables = [
            {
                "layer": layer_id,
                "sources": [
                    {"tier": ("nvme", "dram")[turn % 2], "paths": [str(folder / "regions" / f"{layer_id}.region")]}
                ],
                "cache_rows": 16 * (1 + turn % 7),
                "host_cache_gib": (0.0, 0.0005, 0.001)[turn // 3 % 3],
            }
            for layer_id in world.LAYERS
        ]
        apply_binding(tier, Binding.model_validate({"tables": tables}))
        world.run_step(tier, model, world.random_ids(seed=turn))
    counted = tier.counts.layers[1]
    assert counted.checked >= 100 * world.TOKENS * world.COLUMNS
    assert counted.mismatched == 0
    stats = tier.groups[0].core.stats()[1]
    assert stats["evictions"] > 1000
    assert stats["host_hits"] > 0
    tier.close()
