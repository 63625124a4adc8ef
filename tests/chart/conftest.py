# SPDX-License-Identifier: Apache-2.0
"""A level that was asked for without its tool is red, not skipped."""

from __future__ import annotations

import pytest
from chart_rendering import RefusedError, helm_binary


@pytest.fixture(scope="session", autouse=True)
def has_helm() -> None:
    try:
        helm_binary()
    except RefusedError as exc:
        pytest.exit(str(exc), returncode=1)
