//! An AF_XDP socket on one queue of an interface: made, given its memory and rings, bound in the
//! best mode the driver offers.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XdpOptionsFlags, XdpRingOffset, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};

use super::XskOptions;
use super::mapping::Mapping;
use super::options::Sizes;
use super::queue::Rings;
use super::ring::{Consumer, Entry, Producer, XskRing};
use super::umem::Umem;

/// Where the rings are found in a socket's address space (linux/if_xdp.h).
const RECEIVE: u64 = 0;
const TRANSMIT: u64 = 0x8000_0000;
const FILL: u64 = 0x1_0000_0000;
const COMPLETION: u64 = 0x1_8000_0000;

/// What was agreed with the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct XskMode {
    /// The NIC reads and writes the UMEM itself; else the kernel copies each frame once more.
    pub zero_copy: bool,
    /// A frame may lie in several chunks: jumbo frames pass.
    pub multi_buffer: bool,
}

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum XskError {
    /// The process may not, or the kernel has no AF_XDP.
    #[error("queue {queue} of '{interface}': an AF_XDP socket cannot be made: {error}")]
    Socket {
        /// The interface.
        interface: String,
        /// Its queue.
        queue: u32,
        /// What the kernel said.
        error: std::io::Error,
    },
    /// The interface takes no socket on this queue in any mode.
    #[error("queue {queue} of '{interface}' takes no AF_XDP socket: {error}")]
    Bind {
        /// The interface.
        interface: String,
        /// Its queue.
        queue: u32,
        /// What the kernel said to the least that was asked for.
        error: std::io::Error,
    },
}

/// A socket in the making has failed: to bind (another mode may do), or before that.
enum Failed {
    Before(Errno),
    Bind(Errno),
}

impl From<Errno> for Failed {
    fn from(errno: Errno) -> Self {
        Failed::Before(errno)
    }
}

/// Makes a socket for one queue with this memory. `one_chunk`: every frame fits in one, so that a
/// driver without multi-buffer will do.
pub(super) fn open(
    options: &XskOptions,
    umem: &Arc<Umem>,
    one_chunk: bool,
) -> Result<(OwnedFd, Rings, XskMode), XskError> {
    let (interface, queue) = (options.interface.clone(), options.queue);
    let mut last = Errno::OPNOTSUPP;
    for (zero_copy, multi_buffer) in [(true, true), (true, false), (false, true), (false, false)] {
        if (!multi_buffer && !one_chunk) || (zero_copy && !options.zero_copy) {
            continue;
        }
        let mode = XskMode {
            zero_copy,
            multi_buffer,
        };
        // A new socket for each try: one that was refused keeps what it was refused with.
        match attempt(options.ifindex, queue, umem, mode) {
            Ok((socket, rings)) => return Ok((socket, rings, mode)),
            Err(Failed::Bind(errno)) => last = errno,
            Err(Failed::Before(errno)) => {
                return Err(XskError::Socket {
                    interface,
                    queue,
                    error: errno.into(),
                });
            }
        }
    }
    Err(XskError::Bind {
        interface,
        queue,
        error: last.into(),
    })
}

fn attempt(
    ifindex: u32,
    queue: u32,
    umem: &Arc<Umem>,
    mode: XskMode,
) -> Result<(OwnedFd, Rings), Failed> {
    let socket = socket_with(
        AddressFamily::XDP,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let registration = XdpUmemReg {
        addr: umem.start().expose_provenance() as u64,
        len: umem.len() as u64,
        chunk_size: umem.chunk_len(),
        headroom: 0,
        flags: XdpUmemRegFlags::empty(),
        tx_metadata_len: 0,
    };
    sockopt::set_xdp_umem_reg(&socket, registration)?;
    let size = umem.count();
    let fill_size = Sizes::fill_ring(size);
    sockopt::set_xdp_umem_fill_ring_size(&socket, fill_size)?;
    sockopt::set_xdp_umem_completion_ring_size(&socket, size)?;
    sockopt::set_xdp_rx_ring_size(&socket, size)?;
    sockopt::set_xdp_tx_ring_size(&socket, size)?;
    // Else copy mode sends 32 frames a call. Kernels before 6.17 do not know it.
    let _ = set_int(
        socket.as_fd(),
        libc::SOL_XDP,
        XDP_MAX_TX_SKB_BUDGET,
        size as i32,
    );
    let rings = rings(socket.as_fd(), size)?;
    let mut flags = SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
    flags.set(SocketAddrXdpFlags::XDP_USE_SG, mode.multi_buffer);
    flags |= match mode.zero_copy {
        true => SocketAddrXdpFlags::XDP_ZEROCOPY,
        false => SocketAddrXdpFlags::XDP_COPY,
    };
    bind(&socket, &SocketAddrXdp::new(flags, ifindex, queue)).map_err(Failed::Bind)?;
    debug_assert_eq!(
        sockopt::xdp_options(&socket)
            .map(|options| options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY)),
        Ok(mode.zero_copy)
    );
    Ok((socket, rings))
}

/// The rings of a socket whose UMEM has `size` chunks in each half: of a new one, or of one that
/// another process has bound (since Linux 6.4).
pub(super) fn rings(fd: BorrowedFd<'_>, size: u32) -> Result<Rings, Errno> {
    let offsets = sockopt::xdp_mmap_offsets(fd)?;
    Ok(Rings {
        fill: Producer::new(ring(fd, FILL, &offsets.fr, Sizes::fill_ring(size))?),
        receive: Consumer::new(ring(fd, RECEIVE, &offsets.rx, size)?),
        transmit: Producer::new(ring(fd, TRANSMIT, &offsets.tx, size)?),
        completion: Consumer::new(ring(fd, COMPLETION, &offsets.cr, size)?),
    })
}

fn ring<T: Entry>(
    socket: BorrowedFd<'_>,
    which: u64,
    offsets: &XdpRingOffset,
    size: u32,
) -> Result<XskRing<T>, Errno> {
    let len = offsets.desc as usize + size as usize * size_of::<T>();
    let mapping = Mapping::of_socket(socket, which, len)?;
    XskRing::new(Arc::new(mapping), offsets, size).ok_or(Errno::INVAL)
}

/// Asks for busy polling: as long as somebody reads from the socket all the time, the kernel leaves
/// the queue's interrupts off and does its work within our calls
/// (Documentation/networking/napi.rst). Says whether the kernel has it.
pub(super) fn prefer_busy_poll(socket: BorrowedFd<'_>, on: bool) -> bool {
    // asm-generic/socket.h
    const SO_BUSY_POLL: i32 = 46;
    const SO_PREFER_BUSY_POLL: i32 = 69;
    const SO_BUSY_POLL_BUDGET: i32 = 70;
    let micros = if on { 20 } else { 0 };
    let set = |option: i32, value: i32| set_int(socket, libc::SOL_SOCKET, option, value);
    set(SO_PREFER_BUSY_POLL, i32::from(on))
        && set(SO_BUSY_POLL, micros)
        && set(SO_BUSY_POLL_BUDGET, 64)
}

/// linux/if_xdp.h, since 6.17: frames that one call sends in copy mode, up to the ring's size.
const XDP_MAX_TX_SKB_BUDGET: i32 = 9;

/// Sets an option that is an int. Says whether the kernel took it.
fn set_int(socket: BorrowedFd<'_>, level: i32, option: i32, value: i32) -> bool {
    // SAFETY: the value is an int that lives as long as the call, as these options take it.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<i32>() as libc::socklen_t,
        ) == 0
    }
}
