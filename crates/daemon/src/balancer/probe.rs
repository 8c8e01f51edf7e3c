//! The paths of health checks: through a service's address to one of its servers, as a client's
//! packets go.
//!
//! The host's own sockets would not do. The kernel knows no route to a service's address, or, when
//! the address is announced from here, one that ends here; and nothing in a packet to it says which
//! server is meant. So the sockets of checks are in a [`room`]: a network namespace of their own,
//! where everything goes out of one interface, whose other end is on the host and runs
//! `bpf/probe.bpf.c`. That program finds the server by the port that the check is sent from, and
//! sends the packet on with the balancer's own table and code: the tunnel, the next hop and the
//! VLAN tags are those of clients' packets. A check's source is the host's own address, so that a
//! server needs no route that it has not anyway; its answer is recognised by address and port on
//! the balanced interfaces, and put into the room before the host's kernel, firewall and
//! reverse-path filter see it. There is no address translation, and no rule or route on the host;
//! all of it is gone with the process, however that ends.

mod ports;
mod room;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytemuck::{Pod, Zeroable};
use container::namespace_helper::SocketKind;
use control::Target;
use health::Subject;
use health::probe::{Fault, NotMade, Path, Transport};
use socket2::Socket;
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use xdp::{Attachment, Mode, Program, Table, objects};

use super::checks::Paths;
use super::engine::{Engine, Running};
use ports::{Port, Ports};
use room::Room;

pub use room::Trouble;

/// Ports that checks are sent from: behind those that Linux gives to others by itself
/// (ip_local_port_range). How many, and [`LINGER`], are what limits the checks of a second
/// (docs/limits.md).
const PORTS: std::ops::RangeInclusive<u16> = 64_512..=65_534;
/// How long a port's way stays open behind its last socket: what the socket said last is still on
/// its way.
const LINGER: Duration = Duration::from_secs(1);

/// `struct probe_source`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct ProbeSource {
    ifindex: u32,
    mac: [u8; 6],
    reserved: [u8; 2],
}

/// `struct probe_key`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct ProbeKey {
    port: [u8; 2],
    protocol: u8,
    reserved: u8,
}

/// `struct probe_target`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct ProbeTarget {
    vip: [u8; 16],
    source: [u8; 16],
    server: u32,
}

const _: () = assert!(
    size_of::<ProbeSource>() == 12 && size_of::<ProbeKey>() == 4 && size_of::<ProbeTarget>() == 36
);

/// The room, and the program that is its door.
pub struct Door {
    room: Room,
    pub program: Program,
    probes: Table<ProbeKey, ProbeTarget>,
    tcp: Arc<Ports>,
    udp: Arc<Ports>,
    /// Dropped last: packets stop coming when it goes.
    _attachment: Attachment,
}

impl Door {
    /// Makes the room and loads the program beside the balancer's. The error is a sentence.
    pub fn open(balancer: &Mutex<balancer::Balancer>) -> Result<Door, String> {
        let room = Room::open()?;
        let source = ProbeSource {
            ifindex: room.ifindex,
            mac: room::MAC,
            reserved: [0; 2],
        };
        let failed = |e: xdp::Error| format!("the program of health checks: {e}");
        let program = load(&lock(balancer), source).map_err(failed)?;
        // Generic: it may send out of any interface, those without XDP in the driver too, and
        // checks are few.
        let attachment =
            xdp::attach(&program, room.ifindex, Some(Mode::Generic)).map_err(failed)?;
        Ok(Door {
            probes: program.table("probes").map_err(failed)?,
            room,
            program,
            tcp: Ports::new(PORTS),
            udp: Ports::new(PORTS),
            _attachment: attachment,
        })
    }

    /// The host's end of the pair, by its index and name.
    pub fn ifindex(&self) -> u32 {
        self.room.ifindex
    }

    pub fn name(&self) -> &str {
        &self.room.name
    }

    /// What the kernel says is wrong with that interface, if anything is.
    pub fn trouble(&self) -> Option<Trouble> {
        self.room.trouble()
    }

    /// That, as a sentence.
    pub fn said(&self, trouble: Trouble) -> String {
        let is = match trouble {
            Trouble::Gone => "gone",
            Trouble::Down => "down",
        };
        format!("the interface {} of health checks is {is}", self.name())
    }

    /// Sets it up again. The error is a sentence.
    pub fn set_up(&self) -> Result<(), String> {
        self.room.set_up()
    }
}

