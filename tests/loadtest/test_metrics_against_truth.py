# SPDX-License-Identifier: Apache-2.0
"""Every metric against a server that knows what it sent when, for each way to misbehave.

Goal: what a client is said to have seen is what was sent. Method: the server notes when each chunk left it, on the
clock that both processes share; the Locust generator measures; means and medians must agree within 2 ms or 2 %. Both
run ahead of the machine's other work where that is allowed, so that what they differ by is their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean, median

import pytest
from misbehaving_server import Behaviour, Sent, before_others, misbehaving, sent_by

from slacktier_cli.replay.metrics import Outcome, summarize
from slacktier_loadtest.figures import BlockResult, PhaseResult, arm_figures
from slacktier_loadtest.handle import Generator, GeneratorOptions, running_generator
from slacktier_loadtest.records import BlockRecords
from slacktier_loadtest.scenario import Slo
from slacktier_loadtest.script import BlockScript, RequestShape, SessionScript, TurnScript, message_json

USERS, TURNS, TOKENS = 4, 3, 24


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Generator]:
    with running_generator(
        GeneratorOptions(wrapper=tuple(before_others())), tmp_path_factory.mktemp("generator") / "log"
    ) as running:
        running.wait_ready()
        yield running


def script(url: str, *, is_chat: bool, tokens: int = TOKENS) -> BlockScript:
    new, answer = (message_json("user", "q"), message_json("assistant", "a")) if is_chat else ("5,6", "7")
    turns = tuple(TurnScript(new, answer, tokens) for _ in range(TURNS))
    users = tuple((SessionScript(f"s{user}", turns),) for user in range(USERS))
    shape = RequestShape("messages" if is_chat else "prompt", "", {"model": "misbehaving"})
    return BlockScript(users, (url,), shape, {}, 20.0)


def measure(
    generator: Generator, behaviour: Behaviour, *, is_chat: bool = True, tokens: int = TOKENS
) -> tuple[BlockRecords, list[Sent]]:
    with misbehaving(behaviour) as url:
        records = generator.run(script(url, is_chat=is_chat, tokens=tokens), lambda _: None)
        return records, sent_by(url)


def agree(measured_ms: list[float], true_ms: list[float]) -> None:
    assert len(measured_ms) == len(true_ms)
    for figure in (fmean, median):
        measured, true = figure(measured_ms), figure(true_ms)
        assert abs(measured - true) <= max(2.0, 0.02 * true), f"{figure.__name__}: measured {measured}, sent {true}"


BEHAVIOURS = {
    "plain": Behaviour(),
    "four tokens per chunk": Behaviour(tokens_per_chunk=4, gap_s=0.04),
    "coalesced chunks": Behaviour(coalesces=True),
    "role first": Behaviour(role_first_s=0.1, first_s=0.15),
    "comments": Behaviour(comment_s=0.005),
    "slow headers": Behaviour(slow_headers_s=0.2),
    "split characters": Behaviour(splits=True),
    "late usage and done": Behaviour(done_s=0.15),
}


@pytest.mark.parametrize("is_chat", [True, False], ids=["chat", "completions"])
@pytest.mark.parametrize("name", BEHAVIOURS)
def test_metrics_are_what_was_sent(generator: Generator, name: str, is_chat: bool) -> None:
    records, sent = measure(generator, BEHAVIOURS[name], is_chat=is_chat)
    found = [each.record for each in records.completed]
    assert len(found) == len(sent) == USERS * TURNS
    agree([ttft for r in found if (ttft := r.ttft_ms) is not None], [s.ttft_ms for s in sent])
    agree([tpot for r in found if (tpot := r.tpot_ms) is not None], [s.tpot_ms for s in sent])
    agree([e2e for r in found if (e2e := r.e2e_ms) is not None], [s.e2e_ms for s in sent])
    assert [r.completion_tokens for r in found] == [TOKENS] * len(found)
    if name != "coalesced chunks":  # two events of one write arrive at one instant
        agree([gap for r in found for gap in r.gaps_ms()], [gap for s in sent for gap in s.gaps_ms])
        assert sum(len(r.chunk_ns) for r in found) == sum(len(s.chunk_ns) for s in sent)


def test_four_tokens_per_chunk_do_not_pass_for_one(generator: Generator) -> None:
    """The chunk gap is 40 ms whatever a chunk holds; TPOT is a fifth to a quarter of it."""
    records, _ = measure(generator, Behaviour(tokens_per_chunk=4, gap_s=0.04), tokens=80)
    figures = arm_figures("a", [BlockResult(0, "a", (PhaseResult("", records),))], Slo())
    assert figures.tokens_per_chunk == 4
    assert figures.gaps is not None
    assert figures.tpot is not None
    assert figures.gaps.p50 == pytest.approx(40, abs=2)
    assert figures.tpot.p50 == pytest.approx(19 * 40 / 79, rel=0.02, abs=2)


def test_time_after_the_last_token_is_not_the_answers(generator: Generator) -> None:
    records, _ = measure(generator, Behaviour(done_s=0.3))
    ours = summarize(each.record.tpot_ms for each in records.completed)
    to_stream_end = summarize(each.record.sglang_tpot_ms for each in records.completed)
    assert ours is not None
    assert to_stream_end is not None
    assert to_stream_end.p50 - ours.p50 == pytest.approx(300 / (TOKENS - 1), abs=2)


def test_whole_answer_in_one_chunk_has_a_ttft_and_no_tpot(generator: Generator) -> None:
    records, sent = measure(generator, Behaviour(tokens_per_chunk=0))
    figures = arm_figures("a", [BlockResult(0, "a", (PhaseResult("", records),))], Slo())
    assert figures.unmeasured == {"one chunk": USERS * TURNS}
    assert figures.tpot is None
    agree([each.record.ttft_ms or 0 for each in records.completed], [s.ttft_ms for s in sent])


def test_missing_usage_is_counted_not_guessed(generator: Generator) -> None:
    records, sent = measure(generator, Behaviour(has_usage=False))
    figures = arm_figures("a", [BlockResult(0, "a", (PhaseResult("", records),))], Slo())
    assert figures.unmeasured == {"no usage": USERS * TURNS}
    agree([each.record.ttft_ms or 0 for each in records.completed], [s.ttft_ms for s in sent])


@pytest.mark.parametrize("status", [429, 503])
def test_refusals_are_failures_and_the_others_are_measured(generator: Generator, status: int) -> None:
    records, sent = measure(generator, Behaviour(refuse_every=4, status=status))
    assert {each.record.status for each in records.failed} == {status}
    assert len(records.failed) == USERS * TURNS // 4
    answered = [s for s in sent if s.end == "done"]
    agree([tpot for each in records.completed if (tpot := each.record.tpot_ms)], [s.tpot_ms for s in answered])
    agree([ttft for each in records.completed if (ttft := each.record.ttft_ms)], [s.ttft_ms for s in answered])


def test_streams_reset_midway_are_failures_and_the_others_are_measured(generator: Generator) -> None:
    records, sent = measure(generator, Behaviour(reset_every=3))
    assert len(records.failed) == USERS * TURNS // 3
    assert all("reset" in each.record.error.lower() for each in records.failed)
    assert {each.record.outcome for each in records.failed} == {Outcome.FAILED}
    answered = [s for s in sent if s.end == "done"]
    agree([tpot for each in records.completed if (tpot := each.record.tpot_ms)], [s.tpot_ms for s in answered])


def test_pauses_come_before_later_turns_and_count_for_no_request(generator: Generator) -> None:
    with misbehaving(Behaviour(gap_s=0.002)) as url:
        plain = script(url, is_chat=False)
        turns = tuple(TurnScript("5", "6", 8, 0.2 if number else 0.0) for number in range(2))
        paused = BlockScript(((SessionScript("s", turns),),), (url,), plain.shape, {}, 20.0)
        records = generator.run(paused, lambda _: None)
        first, second = sent_by(url)
    assert 0.19 < (second.received_ns - first.last_ns) / 1e9 < 0.5
    assert max(each.record.e2e_ms or 0 for each in records.completed) < 190


def test_open_loop_sends_when_sessions_arrive(generator: Generator) -> None:
    with misbehaving(Behaviour(first_s=0.5, gap_s=0.001)) as url:
        shape = script(url, is_chat=False).shape
        users = tuple((SessionScript(f"s{u}", (TurnScript("5", "6", 4),), 0.1 + 0.1 * u),) for u in range(4))
        generator.run(BlockScript(users, (url,), shape, {}, 20.0), lambda _: None)
        received = sorted(s.received_ns for s in sent_by(url))
    # Each is sent while earlier ones are still waiting for their first token.
    assert [round((at - received[0]) / 1e8) for at in received] == [0, 1, 2, 3]
