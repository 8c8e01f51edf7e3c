//! An uplink by packet sockets (packet(7)), for interfaces that take no XDP program or no AF_XDP
//! socket.
//!
//! Slower: each frame is a system call in each direction, is copied twice on its way in, and the
//! kernel handles what is ours as well before it throws it away (a UDP socket on the port has to be
//! there, or it answers "port unreachable"). A filter in the kernel passes us VXLAN only, and of
//! that what the kernel would take itself. One queue an interface: the port of one worker.
//!
//! What the kernel left undone in a frame that never was on a wire (from a veth, a bridge) it tells
//! in a virtio-net header, and that goes on with the frame: a checksum that is only begun, the
//! outer UDP header's or the inner packet's, and that an inner packet stands for several.
//!
//! A socket for [one family](Packets) gets what programs at tc ingress of the interface have passed
//! on; one for all packets gets them before these.

mod filter;

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};
use wire::offload::Offload;
use wire::virtio_net::{self, HDR_LEN_MRG};
use wire::vxlan::Outer;

use crate::deliver::Piece;
use crate::error::{PortError, TransmitError};
use crate::frame::{Batch, FRAME_MAX};
use crate::outer::{self, OuterSink};
use crate::port_info::PortInfo;
use crate::xsk::Link;

/// Bytes that may wait to be read: a few thousand frames.
const RECEIVE_BUFFER: usize = 8 << 20;
/// The virtio-net header of a packet socket: without the count of buffers.
const HDR_LEN: usize = 10;
/// What a frame may have beyond the link's MTU: Ethernet header and one VLAN tag.
const LINK_HEADER: usize = 14 + 4;

/// What comes in by the socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Packets {
    /// All VXLAN, in a VLAN too, before tc ingress has seen it, and whatever that does with it.
    #[default]
    All,
    /// What is over IPv4, of what tc ingress has passed on to the kernel's stack.
    V4,
    /// Over IPv6, likewise.
    V6,
}

impl Packets {
    /// The protocol that such a socket is bound to (ETH_P_*).
    fn protocol(self) -> i32 {
        match self {
            Packets::All => libc::ETH_P_ALL,
            Packets::V4 => libc::ETH_P_IP,
            Packets::V6 => libc::ETH_P_IPV6,
        }
    }
}

/// Which interface.
#[derive(Clone, Debug)]
pub struct PacketOptions {
    /// The interface's name, for messages.
    pub interface: String,
    /// Its index, in the network namespace of the calling thread.
    pub ifindex: u32,
    /// VXLAN's UDP port.
    pub port: u16,
    /// What comes in by it.
    pub packets: Packets,
    /// The interface's state.
    pub link: Arc<Link>,
}

/// Why there is no packet socket.
#[derive(Debug, thiserror::Error)]
#[error("'{interface}' takes no packet socket: {error}")]
pub struct PacketError {
    interface: String,
    error: std::io::Error,
}

/// The port.
#[derive(Debug)]
pub struct PacketPort {
    name: String,
    /// Nothing is done with it once the interface is gone.
    socket: Arc<OwnedFd>,
    link: Arc<Link>,
    received: u64,
    transmitted: u64,
    /// Frames that the kernel had and could not describe.
    refused: u64,
    /// The frame that is being sent, in one piece.
    scratch: Vec<u8>,
    broken: Option<String>,
    /// `broken` has been returned to the caller.
    reported: bool,
}

impl PacketPort {
    /// Opens it. Needs CAP_NET_RAW.
    pub fn open(options: &PacketOptions) -> Result<PacketPort, PacketError> {
        let socket = open(options).map_err(|errno| refused(options, errno))?;
        Ok(PacketPort::over(options, socket))
    }

    /// The port of a socket that another process has opened and hands over; frames that wait in it
    /// are this one's as soon as the other one reads no more.
    ///
    /// # Errors
    /// It is no packet socket, or the interface is gone.
    pub fn adopt(options: &PacketOptions, socket: OwnedFd) -> Result<PacketPort, PacketError> {
        let domain = sockopt::socket_domain(&socket).map_err(|errno| refused(options, errno))?;
        if domain != AddressFamily::PACKET {
            return Err(refused(options, Errno::NOTSOCK));
        }
        // What that process had come in by it may be something else.
        let done = filter::attach(socket.as_fd(), options.port, options.ifindex)
            .and_then(|()| bind(&socket, options));
        done.map_err(|errno| refused(options, errno))?;
        Ok(PacketPort::over(options, socket))
    }

