#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages that set-up lacks, saying so first. Arguments name more: a command that is a package's name,
# or COMMAND=PACKAGE, or HEADER.h=PACKAGE.
# Where that is refused or impossible it says what to install and exits 0: set-up goes on with what works.
set -euo pipefail

compiler=${CC:-cc}
asked=${SLACKTIER_REFUSED_PACKAGES:-build/.refused-packages} # what was refused before is not asked for at every make

compiles() { command -v "$compiler" >/dev/null && printf '%s\n' "$1" | "$compiler" -E -xc - >/dev/null 2>&1; }

has_venv() {
    local python
    .venv/bin/python -c 'import pip' 2>/dev/null && return
    python=$("$(dirname "$0")/python.sh" 2>/dev/null) && "$python" -c 'import ensurepip, venv' 2>/dev/null
}

# python.sh may have picked a versioned interpreter, whose venv module is in a versioned package.
venv_package() {
    local python
    python=$("$(dirname "$0")/python.sh" 2>/dev/null) || python=python3
    echo "$(basename "$python")-venv"
}

has_extra() {
    case $1 in
    *.h) compiles "#include <$1>" ;;
    lib*) dpkg -s "$1" >/dev/null 2>&1 ;; # a library has no command
    *) command -v "$1" >/dev/null ;;
    esac
}

missing_packages() {
    command -v make >/dev/null || echo make
    command -v "$compiler" >/dev/null || echo gcc
    compiles '#include <stdio.h>' || echo libc6-dev
    compiles '#include <liburing.h>' || echo liburing-dev
    command -v python3 >/dev/null || command -v "${PYTHON:-python3.11}" >/dev/null || echo python3
    has_venv || venv_package
    local extra
    for extra in "$@"; do
        has_extra "${extra%%=*}" || echo "${extra#*=}"
    done
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif ! command -v sudo >/dev/null; then
        echo "setup: not root, and sudo is not installed" >&2
        return 1
    elif [ -t 0 ]; then
        sudo "$@"
    else
        sudo -n "$@" # nobody is there to type a password
    fi
}

install_packages() {
    command -v apt-get >/dev/null || { echo "setup: this system has no apt-get" >&2; return 1; }
    echo "setup: installing with apt-get: $*"
    as_root apt-get update -q >/dev/null && as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -q -y --no-install-recommends "$@"
}

mapfile -t missing < <(missing_packages "$@")
[ ${#missing[@]} -gt 0 ] || exit 0
advice="setup: please install these yourself: ${missing[*]}
setup: without gcc and libc6-dev there is no native library; without liburing-dev it reads with preadv threads"
if [ -f "$asked" ] && [ "$(cat "$asked")" = "${missing[*]}" ]; then
    printf '%s\nsetup: (installing was refused before; delete %s to try again)\n' "$advice" "$asked" >&2
elif ! install_packages "${missing[@]}"; then
    mkdir -p "$(dirname "$asked")"
    echo "${missing[*]}" >"$asked"
    printf '%s\n' "$advice" >&2
fi
