# SPDX-License-Identifier: Apache-2.0
"""What the tests of commands share."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from slacktier_cli.main import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def slacktier(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """slacktier(*words): (exit code, stdout, stderr) of `slacktier WORDS` in this process."""

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["slacktier", *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as exc:
            code = exc.code if isinstance(exc.code, int) else int(exc.code is not None)
        return code, *capsys.readouterr()

    return call
