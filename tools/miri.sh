#!/bin/bash
# The tests that need no file, no mapping and no thread's luck, under Miri: `make miri`. Proptests run a few cases only,
# since Miri is some hundred times slower than the machine.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! cargo +nightly miri --version >/dev/null 2>&1; then
    echo "miri: needs a nightly compiler with miri: rustup +nightly component add miri rust-src" >&2
    exit 1
fi
export PROPTEST_CASES=${PROPTEST_CASES:-2}
# Isolation off: proptest looks for its regression files, and std asks for the directory.
export MIRIFLAGS="${MIRIFLAGS:-} -Zmiri-disable-isolation"
run() { cargo +nightly miri test --target-dir target/miri "$@"; }

run -p butterfly-wire --lib
run -p butterfly-dataplane --lib -- flow fragments learned ruleset address_set counters
run -p butterfly-io --lib -- frame copy message request
echo "miri: wire, dataplane's tables and what of io needs no mapping: no undefined behaviour"
