# SPDX-License-Identifier: Apache-2.0
"""Miss curves at several loads: a curve for any load, and the assumption that it took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slacktier.errors import ConfigError
from slacktier.window_model import MissCurve, check_number


@dataclass(frozen=True, slots=True)
class MissTable:
    """One workload's curves, by concurrent sessions."""

    curves: Mapping[int, MissCurve]

    def __post_init__(self) -> None:
        if not self.curves:
            raise ConfigError("miss curves: none given")
        for sessions in self.curves:
            check_number("miss curves: sessions", sessions, above=0)

    def at(self, sessions: int) -> tuple[MissCurve, str]:
        """The curve at this load and what was assumed, "" where it was measured.

        Between two measured loads pages lie on a line at equal cache sizes. Beyond them the nearest is scaled as if
        every session brought its own rows: n times the sessions read n times the pages, from a cache that holds one
        n-th for each. Real sessions share rows, so for more sessions this is the cautious side.
        """
        loads = sorted(self.curves)
        if sessions in self.curves:
            return self.curves[sessions], ""
        if not loads[0] < sessions < loads[-1]:
            nearest = loads[0] if sessions < loads[0] else loads[-1]
            return _scaled(self.curves[nearest], sessions / nearest), (
                f"misses of {nearest} sessions scaled to {sessions} as if sessions shared no rows"
            )
        low = max(load for load in loads if load < sessions)
        high = min(load for load in loads if load > sessions)
        share = (sessions - low) / (high - low)
        first, second = self.curves[low], self.curves[high]
        sizes = sorted({rows for rows, _ in first.points} | {rows for rows, _ in second.points})
        points = ((rows, first.pages(rows) * (1 - share) + second.pages(rows) * share) for rows in sizes)
        return MissCurve(tuple(points)), f"misses at {sessions} sessions from those at {low} and {high}"


def _scaled(curve: MissCurve, factor: float) -> MissCurve:
    return MissCurve(tuple({round(rows * factor): pages * factor for rows, pages in curve.points}.items()))


@dataclass(frozen=True, slots=True)
class MissSet:
    """Workloads by name."""

    tables: Mapping[str, MissTable]

    def curve(self, name: str, sessions: int) -> tuple[MissCurve, str]:
        """The named workload's curve; raises ConfigError for a name that is not there."""
        if name not in self.tables:
            raise ConfigError(f"misses: {name!r} is not given, only {', '.join(sorted(self.tables)) or 'none'}")
        return self.tables[name].at(sessions)
