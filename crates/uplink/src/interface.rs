//! Joining one interface to the switch: the program attached, a socket on each of its queues.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use io::packet_socket::{PacketError, PacketOptions, PacketPort, Packets};
use io::uplink::UplinkPort;
use io::xsk::{Link, XskError, XskHandle, XskMode, XskOptions, XskPort};
use sys::handed::Handed;
use xdp::{Feature, Interfaces};

use crate::layout::QUEUES;
use crate::program::{Program, ProgramError};

/// How often, and how long between, a queue is asked for again that is still being let go of: the
/// kernel takes a socket that was closed from its queue a moment later.
const PATIENCE: (u32, Duration) = (500, Duration::from_millis(2));

/// Which interface, and what is known of it.
#[derive(Clone, Debug)]
pub struct JoinRequest {
    /// Its name.
    pub name: String,
    /// Its index, in the network namespace of the calling thread.
    pub ifindex: u32,
    /// Which uplink of ours it is, from 0.
    pub number: u32,
    /// How many queues it receives from at most; those it has are used.
    pub queues: u32,
    /// Its MTU and whether it is up: followed by its ports.
    pub link: Arc<Link>,
    /// Frames that wait in each direction of each queue at most.
    pub frames: u32,
    /// The XDP mode to use; `None`: native, and generic where that is refused.
    pub mode: Option<xdp::Mode>,
    /// Ask the kernel to do its part within our calls while a port is polled.
    pub busy_poll: bool,
    /// It is no hardware: its packets are buffers of kernels, and were on no wire (a veth, a
    /// bridge).
    pub is_virtual: bool,
    /// What a packet socket is for.
    pub packets: Packets,
}

/// How frames come and go, and why not in a better way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Mode {
    /// By AF_XDP sockets.
    Xdp {
        /// Where the XDP program runs.
        xdp: xdp::Mode,
        /// What was agreed with the driver about the sockets.
        sockets: XskMode,
        /// The kernel does its part within our calls while a port is polled.
        busy_polls: bool,
        /// What the driver said to native mode, where it is generic by necessity.
        why_generic: Option<String>,
    },
    /// By a packet socket: slower.
    Packet {
        /// What spoke against XDP: that it was asked for, too.
        why: String,
    },
    /// By a device that DPDK drives.
    Dpdk {
        /// Its driver: `net_ixgbe`.
        driver: String,
        /// DPDK's name of it.
        device: String,
        /// It makes the checksums of inner packets.
        sums: bool,
    },
    /// By a TAP device: there is no interface.
    Tap {
        /// What spoke against interfaces.
        why: String,
    },
}

