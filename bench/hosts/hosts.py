#!/usr/bin/python3
"""Bandwidth and round trips of containers and guests behind Butterfly, on one host and on two,
measured from a third place: qperf, iperf3 and ping, with and without security groups, with and
without segmentation offload, and a matrix of pairs by frame sizes. The tables are those of the
original Butterfly's benchmark and of its time's switches.

    hosts.py --namespaces               two hosts and their cable are namespaces of this machine
    hosts.py --ssh root@a --ssh root@b  two hosts with Butterfly, over ssh
    hosts.py --guests FILE              guests that are there already, each over ssh

docs/hosts-benchmark.md has more of it.

On each host it starts a daemon of its own in a folder of its own, with an overlay of its own, and
removes all of it in the end; what else runs there is left alone. Prints its tables in Markdown, and
last `name=value` pairs.
"""

import argparse
import contextlib
import json
import shlex
import signal
import statistics
import subprocess
import sys
import time

# The overlay's network of this benchmark, and its UDP port: another than a daemon has that runs
# there.
VNI = 0xBF0001
PORT = 14789
# Ethernet with its checksum, IPv4 and UDP: what a frame has beside what it carries.
FRAME = 18 + 20 + 8
TUNNEL = 50
# Datagrams of qperf's own size, 32 KiB, would be fragments.
QPERF_OPTIONS = {"udp_bw": "-m 1400"}
QPERF = {"tcp_bw": "bw", "udp_bw": "recv_bw", "tcp_lat": "latency", "udp_lat": "latency"}
# Seconds that a command may take beyond what it measures.
PATIENCE = 20

# The same for iperf3, which is tried so many times.
IPERF_PATIENCE = 8
ATTEMPTS = 4


# ssh's configuration, if it is another than the user's: --ssh-config.
SSH_CONFIG = None


class Failed(Exception):
    """A command that did not do what it should, as a sentence."""


