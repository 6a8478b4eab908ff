#!/bin/sh
# make demo: a real model, quantised ten ways and with three caches of fewer bits, compared and generating text.
# Leaves the checkpoints under build/demo/ and the table as build/demo.jsonl.
#
# QN_DEMO_TOKENS  how many tokens from the start of the text are scored
# QN_DEMO_MODEL   a checkpoint of your own instead of the fetched one
# QN_DEMO_MORE    schemes besides, for instance "quip-4 aqlm-2x8 gptvq-2", which take minutes each
set -eu
cd "$(dirname "$0")/.."
quern=build/quern
text=data/alice.txt
tokens=${QN_DEMO_TOKENS:-6144}
# (with "What is the capital of France?" the bf16 model hesitates between two first tokens at 15 % and 14 %)
prompt="Explain what a prime number is."
# The first one is what the others are compared with.
schemes="bf16 f32 fp8-block fp8 int8 int8-azp nvfp4 nvfp4-w4a4 mxfp4 quip-2 ${QN_DEMO_MORE:-}"
# How BF16 weights then keep keys and values; those that need codebooks have them made beside the weights.
caches="fp8 cq4 cq2"

model=${QN_DEMO_MODEL:-$(scripts/model.sh)}
mkdir -p build/demo

# A checkpoint is reused when it is whole (quantize renames it into place at the
# very end) and the same command made it from the same model.
made_by="$($quern --version | head -n 1) $(sha256sum $quern | cut -d' ' -f1) $model"
folders=
for scheme in $schemes; do
    out=build/demo/$scheme
    stamp=build/demo/$scheme.made-by
    folders="$folders $out"
    if [ -f "$out/config.json" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$made_by" ]; then
        echo "$scheme: reusing $out" >&2
        continue
    fi
    echo "$scheme: quantising into $out" >&2
    rm -f "$stamp"
    # One line a tensor is too much here; kept in a log, shown when it fails.
    if ! $quern quantize "$model" "$out" --weights "$scheme" --force </dev/null >"build/demo/$scheme.log" 2>&1; then
        tail -n 20 "build/demo/$scheme.log" >&2
        echo "demo.sh: quantising to $scheme failed; the whole log is build/demo/$scheme.log" >&2
        exit 1
    fi
    printf '%s\n' "$made_by" >"$stamp"
done
for cache in $caches; do
    folders="$folders build/demo/bf16+$cache"
    case $cache in
    cq*) ;;
    *) continue ;;
    esac
    if [ -f "build/demo/bf16/kv-$cache.safetensors" ]; then
        echo "$cache: reusing its codebooks" >&2
        continue
    fi
    echo "$cache: fitting codebooks for keys and values" >&2
    if ! $quern quantize build/demo/bf16 --kv "$cache" </dev/null >"build/demo/$cache.log" 2>&1; then
        tail -n 20 "build/demo/$cache.log" >&2
        echo "demo.sh: codebooks of $cache failed; the whole log is build/demo/$cache.log" >&2
        exit 1
    fi
done

echo "scoring the first $tokens tokens of $text in chunks of 512, each scheme against bf16:" >&2
echo "of every chunk the first half is context, the second half is scored" >&2
# shellcheck disable=SC2086
$quern compare $folders -f $text --max-tokens "$tokens" --jsonl build/demo.jsonl -p "$prompt" -n 32 </dev/null
echo "table as JSON lines: build/demo.jsonl" >&2
