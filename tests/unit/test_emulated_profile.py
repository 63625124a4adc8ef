# SPDX-License-Identifier: Apache-2.0
"""Compute profiles: measured points, what lies between and beyond them, overrides, and refused files."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from slacktier.errors import ConfigError
from slacktier_emulated.profile import SHIPPED_DIRECTORY, Overrides, Profile, Schedule, load_profile


@pytest.fixture(scope="module")
def profile() -> Profile:
    return load_profile("v41-h200")


@pytest.fixture
def schedule(profile: Profile) -> Schedule:
    return Schedule(profile, profile.layer_ids)


def test_shipped_profile_is_one_rank_of_four_with_two_lookup_layers(profile: Profile) -> None:
    assert (profile.tp, profile.layer_count, profile.layer_ids) == (4, 40, (1, 14))


@pytest.mark.parametrize(("sessions", "step_ms", "windows_ms"), [(8, 11.0, (0.10, 3.5)), (128, 29.4, (0.27, 9.35))])
def test_measured_batches_take_what_was_measured(
    schedule: Schedule, sessions: int, step_ms: float, windows_ms: tuple[float, float]
) -> None:
    times = schedule.decode(sessions)
    assert times.step_ms == pytest.approx(step_ms)
    assert times.windows_ms == pytest.approx(windows_ms)


def test_step_grows_and_windows_scale_with_it_between_and_beyond_the_points(schedule: Schedule) -> None:
    batches = [1, 4, 8, 32, 64, 128, 200, 256]
    steps = [schedule.decode(sessions).step_ms for sessions in batches]
    assert steps == sorted(steps)
    for sessions in batches:
        times = schedule.decode(sessions)
        assert 0.0090 < times.windows_ms[0] / times.step_ms < 0.0092
        assert 0.317 < times.windows_ms[1] / times.step_ms < 0.319


def test_prefill_takes_its_time_per_token_but_never_less_than_a_short_step(schedule: Schedule) -> None:
    assert schedule.prefill(8192).step_ms == pytest.approx(8192 * 0.055)
    assert schedule.prefill(3).step_ms == pytest.approx(11.0)
    assert schedule.prefill(8192).windows_ms[0] == pytest.approx(8192 * 0.055 * 0.27 / 29.4)


def test_overrides_replace_the_batch_size_the_step_or_single_windows(profile: Profile) -> None:
    ids = profile.layer_ids
    as_128 = Schedule(profile, ids, Overrides(sessions=128)).decode(3)
    assert as_128.windows_ms == pytest.approx((0.27, 9.35))
    slow = Schedule(profile, ids, Overrides(step_ms=58.8, windows_ms={14: 1.0})).decode(128)
    assert slow.windows_ms == pytest.approx((0.54, 1.0))
    assert Schedule(profile, ids, Overrides(prefill_us_per_token=10.0)).prefill(8192).step_ms == pytest.approx(81.92)


def test_only_the_served_layers_have_windows(profile: Profile) -> None:
    assert Schedule(profile, (14,)).decode(128).windows_ms == pytest.approx((9.35,))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"tp": 0}, "tp"),
        ({"typo": 1}, "typo"),
        ({"points": []}, "points"),
        ({"points": [{"sessions": 8, "step_ms": 11.0, "windows_ms": {1: 20.0}}]}, "before the step"),
        ({"points": [{"sessions": 8, "step_ms": 11.0, "windows_ms": {1: 0.1, 44: 3.0}}]}, "layer_count"),
        ({"points": [{"sessions": 8, "step_ms": float("nan"), "windows_ms": {1: 0.1}}]}, "step_ms"),
    ],
)
def test_profile_with_a_wrong_field_is_refused_by_name(
    tmp_path: Path, change: dict[str, object], complaint: str
) -> None:
    content = yaml.safe_load((SHIPPED_DIRECTORY / "v41-h200.yaml").read_text()) | change
    path = tmp_path / "p.yaml"
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(ConfigError, match=complaint):
        load_profile(str(path))


def test_profile_that_is_no_file_no_yaml_or_no_mapping_is_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("a: [")
    (tmp_path / "list.yaml").write_text("- 1")
    with pytest.raises(ConfigError, match="No such file") as caught:
        load_profile("h100")
    assert "v41-h200" in caught.value.hint
    with pytest.raises(ConfigError, match="not YAML"):
        load_profile(str(tmp_path / "broken.yaml"))
    with pytest.raises(ConfigError, match="dictionary"):
        load_profile(str(tmp_path / "list.yaml"))
