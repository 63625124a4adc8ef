# SPDX-License-Identifier: Apache-2.0
"""Stock, plugin, and plugin over zeroed rows: the same requests over HTTP, the same tokens and printed logprobs.

Goal: the plugin changes nothing that a client can see. Method: two servers of the same release, checkpoint and batch
shapes answer more than 200 requests each; every token, printed logprob and count of cached tokens has to be equal. A
third server, whose rows are zeros, has to differ: the answers do hang on the table. Qwen's also equal those
of transformers' eager model.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from conftest import Fleet, Regions
from engine_process import RELEASES
from material import Reference, tables
from servers import Shape
from workload import FEW, SOME, WHOLE, WHOLE_SHORT, Answer, Size, ask, converse, differences, of_each, prompts

OLD, NEW = RELEASES


@dataclass(frozen=True)
class Case:
    release: str
    family: str
    shape: Shape

    @property
    def is_compared_with_transformers(self) -> bool:
        """One request at a time, unchunked, unsplit: the matrix products have the eager model's shapes."""
        return self.family == "qwen" and self.shape.tp == 1 and not self.shape.chunk

    @property
    def is_zeroed_too(self) -> bool:
        """Rows are the same to one rank and to several, and to start several twice takes minutes."""
        return self.shape.tp == 1

    def size(self, full: bool) -> Size:
        if self.family == "engram":
            return WHOLE
        if not full:
            return SOME
        return WHOLE if self.is_compared_with_transformers else WHOLE_SHORT

    def __str__(self) -> str:
        return f"{self.family}-{self.release.partition('==')[2]}-{self.shape}"


# Stock refuses these on a CPU, whatever the table: test_combinations_that_stock_cannot_run. Without a prefix tree it
# runs them, so that is how they are in the matrix.
STOCK_REFUSES = {
    ("qwen", True): "extra_buffer requires platform support for Mamba cache state snapshots",
}
CI = [
    Case(NEW, "engram", Shape(overlap=True, chunk=8)),
    Case(OLD, "engram", Shape(tp=2, overlap=False)),
    Case(NEW, "qwen", Shape(overlap=False)),
]
MATRIX = [
    Case(release, family, Shape(tp, overlap, chunk, keeps_prefixes=(family, overlap) not in STOCK_REFUSES))
    for family in ("engram", "qwen")
    for release in (NEW, OLD)
    for tp in (1, 2)
    for overlap in (True, False)
    for chunk in (0, 8)
]
assert set(CI) <= set(MATRIX)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "case", [pytest.param(case, id=str(case), marks=[] if case in CI else [pytest.mark.full]) for case in MATRIX]
)
def test_answers_of_the_plugin_equal_those_of_stock_and_hang_on_the_rows(
    case: Case, fleet: Fleet, regions: dict[str, Regions], zero_regions: dict[str, Regions], reference: Reference,
    full: bool,
) -> None:  # fmt: skip
    began_s = time.monotonic()
    size = case.size(full)
    with ExitStack() as stack:
        starts = [
            fleet.stock(case.release, case.family, case.shape, ready=False),
            fleet.tiered(case.release, case.family, tables(regions[case.family]), case.shape, ready=False),
        ]
        servers = [stack.enter_context(start) for start in starts]
        for server in servers:
            server.wait_ready()
        assert servers[1].control("/readyz")[0] == 200
        expected, found = of_each(servers, lambda server: converse(server, size))
        metrics = servers[1].control("/metrics")[1]
    answers = sum(map(len, expected.values()))
    assert answers == size.requests
    wrong = differences(expected, found)
    print(f"\n{case}: {answers} requests, {len(wrong)} differ; {time.monotonic() - began_s:.0f} s")
    assert not wrong, f"{len(wrong)} of {answers} answers differ:\n" + "\n".join(wrong[:5])
    if case.is_zeroed_too:
        zeroed = answers_over_zeroed_rows(case, fleet, zero_regions[case.family], size)
        stock = expected["single"][: len(zeroed)]
        other = sum(one.tokens != right.tokens for one, right in zip(zeroed, stock, strict=True))
        print(f"{case}: over zeroed rows {other} of {len(zeroed)} differ in a token")
        assert other > len(zeroed) / 2
        assert all(one.logprobs != right.logprobs for one, right in zip(zeroed, stock, strict=True))
    if case.is_compared_with_transformers:
        assert_equals_transformers(case, found["single"], reference)
    # The tier was used: without it the answers would be equal as well.
    assert any(
        line.startswith("slacktier_lookups_total{") and not line.endswith(" 0.0") for line in metrics.splitlines()
    )


def answers_over_zeroed_rows(case: Case, fleet: Fleet, zeros: Regions, size: Size) -> list[Answer]:
    """To the first single requests, from a server whose table is all zeros. Alone: three servers take much memory."""
    unchecked = {"check": {"checkpoint": "none"}}
    with fleet.tiered(case.release, case.family, tables(zeros), case.shape, settings=unchecked) as server:
        asked = prompts(FEW.single, seed=1, most=size.prompt_max)
        return [ask(server, prompt, size.new_tokens) for prompt in asked]


def assert_equals_transformers(case: Case, found: list[Answer], reference: Reference) -> None:
    decided = [reference.decided(index) for index in range(min(len(found), len(reference.prompts)))]
    for index, tokens in enumerate(decided):
        assert found[index].tokens[: len(tokens)] == tokens
    count = sum(map(len, decided))
    assert count >= 2 * len(decided)
    print(f"{case}: {count} tokens of {len(decided)} answers equal those of transformers' eager model")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("release", [pytest.param(OLD, marks=pytest.mark.full), NEW])
def test_combinations_that_stock_cannot_run(release: str, fleet: Fleet) -> None:
    """A release in which one runs makes this fail: the matrix has it then."""
    for (family, overlap), error in STOCK_REFUSES.items():
        with fleet.stock(release, family, Shape(overlap=overlap), ready=False) as server:
            code = server.wait_end(300)
            log = server.log.read_text(errors="replace")
        assert code != 0
        assert error in log, server.last_lines()
        print(f"\n{release} {family}, {'overlap' if overlap else 'serial'} schedule: stock does not start: {error}")


def test_cases_of_ci_cover_both_releases_families_and_widths() -> None:
    assert {(case.release, case.shape.tp) for case in CI} >= {(OLD, 2), (NEW, 1)}
    assert {case.family for case in CI} == {"engram", "qwen"}
