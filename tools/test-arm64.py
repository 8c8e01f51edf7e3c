#!/usr/bin/python3
"""Boots Debian 12's kernel for arm64 in QEMU, by software emulation, unpacks the .deb for arm64 in
it, and runs the README's quickstarts as they stand there: the switch with two containers, the
router, the load balancer; then an uplink in native XDP with the kernel's VXLAN at the other end.

usage: test-arm64.py FOLDER    the folder has the .deb for arm64 (tools/packages.py --arch arm64)

Prints a line a step; a step that fails prints what was said, and fails the test at its end.
`make test-arm64` runs it. The guest's system is unpacked and not installed (tools/arm64-root.sh),
without systemd: tools/test-packages.py tries the service, on amd64.
"""

import glob
import os
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HERE = f"{ROOT}/target/arm64"
# Seconds that all of it may take on a busy machine.
LIMIT = 1800
# Loaded by the initramfs, with all that they depend on.
MODULES = ("virtio_pci", "virtio_blk", "ext4")

# Process 1: mounts the disk, unpacks the second one over it, and runs its script.
INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t devtmpfs dev /dev
for module in /modules/*.ko; do insmod $module || echo "init: cannot load $module"; done
mount -t ext4 /dev/vda /root
tar -xf /dev/vdb -C /root
umount /proc
umount /dev
exec switch_root -c /dev/console /root /bin/bash /script
"""

# A line for each step's begin and end; what lies between them is what it said.
SCRIPT = """
export PATH=/usr/sbin:/usr/bin:/sbin:/bin:/usr/lib/cni HOME=/root
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t bpf bpf /sys/fs/bpf
mount -t tmpfs tmp /tmp
mount -t tmpfs run /run
modprobe tun
ip link set lo up
step() {
    echo "<<< $1"
    bash -e "$2" 2>&1
    echo ">>> $1: $?"
}
"""

UPLINK = """
export BUTTERFLY_ENDPOINT=unix:/tmp/up/api.sock
mkdir -p /tmp/up
ip netns add other
ip link add up0 type veth peer name eth0 netns other
ip addr add 192.0.2.1/24 dev up0
ip link set up0 up
ip -n other addr add 192.0.2.2/24 dev eth0
ip -n other link set eth0 up
ip -n other link add vx7 type vxlan id 7 dstport 4789 local 192.0.2.2 remote 192.0.2.1 dev eth0
ip -n other link set vx7 address 52:54:00:00:00:99 up
ip -n other addr add 10.0.0.99/24 dev vx7
butterflyd -s /tmp/up --api unix:/tmp/up/api.sock -e none --no-syslog -i 192.0.2.1 &
butterfly health --wait
ip netns add c1
butterfly sg add all + sg rule add all --ip-proto icmp --cidr 0.0.0.0/0
butterfly nic add --id c1 --vni 7 --mac 52:54:00:00:00:01 --ip 10.0.0.1/24 --sg all \\
    --type veth --netns c1
butterfly binding add --vni 7 --mac 52:54:00:00:00:99 --ip 10.0.0.99 --host 192.0.2.2
butterfly uplink list
ip netns exec c1 ping -c 3 -W 5 10.0.0.99
butterfly shutdown --yes
wait
"""


def quickstart(title, may_fail):
    """The commands of a section of the README; that `may_fail` fails does not end them."""
    with open(f"{ROOT}/README.md", encoding="utf-8") as file:
        section = file.read().split(f"### {title}")[1].split("\n##")[0]
    lines = [line[4:] for line in section.splitlines() if line.startswith("    ")]
    return "\n".join(lines).replace(may_fail, f"{may_fail} || true") + "\n"


# What is run, and what it has to say, in this order.
STEPS = (
    (
        "programs",
        "uname -m\nbutterflyd --version\nbutterfly --version\n"
        "CNI_COMMAND=VERSION butterfly-cni < /dev/null\n",
        ("aarch64", "butterflyd ", "butterfly ", "supportedVersions"),
    ),
    (
        "switch",
        quickstart("A switch", "ping -c 3 -W 1 10.0.0.2"),
        (
            "3 packets transmitted, 0 received",
            "no_ingress_rule",
            "3 packets transmitted, 3 received",
        ),
    ),
    (
        "router",
        quickstart("A router", "wait"),
        (
            "taking over eth1: ",
            "20 packets transmitted, 20 received",
            "iperf Done.",
            "iperf Done.",
            "forwarded ",
            "3 packets transmitted, 3 received",
        ),
    ),
    (
        "load balancer",
        quickstart("A load balancer", "wait"),
        ("balancing 192.168.101.1:80/tcp on eth0: ", *["this is server"] * 8, "2000000 bytes"),
    ),
    ("uplink", UPLINK, ("AF_XDP, native XDP", "3 packets transmitted, 3 received")),
)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    packages = glob.glob(f"{sys.argv[1]}/butterfly_*_arm64.deb")
    if len(packages) != 1:
        sys.exit(
            f"test-arm64: {sys.argv[1]} has {len(packages)} packages butterfly_*_arm64.deb, not one"
        )
    subprocess.run([f"{ROOT}/tools/arm64-root.sh"], check=True)
    version = os.listdir(f"{HERE}/root/lib/modules")[0]
    make_disk(version)
    with tempfile.TemporaryDirectory(prefix="butterfly-arm64-") as folder:
        make_initrd(folder, version)
        files = f"{folder}/files"
        subprocess.run(["dpkg-deb", "-x", packages[0], files], check=True)
        with open(f"{files}/script", "w", encoding="utf-8") as script:
            script.write(SCRIPT)
            for number, (name, commands, _) in enumerate(STEPS):
                with open(f"{files}/step{number}", "w", encoding="utf-8") as step:
                    step.write(commands)
                script.write(f"step '{name}' /step{number}\n")
            script.write("busybox poweroff -f\n")
        subprocess.run(["tar", "cf", f"{folder}/files.tar", "-C", files, "."], check=True)
        failed = session(folder, version)
    if failed:
        sys.exit(f"test-arm64: {len(failed)} steps failed: {'; '.join(failed)}")
    print("all steps passed on arm64")


def make_disk(version):
    """The root as a file system, made anew only with the root."""
    disk, root = f"{HERE}/disk.img", f"{HERE}/root"
    stamp = os.stat(f"{HERE}/stamp").st_mtime
    if os.path.exists(disk) and os.stat(disk).st_mtime > stamp:
        return
    subprocess.run(["depmod", "-b", root, version], check=True)
    with open(f"{disk}.new", "wb") as file:
        file.truncate(2 << 30)
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-d", root, f"{disk}.new"], check=True)
    os.rename(f"{disk}.new", disk)


def make_initrd(folder, version):
    tree = f"{folder}/initrd"
    for name in ("bin", "dev", "proc", "root", "modules"):
        os.makedirs(f"{tree}/{name}")
    shutil.copy(f"{HERE}/root/bin/busybox", f"{tree}/bin/busybox")
    with open(f"{tree}/init", "w", encoding="utf-8") as file:
        file.write(INIT)
    os.chmod(f"{tree}/init", 0o755)
    number = 10
    for module in MODULES:
        listed = subprocess.run(
            ["modprobe", "--show-depends", "-d", f"{HERE}/root", "-S", version, module],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout
        # "insmod PATH", and "builtin NAME" for what needs no file.
        for words in map(str.split, listed.splitlines()):
            name = os.path.basename(words[1])
            if words[0] == "insmod" and not glob.glob(f"{tree}/modules/*-{name}"):
                shutil.copy(words[1], f"{tree}/modules/{number}-{name}")
                number += 1
    packed = "find . | LC_ALL=C sort | cpio --quiet -o -H newc -R 0:0 | gzip -1"
    with open(f"{folder}/initrd.img", "wb") as file:
        subprocess.run(["sh", "-c", packed], cwd=tree, check=True, stdout=file)


def session(folder, version):
    """Boots, follows the console to its end, and gives the names of the steps that failed."""
    drive = "format=raw,if=virtio,snapshot=on,cache=unsafe,file="
    words = ["setpriv", "--pdeathsig", "KILL", "--", "qemu-system-aarch64", "-nodefaults"]
    words += ["-no-user-config", "-display", "none", "-machine", "virt", "-accel"]
    words += ["tcg,thread=multi", "-cpu", "max,pauth-impdef=on", "-smp", "2", "-m", "1200M"]
    words += ["-kernel", f"{HERE}/root/boot/vmlinuz-{version}", "-initrd", f"{folder}/initrd.img"]
    words += ["-append", "console=ttyAMA0 quiet panic=-1 mitigations=off", "-no-reboot"]
    words += ["-serial", "stdio", "-drive", f"{drive}{HERE}/disk.img"]
    words += ["-drive", f"{drive}{folder}/files.tar"]
    begin = time.monotonic()
    qemu = subprocess.Popen(
        ["timeout", str(LIMIT)] + words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    console, ended = [], {}
    for line in qemu.stdout:
        line = line.rstrip()
        if line.startswith("<<< "):
            console = []
        elif line.startswith(">>> "):
            name, code = line[4:].rsplit(": ", 1)
            ended[name] = judge(name, code, console)
            print(f"{time.monotonic() - begin:6.1f} s  {name}", flush=True)
        else:
            console.append(line)
    qemu.wait()
    failed = [name for name, _, _ in STEPS if not ended.get(name)]
    if len(ended) < len(STEPS):
        print("the console's end:", *console[-60:], sep="\n")
    return failed


def judge(name, code, said):
    """Whether a step has ended well and said, line after line, what it has to say."""
    expected = next(expected for step, _, expected in STEPS if step == name)
    lines = iter(said)
    missing = [word for word in expected if not any(word in line for line in lines)]
    if code == "0" and not missing:
        return True
    print(f"FAILED: {name}: code {code}, missing: {missing}\n---- said:", *said, sep="\n")
    return False


if __name__ == "__main__":
    main()
