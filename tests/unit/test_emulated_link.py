# SPDX-License-Identifier: Apache-2.0
"""The engine's end of the socket pair: nothing is lost when the server is slow, and its end is noticed."""

from __future__ import annotations

import json
import socket

from slacktier_emulated import channel
from slacktier_emulated.channel import FrameKind, FrameReader
from slacktier_emulated.link import Link


def test_link_keeps_what_the_socket_does_not_take_and_sends_it_later() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        link, reader, found = Link(ours), FrameReader(), []
        sent = [channel.json_frame(FrameKind.REPLY, {"n": n, "filler": "x" * 100_000}) for n in range(20)]
        for message in sent:
            link.send(message)
        while len(found) < len(sent):
            found += [json.loads(payload)["n"] for _, payload in reader.feed(theirs.recv(1 << 16))]
            list(link.receive(0.0))
        assert found == list(range(20))


def test_link_notices_that_the_other_end_is_gone() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        link = Link(ours)
        theirs.close()
        assert list(link.receive(None)) == []
        assert link.is_closed
        link.send(b"nobody reads this")
