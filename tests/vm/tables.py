# SPDX-License-Identifier: Apache-2.0
"""A checkpoint's rows as its safetensors file has them, and rows of the lookup core compared with them."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from slacktier.tiers import Tier
from slacktier_native.core import LayerResult, LookupCore, SourceSpec

Bytes = npt.NDArray[np.uint8]
RowIds = npt.NDArray[np.int64]


def slacktier(*arguments: object, exit_code: int = 0) -> str:
    """Standard output of the command `slacktier`; fails with what it said on standard error."""
    run = [sys.executable, "-c", "from slacktier_cli.main import main; main()", *map(str, arguments)]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == exit_code, (
        f"slacktier {' '.join(map(str, arguments))}: exit code {done.returncode}: {done.stderr}"
    )
    return done.stdout


def stage_to_device(checkpoint: Path, disk: str) -> SourceSpec:
    """Layer 1 of the checkpoint on a raw NVMe device, by the command that operators use."""
    device = Path(f"/dev/{disk}n1")
    report = json.loads(slacktier("stage", checkpoint, "--layer", 1, "--target", device, "--format", "--json"))
    assert report["outcome"] == "staged", report
    return SourceSpec(Tier.NVME, (device,))


def _tensors(path: Path) -> dict[str, Bytes]:
    """Every tensor of a safetensors file as rows of bytes."""
    raw = path.read_bytes()
    (header_bytes,) = struct.unpack_from("<Q", raw)
    header: dict[str, Any] = json.loads(raw[8 : 8 + header_bytes])
    data = np.frombuffer(raw, np.uint8)[8 + header_bytes :]
    return {
        name: data[slice(*entry["data_offsets"])].reshape(entry["shape"][0], -1)
        for name, entry in header.items()
        if name != "__metadata__"
    }


@dataclass(frozen=True)
class SourceRows:
    """The rows [row_count, row_bytes] uint8 of one layer: payload, then scales."""

    layer_id: int
    rows: Bytes

    def look_up(self, core: LookupCore, ids: RowIds, layer_index: int = 0) -> LayerResult:
        """One step on one layer of the core, the others asked for nothing; its rows must equal the source's."""
        nothing = np.empty(0, np.int64)
        try:
            core.begin([ids if i == layer_index else nothing for i in range(len(core.layer_ids))])
            result = core.wait(layer_index)
            found = np.full((ids.size, core.row_bytes(layer_index)), 0xEE, np.uint8)
            core.gather(layer_index, found)
        finally:
            core.end()
        wrong = (found != self.rows[ids]).any(axis=1)
        assert not wrong.any(), f"{wrong.sum()} wrong rows, the first of them {ids[wrong][0]}"
        return result

    def draw(self, count: int, seed: int) -> RowIds:
        return np.random.default_rng(seed).choice(self.rows.shape[0], count, replace=False)


def read_source(checkpoint: Path) -> dict[int, SourceRows]:
    """Each layer's rows of a V4.1 checkpoint."""
    tensors = {name: rows for path in checkpoint.glob("*.safetensors") for name, rows in _tensors(path).items()}
    found = {}
    for name, weights in tensors.items():
        if name.endswith(".weight"):
            scales = tensors[name.removesuffix("weight") + "scale"]
            layer_id = int(name.split(".")[1])
            found[layer_id] = SourceRows(layer_id, np.concatenate([weights, scales], axis=1))
    return found
