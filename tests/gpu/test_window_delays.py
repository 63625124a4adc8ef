# SPDX-License-Identifier: Apache-2.0
"""Delays injected before decoder layers: a layer is reached no earlier than its delay, and others do not wait."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch", reason="needs torch and triton")
pytest.importorskip("triton", reason="needs triton")

from slacktier.errors import ConfigError, DeadlineMissedError  # noqa: E402
from slacktier_engine.window_delays import WindowDelays  # noqa: E402


@pytest.fixture
def delays(device: str) -> Iterator[WindowDelays]:
    made = WindowDelays((1, 3), device=device, device_prefix="test-probe", timeout_s=1.0)
    yield made
    made.close()


def step_ms(model: torch.nn.Module, delays: WindowDelays, device: str) -> float:
    delays.arm()
    start = time.monotonic()
    model(torch.ones(2, 4, device=device))
    if device == "cuda":
        torch.cuda.synchronize()
    return 1e3 * (time.monotonic() - start)


def test_a_hooked_model_waits_for_the_delayed_layer_alone(delays: WindowDelays, device: str) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(5))).to(device)
    delays.attach(list(model))
    step_ms(model, delays, device)  # compiles
    delays.set_delays({3: 600.0})
    assert step_ms(model, delays, device) >= 599
    delays.set_delays({})
    assert min(step_ms(model, delays, device) for _ in range(3)) < 500
    delays.check()


def test_a_delay_beyond_the_time_out_is_a_named_error(delays: WindowDelays, device: str) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(5))).to(device)
    delays.attach(list(model))
    delays.set_delays({1: 20_000.0})
    step_ms(model, delays, device)
    with pytest.raises(DeadlineMissedError, match="layer 1"):
        delays.check()


def test_no_layers_are_refused(device: str) -> None:
    with pytest.raises(ConfigError, match="0 layers"):
        WindowDelays((), device=device)
