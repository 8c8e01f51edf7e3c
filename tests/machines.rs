//! Two hosts with virtual machines, as the original's scenarios have them: `a` and `c` on the left,
//! `b` and `d` on the right, one network or two. The machines are booted once; what containers in
//! their place go through is in `hosts.rs`.

use butterfly_tests::hosts::{Family, Host, Hosts, mac};
use butterfly_tests::lab::{Download, check, soon};
use butterfly_tests::trials;
use butterfly_tests::trials::{Stage, run_trials};
use std::time::Duration;
use testkit::Result;
use testkit::image::Image;
use testkit::qemu::{Guest, Machine, Nic, Wire};

fn main() {
    run_trials::<Cloud>(
        &["--workers", "2"],
        &trials![
            two_machines_of_one_network,
            four_machines_of_one_network,
            four_machines_of_two_networks,
            dhcp_from_another_host,
            several_queues,
            nics_come_and_go_under_traffic,
        ],
    );
}

/// The network of all four, unless a trial moves some to another one.
const VNI: u32 = 42;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// What is left of a cable's 1500 bytes (RFC 7348 over IPv4): QEMU tells it to the guest.
const MTU: u16 = 1450;

/// Pairs of queues of the NICs of `a` and `b`; `c` and `d` have one.
const PAIRS: u16 = 2;

/// How long an exchange may take: guests without KVM on a busy machine are slow.
const PATIENCE: Duration = Duration::from_secs(180);

/// The hosts and their machines, which go first.
struct Cloud {
    guests: Vec<Guest>,
    hosts: Hosts,
}

impl Stage for Cloud {
    fn start(options: &[&str]) -> Result<Self> {
        let hosts = Hosts::start(Family::V4, options)?;
        let mut machines = Vec::new();
        for (index, name) in NAMES.into_iter().enumerate() {
            let daemon = &host(&hosts, index).daemon;
            daemon.cli(&nic_add(index, VNI))?;
            let mut nic = Nic::new(Wire::VhostUser(daemon.socket(name)), &mac(last(index)));
            nic.mtu = Some(MTU);
            // A driver has as many pairs in use as there are processors.
            nic.queue_pairs = if index < 2 { PAIRS } else { 1 };
            let processors = nic.queue_pairs;
            machines.push(Machine {
                processors,
                ..Machine::named(name).with(nic)
            });
        }
        let guests = Guest::start_all(&Image::ready()?, &machines)
            .map_err(|e| format!("{e}\n{}", hosts.dump()))?;
        Ok(Self { guests, hosts })
    }

    fn reset(&mut self) -> Result<()> {
        let mut jobs = Vec::new();
        for (index, guest) in self.guests.iter().enumerate() {
            self.daemon_of(index, &nic_add(index, VNI))?;
            guest.quiet()?;
            jobs.push(guest.begin(&set_address(last(index)), Duration::from_secs(20))?);
        }
        for job in jobs {
            let output = job.wait()?;
            check(
                output.code == 0,
                &format!("a guest takes its addresses:\n{}", output.text),
            )?;
        }
        Ok(())
    }

    fn is_running(&mut self) -> bool {
        self.hosts.left.daemon.is_running() && self.hosts.right.daemon.is_running()
    }

    fn dump(&self) -> String {
        self.hosts.dump()
    }
}

impl Cloud {
    fn a(&self) -> &Guest {
        &self.guests[0]
    }

    fn b(&self) -> &Guest {
        &self.guests[1]
    }

    /// Says a command to the daemon of a machine's host.
    fn daemon_of(&self, index: usize, line: &str) -> Result<String> {
        host(&self.hosts, index).daemon.cli(line)
    }
}

fn host(hosts: &Hosts, index: usize) -> &Host {
    match index % 2 {
        0 => &hosts.left,
        _ => &hosts.right,
    }
}

/// The last octet of a machine's addresses.
fn last(index: usize) -> u8 {
    index as u8 + 1
}

fn nic_add(index: usize, vni: u32) -> String {
    let (name, last) = (NAMES[index], last(index));
    let mac = mac(last);
    format!(
        "nic add --replace --id {name} --mac {mac} --vni {vni} --ip 10.1.0.{last} fd01::{last} \
         --sg open"
    )
}

fn set_address(last: u8) -> String {
    format!(
        "ip addr flush dev eth0; ip neigh flush dev eth0; ip addr add 10.1.0.{last}/24 dev eth0; \
         ip addr add fd01::{last}/64 dev eth0"
    )
}

/// Waits until another machine answers, over IPv4 and IPv6.
fn reaches(from: &Guest, last: u8) -> Result<()> {
    soon(
        from,
        &format!("ping -q -c 1 -W 1 10.1.0.{last} && ping -q -c 1 -W 1 fd01::{last}"),
    )
}

/// Everything that two machines say to each other: ICMP, TCP both ways, UDP in fragments, SCTP.
fn exchange(from: &Guest, at: &Guest, last: u8) -> Result<()> {
    for server in [
        "tcp-serve 80",
        "tcp-sink 81",
        "udp-serve 53",
        "sctp-serve 9",
    ] {
        at.serve(&format!("guest {server}"))?;
    }
    reaches(from, last)?;
    for to in [format!("10.1.0.{last}"), format!("fd01::{last}")] {
        let command = format!(
            "ping -q -c 2 -i 0.2 -W 10 -s 8000 {to} && guest udp-ping {to} 53 3 6000 && \
             guest sctp-ping {to} 9 3 60 && \
             guest tcp-get {to} 80 1000000 60 && guest tcp-put {to} 81 1000000 60"
        );
        let said = from.run(&command, PATIENCE)?;
        check(
            said.code == 0,
            &format!("{to} is talked to:\n{}", said.text),
        )?;
    }
    at.quiet()
}

