# SPDX-License-Identifier: Apache-2.0
"""TTFT, TPOT and gaps from chunks whose arrival times are given."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktier.errors import ContractError
from slacktier_cli.replay.metrics import DONE, StreamRecord, bears_tokens, percentile, summarize

MS = 1_000_000


def payload(**chunk: Any) -> bytes:
    return json.dumps(chunk).encode()


def text_chunk(text: str, finish_reason: str | None = None) -> bytes:
    return payload(choices=[{"index": 0, "text": text, "finish_reason": finish_reason}])


def usage_chunk(completion_tokens: int) -> bytes:
    return payload(choices=[], usage={"prompt_tokens": 7, "completion_tokens": completion_tokens})


def test_tpot_counts_tokens_from_usage_not_chunks() -> None:
    record = StreamRecord(sent_ns=0)
    for index in range(20):
        record.add(text_chunk("four tokens"), (100 + 40 * index) * MS)
    record.add(usage_chunk(80), 2000 * MS)
    record.add(DONE, 2001 * MS)
    assert record.ttft_ms == 100
    assert record.tpot_ms == pytest.approx(19 * 40 / 79)
    assert record.gaps_ms() == [40.0] * 19
    assert record.is_done
    assert record.prompt_tokens == 7


def test_role_only_delta_does_not_start_the_clock() -> None:
    record = StreamRecord(sent_ns=0)
    record.add(payload(choices=[{"delta": {"role": "assistant", "content": ""}}]), 10 * MS)
    record.add(payload(choices=[{"delta": {"content": "hello"}}]), 500 * MS)
    assert record.ttft_ms == 500


def test_usage_and_done_do_not_move_the_end_but_end_the_stream() -> None:
    record = StreamRecord(sent_ns=0)
    record.add(text_chunk("a"), 10 * MS)
    record.add(text_chunk("b", "length"), 30 * MS)
    record.add(usage_chunk(2), 600 * MS)
    record.add(DONE, 610 * MS)
    assert record.tpot_ms == 20
    assert record.e2e_ms == 30
    assert record.sglang_tpot_ms == 600
    assert record.finish_reason == "length"


def test_last_token_without_text_is_a_token() -> None:
    record = StreamRecord(sent_ns=0)
    record.add(text_chunk("a"), 10 * MS)
    record.add(text_chunk("", "stop"), 30 * MS)
    record.add(usage_chunk(2), 31 * MS)
    assert record.tpot_ms == 20


def test_equal_texts_have_equal_checksums_however_they_were_cut() -> None:
    records = [StreamRecord(sent_ns=0) for _ in range(3)]
    for piece in ("ab", "c"):
        records[0].add(text_chunk(piece), 1)
    for piece in ("a", "bc"):
        records[1].add(payload(choices=[{"delta": {"content": piece}}]), 1)
    records[2].add(text_chunk("ab!"), 1)
    assert records[0].answer_crc == records[1].answer_crc != records[2].answer_crc


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"text": "x", "finish_reason": "stop"}, True),
        ({"text": "", "finish_reason": None}, True),
        ({"text": "", "finish_reason": "stop"}, True),
        ({"text": None, "finish_reason": "stop"}, False),
        ({"text": "", "finish_reason": "length", "token_ids": [5]}, True),
        ({"delta": {"role": "assistant"}}, False),
        ({"delta": {"content": ""}}, True),
        ({"delta": {"content": ""}, "finish_reason": "stop"}, True),
        ({"delta": {"role": "assistant", "content": "x"}}, True),
        ({"delta": {"reasoning_content": "hm"}}, True),
        ({"delta": {"tool_calls": [{"index": 0}]}}, True),
        ({"delta": {}, "finish_reason": "stop"}, False),
        ({"finish_reason": "stop"}, False),
    ],
)
def test_which_chunks_bear_tokens(choice: dict[str, Any], expected: bool) -> None:
    assert bears_tokens(choice) is expected


@pytest.mark.parametrize(("chunks", "tokens"), [(1, 1), (1, 4), (2, 1), (0, 0)])
def test_answers_of_one_token_or_one_chunk_have_no_tpot(chunks: int, tokens: int) -> None:
    record = StreamRecord(sent_ns=0)
    for index in range(chunks):
        record.add(text_chunk("x"), (index + 1) * MS)
    record.add(usage_chunk(tokens), 9 * MS)
    assert record.tpot_ms is None


def test_answer_without_usage_has_no_tpot() -> None:
    record = StreamRecord(sent_ns=0)
    record.add(text_chunk("a"), 1 * MS)
    record.add(text_chunk("b"), 2 * MS)
    assert record.tpot_ms is None


@pytest.mark.parametrize(
    "bad",
    [b"{", b"[1]", b'{"choices": 3}', b'{"choices": [3]}', b'{"error": {"message": "tier gone"}}'],
)
def test_payload_that_is_no_chunk_is_an_error(bad: bytes) -> None:
    with pytest.raises(ContractError):
        StreamRecord(sent_ns=0).add(bad, 0)


def test_summary_of_known_values() -> None:
    summary = summarize([4.0, None, 1.0, 3.0, 2.0])
    assert summary is not None
    figures = summary.as_dict()
    assert figures == pytest.approx(
        {"count": 4, "mean": 2.5, "p50": 2.5, "p95": 3.85, "p99": 3.97, "min": 1.0, "max": 4.0}
    )


def test_summary_of_nothing_is_none() -> None:
    assert summarize([None]) is None


def test_percentile_interpolates_between_ranks() -> None:
    assert percentile([10.0, 20.0], 0.25) == 12.5
    assert percentile([7.0], 0.99) == 7.0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["choices", "usage", "delta", "text", "error", "completion_tokens", "content"]), inner
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_json_from_outside_never_raises_anything_but_contract_errors(chunk: Any) -> None:
    record = StreamRecord(sent_ns=0)
    try:
        record.add(json.dumps(chunk).encode(), 5)
    except ContractError:
        return
    assert record.chunk_ns in ([], [5])
