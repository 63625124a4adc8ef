#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs test programs, each of which prints why it failed and exits non-zero: run-programs.sh LEVEL PROGRAM...
# A level without a program is red. Counts go to the file that SLACKTIER_LEVEL_REPORT names, as pytest's do.
set -euo pipefail

level=$1
shift
read -ra run <<<"${RUN:-}" # a command with its arguments, such as `setarch -R`, or nothing
passed=0 failed=0
for program in "$@"; do
    if timeout 120 "${run[@]}" "$program"; then
        passed=$((passed + 1))
    else
        echo "$level: $program failed with exit code $?" >&2
        failed=$((failed + 1))
    fi
done

if [ -n "${SLACKTIER_LEVEL_REPORT:-}" ]; then
    echo "$level $passed $failed 0" >>"$SLACKTIER_LEVEL_REPORT"
fi
echo "$level: $passed passed, $failed failed"
if [ $((passed + failed)) = 0 ]; then
    echo "$level: was asked for and ran nothing" >&2
    exit 1
fi
[ "$failed" = 0 ]
