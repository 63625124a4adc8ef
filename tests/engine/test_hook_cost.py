# SPDX-License-Identifier: Apache-2.0
"""What a step's lookups cost the host: no batch, 1 token, 128 tokens, the plugin's hooks beside stock's gather."""

from __future__ import annotations

import json

import material
import pytest
from engine_process import RELEASES, environment, python
from material import Plugin

COMMAND = ("-W", "ignore", "-c", "from slacktier_cli.main import main; main()", "bench", "hooks", "--json")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("release", [pytest.param(RELEASES[0], marks=pytest.mark.full), RELEASES[1]])
def test_host_cost_of_a_step_is_measured_beside_the_stock_gather(release: str, plugin: Plugin, full: bool) -> None:
    """The command compares both ways' rows bit for bit before it times them; its figures are printed, not held."""
    size = ("--steps", "500") if full else ("--table-gib", "0.25", "--steps", "60")
    found = json.loads(material.run([python(), *COMMAND, *size], environment(release, plugin.site)))
    for cell in found["cells"]:
        arms = {name: times for name, times in cell.items() if isinstance(times, dict)}
        assert set(arms) >= ({"stock", "cached", "missing"} if cell["tokens"] else {"idle"})
        for name, times in arms.items():
            assert 0 <= times["p50_us"] <= times["p99_us"]
            figures = f"{times['p50_us']:.0f} us (p99 {times['p99_us']:.0f})"
            print(f"\n{release}, {cell['tokens']} tokens, {name}: {figures}", end="")
    assert found["rows_compared"] > 0
    assert [cell["tokens"] for cell in found["cells"]] == [0, 1, 128]
