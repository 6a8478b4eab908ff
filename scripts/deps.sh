#!/bin/sh
# Installs the Debian packages that a step needs and that are not there yet.
#
#   scripts/deps.sh [build|test|full|fmt|pip] [--list]
#
# build: what `make` needs.  test: what `make check` needs besides.
# full: what `make check-full` needs besides.  fmt: clang-format.  pip: python3-pip.
# --list prints the missing packages, one a line, and installs nothing.
#
# A package counts as there when dpkg says so, or when what it would bring is
# found another way (a command on PATH, a pkg-config module), so that machines
# that are not Debian work too once the libraries are installed by hand.
set -eu

# package[,command|,=module]
build="gcc,cc cmake,cmake ninja-build,ninja pkg-config,pkg-config libc6-dev
    libjansson-dev,=jansson libpcre2-dev,=libpcre2-8 libutf8proc-dev,=libutf8proc libxxhash-dev,=libxxhash"
test="$build gcc,gcc libcmocka-dev,=cmocka g++,g++ clang,clang python3,python3"
full="$test libclang-rt-dev llvm,llvm-symbolizer valgrind,valgrind"
fmt="clang-format,clang-format"
pip="python3-pip"

step=${1:-build}
case $step in
build) wanted=$build ;;
test) wanted=$test ;;
full) wanted=$full ;;
fmt) wanted=$fmt ;;
pip) wanted=$pip ;;
*)
    echo "deps.sh: no step is called '$step'; there are build, test, full, fmt, pip" >&2
    exit 2
    ;;
esac

present() {
    package=${1%%,*}
    other=
    case $1 in *,*) other=${1#*,} ;; esac
    if command -v dpkg-query >/dev/null 2>&1 &&
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ]; then
        return 0
    fi
    case $other in
    "")
        # Nothing else to look for: only a missing dpkg makes it count as there.
        ! command -v dpkg-query >/dev/null 2>&1
        ;;
    =*) command -v pkg-config >/dev/null 2>&1 && pkg-config --exists "${other#=}" ;;
    *) command -v "$other" >/dev/null 2>&1 ;;
    esac
}

missing=
for entry in $wanted; do
    present "$entry" || missing="$missing ${entry%%,*}"
done
missing=${missing# }

if [ "${2:-}" = --list ]; then
    [ -z "$missing" ] || printf '%s\n' $missing
    exit 0
fi
[ -n "$missing" ] || exit 0

if ! command -v apt-get >/dev/null 2>&1; then
    echo "deps.sh: missing: $missing (Debian names), and there is no apt-get to install them; please install them by hand" >&2
    exit 1
fi
as_root=
if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null 2>&1; then
        echo "deps.sh: missing packages: $missing; this is not root and there is no sudo; run as root: apt-get install -y $missing" >&2
        exit 1
    fi
    as_root=sudo
    # Without a terminal sudo could only wait for a password for ever.
    [ -t 0 ] || as_root="sudo -n"
fi

echo "installing Debian packages: $missing"
apt() {
    # shellcheck disable=SC2086
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@" </dev/null
}
known=1
for package in $missing; do
    [ -n "$(apt-cache show --no-all-versions "$package" 2>/dev/null)" ] || known=0
done
# Package lists that are absent or stale are fetched once.
# shellcheck disable=SC2086
if [ $known = 0 ] || ! apt install -y --no-install-recommends $missing; then
    apt update || {
        echo "deps.sh: apt-get update failed; is there a network, and may this user install packages?" >&2
        exit 1
    }
    apt install -y --no-install-recommends $missing || {
        echo "deps.sh: apt-get could not install: $missing" >&2
        exit 1
    }
fi
