#!/usr/bin/env bash
# Makes what the tests of a whole system boot (tests/system.rs): target/system/disk.img, Debian 12
# with systemd on ext4, made of Debian's packages by mmdebstrap, with the modules of the guests'
# kernel; and target/system/initrd.img, which mounts it, starts its systemd, and leaves the tests'
# agent to it as a service. Nothing of ours is on the disk: it is made anew only when this script or
# the kernel changes. Takes a minute and a half; a second run a fraction of a second.
set -euo pipefail
cd "$(dirname "$0")/.."

# What a plain host has, and what the README's commands call.
PACKAGES="systemd,systemd-sysv,udev,dbus,kmod,iproute2,iputils-ping,procps,util-linux,passwd,less"
PACKAGES+=",man-db"
# What butterfly-dpdk depends on: dpkg fetches nothing.
PACKAGES+=",librte-ethdev23,librte-bus-pci23,librte-bus-vdev23,librte-mempool-ring23"
PACKAGES+=",librte-net-af-packet23"
# What runs a guest in it.
PACKAGES+=",qemu-system-x86"
PACKAGES+=",ethtool,curl,iperf3,python3-minimal,libpython3-stdlib,libelf1,libpcap0.8,zlib1g"
PACKAGES+=",bash-completion"
# Loaded by the initramfs, with all that they depend on.
MODULES="virtio_pci virtio_blk ext4"
# Bytes that the disk may hold; the file is sparse.
SIZE=3G
OUT=target/system

tools/guest-image.sh
VERSION=$(cat target/guest/version)
KERNEL_ROOT=
if [ ! -d "/lib/modules/$VERSION" ]; then KERNEL_ROOT=target/guest/kernel; fi

mkdir -p "$OUT"
exec 9>"$OUT/lock"
flock 9

files_of() {
    modprobe --show-depends -d "${KERNEL_ROOT:-/}" -S "$VERSION" "$1" |
        sed -n 's/^insmod \([^ ]*\).*/\1/p'
}

make_disk() {
    local missing=() program
    for program in mmdebstrap mke2fs; do
        command -v $program >/dev/null || missing+=("$program")
    done
    if [ ${#missing[@]} != 0 ]; then
        echo "system-image: ${missing[*]} is missing: tools/setup.sh packages installs it" >&2
        exit 1
    fi
    echo "system-image: making Debian 12 from packages"
    rm -rf "$OUT/root" "$OUT/disk.new"
    mmdebstrap --quiet --variant=minbase --mode=root --include="$PACKAGES" \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
        bookworm "$OUT/root"
    mkdir -p "$OUT/root/lib/modules/$VERSION/kernel"
    cp -r "$KERNEL_ROOT/lib/modules/$VERSION/kernel"/{arch,crypto,drivers,fs,lib,net} \
        "$OUT/root/lib/modules/$VERSION/kernel"
    cp "$KERNEL_ROOT/lib/modules/$VERSION"/modules.{order,builtin,builtin.modinfo} \
        "$OUT/root/lib/modules/$VERSION"
    depmod -b "$OUT/root" "$VERSION"
    echo system > "$OUT/root/etc/hostname"
    # Nobody logs in and nothing is to be seen on a screen: what else would start only makes the
    # boot longer.
    local unit
    for unit in systemd-timesyncd.service systemd-networkd-wait-online.service \
        e2scrub_reap.service apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer \
        e2scrub_all.timer fstrim.timer man-db.timer getty.target \
        systemd-update-utmp.service systemd-hwdb-update.service systemd-binfmt.service; do
        ln -sf /dev/null "$OUT/root/etc/systemd/system/$unit"
    done
    # The journal stays over a reboot, as it does on a host that somebody looks after.
    mkdir -p "$OUT/root/var/log/journal"
    truncate -s "$SIZE" "$OUT/disk.new"
    mke2fs -q -t ext4 -d "$OUT/root" "$OUT/disk.new"
    rm -rf "$OUT/root"
    mv "$OUT/disk.new" "$OUT/disk.img"
}

stamp=$(sha256sum "$0" | cut -d ' ' -f 1)-$VERSION
if [ ! -e "$OUT/disk.img" ] || [ "$(cat "$OUT/stamp" 2>/dev/null)" != "$stamp" ]; then
    make_disk
    echo "$stamp" > "$OUT/stamp"
fi

AGENT=target/guest/root/bin/guest
if [ "$OUT/initrd.img" -nt "$OUT/disk.img" ] && [ "$OUT/initrd.img" -nt "$AGENT" ]; then exit 0; fi
INITRD="$OUT/initrd"
rm -rf "$INITRD"
mkdir -p "$INITRD"/{bin,dev,proc,sys,root,lib/modules}
cp "$(command -v busybox)" "$INITRD/bin/busybox"
cp "$AGENT" "$INITRD/agent"
number=10
for module in $MODULES; do
    for file in $(files_of "$module"); do
        if ! ls "$INITRD"/lib/modules/*-"$(basename "$file")" >/dev/null 2>&1; then
            cp "$file" "$INITRD/lib/modules/$number-$(basename "$file")"
            number=$((number + 1))
        fi
    done
done
cat > "$INITRD/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in /lib/modules/*.ko; do
    insmod "$module" || echo "init: cannot load $module"
done
mount -t ext4 /dev/vda /root
mount -t tmpfs -o mode=755 run /root/run
mkdir -p /root/run/test /root/run/systemd/system/multi-user.target.wants
cp /agent /root/run/test/agent
cat > /root/run/systemd/system/test-agent.service <<'UNIT'
[Unit]
Description=Runs commands for the test, over the second serial line
DefaultDependencies=no
After=sysinit.target dbus.service
[Service]
ExecStartPre=/bin/stty -F /dev/ttyS1 raw -echo 115200
ExecStart=/run/test/agent agent /dev/ttyS1
Environment=HOME=/root
KillMode=process
UNIT
ln -s ../test-agent.service /root/run/systemd/system/multi-user.target.wants/
mount --move /dev /root/dev
umount /sys /proc
exec switch_root /root /lib/systemd/systemd
INIT
chmod 755 "$INITRD/init"
(cd "$INITRD" && find . | LC_ALL=C sort | cpio --quiet -o -H newc -R 0:0) |
    gzip -1 > "$OUT/initrd.new"
mv "$OUT/initrd.new" "$OUT/initrd.img"
rm -rf "$INITRD"
echo "system-image: $OUT/disk.img and $OUT/initrd.img are ready"
