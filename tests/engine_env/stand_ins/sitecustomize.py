# SPDX-License-Identifier: Apache-2.0
"""What a machine without a GPU lacks to run SGLang's CPU path.

Python imports this at the start of every process that has the folder on its path: also in those that SGLang spawns.
"""

import importlib
import importlib.metadata
import os

from absent import stand_in_for
from after_import import after_import


def _operators(module: object) -> None:
    import cpu_ops

    cpu_ops.bind()


def _mamba(module: object) -> None:
    import cpu_ops

    for function in cpu_ops.MAMBA:
        setattr(module, function.__name__, function)


stand_in_for("torchvision", "sgl_kernel", fillers={"sgl_kernel": _operators, "sgl_kernel.mamba": _mamba})
changes = {
    # Gated RMSNorm by the operator above; SGLang takes it only on CPUs with AMX and else wants Triton.
    "sglang.kernels.ops.attention.fla.layernorm_gated": {"_use_cpu": True},
}
if importlib.metadata.version("sglang") != "0.5.22":
    # KV indices by way of pinned memory and CUDA events; the other way is stock as well, and 0.5.22 has no other.
    changes["sglang.srt.disaggregation.mooncake.conn"] = {"MooncakeKVSender.supports_host_tensor_indices": False}
after_import(changes)

# A test may want a module of its own in each of a server's processes, such as one that makes something fail.
if also := os.environ.get("ENGINE_ENV_ALSO"):
    importlib.import_module(also)