class CommandTarget:
    """Where commands run: this machine, a namespace of it, or a host over ssh."""

    def __init__(self, name, prefix):
        self.name, self.prefix = name, prefix

    def inside(self, namespace):
        """A network namespace of that place."""
        return CommandTarget(
            f"{namespace} on {self.name}", [*self.prefix, "ip", "netns", "exec", namespace]
        )

    def argv(self, command):
        words = command if isinstance(command, list) else shlex.split(command)
        # ssh hands one line to the shell of the other side.
        if self.prefix[:1] == ["ssh"]:
            at = self.prefix.index("--")
            return [*self.prefix[: at + 1], shlex.join([*self.prefix[at + 1 :], *words])]
        return [*self.prefix, *words]

    def run(self, command, seconds=PATIENCE, may_fail=False):
        try:
            done = subprocess.run(
                self.argv(command), capture_output=True, text=True, timeout=seconds
            )
        except subprocess.TimeoutExpired:
            raise Failed(f"{self.name}: `{command}` did not end within {seconds} s") from None
        except FileNotFoundError as error:
            raise Failed(f"{self.name}: {error.filename} is not installed") from None
        if done.returncode and not may_fail:
            what = (done.stderr.strip() or done.stdout.strip())[-600:]
            raise Failed(f"{self.name}: `{command}`: {what}")
        return done.stdout

    def start(self, command, log=subprocess.DEVNULL):
        return subprocess.Popen(
            self.argv(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )


class Host(CommandTarget):
    """A host with a daemon of this benchmark."""

    def __init__(self, name, prefix, programs, address, outside=None):
        super().__init__(name, prefix)
        self.programs, self.address = programs, address
        # Where its containers' namespaces are made: one inside a namespace would be seen by nobody
        # else.
        self.outside = outside or self
        self.folder = f"/tmp/butterfly-hosts-{name.replace('@', '-').replace('/', '-')}"
        self.daemon, self.made = None, []

    def butterfly(self, arguments):
        return self.run(f"{self.programs}butterfly -e unix:{self.folder}/api.sock {arguments}")

    def begin(self):
        self.run(f"mkdir -m 700 {self.folder}")
        self.daemon = self.start(
            f"{self.programs}butterflyd -i {self.address} --vxlan-port {PORT} -s {self.folder} "
            f"--api unix:{self.folder}/api.sock -e none --no-syslog"
        )
        try:
            self.butterfly("health --wait 20")
        except Failed as failed:
            raise Failed(f"the daemon does not come up: {failed}") from None

    def end(self):
        for namespace in self.made:
            self.outside.run(f"ip netns del {namespace}", may_fail=True)
        if self.daemon:
            self.run(
                f"{self.programs}butterfly -e unix:{self.folder}/api.sock shutdown --yes",
                may_fail=True,
            )
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.daemon.wait(PATIENCE)
            self.daemon.kill()
        self.run(f"rm -rf {self.folder}", may_fail=True)

    def container(self, number, kind):
        """A namespace for a NIC that `nics` makes."""
        namespace = f"bf-bench-{number}"
        self.outside.run(f"ip netns add {namespace}")
        self.made.append(namespace)
        return Container(self, namespace, number, kind)


class Container:
    """One end of a pair: a namespace with a NIC of the switch."""

    def __init__(self, host, namespace, number, kind):
        self.host, self.number, self.kind = host, number, kind
        self.place, self.namespace = host.outside.inside(namespace), namespace
        self.address = f"10.191.{number // 200}.{number % 200 + 1}"
        self.mac = f"52:54:00:bf:{number // 256:02x}:{number % 256:02x}"

    def attach(self, filtered):
        """Makes its NIC, filtered by security groups or not."""
        filtering = "--sg hosts" if filtered else "--bypass-filtering"
        what = f"--id bench-{self.number} --vni {VNI} --mac {self.mac} --ip {self.address}/16"
        what += f" {filtering}"
        if self.kind == "tap":
            what += f" --type tap --path bf-bench{self.number}"
        else:
            what += f" --type veth --netns {self.namespace}"
        self.host.butterfly(f"nic add {what}")
        if self.kind == "tap":
            device = f"bf-bench{self.number}"
            self.host.run(f"ip link set {device} netns {self.namespace}")
            self.place.run(f"ip link set {device} name eth0")
            self.place.run(f"ip link set eth0 address {self.mac} mtu {self.host.mtu} up")
            self.place.run(f"ip addr add {self.address}/16 dev eth0")
        self.place.run("ip link set lo up")

    def detach(self):
        self.host.butterfly(f"nic del bench-{self.number}")

    def segments(self, on):
        self.place.run(f"ethtool -K eth0 tso {'on' if on else 'off'} gso {'on' if on else 'off'}")


class Guest:
    """One end of a pair that is there already and is reached over ssh. Its NIC is as its owner made
    it."""

    def __init__(self, ssh, address, interface):
        self.place, self.address, self.interface = over_ssh(ssh), address, interface

    def segments(self, on):
        self.place.run(
            f"ethtool -K {self.interface} tso {'on' if on else 'off'} gso {'on' if on else 'off'}"
        )


def over_ssh(destination):
    """A place that is reached with no question asked; what else ssh has to know is in its
    configuration."""
    configuration = ["-F", SSH_CONFIG] if SSH_CONFIG else []
    options = [*configuration, "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]
    return CommandTarget(destination, ["ssh", *options, destination, "--"])


@contextlib.contextmanager
def serving(place, command):
    """A server that runs meanwhile."""
    server = place.start(command)
    time.sleep(0.3)
    if server.poll() is not None:
        raise Failed(f"{place.name}: `{command}` ended at once: is it installed, is its port free?")
    try:
        yield
    finally:
        server.terminate()
        try:
            server.wait(5)
        except subprocess.TimeoutExpired:
            server.kill()
        # Over ssh what ends here is ssh, and the server behind it does not.
        if place.prefix[:1] == ["ssh"]:
            place.run(["pkill", "-x", "-f", command], may_fail=True)


def to_base(value, unit):
    """qperf's units: bytes a second in bits, times in microseconds."""
    factors = {
        "bytes/sec": 8, "KB/sec": 8e3, "MB/sec": 8e6, "GB/sec": 8e9,
        "ns": 1e-3, "us": 1, "ms": 1e3, "sec": 1e6,
    }
    if unit not in factors:
        raise Failed(f"qperf speaks of {unit!r}, which is not known here")
    return float(value.replace(",", "")) * factors[unit]


def qperf(left, right, test, seconds):
    """One of qperf's tests, with a server that is there."""
    command = f"qperf -t {seconds} {QPERF_OPTIONS.get(test, '')} -vvs {right.address} {test}"
    output = left.place.run(command, seconds=seconds + PATIENCE)
    for line in output.splitlines():
        name, _, rest = line.partition("=")
        if name.strip() == QPERF[test]:
            return to_base(*rest.split()[:2])
    raise Failed(f"qperf {test} said nothing of {QPERF[test]}: {output.strip()!r}")


def iperf(pairs, arguments, seconds):
    """Bits and frames a second that the receivers of all pairs got together."""
    for _ in range(ATTEMPTS):
        outputs, stuck = iperf_outputs(pairs, arguments, seconds)
        if not stuck:
            break
        print(f"{stuck}: iperf3 did not end; once more", file=sys.stderr)
    else:
        raise Failed(f"{stuck}: iperf3 did not end, {ATTEMPTS} times")
    bits = frames = 0
    for output, (left, _) in zip(outputs, pairs):
        try:
            end = json.loads(output)["end"]
        except (ValueError, KeyError):
            raise Failed(f"{left.place.name}: iperf3: {output.strip()[-300:]}") from None
        received = end.get("sum_received") or end["sum"]
        lost = 1 - received.get("lost_percent", 0) / 100
        if "packets" in received:
            packets = received["packets"] * lost
            frames += packets / received["seconds"]
            bits += received["bits_per_second"] * (1 if "sum_received" in end else lost)
        else:
            bits += received["bits_per_second"]
    return bits, frames


def iperf_outputs(pairs, arguments, seconds):
    """What the clients of all pairs at once print, and where one did not end, if one did not: the
    datagram that begins a test of UDP is sent once, and can be lost in the flood of the others."""
    with contextlib.ExitStack() as stack:
        for _, right in pairs:
            stack.enter_context(serving(right.place, "iperf3 -s"))
        clients = []
        for left, right in pairs:
            command = f"iperf3 -c {right.address} -t {seconds} -J --get-server-output {arguments}"
            argv = left.place.argv(command)
            clients.append(
                subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            )
            stack.callback(clients[-1].wait)
            stack.callback(clients[-1].kill)
        outputs = []
        for client, (left, _) in zip(clients, pairs):
            try:
                outputs.append(client.communicate(timeout=seconds + IPERF_PATIENCE)[0])
            except subprocess.TimeoutExpired:
                return outputs, left.place.name
        return outputs, None


def ping(left, right, count):
    """Least, mean and longest round trip in microseconds."""
    output = left.place.run(
        f"ping -q -n -i 0.01 -c {count} {right.address}", seconds=count * 0.02 + PATIENCE
    )
    for line in output.splitlines():
        if line.startswith("rtt") or line.startswith("round-trip"):
            return tuple(float(value) * 1e3 for value in line.split("=")[1].split("/")[:3])
    raise Failed(f"ping said nothing of round trips: {output.strip()!r}")


class Figures:
    """What was measured: of each name the values of all rounds."""

    def __init__(self):
        self.values = {}

    def note(self, name, value):
        self.values.setdefault(name, []).append(value)

    def median(self, name):
        return statistics.median(self.values[name])

    def text(self, name, scale=1.0, digits=1):
        """The median, and the way from the least to the greatest as a share of it."""
        if name not in self.values:
            return "-"
        values, middle = self.values[name], self.median(name)
        text = f"{middle / scale:,.{digits}f}"
        if len(values) > 1 and middle:
            text += f" ± {50 * (max(values) - min(values)) / middle:.0f} %"
        return text

    def pairs(self):
        return " ".join(f"{name}={self.median(name):.6g}" for name in self.values)


def measure(figures, where, pairs, options):
    """The rows of the first table for one pair."""
    (left, right), seconds = pairs[0], options.seconds
    least, mean, longest = ping(left, right, options.pings)
    for name, value in (("least", least), ("mean", mean), ("longest", longest)):
        figures.note(f"{where}_ping_{name}_us", value)
    # One server for all: its port is not free again at once.
    with serving(right.place, "qperf"):
        for test in QPERF:
            unit = "us" if test.endswith("lat") else "bps"
            figures.note(f"{where}_qperf_{test}_{unit}", qperf(left, right, test, seconds))
    figures.note(f"{where}_iperf_tcp_bps", iperf(pairs[:1], "", seconds)[0])
    figures.note(f"{where}_iperf_udp_bps", iperf(pairs[:1], "-u -b 0 -l 1400", seconds)[0])


def matrix(figures, where, pairs, options, mtu):
    """The second table: so many pairs at once, by the size of their frames."""
    for count in options.pairs:
        for size in options.sizes:
            if size - 18 > mtu or count > len(pairs):
                continue
            bits, frames = iperf(pairs[:count], f"-u -b 0 -l {size - FRAME}", options.seconds)
            name = f"{where}_{count}x{size}"
            figures.note(f"{name}_pps", frames)
            figures.note(f"{name}_bps", frames * size * 8)


def first_table(figures, filtering, segmentation):
    columns = [(place, rules) for place in ("same", "two") for rules in filtering]
    columns = [
        column
        for column in columns
        if any(name.startswith("_".join(column)) for name in figures.values)
    ]
    head = {"same": "one host", "two": "two hosts", "open": "open", "rules": "rules", "given": ""}
    heads = [f"{head[place]} {head[rules]}".strip() for place, rules in columns]
    yield "| | " + " | ".join(heads) + " |"
    yield "|---" * (1 + len(columns)) + "|"
    rows = [
        ("ping, mean (us)", "ping_mean_us", 1),
        ("ping, longest (us)", "ping_longest_us", 1),
        ("qperf tcp_lat (us)", "qperf_tcp_lat_us", 1),
        ("qperf udp_lat (us)", "qperf_udp_lat_us", 1),
        ("qperf tcp_bw (Gbit/s)", "qperf_tcp_bw_bps", 1e9),
        ("qperf udp_bw (Gbit/s)", "qperf_udp_bw_bps", 1e9),
        ("iperf3 TCP (Gbit/s)", "iperf_tcp_bps", 1e9),
        ("iperf3 UDP (Gbit/s)", "iperf_udp_bps", 1e9),
    ]
    for tso in segmentation:
        for title, name, scale in rows:
            digits = 2 if scale > 1 else 1
            cells = [
                figures.text(f"{place}_{rules}_{tso}_{name}", scale, digits)
                for place, rules in columns
            ]
            way = "with" if tso == "tso" else "without"
            yield f"| {title}, {way} TSO | " + " | ".join(cells) + " |"


def second_table(figures, place, rules, options):
    heads = [f"{count} pair{'s' * (count > 1)}, 1,000 frames/s | Mbit/s" for count in options.pairs]
    yield "| frame | " + " | ".join(heads) + " |"
    yield "|---" * (1 + 2 * len(options.pairs)) + "|"
    for size in options.sizes:
        cells = []
        for count in options.pairs:
            name = f"{place}_{rules}_{count}x{size}"
            cells += [figures.text(f"{name}_pps", 1e3), figures.text(f"{name}_bps", 1e6, 0)]
        yield f"| {size} | " + " | ".join(cells) + " |"


def machine(place):
    """What a host is, in a line."""
    def read(command):
        return place.run(command, may_fail=True).strip()

    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in read("cat /proc/cpuinfo").splitlines()
            if line.startswith("model name")
        ),
        "an unknown processor",
    )
    governor = read("cat /sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") or "none told"
    return f"{read('nproc')} × {model}, Linux {read('uname -r')}, frequency governor: {governor}"


