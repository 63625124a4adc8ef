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
        if tier.captures_steps:
            _finish_on_device(result)
            error = tier.captured_error()
        if error is None:
            return original(scheduler, batch, result, *args, **named)
        reason, live = _reason(error), [req for req in batch.reqs if not req.finished() and not req.is_retracted]
        # A request of several chunks ends at its last one, so it may come here more than once.
        tier.counts.ended_requests += sum(req.discard_output_reason is None for req in live)
        if batch.forward_mode.is_decode():
            return _end_decode(scheduler.batch_result_processor, batch, live, reason)
        for req in live:
            req.discard_output_reason = reason
        return original(scheduler, batch, result, *args, **named)

    return process


def _reason(error: SlackTierError) -> Any:
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    return FINISH_ABORT(f"slacktier: {error}", HTTPStatus.SERVICE_UNAVAILABLE, "ServiceUnavailableError")


def _finish_on_device(result: Any) -> None:
    """A captured step says what it failed with once the device is through with it, and not before."""
    if result.copy_done is not None:
        result.copy_done.synchronize()


def _end_decode(processor: Any, batch: Any, live: list[Any], reason: Any) -> None:
    """As the engine ends one request of a decode step whose token must not be committed, for all live ones.

    live  those of the batch that did not end while this step was on its way, as happens with overlap scheduling
    """
    processor.token_to_kv_pool_allocator.free_group_begin()
    for req in live:
        req.to_finish = reason
        req.update_finish_state(0)
        processor._handle_sampling_mask_abort(req)
    processor.output_streamer.stream_output(batch.reqs, batch.return_logprob)
    processor.token_to_kv_pool_allocator.free_group_end()
