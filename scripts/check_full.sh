#!/usr/bin/env bash
# make check-full, after make check: 1,000 random mixes of sequences over every scheme
# and level, 40 random cases of every operator, ThreadSanitizer, every fuzz target for 60 s (QN_FUZZ_SECONDS), valgrind
# on the release command.
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=${JOBS:-$(nproc)}
exec </dev/null
scripts/deps.sh full
if model=$(scripts/model.sh); then
    export QN_TEST_MODEL=$model
fi

echo "== random mixes of sequences"
QN_TEST_MIXES=1000 build/check/tests/test_model_batches

echo "== random cases of every operator"
QN_TEST_CASES=40 build/check/tests/test_kernels random_cases_agree

echo "== rows dealt eight times"
QN_TEST_DEALS=8 build/check/tests/test_kernel_invariance

echo "== every distortion anchor"
QN_TEST_EVERY_ANCHOR=1 build/check/tests/test_kmeans

echo "== every device kernel for every target"
QN_TEST_EVERY_CUBIN=1 build/check/tests/test_cuda_compile

echo "== ThreadSanitizer"
[ -f build/tsan/build.ninja ] || cmake --preset tsan
cmake --build build/tsan -j "$jobs"
# ThreadSanitizer of gcc 12 cannot live with much address randomisation.
TSAN_OPTIONS="suppressions=$PWD/tests/thread.supp" QN_TEST_MIXES=12 setarch "$(uname -m)" -R ctest --test-dir build/tsan --output-on-failure --no-tests=error --timeout 900 \
    -R 'exec|pool|plan|kernel|backend|model|session'

echo "== fuzzing"
[ -f build/fuzz/build.ninja ] || cmake --preset fuzz
cmake --build build/fuzz -j "$jobs"
seconds=${QN_FUZZ_SECONDS:-60}
tests/fuzz/seeds.sh build/fuzz/seeds
targets=$(find build/fuzz -name 'fuzz_*' -type f -perm -u+x | sort)
[ -n "$targets" ] || { echo "check_full: there is no fuzz target" >&2; exit 1; }
fuzz() {
    local name=${1##*/}
    mkdir -p "build/fuzz/corpus/$name" "build/fuzz/seeds/${name#fuzz_}"
    if "$1" -max_total_time="$2" -rss_limit_mb=2048 -timeout=20 -print_final_stats=1 -artifact_prefix="build/fuzz/$name-" \
        "build/fuzz/corpus/$name" "build/fuzz/seeds/${name#fuzz_}" >"build/fuzz/$name.log" 2>&1 </dev/null; then
        echo "$name: $2 s, $(sed -n 's/^stat::number_of_executed_units: *//p' "build/fuzz/$name.log") executions, no finding"
    else
        tail -n 40 "build/fuzz/$name.log"
        echo "$name: FINDING, the input is build/fuzz/$name-*"
        return 1
    fi
}
export -f fuzz
printf '%s\n' "$targets" | xargs -P "$jobs" -I{} bash -c 'fuzz "$1" "$2"' _ {} "$seconds"

echo "== valgrind"
scripts/build.sh
for verb in "--version" "kernels" "doctor" "explain scaled_mm m=3 n=65 k=127" ${model:+"inspect $model"}; do
    # shellcheck disable=SC2086
    valgrind -q --error-exitcode=99 --leak-check=full build/quern $verb >/dev/null
    echo "valgrind: quern $verb"
done
