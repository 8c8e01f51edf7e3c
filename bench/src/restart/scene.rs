//! What is measured: a switch with its guests, their streams and connections, and what happens to
//! it.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;
use testkit::netns::Namespace;

use super::connections::Connections;
use super::end::{End, Rings};
use super::stream::Stream;
use super::traffic::{Progress, Seen, Traffic};
use crate::passes::Cores;
use crate::peers::lasting::Lasting;
use crate::peers::{PeerError, Process, butterfly, guest_ip, guest_mac, ovs};
use crate::{RULES, TRAFFIC_PORT, interrupt, regime};

/// Connections of containers: two descriptors each.
const SOCKETS: usize = 256;

/// How long nothing happens.
const QUIET: Duration = Duration::from_millis(100);

/// The interface of a host of the overlay.
const UPLINK: &str = "uplink0";

/// What happens to a switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// Nothing: what the machine itself, and the driver, make of a stream.
    Quiet,
    /// `kill -9`, and the next process as soon as it has ended.
    Kill,
    /// `butterfly upgrade`.
    Upgrade,
    /// SIGTERM, and the next process as soon as it has ended.
    Restart,
}

impl Event {
    /// In this order.
    pub const ALL: [Event; 4] = [Event::Quiet, Event::Kill, Event::Upgrade, Event::Restart];

    /// In tables and ratios.
    pub fn name(self) -> &'static str {
        match self {
            Event::Quiet => "quiet",
            Event::Kill => "kill",
            Event::Upgrade => "upgrade",
            Event::Restart => "restart",
        }
    }
}

/// Which scene.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// This switch and guests by vhost-user: pairs, of which one sends to the other.
    Guests { pairs: usize, packed: bool },
    /// This switch and two containers with a TAP NIC each.
    Tap,
    /// This switch as one of two hosts of an overlay, a guest on each, a stream in each direction.
    Overlay,
    /// OVS-DPDK and one pair of guests.
    Ovs,
}

impl Kind {
    /// All of them, ours first.
    pub const ALL: [Kind; 7] = [
        Kind::Guests {
            pairs: 1,
            packed: false,
        },
        Kind::Guests {
            pairs: 1,
            packed: true,
        },
        Kind::Guests {
            pairs: 32,
            packed: false,
        },
        Kind::Guests {
            pairs: 32,
            packed: true,
        },
        Kind::Tap,
        Kind::Overlay,
        Kind::Ovs,
    ];

    /// In tables and ratios. What goes to one guest has no number.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Guests { pairs, packed } => match (pairs, packed) {
                (1, false) => "split",
                (1, true) => "packed",
                (_, false) => "split64",
                (_, true) => "packed64",
            },
            Kind::Tap => "tap",
            Kind::Overlay => "overlay",
            Kind::Ovs => "ovs",
        }
    }

    /// OVS has no upgrade but a restart.
    pub fn takes(self, event: Event) -> bool {
        self != Kind::Ovs || event != Event::Upgrade
    }
}

/// Who is ended and started.
enum Switch {
    Ours(Lasting),
    Ovs(ovs::Lasting),
}

impl Switch {
    fn undergo(&mut self, event: Event) -> Result<(), PeerError> {
        let signal = match event {
            Event::Quiet => return interrupt::sleep(QUIET),
            Event::Kill => Signal::KILL,
            Event::Restart => Signal::TERM,
            Event::Upgrade => match self {
                Switch::Ours(daemon) => return daemon.upgraded(),
                Switch::Ovs(_) => return Err(PeerError("OVS has no upgrade".to_owned())),
            },
        };
        match self {
            Switch::Ours(daemon) => daemon.ended_and_started(signal),
            Switch::Ovs(switch) => switch.ended_and_started(signal),
        }
    }
}

/// What an event has cost.
pub struct Cost {
    /// What the streams saw.
    pub seen: Seen,
    /// Connections that are no more, of so many.
    pub lost: usize,
    pub asked: usize,
    /// The hypervisor took processors away meanwhile: nothing of what it had of them ran.
    pub disturbed: bool,
}

/// A switch with all that is its.
pub struct Scene {
    // In the order in which they go.
    traffic: Traffic,
    switch: Switch,
    connections: Connections,
    driver: usize,
    _others: Others,
}

/// What stays as it is while the switch does not.
#[derive(Default)]
struct Others {
    /// The other host of the overlay.
    _daemon: Option<Process>,
    _hosts: Vec<Namespace>,
    _dirs: Vec<TempDir>,
}

