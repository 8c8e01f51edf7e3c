#!/usr/bin/env bash
# usage: guest-image.sh [SUITE]
# Makes what the QEMU tests and the demo boot: target/guest/vmlinuz (the kernel of Debian's
# linux-image-cloud-amd64) and target/guest/initrd.img (busybox, the modules named below, our guest
# tool and tools/guest-init); and target/guest/tools.img, which is appended to it for guests that
# need more: modules that are loaded when somebody asks for them, and this machine's iproute2. A
# second run with nothing changed takes a fraction of a second. The kernel package is used where it
# is installed already; else it is downloaded with apt-get and unpacked under target/: installing it
# would touch the boot loader of the machine, for nothing. With a SUITE of Debian's (trixie) it is
# that one's kernel, under target/guest-SUITE, from where this machine's packages come from.
set -euo pipefail
cd "$(dirname "$0")/.."
HERE=$PWD

# Loaded at boot.
MODULES="virtio_pci virtio_net sctp vxlan dummy"
# Loaded by `modprobe`, or by the kernel itself when `ip link add` asks for a device of such a type.
MODULES_ON_DEMAND="vmxnet3 tun 8021q bonding ipip ip6_tunnel sit ip_gre ip6_gre fou fou6 bridge"
MODULES_ON_DEMAND+=" veth vrf macvlan sch_netem sch_ingress cls_bpf"
# dash, since the shell of busybox prefers its own ip to any other; what makes namespaces, for tests
# that run there.
PROGRAMS="dash ip bridge tc ethtool setpriv unshare nsenter sleep sysctl"
SUITE=${1:-}
OUT=target/guest${SUITE:+-$SUITE}
mkdir -p "$OUT"
exec 9>"$OUT/lock"
flock 9

