//! The balancer on interfaces of the running kernel: native and generic mode, real connections,
//! servers followed by netlink.
//!
//! A client, the balancer and two servers, each a namespace; veth between the balancer and each of
//! the others. The servers have the VIP on their loopbacks and answer the client themselves, by way
//! of the balancer's kernel.

use std::collections::BTreeSet;
use std::io::Read;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU16;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use butterfly_balancer::{
    Balancer, Follower, Interface, Options, Protocol, Reason, Server, Service, ServiceKey, Services,
};
use testkit::netns::Namespace;
use testkit::{PATIENCE, wait_for};
use wire::Mac;
use xdp::{Attachment, Mode, Program};

const VIP: &str = "203.0.113.80";

struct Net {
    balancer: Namespace,
    client: Namespace,
    servers: [Namespace; 2],
    /// What makes the far ends of the pairs take frames from XDP.
    taps: Vec<(Program, Attachment)>,
}

/// 10.0.N.1 is the balancer's end and 10.0.N.2 the other's: the client's is N = 0, servers' are 1
/// and 2.
fn network() -> Net {
    let space = || Namespace::new().expect("a namespace");
    let mut net = Net {
        balancer: space(),
        client: space(),
        servers: [space(), space()],
        taps: Vec::new(),
    };
    net.balancer
        .ok("sysctl -qw net.ipv4.ip_forward=1")
        .expect("sysctl");
    let others = [&net.client, &net.servers[0], &net.servers[1]];
    for (n, other) in others.into_iter().enumerate() {
        let pid = other.pid();
        net.balancer
            .ok(&format!(
                "ip link add to{n} type veth peer name eth0 netns {pid} && \
                 ip addr add 10.0.{n}.1/24 dev to{n} && ip link set to{n} up"
            ))
            .expect("a veth pair");
        // Checksums left to a NIC that is none would stay undone.
        other
            .ok(&format!(
                "ip addr add 10.0.{n}.2/24 dev eth0 && ip link set eth0 up && \
                 ip route add default via 10.0.{n}.1 && \
                 ethtool -K eth0 tx off >/dev/null"
            ))
            .expect("the other end");
        net.taps.push(other.inside(take_frames).expect("enter"));
    }
    net.balancer
        .ok(&format!("ip route add blackhole {VIP}"))
        .expect("a route");
    for server in &net.servers {
        server
            .ok(&format!(
                "ip addr add {VIP}/32 dev lo && sysctl -qw net.ipv4.conf.eth0.arp_notify=1"
            ))
            .expect("the VIP");
    }
    net
}

/// A veth takes frames that XDP sends on the other end when it has a program itself.
fn take_frames() -> (Program, Attachment) {
    let program = Program::load("pass", xdp::objects::PASS, |_| Ok(())).expect("the program loads");
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        None,
    );
    let ifindex = rustix::net::netdevice::name_to_index(socket.expect("a socket"), "eth0")
        .expect("it is there");
    let attachment =
        xdp::attach(&program, ifindex, Some(Mode::Native)).expect("veth takes native mode");
    (program, attachment)
}

impl Net {
    /// Each server says its number to everybody who connects.
    fn serve(&self) {
        for (n, server) in (1u8..).zip(&self.servers) {
            let listener = server
                .inside(|| TcpListener::bind((VIP, 80)).expect("the VIP is there"))
                .expect("enter");
            std::thread::spawn(move || {
                for connection in listener.incoming() {
                    let _ = connection.and_then(|mut connection| {
                        std::io::Write::write_all(&mut connection, &[n])
                    });
                }
            });
        }
    }

    /// Connects so often; gives who answered.
    fn connect(&self, times: usize) -> Result<Vec<u8>, std::io::Error> {
        let vip: SocketAddr = format!("{VIP}:80").parse().expect("an address");
        let one = || {
            let mut connection = TcpStream::connect_timeout(&vip, Duration::from_secs(3))?;
            connection.set_read_timeout(Some(Duration::from_secs(3)))?;
            let mut number = [0];
            connection.read_exact(&mut number)?;
            Ok(number[0])
        };
        self.client
            .inside(|| (0..times).map(|_| one()).collect())
            .expect("enter")
    }

    /// Another machine takes the address over, and says so.
    fn move_first_server(&self) {
        self.servers[0]
            .ok("ip link set eth0 down address 02:00:00:00:00:77 && \
                 ip link set eth0 up && ip route add default via 10.0.1.1")
            .expect("ip");
    }

