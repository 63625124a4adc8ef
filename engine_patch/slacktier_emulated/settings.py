# SPDX-License-Identifier: Apache-2.0
"""Settings of the engine process and of the web server, read once from the command line and then fixed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from slacktier_emulated.layers import LayerPlan
from slacktier_emulated.profile import Profile

EMULATED_SUFFIX: Final = "-emulated"  # every model name that clients see ends in it


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """All that the engine process needs; it crosses the process boundary once, by pickle.

    model_config         the model's config.json, which decides row ids
    filler               tokens of ordinary text, for answers to very short prompts
    special_first        token ids from here on are control tokens
    check_seed           seed of the test pattern; None: what each region's superblock says
    running_max          sequences in prefill and decode together; 256, the largest batch that the paper measured
    prefix_cache_tokens  tokens of past sequences that need no prefill; 0: none
    lookup_timeout_s     a prefill chunk on a slow disk with a cold cache takes this long before it is given up
    online_split         move cache rows between layers while serving, from the stalls of decode steps
    record_limit         lookups kept for record_path, all layers together, 4 bytes each
    """

    layers: tuple[LayerPlan, ...]
    profile: Profile
    model_config: Mapping[str, Any]
    rank: int
    tp: int
    filler: tuple[int, ...]
    eos_id: int
    special_first: int
    check_seed: int | None = None
    running_max: int = 256
    prefix_cache_tokens: int = 4_000_000
    backend: str = "auto"
    io_threads: int = 0
    queue_depth: int = 256
    lookup_timeout_s: float = 60.0
    online_split: bool = False
    record_path: Path | None = None
    record_limit: int = 50_000_000


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """All that the web server needs besides the engine.

    model_name         as clients see it; always ends in -emulated
    waiting_max        requests in the queue before new ones get 503
    context_length     prompt and answer together, in tokens
    body_bytes_max     larger request bodies get 413; a prompt of 100,000 ids is about 0.7 MB of JSON
    body_timeout_s     a client that sends its body slower than this gets 408
    drain_s            how long running streams may go on after SIGTERM
    token              bearer token of the control endpoints; None: loopback only
    """

    host: str
    port: int
    model_name: str
    waiting_max: int = 512
    context_length: int = 131_072
    body_bytes_max: int = 16 << 20
    body_timeout_s: float = 30.0
    drain_s: float = 10.0
    token: str | None = field(default=None, repr=False)