/// Hundredths of a second that the hypervisor has had this machine's processors wait for one of its
/// own, as /proc/stat counts them: `steal` of proc(5).
fn stolen() -> Result<u64, PeerError> {
    let path = "/proc/stat";
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|e| PeerError(format!("{path}: {e}")))?;
    let all = text.lines().next().unwrap_or_default();
    let steal = all.split_ascii_whitespace().nth(8);
    let steal = steal.and_then(|field| field.parse().ok());
    steal.ok_or_else(|| PeerError(format!("{path} begins with '{all}'")))
}

impl Scene {
    /// Starts it, with so many connections between guests, and waits until frames pass.
    pub fn start(kind: Kind, cores: Cores, connections: usize) -> Result<Scene, PeerError> {
        let mut scene = match kind {
            Kind::Guests { pairs, packed } => Scene::guests(pairs, packed, cores, connections),
            Kind::Tap => Scene::tap(cores),
            Kind::Overlay => Scene::overlay(cores, connections),
            Kind::Ovs => Scene::ovs(cores, connections),
        }?;
        scene.undergo(Event::Quiet)?;
        Ok(scene)
    }

    /// Has it happen while frames pass.
    pub fn undergo(&mut self, event: Event) -> Result<Cost, PeerError> {
        let stolen = stolen()?;
        let (progress, driver) = (Progress::default(), self.driver);
        let (traffic, switch) = (&mut self.traffic, &mut self.switch);
        // What is started here is to have the processors that it would have: only the driver is
        // bound to one.
        let seen = std::thread::scope(|scope| {
            let watch = scope.spawn(|| {
                regime::pin(driver);
                traffic.watch(&progress)
            });
            while !progress.ready.load(Ordering::Acquire) && !watch.is_finished() {
                std::thread::sleep(Duration::from_millis(1));
            }
            let happened = match watch.is_finished() {
                true => Ok(()),
                false => switch.undergo(event),
            };
            progress.over.store(true, Ordering::Release);
            let seen = watch.join();
            let seen = seen.unwrap_or_else(|_| Err(PeerError("the driver panics".to_owned())));
            happened.and(seen)
        })?;
        let disturbed = self::stolen()? != stolen;
        let lost = self.connections.lost(&mut self.traffic.ends)?;
        let asked = self.connections.asked();
        Ok(Cost {
            seen,
            lost,
            asked,
            disturbed,
        })
    }

    fn guests(
        pairs: usize,
        packed: bool,
        cores: Cores,
        connections: usize,
    ) -> Result<Scene, PeerError> {
        let daemon = Lasting::start(None, cores.switch, &[])?;
        let count = 2 * pairs;
        butterfly::add_nics(daemon.dir(), 0..count, |_| String::new())?;
        butterfly::add_rules(daemon.dir(), RULES)?;
        let guest = |nic| {
            let rings = Rings::connected(packed, &butterfly::socket(daemon.dir(), nic))?;
            Ok(End::Rings(Box::new(rings)))
        };
        let mut ends: Vec<End> = (0..count).map(guest).collect::<Result<_, PeerError>>()?;
        let connections = Connections::open(connections, &mut ends)?;
        let streams = (0..pairs).map(|pair| Stream::new(2 * pair, 2 * pair + 1));
        Ok(Scene {
            traffic: Traffic::new(ends, streams.collect::<Result<_, _>>()?),
            switch: Switch::Ours(daemon),
            connections,
            driver: cores.driver,
            _others: Others::default(),
        })
    }

    fn tap(cores: Cores) -> Result<Scene, PeerError> {
        let host = Namespace::new()?;
        let daemon = Lasting::start(Some(host.pid()), cores.switch, &[])?;
        let kind = |nic| format!(" --type tap --path tap{nic}");
        butterfly::add_nics(daemon.dir(), 0..2, kind)?;
        butterfly::add_rules(daemon.dir(), RULES)?;
        let container = |nic: usize| -> Result<Namespace, PeerError> {
            let namespace = Namespace::new()?;
            let address = format!("{}/24", guest_ip(nic));
            let mac = guest_mac(nic)?.to_string();
            namespace.adopt_from(&host, &format!("tap{nic}"), &mac, &[&address])?;
            Ok(namespace)
        };
        let [client, server] = [container(0)?, container(1)?];
        let to = (guest_ip(1), TRAFFIC_PORT);
        let sender =
            client.inside(|| socket(0, 0).and_then(|own| own.connect(to).map(|()| own)))?;
        let receiver = server.inside(|| socket(1, TRAFFIC_PORT))?;
        let ends = [sender, receiver].map(|socket| {
            let socket = socket.map_err(|error| PeerError(format!("a socket: {error}")))?;
            Ok(End::Socket(socket))
        });
        let ends: Vec<End> = ends.into_iter().collect::<Result<_, PeerError>>()?;
        Ok(Scene {
            traffic: Traffic::new(ends, vec![Stream::new(0, 1)?]),
            switch: Switch::Ours(daemon),
            connections: Connections::between(client, server, SOCKETS)?,
            driver: cores.driver,
            _others: Others {
                _hosts: vec![host],
                ..Others::default()
            },
        })
    }

