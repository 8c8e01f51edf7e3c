#!/bin/bash
# Runs every fuzz target for FUZZ_SECONDS, one after the other; `make fuzz` calls it. Ends with a
# count line, and fails when a target did. What it found is in fuzz/artifacts/TARGET: mend it, and
# keep the file under fuzz/regressions/TARGET with its sentence in the README there. What has grown
# in fuzz/corpus is kept by fuzz/keep.sh.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${FUZZ_SECONDS:-60}
all="frames rings session round tunnel whole netlink v0 text v1 decoded dns http page access cni"
targets=${FUZZ_TARGETS:-"$all keeper stored zmtp filter"}
# Longer inputs only make the slow ones slower.
length=${FUZZ_LENGTH:-2048}

if ! rustup toolchain list | grep -q '^nightly'; then
    echo "fuzz: needs a nightly compiler: rustup toolchain install nightly --profile minimal" >&2
    exit 1
fi
cargo fuzz --version >/dev/null 2>&1 || cargo install cargo-fuzz --locked

seeds=(cargo run --quiet -p butterfly-fuzzing --bin fuzz-seeds --)
"${seeds[@]}" fuzz/corpus
for target in $targets; do
    if [ -e "fuzz/inputs/$target.inputs" ]; then
        "${seeds[@]}" unpack "fuzz/inputs/$target.inputs" "fuzz/corpus/$target"
    fi
done
cargo +nightly fuzz build --fuzz-dir fuzz

count=0 runs=0 failed=""
for target in $targets; do
    corpus=fuzz/corpus/$target regressions=fuzz/regressions/$target log=fuzz/artifacts/$target.log
    mkdir -p "$corpus" "$regressions" "fuzz/artifacts/$target"
    echo "fuzz: $target for $seconds s"
    cargo +nightly fuzz run --fuzz-dir fuzz "$target" "$corpus" "$regressions" -- \
        -max_total_time="$seconds" \
        -timeout=20 -rss_limit_mb=4096 -max_len="$length" -print_final_stats=1 2>&1 \
        | tee "$log" \
        | grep -E '^(#[0-9]+.DONE|stat::number_of|==[0-9]+== ERROR|thread .* panicked)' || true
    done_here=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    runs=$((runs + ${done_here:-0})) count=$((count + 1))
    # The fuzzer's own last word: a run that ended in time says DONE.
    grep -qE '^Done [0-9]+ runs|^#[0-9]+.DONE' "$log" || failed="$failed $target"
done
find fuzz/regressions -mindepth 1 -type d -empty -delete
echo "fuzz: $count targets, $runs executions, failed:${failed:- none}"
[ -z "$failed" ]
