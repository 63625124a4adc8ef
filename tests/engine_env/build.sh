#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the environment that runs SGLang on a CPU (7 GB), for the levels oracle and engine, and prints its path.
#
#   venv/           Python; sees torch/ and packages/ by a .pth file
#   torch/          torch and what it takes
#   packages/       the rest of what SGLang imports
#   sglang-X.Y.Z/   one folder per release, of which a run puts one on PYTHONPATH
#
# Each folder is installed under another name and renamed when complete: a run that was killed is resumed by the folder,
# a finished one costs nothing. It lies outside the repository under a name made from the pins; one run at a time builds it.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/slacktier
target=$cache/engine-$(cat "$here"/{torch,packages,sglang}.txt | sha256sum | cut -c1-12)

# install FOLDER PIP-ARGUMENT...
install() {
    local folder=$target/$1
    shift
    [[ -e $folder ]] && return
    rm -rf "$folder.partial"
    # pip installs into a temporary folder and moves: on the same disk that is a rename.
    TMPDIR=$target/tmp "$target/venv/bin/python" -m pip install --quiet --no-compile --disable-pip-version-check \
        --target "$folder.partial" "$@" >&2
    mv "$folder.partial" "$folder"
}

build() {
    echo "engine-env: building $target (7 GB, 3 to 5 minutes)" >&2
    find "$cache" -maxdepth 1 -name 'engine-*' -type d ! -path "$target" -exec rm -rf {} +
    rm -rf "$target/tmp"
    mkdir -p "$target/tmp"
    [[ -x $target/venv/bin/python ]] || "${PYTHON:-python3}" -m venv "$target/venv"
    local site
    site=$("$target/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    printf '%s\n' "$target/torch" "$target/packages" >"$site/parts.pth"
    install torch --constraint "$here/packages.txt" --requirement "$here/torch.txt" &
    local torch=$!
    install packages --no-deps --requirement "$here/packages.txt"
    local pin
    while read -r pin; do
        install "${pin/==/-}" --no-deps "$pin"
    done <"$here/sglang.txt"
    wait "$torch"
    rm -rf "$target/tmp"
    touch "$target/complete"
}

mkdir -p "$cache"
exec 9>"$cache/engine.lock"
flock 9
[[ -e $target/complete ]] || build
echo "$target"