@contextlib.contextmanager
def namespaces(programs):
    """Two namespaces of this machine and a cable between them, as hosts."""
    here = CommandTarget("this machine", [])
    names = ["bf-host-left", "bf-host-right"]
    try:
        for name in names:
            here.run(f"ip netns add {name}")
        here.run(
            f"ip -n {names[0]} link add cable mtu 1600 type veth "
            f"peer name cable mtu 1600 netns {names[1]}"
        )
        hosts = []
        for number, name in enumerate(names, 1):
            here.run(f"ip -n {name} addr add 192.0.2.{number}/24 dev cable")
            for device in ("lo", "cable"):
                here.run(f"ip -n {name} link set {device} up")
            hosts.append(Host(name, here.inside(name).prefix, programs, f"192.0.2.{number}", here))
        yield hosts, here
    finally:
        for name in names:
            here.run(f"ip netns del {name}", may_fail=True)


def address_of(host, towards):
    """The address that a host has towards another, whose name or address is given."""
    name = towards.split("@")[-1]
    found = host.run(f"getent ahostsv4 {name}").split()
    if not found:
        raise Failed(f"{host.name} does not know {name}: give --address twice")
    words = host.run(f"ip route get {found[0]}").split()
    return words[words.index("src") + 1]


def hosts_over_ssh(options):
    hosts = []
    for destination in options.ssh:
        place = over_ssh(destination)
        hosts.append(Host(destination, place.prefix, options.programs, None))
    addresses = options.address or [
        address_of(hosts[0], options.ssh[1]),
        address_of(hosts[1], options.ssh[0]),
    ]
    for host, address in zip(hosts, addresses):
        host.address = address
    return hosts