impl Mode {
    /// Why it is not a better one: a sentence, or empty.
    pub fn why(&self) -> &str {
        match self {
            Mode::Xdp { why_generic, .. } => why_generic.as_deref().unwrap_or(""),
            Mode::Packet { why } | Mode::Tap { why } => why,
            Mode::Dpdk { .. } => "",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (xdp, sockets, busy_polls) = match self {
            Mode::Packet { .. } => return f.write_str("packet socket"),
            Mode::Tap { .. } => return f.write_str("TAP"),
            Mode::Dpdk {
                driver,
                device,
                sums,
            } => {
                let sums = if *sums { ", checksum offload" } else { "" };
                return write!(f, "DPDK, {driver}, {device}{sums}");
            }
            Mode::Xdp {
                xdp,
                sockets,
                busy_polls,
                ..
            } => (xdp, sockets, busy_polls),
        };
        let copy = if sockets.zero_copy {
            "zero-copy"
        } else {
            "copy"
        };
        write!(f, "AF_XDP, {xdp} XDP, {copy}")?;
        if !sockets.multi_buffer {
            f.write_str(", single buffers")?;
        }
        if *busy_polls {
            f.write_str(", busy polling")?;
        }
        Ok(())
    }
}

/// Why an interface was not joined.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The program cannot be attached.
    #[error(transparent)]
    Attach(#[from] xdp::Error),
    /// The program cannot be told of it.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// A queue takes no socket.
    #[error(transparent)]
    Socket(#[from] XskError),
    /// A queue cannot be gone on with: where the process that has ended was cannot be told.
    #[error("{0}")]
    Left(String),
    /// Not even a packet socket.
    #[error("{packet}; and before: {xdp}")]
    Packet {
        /// Why not.
        packet: PacketError,
        /// Why it came to that.
        xdp: String,
    },
}

/// An interface that is joined. Its ports live as long as their owners hold them; the rest is
/// [left](leave).
#[derive(Debug)]
pub struct Joined {
    /// One for each queue, from queue 0 on; the only one of a packet socket.
    pub ports: Vec<UplinkPort>,
    /// The AF_XDP sockets among them, for their statistics.
    pub sockets: Vec<XskHandle>,
    /// The packet socket, if it is one.
    pub packet: Weak<OwnedFd>,
    /// The mode in force.
    pub mode: Mode,
    /// The largest MTU that the ports can do.
    pub mtu_max: u32,
}

/// Joins an interface in the best way that it takes: by XDP, and where that is refused by a packet
/// socket.
///
/// # Errors
/// It takes neither.
pub fn join(
    program: &Program,
    interfaces: &mut Interfaces,
    request: &JoinRequest,
    port: u16,
) -> Result<Joined, JoinError> {
    let refused = match join_xdp(program, interfaces, request) {
        Ok(joined) => return Ok(joined),
        Err(refused) => refused.to_string(),
    };
    match join_packet(request, port, refused.clone()) {
        Ok(joined) => Ok(joined),
        Err(packet) => Err(JoinError::Packet {
            packet,
            xdp: refused,
        }),
    }
}

/// Joins by a packet socket, for the reason given.
///
/// # Errors
/// The kernel refuses.
pub fn join_packet(request: &JoinRequest, port: u16, why: String) -> Result<Joined, PacketError> {
    let socket = PacketPort::open(&packet_options(request, port))?;
    Ok(joined_packet(socket, why))
}

fn packet_options(request: &JoinRequest, port: u16) -> PacketOptions {
    PacketOptions {
        interface: request.name.clone(),
        ifindex: request.ifindex,
        port,
        packets: request.packets,
        link: request.link.clone(),
    }
}

fn joined_packet(port: PacketPort, why: String) -> Joined {
    Joined {
        packet: port.socket(),
        ports: vec![port.into()],
        sockets: Vec::new(),
        mode: Mode::Packet { why },
        mtu_max: u32::from(u16::MAX),
    }
}

/// Goes on with the sockets by which another process has joined the interface; its program is put
/// in the place of that one's when `interfaces` [take over](Interfaces::take_over).
///
/// # Errors
/// What was handed over is no such socket, or the kernel refuses; or the process has ended, and
/// where it was amid its work cannot be told.
pub(crate) fn go_on(
    program: Result<&Program, String>,
    interfaces: &mut Interfaces,
    request: &JoinRequest,
    port: u16,
    handed: Sockets,
    has_ended: bool,
) -> Result<Joined, String> {
    match handed {
        Sockets::Packet { socket, why } => {
            let adopted = PacketPort::adopt(&packet_options(request, port), socket);
            let adopted = adopted.map_err(|e| e.to_string())?;
            Ok(joined_packet(adopted, why))
        }
        Sockets::Queues(queues) => {
            let adopt = |request: &JoinRequest, xdp| {
                let adopt = |(queue, handed)| {
                    let options = socket_options(request, queue, xdp);
                    let mut port = XskPort::adopt(&options, handed)?;
                    if has_ended {
                        port.recover().map_err(JoinError::Left)?;
                    }
                    Ok(port)
                };
                (0..).zip(queues).map(adopt).collect()
            };
            let joined = join_xdp_by(program?, interfaces, request, adopt);
            joined.map_err(|e| e.to_string())
        }
    }
}

/// The sockets of an interface that another process hands over.
pub(crate) enum Sockets {
    /// AF_XDP sockets, from queue 0 on.
    Queues(Vec<Handed>),
    /// A packet socket.
    Packet {
        /// It.
        socket: OwnedFd,
        /// What spoke against XDP.
        why: String,
    },
}

/// Attaches the program, binds a socket to each queue, and then tells the program to take packets:
/// the first packet already has a reader. Where anything fails, all is as it was.
///
/// # Errors
/// See [`JoinError`].
pub fn join_xdp(
    program: &Program,
    interfaces: &mut Interfaces,
    request: &JoinRequest,
) -> Result<Joined, JoinError> {
    join_xdp_by(program, interfaces, request, open_all)
}

/// As [`join_xdp`], by sockets that are had from `open`.
fn join_xdp_by(
    program: &Program,
    interfaces: &mut Interfaces,
    request: &JoinRequest,
    open: impl FnOnce(&JoinRequest, xdp::Mode) -> Result<Vec<XskPort>, JoinError>,
) -> Result<Joined, JoinError> {
    let attached = interfaces.add(
        request.ifindex,
        Feature::Uplink,
        program.xdp(),
        request.mode,
    )?;
    let (xdp, why_generic) = (attached.0, attached.1.map(str::to_owned));
    let opened = open(request, xdp).and_then(|ports| {
        for (queue, port) in (0..).zip(&ports) {
            let given = port
                .handle()
                .with(|socket| program.set_socket(request.number, queue, socket));
            // The port is there: so is its socket.
            given.unwrap_or(Ok(()))?;
        }
        program.add_interface(request.ifindex, request.number)?;
        Ok(ports)
    });
    let ports = match opened {
        Ok(ports) => ports,
        Err(error) => {
            interfaces.remove(request.ifindex, Feature::Uplink);
            return Err(error);
        }
    };
    Ok(Joined {
        mode: Mode::Xdp {
            xdp,
            // All of one driver, so of one mode; the least of them if they were not.
            sockets: XskMode {
                zero_copy: ports.iter().all(|port| port.mode().zero_copy),
                multi_buffer: ports.iter().all(|port| port.mode().multi_buffer),
            },
            busy_polls: ports.iter().all(XskPort::busy_polls),
            why_generic,
        },
        mtu_max: ports.iter().map(XskPort::mtu_max).min().unwrap_or(0),
        sockets: ports.iter().map(XskPort::handle).collect(),
        packet: Weak::new(),
        ports: ports.into_iter().map(UplinkPort::from).collect(),
    })
}

/// The interface is the kernel's alone again. Ports that are still there receive nothing more. One
/// that is gone is no error.
pub fn leave(program: &Program, interfaces: &mut Interfaces, ifindex: u32) {
    interfaces.remove(ifindex, Feature::Uplink);
    if let Err(error) = program.remove_interface(ifindex) {
        tracing::warn!(ifindex, %error, "the uplink's program still knows an interface");
    }
}

/// A port for each queue that the interface has: the kernel says how many only by refusing the one
/// behind the last.
fn open_all(request: &JoinRequest, xdp: xdp::Mode) -> Result<Vec<XskPort>, JoinError> {
    let mut ports = Vec::new();
    for queue in 0..request.queues.clamp(1, QUEUES) {
        match open_one(request, queue, xdp) {
            Ok(port) => ports.push(port),
            Err(XskError::Bind { error, .. })
                if queue > 0 && error.raw_os_error() == Some(EINVAL) =>
            {
                break;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(ports)
}

fn open_one(request: &JoinRequest, queue: u32, xdp: xdp::Mode) -> Result<XskPort, XskError> {
    let options = socket_options(request, queue, xdp);
    let (tries, pause) = PATIENCE;
    for _ in 1..tries {
        match XskPort::open(&options) {
            Err(XskError::Bind { error, .. }) if error.raw_os_error() == Some(EBUSY) => {
                std::thread::sleep(pause)
            }
            done => return done,
        }
    }
    XskPort::open(&options)
}

fn socket_options(request: &JoinRequest, queue: u32, xdp: xdp::Mode) -> XskOptions {
    XskOptions {
        interface: request.name.clone(),
        ifindex: request.ifindex,
        queue,
        frames: request.frames,
        // A packet that the kernel has made something of already is none that the NIC could put
        // into the UMEM.
        zero_copy: xdp == xdp::Mode::Native,
        busy_poll: request.busy_poll,
        // In generic mode the kernel may have joined packets, whoever brought them.
        unfinished: request.is_virtual || xdp == xdp::Mode::Generic,
        link: request.link.clone(),
    }
}

const EBUSY: i32 = 16;
const EINVAL: i32 = 22;
