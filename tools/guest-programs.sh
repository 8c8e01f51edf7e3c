#!/usr/bin/env bash
# usage: guest-programs.sh ARCHIVE PROGRAM...
# Packs programs of this machine for a guest, as a cpio archive that is appended to an initramfs
# (Linux unpacks one after the other): stripped under /usr/bin, their shared libraries where the
# linker looks for them.
set -euo pipefail

ARCHIVE=$1
shift
ROOT=$(mktemp -d)
trap 'rm -rf "$ROOT"' EXIT
mkdir -p "$ROOT/usr/bin"

for program in "$@"; do
    strip -o "$ROOT/usr/bin/$(basename "$program")" "$program"
    # "libm.so.6 => /lib/libm.so.6 (0x…)" and "/lib64/ld-linux-x86-64.so.2 (0x…)"; nothing for a
    # static one.
    { ldd "$program" || true; } 2>/dev/null | grep -o '/[^ ]*' | while read -r library; do
        mkdir -p "$ROOT$(dirname "$library")"
        cp -nL "$library" "$ROOT$library"
    done
done

(cd "$ROOT" && find . | LC_ALL=C sort | cpio --quiet -o -H newc -R 0:0) > "$ARCHIVE"
