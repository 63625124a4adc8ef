# SPDX-License-Identifier: Apache-2.0
"""Frames between server and engine: whatever goes in comes out, however the bytes are cut."""

from __future__ import annotations

from itertools import cycle

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from slacktier_emulated import channel
from slacktier_emulated.channel import FrameKind, FrameReader, Submit
from slacktier_emulated.scheduler import Finish, Outputs

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)


def only(message: bytes) -> tuple[FrameKind, bytes]:
    (found,) = FrameReader().feed(message)
    return found


@given(U64, U64, U32, st.booleans(), st.lists(U32, max_size=50), st.lists(U32, max_size=50))
def test_request_survives_the_channel(
    request_id: int, seed: int, max_tokens: int, ignore_eos: bool, prompt: list[int], answer: list[int]
) -> None:
    arrays = (np.array(prompt, np.uint32), np.array(answer, np.uint32))
    kind, payload = only(channel.encode_submit(Submit(request_id, *arrays, max_tokens, ignore_eos, seed)))
    found = channel.decode_submit(payload)
    assert kind is FrameKind.SUBMIT
    assert (found.request_id, found.seed, found.max_tokens) == (request_id, seed, max_tokens)
    assert (found.ignore_eos, found.prompt.tolist(), found.answer.tolist()) == (ignore_eos, prompt, answer)


@given(st.lists(st.tuples(U64, U32, st.sampled_from(list(Finish)))), st.lists(st.tuples(U64, U32)))
def test_outputs_of_a_step_are_one_message(
    tokens: list[tuple[int, int, Finish]], started: list[tuple[int, int]]
) -> None:
    outputs = Outputs(
        [t[0] for t in tokens], [t[1] for t in tokens], [int(t[2]) for t in tokens],
        [s[0] for s in started], [s[1] for s in started],
    )  # fmt: skip
    kind, payload = only(channel.encode_step(outputs))
    assert (kind, channel.decode_step(payload)) == (FrameKind.STEP, outputs)


@given(st.lists(st.binary(max_size=40), max_size=8), st.lists(st.integers(1, 17), min_size=1))
def test_frames_are_found_however_the_stream_is_cut(payloads: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(channel.frame(FrameKind.REPLY, payload) for payload in payloads)
    reader, found, sizes = FrameReader(), [], cycle(cuts)
    while stream:
        cut = next(sizes)
        found += reader.feed(stream[:cut])
        stream = stream[cut:]
    assert found == [(FrameKind.REPLY, payload) for payload in payloads]
