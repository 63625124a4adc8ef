# SPDX-License-Identifier: Apache-2.0
"""What a step's lookups cost the host: no batch, 1 token, 128 tokens, the plugin's hooks beside stock's gather."""

from __future__ import annotations

import json
from pathlib import Path

import material
import pytest
from engine_process import RELEASES, environment, python
from material import LAYERS, Plugin, tables

TABLE_BYTES = 256 << 20  # far more than any cache of the processor's, so that both read memory


@pytest.mark.timeout(900)
@pytest.mark.parametrize("release", [pytest.param(RELEASES[0], marks=pytest.mark.full), RELEASES[1]])
@pytest.mark.parametrize("cached", [True, False], ids=["all rows cached", "no row cached"])
def test_host_cost_of_a_step_beside_the_stock_gather(
    release: str, cached: bool, plugin: Plugin, tmp_path: Path
) -> None:
    """Prints medians and p99s; what is asserted is that both computed the same rows, in every step timed."""
    checkpoint = material.engram_checkpoint(TABLE_BYTES)
    regions = {layer: [material.stage(checkpoint, layer, tmp_path / f"{layer}.region")] for layer in LAYERS["engram"]}
    described = tables(regions, tier="dram")
    for table, rows in zip(described, row_counts(checkpoint), strict=True):
        table["cache_rows"] = rows if cached else 0
    settings = json.dumps({"tables": described, "listen": {"host": "127.0.0.1"}})
    script = Path(__file__).with_name("hook_cost.py")
    answered = material.run(
        [python(), "-W", "ignore", script, checkpoint, settings], environment(release, plugin.site), limit_s=600
    )
    for found in json.loads(answered.splitlines()[-1]):
        stock, ours = found["stock_us"], found["plugin_us"]
        print(f"\n{release} {found['tokens']} tokens: stock {stock['median']:.0f} us (p99 {stock['p99']:.0f})")
        print(f"plugin {ours['median']:.0f} us (p99 {ours['p99']:.0f}), ratio {ours['median'] / stock['median']:.2f}")
        assert found["steps"] >= 100


def row_counts(checkpoint: Path) -> list[int]:
    counts: list[int] = json.loads((checkpoint / "config.json").read_text())["engram_num_embeddings"]
    return counts
