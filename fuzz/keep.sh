#!/bin/bash
# Keeps what campaigns have found: of a target's grown corpus (fuzz/corpus/TARGET, and what was kept
# before) the inputs that reach what its seeds do not go into fuzz/inputs/TARGET.inputs, which is
# committed. The largest are left out where all would be more than 64 KiB or 512. FUZZ_TARGETS says
# which targets; without it, all that have a corpus. Not while a fuzzer runs on the same corpus.
set -euo pipefail
cd "$(dirname "$0")/.."

all=$(find fuzz/corpus -mindepth 1 -maxdepth 1 -type d -printf '%f\n' | sort)
length=${FUZZ_LENGTH:-2048}

seeds=(cargo run --quiet -p butterfly-fuzzing --bin fuzz-seeds --)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${seeds[@]}" "$work" >/dev/null
mkdir -p fuzz/inputs fuzz/artifacts

for target in ${FUZZ_TARGETS:-$all}; do
    kept=fuzz/inputs/$target.inputs corpus=fuzz/corpus/$target merged=$work/$target
    if [ -e "$kept" ]; then
        "${seeds[@]}" unpack "$kept" "$corpus"
    fi
    # Into the folder of the seeds comes what adds to them.
    cargo +nightly fuzz run --fuzz-dir fuzz "$target" "$merged" "$corpus" -- \
        -merge=1 -timeout=20 -rss_limit_mb=4096 -max_len="$length" \
        >"fuzz/artifacts/$target.merge.log" 2>&1
    rm -f "$merged"/seed-*
    "${seeds[@]}" pack "$merged" "$kept"
done
