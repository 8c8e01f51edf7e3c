#!/usr/bin/env bash
# Compiles bpf/balancer.bpf.c to the two objects that the Go module embeds, or with an argument into
# that folder. The flags are those of crates/xdp/build.rs. Debugging information is taken out but
# for BTF, which the loader reads; paths in it are relative to bpf/, so that the bytes depend on the
# sources and on clang's version alone.
#
# SOURCES holds the hash of each file that went in and COMPILER the compiler's name: `go test`
# compares the first with bpf/, and compiles anew and compares the bytes where the second is the
# clang that is installed.
set -euo pipefail
OUT=$(realpath "${1:-$(dirname "$0")}")
cd "$(dirname "$0")/../../../bpf"

CLANG=${CLANG:-clang}
FLAGS="-target bpf -mcpu=v3 -O2 -g -fno-stack-protector -fdebug-compilation-dir=. -I ."
# Debian keeps asm/types.h here.
for triple in x86_64-linux-gnu aarch64-linux-gnu; do
    if [ -d /usr/include/$triple ]; then FLAGS+=" -idirafter /usr/include/$triple"; fi
done

"$CLANG" $FLAGS -c balancer.bpf.c -o "$OUT/balancer.bpf.o"
"$CLANG" $FLAGS -DBUTTERFLY_TC -c balancer.bpf.c -o "$OUT/balancer.tc.o"
"${LLVM_STRIP:-llvm-strip}" -g "$OUT/balancer.bpf.o" "$OUT/balancer.tc.o"
# -MM names what is not the system's.
{ "$CLANG" $FLAGS -MM balancer.bpf.c; "$CLANG" $FLAGS -DBUTTERFLY_TC -MM balancer.bpf.c; } |
    tr -d '\\' | tr ' ' '\n' | grep -E '\.(h|c)$' | grep -v '^/' |
    xargs -n 1 realpath --relative-to . | sort -u | xargs sha256sum > "$OUT/SOURCES"
"$CLANG" --version | head -n 1 > "$OUT/COMPILER"
