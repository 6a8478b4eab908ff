#!/bin/sh
# run.sh BUILD_FOLDER COMPILER FLAGS: see CMakeLists.txt. The tree is installed
# under one prefix and then moved, so that nothing in it may hold the old path.
set -eu
build=$1
cc=$2
flags=$3
stage=$build/install-test
rm -rf "$stage"
cmake --install "$build" --prefix "$stage/first" >"$build/install-test.log" || { cat "$build/install-test.log"; exit 1; }
mv "$stage/first" "$stage/tree"
pc=$(find "$stage/tree" -name quern.pc)
libdir=$(dirname "$(dirname "$pc")")
PKG_CONFIG_PATH=$(dirname "$pc")
export PKG_CONFIG_PATH

run() { # name, program
    if ! LD_LIBRARY_PATH=$libdir "$2" >"$stage/$1.out" 2>&1; then
        cat "$stage/$1.out"
        echo "$1: the example failed"
        exit 1
    fi
    echo "$1: built against the installed tree and ran"
}

# shellcheck disable=SC2086,SC2046
{
    if [ -e "$libdir/libquern.so" ]; then
        $cc -std=c11 -Wall -Wextra -Werror $flags examples/scaled_mm.c $(pkg-config --cflags --libs quern) -o "$stage/pc-shared"
        run pkg-config-shared "$stage/pc-shared"
    fi
    $cc -std=c11 -Wall -Wextra -Werror $flags examples/scaled_mm.c $(pkg-config --cflags quern) "$libdir/libquern.a" \
        $(pkg-config --static --libs quern | sed 's/-lquern\b//') -o "$stage/pc-static"
    run pkg-config-static "$stage/pc-static"
}

cmake -S tests/install/consumer -B "$stage/consumer" -G Ninja -DCMAKE_C_COMPILER="$cc" -DCMAKE_C_FLAGS="$flags" \
    -DCMAKE_PREFIX_PATH="$stage/tree" -DEXAMPLE="$PWD/examples/scaled_mm.c" >"$stage/cmake.log" 2>&1 &&
    cmake --build "$stage/consumer" >>"$stage/cmake.log" 2>&1 || { cat "$stage/cmake.log"; exit 1; }
run cmake-default "$stage/consumer/with_default"
run cmake-static "$stage/consumer/with_static"
