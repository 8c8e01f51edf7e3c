//! An uplink whose interface changes, goes and returns: the engine follows the kernel, and frames
//! flow again by themselves.

use std::collections::BTreeMap;
use std::net::{IpAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use testkit::PATIENCE;

use butterfly_uplink::{Engine, Fact, Options, Ports, UplinkSettings};
use io::frame::Batch;
use io::port::Port;
use netlink::Mirror;
use sys::handed::{Handed, Items};
use testkit::netns::Namespace;
use xdp::Interfaces;

/// Ethernet, IPv4 and UDP.
const HEADERS: usize = 14 + 20 + 8;

type Held = Arc<Mutex<BTreeMap<(u32, u16), Port>>>;

/// Holds the ports that a worker would have.
struct HeldPorts(Held);

impl Ports for HeldPorts {
    fn attach(&mut self, number: u32, queue: u16, port: Port) -> Result<(), String> {
        assert!(
            self.0
                .lock()
                .unwrap()
                .insert((number, queue), port)
                .is_none()
        );
        Ok(())
    }

    fn detach(&mut self, number: u32, queue: u16) {
        assert!(self.0.lock().unwrap().remove(&(number, queue)).is_some());
    }
}

/// A host with an engine, in the namespace of the thread that makes it, and the host at the other
/// end of its wire.
struct World<'a> {
    ours: &'a Namespace,
    theirs: &'a Namespace,
    runtime: tokio::runtime::Runtime,
    mirror: Mirror,
    settings: UplinkSettings,
    engine: Engine,
    interfaces: Arc<Mutex<Interfaces>>,
    held: Held,
}

/// An engine over these ports.
fn engine(
    settings: &UplinkSettings,
    held: &Held,
    interfaces: Interfaces,
) -> (Engine, Arc<Mutex<Interfaces>>) {
    engine_by(false, settings, held, interfaces)
}

/// As [`engine`]; by packet sockets alone, if that is said.
fn engine_by(
    packet: bool,
    settings: &UplinkSettings,
    held: &Held,
    interfaces: Interfaces,
) -> (Engine, Arc<Mutex<Interfaces>>) {
    let options = Options {
        port: 4789,
        groups: None,
        frames: 128,
        packet,
        busy_poll: false,
    };
    let interfaces = Arc::new(Mutex::new(interfaces));
    let ports = Box::new(HeldPorts(held.clone()));
    let engine = Engine::new(settings.clone(), options, interfaces.clone(), ports);
    (engine, interfaces)
}