fn two_machines_of_one_network(cloud: &mut Cloud) -> Result<()> {
    let mtu = cloud.a().ok("cat /sys/class/net/eth0/mtu")?;
    check(
        mtu.trim() == MTU.to_string(),
        &format!("the guest was told its MTU: {mtu}"),
    )?;
    exchange(cloud.a(), cloud.b(), 2)?;
    exchange(cloud.b(), cloud.a(), 1)
}

fn four_machines_of_one_network(cloud: &mut Cloud) -> Result<()> {
    for (index, guest) in cloud.guests.iter().enumerate() {
        for other in (0..NAMES.len()).filter(|other| *other != index) {
            reaches(guest, last(other))?;
        }
    }
    // What a rule does not allow does not come from the neighbour either.
    cloud.daemon_of(1, "nic update b --sg ''")?;
    for from in [0, 3] {
        check(
            !cloud.guests[from].succeeds("ping -q -c 2 -i 0.2 -W 1 10.1.0.2")?,
            "without its group b answers nobody",
        )?;
    }
    reaches(&cloud.guests[0], last(3))
}

/// `c` and `d` in a network of their own, `d` with the very addresses of `b`.
fn four_machines_of_two_networks(cloud: &mut Cloud) -> Result<()> {
    cloud.daemon_of(2, &nic_add(2, 43))?;
    let as_b = nic_add(3, 43).replace("--ip 10.1.0.4 fd01::4", "--ip 10.1.0.2 fd01::2");
    cloud.daemon_of(3, &as_b)?;
    cloud.guests[3].ok(&set_address(2))?;
    for (from, to) in [(0, 1), (2, 3)] {
        let guest = &cloud.guests[from];
        reaches(guest, 2)?;
        let neighbour = guest.ok("ip neigh show 10.1.0.2")?;
        check(
            neighbour.contains(&mac(last(to))),
            &format!("{} reaches {}: {neighbour}", NAMES[from], NAMES[to]),
        )?;
    }
    check(
        !cloud.a().succeeds("ping -q -c 2 -i 0.2 -W 1 10.1.0.3")?,
        "c on the same host is in another network",
    )
}

fn dhcp_from_another_host(cloud: &mut Cloud) -> Result<()> {
    let (a, b) = (cloud.a(), cloud.b());
    b.ok(
        "printf 'start 10.1.0.50\\nend 10.1.0.59\\ninterface eth0\\nlease_file \
         /tmp/leases\\noption subnet 255.255.255.0\\n' \
         > /tmp/udhcpd.conf; touch /tmp/leases; udhcpd -f /tmp/udhcpd.conf >/tmp/udhcpd.log 2>&1 &",
    )?;
    a.ok("ip addr flush dev eth0")?;
    let client = "udhcpc -i eth0 -n -q -t 3 -T 1 -s /etc/udhcpc.script";
    check(
        !a.succeeds(client)?,
        "a machine that plays DHCP server is not heard",
    )?;
    cloud.daemon_of(1, "nic update b --allow-dhcp-server")?;
    soon(a, client)?;
    let addresses = a.ok("ip addr show dev eth0")?;
    check(
        addresses.contains("inet 10.1.0.5"),
        &format!("a has an address of the server's: {addresses}"),
    )
}

/// All pairs of queues, then one, then all again, while the same downloads go on.
fn several_queues(cloud: &mut Cloud) -> Result<()> {
    let (a, b) = (cloud.a(), cloud.b());
    b.serve("guest tcp-serve 80")?;
    let downloads = [
        Download::start(a, "10.1.0.2", 80)?,
        Download::start(a, "fd01::2", 80)?,
    ];
    // What is in a queue when it is turned off is another each time.
    for _ in 0..4 {
        for pairs in [1, PAIRS] {
            for guest in [a, b] {
                guest.ok(&format!("guest queues eth0 {pairs}"))?;
            }
            downloads.iter().try_for_each(Download::goes_on)?;
        }
    }
    Ok(())
}

/// Other NICs of both hosts first, then one that the traffic is for.
fn nics_come_and_go_under_traffic(cloud: &mut Cloud) -> Result<()> {
    cloud.b().serve("guest tcp-serve 80")?;
    let download = Download::start(cloud.a(), "10.1.0.2", 80)?;
    for _ in 0..3 {
        for index in [2, 3] {
            cloud.daemon_of(index, &format!("nic del {}", NAMES[index]))?;
        }
        download.goes_on()?;
        for index in [2, 3] {
            cloud.daemon_of(index, &nic_add(index, VNI))?;
        }
        download.goes_on()?;
    }
    // QEMU comes back when the sockets do.
    reaches(&cloud.guests[2], last(3))?;
    reaches(&cloud.guests[2], last(1))?;
    cloud.daemon_of(1, "nic del b")?;
    download.stops()?;
    cloud.daemon_of(1, &nic_add(1, VNI))?;
    reaches(cloud.a(), last(1))?;
    download.goes_on()
}
