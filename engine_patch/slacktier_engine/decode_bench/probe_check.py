# SPDX-License-Identifier: Apache-2.0
"""The window probe on the bench's step: its windows against those that the compute was sized and timed for."""

from __future__ import annotations

from typing import Any

from slacktier.window_probe import ProbeSettings, WindowProbe
from slacktier_engine.decode_bench.compute import LAYERS, LOOKUP_LAYERS
from slacktier_engine.decode_bench.run import DecodeBench, log
from slacktier_engine.window_delays import WindowDelays


def probe(
    bench: DecodeBench, *, tokens: int = 128, window_ms: tuple[float, float] = (0.27, 1.8), step_ms: float = 5.6,
    steps: int = 24,
) -> dict[str, Any]:  # fmt: skip
    """One captured graph; delays change between its replays."""
    device, compute = bench.device, bench.compute
    x = compute.activations(tokens)
    counts = compute.counts_for(x, window_ms, step_ms)
    delays = WindowDelays(LOOKUP_LAYERS, device=device.torch)

    def queue() -> None:
        compute.start()
        delays.begin()
        for layer in range(LAYERS):
            if layer in LOOKUP_LAYERS:
                delays.reach(LOOKUP_LAYERS.index(layer))
            compute.run(x, counts.of(layer))

    delays.arm()
    graph = device.capture(queue)

    def timed() -> float:
        delays.arm()
        device.rest(6_000_000)
        begin = device.instant()
        graph.replay()
        end = device.instant()
        device.reach(end)
        return device.elapsed_us(begin, end) / 1e3

    # A threshold of 0.3 ms is as wide as the first window: what one step's noise is here decides instead.
    search = WindowProbe(LOOKUP_LAYERS, ProbeSettings(noise_ms=0.05, noise_step_share=0.002, steps_min=steps))
    while (asked := search.delays_ms()) is not None:
        delays.set_delays(asked)
        timed()
        search.record([timed() for _ in range(steps)])
    delays.check()
    report = search.report()
    expected = compute.windows_ms(x, counts)
    delays.close()
    found = {
        "tokens": tokens,
        "step_ms": round(report.step_ms, 3),
        "windows_ms": {str(k): round(v, 4) for k, v in report.windows_ms.items()},
        "timed_windows_ms": {str(k): round(v, 4) for k, v in zip(LOOKUP_LAYERS, expected, strict=True)},
        "pair_rmse_ms": round(report.pair_rmse_ms, 4),
        "points": [(p.layer_id, round(p.delay_ms, 3), round(p.slowdown_ms, 3)) for p in report.points],
        "pairs": [
            ([round(d, 3) for d in p.delays_ms], round(p.predicted_ms, 3), round(p.measured_ms, 3))
            for p in report.pairs
        ],
    }
    log(f"probe {found}")
    return found
