# SPDX-License-Identifier: Apache-2.0
"""Decides what a staging run does with what it finds on its targets. Pure: no clock, no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from slacktier.errors import ConfigError
from slacktier.page import State, Superblock


class Action(StrEnum):
    """What a run does: write from page 0 on, go on at the watermark, or only compare."""

    START = "start"
    RESUME = "resume"
    COMPARE = "compare"


@dataclass(frozen=True, slots=True)
class Plan:
    """The action and the superblock to go on from; its stripe index is 0, targets set their own.

    superblock  START: staging, nothing staged. RESUME: staging, at the watermark. COMPARE: as found, complete
    """

    action: Action
    superblock: Superblock


@dataclass(frozen=True, slots=True)
class Found:
    """What is on one target, in stripe order.

    of_source  it is a file of the checkpoint that is staged, by whatever name
    """

    path: Path
    exists: bool
    superblock: Superblock | None
    of_source: bool = False


def plan_staging(wanted: Superblock, found: Sequence[Found], *, may_format: bool, restage: bool) -> Plan:
    """The run's plan; raises ConfigError with the way out where the targets must not be touched.

    wanted  a new staging of the table: epoch 1, nothing staged, digest = the chain's start
    """
    _refuse_source(found)
    _refuse_foreign(found, may_format=may_format)
    ours = [(index, each.path, each.superblock) for index, each in enumerate(found) if each.superblock is not None]
    if not ours:
        return Plan(Action.START, wanted)
    epoch_max = max(sb.epoch for _, _, sb in ours)
    sequence_max = max(sb.sequence for _, _, sb in ours)
    fresh = replace(wanted, epoch=epoch_max + 1, sequence=sequence_max + 1)
    if restage:
        return Plan(Action.START, fresh)
    for index, path, sb in ours:
        _refuse_other(path, sb, replace(wanted, stripe_index=index))
    if any(each.exists and each.superblock is None for each in found):
        return Plan(Action.START, fresh)  # a foreign target among ours, with leave to format it
    current = [sb for _, _, sb in ours if sb.epoch == epoch_max]
    begun = [sb for sb in current if sb.state is not State.STAGING or sb.staged_pages]
    if not begun:
        # The stripes' superblocks are written one after the other; a kill may have come between two of them.
        return Plan(Action.START, replace(wanted, epoch=epoch_max, sequence=sequence_max + 1))
    if len(current) < len(found):
        raise ConfigError(
            f"{ours[0][1]}: only {len(current)} of {len(found)} stripes hold this staging",
            hint="name all its stripes in their order, or --restage to write all of them anew",
        )
    if all(sb.state is State.COMPLETE for sb in current):
        return Plan(Action.COMPARE, replace(current[0], stripe_index=0))
    behind = min(current, key=lambda sb: sb.staged_pages)
    if behind.staged_pages == 0:
        return Plan(Action.START, replace(wanted, epoch=epoch_max, sequence=sequence_max + 1))
    return Plan(
        Action.RESUME,
        replace(
            wanted, epoch=epoch_max, sequence=sequence_max + 1, staged_pages=behind.staged_pages,
            source_digest=behind.source_digest,
        ),
    )  # fmt: skip


def _refuse_source(found: Sequence[Found]) -> None:
    """No flag helps here: what --format would write over is what the rows come from."""
    for each in found:
        if (
            each.exists and each.of_source and each.superblock is None
        ):  # a region of ours may lie in the checkpoint's directory
            raise ConfigError(
                f"{each.path}: is a file of the checkpoint that is staged; nothing is written over it",
                hint="name another target",
            )


def _refuse_foreign(found: Sequence[Found], *, may_format: bool) -> None:
    for each in found:
        if each.exists and each.superblock is None and not may_format:
            raise ConfigError(
                f"{each.path}: carries no superblock of ours; what is on it may be needed",
                hint="--format writes over it",
            )


def _shape(sb: Superblock) -> tuple[object, ...]:
    return (
        sb.table_uuid, sb.layer_id, sb.row_count, sb.payload_bytes, sb.scale_bytes, sb.row_format, sb.tensor_scale,
        sb.stripe_count, sb.stripe_index,
    )  # fmt: skip


def _refuse_other(path: Path, sb: Superblock, wanted: Superblock) -> None:
    if sb.state is State.PARTIAL:
        raise ConfigError(f"{path}: holds a partial region, made for tests", hint="--restage replaces it")
    if _shape(sb) != _shape(wanted):
        raise ConfigError(f"{path}: holds {_describe(sb)}, not {_describe(wanted)}", hint="--restage replaces it")


def _describe(sb: Superblock) -> str:
    revision = f"@{sb.revision}" if sb.revision else ""
    stripe = f", stripe {sb.stripe_index} of {sb.stripe_count}" if sb.stripe_count > 1 else ""
    return (
        f"{sb.model}{revision} layer {sb.layer_id}, {sb.row_count} rows of {sb.payload_bytes} + {sb.scale_bytes} "
        f"bytes{stripe} (table {sb.table_uuid})"
    )