    /// The socket, for another process; it does not keep it open.
    pub fn socket(&self) -> Weak<OwnedFd> {
        Arc::downgrade(&self.socket)
    }

    fn over(options: &PacketOptions, socket: OwnedFd) -> PacketPort {
        PacketPort {
            name: options.interface.clone(),
            socket: Arc::new(socket),
            link: options.link.clone(),
            received: 0,
            transmitted: 0,
            refused: 0,
            scratch: Vec::new(),
            broken: None,
            reported: false,
        }
    }

    pub(crate) fn receive(&mut self, batch: &mut Batch) -> Result<usize, PortError> {
        self.report()?;
        if self.broken.is_some() {
            return Ok(0);
        }
        let socket = &self.socket;
        let (mut count, mut failure) = (0, None);
        while batch.room() > 0 {
            let pushed = batch.push_with(|buffer| {
                let (len, offload) = read(socket.as_fd(), buffer)?;
                Ok::<_, Errno>((len > 0).then_some((len, offload)))
            });
            match pushed {
                Ok(true) => count += 1,
                Ok(false) => break,
                // A frame that it could not describe; it is gone, the next one may be better.
                Err(Errno::INVAL) => self.refused += 1,
                Err(errno) => {
                    failure = Some(errno);
                    break;
                }
            }
        }
        self.received += count as u64;
        if let Some(errno) = failure {
            self.failed(errno);
        }
        // With frames in hand they come first, and the error with the next call.
        if count == 0 {
            self.report()?;
        }
        Ok(count)
    }

    pub(crate) fn flush(&mut self) -> Result<(), PortError> {
        self.report()
    }

    pub(crate) fn kick_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    pub(crate) fn is_up(&self) -> bool {
        self.broken.is_none() && self.link.is_up()
    }

    pub(crate) fn mtu(&self) -> Option<u16> {
        Some(u16::try_from(self.link.mtu()).unwrap_or(u16::MAX))
    }

    pub(crate) fn info(&self) -> PortInfo {
        PortInfo {
            kind: "packet",
            up: self.is_up(),
            frames_received: self.received,
            frames_transmitted: self.transmitted,
            broken: self.broken.clone(),
            ..PortInfo::default()
        }
    }

    /// What an error means for the frame; errors that mean the end of the interface are kept.
    fn failed(&mut self, errno: Errno) -> TransmitError {
        match errno {
            Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::INTR => TransmitError::Full,
            // Said once to a reader as well when the link goes down.
            Errno::NETDOWN => TransmitError::Down,
            Errno::MSGSIZE => TransmitError::TooSmall,
            Errno::INVAL => TransmitError::BadOffload,
            errno => {
                self.broken = Some(match errno {
                    Errno::NXIO | Errno::NODEV | Errno::BADF => {
                        format!("packet socket of '{}': the interface is gone", self.name)
                    }
                    errno => format!(
                        "packet socket of '{}': {}",
                        self.name,
                        std::io::Error::from(errno)
                    ),
                });
                TransmitError::Broken
            }
        }
    }

    /// Says once why the port is stopped.
    fn report(&mut self) -> Result<(), PortError> {
        match &self.broken {
            Some(what) if !self.reported => {
                self.reported = true;
                Err(PortError::Broken { what: what.clone() })
            }
            _ => Ok(()),
        }
    }
}

impl OuterSink for PacketPort {
    fn put_outer(&mut self, outer: Option<&Outer>, piece: &Piece<'_>) -> Result<(), TransmitError> {
        if self.broken.is_some() {
            return Err(TransmitError::Down);
        }
        let len = outer::len(outer, piece);
        if len > self.link.mtu() as usize + LINK_HEADER {
            return Err(TransmitError::TooSmall);
        }
        self.scratch.resize(len, 0);
        outer::write(&mut self.scratch, outer, piece, None);
        // Nothing is left to do.
        let header = [0; HDR_LEN];
        let sent = rustix::io::writev(
            &self.socket,
            &[IoSlice::new(&header), IoSlice::new(&self.scratch)],
        );
        sent.map_err(|errno| self.failed(errno))?;
        self.transmitted += 1;
        Ok(())
    }
}

fn refused(options: &PacketOptions, errno: Errno) -> PacketError {
    PacketError {
        interface: options.interface.clone(),
        error: errno.into(),
    }
}

