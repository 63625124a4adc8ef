# SPDX-License-Identifier: Apache-2.0
"""A small checkpoint, its staged regions, the engine's own embeddings over it, and the plugin's in their place."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file
from sglang.srt.layers import engram as stock
from torch import nn

from slacktier_engine import engram
from slacktier_engine.runtime import EngineTier, Family
from slacktier_engine.settings import Settings, load_settings
from slacktier_tierd.checkpoint import open_checkpoint
from slacktier_tierd.sources import SafetensorsSource
from slacktier_tierd.staging import stage
from slacktier_tierd.tables import Family as TableFamily
from slacktier_tierd.tables import find_table

STOCK = stock.EngramEmbedding
LAYERS = (1, 14)
COLUMNS, DIM, SCALES = 24, 256, 8  # V4.1's
ROWS = 65_536  # one for each pair of scale byte and value byte
TOKENS = 40


def tables(seed: int = 0) -> dict[str, torch.Tensor]:
    """Layer 1: row 256 e + v holds value byte v under scale byte e, all pairs; layer 14: random bytes without NaN."""
    generator = torch.Generator().manual_seed(seed)
    pairs = torch.arange(ROWS)
    weight, scale = (pairs & 255).to(torch.uint8), (pairs >> 8).to(torch.uint8)
    other = torch.randint(0, 0x7F, (ROWS, DIM), generator=generator, dtype=torch.uint8)
    return {
        "layers.1.engram.embed.weight": weight[:, None].expand(ROWS, DIM).contiguous().view(torch.float8_e4m3fn),
        "layers.1.engram.embed.scale": scale[:, None].expand(ROWS, SCALES).contiguous().view(torch.float8_e8m0fnu),
        "layers.14.engram.embed.weight": other.view(torch.float8_e4m3fn),
        "layers.14.engram.embed.scale": torch.randint(
            110, 140, (ROWS, SCALES), generator=generator, dtype=torch.uint8
        ).view(torch.float8_e8m0fnu),
    }


def write_checkpoint(folder: Path, seed: int = 0) -> Path:
    folder.mkdir(parents=True)
    save_file(tables(seed), folder / "model.safetensors", {"format": "pt"})
    return folder


def stage_all(checkpoint: Path, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for layer_id in LAYERS:
        table = find_table(open_checkpoint(checkpoint), layer_id, family=TableFamily.V41)
        stage(SafetensorsSource(table), [folder / f"{layer_id}.region"])
    return folder


def settings_of(regions: Path, checkpoint: Path | str, **changed: Any) -> Settings:
    """A Settings over regions/LAYER.region; cache_rows and sources apply to all layers."""
    sources = changed.pop("sources", None)
    rows = changed.pop("cache_rows", 64)
    changed["check"] = {"checkpoint": str(checkpoint)} | changed.get("check", {})
    described = [
        {
            "layer": layer_id,
            "sources": sources or [{"tier": "nvme", "paths": [str(regions / f"{layer_id}.region")]}],
            "cache_rows": rows,
        }
        for layer_id in LAYERS
    ]
    return load_settings(json.dumps({"tables": described, **changed}))


def place_ranks(rank: int, tp: int) -> None:
    """What the engine and the plugin take for their place among the ranks."""
    place = SimpleNamespace(tp_rank=rank, tp_size=tp, attn_dp_size=1, attn_cp_size=1)
    stock.get_parallel = lambda: place
    EngineTier.parallel = staticmethod(lambda: place)


def stock_embedding(layer_id: int, checkpoint: dict[str, torch.Tensor]) -> Any:
    """The engine's own embedding with its shard of the table loaded by its own loader."""
    bounds = (*(ROWS // COLUMNS * column for column in range(COLUMNS)), ROWS)
    layout = {"column_bounds": bounds} if "column_bounds" in STOCK.__init__.__annotations__ else {}
    made = STOCK(ROWS, DIM, layer_id, **layout)
    for name in ("weight", "scale"):
        parameter = getattr(made, name)
        parameter.weight_loader(parameter, checkpoint[f"layers.{layer_id}.engram.embed.{name}"])
    return made


class Model(nn.Module):
    """As far as the plugin looks at one: Engram layers and a hasher."""

    def __init__(self, tier: EngineTier) -> None:
        super().__init__()
        embedding = engram.tiered_embedding(STOCK, tier)
        self.engrams = nn.ModuleList()
        for index, layer_id in enumerate(LAYERS):
            layer = stock.Engram.__new__(stock.Engram)
            nn.Module.__init__(layer)
            layer.layer_hash_index = index
            layer.embed = embedding(ROWS, DIM, layer_id)
            self.engrams.append(layer)
        hasher = stock.EngramHasher.__new__(stock.EngramHasher)
        nn.Module.__init__(hasher)
        hasher.register_buffer("offsets", torch.zeros((len(LAYERS), COLUMNS), dtype=torch.int64))
        self.hasher = hasher

    def embed(self, layer_index: int) -> Any:
        return self.engrams[layer_index].embed


def server_args(**changed: Any) -> SimpleNamespace:
    return SimpleNamespace(
        **{"pp_size": 1, "attn_cp_size": 1, "device": "cpu", "load_format": "auto", "model_path": "small"} | changed
    )


def attached(settings: Settings, *, rank: int = 0, tp: int = 1, **arguments: Any) -> tuple[EngineTier, Model]:
    """A tier over a model, as the hook around load_model attaches it."""
    place_ranks(rank, tp)
    tier = EngineTier(settings)
    model = Model(tier)
    runner = SimpleNamespace(server_args=server_args(**arguments), model=model, device="cpu", model_config=None)
    tier.prepare(runner)
    family = Family(lambda found: [engram.find_tables(found, stock)], lambda sb: engram.dequantizer(STOCK, sb))
    tier.attach(runner, [family])
    return tier, model


class Mode:
    """A forward mode, as far as hooks ask."""

    def __init__(self, name: str) -> None:
        self._name = name

    def is_extend(self) -> bool:
        return self._name == "extend"

    def is_decode(self) -> bool:
        return self._name == "decode"

    def is_target_verify(self) -> bool:
        return self._name == "verify"

    def is_idle(self) -> bool:
        return self._name == "idle"


def batch(mode: str = "decode", live: torch.Tensor | None = None) -> SimpleNamespace:
    return SimpleNamespace(forward_mode=Mode(mode), out_cache_loc=live)


def run_step(tier: EngineTier, model: Model, row_ids: torch.Tensor, forward: Any = None) -> list[torch.Tensor]:
    """One forward's lookups as the engine makes them; rows [T, C, DIM] per layer."""
    forward = forward or batch()
    engram.issue_after_hash(tier)(row_ids, None, None, forward)
    return [model.embed(k)(row_ids[:, k], forward) for k in range(len(LAYERS))]


def random_ids(tokens: int = TOKENS, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, ROWS, (tokens, len(LAYERS), COLUMNS), generator=torch.Generator().manual_seed(seed))


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a.contiguous().view(torch.int16), b.contiguous().view(torch.int16))
