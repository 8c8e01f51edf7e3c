//! The network namespace of the checks' sockets. A thread of ours lives in it and makes them; the
//! namespace goes with the thread and the sockets, and the pair of interfaces with the namespace.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};

use nix::sched::{CloneFlags, unshare};
use socket2::{Domain, Socket, Type};
use xdp::{Attachment, Mode, Program, objects};

/// The MAC of the room's end of the pair: locally administered.
pub const MAC: [u8; 6] = [0x02, b'b', b'f', b'l', b'y', 0x01];
/// The room's end of the pair.
const INSIDE: &str = "checks";
/// What checks send fits any tunnel of ours into 1500 bytes (IPv6 and GUE: 52).
const MTU: u16 = 1400;

/// An open room.
pub struct Room {
    /// The index of the host's end of the pair.
    pub ifindex: u32,
    orders: Mutex<Sender<Order>>,
}

struct Order {
    kind: Type,
    source: SocketAddr,
    answer: Sender<io::Result<Socket>>,
}

/// A thread in a namespace of its own that waits for its end of a pair.
struct Alone {
    orders: Sender<Order>,
    answers: Receiver<Result<i32, String>>,
    paired: Sender<()>,
    thread: i32,
}

/// One that was made while the process had the capability for it.
static PREPARED: Mutex<Option<Alone>> = Mutex::new(None);

/// Makes the first room's namespace ahead, for a process that gives up the capability for it; its
/// thread calls `behind` once it is there. The error is a sentence.
pub fn prepare(behind: impl FnOnce() -> Result<(), String> + Send + 'static) -> Result<(), String> {
    let alone = Alone::new(behind)?;
    *PREPARED.lock().unwrap_or_else(PoisonError::into_inner) = Some(alone);
    Ok(())
}

impl Alone {
    fn new(behind: impl FnOnce() -> Result<(), String> + Send + 'static) -> Result<Alone, String> {
        let (orders, incoming) = channel();
        let (said, answers) = channel();
        let (paired, waits) = channel();
        let thread = std::thread::Builder::new().name("checks".into());
        thread
            .spawn(move || live(behind, &said, &waits, &incoming))
            .map_err(|e| format!("the thread of health checks cannot be started: {e}"))?;
        let thread = answers.recv().map_err(|_| gone())??;
        Ok(Alone {
            orders,
            answers,
            paired,
            thread,
        })
    }
}

fn gone() -> String {
    "the thread of health checks is gone".to_owned()
}

impl Room {
    /// Makes one. The error is a sentence.
    pub fn open() -> Result<Room, String> {
        let prepared = PREPARED
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let alone = prepared.map_or_else(|| Alone::new(|| Ok(())), Ok)?;
        // It is in its namespace; give it one end of a pair.
        let Alone {
            orders,
            answers,
            paired,
            thread,
        } = alone;
        // One a process: two daemons of one host have two rooms.
        let outside = format!("bfc{}", std::process::id());
        let mac = MAC.map(|byte| format!("{byte:02x}")).join(":");
        ip(&format!(
            "link add {outside} type veth peer name {INSIDE} address {mac} netns {thread}"
        ))?;
        // The host does not speak on it. Where there is no IPv6 it would not anyway.
        let _ = ip(&format!("link set {outside} addrgenmode none"));
        ip(&format!("link set {outside} up"))?;
        let ifindex = rustix::net::socket(
            rustix::net::AddressFamily::INET,
            rustix::net::SocketType::DGRAM,
            None,
        )
        .and_then(|socket| rustix::net::netdevice::name_to_index(&socket, &outside))
        .map_err(|e| format!("the interface {outside}: {e}"))?;
        paired.send(()).map_err(|_| gone())?;
        answers.recv().map_err(|_| gone())??;
        Ok(Room {
            ifindex,
            orders: Mutex::new(orders),
        })
    }

