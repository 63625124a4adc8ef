# SPDX-License-Identifier: Apache-2.0
"""A prefill server and a decode server on one host, with the KV cache over Mooncake's TCP transport.

There is no router: the client posts each request to both with the same room, and the decode server's answer counts.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Final

from servers import Server
from workload import Answer, answer, body

HOST: Final = "127.0.0.1"
VARIABLES: Final = {"MOONCAKE_PROTOCOL": "tcp", "SGLANG_HOST_IP": HOST, "HOST_IP": HOST}


def flags(role: str, bootstrap_port: int) -> tuple[str, ...]:
    """role: prefill or decode. The decode server's backup of retracted requests would want pinned memory."""
    return (
        "--disaggregation-mode", role, "--disaggregation-transfer-backend", "mooncake",
        "--disaggregation-bootstrap-port", str(bootstrap_port), "--disaggregation-decode-retraction-backup", "none",
    )  # fmt: skip


@dataclass
class Pair:
    """Both servers; a room is used once."""

    prefill: Server
    decode: Server
    bootstrap_port: int
    _rooms: Iterator[int] = field(default_factory=lambda: itertools.count(1000))

    def ask(self, prompt: list[int], new_tokens: int) -> Answer:
        room = {
            "bootstrap_host": HOST, "bootstrap_port": self.bootstrap_port, "bootstrap_room": next(self._rooms),
        }  # fmt: skip
        asked = {**body(new_tokens), "input_ids": prompt, **room}
        with ThreadPoolExecutor(2) as pool:
            posted = [pool.submit(server.post, "/generate", asked) for server in (self.prefill, self.decode)]
            posted[0].result()
            return answer(json.loads(posted[1].result()))


@contextmanager
def serving_pair(
    prefill: AbstractContextManager[Server], decode: AbstractContextManager[Server], bootstrap_port: int
) -> Iterator[Pair]:
    """From two servers that were started with flags() and VARIABLES, and not waited for; ready when both are."""
    with prefill as first, decode as second:
        for server in (first, second):
            server.wait_ready()
        yield Pair(first, second, bootstrap_port)
