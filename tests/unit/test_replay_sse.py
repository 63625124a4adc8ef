# SPDX-License-Identifier: Apache-2.0
"""Event streams are parsed the same wherever the reads end."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktier.errors import ContractError
from slacktier_cli.replay import sse
from slacktier_cli.replay.sse import SseParser

STREAM = (
    b": keep-alive\n\n"
    b'data: {"text":"a"}\n\n'
    b"event: ping\r\n\r\n"
    b'data:{"text":"no space"}\r\n\r\n'
    b"data: first\ndata: second\n\n"
    b"data: line separator \xe2\x80\xa8 and \x0b inside\n\n"
    b"retry: 10\n"
    b"data: [DONE]\n\n"
)
PAYLOADS = [
    b'{"text":"a"}',
    b'{"text":"no space"}',
    b"first\nsecond",
    b"line separator \xe2\x80\xa8 and \x0b inside",
    b"[DONE]",
]


def test_stream_in_one_read_gives_each_payload() -> None:
    assert SseParser().feed(STREAM) == PAYLOADS


@given(st.lists(st.integers(0, len(STREAM)), max_size=40))
def test_payloads_do_not_depend_on_where_reads_end(cuts: list[int]) -> None:
    parser = SseParser()
    edges = [0, *sorted(cuts), len(STREAM)]
    found = [payload for a, b in itertools.pairwise(edges) for payload in parser.feed(STREAM[a:b])]
    assert found == PAYLOADS


def test_event_is_held_back_until_its_empty_line() -> None:
    parser = SseParser()
    assert parser.feed(b"data: x\n") == []
    assert parser.feed(b"\n") == [b"x"]


def test_event_that_never_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "EVENT_BYTES_MAX", 100)
    parser = SseParser()
    parser.feed(b"data: " + b"x" * 60 + b"\n")
    with pytest.raises(ContractError, match="one event of more than 100 bytes"):
        parser.feed(b"data: " + b"x" * 60)
