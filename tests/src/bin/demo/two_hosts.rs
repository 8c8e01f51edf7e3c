//! The second act: two hosts on a cable, a daemon and a guest on each, one virtual network between
//! them. Hosts are network namespaces; the interface of each stays the kernel's, whose own service
//! answers on the same address meanwhile.

use crate::{effect, in_guest, title};
use butterfly_tests::Daemon;
use butterfly_tests::hosts::{UPLINK, cable};
use std::time::{Duration, Instant};
use testkit::image::{self, Image};
use testkit::netns::Namespace;
use testkit::process::Process;
use testkit::qemu::{Guest, Machine, Nic, Wire};
use testkit::{PATIENCE, Result, wait_for};

const MACS: [&str; 2] = ["52:54:00:12:34:01", "52:54:00:12:34:02"];
const NAMES: [&str; 2] = ["alice", "bob"];

/// Dropped in this order.
pub struct TwoHosts {
    guests: Vec<Guest>,
    daemons: Vec<Daemon>,
    hosts: Vec<Namespace>,
}

impl TwoHosts {
    /// Shows it. `go_on` is asked between two steps.
    pub fn show(go_on: impl Fn() -> Result<()>) -> Result<()> {
        let mut act = Self::start()?;
        let outcome = go_on().and_then(|()| act.play(go_on));
        outcome.map_err(|e| {
            let dumps = act.daemons.iter().map(Daemon::dump).collect::<Vec<_>>();
            format!("{e}\n{}", dumps.join("\n"))
        })?;
        act.daemons.iter_mut().try_for_each(Daemon::stop)
    }

    fn start() -> Result<Self> {
        title("Act two: two hosts, joined by a cable; the interface stays the kernel's");
        let (left, right) = cable(1500)?;
        println!("# ip link add {UPLINK} netns left type veth peer name {UPLINK} netns right");
        let hosts = vec![left, right];
        let mut daemons = Vec::new();
        for (index, host) in hosts.iter().enumerate() {
            let address = format!("192.0.2.{}", index + 1);
            println!("{}# butterflyd -i {address} …", side(index));
            let daemon = Daemon::start_on(Some(host.pid()), &["-i", &address])?;
            daemons.push(daemon);
        }
        on(&daemons, 0, "uplink list")?;
        // A group has rules of its own on each host: the left one's allows nothing in, all out.
        for (index, name) in NAMES.iter().enumerate() {
            on(&daemons, index, "sg add web")?;
            let (mac, last) = (MACS[index], index + 1);
            let line =
                format!("nic add --id {name} --mac {mac} --vni 42 --ip 10.0.0.{last} --sg web");
            on(&daemons, index, &line)?;
        }
        let begin = Instant::now();
        let machine = |index: usize| {
            let wire = Wire::VhostUser(daemons[index].socket(NAMES[index]));
            Machine::named(NAMES[index]).with(Nic::new(wire, MACS[index]))
        };
        let guests = Guest::start_all(&Image::ready()?, &[machine(0), machine(1)])?;
        let secs = begin.elapsed().as_secs_f64();
        effect(&format!(
            "alice runs on the left host, bob on the right one, after {secs:.1} s"
        ));
        Ok(Self {
            guests,
            daemons,
            hosts,
        })
    }

    fn play(&mut self, go_on: impl Fn() -> Result<()>) -> Result<()> {
        for (index, guest) in self.guests.iter().enumerate() {
            in_guest(
                guest,
                &format!(
                    "ip addr add 10.0.0.{}/24 dev eth0; ip link set eth0 mtu 1450",
                    index + 1
                ),
            )?;
        }
        self.guests[1].serve("guest tcp-serve 80")?;
        go_on()?;

        title("Nothing is allowed yet on the right host: ping is dropped there");
        self.ping(false)?;
        on(&self.daemons, 1, "drops bob")?;
        go_on()?;

        title("Two rules on the right host: ping and a download pass, in VXLAN");
        on(
            &self.daemons,
            1,
            "sg rule add web --ip-proto icmp --cidr 10.0.0.0/24",
        )?;
        on(
            &self.daemons,
            1,
            "sg rule add web --ip-proto tcp --port 80 --cidr 10.0.0.0/24",
        )?;
        self.ping(true)?;
        let download = "guest tcp-get 10.0.0.2 80 0 60 /tmp/bytes";
        println!("alice# {download} &");
        self.guests[0].ok(&format!("{download} >/dev/null 2>&1 &"))?;
        let before = wait_for("the download to begin", PATIENCE, || {
            Ok(Some(self.bytes()?).filter(|bytes| *bytes > 0))
        })?;
        go_on()?;

        title(
            "Meanwhile a service of the right host's kernel answers on the same address and \
             interface",
        );
        let tool = image::repository().join("target/guest/root/bin/guest");
        let _service = self.service(&format!("{} tcp-serve 22", tool.display()))?;
        let command = "tcp-get 192.0.2.2 22 20000000 10";
        println!("left# guest {command}");
        effect(&self.hosts[0].ok(&format!("{} {command}", tool.display()))?);
        let came = self.bytes()?;
        effect(&format!(
            "and alice's download went on: {} bytes more",
            came - before
        ));
        if came == before {
            return Err("alice's download stood still".to_owned());
        }
        on(&self.daemons, 0, "network list")?;
        on(&self.daemons, 0, &format!("uplink show {UPLINK}"))
    }

    fn service(&self, command: &str) -> Result<Process> {
        let service = self.hosts[1].start("service", command)?;
        wait_for("the service to listen", PATIENCE, || {
            Ok(service.log().contains("listening").then_some(()))
        })?;
        Ok(service)
    }

    fn ping(&self, answered: bool) -> Result<()> {
        let command = "ping -c 2 -i 0.3 -W 1 10.0.0.2";
        println!("alice# {command}");
        let output = self.guests[0].run(command, Duration::from_secs(20))?;
        effect(&output.text);
        match (output.code == 0) == answered {
            true => Ok(()),
            false => Err(format!("ping ended with code {}", output.code)),
        }
    }

    fn bytes(&self) -> Result<u64> {
        let text = self.guests[0].ok("cat /tmp/bytes 2>/dev/null || echo 0")?;
        text.trim()
            .parse()
            .map_err(|_| format!("the progress is {text:?}"))
    }
}

fn side(index: usize) -> &'static str {
    ["left", "right"][index]
}

fn on(daemons: &[Daemon], index: usize, line: &str) -> Result<()> {
    println!("{}$ butterfly {line}", side(index));
    effect(&daemons[index].cli(line)?);
    Ok(())
}
