# SPDX-License-Identifier: Apache-2.0
"""Ends the requests of a step whose rows could not be read: with a clear error, and without a token of that step.

Such a step ran on zeros. Its tokens are not appended, and what it left in the KV cache never reaches the prefix
tree. Uses how SGLang discards a forward's output: discard_output_reason in a prefill, FINISH_ABORT and a release
without checkpoint in a decode; both are alike in the releases that supported.py names.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from slacktier.errors import SlackTierError
from slacktier_engine.runtime import EngineTier

_MARK = "slacktier_error"
_log = logging.getLogger("slacktier")


def run_hook(tier: EngineTier) -> Callable[..., Any]:
    """Around Scheduler.run_batch: a result whose step failed carries its error until it is processed."""

    def run(original: Callable[..., Any], scheduler: Any, batch: Any, *args: Any, **named: Any) -> Any:
        result = original(scheduler, batch, *args, **named)
        if (error := tier.take_error()) is not None:
            setattr(result, _MARK, error)
            # A chunk in the middle of its prompt is published before its result is processed.
            for req in batch.reqs:
                req.skip_radix_cache_insert = True
        return result

    return run


def process_hook(tier: EngineTier) -> Callable[..., Any]:
    """Around Scheduler.process_batch_result."""

    def process(original: Callable[..., Any], scheduler: Any, batch: Any, result: Any, *args: Any, **named: Any) -> Any:
        error = getattr(result, _MARK, None)
        if error is None:
            return original(scheduler, batch, result, *args, **named)
        reason = _reason(error)
        tier.counts.ended_requests += len(batch.reqs)
        if batch.forward_mode.is_decode():
            return _end_decode(scheduler.batch_result_processor, batch, result, reason)
        for req in batch.reqs:
            req.discard_output_reason = reason
        return original(scheduler, batch, result, *args, **named)

    return process


def _reason(error: SlackTierError) -> Any:
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    return FINISH_ABORT(f"slacktier: {error}", HTTPStatus.SERVICE_UNAVAILABLE, "ServiceUnavailableError")


def _end_decode(processor: Any, batch: Any, result: Any, reason: Any) -> None:
    """As the engine ends one request of a decode step whose token must not be committed, for all of them."""
    if result.copy_done is not None:
        result.copy_done.synchronize()
    processor.token_to_kv_pool_allocator.free_group_begin()
    for req in batch.reqs:
        if req.finished() or req.is_retracted:  # overlap: it ended while this step was on its way
            continue
        req.to_finish = reason
        req.update_finish_state(0)
        processor._handle_sampling_mask_abort(req)
    processor.output_streamer.stream_output(batch.reqs, batch.return_logprob)
    processor.token_to_kv_pool_allocator.free_group_end()
