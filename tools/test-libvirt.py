#!/usr/bin/python3
"""Debian's libvirtd with packaging/libvirt-hook: a domain's NICs are made and deleted with it. Everything runs in
namespaces of its own, with folders of its own over libvirt's; guests run by software emulation.

usage: test-libvirt.py [FOLDER]    the folder has butterflyd and butterfly [default: target/debug]

`make test-libvirt` runs it. Prints a line a step; the first that fails ends it.
"""

import glob
import json
import os
import signal
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Seconds until an event has to have come, on a busy machine without KVM.
PATIENCE = 180

# Without KVM, QEMU 7.2 crashes over vhost-user's interrupts unless there are none of its own (vectors=0).
DOMAIN = """<domain type='qemu' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
  <name>{name}</name>
  <memory unit='MiB'>192</memory>
  <memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>
  <vcpu>1</vcpu>
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
    <kernel>{root}/target/guest/vmlinuz</kernel>
    <initrd>{root}/target/guest/initrd.img</initrd>
    <cmdline>console=ttyS0 quiet panic=-1 no_timer_check mitigations=off</cmdline>
  </os>
  <metadata>
    <butterfly:nics xmlns:butterfly='https://butterfly/libvirt/1'>
      <butterfly:nic id='{name}' vni='{vni}' mac='52:54:00:00:00:11' ip='10.0.0.11 fd00::11' sg='friends'
                     mtu='1450' anti-spoof='false'/>
    </butterfly:nics>
  </metadata>
  <on_crash>destroy</on_crash>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <interface type='vhostuser'>
      <mac address='52:54:00:00:00:11'/>
      <source type='unix' path='/run/butterfly/qemu-vhost-{name}' mode='client'>
        <reconnect enabled='yes' timeout='1'/>
      </source>
      <model type='virtio'/>
      <driver queues='1'/>
    </interface>
    <serial type='pty'/>
  </devices>
  <qemu:commandline>
    <qemu:arg value='-global'/>
    <qemu:arg value='virtio-net-pci.vectors=0'/>
  </qemu:commandline>
</domain>
"""

# What a host has and this machine's own libvirt must not see.
FOLDERS = ("/run", "/etc/libvirt", "/var/lib/libvirt", "/var/cache/libvirt", "/var/log/libvirt")
QEMU_CONF = """
user = "root"
group = "root"
security_driver = "none"
namespaces = []
cgroup_controllers = []
stdio_handler = "file"
remember_owner = 0
"""


def main():
    if os.environ.get("BUTTERFLY_APART") != "1":
        for program in ("libvirtd", "virsh"):
            if subprocess.run(["which", program], capture_output=True).returncode != 0:
                sys.exit(f"test-libvirt: no {program}: tools/setup.sh libvirt installs it")
        apart = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
        # An init that takes in the guests that a killed libvirtd leaves behind.
        apart += ["bash", "-c", '"$@" & wait $!', "init"]
        environment = dict(os.environ, BUTTERFLY_APART="1")
        sys.exit(subprocess.run(apart + [sys.executable] + sys.argv, env=environment).returncode)
    programs = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else f"{ROOT}/target/debug")
    os.environ["PATH"] = f"{programs}:{os.environ['PATH']}"
    os.environ.pop("BUTTERFLY_ENDPOINT", None)
    for folder in FOLDERS:
        os.makedirs(folder, exist_ok=True)
        run("mount", "-t", "tmpfs", "tmpfs", folder)
    run("ip", "link", "set", "lo", "up")
    # The user that Debian's libvirt-daemon-system makes; libvirtd looks it up, though we name another.
    for file, line in (("passwd", "libvirt-qemu:x:64055:64055::/:/usr/sbin/nologin"), ("group", "libvirt-qemu:x:64055:")):
        text = open(f"/etc/{file}", encoding="utf-8").read()
        if "libvirt-qemu:" not in text:
            with open(f"/run/{file}", "w", encoding="utf-8") as own:
                own.write(f"{text}{line}\n")
            run("mount", "--bind", f"/run/{file}", f"/etc/{file}")
    os.makedirs("/etc/libvirt/hooks/qemu.d")
    run("install", "-m", "755", f"{ROOT}/packaging/libvirt-hook", "/etc/libvirt/hooks/qemu.d/butterfly")
    with open("/etc/libvirt/qemu.conf", "w", encoding="utf-8") as file:
        file.write(QEMU_CONF)
    Session().play()


def run(*words):
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"test-libvirt: {' '.join(words)} ended with {done.returncode}: {done.stdout}")
    return done.stdout


def refused(*words):
    """What a command says that has to fail."""
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode == 0:
        sys.exit(f"test-libvirt: {' '.join(words)} should have failed: {done.stdout}")
    return done.stdout


def wait_for(what, seen):
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if seen():
            return
        time.sleep(0.2)
    for log in glob.glob("/var/log/libvirt/qemu/*.log") + ["/run/libvirtd.log", "/run/butterflyd.log"]:
        lines = open(log, encoding="utf-8", errors="replace").read().splitlines()
        print(f"---- {log}", *[line for line in lines if "ethtool" not in line][-25:], sep="\n")
    sys.exit(f"test-libvirt: {what} has not come within {PATIENCE} s")


def check(right, why):
    if not right:
        sys.exit(f"test-libvirt: {why}")


