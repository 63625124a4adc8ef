#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints the first Python that is new enough, or says what is missing and exits 1. PYTHON=... names one.
set -euo pipefail

floor='import sys; sys.exit(sys.version_info < (3, 11))'
for candidate in ${PYTHON:-python3 python3.11 python3.12 python3.13 python3.14}; do
    path=$(command -v "$candidate") || continue
    if "$path" -c "$floor" 2>/dev/null; then
        echo "$path"
        exit 0
    fi
done

found=$(${PYTHON:-python3} --version 2>/dev/null) || found="no ${PYTHON:-python3}"
echo "setup: SlackTier needs Python 3.11 or newer, found $found" >&2
echo "hint: install python3.11, or name one: make setup PYTHON=/path/to/python3.11" >&2
exit 1