/// The program, with the balancer's table of servers.
fn load(balancer: &balancer::Balancer, source: ProbeSource) -> Result<Program, xdp::Error> {
    let half = balancer.program().map("half")?;
    let servers = balancer.program().map("servers")?;
    Program::load_both("probe", objects::PROBE, objects::tc::PROBE, |object| {
        for mut map in object.maps_mut() {
            match map.name().to_str().unwrap_or_default() {
                "half" => map.reuse_fd(half.as_fd())?,
                "servers" => map.reuse_fd(servers.as_fd())?,
                name if name.ends_with(".rodata.settings") => {
                    map.set_initial_value(bytemuck::bytes_of(balancer.settings()))?;
                }
                name if name.ends_with(".rodata.source") => {
                    map.set_initial_value(bytemuck::bytes_of(&source))?
                }
                _ => (),
            }
        }
        Ok(())
    })
}

/// An address as the program has it.
fn octets(address: IpAddr) -> [u8; 16] {
    let mut octets = [0; 16];
    match address {
        IpAddr::V4(ip) => octets[..4].copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => octets = ip.octets(),
    }
    octets
}

fn key(protocol: u8, port: u16) -> ProbeKey {
    ProbeKey {
        port: port.to_be_bytes(),
        protocol,
        reserved: 0,
    }
}

/// A port of the door's, for one socket.
pub struct Turn {
    door: Arc<Door>,
    protocol: u8,
    port: Port,
}

impl Turn {
    fn key(&self) -> ProbeKey {
        key(self.protocol, self.port.number)
    }

    /// Opens a way; it is closed when the answer is dropped.
    fn way(self, vip: IpAddr, source: IpAddr, server: u16) -> Result<Hold, NotMade> {
        let target = ProbeTarget {
            vip: octets(vip),
            source: octets(source),
            server: server.into(),
        };
        let opened = self.door.probes.set(&self.key(), &target);
        opened.map_err(not_made)?;
        Ok(Hold(Some(Way(self))))
    }
}

/// An open way, until it is dropped.
struct Way(Turn);

impl Drop for Way {
    fn drop(&mut self) {
        // It fails where there is no entry, which is what is wanted.
        let _ = self.0.door.probes.remove(&self.0.key());
    }
}

/// Keeps a way open until it is dropped, and for [`LINGER`].
pub struct Hold(Option<Way>);

impl Drop for Hold {
    fn drop(&mut self) {
        let way = self.0.take();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                tokio::time::sleep(LINGER).await;
                drop(way);
            });
        }
    }
}

/// Makes paths for checks, once there is a balancer for them to go through.
pub struct Prober(pub Arc<Engine>);

impl Paths for Prober {
    type Path = ProbePath;

    fn path(&self, target: &Target, subject: &Subject) -> ProbePath {
        ProbePath {
            engine: self.0.clone(),
            target: *target,
            subject: subject.clone(),
            breaks: self.0.breaks(),
        }
    }
}

/// Through a service to one of its servers.
#[derive(Clone)]
pub struct ProbePath {
    engine: Arc<Engine>,
    target: Target,
    subject: Subject,
    /// How often the way into the room was none when the check began.
    breaks: u64,
}

const TCP: u8 = 6;
const UDP: u8 = 17;

impl ProbePath {
    /// The way for one socket, and the socket, which is bound to the address that it speaks from.
    /// Waits, for as long as the check may take, until a server that is new has said where it is.
    async fn open(&self, turn: Turn, kind: SocketKind) -> Result<(Hold, Socket), Fault> {
        let running = self.engine.running();
        let running = running.ok_or_else(|| not_made("nothing is balanced"))?;
        let (key, server) = self.target;
        let mut looked = running.follower.looked();
        while !lock(&running.balancer).hops().contains_key(&server) {
            looked.changed().await.map_err(not_made)?;
        }
        let number = lock(&running.balancer).server_number(&key, server);
        // What is said of one that was removed nobody hears.
        let number = number.ok_or_else(|| io::Error::other("the server is gone"))?;
        let vip = self.subject.service.ip();
        let source = source(&running, vip, server)?;
        let (door, port) = (turn.door.clone(), turn.port.number);
        let hold = turn.way(vip, source, number)?;
        let socket = door.room.socket(kind, (source, port).into());
        Ok((hold, socket.map_err(not_made)?))
    }
}

impl Path for ProbePath {
    type Turn = Turn;
    type Hold = Hold;

