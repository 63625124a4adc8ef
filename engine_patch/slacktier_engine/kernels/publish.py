# SPDX-License-Identifier: Apache-2.0
"""Publish: a step's row ids from the device to pinned host memory, the first layer's first.

One block, on the side stream. Per layer: ids [T, C] int64 -> host ids [T * C] int64, then one release of the word
`lookups << 32 | step` that the CPU polls. The step number lives on the device, so that a replayed graph counts on.
Tokens whose `live` entry is 0 are graph padding: their ids go out as -1 and cost no read.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from slacktier.errors import ConfigError
from slacktier_engine.kernels.system import INTERPRETED, store_release_u64

# Small on purpose: a GEMM's block that wants most of an SM's registers waits for whatever is resident there.
_BLOCK = 512
_WARPS = 4


@triton.jit(do_not_specialize=["lookups"])  # one lookup is a number like any other
def _publish_kernel(
    ids_ptr,
    token_stride,
    layer_stride,
    live_ptr,
    host_ids,
    host_ids_bytes,
    mail,
    mail_bytes,
    step_ptr,
    lookups,
    LAYERS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_LIVE: tl.constexpr,
    DEVICE: tl.constexpr,
):
    step = tl.load(step_ptr) + 1
    step = tl.where((step & 0xFFFFFFFF) == 0, step + 1, step)
    for layer in tl.static_range(LAYERS):
        out = (host_ids + layer * host_ids_bytes).to(tl.pointer_type(tl.int64))
        for first in range(0, lookups, BLOCK):
            at = first + tl.arange(0, BLOCK)
            inside = at < lookups
            token = at // COLUMNS
            column = at - token * COLUMNS
            source = token.to(tl.int64) * token_stride + layer * layer_stride + column
            ids = tl.load(ids_ptr + source, mask=inside, other=-1).to(tl.int64)
            if HAS_LIVE:
                ids = tl.where(tl.load(live_ptr + token, mask=inside, other=0) != 0, ids, -1)
            tl.store(out + at, ids, mask=inside)
        # Every thread's ids are on their way before thread 0 releases the word.
        tl.debug_barrier()
        word = (lookups.to(tl.int64) << 32) | (step & 0xFFFFFFFF)
        store_release_u64(mail + layer * mail_bytes, word, DEVICE)
    tl.store(step_ptr, step)


def publish(
    ids: torch.Tensor,
    live: torch.Tensor | None,
    step: torch.Tensor,
    *,
    host_ids: int,
    host_ids_bytes: int,
    mail: int,
    mail_bytes: int,
    lookups_max: int,
) -> None:
    """Launch on the current stream; inside a graph or eagerly.

    ids       [T, L, C] int64 on the device, unit column stride
    live      [T] integers, 0 for padding, or None
    step      [1] int64 on the device, the last step's number
    host_ids  address of layer 0's ids, pinned; layer k's are host_ids_bytes * k further; mail likewise
    raises    ConfigError for shapes and types that the kernel cannot take
    """
    if ids.dim() != 3 or ids.dtype != torch.int64 or ids.stride(2) != 1:
        raise ConfigError(f"row ids: {tuple(ids.shape)} of {ids.dtype}, expected [tokens, layers, columns] of int64")
    tokens, layers, columns = ids.shape
    if not 0 < tokens * columns <= lookups_max:
        raise ConfigError(f"step of {tokens} tokens: {tokens * columns} lookups per layer, room for {lookups_max}")
    if live is not None and (live.shape != (tokens,) or not live.is_contiguous()):
        raise ConfigError(f"live: shape {tuple(live.shape)}, expected [{tokens}]")
    if step.dtype != torch.int64 or step.numel() != 1:
        raise ConfigError(f"step: {step.numel()} of {step.dtype}, expected one int64")
    _publish_kernel[(1,)](
        ids,
        ids.stride(0),
        ids.stride(1),
        live if live is not None else ids,
        host_ids,
        host_ids_bytes,
        mail,
        mail_bytes,
        step,
        tokens * columns,
        LAYERS=layers,
        COLUMNS=columns,
        BLOCK=_BLOCK,
        HAS_LIVE=live is not None,
        DEVICE=not INTERPRETED,
        num_warps=_WARPS,
    )
