# SPDX-License-Identifier: Apache-2.0
"""What is put into the engine, and the proof that it is there. Runs in processes that may load a model.

SGLang's registry logs a hook that it cannot apply and goes on, and the last plugin to replace a class wins. So after it
has applied its hooks, each of ours is looked for; one that is missing ends the process.
"""

from __future__ import annotations

import logging
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from slacktier.errors import ContractError, SlackTierError
from slacktier_engine import engram, ple
from slacktier_engine.discard import process_hook, run_hook
from slacktier_engine.endpoint import Endpoint
from slacktier_engine.runtime import EngineTier, Family
from slacktier_engine.settings import Settings

_ENGRAM: Final = "sglang.srt.layers.engram"
_QWEN: Final = "sglang.srt.models.qwen4_exp"
_RUNNER: Final = "sglang.srt.model_executor.model_runner.ModelRunner"
_GRAPHS: Final = "sglang.srt.model_executor.runner.decode_cuda_graph_runner.DecodeCudaGraphRunner"
_SCHEDULER: Final = "sglang.srt.managers.scheduler.Scheduler"
_log = logging.getLogger("slacktier")


@dataclass(frozen=True)
class Hook:
    """One change: where, what, and how SGLang's registry calls that way (a HookType's name)."""

    target: str
    what: Any
    how: str


def install(settings: Settings) -> EngineTier:
    """Register all hooks with SGLang; raises ContractError where this SGLang does not have what they need."""
    tier = EngineTier(settings)
    hooks = _hooks(tier)
    before = {hook.target: _resolve(hook.target) for hook in hooks}
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for hook in hooks:
        HookRegistry.register(hook.target, hook.what, HookType[hook.how])
    _verify_after_apply(HookRegistry, hooks, before)
    return tier


def _resolve(target: str) -> Any:
    try:
        return pkgutil.resolve_name(target)
    except (ImportError, AttributeError) as exc:
        raise ContractError(
            f"this sglang has no {target}: {exc}", hint="install a release that docs/sglang.md names"
        ) from exc


def _hooks(tier: EngineTier) -> list[Hook]:
    stock_engram = _resolve(f"{_ENGRAM}.EngramEmbedding")
    stock_ple = _resolve(f"{_QWEN}.Qwen4ExpPinnedHostEmbedding")
    engram_module, qwen_module = _resolve(_ENGRAM), _resolve(_QWEN)
    families = [
        Family(
            lambda model: [found] if (found := engram.find_tables(model, engram_module)) else [],
            partial(engram.dequantizer, stock_engram),
        ),
        Family(
            lambda model: [[table] for table in ple.find_tables(model, qwen_module)],
            ple.dequantizer,
            always_reduces=True,
        ),
    ]
    return [
        Hook(f"{_ENGRAM}.EngramEmbedding", engram.tiered_embedding(stock_engram, tier), "REPLACE"),
        Hook(f"{_ENGRAM}.EngramHasher.forward", engram.issue_after_hash(tier), "AFTER"),
        Hook(f"{_QWEN}.Qwen4ExpPinnedHostEmbedding", ple.tiered_embedding(stock_ple, tier), "REPLACE"),
        Hook(f"{_QWEN}.Qwen4ExpNGramEmbedding.__init__", ple.build_without_table, "AROUND"),
        Hook(f"{_QWEN}.Qwen4ExpNGramEmbedding.compute_ngram_ids", ple.issue_around_hash(tier), "AROUND"),
        Hook(f"{_QWEN}.Qwen4ExpPLELayer.__init__", ple.name_layer, "AFTER"),
        Hook(f"{_QWEN}.Qwen4ExpPLELayer.start_prefetch", ple.start_early, "AFTER"),
        Hook(f"{_QWEN}.Qwen4ExpForConditionalGeneration.load_weights", ple.watch_update(tier), "AROUND"),
        Hook(f"{_RUNNER}.load_model", _load_hook(tier, families), "AROUND"),
        Hook(f"{_GRAPHS}.execute", lambda *_, **__: tier.arm(), "BEFORE"),
        Hook(f"{_SCHEDULER}.run_batch", run_hook(tier), "AROUND"),
        Hook(f"{_SCHEDULER}.process_batch_result", process_hook(tier), "AROUND"),
    ]


def _load_hook(tier: EngineTier, families: list[Family]) -> Callable[..., Any]:
    endpoint = Endpoint(tier)

    def load(original: Callable[..., Any], runner: Any, *args: Any, **named: Any) -> Any:
        if runner.is_draft_worker:
            return original(runner, *args, **named)
        try:
            tier.prepare(runner)
            endpoint.start()
            result = original(runner, *args, **named)
            tier.attach(runner, families)
        except SlackTierError as exc:
            _log.error(
                "slacktier: this server cannot use its tier: %s%s", exc, f" (hint: {exc.hint})" if exc.hint else ""
            )
            raise
        return result

    return load


def _verify_after_apply(registry: Any, hooks: list[Hook], before: dict[str, Any]) -> None:
    """Have the registry's next apply_hooks() end the process if one of our hooks is not in force."""
    apply = registry.apply_hooks

    def apply_and_verify() -> None:
        apply()
        registry.apply_hooks = apply
        missing = [hook.target for hook in hooks if not _in_force(hook, before[hook.target])]
        if missing:
            message = f"slacktier: not in force: {', '.join(missing)}; another plugin, or an SGLang that differs"
            _log.error(message)
            raise SystemExit(message)

    registry.apply_hooks = apply_and_verify


def _in_force(hook: Hook, before: Any) -> bool:
    found = pkgutil.resolve_name(hook.target)
    return found is hook.what if isinstance(hook.what, type) else found is not before
