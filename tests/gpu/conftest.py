# SPDX-License-Identifier: Apache-2.0
"""Where the step path's tests run: on the GPU, or with TRITON_INTERPRET=1 in Triton's interpreter on the CPU."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch", reason="needs torch and triton")


# numpy speaks up where a GPU does not: products that overflow to infinity, and the interpreter's own conversions.
_INTERPRETER_WARNINGS = ("ignore:overflow", "ignore:invalid value", "ignore:Conversion of an array")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("TRITON_INTERPRET") == "1":
        for item in items:
            for text in _INTERPRETER_WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(text))


@pytest.fixture(scope="session")
def device() -> str:
    if os.environ.get("TRITON_INTERPRET") == "1":
        return "cpu"
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU, or TRITON_INTERPRET=1")
    return "cuda"