    /// A socket in it, bound and not blocking.
    pub fn socket(&self, kind: Type, source: SocketAddr) -> io::Result<Socket> {
        let gone = || io::Error::other("the thread of health checks is gone");
        let (answer, made) = channel();
        let orders = self.orders.lock().map_err(|_| gone())?;
        let order = Order {
            kind,
            source,
            answer,
        };
        orders.send(order).map_err(|_| gone())?;
        drop(orders);
        made.recv().map_err(|_| gone())?
    }
}

/// The thread's life. It says its id when it is in a namespace of its own, and 0 when the room is
/// furnished.
fn live(
    behind: impl FnOnce() -> Result<(), String>,
    said: &Sender<Result<i32, String>>,
    paired: &Receiver<()>,
    orders: &Receiver<Order>,
) {
    let entered = unshare(CloneFlags::CLONE_NEWNET)
        .map_err(|e| {
            // A service's process has the capability at its start alone, and hands it to no other.
            let hint = match e {
                nix::errno::Errno::EPERM => " (behind an upgrade, a restart of the daemon helps)",
                _ => "",
            };
            format!("health checks need a network namespace of their own: {e}{hint}")
        })
        .and_then(|()| behind())
        .map(|()| rustix::thread::gettid().as_raw_nonzero().get());
    let failed = entered.is_err();
    // If nobody receives it, the thread that started this one has gone.
    if said.send(entered).is_err() || failed || paired.recv().is_err() {
        return;
    }
    let furnished = furnish();
    let door = match furnished {
        Ok(door) => said.send(Ok(0)).map(|()| door),
        Err(why) => return drop(said.send(Err(why))),
    };
    let mut addresses = BTreeSet::new();
    for order in orders {
        let socket = socket(order.kind, order.source, &mut addresses);
        // Whoever asked may have run out of time.
        let _ = order.answer.send(socket);
    }
    drop(door);
}

/// Everything goes out of the one interface. Frames that a native program puts in need a native
/// program here.
fn furnish() -> Result<(Program, Attachment), String> {
    let failed = |e: xdp::Error| format!("the interface of health checks: {e}");
    sys::ethtool::compute_checksums(INSIDE)
        .ok_or_else(|| format!("the interface {INSIDE} does not leave checksums to the kernel"))?;
    ip(&format!("link set {INSIDE} arp off up"))?;
    let pass = Program::load("pass", objects::PASS, |_| Ok(())).map_err(failed)?;
    let ifindex = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        None,
    )
    .and_then(|socket| rustix::net::netdevice::name_to_index(&socket, INSIDE))
    .map_err(|e| format!("the interface {INSIDE}: {e}"))?;
    let attachment = xdp::attach(&pass, ifindex, Some(Mode::Native)).map_err(failed)?;
    ip(&format!("route add default dev {INSIDE} mtu {MTU}"))?;
    // Without IPv6 on the host there is none here either, and no IPv6 service that works.
    let _ = ip(&format!("-6 route add default dev {INSIDE} mtu {MTU}"));
    Ok((pass, attachment))
}

fn socket(kind: Type, source: SocketAddr, addresses: &mut BTreeSet<IpAddr>) -> io::Result<Socket> {
    if !addresses.contains(&source.ip()) {
        let add = match source.ip() {
            IpAddr::V4(v4) => format!("addr replace {v4}/32 dev {INSIDE}"),
            IpAddr::V6(v6) => format!("addr replace {v6}/128 dev {INSIDE} nodad"),
        };
        ip(&add).map_err(io::Error::other)?;
        addresses.insert(source.ip());
    }
    let socket = Socket::new(Domain::for_address(source), kind, None)?;
    // A port whose last connection was cut short may be used again.
    socket.set_reuse_address(true)?;
    socket.bind(&source.into())?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Runs ip(8), in the network namespace of the calling thread.
fn ip(words: &str) -> Result<(), String> {
    let run = Command::new("ip").args(words.split(' ')).output();
    let output = run.map_err(|e| format!("health checks need ip, of iproute2: {e}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "ip {words}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
    }
}
