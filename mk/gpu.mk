# SPDX-License-Identifier: Apache-2.0
# Needs torch and triton in the Python named by GPU_PYTHON, and a CUDA GPU; or TRITON_INTERPRET=1 and no GPU.
GPU_PYTHON ?= python3

.PHONY: test-gpu
test-gpu: native ## The step path and its kernels on a GPU (GPU_PYTHON=python with torch), or TRITON_INTERPRET=1
	PYTHONPATH=contracts:engine_patch $(GPU_PYTHON) -m pytest tests/gpu
