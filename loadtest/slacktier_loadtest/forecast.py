# SPDX-License-Identifier: Apache-2.0
"""What the window rule says that each placement adds to a decode step, from windows and pages that the run measured.

For an emulated device the rule is given the delay model in force. For real tiers the read model is fitted to these
same arms, so that there the rule is tested, not the fit. The page cache is outside the rule: nobody decides when it
reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from slacktier.errors import SlackTierError
from slacktier.window import Place, predict
from slacktier_cli.demo.arms import BASELINE, Arm
from slacktier_cli.demo.placement import device_name, place_tables
from slacktier_cli.demo.results import BlockResult as CountedBlock
from slacktier_cli.demo.results import arm_figures
from slacktier_cli.demo.tables import StagedTable
from slacktier_cli.demo.traffic import Served, Traffic
from slacktier_loadtest.arms import PAGE_CACHE
from slacktier_loadtest.figures import BlockResult
from slacktier_loadtest.scenario import EmulatedSpec

_SLO_PCT: Final = 1.0  # the placement that is asked for along the way is not used


def predicted_slowdowns(
    arms: Sequence[Arm], blocks: Sequence[BlockResult], tables: Sequence[StagedTable], spec: EmulatedSpec
) -> tuple[dict[str, float], str]:
    """Slowdown of a decode step in ms against the arm `dram`, by arm, and why arms are missing, or ""."""
    known = [arm for arm in arms if arm.name != PAGE_CACHE]
    if BASELINE not in (arm.name for arm in known):
        return {}, f"no prediction: arm {BASELINE} was not run, whose windows and steps it starts from"
    by_name = {arm.name: arm for arm in known}
    counted = [_counted(by_name[block.arm], block) for block in blocks if block.arm in by_name and block.reports]
    try:
        figures = arm_figures(known, counted, spec.cache_rows)
        placement = place_tables(
            figures, row_counts=[table.rows for table in tables],
            row_bytes=tables[0].payload_bytes + tables[0].scale_bytes, ranks=spec.tp, cache_rows=spec.cache_rows,
            slo_pct=_SLO_PCT,
        )  # fmt: skip
    except SlackTierError as exc:
        return {}, f"no prediction: {exc}"
    # Each of the servers reads its own pages from the devices that they share.
    devices = tuple(replace(device, instances=spec.instances) for device in placement.problem.devices)
    problem = replace(placement.problem, devices=devices)
    slowdowns: Mapping[str, float] = {
        figure.arm.name: predict(
            problem,
            [
                Place(layer.layer_id, device_name(figure.arm.source(index)), layer.cache_rows)
                for index, layer in enumerate(figure.layers)
            ],
        ).slowdown_ms
        for figure in figures
        if figure.layers
    }
    return {name: slowdown - slowdowns[BASELINE] for name, slowdown in slowdowns.items()}, ""


def _counted(arm: Arm, block: BlockResult) -> CountedBlock:
    served = [Served(each.user, index, each.record) for index, each in enumerate(block.finished)]
    return CountedBlock(block.round_index, arm, Traffic(served, 0, block.seconds, 0.0), block.reports[0], 0)
