# SPDX-License-Identifier: Apache-2.0
"""Rows gathered by our kernel against SGLang's own torch code, which dequantizes where there is no GPU.

Goal: the same bits as `EngramEmbedding._owned_rows` of the pinned release, for every e4m3 code under every scale at
which that release's two paths agree. Method: its unmodified method runs on a table of ours, without its constructor.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch and triton")
pytest.importorskip("triton", reason="needs triton")

from slacktier_engine.kernels.gather import gather_dequant  # noqa: E402
from slacktier_engine.kernels.system import INTERPRETED  # noqa: E402

# The release's torch path makes NaN of all of scale 255 and 0xFFFF of a NaN code; its kernel, and ours, do not.
EXPONENTS = np.arange(10 if INTERPRETED else 0, 255, dtype=np.uint8)
CODES = np.array([c for c in range(256) if c & 0x7F != 0x7F], np.uint8)
ROW_START = 1000


@pytest.fixture(scope="module")
def stock() -> Any:
    pytest.importorskip("sglang", reason="needs SGLang's package")
    from sglang.srt.layers.engram import EngramEmbedding

    return EngramEmbedding


def every_pair() -> tuple[np.ndarray, np.ndarray]:
    """[rows, 256] codes and [rows, 8] scales: each row one scale, and all codes."""
    codes = np.resize(CODES, (len(EXPONENTS), 256))
    return codes, np.repeat(EXPONENTS[:, None], 8, axis=1)


@pytest.mark.filterwarnings("ignore")  # what importing SGLang warns about is not ours
def test_rows_equal_the_releases_torch_path(stock: Any, device: str) -> None:
    codes, scales = every_pair()
    table = SimpleNamespace(
        rows=len(codes), dim=256, row_start=ROW_START, host_table=None,
        weight=torch.from_numpy(codes.copy()).view(torch.float8_e4m3fn),
        scale=torch.from_numpy(scales.copy()).view(torch.float8_e8m0fnu),
        new_rows=stock.new_rows,
    )  # fmt: skip
    ids = torch.arange(-4, len(codes) + 4) + ROW_START
    expected = stock._owned_rows(table, ids)
    local = (ids - ROW_START).to(torch.int32)
    places = torch.where((local >= 0) & (local < len(codes)), local, -1).to(device)
    payload, exponents = torch.from_numpy(codes).to(device), torch.from_numpy(scales).to(device)
    out = torch.full((len(ids), 256), 7.0, dtype=torch.bfloat16, device=device)
    gather_dequant(places, payload, exponents, out, lines=0, line_bytes=272, lookups=len(ids))
    assert torch.equal(out.cpu().view(torch.int16), expected.reshape(-1, 256).view(torch.int16))
