#!/bin/bash
# The tests that need no shared mapping, under Miri: `make miri`. Miri is some hundred times slower
# than the machine: property tests run a case or two, and those that go through every length or slot
# are left out.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! cargo +nightly miri --version >/dev/null 2>&1; then
    echo "miri: needs a nightly compiler with miri:" \
        "rustup component add miri rust-src --toolchain nightly" >&2
    exit 1
fi
export PROPTEST_CASES=${PROPTEST_CASES:-1}
# Isolation off: proptest looks for its regression files, and std asks for the directory. rustix
# with libc, whose calls (eventfd, epoll) Miri knows; its own are assembly.
export MIRIFLAGS="${MIRIFLAGS:-} -Zmiri-disable-isolation"
export RUSTFLAGS="${RUSTFLAGS:-} --cfg=rustix_use_libc"
run() { cargo +nightly miri test --target-dir target/miri "$@"; }

run -p butterfly-io --lib -- copy:: frame:: memory_port:: vhost::index:: vhost::resume:: \
    vhost::allowance:: --skip an_owned_frame_is_its_bytes
run -p butterfly-dataplane --lib -- address_set flow::tcp fragments::datagram learned \
    --skip pieces_overlap
run -p butterfly-wire --lib -- --skip promises --skip pieces_of_any_length \
    --skip agrees_with_the_letter
echo "miri: io without mappings, dataplane's tables, wire: no undefined behaviour"