def guests(path):
    """Pairs from a file, a line each: `same` or `two`, as both ends are on one host or on two, and
    of each end its ssh destination, its address in the overlay and the interface that has it."""
    pairs = {"same": [], "two": []}
    try:
        file = open(path, encoding="utf-8")
    except OSError as error:
        raise Failed(f"--guests {path}: {error.strerror}") from None
    with file:
        for number, line in enumerate(file, 1):
            words = line.split("#")[0].split()
            if not words:
                continue
            if len(words) != 7 or words[0] not in pairs:
                raise Failed(
                    f"{path}:{number}: want `same|two SSH ADDRESS IFACE SSH ADDRESS IFACE`, "
                    f"not {line.strip()!r}"
                )
            pairs[words[0]].append((Guest(*words[1:4]), Guest(*words[4:7])))
    if not any(pairs.values()):
        raise Failed(f"{path}: no pair of guests")
    return pairs


def benchmark_guests(figures, options):
    for place, pairs in guests(options.guests).items():
        if not pairs:
            continue
        for tso in options.segmentation:
            for end in pairs[0]:
                end.segments(tso == "tso")
            measure(figures, f"{place}_given_{tso}", pairs, options)
        matrix(figures, f"{place}_given", pairs, options, 1500)


def benchmark_containers(figures, hosts, options):
    left, right = hosts
    for host in hosts:
        host.begin()
        host.mtu = int(uplink_mtu(host)) - TUNNEL
        host.butterfly("sg add hosts")
        for protocol in ("tcp", "udp"):
            host.butterfly(
                f"sg rule add hosts --ip-proto {protocol} --port 1-65535 --cidr 10.191.0.0/16"
            )
        host.butterfly("sg rule add hosts --ip-proto icmp --cidr 10.191.0.0/16")
        host.butterfly(f"host add {(right if host is left else left).address} --vni {VNI}")
    most = max(options.pairs)
    here = [left.container(number, options.type) for number in range(most)]
    peers = {
        "same": [left.container(most + number, options.type) for number in range(most)],
        "two": [right.container(2 * most + number, options.type) for number in range(most)],
    }
    everybody = here + peers["same"] + peers["two"]
    for rules in options.filtering:
        for container in everybody:
            container.attach(rules == "rules")
        for place, there in peers.items():
            pairs = list(zip(here, there))
            for one, other in pairs:
                one.place.run(f"ping -q -c 1 -w {PATIENCE} {other.address}", seconds=2 * PATIENCE)
            for tso in options.segmentation:
                for end in pairs[0]:
                    end.segments(tso == "tso")
                measure(figures, f"{place}_{rules}_{tso}", pairs, options)
            if rules == options.filtering[-1]:
                matrix(
                    figures,
                    f"{place}_{rules}",
                    pairs,
                    options,
                    left.mtu if place == "two" else 1500,
                )
        for container in everybody:
            container.detach()


