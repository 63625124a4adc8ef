# SPDX-License-Identifier: Apache-2.0
"""Fill: a layer's missing rows from its answer into their cache slots; on the side stream, behind the answer's copy.

The answer (layout: st_step_path.h) lies in device memory; its first `staged` lines came with it, later ones are read
from the host where they are still. Block 0 resets the layer's flag. A line holds payload | scales | u32 ref, and a ref
is a cache slot, 0x80000000 | line, or 0xFFFFFFFF; what goes into `places` is a slot, slots + line, ABSENT or FAILED.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from slacktier.errors import ConfigError
from slacktier_engine.kernels.system import INTERPRETED, store_release_u32
from slacktier_native.step_path import ANSWER_HEAD_BYTES, MAIL_READY, answer_lines

ABSENT = -1  # padding, or another rank's row: zeros
FAILED = -2  # the step failed: poison

# Small on purpose, as in publish.py: what sits on an SM holds back the blocks of a GEMM that want all of it.
_BLOCKS = 64
_ROWS = 8
_BLOCK = 256
_WARPS = 2


@triton.jit
def _move_lines(
    source,
    lines,
    payload_ptr,
    scales_ptr,
    first,
    end,
    PAYLOAD_WORDS: tl.constexpr,
    PAYLOAD_BLOCK: tl.constexpr,
    SCALE_WORDS: tl.constexpr,
    LINE_WORDS: tl.constexpr,
    ROWS: tl.constexpr,
    TO_LINES: tl.constexpr,
):
    """Rows of lines [first, end), this block's share, from `source` to their slots, and with TO_LINES to `lines`."""
    words_ptr = source.to(tl.pointer_type(tl.int64))
    lines_ptr = lines.to(tl.pointer_type(tl.int64))
    refs_ptr = source.to(tl.pointer_type(tl.int32)) + 2 * (PAYLOAD_WORDS + SCALE_WORDS)
    word = tl.arange(0, PAYLOAD_BLOCK)[None, :]
    for at in range(first + tl.program_id(0) * ROWS, end, tl.num_programs(0) * ROWS):
        line = (at + tl.arange(0, ROWS)).to(tl.int64)
        there = line < end
        mask = there[:, None] & (word < PAYLOAD_WORDS)
        ref = tl.load(refs_ptr + line * (2 * LINE_WORDS), mask=there, other=-1)
        payload = tl.load(words_ptr + line[:, None] * LINE_WORDS + word, mask=mask, other=0)
        cached = ref >= 0
        slot = tl.where(cached, ref, 0).to(tl.int64)
        tl.store(payload_ptr + slot[:, None] * PAYLOAD_WORDS + word, payload, mask=mask & cached[:, None])
        if TO_LINES:
            tl.store(lines_ptr + line[:, None] * LINE_WORDS + word, payload, mask=mask)
        for s in tl.static_range(SCALE_WORDS):
            scales = tl.load(words_ptr + line * LINE_WORDS + PAYLOAD_WORDS + s, mask=there, other=0)
            tl.store(scales_ptr + slot * SCALE_WORDS + s, scales, mask=there & cached)
            if TO_LINES:
                tl.store(lines_ptr + line * LINE_WORDS + PAYLOAD_WORDS + s, scales, mask=there)


@triton.jit
def _fill_kernel(
    ready,
    answer,
    lines,
    host_lines,
    staged,
    places_ptr,
    payload_ptr,
    scales_ptr,
    lookups,
    slots,
    PAYLOAD_WORDS: tl.constexpr,
    PAYLOAD_BLOCK: tl.constexpr,
    SCALE_WORDS: tl.constexpr,
    LINE_WORDS: tl.constexpr,
    HEAD_BYTES: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    DEVICE: tl.constexpr,
):
    if tl.program_id(0) == 0:
        store_release_u32(ready, 0, DEVICE)
    head = answer.to(tl.pointer_type(tl.int32))
    line_count = tl.load(head)
    failed = tl.load(head + 1)
    refs_ptr = head + HEAD_BYTES // 4
    for first in range(tl.program_id(0) * BLOCK, lookups, tl.num_programs(0) * BLOCK):
        at = first + tl.arange(0, BLOCK)
        ref = tl.load(refs_ptr + at, mask=at < lookups, other=-1)
        place = tl.where(ref < -1, slots + (ref & 0x7FFFFFFF), ref)
        place = tl.where(failed != 0, -2, place)
        tl.store(places_ptr + at, place, mask=at < lookups)
    end = tl.where(failed != 0, 0, line_count)
    near = tl.minimum(end, staged)
    _move_lines(
        lines, lines, payload_ptr, scales_ptr, 0, near,
        PAYLOAD_WORDS, PAYLOAD_BLOCK, SCALE_WORDS, LINE_WORDS, ROWS, False,
    )  # fmt: skip
    _move_lines(
        host_lines, lines, payload_ptr, scales_ptr, near, end,
        PAYLOAD_WORDS, PAYLOAD_BLOCK, SCALE_WORDS, LINE_WORDS, ROWS, True,
    )  # fmt: skip


def fill(
    places: torch.Tensor,
    payload: torch.Tensor,
    scales: torch.Tensor,
    answer: torch.Tensor,
    *,
    lookups: int,
    staged: int,
    mail: int,
    host_answer: int,
    line_bytes: int,
) -> None:
    """Launch on the current stream, behind the layer's wait and the answer's copy; inside a graph or eagerly.

    places   [>= lookups] int32, out; payload [slots, P] uint8, scales [slots, S] uint8, out; all on the device
    answer   uint8 on the device: the answer to `lookups` lookups, with its first `staged` lines
    mail, host_answer  the layer's pinned memory, as addresses
    raises   ConfigError for shapes that the kernel cannot take
    """
    payload_bytes, scale_bytes = payload.shape[1], scales.shape[1]
    if payload_bytes % 8 or scale_bytes % 8 or line_bytes % 16:
        raise ConfigError(f"rows of {payload_bytes} + {scale_bytes} bytes in lines of {line_bytes}: expected multiples")
    if payload.dtype != torch.uint8 or scales.dtype != torch.uint8 or not payload.is_contiguous():
        raise ConfigError(f"row memory of {payload.dtype} and {scales.dtype}: expected contiguous uint8")
    if places.dtype != torch.int32 or places.numel() < lookups:
        raise ConfigError(f"places: {places.numel()} of {places.dtype}, expected {lookups} of int32")
    lines_at = answer_lines(lookups)
    if answer.dtype != torch.uint8 or answer.numel() < lines_at + lookups * line_bytes:
        raise ConfigError(f"answer: {answer.numel()} of {answer.dtype}, expected {lines_at + lookups * line_bytes}")
    words = payload_bytes // 8
    _fill_kernel[(min(_BLOCKS, triton.cdiv(lookups, _ROWS)),)](
        mail + MAIL_READY,
        answer.data_ptr(),
        answer.data_ptr() + lines_at,
        host_answer + lines_at,
        staged,
        places,
        payload.view(torch.int64),
        scales.view(torch.int64) if scale_bytes else payload.view(torch.int64),
        lookups,
        payload.shape[0],
        PAYLOAD_WORDS=words,
        PAYLOAD_BLOCK=triton.next_power_of_2(words),
        SCALE_WORDS=scale_bytes // 8,
        LINE_WORDS=line_bytes // 8,
        HEAD_BYTES=ANSWER_HEAD_BYTES,
        ROWS=_ROWS,
        BLOCK=_BLOCK,
        DEVICE=not INTERPRETED,
        num_warps=_WARPS,
    )
