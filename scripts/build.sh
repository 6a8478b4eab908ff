#!/bin/sh
# Release build: build/release, and the command as build/quern.
set -eu
cd "$(dirname "$0")/.."
scripts/deps.sh build
[ -f build/release/build.ninja ] || cmake --preset release
cmake --build build/release -j "${JOBS:-$(nproc)}"
if [ -x build/release/quern ]; then
    # A new file under the final name: a running build/quern keeps the old one.
    if ! cmp -s build/release/quern build/quern; then
        cp build/release/quern build/quern.new
        mv -f build/quern.new build/quern
    fi
    echo "built build/quern"
fi
