# SPDX-License-Identifier: Apache-2.0
"""What a generator measured, as it travels between processes: plain JSON values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

from slacktier_cli.replay.metrics import Outcome, StreamRecord

_FIELDS = tuple(field.name for field in fields(StreamRecord))


@dataclass(frozen=True, slots=True)
class Finished:
    """One request of a block: the turn_index-th of its session, sent by `user`; max_tokens is what was asked for."""

    user: int
    session: str
    turn_index: int
    max_tokens: int
    record: StreamRecord

    @property
    def request(self) -> tuple[int, str, int]:
        """The same in every arm and round."""
        return self.user, self.session, self.turn_index

    def as_json(self) -> list[Any]:
        values = [getattr(self.record, name) for name in _FIELDS]
        return [self.user, self.session, self.turn_index, self.max_tokens, values]

    @classmethod
    def from_json(cls, content: Sequence[Any]) -> Self:
        user, session, turn_index, max_tokens, values = content
        record = StreamRecord(**dict(zip(_FIELDS, values, strict=True)))
        record.outcome = Outcome(record.outcome)
        return cls(user, session, turn_index, max_tokens, record)


@dataclass(frozen=True, slots=True)
class GeneratorLoad:
    """How busy one generator process was in a block.

    lag_ms   (p50, p99, max) of how late it did what was due; cpu is its CPU time as a share of the block
    samples  how many times lag was looked at
    """

    process: str
    lag_ms: tuple[float, float, float]
    samples: int
    cpu: float

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        return cls(content["process"], tuple(content["lag_ms"]), content["samples"], content["cpu"])


@dataclass(frozen=True, slots=True)
class BlockRecords:
    """One block as its generators saw it; seconds from the first request sent to the last answer's end."""

    finished: tuple[Finished, ...]
    seconds: float
    generators: tuple[GeneratorLoad, ...]

    @property
    def completed(self) -> list[Finished]:
        return [each for each in self.finished if each.record.outcome is Outcome.COMPLETED]

    @property
    def failed(self) -> list[Finished]:
        return [each for each in self.finished if each.record.outcome is not Outcome.COMPLETED]

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        return cls(
            tuple(Finished.from_json(each) for each in content["finished"]),
            content["seconds"],
            tuple(GeneratorLoad.from_json(each) for each in content["generators"]),
        )