def nics():
    return run("butterfly", "nic", "list").split()


def state(name):
    shown = json.loads(run("butterfly", "nic", "details", name, "--json"))[0]
    return shown["state"].removeprefix("PORT_STATE_").lower()


class Session:
    def __init__(self):
        self.begun = time.monotonic()
        self.butterflyd = None
        self.libvirtd = None

    def said(self, what):
        print(f"{time.monotonic() - self.begun:6.1f} s  {what}", flush=True)

    def start_butterflyd(self):
        log = open("/run/butterflyd.log", "a", encoding="utf-8")
        words = ["butterflyd", "-s", "/run/butterfly", "-e", "none", "--no-syslog"]
        words += ["--api", "unix:/run/butterfly/api.sock"]
        self.butterflyd = subprocess.Popen(words, stdout=log, stderr=log)
        run("butterfly", "health", "--wait", str(PATIENCE))

    def start_libvirtd(self):
        log = open("/run/libvirtd.log", "a", encoding="utf-8")
        self.libvirtd = subprocess.Popen(["libvirtd"], stdout=log, stderr=log)
        listed = ["virsh", "-c", "qemu:///system", "list"]

        def answers():
            if self.libvirtd.poll() is not None:
                sys.exit(f"test-libvirt: libvirtd has ended: {open('/run/libvirtd.log').read()[-3000:]}")
            return subprocess.run(listed, capture_output=True).returncode == 0

        wait_for("libvirtd", answers)

    def virsh(self, *words):
        return run("virsh", "-q", "-c", "qemu:///system", *words)

    def define(self, name, vni):
        with open(f"/run/{name}.xml", "w", encoding="utf-8") as file:
            file.write(DOMAIN.format(name=name, vni=vni, root=ROOT))
        self.virsh("define", f"/run/{name}.xml")

    def play(self):
        self.start_butterflyd()
        run("butterfly", "sg", "add", "friends")
        self.start_libvirtd()
        self.define("vm1", "7")
        check(nics() == [], "a domain that is only defined has no NIC")
        self.said("defined: no NIC yet")

        self.virsh("start", "vm1")
        check(nics() == ["vm1"], f"the domain's NIC is there: {nics()}")
        nic = json.loads(run("butterfly", "nic", "details", "vm1", "--json"))[0]["nic"]
        wanted = {"vni": 7, "mac": "52:54:00:00:00:11", "addresses": ["10.0.0.11", "fd00::11"]}
        wanted |= {"security_groups": ["friends"], "mtu": 1450, "anti_spoof": False}
        for key, value in wanted.items():
            check(nic[key] == value, f"{key} is {nic[key]}, and the metadata says {value}")
        wait_for("the guest's driver", lambda: state("vm1") == "up")
        self.said("started: the NIC is as the metadata says, and up")

        self.libvirtd.send_signal(signal.SIGKILL)
        self.libvirtd.wait()
        self.start_libvirtd()
        self.virsh("domstate", "vm1")
        check(nics() == ["vm1"] and state("vm1") == "up", "libvirtd has started again: the NIC stays")
        self.said("libvirtd killed and started: the NIC is untouched")

        self.butterflyd.terminate()
        self.butterflyd.wait()
        self.start_butterflyd()
        run("butterfly", "sg", "add", "friends")
        # What an administrator does after a restart that forgets: have the hooks make the NICs again.
        self.libvirtd.terminate()
        self.libvirtd.wait()
        self.start_libvirtd()
        wait_for("the NIC of the running domain", lambda: nics() == ["vm1"])
        wait_for("the guest's driver again", lambda: state("vm1") == "up")
        self.said("the daemon restarted, then libvirtd: the running guest has its NIC again")

        # QEMU saves no guest whose backend cannot log what it writes (VHOST_USER_PROTOCOL_F_LOG_SHMFD).
        why = refused("virsh", "-q", "-c", "qemu:///system", "save", "vm1", "/run/vm1.save")
        check("Migration disabled" in why, f"why it is not saved: {why}")
        check(nics() == ["vm1"] and state("vm1") == "up", "a save that is refused changes nothing")
        self.virsh("reset", "vm1")
        wait_for("the guest to leave its NIC", lambda: state("vm1") != "up")
        wait_for("the guest after a reset", lambda: state("vm1") == "up")
        self.said("not saved, which QEMU refuses; reset: the same NIC, up again")

        self.virsh("destroy", "vm1")
        wait_for("the NIC to go", lambda: nics() == [])
        self.said("ended: the NIC is deleted")

        self.define("vm2", "")
        why = refused("virsh", "-q", "-c", "qemu:///system", "start", "vm2")
        check("has no vni" in why, f"the refusal names what is missing: {why}")
        check(nics() == [], "and leaves nothing")
        self.define("vm3", "16777216")
        why = refused("virsh", "-q", "-c", "qemu:///system", "start", "vm3")
        check("16777216" in why, f"the daemon's refusal is told: {why}")
        self.butterflyd.terminate()
        self.butterflyd.wait()
        why = refused("virsh", "-q", "-c", "qemu:///system", "start", "vm1")
        check("cannot reach butterflyd" in why, f"no daemon: {why}")
        self.said("what cannot be made starts no domain, and says why")
        self.libvirtd.terminate()
        self.libvirtd.wait()


if __name__ == "__main__":
    main()
