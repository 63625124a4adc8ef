# SPDX-License-Identifier: Apache-2.0
"""What the RDMA tests share: a token, regions for memory nodes, cores that read from them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from node import NodeProcess
from tables import SourceRows

from slacktier.errors import SlackTierError
from slacktier_native.core import LayerSetup, LookupCore, SourceSpec
from slacktier_native.rdma import RdmaSettings, RdmaSpec

TOKEN_FILE = Path("/run/slacktier-token")
TOKEN = b"0123456789abcdef0123456789abcdef"
BOUND_S = 20.0  # an error must have come by then; the emulator is slow, the node's death is noticed in a fifth of it


def spec_of(node: NodeProcess, layer_id: int = 1, **settings: Any) -> RdmaSpec:
    return RdmaSpec("127.0.0.1", node.port, TOKEN_FILE, layer_id, settings=RdmaSettings(**settings))


def core_over(*specs: RdmaSpec | SourceSpec, layer_id: int = 1) -> LookupCore:
    """Without a cache, so that each lookup reads; replicas in this order."""
    return LookupCore([LayerSetup(layer_id, specs)], timeout_s=20.0)


def assert_fails_in_time(core: LookupCore, rows: SourceRows, error: type[SlackTierError]) -> str:
    """Lookups fail from some moment on, within BOUND_S, and none of them ever with a wrong row."""
    deadline = time.monotonic() + BOUND_S
    while time.monotonic() < deadline:
        try:
            rows.look_up(core, rows.draw(300, seed=1))
        except error as exc:
            return str(exc)
    pytest.fail(f"reads still work after {BOUND_S} s")


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)
