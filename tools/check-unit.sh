#!/usr/bin/env bash
# usage: check-unit.sh Has Debian's systemd judge the shipped unit, user and folders on this
# machine, without starting anything: every line is understood, and `systemd-analyze security` finds
# an exposure of at most 3.0. Part of `make check`.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v systemd-analyze >/dev/null; then
    echo "check-unit: systemd-analyze is missing: tools/setup.sh installs it" >&2
    exit 1
fi
ROOT=$(mktemp -d)
trap 'rm -rf "$ROOT"' EXIT
UNIT="$ROOT/usr/lib/systemd/system/butterflyd.service"
mkdir -p "$(dirname "$UNIT")" "$ROOT/usr/sbin" "$ROOT/bin" "$ROOT/etc"
sed 's|@PREFIX@|/usr|; s|@SYSCONFDIR@|/etc|' packaging/butterflyd.service > "$UNIT"
KEEPER="$(dirname "$UNIT")/butterfly-keeper.service"
sed 's|@PREFIX@|/usr|' packaging/butterfly-keeper.service > "$KEEPER"
# Stand-ins for the programs that it names.
for program in usr/sbin/butterflyd usr/sbin/butterflyd-dpdk bin/kill; do
    printf '#!/bin/sh\n' > "$ROOT/$program"
    chmod 755 "$ROOT/$program"
done
# The units that it names are those of this machine's systemd.
cp /lib/systemd/system/*.target /lib/systemd/system/*.slice "$ROOT/usr/lib/systemd/system/"
for unit in butterflyd.service butterfly-keeper.service; do
    said=$(systemd-analyze verify --root="$ROOT" --man=no "$unit" 2>&1 | grep -F "$unit" || true)
    if [ -n "$said" ]; then
        echo "check-unit: systemd does not understand all of packaging/$unit:" >&2
        echo "$said" >&2
        exit 1
    fi
done
if ! systemd-analyze security --offline=true --threshold=30 "$UNIT" > "$ROOT/security" 2>&1; then
    echo "check-unit: the unit leaves too much open:" >&2
    cat "$ROOT/security" >&2
    exit 1
fi
if ! systemd-analyze security --offline=true --threshold=10 "$KEEPER" > "$ROOT/keeper" 2>&1; then
    echo "check-unit: the keeper's unit leaves too much open:" >&2
    cat "$ROOT/keeper" >&2
    exit 1
fi
# With the drop-in of butterfly-dpdk, by which the program of before is not needed.
mkdir "$UNIT.d"
cp packaging/dpdk/butterflyd.conf "$UNIT.d/dpdk.conf"
rm "$ROOT/usr/sbin/butterflyd"
said=$(systemd-analyze verify --root="$ROOT" --man=no butterflyd.service 2>&1 |
    grep -F butterflyd.service || true)
if [ -n "$said" ]; then
    echo "check-unit: systemd does not understand all of packaging/dpdk/butterflyd.conf:" >&2
    echo "$said" >&2
    exit 1
fi
tail -n 1 "$ROOT/security"
echo 'root:x:0:0::/root:/bin/sh' > "$ROOT/etc/passwd"
echo 'root:x:0:' > "$ROOT/etc/group"
systemd-sysusers --root="$ROOT" "$PWD/packaging/butterfly.sysusers" >/dev/null 2>&1
grep -q '^butterfly:' "$ROOT/etc/passwd"
systemd-tmpfiles --root="$ROOT" --create "$PWD/packaging/butterfly.tmpfiles"
test "$(stat -c %a "$ROOT/etc/butterfly")" = 750
