# SPDX-License-Identifier: Apache-2.0
"""System-scope stores, for words that the CPU polls."""

from __future__ import annotations

import os

import triton
import triton.language as tl

# The interpreter has no inline assembly, and its host is the only one who looks.
INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"


@triton.jit
def store_release_u64(address, value, DEVICE: tl.constexpr):
    """One 8-byte store by thread 0, after everything that the block stored before its last barrier."""
    if DEVICE:
        tl.inline_asm_elementwise(
            """
            {
                .reg .pred first;
                .reg .u32 thread;
                mov.u32 thread, %tid.x;
                setp.eq.u32 first, thread, 0;
                @first st.release.sys.global.u64 [$1], $2;
                mov.u32 $0, thread;
            }
            """,
            "=r,l,l",
            [address, value],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
    else:
        tl.store(address.to(tl.pointer_type(tl.int64)), value)


@triton.jit
def store_release_u32(address, value, DEVICE: tl.constexpr):
    """The same, of 4 bytes."""
    if DEVICE:
        tl.inline_asm_elementwise(
            """
            {
                .reg .pred first;
                .reg .u32 thread;
                mov.u32 thread, %tid.x;
                setp.eq.u32 first, thread, 0;
                @first st.release.sys.global.u32 [$1], $2;
                mov.u32 $0, thread;
            }
            """,
            "=r,l,r",
            [address, value],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
    else:
        tl.store(address.to(tl.pointer_type(tl.int32)), value)