fn open(options: &PacketOptions) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // Protocol 0: nothing comes before the filter is in force.
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?;
    filter::attach(socket.as_fd(), options.port, options.ifindex)?;
    for option in [
        libc::PACKET_VNET_HDR,
        libc::PACKET_AUXDATA,
        PACKET_IGNORE_OUTGOING,
    ] {
        set(socket.as_fd(), option, 1)?;
    }
    // More than the host's limit, which needs CAP_NET_ADMIN; without it the default stays.
    let _ = sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER);
    bind(&socket, options)?;
    Ok(socket)
}

fn bind(socket: &OwnedFd, options: &PacketOptions) -> Result<(), Errno> {
    let protocol = options.packets.protocol() as u16;
    sys::packet_socket::bind(socket.as_fd(), options.ifindex, protocol)
}

/// linux/if_packet.h, since 4.20.
const PACKET_IGNORE_OUTGOING: i32 = 23;

fn set(socket: BorrowedFd<'_>, option: i32, value: i32) -> Result<(), Errno> {
    // SAFETY: the value is an int that lives as long as the call, as these options take it.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            option,
            (&raw const value).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    if done == 0 { Ok(()) } else { Err(last_errno()) }
}

/// One frame as it would be on the wire, into `buffer`; gives its length and what is left to do. 0:
/// there is none.
fn read(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<(usize, Offload), Errno> {
    let mut header = [0u8; HDR_LEN_MRG];
    // Room for the one message that is asked for, aligned as its header.
    let mut control = [0u64; 16];
    let mut parts = [
        libc::iovec {
            iov_base: header.as_mut_ptr().cast(),
            iov_len: HDR_LEN,
        },
        libc::iovec {
            iov_base: buffer.as_mut_ptr().cast(),
            // A tag may have to be put back.
            iov_len: buffer.len() - TAG_LEN,
        },
    ];
    // SAFETY: all zeros are a valid message header.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len();
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    // SAFETY: the message's pieces are slices of ours of these lengths, exclusively borrowed for
    // the call.
    let len = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    if len < 0 {
        return match last_errno() {
            Errno::AGAIN | Errno::INTR => Ok((0, Offload::default())),
            errno => Err(errno),
        };
    }
    let mut len = (len as usize).saturating_sub(HDR_LEN);
    if message.msg_flags & libc::MSG_TRUNC != 0 || !(14..=FRAME_MAX - TAG_LEN).contains(&len) {
        return Err(Errno::INVAL);
    }
    let mut offload = virtio_net::decode(&header).map_err(|_| Errno::INVAL)?;
    // SAFETY: the kernel filled the message in.
    if let Some(tag) = unsafe { tag(&message) } {
        buffer.copy_within(12..len, 12 + TAG_LEN);
        buffer[12..16].copy_from_slice(&tag);
        len += TAG_LEN;
        if let Some(partial) = &mut offload.checksum {
            partial.start = partial.start.saturating_add(TAG_LEN as u16);
        }
    }
    Ok((len, offload))
}

const TAG_LEN: usize = 4;

/// The VLAN tag that the kernel took out of the frame.
///
/// # Safety
/// The kernel has filled `message` in, and what it points to is still there.
unsafe fn tag(message: &libc::msghdr) -> Option<[u8; 4]> {
    // SAFETY: the macros walk inside the control buffer of a message that the kernel filled in; the
    // data of this kind of message is a `tpacket_auxdata`, read unaligned.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(message);
        while let Some(part) = at.as_ref() {
            let is_ours =
                part.cmsg_level == libc::SOL_PACKET && part.cmsg_type == libc::PACKET_AUXDATA;
            if is_ours
                && part.cmsg_len
                    >= libc::CMSG_LEN(size_of::<libc::tpacket_auxdata>() as u32) as usize
            {
                let data = libc::CMSG_DATA(at)
                    .cast::<libc::tpacket_auxdata>()
                    .read_unaligned();
                let tagged = data.tp_status & libc::TP_STATUS_VLAN_VALID != 0;
                let known = data.tp_status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
                let [a, b] = if known { data.tp_vlan_tpid } else { 0x8100 }.to_be_bytes();
                let [c, d] = data.tp_vlan_tci.to_be_bytes();
                return tagged.then_some([a, b, c, d]);
            }
            at = libc::CMSG_NXTHDR(message, at);
        }
    }
    None
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