impl World<'_> {
    fn new<'a>(ours: &'a Namespace, theirs: &'a Namespace, settings: UplinkSettings) -> World<'a> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let mirror = runtime.block_on(Mirror::start()).unwrap();
        let held = Held::default();
        let (engine, interfaces) = engine(&settings, &held, Interfaces::new());
        World {
            ours,
            theirs,
            runtime,
            mirror,
            settings,
            engine,
            interfaces,
            held,
        }
    }

    /// Lets the engine follow until the facts are as requested.
    fn until(&mut self, what: &str, request: impl Fn(&[Fact]) -> bool) -> Vec<Fact> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.poll_ports();
            self.engine.look();
            let facts = self.engine.reconcile(&self.mirror.snapshot());
            if request(facts) {
                return facts.to_vec();
            }
            assert!(Instant::now() < deadline, "no {what}: {facts:#?}");
            let mut watch = self.mirror.watch();
            let next =
                async { tokio::time::timeout(Duration::from_millis(50), watch.changed()).await };
            let _ = self.runtime.block_on(next);
        }
    }

    /// Polls the ports as workers do: one that has broken is reported to the engine.
    fn poll_ports(&mut self) {
        let mut batch = Batch::new();
        for ((number, _), port) in self.held.lock().unwrap().iter_mut() {
            port.arm();
            match port.receive(&mut batch) {
                Ok(_) => port.complete(&mut batch),
                Err(error) => self.engine.broke(*number, &error.to_string()),
            }
        }
    }

    /// Whether a datagram to the VXLAN port of `to`, sent over and over, reaches a port of ours.
    fn is_reached(&mut self, to: &str, len: usize) -> bool {
        let deadline = Instant::now() + PATIENCE;
        let mut batch = Batch::new();
        while Instant::now() < deadline {
            let to: IpAddr = to.parse().unwrap();
            let send = || {
                let any: IpAddr = if to.is_ipv4() { "0.0.0.0" } else { "::" }.parse().unwrap();
                // Refused while the neighbour is looked for, or the link is down.
                let _ = UdpSocket::bind((any, 0))
                    .unwrap()
                    .send_to(&vec![8; len], (to, 4789));
            };
            self.theirs.inside(send).unwrap();
            for port in self.held.lock().unwrap().values_mut() {
                let count = port.receive(&mut batch).unwrap();
                let whole = batch.frames().iter().any(|frame| frame.len() >= len);
                port.complete(&mut batch);
                if count > 0 && whole {
                    return true;
                }
            }
            self.runtime
                .block_on(async { tokio::time::sleep(Duration::from_millis(5)).await });
        }
        false
    }

    /// Sends a datagram to the VXLAN port of `to`, which has come when this returns.
    fn is_sent(&self, to: &str, len: usize) {
        let to: IpAddr = to.parse().unwrap();
        let send = || {
            let socket = UdpSocket::bind(("0.0.0.0", 0)).unwrap();
            socket.send_to(&vec![8; len], (to, 4789)).unwrap();
        };
        self.theirs.inside(send).unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }

    /// The engine ends, as with the process that it is in, and its ports with it.
    fn end(&mut self) {
        (self.engine, self.interfaces) = engine(&self.settings, &self.held, Interfaces::new());
        self.held.lock().unwrap().clear();
    }

    /// Another engine, which goes on with what is left, and has its own sockets left.
    fn begin_anew(&mut self, points: &Left, sockets: &Left) {
        let mut interfaces = Interfaces::handed(take(points));
        interfaces.keep_points(holds(points));
        let (engine, interfaces) = engine(&self.settings, &self.held, interfaces);
        self.engine = engine.hold_sockets(holds(sockets)).with_left(take(sockets));
        self.interfaces = interfaces;
    }

    /// Its program takes the place of the one before.
    fn take_over(&self) {
        self.interfaces.lock().unwrap().take_over().unwrap();
    }

    /// The lengths of the datagrams that have come.
    fn received(&self) -> Vec<usize> {
        let mut batch = Batch::new();
        let mut lengths = Vec::new();
        for port in self.held.lock().unwrap().values_mut() {
            while port.receive(&mut batch).unwrap() > 0 {
                let frames = batch.frames().iter();
                lengths.extend(frames.map(|frame| frame.len() - HEADERS));
                port.complete(&mut batch);
            }
        }
        lengths
    }

    fn ports(&self) -> usize {
        self.held.lock().unwrap().len()
    }

    /// The program is gone; a moment later when another test is starting a process, which has our
    /// descriptors until it runs.
    fn shows_no_xdp(&self, device: &str) {
        let shown = || self.ours.ok(&format!("ip link show {device}"));
        testkit::wait_for("the program to go", PATIENCE, || {
            Ok((!shown()?.contains("xdp")).then_some(()))
        })
        .unwrap();
    }
}

/// A wire between both: `near` here with 192.0.2.1, `far` there with 192.0.2.2, each end with so
/// many queues.
fn lay_wire(ours: &Namespace, theirs: &Namespace, near: &str, queues: u32) {
    let number = format!("numrxqueues {queues} numtxqueues {queues}");
    ours.ok(&format!(
        "ip link add {near} {number} type veth peer name far {number}"
    ))
    .unwrap();
    ours.ok(&format!("ip link set far netns {}", theirs.pid()))
        .unwrap();
    theirs
        .ok("ip addr add 192.0.2.2/24 dev far && ip link set far up")
        .unwrap();
    ours.ok(&format!("ip link set {near} up")).unwrap();
}

