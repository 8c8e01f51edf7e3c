#!/usr/bin/python3
"""Debian's libvirtd with packaging/libvirt-hook: a domain's NICs are made and deleted with it. The
tutorial is followed as it stands (docs/tutorials/guest.md). A domain is started, saved and
restored, gets a second NIC while it runs, and is moved to another host with a libvirtd and a daemon
of its own: by packaging/libvirt-move, while it reads from a container that it leaves behind and
from one on a third host, once in vain; and back by virsh alone. One with two NICs stays when
libvirt-move is ended in the middle, and when its move fails and a neighbour is gone. Everything
runs in namespaces of its own, with folders of its own over libvirt's; guests run by software
emulation.

usage: test-libvirt.py [FOLDER]    the folder has butterflyd and butterfly [default: target/debug]

`make test-libvirt` runs it. Prints a line a step; the first that fails ends it.
"""

import glob
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Seconds until an event has to have come, on a busy machine without KVM.
PATIENCE = 180

# Without KVM, QEMU 7.2 crashes over vhost-user's interrupts unless there are none of its own
# (vectors=0).
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
      <butterfly:nic id='{name}' vni='{vni}' mac='52:54:00:00:00:11' ip='10.0.0.11 fd00::11'
                     sg='friends' mtu='1450' anti-spoof='false'/>
    </butterfly:nics>
  </metadata>
  <features><acpi/><apic/></features>
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
    <controller type='pci' model='pcie-root'/>
    <controller type='pci' model='pcie-root-port'/>
    <controller type='pci' model='pcie-root-port'/>
    <controller type='pci' model='pcie-root-port'/>
    <controller type='pci' model='pcie-root-port'/>
    <controller type='pci' model='pcie-root-port'/>
    <controller type='pci' model='pcie-root-port'/>
    <serial type='pty'/>
    <serial type='unix'><source mode='bind' path='/run/{name}.agent'/></serial>
  </devices>
  <qemu:commandline>
    <qemu:arg value='-global'/>
    <qemu:arg value='virtio-net-pci.vectors=0'/>
  </qemu:commandline>
</domain>
"""

# What this machine has in place of the tutorial's: no KVM, and a kernel with an initrd of its own
# for a disk with Linux.
HERE = [
    (
        r"<domain type='kvm'>",
        "<domain type='qemu' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>",
    ),
    (
        r"<os>(.*)</os>",
        r"<os>\1" + re.search(r"<kernel>.*</cmdline>", DOMAIN, re.S)[0].format(root=ROOT) + "</os>",
    ),
    (
        r"(?s)<disk .*</disk>",
        "<serial type='pty'/>"
        "<serial type='unix'><source mode='bind' path='/run/vm1.agent'/></serial>",
    ),
    (r"<console type='pty'/>", ""),
    (r"</domain>", re.search(r"<qemu:commandline>.*", DOMAIN, re.S)[0].strip()),
]

# A second NIC, for a domain that runs.
INTERFACE = """<interface type='vhostuser'>
  <mac address='52:54:00:00:00:12'/>
  <source type='unix' path='/run/butterfly/qemu-vhost-second' mode='client'>
    <reconnect enabled='yes' timeout='1'/>
  </source>
  <model type='virtio'/>
