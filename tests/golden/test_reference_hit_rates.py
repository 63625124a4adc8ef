# SPDX-License-Identifier: Apache-2.0
"""Hit rates of the recorded traces against reference values that other code computed on them.

Reference: layer 14, decode lookups, cold start, sessions shuffled with numpy's default_rng(1).permutation and
interleaved round robin. A simulation must come within one point of every value.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from slacktier_cli.characterize.lookups import LayerHash, look_up
from slacktier_cli.characterize.policies import Policy, load_of, simulate
from slacktier_cli.characterize.sampling import Sampling
from slacktier_cli.characterize.schedule import interleave
from slacktier_cli.traces import Trace
from slacktier_rowids.models import load_config, load_hasher

SIZES = (62_500, 250_000, 1_000_000, 2_000_000, 5_000_000, 19_200_000)
LRU = {
    ("agent", 64): (0.230, 0.427, 0.624, 0.703, 0.773, 0.835),
    ("chat", 64): (0.153, 0.304, 0.464, 0.520, 0.573, 0.610),
    ("chat", 256): (0.126, 0.255, 0.426, 0.503, 0.577, 0.612),
}
AT_1M_AND_5M = {
    ("chat", 64, Policy.CLOCK): (0.469, 0.576),
    ("chat", 256, Policy.CLOCK): (0.435, 0.580),
    ("chat", 64, Policy.S3FIFO): (0.467, 0.580),
    ("chat", 256, Policy.S3FIFO): (0.452, 0.580),
}


@pytest.mark.parametrize(
    ("name", "rate", "loads"), [("chat", Fraction(1, 8), (64, 256)), ("agent", Fraction(1, 16), (64,))]
)
def test_hit_rates_are_within_a_point_of_the_reference(
    name: str, rate: Fraction, loads: tuple[int, ...], traces_dir: Path
) -> None:
    trace = Trace.load(traces_dir / f"{name}.npz")
    hasher = load_hasher(load_config("v41"))
    lookups = look_up(trace, LayerHash(hasher, 14, Sampling.at(rate, 8)), lambda _: None)
    policies = sorted({policy for of, _, policy in AT_1M_AND_5M if of == name})
    for sessions in loads:
        schedule = interleave(trace, np.arange(trace.session_count), slots=sessions, seed=1)
        load = load_of(lookups, schedule)
        (lru,) = simulate(lookups, schedule, load, [Policy.LRU], SIZES, threads=1)
        assert np.abs(lru.hit_rate - LRU[name, sessions]).max() <= 0.01
        for curve in simulate(lookups, schedule, load, policies, (1_000_000, 5_000_000), threads=2):
            assert np.abs(curve.hit_rate - AT_1M_AND_5M[name, sessions, curve.policy]).max() <= 0.01
