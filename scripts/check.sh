#!/usr/bin/env bash
# make check: what tests need, a build with ASan, UBSan and -Werror, every test.
# CTest's summary closes the output; before it stand the reasons of all skips.
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=${JOBS:-$(nproc)}
exec </dev/null

scripts/deps.sh test
if model=$(scripts/model.sh); then
    export QN_TEST_MODEL=$model
else
    echo "check: no model, so the tests that need it skip themselves and say so"
fi

[ -f build/check/build.ninja ] || cmake --preset check
cmake --build build/check -j "$jobs"

export CTEST_OUTPUT_ON_FAILURE=1
# The last lines are held back until the skip reasons are printed.
status=0
ctest --test-dir build/check -j "$jobs" --no-tests=error --timeout 900 "$@" 2>&1 |
    scripts/skips.py build/check/Testing/Temporary/LastTest.log || status=$?
exit $status
