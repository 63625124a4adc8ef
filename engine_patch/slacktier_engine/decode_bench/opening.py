# SPDX-License-Identifier: Apache-2.0
"""Opens the bench on a GPU of this machine, in the process that calls."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from slacktier.errors import ConfigError
from slacktier_engine.decode_bench.arms import take_cpus
from slacktier_engine.decode_bench.compute import Compute
from slacktier_engine.decode_bench.device import CudaDevice
from slacktier_engine.decode_bench.run import DecodeBench, Settings
from slacktier_engine.decode_bench.stock import StockKernels, find_kernels
from slacktier_rowids.engram import EngramHasher, EngramLayout
from slacktier_rowids.models import V41_CONFIG


def gpu_count() -> int:
    """GPUs of this machine; raises ConfigError if there is none."""
    if not torch.cuda.is_available():
        raise ConfigError("no CUDA GPU", hint="`bench decode` measures a GPU's step; it has no CPU figure to give")
    return int(torch.cuda.device_count())


def open_bench(
    settings: Settings, codes: npt.NDArray[np.int32], *, gpu: int = 0, rank: int = 0, world: int = 1
) -> DecodeBench:
    """codes: the compressed token map [V]. rank: of `world` processes that share this machine's processors."""
    cpus = take_cpus(settings.readers, rank, world)
    directory = find_kernels(settings.kernels)
    hasher = EngramHasher(EngramLayout.from_config(V41_CONFIG), codes)
    device = CudaDevice(gpu, "global" if world == 1 else "thread_local")
    stock = StockKernels(directory, hasher, torch.from_numpy(codes.astype(np.int32)).to(device.torch))
    return DecodeBench(hasher, stock, settings, device, Compute(device), cpus)
