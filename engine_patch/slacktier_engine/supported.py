# SPDX-License-Identifier: Apache-2.0
"""What the plugin works with: SGLang's releases, and the server flags that it refuses by name. The pin is here alone.

Each refusal names the flag, what it would do to the tables, and the way out.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from slacktier.errors import ConfigError

SGLANG_VERSIONS: Final = ("0.5.22", "0.5.23")

# Speculative decoding that commits the tokens' history through update_after_verify, which the hasher needs.
_SPECULATION: Final = ("DSPARK",)
# flag -> (attribute, values that are fine, why the others are not)
_FLAGS: Final[dict[str, tuple[str, tuple[Any, ...], str]]] = {
    "--pp-size": ("pp_size", (1,), "pipeline stages do not hold all lookup layers"),
    "--attn-cp-size": ("attn_cp_size", (1, None), "context parallelism looks up other tokens than the hasher saw"),
    "--enable-two-batch-overlap": (
        "enable_two_batch_overlap", (False, None), "two half batches would share one step",
    ),
    "--enable-pdmux": ("enable_pdmux", (False, None), "two batches would be in flight at once"),
    "--dllm-algorithm": ("dllm_algorithm", (None, ""), "diffusion blocks are looked up more than once"),
    "--enable-nvidia-megakernel": (
        "enable_nvidia_megakernel", (False, None), "it reads the table's memory behind the embedding",
    ),
    "--weight-loader-disable-mmap": (
        "weight_loader_disable_mmap", (False, None), "the loader would read the whole table into memory",
    ),
    "--weight-loader-prefetch-checkpoints": (
        "weight_loader_prefetch_checkpoints", (False, None), "the loader would read the whole table",
    ),
    "--elastic-ep-backend": ("elastic_ep_backend", (None, ""), "ranks that come and go change who owns a row"),
    "--enable-torch-compile": ("enable_torch_compile", (False, None), "a compiled forward skips the lookups' hooks"),
}  # fmt: skip
# Loaders that stream or copy every tensor, the table's included, before a parameter may decline it.
_LOAD_FORMATS: Final = ("auto", "safetensors", "dummy", "LoadFormat.AUTO", "LoadFormat.SAFETENSORS", "LoadFormat.DUMMY")
# Graphs that would capture the lookup inside a prefill segment, or merge host nodes.
_PREFILL_GRAPHS: Final = (None, "disabled")
_ENVIRONMENT: Final = {
    "SGLANG_ENABLE_CUDA_GRAPH_DEDUP": "graphs that wait for the host cannot be merged",
}


def check_version(further: Sequence[str] = ()) -> str:
    """The installed SGLang's version; raises ConfigError unless it is one that was tested, or named in `further`."""
    try:
        found = version("sglang")
    except PackageNotFoundError:
        raise ConfigError("sglang is not installed here", hint="pip install sglang==0.5.23") from None
    accepted = (*SGLANG_VERSIONS, *further)
    if found not in accepted:
        raise ConfigError(
            f"sglang {found}: expected {' or '.join(accepted)}",
            hint="install one of them, or name yours in sglang_versions at your own risk",
        )
    return found


def check_flags(server_args: Any) -> None:
    """Raises ConfigError for the first flag of this server that the tables cannot work with."""
    for flag, (name, fine, why) in _FLAGS.items():
        found = getattr(server_args, name, None)
        if found not in fine:
            raise ConfigError(f"{flag} {found}: not with SlackTier: {why}", hint=f"start the server without {flag}")
    speculation = getattr(server_args, "speculative_algorithm", None)
    if speculation not in (None, "", *_SPECULATION):
        raise ConfigError(
            f"--speculative-algorithm {speculation}: not with SlackTier: only {', '.join(_SPECULATION)} keeps the "
            "hasher's history of accepted tokens",
            hint="start the server without it",
        )
    load_format = str(getattr(server_args, "load_format", "auto"))
    if load_format not in _LOAD_FORMATS:
        raise ConfigError(
            f"--load-format {load_format}: not with SlackTier: it would read the whole table",
            hint="use --load-format safetensors",
        )
    _check_prefill_graph(server_args)
    for name, why in _ENVIRONMENT.items():
        if os.environ.get(name, "").lower() in ("1", "true", "yes"):
            raise ConfigError(f"{name}: not with SlackTier: {why}", hint=f"unset {name}")


def _check_prefill_graph(server_args: Any) -> None:
    found = getattr(server_args, "cuda_graph_backend_prefill", None)
    if found not in _PREFILL_GRAPHS and getattr(server_args, "device", "cuda") != "cpu":
        raise ConfigError(
            f"--cuda-graph-backend-prefill {found}: not with SlackTier: a prefill graph would capture the lookup",
            hint="start the server with --cuda-graph-backend-prefill disabled",
        )


def can_end_requests(server_args: Any) -> bool:
    """Whether a failed step's requests can end by themselves in this server; else the process has to."""
    return (
        getattr(server_args, "disaggregation_mode", "null") in (None, "null")
        and not getattr(server_args, "speculative_algorithm", None)
        and not getattr(server_args, "enable_hisparse", False)
    )
