# SPDX-License-Identifier: Apache-2.0
"""Gather: a layer's rows in the order of the ids, and the missing ones into the cache; on the main stream.

A row that was cached before the step is in its slot; one that was missing is in a line of the answer (layout:
st_step_path.h), and goes from there to its output and to the slot that it is kept in. No row of a step is read from a
slot that this step writes. The answer is read from its copy in device memory once `copied` is 1, until then from pinned
host memory: rows that come late do not wait for the copy, and rows in time cost the main stream no PCIe.

FP8 rows: bf16 = round-to-nearest-even(fp32(e4m3) * 2^(e8m0 - 127)), the arithmetic of the engine's own gather and
bit-identical to it: one product in fp32, subnormals kept, scale byte 0 is 2^-127, scale byte 255 is infinity.
Rows without scales (bf16 payload, or fp8 with one scale per tensor) are copied as they are.
Nobody's row is +0 throughout, as the all-reduce over ranks wants it; a failed step's is NaN (0xFF bytes when copied).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from slacktier.errors import ConfigError
from slacktier_native.step_path import ANSWER_HEAD_BYTES, answer_lines

_ROWS = 8
_WARPS = 4


@dataclass(frozen=True)
class Answer:
    """Where a step's answer is: on the host, and once `copied` is 1 in device memory, lines [0, staged) only.

    device, host  addresses; copied [1] int32 on the device
    """

    device: int
    host: int
    copied: torch.Tensor
    staged: int
    line_bytes: int


@triton.jit
def _find_lines(answer, host_answer, copied_ptr, staged, lines_at, row, lookups, ROW_BYTES, LINE_BYTES, HEAD_BYTES):
    """Of `row`: refs, line addresses, and the slots that lines are to be kept in, negative for none.

    A ref is a slot, -1 for nobody's row, -2 for a failed step's, else a line.
    """
    # One thread reads and the block follows: all of it must see the same.
    copied = tl.atomic_add(copied_ptr, 0, sem="acquire", scope="gpu") == 1
    near = tl.where(copied, answer, host_answer)
    refs_ptr = (near + HEAD_BYTES).to(tl.pointer_type(tl.int32))
    ref = tl.load(refs_ptr + row, mask=row < lookups, other=-1)
    line = tl.where(ref < -2, ref & 0x7FFFFFFF, 0).to(tl.int64)
    line_at = tl.where(line < staged, near, host_answer) + lines_at + line * LINE_BYTES
    keep = tl.load((line_at + ROW_BYTES).to(tl.pointer_type(tl.int32)), mask=ref < -2, other=-1)
    return ref, line_at, keep


@triton.jit
def _gather_dequant_kernel(
    answer,
    host_answer,
    copied_ptr,
    staged,
    lines_at,
    payload,
    scales,
    out_ptr,
    lookups,
    DIM: tl.constexpr,
    GROUP: tl.constexpr,
    LINE_BYTES: tl.constexpr,
    HEAD_BYTES: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    groups: tl.constexpr = DIM // GROUP
    ref, line, keep = _find_lines(
        answer, host_answer, copied_ptr, staged, lines_at, row, lookups, DIM + groups, LINE_BYTES, HEAD_BYTES
    )
    there = ((ref >= 0) | (ref < -2))[:, None]
    slot = tl.where(ref >= 0, ref, 0).to(tl.int64)
    codes_at = tl.where(ref >= 0, payload + slot * DIM, line).to(tl.pointer_type(tl.uint8))
    scales_at = tl.where(ref >= 0, scales + slot * groups, line + DIM).to(tl.pointer_type(tl.uint8))
    value = tl.arange(0, DIM)[None, :]
    codes = tl.load(codes_at[:, None] + value, mask=there, other=0)
    exponents = tl.load(scales_at[:, None] + value // GROUP, mask=there, other=0).to(tl.int32)
    kept, keep = (keep >= 0)[:, None], tl.where(keep >= 0, keep, 0).to(tl.int64)
    tl.store((payload + keep * DIM).to(tl.pointer_type(tl.uint8))[:, None] + value, codes, mask=kept)
    kept_scales = (scales + keep * groups).to(tl.pointer_type(tl.uint8))[:, None] + value // GROUP
    tl.store(kept_scales, exponents.to(tl.uint8), mask=kept & (value % GROUP == 0))
    # The exponent byte is fp32's own exponent field; only 0 needs its subnormal spelled out.
    scale = tl.where(exponents == 0, 0x00400000, exponents << 23).to(tl.float32, bitcast=True)
    product = codes.to(tl.float8e4nv, bitcast=True).to(tl.float32) * scale
    product = tl.where(there, product, 0.0)
    product = tl.where((ref == -2)[:, None], float("nan"), product)
    out = out_ptr + row.to(tl.int64)[:, None] * DIM + value
    tl.store(out, product.to(tl.bfloat16), mask=(row < lookups)[:, None])


@triton.jit
def _gather_copy_kernel(
    answer,
    host_answer,
    copied_ptr,
    staged,
    lines_at,
    payload,
    out_ptr,
    lookups,
    WORDS: tl.constexpr,
    WORDS_BLOCK: tl.constexpr,
    LINE_BYTES: tl.constexpr,
    HEAD_BYTES: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    ref, line, keep = _find_lines(
        answer, host_answer, copied_ptr, staged, lines_at, row, lookups, 8 * WORDS, LINE_BYTES, HEAD_BYTES
    )
    there = ((ref >= 0) | (ref < -2))[:, None]
    slot = tl.where(ref >= 0, ref, 0).to(tl.int64)
    words_at = tl.where(ref >= 0, payload + slot * (8 * WORDS), line)
    word = tl.arange(0, WORDS_BLOCK)[None, :]
    inside = word < WORDS
    words_ptr = words_at.to(tl.pointer_type(tl.int64))[:, None] + word
    words = tl.load(words_ptr, mask=there & inside, other=0)
    keep_at = (payload + tl.where(keep >= 0, keep, 0).to(tl.int64) * (8 * WORDS)).to(tl.pointer_type(tl.int64))
    tl.store(keep_at[:, None] + word, words, mask=(keep >= 0)[:, None] & inside)
    words = tl.where((ref == -2)[:, None], -1, words)
    out = out_ptr + row.to(tl.int64)[:, None] * WORDS + word
    tl.store(out, words, mask=(row < lookups)[:, None] & inside)


def gather_dequant(
    answer: Answer, payload: torch.Tensor, scales: torch.Tensor, out: torch.Tensor, *, lookups: int
) -> None:
    """The answer's rows dequantized into out; launches on the current stream.

    payload [slots, D] uint8 with D a power of two; scales [slots, D / 32] uint8, or any equal groups; both contiguous
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
            answer.device, answer.host, answer.copied, answer.staged, answer_lines(lookups),
            payload.data_ptr(), scales.data_ptr(), out, lookups,
            DIM=dim, GROUP=dim // groups, LINE_BYTES=answer.line_bytes, HEAD_BYTES=ANSWER_HEAD_BYTES, ROWS=_ROWS,
            num_warps=_WARPS,
        )  # fmt: skip


def gather_copy(answer: Answer, payload: torch.Tensor, out: torch.Tensor, *, lookups: int) -> None:
    """The answer's rows copied into out [lookups, payload bytes] uint8; launches on the current stream.

    raises  ConfigError for shapes that the kernel cannot take
    """
    row_bytes = payload.shape[1]
    if row_bytes % 8:
        raise ConfigError(f"rows of {row_bytes} bytes: expected a multiple of 8")
    if out.dtype != torch.uint8 or out.shape != (lookups, row_bytes) or not out.is_contiguous():
        raise ConfigError(f"out: {tuple(out.shape)} of {out.dtype}, expected [{lookups}, {row_bytes}] of uint8")
    if lookups:
        _gather_copy_kernel[(triton.cdiv(lookups, _ROWS),)](
            answer.device, answer.host, answer.copied, answer.staged, answer_lines(lookups),
            payload.data_ptr(), out.view(torch.int64), lookups,
            WORDS=row_bytes // 8, WORDS_BLOCK=triton.next_power_of_2(row_bytes // 8), LINE_BYTES=answer.line_bytes,
            HEAD_BYTES=ANSWER_HEAD_BYTES, ROWS=_ROWS, num_warps=_WARPS,
        )  # fmt: skip
