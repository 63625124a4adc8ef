# SPDX-License-Identifier: Apache-2.0
"""What a run does with what is on its targets: begin, go on, compare, or refuse with the way out."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from slacktier.errors import ConfigError
from slacktier.page import RowFormat, State, Superblock
from slacktier_tierd.plan import Action, Found, plan_staging

WANTED = Superblock(
    table_uuid=uuid.UUID(int=1), layer_id=1, epoch=1, row_count=60_000, payload_bytes=256, scale_bytes=8,
    row_format=RowFormat.RAW, model="m", revision="", source="s", source_digest=b"0" * 32,
)  # fmt: skip
STRIPED = replace(WANTED, stripe_count=2)
MIDWAY = replace(WANTED, staged_pages=2048, source_digest=b"2" * 32, sequence=7)
COMPLETE = replace(WANTED, state=State.COMPLETE, staged_pages=4000, source_digest=b"4" * 32, sequence=9)


def found(*superblocks: Superblock | None, exists: bool = True) -> list[Found]:
    return [
        Found(Path(f"t{index}"), exists or sb is not None, sb and replace(sb, stripe_index=index))
        for index, sb in enumerate(superblocks)
    ]


def test_absent_file_begins_with_epoch_1() -> None:
    plan = plan_staging(WANTED, found(None, exists=False), may_format=False, restage=False)
    assert (plan.action, plan.superblock) == (Action.START, WANTED)


def test_target_that_is_not_ours_needs_leave_to_format() -> None:
    with pytest.raises(ConfigError, match="carries no superblock of ours") as caught:
        plan_staging(WANTED, found(None), may_format=False, restage=True)
    assert caught.value.hint == "--format writes over it"
    assert plan_staging(WANTED, found(None), may_format=True, restage=False).action is Action.START


def test_leave_to_format_does_not_wipe_what_is_ours() -> None:
    assert plan_staging(WANTED, found(COMPLETE), may_format=True, restage=False).action is Action.COMPARE
    assert plan_staging(WANTED, found(MIDWAY), may_format=True, restage=False).action is Action.RESUME


def test_killed_run_goes_on_at_its_watermark() -> None:
    plan = plan_staging(WANTED, found(MIDWAY), may_format=False, restage=False)
    assert plan.action is Action.RESUME
    assert (plan.superblock.staged_pages, plan.superblock.source_digest) == (2048, b"2" * 32)
    assert (plan.superblock.state, plan.superblock.sequence) == (State.STAGING, 8)


def test_stripes_at_two_watermarks_go_on_at_the_lower() -> None:
    ahead = replace(STRIPED, staged_pages=3072, source_digest=b"3" * 32, sequence=8)
    behind = replace(STRIPED, staged_pages=2048, source_digest=b"2" * 32, sequence=7)
    for pair in ((ahead, behind), (behind, ahead)):
        plan = plan_staging(STRIPED, found(*pair), may_format=False, restage=False)
        assert (plan.action, plan.superblock.staged_pages) == (Action.RESUME, 2048)
        assert (plan.superblock.source_digest, plan.superblock.sequence) == (b"2" * 32, 9)


def test_one_stripe_complete_and_one_at_the_end_only_verifies() -> None:
    done = replace(STRIPED, state=State.COMPLETE, staged_pages=4000, sequence=9)
    last = replace(STRIPED, staged_pages=4000, sequence=8)
    plan = plan_staging(STRIPED, found(done, last), may_format=False, restage=False)
    assert (plan.action, plan.superblock.staged_pages) == (Action.RESUME, 4000)
    assert plan.superblock.state is State.STAGING


def test_kill_between_the_stripes_first_superblocks_begins_again_with_the_same_epoch() -> None:
    plan = plan_staging(STRIPED, found(STRIPED, None, exists=False), may_format=False, restage=False)
    assert (plan.action, plan.superblock.epoch) == (Action.START, 1)
    newer, older = replace(STRIPED, epoch=2, sequence=10), replace(COMPLETE, stripe_count=2)
    plan = plan_staging(STRIPED, found(newer, older), may_format=False, restage=False)
    assert (plan.action, plan.superblock.epoch, plan.superblock.sequence) == (Action.START, 2, 11)


def test_complete_stripe_beside_a_missing_one_is_not_written_over_unasked() -> None:
    complete = replace(COMPLETE, stripe_count=2)
    with pytest.raises(ConfigError, match="only 1 of 2 stripes") as caught:
        plan_staging(STRIPED, found(complete, None, exists=False), may_format=False, restage=False)
    assert "--restage" in caught.value.hint
    plan = plan_staging(STRIPED, found(complete, None, exists=False), may_format=False, restage=True)
    assert (plan.action, plan.superblock.epoch) == (Action.START, 2)


@pytest.mark.parametrize("state", [MIDWAY, COMPLETE])
def test_restage_begins_with_the_next_epoch(state: Superblock) -> None:
    plan = plan_staging(WANTED, found(replace(state, epoch=4)), may_format=False, restage=True)
    assert (plan.action, plan.superblock.epoch, plan.superblock.staged_pages) == (Action.START, 5, 0)
    assert plan.superblock.sequence == state.sequence + 1


@pytest.mark.parametrize(
    "change",
    [
        {"table_uuid": uuid.UUID(int=2)}, {"layer_id": 14}, {"row_count": 59_999}, {"payload_bytes": 255},
        {"scale_bytes": 4}, {"tensor_scale": 0.5}, {"stripe_count": 2},
    ],
)  # fmt: skip
@pytest.mark.parametrize("base", [MIDWAY, COMPLETE])
def test_another_table_is_refused_unless_restaged(base: Superblock, change: dict[str, object]) -> None:
    other = replace(base, state=State.STAGING, staged_pages=1024, **change)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"holds m layer .*, not m layer 1, 60000 rows of 256 \+ 8 bytes") as caught:
        plan_staging(WANTED, found(other), may_format=True, restage=False)
    assert "--restage" in caught.value.hint
    assert plan_staging(WANTED, found(other), may_format=False, restage=True).action is Action.START


def test_stripes_in_the_wrong_order_are_refused() -> None:
    swapped = [
        Found(Path("b"), True, replace(COMPLETE, stripe_count=2, stripe_index=1)),
        Found(Path("a"), True, replace(COMPLETE, stripe_count=2, stripe_index=0)),
    ]
    with pytest.raises(ConfigError, match=r"stripe 1 of 2 .*not .*stripe 0 of 2"):
        plan_staging(STRIPED, swapped, may_format=False, restage=False)


def test_partial_region_is_not_staged_over_unasked() -> None:
    partial = replace(MIDWAY, state=State.PARTIAL)
    with pytest.raises(ConfigError, match="partial region"):
        plan_staging(WANTED, found(partial), may_format=True, restage=False)


def test_foreign_stripe_beside_ours_with_leave_to_format_begins_a_new_epoch() -> None:
    plan = plan_staging(STRIPED, found(replace(COMPLETE, stripe_count=2), None), may_format=True, restage=False)
    assert (plan.action, plan.superblock.epoch) == (Action.START, 2)