fn joined(facts: &[Fact]) -> bool {
    facts.iter().any(|fact| fact.joined && fact.up)
}

/// Runs a story in the namespace of a host of ours that has `settings`.
fn story(addresses: &[&str], interfaces: &[&str], run: impl FnOnce(&mut World<'_>) + Send) {
    let settings = UplinkSettings {
        addresses: addresses.iter().map(|ip| ip.parse().unwrap()).collect(),
        interfaces: interfaces.iter().map(|name| (*name).to_owned()).collect(),
        by_address: interfaces.is_empty(),
        tap: None,
    };
    with_settings(settings, run);
}

fn with_settings(settings: UplinkSettings, run: impl FnOnce(&mut World<'_>) + Send) {
    let (ours, theirs) = (Namespace::new().unwrap(), Namespace::new().unwrap());
    ours.inside(|| {
        let mut world = World::new(&ours, &theirs, settings);
        run(&mut world);
        world.engine.stop();
        assert_eq!(world.ports(), 0);
    })
    .unwrap();
}

#[test]
fn a_link_goes_down_and_up_and_its_mtu_changes() {
    story(&["192.0.2.1"], &[], |world| {
        lay_wire(world.ours, world.theirs, "eth0", 1);
        assert!(world.until("nothing", <[Fact]>::is_empty).is_empty());
        world.ours.ok("ip addr add 192.0.2.1/24 dev eth0").unwrap();
        let facts = world.until("uplink", joined);
        assert_eq!(
            (facts[0].interface.as_str(), facts[0].mode.as_str()),
            ("eth0", "AF_XDP, native XDP, copy")
        );
        assert_eq!(
            (facts[0].queues, facts[0].mtu, facts[0].why.as_str()),
            (1, 1500, "")
        );
        assert!(world.is_reached("192.0.2.1", 100));

        world.ours.ok("ip link set eth0 down").unwrap();
        world.until("link that is down", |facts| !facts[0].up);
        assert!(!world.held.lock().unwrap()[&(0, 0)].is_up());
        world.ours.ok("ip link set eth0 up").unwrap();
        world.until("link that is up", joined);
        assert!(world.is_reached("192.0.2.1", 100));
        // The other end alone.
        world.theirs.ok("ip link set far down").unwrap();
        world.until("link without carrier", |facts| !facts[0].up);
        world.theirs.ok("ip link set far up").unwrap();
        world.until("link with carrier", joined);

        world.theirs.ok("ip link set far mtu 9000").unwrap();
        world.ours.ok("ip link set eth0 mtu 9000").unwrap();
        world.until("larger MTU", |facts| facts[0].mtu == 9000 && joined(facts));
        assert!(world.is_reached("192.0.2.1", 8900));
        world.ours.ok("ip link set eth0 mtu 1500").unwrap();
        world.until("smaller MTU", |facts| facts[0].mtu == 1500);
        assert_eq!(world.held.lock().unwrap()[&(0, 0)].mtu(), Some(1500));
        assert!(world.is_reached("192.0.2.1", 100));
    });
}

/// What is held of an engine's sockets, and of the points that its program runs at.
type Left = Arc<Mutex<BTreeMap<String, Handed>>>;

fn holds(left: &Left) -> impl Fn(&str, Option<Handed>) + Send + 'static {
    let left = left.clone();
    move |name, item| {
        let mut left = left.lock().unwrap();
        match item {
            Some(item) => drop(left.insert(name.to_owned(), item)),
            None => drop(left.remove(name)),
        }
    }
}

fn take(left: &Left) -> Items {
    std::mem::take(&mut *left.lock().unwrap())
}

#[test]
fn an_engine_that_has_ended_of_itself_leaves_its_sockets_to_the_next() {
    for queues in [1, 2] {
        story(&["192.0.2.1"], &[], |world| {
            let (points, sockets) = (Left::default(), Left::default());
            world.begin_anew(&points, &sockets);
            lay_wire(world.ours, world.theirs, "eth0", queues);
            world.ours.ok("ip addr add 192.0.2.1/24 dev eth0").unwrap();
            world.until("uplink", joined);
            assert_eq!(sockets.lock().unwrap().len(), queues as usize);
            assert!(world.is_reached("192.0.2.1", 100));
            // It ends. What is sent from now on waits, and each datagram comes once.
            world.end();
            let sent: Vec<usize> = (0..50).map(|number| 200 + number).collect();
            let send = || {
                let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
                for len in &sent {
                    socket.send_to(&vec![8; *len], "192.0.2.1:4789").unwrap();
                }
            };
            world.theirs.inside(send).unwrap();
            assert!(world.ours.ok("ip link show eth0").unwrap().contains("xdp"));
            world.begin_anew(&points, &sockets);
            world.until("uplink", joined);
            world.take_over();
            let mut received = world.received();
            // Of those before some have waited as well.
            received.retain(|len| *len >= sent[0]);
            assert_eq!(received, sent);
            assert!(world.is_reached("192.0.2.1", 100), "by the new program");
            world.engine.stop();
            world.shows_no_xdp("eth0");
            assert!(sockets.lock().unwrap().is_empty() && points.lock().unwrap().is_empty());
        });
    }
}

#[test]
fn what_is_left_and_of_no_use_is_let_go_of() {
    story(&["192.0.2.1"], &[], |world| {
        let (points, sockets) = (Left::default(), Left::default());
        world.begin_anew(&points, &sockets);
        lay_wire(world.ours, world.theirs, "eth0", 1);
        world.ours.ok("ip addr add 192.0.2.1/24 dev eth0").unwrap();
        world.until("uplink", joined);
        world.end();
        // Cut in another way, so that no chunk is where it is said to be.
        for socket in sockets.lock().unwrap().values_mut() {
            socket.note[0] ^= 0xff;
        }
        world.begin_anew(&points, &sockets);
        world.until("uplink that is joined anew", joined);
        world.take_over();
        assert!(world.is_reached("192.0.2.1", 100));
        // Nobody wants the interface any more.
        world.end();
        world.ours.ok("ip addr del 192.0.2.1/24 dev eth0").unwrap();
        world.begin_anew(&points, &sockets);
        assert!(world.until("nothing", <[Fact]>::is_empty).is_empty());
        world.take_over();
        world.shows_no_xdp("eth0");
        world.engine.forget_left();
        assert!(sockets.lock().unwrap().is_empty());
    });
}

/// A packet socket for one family is behind what is at tc ingress of the interface, and one that is
/// for all, while an address is in a VLAN or of the other family, before it.
#[test]
fn by_packet_sockets_if_that_is_asked_for() {
    story(&[], &["near"], |world| {
        (world.engine, _) = engine_by(true, &world.settings, &world.held, Interfaces::new());
        lay_wire(world.ours, world.theirs, "near", 1);
        world.ours.ok("ip addr add 192.0.2.1/24 dev near").unwrap();
        let all = |facts: &[Fact], count| joined(facts) && facts[0].addresses.len() == count;
        let facts = world.until("address", |facts| all(facts, 1));
        assert_eq!(
            (facts[0].mode.as_str(), facts[0].why.as_str()),
            ("packet socket", "--uplink-mode packet")
        );
        world.shows_no_xdp("near");
        assert!(world.is_reached("192.0.2.1", 100));
        let ifindex = world.ours.ifindex("near").unwrap();
        let drop = xdp::Program::load("drop", xdp::objects::tc::DROP, |_| Ok(())).unwrap();
        let attached = xdp::attach(&drop, ifindex, Some(xdp::Mode::Tc)).unwrap();
        world.received();
        world.is_sent("192.0.2.1", 300);
        assert!(!world.received().contains(&300), "it is dropped before");
        world
            .ours
            .ok("ip addr add fd00::1/64 dev near nodad")
            .unwrap();
        world.until("second address", |facts| all(facts, 2));
        world.received();
        world.is_sent("192.0.2.1", 300);
        assert!(world.received().contains(&300), "it is seen before");
        world.ours.ok("ip addr del fd00::1/64 dev near").unwrap();
        world.until("one address", |facts| all(facts, 1));
        world.received();
        world.is_sent("192.0.2.1", 300);
        assert!(!world.received().contains(&300), "it is dropped again");
        std::mem::drop(attached);
        assert!(world.is_reached("192.0.2.1", 100));
    });
}

#[test]
fn an_interface_is_removed_and_returns() {
    story(&[], &["eth0"], |world| {
        let facts = world.until("word of it", |facts| facts.len() == 1);
        assert_eq!(
            (facts[0].joined, facts[0].why.as_str()),
            (false, "there is no interface 'eth0'")
        );
        for _ in 0..3 {
            lay_wire(world.ours, world.theirs, "eth0", 2);
            world.ours.ok("ip addr add 192.0.2.1/24 dev eth0").unwrap();
            let facts = world.until("uplink", joined);
            assert_eq!((facts[0].number, facts[0].queues, world.ports()), (0, 2, 2));
            assert!(world.is_reached("192.0.2.1", 100));
            world.ours.ok("ip link del eth0").unwrap();
            // Its ports may say so before the kernel's tables do.
            world.until("end of it", |facts| {
                !facts[0].joined && facts[0].ifindex == 0
            });
            assert_eq!(world.ports(), 0);
        }
    });
}

#[test]
fn an_address_goes_to_another_interface() {
    story(&["192.0.2.1"], &[], |world| {
        lay_wire(world.ours, world.theirs, "eth0", 1);
        world.ours.ok("ip addr add 192.0.2.1/24 dev eth0").unwrap();
        world.until("uplink", joined);
        world.ours.ok("ip addr del 192.0.2.1/24 dev eth0").unwrap();
        world.until("end of it", <[Fact]>::is_empty);
        world.shows_no_xdp("eth0");
        assert_eq!(world.ports(), 0);

        world.theirs.ok("ip link del far").unwrap();
        lay_wire(world.ours, world.theirs, "eth1", 1);
        world.ours.ok("ip addr add 192.0.2.1/24 dev eth1").unwrap();
        let facts = world.until("uplink", joined);
        assert_eq!(
            (facts[0].interface.as_str(), facts[0].addresses.len()),
            ("eth1", 1)
        );
        assert!(world.is_reached("192.0.2.1", 100));
        // One more address of another family.
        world
            .ours
            .ok("ip addr add 2001:db8::1/64 dev eth1 nodad")
            .unwrap();
        assert_eq!(
            world.until("the same", joined)[0].addresses.len(),
            1,
            "it was not asked for"
        );
        world.engine.stop();
        world.shows_no_xdp("eth1");
    });
}

#[test]
fn a_tap_device_until_an_interface_has_the_address() {
    let settings = UplinkSettings {
        addresses: vec!["192.0.2.1".parse().unwrap()],
        interfaces: Vec::new(),
        by_address: true,
        tap: Some("butterfly0".to_owned()),
    };
    with_settings(settings, |world| {
        let facts = world.until("TAP device", |facts| joined(facts) && facts[0].ifindex != 0);
        let fact = &facts[0];
        assert_eq!(
            (
                fact.interface.as_str(),
                fact.mode.as_str(),
                fact.why.as_str()
            ),
            (
                "butterfly0",
                "TAP",
                "no interface is named, and none has 192.0.2.1"
            )
        );
        assert_eq!((facts.len(), world.ports(), fact.tap), (1, 1, true));
        // Joined to a network as a virtual machine's would be; who asks for our address there is
        // answered.
        let join = "ip link set butterfly0 master br0";
        lay_wire(world.ours, world.theirs, "eth0", 1);
        world
            .ours
            .ok(&format!(
                "ip link add br0 type bridge && ip link set br0 up && \
                 ip link set eth0 master br0 && {join}"
            ))
            .unwrap();
        assert!(world.is_reached("192.0.2.1", 1400));
        // Its MTU is followed, and so is its state; when it is removed there is another.
        world.ours.ok("ip link set butterfly0 mtu 1300").unwrap();
        world.until("another MTU", |facts| facts[0].mtu == 1300);
        world.ours.ok("ip link set butterfly0 down").unwrap();
        world.until("link down", |facts| facts[0].joined && !facts[0].up);
        let first = world.ours.ifindex("butterfly0").unwrap();
        world.ours.ok("ip link del butterfly0").unwrap();
        world.until("the next", |facts| {
            joined(facts) && ![0, first].contains(&facts[0].ifindex)
        });
        world.ours.ok(join).unwrap();
        assert!(world.is_reached("192.0.2.1", 1400));

        world.ours.ok("ip addr add 192.0.2.1/24 dev br0").unwrap();
        let facts = world.until("interface", |facts| {
            joined(facts) && facts[0].interface == "br0"
        });
        assert_eq!((facts.len(), facts[0].tap), (1, false));
        testkit::wait_for("the TAP device to go", PATIENCE, || {
            Ok((!world.ours.succeeds("ip link show butterfly0")?).then_some(()))
        })
        .unwrap();
        // Who knew it there would find out by itself, some seconds later.
        world.theirs.ok("ip neigh flush dev far").unwrap();
        assert!(world.is_reached("192.0.2.1", 1400));
        // It has had one: that is waited for.
        world.ours.ok("ip addr del 192.0.2.1/24 dev br0").unwrap();
        world.until("end of it", <[Fact]>::is_empty);
        assert!(!world.ours.succeeds("ip link show butterfly0").unwrap());
    });
}

#[test]
fn another_program_is_in_the_way_and_then_is_not() {
    story(&["192.0.2.1", "2001:db8::1"], &["eth0"], |world| {
        lay_wire(world.ours, world.theirs, "eth0", 1);
        world
            .ours
            .ok("ip addr add 192.0.2.1/24 dev eth0 && ip addr add 2001:db8::1/64 dev eth0 nodad")
            .unwrap();
        world
            .theirs
            .ok("ip addr add 2001:db8::2/64 dev far nodad")
            .unwrap();
        let theirs = xdp::Program::load("pass", xdp::objects::PASS, |_| Ok(())).unwrap();
        let attached = xdp::attach(&theirs, world.ours.ifindex("eth0").unwrap(), None).unwrap();
        // Its second address may be known a moment after it is joined by its first.
        let facts = world.until("uplink with both addresses", |facts| {
            joined(facts) && facts[0].addresses.len() == 2
        });
        assert_eq!(facts[0].mode, "packet socket");
        assert!(facts[0].why.contains("pass"), "{}", facts[0].why);
        assert!(world.is_reached("192.0.2.1", 100) && world.is_reached("2001:db8::1", 100));
        drop(attached);
        let facts = world.until("XDP", |facts| facts[0].mode.starts_with("AF_XDP"));
        assert_eq!(facts[0].addresses.len(), 2);
        assert!(world.is_reached("192.0.2.1", 100) && world.is_reached("2001:db8::1", 100));
    });
}

#[test]
fn queues_that_are_added_get_their_sockets() {
    story(&["192.0.2.1"], &[], |world| {
        lay_wire(world.ours, world.theirs, "eth0", 2);
        for namespace in [world.ours, world.theirs] {
            let device = if std::ptr::eq(namespace, world.ours) {
                "eth0"
            } else {
                "far"
            };
            namespace
                .ok(&format!("ethtool -L {device} rx 1 tx 1"))
                .unwrap();
        }
        world.ours.ok("ip addr add 192.0.2.1/24 dev eth0").unwrap();
        assert_eq!(world.until("uplink", joined)[0].queues, 1);
        world.ours.ok("ethtool -L eth0 rx 2 tx 1").unwrap();
        world.theirs.ok("ethtool -L far rx 1 tx 2").unwrap();
        let facts = world.until("second queue", |facts| {
            joined(facts) && facts[0].queues == 2
        });
        assert_eq!((facts.len(), world.ports()), (1, 2));
        assert!(world.is_reached("192.0.2.1", 100));
    });
}