    /// The host that is ended has guest 0.
    fn overlay(cores: Cores, connections: usize) -> Result<Scene, PeerError> {
        let hosts = [Namespace::new()?, Namespace::new()?];
        lay(&hosts)?;
        let own = ["-i", ADDRESSES[0], "--uplink", UPLINK];
        let daemon = Lasting::start(Some(hosts[0].pid()), cores.switch, &own)?;
        let dir = folder()?;
        let other = ["-i", ADDRESSES[1], "--uplink", UPLINK];
        // Its worker is not to be in the way of what is measured, which has a core of its own.
        let core = cores.driver.to_string();
        let (holder, core) = (Some(hosts[1].pid()), Some(core.as_str()));
        let far = butterfly::daemon_in(holder, dir.path(), core, &other)?;
        let mut ends = Vec::new();
        for (guest, dir) in [daemon.dir(), dir.path()].into_iter().enumerate() {
            butterfly::add_nics(dir, guest..guest + 1, |_| String::new())?;
            butterfly::add_rules(dir, RULES)?;
            let there = 1 - guest;
            let (mac, ip, host) = (guest_mac(there)?, guest_ip(there), ADDRESSES[there]);
            let binding = format!("binding add --vni 1 --mac {mac} --ip {ip} --host {host}");
            butterfly::butterfly(dir, &binding)?;
            let rings = Rings::connected(false, &butterfly::socket(dir, guest))?;
            ends.push(End::Rings(Box::new(rings)));
        }
        let mut traffic = Traffic::new(ends, vec![Stream::new(0, 1)?, Stream::new(1, 0)?]);
        // The uplinks are joined by now.
        traffic.meet()?;
        let connections = Connections::open(connections, &mut traffic.ends)?;
        Ok(Scene {
            traffic,
            switch: Switch::Ours(daemon),
            connections,
            driver: cores.driver,
            _others: Others {
                _daemon: Some(far),
                _hosts: hosts.into(),
                _dirs: vec![dir],
            },
        })
    }

    fn ovs(cores: Cores, connections: usize) -> Result<Scene, PeerError> {
        let dir = folder()?;
        // It connects as soon as it has ports.
        let guest = |socket: &Path| Ok(End::Rings(Box::new(Rings::listening(socket)?)));
        let sockets = ovs::Lasting::sockets(dir.path());
        let ends = sockets.iter().map(|socket| guest(socket));
        let ends: Vec<End> = ends.collect::<Result<_, PeerError>>()?;
        let switch = ovs::Lasting::start(dir.path(), cores.switch)?;
        let mut traffic = Traffic::new(ends, vec![Stream::new(0, 1)?]);
        traffic.meet()?;
        let connections = Connections::open(connections, &mut traffic.ends)?;
        Ok(Scene {
            traffic,
            switch: Switch::Ovs(switch),
            connections,
            driver: cores.driver,
            _others: Others {
                _dirs: vec![dir],
                ..Others::default()
            },
        })
    }
}

/// The hosts' endpoints.
const ADDRESSES: [&str; 2] = ["192.0.2.1", "192.0.2.2"];

/// A veth between two hosts, which know each other.
fn lay(hosts: &[Namespace; 2]) -> Result<(), PeerError> {
    const MACS: [&str; 2] = ["02:00:00:00:ff:01", "02:00:00:00:ff:02"];
    for host in hosts {
        // Nobody but the guests is to say anything.
        host.ok(
            "sysctl -q -w net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1",
        )?;
    }
    hosts[0].ok(&format!(
        "ip link add {UPLINK} mtu 1600 address {} type veth peer name {UPLINK} mtu 1600 address {} \
         netns {}",
        MACS[0],
        MACS[1],
        hosts[1].pid()
    ))?;
    for (host, here) in hosts.iter().zip(0..) {
        let (own, there, mac) = (ADDRESSES[here], ADDRESSES[1 - here], MACS[1 - here]);
        host.ok(&format!(
            "ip link set {UPLINK} up && ip addr add {own}/24 dev {UPLINK} && \
             ip neigh add {there} lladdr {mac} dev {UPLINK} nud permanent"
        ))?;
    }
    Ok(())
}

/// Of a container, that nobody waits for.
fn socket(guest: usize, port: u16) -> std::io::Result<std::net::UdpSocket> {
    let socket = std::net::UdpSocket::bind((guest_ip(guest), port))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn folder() -> Result<TempDir, PeerError> {
    tempfile::tempdir().map_err(|e| PeerError(format!("temporary directory: {e}")))
}