def uplink_mtu(host):
    """The MTU of the interface that leads to other hosts."""
    for line in host.run("ip -o -4 addr show").splitlines():
        words = line.split()
        if words[3].split("/")[0] == host.address:
            return host.run(f"cat /sys/class/net/{words[1]}/mtu").strip()
    raise Failed(f"{host.name} has no interface with the address {host.address}")


def page(figures, options, machines, version):
    rounds = (
        "one round"
        if options.rounds == 1
        else f"{options.rounds} rounds, medians, and half their spread"
    )
    today = time.strftime('%Y-%m-%d')
    yield f"Measured {today} with {version}: {options.seconds} s a test, {rounds}."
    yield ""
    for name, line in machines:
        yield f"- {name}: {line}"
    yield ""
    yield from first_table(figures, options.filtering, options.segmentation)
    for place, title in (("same", "On one host"), ("two", "On two hosts")):
        rules = options.filtering[-1]
        if not any(
            f"{place}_{rules}_{count}x" in name
            for name in figures.values
            for count in options.pairs
        ):
            continue
        yield ""
        yield f"{title}, datagrams as received, all pairs together:"
        yield ""
        yield from second_table(figures, place, rules, options)


def numbers(text):
    return [int(word) for word in text.split(",")]


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--namespaces",
        action="store_true",
        help="two network namespaces of this machine are the hosts",
    )
    parser.add_argument(
        "--ssh", action="append", default=[], metavar="DESTINATION", help="a host; twice"
    )
    parser.add_argument(
        "--address",
        action="append",
        metavar="ADDRESS",
        help="a host's address towards the other; twice, as --ssh",
    )
    parser.add_argument(
        "--guests",
        metavar="FILE",
        help="pairs of guests, a line each: same|two, and of both ends SSH ADDRESS INTERFACE",
    )
    parser.add_argument(
        "--programs",
        default="",
        metavar="FOLDER",
        help="where butterflyd and butterfly are on the hosts [default: their PATH]",
    )
    parser.add_argument(
        "--type", choices=["veth", "tap"], default="veth", help="what containers attach by"
    )
    parser.add_argument(
        "--firewall",
        choices=["on", "off", "both"],
        default="both",
        help="with security groups, without",
    )
    parser.add_argument(
        "--tso",
        choices=["on", "off", "both"],
        default="both",
        help="with segmentation offload, without",
    )
    parser.add_argument("--ssh-config", metavar="FILE", help="ssh's configuration")
    parser.add_argument(
        "--pairs", type=numbers, default=[1, 4, 6], help="pairs at once [default: 1,4,6]"
    )
    parser.add_argument(
        "--sizes",
        type=numbers,
        default=[128, 512, 1024, 1518],
        help="bytes of a frame, with its checksum",
    )
    parser.add_argument("--seconds", type=int, default=5, help="of each test")
    parser.add_argument("--rounds", type=int, default=3, help="how often everything is measured")
    parser.add_argument("--quick", action="store_true", help="one round, one second a test")
    parser.add_argument("--out", metavar="FILE", help="where the tables go as well")
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.rounds = 1, 1
    if options.programs:
        options.programs = options.programs.rstrip("/") + "/"
    options.pings = 100 * options.seconds
    options.segmentation = {"off": ["no_tso"], "on": ["tso"], "both": ["no_tso", "tso"]}[
        options.tso
    ]
    options.filtering = {"off": ["open"], "on": ["rules"], "both": ["open", "rules"]}[
        options.firewall
    ]
    if options.guests:
        options.filtering = ["given"]
    global SSH_CONFIG
    SSH_CONFIG = options.ssh_config
    if [options.namespaces, bool(options.ssh), bool(options.guests)].count(True) != 1:
        parser.error("give --namespaces, or --ssh twice, or --guests FILE")
    if options.ssh and len(options.ssh) != 2:
        parser.error(f"--ssh is to be given twice, not {len(options.ssh)} times")
    if options.address and len(options.address) != 2:
        parser.error("--address is to be given twice, or not at all")
    if bad := [size for size in options.sizes if not FRAME < size <= 9018]:
        parser.error(f"--sizes: {bad[0]} is not from {FRAME + 1} to 9018")
    if bad := [count for count in options.pairs if not 0 < count <= 60]:
        parser.error(f"--pairs: {bad[0]} is not from 1 to 60")
    if options.seconds < 1 or options.rounds < 1:
        parser.error("--seconds and --rounds are at least 1")
    return options


def main():
    options = parse()
    figures, here = Figures(), CommandTarget("this machine", [])
    # Whoever stops it wants it cleaned up.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with contextlib.ExitStack() as stack:
        if options.guests:
            for _ in range(options.rounds):
                benchmark_guests(figures, options)
            machines = [
                (end.place.name, machine(end.place))
                for pairs in guests(options.guests).values()
                for pair in pairs
                for end in pair
            ]
            version = "guests as they are"
        else:
            if options.namespaces:
                hosts, _ = stack.enter_context(namespaces(options.programs))
                machines = [("both hosts, and the place that drives them", machine(here))]
            else:
                hosts = hosts_over_ssh(options)
                machines = [(host.name, machine(host)) for host in hosts]
            version = hosts[0].run(f"{options.programs}butterfly --version").strip()
            for _ in range(options.rounds):
                with contextlib.ExitStack() as daemons:
                    for host in hosts:
                        host.made, host.daemon = [], None
                        daemons.callback(host.end)
                    benchmark_containers(figures, hosts, options)
    text = "\n".join(page(figures, options, machines, version))
    print(text)
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    print()
    print(figures.pairs())


if __name__ == "__main__":
    try:
        main()
    except Failed as failed:
        sys.exit(f"hosts.py: {failed}")
