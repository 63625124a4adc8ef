# SPDX-License-Identifier: Apache-2.0
# test-gpu needs torch and triton in the Python named by GPU_PYTHON, and a CUDA GPU. test-kernels runs the same tests in Triton's
# interpreter, in the environment that runs SGLang on a CPU, and compares with SGLang's own torch code.
GPU_PYTHON ?= python3

.PHONY: test-gpu test-kernels
test-gpu: native ## The step path and its kernels on a GPU (GPU_PYTHON=python with torch)
	PYTHONPATH=contracts:engine_patch $(GPU_PYTHON) -m pytest tests/gpu

test-kernels: engine-env ## The same on the CPU, in Triton's interpreter, and against SGLang's torch code
	tests/gpu/on_cpu.sh $(PY)
