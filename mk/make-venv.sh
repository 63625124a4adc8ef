#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the virtual environment that $1 names, unless there is one that works. A half-made one is not left behind.
set -euo pipefail

venv=$1
if "$venv/bin/python" -c 'import pip' 2>/dev/null; then
    exit 0
fi
python=$("$(dirname "$0")/python.sh")
echo "setup: making $venv with $python"
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    echo "setup: $python cannot make virtual environments: its venv module is missing" >&2
    echo "hint: install $(basename "$python")-venv and run make again" >&2
    exit 1
fi
"$python" -m venv --clear "$venv" || { rm -rf "$venv"; exit 1; }