    async fn turn(&self, transport: Transport) -> Result<Turn, NotMade> {
        let door = tokio::task::block_in_place(|| self.engine.door()).map_err(NotMade)?;
        let (protocol, ports) = match transport {
            Transport::Tcp => (TCP, &door.tcp),
            Transport::Udp => (UDP, &door.udp),
        };
        Ok(Turn {
            protocol,
            port: ports.take().await,
            door,
        })
    }

    async fn tcp(&self, turn: Turn) -> Result<(TcpStream, Hold), Fault> {
        let (hold, socket) = self.open(turn, SocketKind::Stream).await?;
        let socket = TcpSocket::from_std_stream(socket.into());
        Ok((socket.connect(self.subject.service).await?, hold))
    }

    async fn udp(&self, turn: Turn) -> Result<(UdpSocket, Hold), Fault> {
        let (hold, socket) = self.open(turn, SocketKind::Datagram).await?;
        let socket = UdpSocket::from_std(socket.into()).map_err(not_made)?;
        socket.connect(self.subject.service).await?;
        Ok((socket, hold))
    }

    fn hindrance(&self) -> Option<NotMade> {
        let why = tokio::task::block_in_place(|| self.engine.hindrance(self.breaks));
        why.map(NotMade)
    }
}

/// What this host could not do.
fn not_made(why: impl std::fmt::Display) -> NotMade {
    NotMade(why.to_string())
}

/// The host's address that a server is to answer to, of the service's family: where the server's is
/// the same, the one that the kernel would speak to it from.
fn source(running: &Running, vip: IpAddr, server: IpAddr) -> Result<IpAddr, Fault> {
    let nothing = |why: &dyn std::fmt::Display| {
        Fault::Server(io::Error::other(format!(
            "this host has no address that {server} could answer to for {vip}: {why}"
        )))
    };
    if vip.is_ipv4() != server.is_ipv4() {
        // No route says which: to the service's address there is none, or one that ends here.
        let own = running
            .follower
            .own_address(&lock(&running.balancer), vip.is_ipv6());
        return own.ok_or_else(|| nothing(&"none of that family"));
    }
    let any: IpAddr = match server {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // Connecting a datagram socket asks the routing table and sends nothing.
    let socket = std::net::UdpSocket::bind((any, 0)).map_err(not_made)?;
    let asked = socket
        .connect((server, 9))
        .and_then(|()| socket.local_addr());
    asked.map(|address| address.ip()).map_err(|e| nothing(&e))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use wire::{Mac, build};
    use xdp::Verdict;

    use super::*;

    const SOURCE: ProbeSource = ProbeSource {
        // Not that of trials' packets.
        ifindex: 1000,
        mac: room::MAC,
        reserved: [0; 2],
    };

    /// A check is out from 64,600: its server's datagram to it is taken, and nothing that is for
    /// others: a server's answer to a client that chose the same port, by way of this host.
    #[test]
    fn an_answer_to_a_client_with_the_same_port_is_not_the_check_s() {
        let balancer = balancer::Balancer::new(&balancer::Options {
            max_flows: 1024,
            max_services: 1,
            max_servers: 1,
            ..balancer::Options::default()
        });
        let program = load(&balancer.unwrap(), SOURCE).unwrap();
        let probes: Table<ProbeKey, ProbeTarget> = program.table("probes").unwrap();
        let addresses = [
            ["192.0.2.80", "10.1.2.3", "198.51.100.7"],
            ["2001:db8::80", "2001:db8:ffff::1", "2001:db8:c1::7"],
        ];
        for [vip, own, client] in addresses.map(|three| three.map(|ip| ip.parse().unwrap())) {
            let target = ProbeTarget {
                vip: octets(vip),
                source: octets(own),
                server: 1,
            };
            probes.set(&key(UDP, 64_600), &target).unwrap();
            let verdict = |from: IpAddr, to: IpAddr| {
                let frame = build::frame(Mac([2, 0, 0, 0, 0, 2]), Mac([2, 0, 0, 0, 0, 1]));
                let frame = frame
                    .ip(from, to)
                    .udp(53, 64_600)
                    .payload(b"answer")
                    .build();
                xdp::run(&program, &frame, 0, 1).unwrap().verdict
            };
            assert_eq!(verdict(vip, own), Verdict::Redirect);
            assert_eq!(verdict(vip, client), Verdict::Pass);
            assert_eq!(verdict(client, own), Verdict::Pass);
        }
    }
}
