# SPDX-License-Identifier: Apache-2.0
"""What the servers load: small checkpoints, their staged regions, zeroed ones, and SlackTier as it is installed.

Writing a checkpoint takes the engine's imports, so it is kept in build/engine under a name made from what writes it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from engine_process import RELEASES, environment, python

HERE: Final = Path(__file__).parent
TESTS: Final = HERE.parent
ROOT: Final = TESTS.parent
MAKERS: Final = HERE / "checkpoints"
SLACKTIER: Final = Path(sys.executable).parent / "slacktier"
MARGIN: Final = 0.01  # of logits between 0.5 and 1, whose bf16 neighbours are 0.004 apart
LAYERS: Final[Mapping[str, tuple[int, ...]]] = {"engram": (1, 3), "qwen": (1,)}


def run(command: list[str | Path], env: Mapping[str, str] | None = None, limit_s: float = 600) -> str:
    """Standard output of a program that has to succeed."""
    done = subprocess.run(
        [str(part) for part in command], env=env, capture_output=True, text=True, timeout=limit_s, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stderr[-4000:]}")
    return done.stdout


def _key(*salt: str) -> str:
    sources = [*sorted(MAKERS.glob("*.py")), TESTS / "small_tokenizer.py"]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources) + "\0".join(salt).encode())
    return digest.hexdigest()[:12]


def _make(name: str, salt: str, *command: str | Path) -> Path:
    """build/engine/NAME-KEY, written by a maker in the engine's environment, unless it is there."""
    target = ROOT / "build/engine" / f"{name}-{_key(salt)}"
    if not target.exists():
        partial = target.with_name(f"{target.name}.{os.getpid()}.partial")  # two runs may want it at once
        partial.mkdir(parents=True)
        run([python(), "-W", "ignore", *command], environment(RELEASES[-1], TESTS) | {"OUT": str(partial)})
        try:
            partial.rename(target)
        except OSError:  # the other run was first
            if not target.exists():
                raise
            shutil.rmtree(partial)
    return target


@dataclass(frozen=True)
class Reference:
    """What transformers' eager model answers to each prompt, and by what margin of logits it chose each token."""

    prompts: list[list[int]]
    tokens: list[list[int]]
    margins: list[list[float]]

    def decided(self, index: int) -> list[int]:
        """An answer's tokens before the first that rounding may have chosen: from there on others are as good."""
        chosen = takewhile(lambda one: one[1] >= MARGIN, zip(self.tokens[index], self.margins[index], strict=True))
        return [token for token, _ in chosen]


def engram_checkpoint(table_bytes: int = 0) -> Path:
    return _make("engram", str(table_bytes), MAKERS / "engram.py", str(table_bytes)) / "checkpoint"


def qwen_checkpoint(prompts: list[list[int]], new_tokens: int) -> tuple[Path, Reference]:
    asked = json.dumps({"prompts": prompts, "new_tokens": new_tokens})
    made = _make("qwen", asked, MAKERS / "qwen.py", asked)
    return made / "checkpoint", _reference(prompts, json.loads((made / "answers.json").read_text()))


def _reference(prompts: list[list[int]], answers: list[dict[str, Any]]) -> Reference:
    return Reference(prompts, [one["tokens"] for one in answers], [one["margins"] for one in answers])


def stage(checkpoint: Path, layer_id: int, target: Path) -> Path:
    run([SLACKTIER, "stage", checkpoint, "--layer", str(layer_id), "--target", target, "--json"])
    return target


def zeroed(checkpoint: Path, folder: Path) -> Path:
    """The checkpoint's headers and config, every tensor's bytes 0."""
    folder.mkdir(parents=True)
    shutil.copy(checkpoint / "config.json", folder)
    for path in checkpoint.glob("*.safetensors"):
        with path.open("rb") as source, (folder / path.name).open("wb") as target:
            length = source.read(8)
            target.write(length + source.read(*struct.unpack("<Q", length)))
            target.truncate(path.stat().st_size)
    return folder


class Plugin:
    """SlackTier built and installed as `pip install slacktier` does it, into a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def site(self) -> Path:
        # setuptools packs whatever an earlier build left in build/lib.
        shutil.rmtree(ROOT / "build/lib", ignore_errors=True)
        run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", self.folder, ROOT])
        return self.folder


def tables(regions: Mapping[int, list[Path]], *, tier: str = "nvme", cache_rows: int = 0) -> list[dict[str, Any]]:
    """The plugin's `tables`: layer -> region files, each a replica."""
    return [
        {
            "layer": layer_id,
            "sources": [{"tier": tier, "paths": [str(path)]} for path in paths],
            "cache_rows": cache_rows,
        }
        for layer_id, paths in regions.items()
    ]


def tables_over_tcp(
    ports: Sequence[int], token_file: Path, layer_ids: Iterable[int], *, cache_rows: int = 0
) -> list[dict[str, Any]]:
    """The plugin's `tables`: each layer from row servers on these ports of this machine, each a replica."""
    sources = [{"tier": "tcp", "address": f"127.0.0.1:{port}", "token_file": str(token_file)} for port in ports]
    return [{"layer": layer_id, "sources": sources, "cache_rows": cache_rows} for layer_id in layer_ids]


def without_plugin_variables() -> None:
    """A developer's own setting must not reach the stock servers."""
    os.environ.pop("SLACKTIER_CONFIG", None)
