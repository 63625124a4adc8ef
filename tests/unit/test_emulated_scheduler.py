# SPDX-License-Identifier: Apache-2.0
"""Continuous batching: who is in the next step, what it yields, and when sequences end."""

from __future__ import annotations

import numpy as np

from slacktier_emulated.answers import RecordedAnswer
from slacktier_emulated.prefix_cache import PrefixCache
from slacktier_emulated.scheduler import (
    Batch,
    Finish,
    Outputs,
    Phase,
    Scheduler,
    TokenSequence,
    decode_inputs,
    prefill_inputs,
)  # fmt: skip

EOS = 1


def sequence(
    request_id: int,
    prompt_length: int,
    answer: list[int],
    *,
    max_tokens: int = 100,
    eos: int | None = EOS,
    salt: int = 0,
) -> TokenSequence:
    prompt = (np.arange(prompt_length) + 10 + 1000 * (salt or request_id)).astype(np.uint32)
    return TokenSequence(request_id, prompt, RecordedAnswer(answer), max_tokens, eos)


def scheduler(*, running_max: int = 8, chunk_tokens: int = 64, cache_tokens: int = 0) -> Scheduler:
    return Scheduler(running_max=running_max, chunk_tokens=chunk_tokens, ngram_size=4, cache=PrefixCache(cache_tokens))


def step(queue: Scheduler) -> tuple[Batch, Outputs]:
    batch = queue.next_batch()
    assert batch is not None
    queue.complete(batch)
    return batch, queue.take_outputs()


def spans(batch: Batch) -> list[tuple[int, int, int]]:
    return [(chunk.sequence.request_id, chunk.first, chunk.end) for chunk in batch.chunks]


def test_long_prompt_is_computed_in_chunks_and_its_last_chunk_yields_the_first_token() -> None:
    queue = scheduler()
    queue.submit(sequence(1, 150, [7, 8, 9]))
    seen = [step(queue) for _ in range(3)]
    assert [spans(batch) for batch, _ in seen] == [[(1, 0, 64)], [(1, 64, 128)], [(1, 128, 150)]]
    assert [outputs.tokens for _, outputs in seen] == [[], [], [7]]
    batch, outputs = step(queue)
    assert (batch.phase, outputs.tokens) == (Phase.DECODE, [8])


def test_prompts_share_a_chunk_and_prefill_comes_before_decode() -> None:
    queue = scheduler()
    queue.submit(sequence(1, 30, [5, 6, 7, 8]))
    step(queue)
    queue.submit(sequence(2, 40, [5, 6]))
    queue.submit(sequence(3, 40, [5, 6]))
    first, _ = step(queue)
    second, _ = step(queue)
    third, outputs = step(queue)
    assert spans(first) == [(2, 0, 40), (3, 0, 24)]
    assert spans(second) == [(3, 24, 40)]
    assert (third.phase, sorted(outputs.request_ids)) == (Phase.DECODE, [1, 2, 3])


def test_queue_is_first_in_first_out_and_waits_for_a_slot() -> None:
    queue = scheduler(running_max=2)
    for request_id in (1, 2, 3):
        queue.submit(sequence(request_id, 10, [5, 6]))
    first, _ = step(queue)
    assert [chunk.sequence.request_id for chunk in first.chunks] == [1, 2]
    assert (queue.running_count, queue.waiting_count) == (2, 1)
    step(queue)
    third, _ = step(queue)
    assert spans(third) == [(3, 0, 10)]


def test_answer_ends_at_eos_at_the_limit_or_when_it_is_over() -> None:
    cases = [
        (sequence(1, 5, [7, EOS, 9]), [0, Finish.STOP]),
        (sequence(2, 5, [7, EOS, 9], eos=None), [0, 0, Finish.STOP]),
        (sequence(3, 5, [7, 8, 9], max_tokens=2), [0, Finish.LENGTH]),
        (sequence(4, 5, [7, 8], max_tokens=2), [0, Finish.LENGTH]),
        (sequence(5, 5, [7, 8]), [0, Finish.STOP]),
    ]
    for one, finishes in cases:
        queue = scheduler()
        queue.submit(one)
        found: list[int] = []
        while queue.has_work:
            found += step(queue)[1].finishes
        assert found == finishes
        assert queue.running_count == 0


def test_cancelled_sequence_frees_its_slot_and_yields_nothing_more() -> None:
    queue = scheduler(running_max=1)
    queue.submit(sequence(1, 5, [7, 8, 9]))
    queue.submit(sequence(2, 5, [7]))
    batch = queue.next_batch()
    assert batch is not None
    queue.cancel(1)
    queue.complete(batch)
    outputs = queue.take_outputs()
    assert (outputs.request_ids, outputs.finishes) == ([1], [Finish.CANCELLED])
    following = queue.next_batch()
    assert following is not None
    assert spans(following) == [(2, 0, 5)]
    queue.cancel(99)


def test_waiting_request_can_be_cancelled() -> None:
    queue = scheduler(running_max=1)
    for request_id in (1, 2):
        queue.submit(sequence(request_id, 5, [7, 8]))
    queue.cancel(2)
    assert queue.waiting_count == 1
    queue.next_batch()
    assert queue.waiting_count == 0


def test_failed_step_drops_its_sequences_and_only_those() -> None:
    queue = scheduler(running_max=1)
    for request_id in (1, 2):
        queue.submit(sequence(request_id, 5, [7, 8]))
    batch = queue.next_batch()
    assert batch is not None
    assert queue.fail(batch) == [1]
    following = queue.next_batch()
    assert following is not None
    assert spans(following) == [(2, 0, 5)]


def test_second_turn_prefills_only_what_is_new() -> None:
    queue = scheduler(cache_tokens=10_000, chunk_tokens=512)
    first = sequence(1, 100, list(range(50, 82)), salt=1)
    queue.submit(first)
    while queue.has_work:
        step(queue)
    history = np.concatenate([first.prompt, np.arange(50, 82, dtype=np.uint32), np.arange(5, dtype=np.uint32)])
    queue.submit(TokenSequence(2, history, RecordedAnswer([4]), 10, EOS))
    batch, outputs = step(queue)
    # 100 + 31 tokens were computed: the last of an answer is never fed back.
    assert spans(batch) == [(2, 128, 137)]
    assert (outputs.started_ids, outputs.started_cached) == ([2], [128])


def test_chunk_is_hashed_with_the_tokens_before_it() -> None:
    queue = scheduler(chunk_tokens=64)
    queue.submit(sequence(1, 66, [7, 8]))
    step(queue)
    queue.submit(sequence(2, 2, [7]))
    batch = queue.next_batch()
    assert batch is not None
    tokens, offsets, history = prefill_inputs(batch, 4)
    assert tokens.tolist() == [1074, 1075, 2010, 2011]
    assert offsets == [0, 2, 4]
    assert history.tolist() == [[1071, 1072, 1073], [-1, -1, -1]]


def test_decode_step_is_hashed_from_each_sequences_last_four_tokens() -> None:
    queue = scheduler()
    queue.submit(sequence(1, 10, [7, 8, 9]))
    queue.submit(sequence(2, 1, [5, 6, 7]))
    step(queue)
    batch = queue.next_batch()
    assert batch is not None
    assert decode_inputs(batch).tolist() == [[1017, 1018, 1019, 7], [-1, -1, 2010, 5]]
    queue.complete(batch)
    batch = queue.next_batch()
    assert batch is not None
    assert decode_inputs(batch).tolist() == [[1018, 1019, 7, 8], [-1, 2010, 5, 6]]
