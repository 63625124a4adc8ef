# SPDX-License-Identifier: Apache-2.0
"""Gather: a layer's rows out of device memory, in the order of the ids; on the main stream, HBM only.

A place below `slots` is a cache slot; from there on it is a line of the step's answer (kernels/fill.py).

FP8 rows: bf16 = round-to-nearest-even(fp32(e4m3) * 2^(e8m0 - 127)), the arithmetic of the engine's own gather and
bit-identical to it: one product in fp32, subnormals kept, scale byte 0 is 2^-127, scale byte 255 is infinity.
Rows without scales (bf16 payload, or fp8 with one scale per tensor) are copied as they are.
An ABSENT row is +0 throughout, as the all-reduce over ranks wants it; a FAILED one is NaN (0xFF bytes when copied).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from slacktier.errors import ConfigError

_ROWS = 8
_WARPS = 4


@triton.jit
def _gather_dequant_kernel(
    places_ptr,
    payload,
    scales,
    lines,
    slots,
    out_ptr,
    lookups,
    DIM: tl.constexpr,
    GROUP: tl.constexpr,
    LINE_BYTES: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    place = tl.load(places_ptr + row, mask=row < lookups, other=-1)
    there = (place >= 0)[:, None]
    at = tl.where(place >= 0, place, 0).to(tl.int64)
    line = lines + (at - slots) * LINE_BYTES
    codes_at = tl.where(at < slots, payload + at * DIM, line).to(tl.pointer_type(tl.uint8))
    scales_at = tl.where(at < slots, scales + at * (DIM // GROUP), line + DIM).to(tl.pointer_type(tl.uint8))
    value = tl.arange(0, DIM)[None, :]
    codes = tl.load(codes_at[:, None] + value, mask=there, other=0)
    exponents = tl.load(scales_at[:, None] + value // GROUP, mask=there, other=0).to(tl.int32)
    # The exponent byte is fp32's own exponent field; only 0 needs its subnormal spelled out.
    scale = tl.where(exponents == 0, 0x00400000, exponents << 23).to(tl.float32, bitcast=True)
    product = codes.to(tl.float8e4nv, bitcast=True).to(tl.float32) * scale
    product = tl.where(there, product, 0.0)
    product = tl.where((place == -2)[:, None], float("nan"), product)
    out = out_ptr + row.to(tl.int64)[:, None] * DIM + value
    tl.store(out, product.to(tl.bfloat16), mask=(row < lookups)[:, None])


@triton.jit
def _gather_copy_kernel(
    places_ptr,
    payload,
    lines,
    slots,
    out_ptr,
    lookups,
    WORDS: tl.constexpr,
    WORDS_BLOCK: tl.constexpr,
    LINE_BYTES: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    place = tl.load(places_ptr + row, mask=row < lookups, other=-1)
    at = tl.where(place >= 0, place, 0).to(tl.int64)
    words_at = tl.where(at < slots, payload + at * (8 * WORDS), lines + (at - slots) * LINE_BYTES)
    word = tl.arange(0, WORDS_BLOCK)[None, :]
    inside = word < WORDS
    words_ptr = words_at.to(tl.pointer_type(tl.int64))[:, None] + word
    words = tl.load(words_ptr, mask=(place >= 0)[:, None] & inside, other=0)
    words = tl.where((place == -2)[:, None], -1, words)
    out = out_ptr + row.to(tl.int64)[:, None] * WORDS + word
    tl.store(out, words, mask=(row < lookups)[:, None] & inside)


def gather_dequant(
    places: torch.Tensor,
    payload: torch.Tensor,
    scales: torch.Tensor,
    out: torch.Tensor,
    *,
    lines: int,
    line_bytes: int,
    lookups: int,
) -> None:
    """Rows at places[0, lookups) dequantized into out; launches on the current stream.

    places  int32; payload [slots, D] uint8 with D a power of two; scales [slots, D / 32] uint8, or any equal groups
    lines   address on the device of the step's lines, line_bytes apart
    out     [lookups, D] bf16, contiguous
    raises  ConfigError for shapes that the kernel cannot take
    """
    dim, groups = payload.shape[1], scales.shape[1]
    if dim & (dim - 1) or groups == 0 or dim % groups:
        raise ConfigError(f"rows of {dim} values in {groups} groups: expected a power of two in equal groups")
    if out.dtype != torch.bfloat16 or out.shape != (lookups, dim) or not out.is_contiguous():
        raise ConfigError(f"out: {tuple(out.shape)} of {out.dtype}, expected [{lookups}, {dim}] of bfloat16")
    if lookups:
        _gather_dequant_kernel[(triton.cdiv(lookups, _ROWS),)](
            places, payload.data_ptr(), scales.data_ptr(), lines, payload.shape[0], out, lookups,
            DIM=dim, GROUP=dim // groups, LINE_BYTES=line_bytes, ROWS=_ROWS, num_warps=_WARPS,
        )  # fmt: skip


def gather_copy(
    places: torch.Tensor, payload: torch.Tensor, out: torch.Tensor, *, lines: int, line_bytes: int, lookups: int
) -> None:
    """Rows at places[0, lookups) copied into out [lookups, payload bytes] uint8; launches on the current stream.

    raises  ConfigError for shapes that the kernel cannot take
    """
    row_bytes = payload.shape[1]
    if row_bytes % 8:
        raise ConfigError(f"rows of {row_bytes} bytes: expected a multiple of 8")
    if out.dtype != torch.uint8 or out.shape != (lookups, row_bytes) or not out.is_contiguous():
        raise ConfigError(f"out: {tuple(out.shape)} of {out.dtype}, expected [{lookups}, {row_bytes}] of uint8")
    if lookups:
        _gather_copy_kernel[(triton.cdiv(lookups, _ROWS),)](
            places, payload.data_ptr(), lines, payload.shape[0], out.view(torch.int64), lookups,
            WORDS=row_bytes // 8, WORDS_BLOCK=triton.next_power_of_2(row_bytes // 8), LINE_BYTES=line_bytes,
            ROWS=_ROWS, num_warps=_WARPS,
        )  # fmt: skip
