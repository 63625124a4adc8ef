# SPDX-License-Identifier: Apache-2.0
"""Records -> figures, overheads and faults, from times that are given."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from loadtest_fixtures import IDLE, answered, block, broken

from slacktier_loadtest.bootstrap import overhead
from slacktier_loadtest.faults import Limits, faults
from slacktier_loadtest.figures import ArmFigures, BlockResult, arm_figures
from slacktier_loadtest.records import BlockRecords, Finished, GeneratorLoad
from slacktier_loadtest.scenario import Slo


def figures(*blocks: BlockResult, slo: Slo | None = None) -> ArmFigures:
    return arm_figures(blocks[0].arm, blocks, slo or Slo())


def test_percentiles_are_over_requests_and_extremes_over_blocks() -> None:
    found = figures(block("a", 0, [answered(10), answered(20)]), block("a", 1, [answered(30), answered(40)]))
    assert found.tpot is not None
    assert found.tpot.as_dict() == pytest.approx(
        {"mean": 25, "p50": 25, "p95": 38.5, "p99": 39.7, "min": 15, "max": 35}
    )
    assert found.total_s == 10
    assert found.completed == 4


def test_what_has_no_tpot_is_counted_by_reason_and_not_averaged() -> None:
    records = [answered(10), answered(0, tokens=1), answered(5, tokens=9, chunks=1), answered(10, usage=False)]
    found = figures(block("a", 0, records))
    assert found.unmeasured == {"one token": 1, "one chunk": 1, "no usage": 1}
    assert found.tpot is not None
    assert found.tpot.mean == pytest.approx(10)
    assert found.ttft is not None  # which all four have


def test_tokens_per_chunk_and_chunk_gaps_go_by_their_own_names() -> None:
    found = figures(block("a", 0, [answered(10, tokens=80, chunks=20)]))
    assert found.tokens_per_chunk == 4
    assert found.tpot is not None
    assert found.gaps is not None
    assert found.tpot.mean == pytest.approx(10)
    assert found.gaps.mean == pytest.approx(10 * 79 / 19)


def test_goodput_counts_requests_within_every_limit() -> None:
    records = [answered(10), answered(30), answered(10, ttft_ms=900), answered(0, tokens=1), broken()]
    found = figures(block("a", 0, records, seconds=2.0), slo=Slo(ttft_ms=500, tpot_ms=20))
    assert found.good_per_s == 1.0  # the first, and the one that has no further token
    assert found.good_share == pytest.approx(2 / 5)


def test_answer_without_a_measurable_tpot_is_not_good() -> None:
    found = figures(block("a", 0, [answered(10, usage=False)]), slo=Slo(tpot_ms=20))
    assert found.good_share == 0


def test_overhead_pairs_requests_of_one_round() -> None:
    base = [block("dram", r, [answered(10 + r), answered(20 + r)]) for r in range(3)]
    slower = [block("nvme", r, [answered(11 + 1.1 * r), answered(22 + 1.1 * r)]) for r in range(3)]
    found = overhead(slower, base, seed=1)
    assert found is not None
    assert found.percent == pytest.approx(10, abs=0.5)
    assert found.pairs == 6
    assert found.interval[0] <= found.percent <= found.interval[1]
    assert not found.is_tie


def test_overhead_of_noise_is_a_tie() -> None:
    base = [block("dram", r, [answered(10 + (r + i) % 3) for i in range(9)]) for r in range(3)]
    same = [block("nvme", r, [answered(10 + (r + i + 1) % 3) for i in range(9)]) for r in range(3)]
    found = overhead(same, base, seed=1)
    assert found is not None
    assert found.is_tie


def test_requests_measured_in_one_arm_only_are_not_compared() -> None:
    found = overhead(
        [block("nvme", 0, [answered(12), broken()])], [block("dram", 0, [answered(10), answered(99)])], seed=1
    )
    assert found is not None
    assert found.pairs == 1
    assert found.percent == pytest.approx(20)
    assert overhead([block("nvme", 1, [answered(12)])], [block("dram", 0, [answered(10)])], seed=1) is None


def found_faults(*arms: ArmFigures, expected: int = 2, **limits: Any) -> list[str]:
    base = arms[0]
    overheads = {arm.name: over for arm in arms[1:] if (over := overhead(arm.blocks, base.blocks, seed=1)) is not None}
    return faults(arms, overheads, Limits(**limits), expected=expected)


GOOD = figures(block("dram", 0, [answered(10), answered(10)]))


def test_good_run_has_no_fault() -> None:
    assert found_faults(GOOD, figures(block("nvme", 0, [answered(11), answered(11)]))) == []


def test_failed_requests_are_told_with_what_was_said() -> None:
    (failed, unequal) = found_faults(GOOD, figures(block("nvme", 0, [answered(10), broken()])))
    assert failed == "arm nvme: 1 of 2 requests failed: HTTP 503: busy (1)"
    assert unequal == "not every block completed the same 2 requests: dram 2; nvme 1"


def test_other_answers_and_other_lengths_are_faults() -> None:
    wrong = figures(block("nvme", 0, [answered(10, crc=8), answered(10)]))
    assert "arm nvme: 1 answers differ" in found_faults(GOOD, GOOD, wrong)[0]
    assert found_faults(GOOD, GOOD, wrong, equal_answers=False) == []
    other_round = figures(block("dram", 0, [answered(10)]), block("dram", 1, [answered(10, crc=8)]))
    assert "1 answers differ" in found_faults(other_round, expected=1)[0]
    assert found_faults(other_round, expected=1, equal_rounds=False) == []  # its prompts began otherwise
    assert "1 answers differ" in found_faults(GOOD, GOOD, wrong, equal_rounds=False)[0]
    short = figures(block("nvme", 0, [answered(10, tokens=5), answered(10)]))
    assert found_faults(GOOD, short) == [
        "arm nvme: 1 answers of another length than asked for, such as 5 tokens instead of 11"
    ]


@pytest.mark.parametrize(
    ("load", "said"),
    [
        (replace(IDLE, lag_ms=(0.1, 7.5, 9.0)), "lag p99 7.5 ms in one block, at most 5 ms"),
        (replace(IDLE, cpu=0.93), "93% of a core in one block, at most 70%"),
    ],
)
def test_busy_generator_voids_the_run(load: GeneratorLoad, said: str) -> None:
    (fault,) = found_faults(figures(block("dram", 0, [answered(10), answered(10)], load=load)))
    assert "the generator was the bottleneck" in fault
    assert said in fault


def test_overhead_above_the_limit_is_a_fault_and_below_it_is_none() -> None:
    slow = figures(block("nvme", 0, [answered(10.2), answered(10.2)]))
    assert found_faults(GOOD, slow, overhead_pct=2.5) == []
    (fault,) = found_faults(GOOD, slow, overhead_pct=1.4)
    assert fault.startswith("arm nvme: mean TPOT +2.0 % against the baseline")


def test_records_survive_the_way_from_the_generator() -> None:
    finished = Finished(3, "s", 1, 9, answered(10))
    content = {
        "finished": [finished.as_json()], "seconds": 2.0,
        "generators": [{"process": "h:1", "lag_ms": [1, 2, 3], "samples": 4, "cpu": 0.5}],
    }  # fmt: skip
    assert BlockRecords.from_json(json.loads(json.dumps(content))) == BlockRecords(
        (finished,), 2.0, (GeneratorLoad("h:1", (1, 2, 3), 4, 0.5),)
    )
