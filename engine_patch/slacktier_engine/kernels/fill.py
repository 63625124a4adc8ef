# SPDX-License-Identifier: Apache-2.0
"""Fill: a layer's missing rows from the packed pinned pool into their places in device memory.

32 blocks, on the side stream, behind the wait for the layer's flag. Block 0 resets the flag; every block reads its
own mail share (a cache line of its own: many readers of one host line take turns of 1 us). Pool line i holds
payload | scales | u32 ref. A ref is a cache slot, 0x80000000 | spill index, or 0xFFFFFFFF; what goes into `places`
is the row's index in device memory (spilled rows behind the cache's), ABSENT or FAILED.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from slacktier.errors import ConfigError
from slacktier_engine.kernels.system import INTERPRETED, store_release_u32
from slacktier_native.step_path import FILL_SHARES, MAIL_READY, MAIL_SHARES

ABSENT = -1  # padding, or another rank's row: zeros
FAILED = -2  # the step failed: poison

# Small on purpose, as in publish.py: with 8 warps and 32 rows per block a step got 60 to 120 us longer.
_ROWS = 8
_BLOCK = 256
_WARPS = 2


@triton.jit
def _fill_kernel(
    mail,
    lines,
    host_refs,
    places_ptr,
    payload_ptr,
    scales_ptr,
    lookups,
    spill_first,
    PAYLOAD_WORDS: tl.constexpr,
    PAYLOAD_BLOCK: tl.constexpr,
    SCALE_WORDS: tl.constexpr,
    LINE_WORDS: tl.constexpr,
    READY: tl.constexpr,
    SHARES: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    DEVICE: tl.constexpr,
):
    block = tl.program_id(0)
    blocks = tl.num_programs(0)
    share = (mail + SHARES + block * 64).to(tl.pointer_type(tl.int32))
    line_count = tl.load(share, volatile=True)
    failed = tl.load(share + 1, volatile=True)
    if block == 0:
        store_release_u32(mail + READY, 0, DEVICE)
    refs_ptr = host_refs.to(tl.pointer_type(tl.int32))
    for first in range(block * BLOCK, lookups, blocks * BLOCK):
        at = first + tl.arange(0, BLOCK)
        ref = tl.load(refs_ptr + at, mask=at < lookups, other=-1)
        place = tl.where(ref < -1, spill_first + (ref & 0x7FFFFFFF), ref)
        place = tl.where(failed != 0, -2, place)
        tl.store(places_ptr + at, place, mask=at < lookups)
    words_ptr = lines.to(tl.pointer_type(tl.int64))
    line_refs = lines.to(tl.pointer_type(tl.int32)) + 2 * (PAYLOAD_WORDS + SCALE_WORDS)
    end = tl.where(failed != 0, 0, line_count)
    word = tl.arange(0, PAYLOAD_BLOCK)
    for first in range(block * ROWS, end, blocks * ROWS):
        line = (first + tl.arange(0, ROWS)).to(tl.int64)
        there = line < end
        mask = there[:, None] & (word < PAYLOAD_WORDS)[None, :]
        ref = tl.load(line_refs + line * (2 * LINE_WORDS), mask=there, other=0)
        payload = tl.load(words_ptr + line[:, None] * LINE_WORDS + word[None, :], mask=mask, other=0)
        place = tl.where(ref < 0, spill_first + (ref & 0x7FFFFFFF), ref).to(tl.int64)
        tl.store(payload_ptr + place[:, None] * PAYLOAD_WORDS + word[None, :], payload, mask=mask)
        for s in tl.static_range(SCALE_WORDS):
            scales = tl.load(words_ptr + line * LINE_WORDS + PAYLOAD_WORDS + s, mask=there, other=0)
            tl.store(scales_ptr + place * SCALE_WORDS + s, scales, mask=there)


def fill(
    places: torch.Tensor,
    payload: torch.Tensor,
    scales: torch.Tensor,
    *,
    lookups: int,
    spill_first: int,
    mail: int,
    lines: int,
    line_bytes: int,
    host_refs: int,
) -> None:
    """Launch on the current stream, behind the layer's wait; inside a graph or eagerly.

    places   [>= lookups] int32, out; payload [R, P] uint8, scales [R, S] uint8, out; all on the device
    mail, lines, host_refs  the layer's pinned memory, as addresses; spill_first: first row that is no cache slot
    raises   ConfigError for shapes that the kernel cannot take
    """
    payload_bytes, scale_bytes = payload.shape[1], scales.shape[1]
    if payload_bytes % 8 or scale_bytes % 8 or line_bytes % 16:
        raise ConfigError(f"rows of {payload_bytes} + {scale_bytes} bytes in lines of {line_bytes}: expected multiples")
    if payload.dtype != torch.uint8 or scales.dtype != torch.uint8 or not payload.is_contiguous():
        raise ConfigError(f"row memory of {payload.dtype} and {scales.dtype}: expected contiguous uint8")
    if places.dtype != torch.int32 or places.numel() < lookups:
        raise ConfigError(f"places: {places.numel()} of {places.dtype}, expected {lookups} of int32")
    words = payload_bytes // 8
    _fill_kernel[(FILL_SHARES,)](
        mail,
        lines,
        host_refs,
        places,
        payload.view(torch.int64),
        scales.view(torch.int64) if scale_bytes else payload.view(torch.int64),
        lookups,
        spill_first,
        PAYLOAD_WORDS=words,
        PAYLOAD_BLOCK=triton.next_power_of_2(words),
        SCALE_WORDS=scale_bytes // 8,
        LINE_WORDS=line_bytes // 8,
        READY=MAIL_READY,
        SHARES=MAIL_SHARES,
        ROWS=_ROWS,
        BLOCK=_BLOCK,
        DEVICE=not INTERPRETED,
        num_warps=_WARPS,
    )