# Where the kernel and its modules are: an installed package first, then one unpacked here.
find_kernel() {
    local root modules roots=("$OUT/kernel")
    if [ -z "$SUITE" ]; then roots=("" "${roots[@]}"); fi
    for root in "${roots[@]}"; do
        for modules in $(ls -d "$root"/lib/modules/*-cloud-amd64 2>/dev/null | sort -rV); do
            VERSION=$(basename "$modules")
            VMLINUZ="$root/boot/vmlinuz-$VERSION"
            MODULE_DIR="$modules"
            MODULE_ROOT="${root:-/}"
            if [ -r "$VMLINUZ" ]; then return 0; fi
        done
    done
    return 1
}

# apt, and apt-cache, as of the suite.
of_suite() {
    local apt=$1
    shift
    if [ -z "$SUITE" ]; then "$apt" "$@"; return; fi
    "$apt" -o Dir::Etc::sourcelist="$HERE/$OUT/apt/sources.list" -o Dir::Etc::sourceparts=- \
        -o Dir::State::lists="$HERE/$OUT/apt/lists" \
        -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= "$@"
}

# Learns what the suite has.
ask_suite() {
    local from codename
    codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
    from=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' |
        awk -v own="$codename" '$2 == own { print $1; exit }')
    mkdir -p "$OUT/apt/lists"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $from $SUITE main" \
        >"$OUT/apt/sources.list"
    of_suite apt-get -qq update
}

download_kernel() {
    local package
    if [ -n "$SUITE" ]; then ask_suite; fi
    package=$(of_suite apt-cache depends linux-image-cloud-amd64 |
        sed -n 's/^ *Depends: \(linux-image-.*-cloud-amd64\)$/\1/p' | head -n 1)
    if [ -z "$package" ]; then
        echo "guest-image: apt knows no linux-image-cloud-amd64; run apt-get update" >&2
        exit 1
    fi
    echo "guest-image: downloading $package"
    rm -rf "$OUT/download" "$OUT/kernel"
    mkdir -p "$OUT/download"
    (cd "$OUT/download" && of_suite apt-get -qq download "$package")
    dpkg-deb -x "$OUT"/download/*.deb "$OUT/kernel"
    # Where later releases have what was under /lib.
    if [ ! -e "$OUT/kernel/lib" ]; then ln -s usr/lib "$OUT/kernel/lib"; fi
    rm -rf "$OUT/download" "$OUT/apt"
}

find_kernel || { download_kernel; find_kernel; }

# Our guest tool, linked statically; a target folder of its own, since its flags differ from the
# workspace's.
RUSTFLAGS="-C target-feature=+crt-static" cargo build --quiet --release -p butterfly-guest \
    --target x86_64-unknown-linux-gnu --target-dir target/guest/cargo
TOOL="target/guest/cargo/x86_64-unknown-linux-gnu/release/guest"
BUSYBOX=$(command -v busybox)

# Whether the image is newer than all it is made of.
is_fresh() {
    local source
    for source in "$TOOL" "$0" tools/guest-init tools/guest-programs.sh; do
        if [ ! "$OUT/initrd.img" -nt "$source" ]; then return 1; fi
    done
    [ "$(cat "$OUT/version" 2>/dev/null)" = "$VERSION" ]
}
if is_fresh; then exit 0; fi

if [ ! -e "$MODULE_DIR/modules.dep" ]; then
    depmod -b "$MODULE_ROOT" "$VERSION"
fi

ROOT="$OUT/root"
rm -rf "$ROOT"
mkdir -p "$ROOT"/{bin,dev,etc,lib/modules,proc,run,sys,tmp,var/lib/misc}
cp "$BUSYBOX" "$ROOT/bin/busybox"
cp "$TOOL" "$ROOT/bin/guest"
ln "$ROOT/bin/guest" "$ROOT/bin/agent"
cp tools/guest-init "$ROOT/init"
chmod 755 "$ROOT/init"

# The files of a module, of all it depends on first.
files_of() {
    # It lists "insmod PATH", and "builtin NAME" for what needs no file.
    modprobe --show-depends -d "$MODULE_ROOT" -S "$VERSION" "$1" |
        sed -n 's/^insmod \([^ ]*\).*/\1/p'
}

# Everything under a folder as a cpio archive.
archive() {
    (cd "$1" && find . | LC_ALL=C sort | cpio --quiet -o -H newc -R 0:0)
}

# Numbered in the order in which init loads them.
for module in $MODULES; do
    files_of "$module" | while read -r file; do
        if ! ls "$ROOT"/lib/modules/*-"$(basename "$file")" >/dev/null 2>&1; then
            n=$(ls "$ROOT/lib/modules" | wc -l)
            cp "$file" "$ROOT/lib/modules/$(printf %02d "$n")-$(basename "$file")"
        fi
    done
done

# What is appended for guests that ask for it: /lib/modules/VERSION as modprobe wants it, and the
# programs.
TOOLS="$OUT/tools"
rm -rf "$TOOLS"
mkdir -p "$TOOLS"/{bin,lib/modules/"$VERSION"}
ln -s /usr/bin/dash "$TOOLS/bin/sh"
cp "$MODULE_DIR"/modules.{order,builtin,builtin.modinfo} "$TOOLS/lib/modules/$VERSION"
for module in $MODULES_ON_DEMAND; do
    files_of "$module" | xargs cp -nt "$TOOLS/lib/modules/$VERSION"
done
depmod -b "$TOOLS" "$VERSION"
# shellcheck disable=SC2046 # a word for each
tools/guest-programs.sh "$OUT/programs.cpio" \
    $(for program in $PROGRAMS; do command -v "$program"; done)
{ archive "$TOOLS"; cat "$OUT/programs.cpio"; } | gzip -1 > "$OUT/tools.new"
mv "$OUT/tools.new" "$OUT/tools.img"
rm -r "$TOOLS" "$OUT/programs.cpio"

cp "$VMLINUZ" "$OUT/vmlinuz.new"
mv "$OUT/vmlinuz.new" "$OUT/vmlinuz"
archive "$ROOT" | gzip -1 > "$OUT/initrd.new"
mv "$OUT/initrd.new" "$OUT/initrd.img"
echo "$VERSION" > "$OUT/version"
# Whether KVM boots a guest is asked anew for a new image.
rm -f "$OUT/accelerator"
echo "guest-image: $OUT/vmlinuz ($VERSION), $OUT/initrd.img and $OUT/tools.img are ready"