    fn program_on_client_side(&self) -> bool {
        self.balancer
            .ok("ip link show to0")
            .expect("ip")
            .contains("xdp")
    }

    /// A program that another test begins to run has all descriptors for a moment, until it is
    /// executed.
    fn wait_until_given_back(&self) {
        wait_for("the interface is given back", PATIENCE, || {
            Ok((!self.program_on_client_side()).then_some(()))
        })
        .expect("without a program");
    }
}

fn services() -> Services {
    let key = ServiceKey::new(
        VIP.parse().expect("an address"),
        Protocol::Tcp,
        NonZeroU16::new(80),
    )
    .expect("a host");
    let servers = [1u8, 2].map(|n| Server::new(IpAddr::from([10, 0, n, 2])).expect("a host"));
    [servers.into_iter().fold(Service::new(key), Service::with)]
        .into_iter()
        .collect()
}

/// Runs a story in the balancer's namespace, with a balancer on the client's side that knows the
/// two servers.
fn story(net: &Net, mode: Mode, then: impl AsyncFnOnce(&Arc<Mutex<Balancer>>, &Follower) + Send) {
    let work = || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        runtime.expect("a runtime").block_on(async {
            let follower = Follower::start().await.expect("netlink");
            let balancer = Balancer::new(&Options::default()).expect("the program loads");
            let balancer = Arc::new(Mutex::new(balancer));
            let got = follower.attach(
                &mut balancer.lock().expect("nobody panicked"),
                "to0",
                Some(mode),
            );
            assert_eq!(got.expect("veth takes both modes"), mode);
            follower
                .learn(&balancer, &services())
                .await
                .expect("maps can be written");
            balancer
                .lock()
                .expect("nobody panicked")
                .apply(services())
                .expect("there is room");
            then(&balancer, &follower).await;
        });
    };
    net.balancer.inside(work).expect("enter");
}