</interface>
"""

SECOND = "<butterfly:nic id='second' vni='8' mac='52:54:00:00:00:12' ip='10.0.0.12' sg='friends'/>"

# What a container sends to the guest in a second, and for how long the guest reads.
RATE = 200_000
READS = 900

# What a host has and this machine's own libvirt must not see.
FOLDERS = ("/run", "/etc/libvirt", "/var/lib/libvirt", "/var/cache/libvirt", "/var/log/libvirt")
# Where the hook writes down whose NICs are: root's alone.
HOLDERS = "/var/lib/butterfly-libvirt"
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
        # Where hosts have their own, this machine has to have a folder.
        is_made = not os.path.exists(HOLDERS)
        code = subprocess.run(apart + [sys.executable] + sys.argv, env=environment).returncode
        if is_made and os.path.exists(HOLDERS):
            os.rmdir(HOLDERS)
        sys.exit(code)
    programs = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else f"{ROOT}/target/debug")
    os.environ["PATH"] = f"{programs}:{os.environ['PATH']}"
    os.environ.pop("BUTTERFLY_ENDPOINT", None)
    # The user that Debian's libvirt-daemon-system makes; libvirtd looks it up, though we name
    # another.
    for file, line in (
        ("passwd", "libvirt-qemu:x:64055:64055::/:/usr/sbin/nologin"),
        ("group", "libvirt-qemu:x:64055:"),
    ):
        text = open(f"/etc/{file}", encoding="utf-8").read()
        if "libvirt-qemu:" not in text:
            with tempfile.NamedTemporaryFile("w", encoding="utf-8") as own:
                own.write(f"{text}{line}\n")
                own.flush()
                os.chmod(own.name, 0o644)
                run("mount", "--bind", own.name, f"/etc/{file}")
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
    logs = ("var/log/libvirt/qemu/*.log", "run/libvirtd.log", "run/butterflyd.log")
    for log in [path for log in logs for path in glob.glob(f"/proc/[0-9]*/root/{log}")]:
        lines = open(log, encoding="utf-8", errors="replace").read().splitlines()
        print(f"---- {log}", *[line for line in lines if "ethtool" not in line][-25:], sep="\n")
    sys.exit(f"test-libvirt: {what} has not come within {PATIENCE} s")


def check(right, why):
    if not right:
        sys.exit(f"test-libvirt: {why}")


class Host:
    """A host: its network, its name, folders of libvirt, of its hook and /run of its own;
    butterflyd and libvirtd in it."""

    def __init__(self, name, address):
        self.name, self.address = name, address
        self.butterflyd = self.libvirtd = None
        apart = ["unshare", "--mount", "--net", "--uts", "sleep", "infinity"]
        self.holder = subprocess.Popen(apart)
        own = f"/proc/{self.holder.pid}/ns/uts"
        wait_for(
            "a host's namespaces", lambda: os.readlink(own) != os.readlink("/proc/self/ns/uts")
        )
        self.enter = [
            "nsenter", "--target", str(self.holder.pid), "--mount", "--net", "--uts", "--",
        ]
        self.root = f"/proc/{self.holder.pid}/root"
        self.run("hostname", name)
        for folder in FOLDERS:
            self.run("mkdir", "-p", folder)
            self.run("mount", "-t", "tmpfs", "tmpfs", folder)
        self.run("mkdir", "-p", "-m", "700", HOLDERS)
        self.run("mount", "-t", "tmpfs", "-o", "mode=700", "tmpfs", HOLDERS)
        self.run("mkdir", "-p", "/run/netns", "/etc/libvirt/hooks/qemu.d")
        self.run("mount", "-t", "sysfs", "sysfs", "/sys")
        self.run("mount", "-t", "bpf", "bpf", "/sys/fs/bpf")
        self.run("ip", "link", "set", "lo", "up")
        hook = "/etc/libvirt/hooks/qemu.d/butterfly"
        self.run("install", "-m", "755", f"{ROOT}/packaging/libvirt-hook", hook)
        self.write("/etc/libvirt/qemu.conf", QEMU_CONF)
        self.write("/etc/libvirt/libvirtd.conf", f'host_uuid = "{uuid.uuid4()}"\n')

    def write(self, path, text):
        with open(self.root + path, "w", encoding="utf-8") as file:
            file.write(text)

    def run(self, *words):
        return run(*self.enter, *words)

    def butterfly(self, *words):
        return self.run("butterfly", *words)

    def virsh(self, *words):
        return self.run("virsh", "-q", "-c", "qemu:///system", *words)

    def refused(self, *words):
        return refused(*self.enter, "virsh", "-q", "-c", "qemu:///system", *words)

    def nics(self):
        return self.butterfly("nic", "list").split()

    def state(self, name):
        shown = json.loads(self.butterfly("nic", "details", name, "--json"))[0]
        return shown["state"].removeprefix("PORT_STATE_").lower()

    def vni(self, name):
        """The network of a NIC, if that is there."""
        shown = subprocess.run(
            [*self.enter, "butterfly", "--json", "nic", "details", name], capture_output=True
        )
        return json.loads(shown.stdout)[0]["nic"]["vni"] if shown.returncode == 0 else None

    def start(self, *words):
        """Starts a program with its log in this host's /run."""
        name = os.path.basename(words[0])
        log = open(f"{self.root}/run/{name}.log", "a", encoding="utf-8")
        return subprocess.Popen([*self.enter, *words], stdout=log, stderr=log)

    def start_butterflyd(self):
        words = [
            "butterflyd", "-s", "/run/butterfly", "-e", "none", "--no-syslog", "-i", self.address,
        ]
        self.butterflyd = self.start(*words, "--api", "unix:/run/butterfly/api.sock")
        self.butterfly("health", "--wait", str(PATIENCE))
        self.butterfly("sg", "add", "friends")
        self.butterfly(
            "sg", "rule", "add", "friends", "--ip-proto", "icmp", "--cidr", "10.0.0.0/24"
        )

    def start_libvirtd(self):
        self.libvirtd = self.start("libvirtd")
        listed = [*self.enter, "virsh", "-c", "qemu:///system", "list"]

        def answers():
            if self.libvirtd.poll() is not None:
                log = open(f"{self.root}/run/libvirtd.log", encoding="utf-8").read()
                sys.exit(f"test-libvirt: libvirtd has ended: {log[-3000:]}")
            return subprocess.run(listed, capture_output=True).returncode == 0

        wait_for("libvirtd", answers)

    def define(self, name, vni, second=False):
        """A domain, with a second NIC that is called so, or without."""
        xml = DOMAIN.format(name=name, vni=vni, root=ROOT)
        if second:
            xml = xml.replace("</butterfly:nics>", f"{SECOND}</butterfly:nics>")
            xml = xml.replace("</interface>", f"</interface>{INTERFACE}")
        self.write(f"/run/{name}.xml", xml)
        self.virsh("define", f"/run/{name}.xml")

    def guest(self, name, command):
        """Code and output of a shell command in a guest, by its agent (crates/guest/src/agent.rs).
        A guest that has been reset loses what it was sent before its agent was there, so it is
        asked again.
        """
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            with socket.socket(socket.AF_UNIX) as line:
                line.settimeout(30)
                line.connect(f"{self.root}/run/{name}.agent")
                number = time.monotonic_ns()
                # An empty line ends whatever a line before it was cut off in.
                line.sendall(f"\nrun {number} 60000 {command.encode().hex()}\n".encode())
                try:
                    for answer in line.makefile("rb"):
                        words = answer.split()
                        if words[:2] == [b"done", str(number).encode()]:
                            said = b"" if words[3:] == [b"-"] else bytes.fromhex(words[3].decode())
                            return int(words[2]), said.decode(errors="replace").strip()
                except TimeoutError:
                    pass
        sys.exit(f"test-libvirt: the agent of {name} says nothing")

    def end(self, program):
        # The program is the child of nsenter, which becomes it.
        program.terminate()
        program.wait()


