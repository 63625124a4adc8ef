#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs tests/gpu in Triton's interpreter, in the environment that runs SGLang on a CPU: on_cpu.sh PYTHON [PYTEST-ARGUMENT...]
# pytest comes from the given Python's packages, which stand last, so that torch sees its own numpy.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
environment=$(tests/engine_env/build.sh)
packages=$("$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
shift
export TRITON_INTERPRET=1 OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
export PYTHONPATH=contracts:engine_patch:tests/engine_env/stand_ins:$environment/sglang-0.5.23
exec "$environment/venv/bin/python" -c '
import sys

sys.path.append(sys.argv.pop(1))
import pytest

sys.exit(pytest.main(sys.argv[1:]))' "$packages" --timeout 300 "${@:-tests/gpu}"