/// Follows the kernel until this is seen.
async fn follow_until(
    balancer: &Mutex<Balancer>,
    follower: &Follower,
    what: &str,
    seen: &dyn Fn() -> bool,
) {
    let wait = async {
        while !seen() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let follow = async {
        follower
            .run(balancer)
            .await
            .expect("the kernel can be followed")
    };
    tokio::select! {
        () = follow => unreachable!("it runs until dropped"),
        done = tokio::time::timeout(Duration::from_secs(20), wait) => {
            let ways = || balancer.lock().expect("nobody panicked").hops().clone();
            done.unwrap_or_else(|_| panic!("{what} was not seen: {:?}", ways()));
        }
    }
}

/// Whether the first server is known by its [other MAC](Net::move_first_server).
fn has_moved(balancer: &Mutex<Balancer>) -> bool {
    let balancer = balancer.lock().expect("nobody panicked");
    let way = balancer.hops().get(&IpAddr::from([10, 0, 1, 2]));
    way.is_some_and(|way| way.mac.0[5] == 0x77)
}

fn both_modes_carry_connections(mode: Mode) {
    let net = network();
    net.serve();
    story(&net, mode, async |balancer, _| {
        assert!(net.program_on_client_side());
        let answered = net.connect(40).expect("connections");
        assert!(
            answered.contains(&1) && answered.contains(&2),
            "{answered:?}"
        );
        let counters = balancer
            .lock()
            .expect("nobody panicked")
            .counters()
            .expect("maps can be read");
        for n in [1u8, 2] {
            let its = answered.iter().filter(|server| **server == n).count() as u64;
            let key = services().iter().next().expect("one").key();
            assert_eq!(
                counters.servers[&(key, IpAddr::from([10, 0, n, 2]))].flows,
                its
            );
        }
        // The kernel's own traffic on the same interface.
        net.client
            .ok("ping -c 1 -W 3 10.0.0.1")
            .expect("the kernel answers");
        net.client
            .ok(&format!("ping -c 1 -W 3 {VIP}"))
            .expect("the balancer answers");
        let mut balancer = balancer.lock().expect("nobody panicked");
        assert_eq!(
            balancer
                .counters()
                .expect("maps can be read")
                .reason(Reason::Echo),
            1
        );
        let ifindex = balancer.interfaces().next().expect("one").ifindex;
        balancer.detach(ifindex).expect("maps can be written");
        net.wait_until_given_back();
    });
}

#[test]
fn native_mode_carries_connections() {
    both_modes_carry_connections(Mode::Native);
}

#[test]
fn generic_mode_carries_connections() {
    both_modes_carry_connections(Mode::Generic);
}

#[test]
fn dropped_the_balancer_gives_its_interface_back() {
    let net = network();
    story(&net, Mode::Native, async |_, _| {
        assert!(net.program_on_client_side())
    });
    net.wait_until_given_back();
}

#[test]
fn a_server_that_moves_and_a_gateway_that_changes_are_followed() {
    let net = network();
    net.serve();
    story(&net, Mode::Native, async |balancer, follower| {
        let ways = || balancer.lock().expect("nobody panicked").hops().clone();
        let until = async |what: &str, seen: &dyn Fn() -> bool| {
            follow_until(balancer, follower, what, seen).await;
        };
        net.move_first_server();
        until("the new MAC", &|| has_moved(balancer)).await;
        let answered = net.connect(40).expect("connections");
        assert!(answered.contains(&1), "{answered:?}");
        // A server behind a gateway, by one link, then by the other; layer 2 cannot go there.
        let far: IpAddr = IpAddr::from([198, 51, 100, 7]);
        let key = services().iter().next().expect("one").key();
        balancer
            .lock()
            .expect("nobody panicked")
            .add_server(key, Server::new(far).expect("a host"))
            .expect("there is room");
        for n in [1, 2] {
            net.balancer
                .ok(&format!("ip route replace {far} via 10.0.{n}.2"))
                .expect("ip");
            let ifindex = net
                .balancer
                .ifindex(&format!("to{n}"))
                .expect("it is there");
            until("the gateway", &|| {
                ways()
                    .get(&far)
                    .is_some_and(|way| way.ifindex == ifindex && !way.direct)
            })
            .await;
        }
        net.balancer.ok(&format!("ip route del {far}")).expect("ip");
        until("no way", &|| !ways().contains_key(&far)).await;
    });
}

/// A port that cannot be balanced on beside another interface is said, and all else is followed.
#[test]
fn what_cannot_be_in_force_keeps_nothing_else_from_it() {
    let net = network();
    let ifindex = |name| net.balancer.ifindex(name).expect("it is there");
    let bond = net.balancer.ok(&format!(
        "ip link add lag type bond && ip link add port index {} type dummy && \
         ip link set port master lag",
        ifindex("to0") + 256
    ));
    if let Err(why) = bond {
        return eprintln!("skipped: no bond of a dummy device can be made: {why}");
    }
    story(&net, Mode::Native, async |balancer, follower| {
        let bond = Interface::new(ifindex("lag"), Mac([2, 0, 0, 0, 0, 9]));
        let told = balancer
            .lock()
            .expect("nobody panicked")
            .set_interface(bond);
        told.expect("no other one ends in the same byte");
        let until = async |what: &str, seen: &dyn Fn() -> bool| {
            follow_until(balancer, follower, what, seen).await;
        };
        let troubles = follower.troubles();
        until("the trouble", &|| {
            let troubles = troubles.borrow();
            troubles.len() == 1 && troubles[0].contains("cannot be balanced beside interface")
        })
        .await;
        net.move_first_server();
        until("the new MAC", &|| has_moved(balancer)).await;
        assert_eq!(troubles.borrow().len(), 1, "it is still so");
        net.balancer.ok("ip link del port").expect("ip");
        until("its end", &|| troubles.borrow().is_empty()).await;
    });
}

/// Anybody on a bridge's segment can answer for a server with the bridge's own MAC.
#[test]
fn a_server_with_its_bridge_s_own_mac_has_no_way() {
    let net = network();
    net.balancer
        .ok(
            "ip link add br0 address 02:00:00:00:00:b0 type bridge && ip link set br0 up && \
             ip link set to1 master br0 && ip addr flush dev to1 && \
             ip addr add 10.0.1.1/24 dev br0",
        )
        .expect("a bridge");
    story(&net, Mode::Native, async |_, follower| {
        let server = IpAddr::from([10, 0, 1, 2]);
        let until = async |what: &str, wanted: Option<u32>| {
            let seen = async {
                loop {
                    let ways = follower.next_hops(&BTreeSet::from([server])).await;
                    if ways.get(&server).map(|way| way.ifindex) == wanted {
                        return;
                    }
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            let done = tokio::time::timeout(PATIENCE, seen).await;
            done.unwrap_or_else(|_| panic!("{what} was not seen"));
        };
        let port = net.balancer.ifindex("to1").expect("it is there");
        until("the bridge's port", Some(port)).await;
        net.balancer
            .ok("ip neigh replace 10.0.1.2 lladdr 02:00:00:00:00:b0 dev br0 nud permanent")
            .expect("ip");
        until("no way", None).await;
    });
}
