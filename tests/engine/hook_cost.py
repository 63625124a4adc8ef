# SPDX-License-Identifier: Apache-2.0
"""Host time of a step's lookups: the plugin's hooks beside the engine's own gather from a table in memory.

python hook_cost.py CHECKPOINT SETTINGS, in the engine's environment; prints a JSON list. One process, one run: for each
step new row ids, then stock's lookup of both layers, then the plugin's issue and lookup of both layers, timed in turn,
and compared bit for bit.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import torch
from safetensors.torch import load_file
from sglang.srt.layers import engram as stock
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from torch import Tensor, nn

from slacktier_engine import engram
from slacktier_engine.runtime import EngineTier, Family
from slacktier_engine.settings import load_settings

STEPS: Final = {0: 400, 1: 400, 128: 100}  # tokens -> steps
WARM_UP: Final = 10
STOCK: Final = stock.EngramEmbedding


class Model(nn.Module):
    """Engram layers and a hasher, which is all that the plugin looks for in a model."""

    def __init__(self, embeddings: list[Any], columns: int) -> None:
        super().__init__()
        self.engrams = nn.ModuleList()
        for index, embedding in enumerate(embeddings):
            layer = stock.Engram.__new__(stock.Engram)
            nn.Module.__init__(layer)
            layer.layer_hash_index, layer.embed = index, embedding
            self.engrams.append(layer)
        self.hasher = stock.EngramHasher.__new__(stock.EngramHasher)
        nn.Module.__init__(self.hasher)
        self.hasher.register_buffer("offsets", torch.zeros((len(embeddings), columns), dtype=torch.int64))


def embeddings(kind: Any, layout: Any) -> list[Any]:
    takes_bounds = "column_bounds" in STOCK.__init__.__annotations__
    return [
        kind(rows, layout.head_dim, layer_id, *([layout.column_bounds(index)] if takes_bounds else []))
        for index, (layer_id, rows) in enumerate(zip(layout.layer_ids, layout.num_embeddings, strict=True))
    ]


def loaded(folder: Path, layout: Any) -> list[Any]:
    """Stock's embeddings with their tables in memory, by their own loaders."""
    made = embeddings(STOCK, layout)
    for layer_id, embedding in zip(layout.layer_ids, made, strict=True):
        tensors = load_file(folder / f"engram-{layer_id}.safetensors")
        for part in ("weight", "scale"):
            parameter = getattr(embedding, part)
            parameter.weight_loader(parameter, tensors[f"model.layers.{layer_id}.engram.embed.{part}"])
    return made


def tiered(settings: str, folder: Path, layout: Any, columns: int) -> tuple[EngineTier, Model]:
    tier = EngineTier(load_settings(settings))
    tier.stock_engram = STOCK
    model = Model(embeddings(engram.tiered_embedding(STOCK, tier), layout), columns)
    arguments = SimpleNamespace(pp_size=1, attn_cp_size=1, device="cpu", load_format="auto", model_path=str(folder))
    runner = SimpleNamespace(
        server_args=arguments, model=model, device="cpu", model_config=SimpleNamespace(model_path=str(folder))
    )
    tier.prepare(runner)
    family = Family(lambda found: [engram.find_tables(found, stock)], lambda sb: engram.dequantizer(STOCK, sb))
    tier.attach(runner, [family])
    return tier, model


def timed(work: Callable[[], list[Tensor]], into: list[int]) -> list[Tensor]:
    started = time.perf_counter_ns()
    rows = work()
    into.append(time.perf_counter_ns() - started)
    return rows


def measure(tokens: int, own: list[Any], tier: EngineTier, model: Model, ids_of: Callable[[int], Tensor]) -> Any:
    hook = engram.issue_after_hash(tier)
    mode = ForwardMode.DECODE if tokens else ForwardMode.IDLE
    batch = SimpleNamespace(forward_mode=mode, out_cache_loc=torch.ones(tokens, dtype=torch.int64))
    stock_ns: list[int] = []
    plugin_ns: list[int] = []
    for _ in range(WARM_UP + STEPS[tokens]):
        ids = ids_of(tokens)

        def looked_up(ids: Tensor = ids) -> list[Tensor]:
            hook(ids, model.hasher, None, batch)
            return [layer.embed(ids[:, k], batch) for k, layer in enumerate(model.engrams)]

        expected = timed(lambda ids=ids: [one(ids[:, k], batch) for k, one in enumerate(own)], stock_ns)
        found = timed(looked_up, plugin_ns)
        for want, got in zip(expected, found, strict=True):
            assert torch.equal(want.view(torch.int16), got.view(torch.int16)), "rows differ"
    return {"tokens": tokens, "steps": STEPS[tokens], "stock_us": summary(stock_ns), "plugin_us": summary(plugin_ns)}


def summary(times_ns: list[int]) -> dict[str, float]:
    kept = np.array(times_ns[WARM_UP:]) / 1000
    return {"median": float(np.median(kept)), "p99": float(np.percentile(kept, 99))}


def main(checkpoint: str, settings: str) -> None:
    folder = Path(checkpoint)
    place = SimpleNamespace(tp_rank=0, tp_size=1, attn_dp_size=1, attn_cp_size=1)
    stock.get_parallel = lambda: place
    EngineTier.parallel = staticmethod(lambda: place)  # type: ignore[method-assign]
    config = json.loads((folder / "config.json").read_text())
    layout = stock.EngramLayout.from_config(SimpleNamespace(**config))
    columns = (layout.max_ngram_size - 1) * layout.n_heads
    torch.manual_seed(1)
    torch.set_num_threads(1)
    own = loaded(folder, layout)
    tier, model = tiered(settings, folder, layout, columns)

    def ids_of(tokens: int) -> Tensor:
        return torch.stack([torch.randint(0, rows, (tokens, columns)) for rows in layout.num_embeddings], dim=1)

    print(json.dumps([measure(tokens, own, tier, model, ids_of) for tokens in STEPS]))


if __name__ == "__main__":
    main(*sys.argv[1:])
