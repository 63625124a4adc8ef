#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fuzzes every parser of bytes from outside for so many seconds each: fuzz.sh SECONDS [TARGET...]
# C targets are built with libFuzzer, ASan and UBSan; Python's run under atheris. Two run at a time. What they learn
# stays in build/fuzz/corpus, an input that broke something in build/fuzz/found-TARGET-*.
set -euo pipefail

seconds=$1
shift
native=engine_patch/native out=build/fuzz
python=$PWD/.venv/bin/python
mkdir -p $out

c_targets() { basename -a -s .c $native/fuzz/*.c; }
python_targets() { basename -a -s .py tests/fuzz/fuzz_*.py | sed s/^fuzz_//; }

can_build() { echo 'int LLVMFuzzerTestOneInput(void) { return 0; }' | clang -fsanitize=fuzzer -xc - -o $out/can-build; }

# Runs one target and says in one line what it did; the output of a run that found something is shown whole.
fuzz_one() {
    local target=$1 log=$out/$1.log limits
    limits=(-max_total_time="$seconds" -max_len=8192 -timeout=20 -rss_limit_mb=2048 -print_final_stats=1
        -artifact_prefix="$PWD/$out/found-$target-" "$out/corpus/$target")
    if [ -e "$native/fuzz/$target.c" ]; then
        set -- "$out/$target"
    else
        set -- "$python" "tests/fuzz/fuzz_$target.py"
    fi
    if ! timeout $((seconds + 120)) "$@" "${limits[@]}" >"$log" 2>&1; then
        sed "s/^/$target: /" "$log" | tail -60 >&2
        echo "fuzz: $target found something" >&2
        return 1
    fi
    echo "fuzz: $target: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs in $seconds s, nothing found"
}

if [ $# -gt 0 ]; then targets=("$@"); else mapfile -t targets < <(c_targets; python_targets); fi
can_build 2>/dev/null || mk/system-packages.sh clang libclang-rt-dev
make -s -C $native fuzz
"$python" tests/fuzz/make_seeds.py "$out/corpus"

passed=0 failed=0
for ((i = 0; i < ${#targets[@]}; i += 2)); do
    pids=()
    for target in "${targets[@]:i:2}"; do
        fuzz_one "$target" &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do
        if wait "$pid"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    done
done
if [ -n "${SLACKTIER_LEVEL_REPORT:-}" ]; then
    echo "fuzz $passed $failed 0" >>"$SLACKTIER_LEVEL_REPORT"
fi
echo "fuzz: $passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
