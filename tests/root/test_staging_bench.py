# SPDX-License-Identifier: Apache-2.0
"""`slacktier bench stage` with a real fio, small; its figure is for people, not for this test."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from slacktier_cli.commands.bench import app


def test_both_arms_do_the_same_bytes_and_nothing_is_left(tmp_path: Path) -> None:
    if shutil.which("fio") is None:
        pytest.fail("tests/root needs fio: apt-get install fio", pytrace=False)
    result = CliRunner().invoke(app, ["stage", "--dir", str(tmp_path), "--size", "48M", "--blocks", "2", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert 40 << 20 < found["source_bytes"] <= 48 << 20
    assert [len(figures) for figures in found["blocks"].values()] == [2, 2, 2]
    assert all(figure > 0 for figures in found["blocks"].values() for figure in figures)
    ratios = [a / b for a, b in zip(found["blocks"]["stage_gib_s"], found["blocks"]["fio_gib_s"], strict=True)]
    assert found["ratio_to_fio"] == pytest.approx(sum(ratios) / 2)
    assert list(tmp_path.iterdir()) == []
