#!/usr/bin/env bash
# Makes what arm64 programs are linked against and tried with: target/arm64/root, Debian 12's
# packages for arm64, unpacked and not installed, since their scripts could not run here. It has the
# headers and libraries of the build, Debian's kernel with its modules, and what the README's
# commands call. Takes ten seconds; a second run nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

# Linked against.
PACKAGES="libc6-dev,linux-libc-dev,libgcc-s1,libelf-dev,zlib1g-dev,libpcap0.8-dev"
# Booted: the kernel, and the programs of the quickstarts.
PACKAGES+=",linux-image-arm64,busybox-static,bash,coreutils,grep,sed,mawk,procps,util-linux,mount,kmod"
PACKAGES+=",iproute2,iputils-ping,iperf3,curl,python3-minimal,libpython3-stdlib,libpython3.11-stdlib"
ROOT=target/arm64/root

if ! command -v mmdebstrap >/dev/null; then
    echo "arm64-root: mmdebstrap is missing: tools/setup.sh arm64 installs it" >&2
    exit 1
fi
mkdir -p target/arm64
exec 9>target/arm64/lock
flock 9
stamp=$(sha256sum "$0" | cut -d ' ' -f 1)
if [ "$(cat target/arm64/stamp 2>/dev/null)" = "$stamp" ]; then exit 0; fi
echo "arm64-root: unpacking Debian 12's packages for arm64"
rm -rf "$ROOT.new" target/arm64/stamp
mmdebstrap --quiet --variant=extract --architectures=arm64 --mode=root --include="$PACKAGES" \
    --dpkgopt='path-exclude=/usr/share/locale/*' bookworm "$ROOT.new"
# What links to libraries by an absolute path means this root, and not the machine that it lies on.
find "$ROOT.new" -type l -lname '/*' | while read -r link; do
    target="$ROOT.new$(readlink "$link")"
    ln -snf "$(realpath -sm --relative-to="$(dirname "$link")" "$target")" "$link"
done
rm -rf "$ROOT"
mv "$ROOT.new" "$ROOT"
echo "$stamp" > target/arm64/stamp