class Heard:
    """Looks at what a process's network hears, and for how long that is nothing."""

    def __init__(self, pid):
        self.path, self.gaps, self.ended = f"/proc/{pid}/net/dev", [0.0], threading.Event()
        self.thread = threading.Thread(target=self.look, daemon=True)
        self.thread.start()

    def look(self):
        heard, since = None, time.monotonic()
        while not self.ended.wait(0.01):
            line = re.search(r"eth0:\s*(.*)", open(self.path, encoding="utf-8").read())
            now, packets = time.monotonic(), line[1].split()[1]
            self.gaps.append(now - since)
            if packets != heard:
                heard, since = packets, now

    def longest(self):
        """In seconds, until now."""
        self.ended.set()
        self.thread.join()
        return max(self.gaps)


class Session:
    def __init__(self):
        self.begun = time.monotonic()

    def said(self, what):
        print(f"{time.monotonic() - self.begun:6.1f} s  {what}", flush=True)

    def connect(self, *hosts):
        """An Ethernet between hosts."""
        run("ip", "link", "add", "br0", "up", "type", "bridge")
        for host in hosts:
            port = host.name
            run(
                "ip", "link", "add", port, "type", "veth", "peer", "name", "uplink0", "netns",
                str(host.holder.pid),
            )
            run("ip", "link", "set", port, "master", "br0", "up")
            host.run("ip", "addr", "add", f"{host.address}/24", "dev", "uplink0")
            host.run("ip", "link", "set", "uplink0", "up")

    def play(self):
        a, b, c = (Host(f"host-{name}", f"192.0.2.{last}") for name, last in zip("abc", (1, 2, 3)))
        self.connect(a, b, c)
        a.start_butterflyd()
        a.start_libvirtd()
        self.tutorial(a)
        self.one_host(a)
        self.a_copy(a)
        self.second_nic(a)
        self.moved(a, b, c)
        self.moved_by_virsh(a, b)
        self.two_nics_stay(a, b)
        self.refusals(a)
        a.end(a.libvirtd)
        for program in (b.libvirtd, b.butterflyd, c.butterflyd):
            b.end(program)

    def tutorial(self, a):
        """The page's commands, part by part; what it shows is said. In the guest its `console`
        lines are typed."""
        page = open(f"{ROOT}/docs/tutorials/guest.md", encoding="utf-8").read()
        parts = re.findall(r"```(sh|text|console)\n(.*?)```", page, re.S)
        # The hook is there already.
        check(parts[0][0] == "console" and "hooks" in parts[0][1], "the page begins with the hook")
        said = ""
        for kind, text in parts[1:]:
            if kind == "sh":
                for pattern, instead in HERE:
                    text = re.sub(pattern, instead, text) if "<domain" in text else text
                said = a.run("bash", "-ec", f"cd /run; {text}")
            elif kind == "console":
                for command in re.findall("^# (.*)", text, re.M):
                    done = a.guest("vm1", command)
                    check(done[0] == 0, f"in the guest, {command}: {done[1]}")
            else:
                for line in text.strip().splitlines():
                    like = "[^\n]*".join(
                        r"\s+".join(map(re.escape, part.split())) for part in line.split("…")
                    )
                    check(re.search(like, said), f"'{line}' is said: {said}")
        check(a.nics() == [], "nothing is left of it")
        a.butterfly("sg", "del", "guests")
        self.said("the tutorial: a guest by its XML alone, which a container pings")

    def one_host(self, a):
        a.define("vm1", "7")
        check(a.nics() == [], "a domain that is only defined has no NIC")
        self.said("defined: no NIC yet")

        a.virsh("start", "vm1")
        check(a.nics() == ["vm1"], f"the domain's NIC is there: {a.nics()}")
        nic = json.loads(a.butterfly("nic", "details", "vm1", "--json"))[0]["nic"]
        wanted = {"vni": 7, "mac": "52:54:00:00:00:11", "addresses": ["10.0.0.11", "fd00::11"]}
        wanted |= {"security_groups": ["friends"], "mtu": 1450, "anti_spoof": False}
        for key, value in wanted.items():
            check(nic[key] == value, f"{key} is {nic[key]}, and the metadata says {value}")
        wait_for("the guest's driver", lambda: a.state("vm1") == "up")
        self.said("started: the NIC is as the metadata says, and up")

        a.libvirtd.send_signal(signal.SIGKILL)
        a.libvirtd.wait()
        a.start_libvirtd()
        a.virsh("domstate", "vm1")
        check(
            a.nics() == ["vm1"] and a.state("vm1") == "up",
            "libvirtd has started again: the NIC stays",
        )
        self.said("libvirtd killed and started: the NIC is untouched")

        a.end(a.butterflyd)
        a.start_butterflyd()
        # What an administrator does after a restart that forgets: have the hooks make the NICs
        # again.
        a.end(a.libvirtd)
        a.start_libvirtd()
        wait_for("the NIC of the running domain", lambda: a.nics() == ["vm1"])
        wait_for("the guest's driver again", lambda: a.state("vm1") == "up")
        self.said("the daemon restarted, then libvirtd: the running guest has its NIC again")

        self.container(a, 1)
        a.guest("vm1", "ip addr replace 10.0.0.11/24 dev eth0")
        self.talks(a)
        boot = a.guest("vm1", "cat /proc/sys/kernel/random/boot_id")
        a.virsh("save", "vm1", "/run/vm1.save")
        wait_for("the NIC to go with the saved guest", lambda: a.nics() == ["c1"])
        a.virsh("restore", "/run/vm1.save")
        wait_for("the restored guest's NIC", lambda: a.state("vm1") == "up")
        check(
            a.guest("vm1", "cat /proc/sys/kernel/random/boot_id") == boot,
            "the guest goes on, and did not boot",
        )
        self.talks(a)
        self.said("saved and restored: the NIC went and came, and the guest goes on")

        a.virsh("reset", "vm1")
        # Its firmware takes the NIC first, and then its kernel.
        wait_for(
            "the guest to boot",
            lambda: a.guest("vm1", "cat /proc/sys/kernel/random/boot_id") != boot,
        )
        wait_for("the guest after a reset", lambda: a.state("vm1") == "up")
        self.said("reset: the same NIC, up again")

    def a_copy(self, a):
        """A domain whose metadata names the NIC of one that runs."""
        copy = DOMAIN.format(name="copy", vni="7", root=ROOT).replace("id='copy'", "id='vm1'")
        a.write("/run/copy.xml", copy)
        a.virsh("define", "/run/copy.xml")
        why = a.refused("start", "copy")
        check("'vm1' is of domain" in why, f"the refusal names whose it is: {why}")
        check(a.state("vm1") == "up", "the NIC is untouched")
        a.virsh("undefine", "copy")
        self.said("a copy of a running domain does not start, and leaves it its NIC")

    def second_nic(self, a):
        a.butterfly(
            "nic", "add", "--id", "second", "--vni", "8", "--mac", "52:54:00:00:00:12", "--ip",
            "10.0.0.12", "--sg", "friends",
        )
        a.write("/run/second.xml", INTERFACE)
        a.virsh("attach-device", "vm1", "/run/second.xml", "--live")
        up = "ip link set eth1 up && cat /sys/class/net/eth1/address"
        wait_for(
            "the second NIC in the guest", lambda: a.guest("vm1", up) == (0, "52:54:00:00:00:12")
        )
        wait_for("the second NIC's driver", lambda: a.state("second") == "up")
        a.virsh("detach-device", "vm1", "/run/second.xml", "--live")
        wait_for(
            "the second NIC to leave the guest",
            lambda: a.guest("vm1", "test -e /sys/class/net/eth1")[0] == 1,
        )
        wait_for("its emulator to let go", lambda: a.state("second") != "up")
        a.butterfly("nic", "del", "second")
        check(a.state("vm1") == "up", "the first NIC is untouched")
        self.said("a second NIC plugged in while the guest runs, and out again")

    def moved(self, a, b, c):
        """By libvirt-move. The guest reads from two containers all the time, in connections that
        its own group would not let in: without their state nothing of them passes."""
        b.start_butterflyd()
        b.start_libvirtd()
        c.start_butterflyd()
        self.container(c, 3)
        servers = [self.serve(a, 1), self.serve(c, 3)]
        self.agent_dresses(a)
        self.talks(a)
        boot = a.guest("vm1", "cat /proc/sys/kernel/random/boot_id")
        for last in (1, 3):
            progress = f"/tmp/stream-{last}"
            a.guest(
                "vm1",
                f"guest tcp-get 10.0.0.{last} 80 0 {READS} {progress} </dev/null "
                f">{progress}.log 2>&1 &",
            )
        self.streams_go_on(a)

        # The guest there is killed when it is all there and has not run: it goes on here.
        move = self.move(a, b)
        b.libvirtd.send_signal(signal.SIGSTOP)
        wait_for("the connections", lambda: "are taken up there" in self.said_by_move(a))
        self.killed(b, "vm1")
        wait_for("the move", lambda: move.poll() is not None)
        said = self.said_by_move(a)
        check(move.returncode != 0, f"the move fails: {said}")
        check("vm1 stays, with its connections" in said, f"libvirt-move says: {said}")
        wait_for("the NIC there to go", lambda: b.nics() == [])
        check(a.vni("vm1") == 7, f"it is in its network again: {a.vni('vm1')}")
        self.streams_go_on(a)
        self.said("a move that failed at its end: the guest stays, with its connections")

        binding = ["--vni", "7", "52:54:00:00:00:11"]
        say = f"butterfly binding add --vni 7 --mac {binding[-1]} --ip 10.0.0.11 --host {b.address}"
        move = self.move(a, b, "--then", say)
        heard = Heard(servers[1].pid)
        wait_for("the move", lambda: move.poll() is not None)
        said = self.said_by_move(a)
        check(move.returncode == 0, f"libvirt-move ended with {move.returncode}: {said}")
        taken = re.findall(r"(\d+) connections of vm1 are taken up there", said)
        check(taken and int(taken[-1]) >= 2, f"libvirt-move says: {said}")
        wait_for("the NIC to go where the guest was", lambda: a.nics() == ["c1"])
        check(b.nics() == ["vm1"], f"the hook has made the NIC where the guest is: {b.nics()}")
        check(b.vni("vm1") == 7, f"it is in its network again: {b.vni('vm1')}")
        wait_for("the guest's NIC on the other host", lambda: b.state("vm1") == "up")
        check(
            b.guest("vm1", "cat /proc/sys/kernel/random/boot_id") == boot,
            "the guest goes on, and did not boot",
        )
        self.streams_go_on(b)
        quiet = heard.longest()
        self.talks(b)
        job = b.virsh("domjobinfo", "--completed", "vm1")
        stood = re.search(r"downtime:\s*(\d+)\s*ms", job)
        self.said(
            "moved by libvirt-move to another host, with its NIC and both connections; libvirt "
            f"says it stood still for {stood[1] if stood else '?'} ms, and the third host heard "
            f"nothing of it for {quiet:.2f} s"
        )
        a.butterfly("binding", "del", *binding)

    def move(self, a, b, *more):
        """Begins it, so slow that the guest's memory takes longer than a daemon is silent about
        connections that it does not know, and that the streams can be looked at meanwhile."""
        move = self.begin_move(a, b, "vm1", *more)
        wait_for("the NIC to wait there", lambda: b.vni("vm1") not in (None, 7))
        self.streams_go_on(a)
        check(move.poll() is None, "the streams were looked at while the guest moved")
        return move

    def begin_move(self, a, b, name, *more):
        return a.start(
            f"{ROOT}/packaging/libvirt-move", "--there", " ".join([*b.enter, "butterfly"]),
            *more, name, self.uri(b), "--persistent", "--undefinesource", "--bandwidth", "4",
            f"tcp://{b.address}:4444",
        )

    def killed(self, host, name):
        """The guest that has come to a host whose libvirtd stands still."""
        with open(f"{host.root}/run/libvirt/qemu/{name}.pid", encoding="utf-8") as pid:
            os.kill(int(pid.read()), signal.SIGKILL)
        host.libvirtd.send_signal(signal.SIGCONT)

    def two_nics_stay(self, a, b):
        """What goes wrong must leave neither of its NICs without its network. No guest's shell is
        needed for the second, whose driver is enough."""
        a.define("vm4", "7", second=True)
        a.virsh("start", "vm4")
        wait_for("both NICs", lambda: (a.state("vm4"), a.state("second")) == ("up", "up"))
        up = "ip addr replace 10.0.0.11/24 dev eth0"
        wait_for("the agent", lambda: a.guest("vm4", up)[0] == 0)

        def begun():
            before = len(self.said_by_move(a))
            move = self.begin_move(a, b, "vm4")
            waits = (16777215, 16777215)
            wait_for("both NICs to wait", lambda: (b.vni("vm4"), b.vni("second")) == waits)
            return move, lambda: self.said_by_move(a)[before:]

        def stays(move, said):
            wait_for("the move", lambda: move.poll() is not None)
            check(move.returncode != 0, f"the move fails: {said()}")
            vnis = (a.vni("vm4"), a.vni("second"))
            check(vnis == (7, 8), f"both NICs are in their networks again, {vnis}: {said()}")
            check("running" in a.virsh("domstate", "vm4"), "the guest goes on")
            wait_for("the NICs there to go", lambda: b.nics() == [])

        move, said = begun()
        move.send_signal(signal.SIGTERM)
        stays(move, said)
        check("vm4 stays, with its connections" in said(), f"libvirt-move says: {said()}")
        self.said("libvirt-move ended by SIGTERM: the guest stays, with both NICs")

        pinged = a.guest("vm4", "ping -c 3 -W 10 10.0.0.1")
        check(pinged[0] == 0, f"the guest reaches its neighbour: {pinged}")
        # What is silent for 30 s is no connection any more.
        a.guest("vm4", "ping 10.0.0.1 >/dev/null 2>&1 &")
        move, said = begun()
        b.libvirtd.send_signal(signal.SIGSTOP)
        wait_for("both NICs to be gone here", lambda: a.vni("second") == 16777215)
        a.butterfly("nic", "del", "c1")
        self.killed(b, "vm4")
        stays(move, said)
        check("stays, without the connections of c1" in said(), f"libvirt-move says: {said()}")
        self.said("a move that failed, while a neighbour went: the guest stays, with both NICs")
        a.virsh("destroy", "vm4")
        a.virsh("undefine", "vm4")
        wait_for("the NICs to go", lambda: a.nics() == [])

    def said_by_move(self, host):
        return open(f"{host.root}/run/libvirt-move.log", encoding="utf-8").read().strip()

    def moved_by_virsh(self, a, b):
        """The way back, by virsh alone."""
        b.virsh(
            "migrate", "--live", "--persistent", "--undefinesource", "vm1", self.uri(a),
            f"tcp://{a.address}:4444",
        )
        wait_for("the NIC to go where the guest was", lambda: b.nics() == [])
        check(a.nics() == ["c1", "vm1"], f"the hook has made the NIC here: {a.nics()}")
        wait_for("the guest's NIC", lambda: a.state("vm1") == "up")
        self.talks(a)
        before = self.bytes_read(a)
        time.sleep(5)
        check(self.bytes_read(a) == before, "its connections stand still")
        self.said("moved back by virsh alone: its NIC went along, and its connections did not")
        a.virsh("destroy", "vm1")
        wait_for("the NIC to go", lambda: a.nics() == ["c1"])
        a.virsh("undefine", "vm1")
        self.said("ended there: the NIC is deleted")

    def uri(self, host):
        return f"qemu+unix:///system?socket={host.root}/run/libvirt/libvirt-sock"

    def agent_dresses(self, host):
        wait_for(
            "the agent", lambda: host.guest("vm1", "ip addr replace 10.0.0.11/24 dev eth0")[0] == 0
        )

    def container(self, host, last):
        """A container of the guest's network."""
        name = f"c{last}"
        host.butterfly(
            "nic", "add", "--id", name, "--vni", "7", "--mac", f"52:54:00:00:00:0{last}", "--ip",
            f"10.0.0.{last}/24", "--sg", "friends", "--type", "veth", "--netns",
            self.namespace(host, name),
        )

    def serve(self, host, last):
        """It sends to everybody who connects, byte by byte what the guest's reader expects."""
        host.butterfly("sg", "rule", "add", "served", "--ip-proto", "tcp", "--port", "80")
        host.butterfly("nic", "sg", "add", f"c{last}", "served")
        words = ["ip", "netns", "exec", f"c{last}", "guest", "tcp-serve", "80", str(RATE)]
        server = host.start(*words)
        log = f"{host.root}/run/ip.log"
        wait_for("a server to listen", lambda: "listening" in open(log, encoding="utf-8").read())
        return server

    def bytes_read(self, host):
        """By the guest, of both streams."""
        read = host.guest("vm1", "cat /tmp/stream-1 /tmp/stream-3")
        return [int(count) for count in read[1].split() if read[0] == 0]

    def streams_go_on(self, host):
        """More comes than was under way."""
        before = self.bytes_read(host)

        def more():
            now = self.bytes_read(host)
            return len(now) == 2 and all(
                count > (before[at] if before else 0) + RATE for at, count in enumerate(now)
            )

        wait_for("the guest's streams to go on", more)
        ended = host.guest("vm1", "cat /tmp/stream-1.log /tmp/stream-3.log")
        check(ended == (0, ""), f"no stream has ended: {ended}")

    def namespace(self, host, name):
        host.run("ip", "netns", "add", name)
        return name

    def talks(self, host):
        """The guest reaches the container."""
        pinged = host.guest("vm1", "ping -c 3 -W 10 10.0.0.1")
        check(
            pinged[0] == 0 and "3 packets received" in pinged[1],
            f"the guest reaches the container: {pinged}",
        )

    def refusals(self, a):
        a.define("vm2", "")
        why = a.refused("start", "vm2")
        check("has no vni" in why, f"the refusal names what is missing: {why}")
        check(a.nics() == [], "and leaves nothing")
        a.define("vm3", "16777216")
        why = a.refused("start", "vm3")
        check("16777216" in why, f"the daemon's refusal is told: {why}")
        a.define("vm1", "7")
        a.end(a.butterflyd)
        why = a.refused("start", "vm1")
        check("cannot reach butterflyd" in why, f"no daemon: {why}")
        self.said("what cannot be made starts no domain, and says why")


if __name__ == "__main__":
    main()
