#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the environment that runs SGLang's own code on a CPU, unless it is there, and prints its path: one virtual environment with
# torch (6 GB) and one folder per SGLang release. It lies outside the repository and is kept under a name made from the pins.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=$HOME/.cache/slacktier
key=$(cat "$here/requirements.txt" "$here/sglang.txt" | sha256sum | cut -c1-12)
target=$cache/oracle-$key

mkdir -p "$cache"
exec 9>"$cache/oracle.lock"
flock 9
if [[ ! -e $target/complete ]]; then
    echo "oracle: building $target (6 GB, 3 to 5 minutes)" >&2
    rm -rf "$cache"/oracle-*/
    "${PYTHON:-python3}" -m venv "$target/venv"
    pip=("$target/venv/bin/python" -m pip install --quiet --no-compile --disable-pip-version-check)
    # The releases go to folders of their own, so they install while torch is unpacked.
    while read -r pin; do
        "${pip[@]}" --no-deps --target "$target/${pin/==/-}" "$pin"
    done <"$here/sglang.txt" >&2 &
    releases=$!
    "${pip[@]}" -r "$here/requirements.txt" >&2
    wait "$releases"
    touch "$target/complete"
fi
echo "$target"
