//! A queue of an uplink: the ports that join this host to others, one for each queue of an
//! interface.
//!
//! What is received is a frame as it was on the wire, outer headers and all; what is transmitted
//! gets its outer headers with [`transmit_outer`](crate::port::Port::transmit_outer). The kernel
//! keeps the interface, or has an end of its own: only VXLAN for us comes here.

use std::os::fd::BorrowedFd;

use wire::vxlan::Outer;

use crate::deliver::Accepts;
use crate::dpdk::DpdkPort;
use crate::error::{PortError, TransmitError};
use crate::frame::Batch;
use crate::outer;
use crate::packet_socket::PacketPort;
use crate::port_info::PortInfo;
use crate::tap::TapUplink;
use crate::xsk::XskPort;

/// How the queue is reached.
#[allow(
    clippy::large_enum_variant,
    reason = "it is always in a box of its own: `Port::Uplink`"
)]
#[derive(Debug)]
pub enum UplinkPort {
    /// An AF_XDP socket.
    Xsk(XskPort),
    /// A packet socket: the whole interface.
    Packet(PacketPort),
    /// A TAP device: the kernel behind it is the wire.
    Tap(TapUplink),
    /// A device that DPDK drives.
    Dpdk(DpdkPort),
}

impl UplinkPort {
    pub(crate) fn receive(&mut self, batch: &mut Batch) -> Result<usize, PortError> {
        match self {
            UplinkPort::Xsk(port) => port.receive(batch),
            UplinkPort::Packet(port) => port.receive(batch),
            UplinkPort::Tap(port) => port.receive(batch),
            UplinkPort::Dpdk(port) => port.receive(batch),
        }
    }

    pub(crate) fn complete(&mut self, buffers: usize) {
        match self {
            UplinkPort::Xsk(port) => port.complete(buffers),
            UplinkPort::Dpdk(port) => port.complete(buffers),
            UplinkPort::Packet(_) | UplinkPort::Tap(_) => {}
        }
    }

    /// Writes a frame, cut and complete, behind `outer` if that is given.
    #[inline]
    pub(crate) fn transmit(
        &mut self,
        batch: &Batch,
        index: usize,
        outer: Option<&Outer>,
    ) -> Result<(), TransmitError> {
        if !self.is_up() {
            return Err(TransmitError::Down);
        }
        let nothing = Accepts::default();
        match self {
            UplinkPort::Xsk(port) => outer::deliver(batch, index, outer, nothing, port),
            UplinkPort::Packet(port) => outer::deliver(batch, index, outer, nothing, port),
            UplinkPort::Tap(port) => outer::deliver(batch, index, outer, nothing, port),
            UplinkPort::Dpdk(port) => port.transmit(batch, index, outer),
        }
    }

    pub(crate) fn flush(&mut self) -> Result<(), PortError> {
        match self {
            UplinkPort::Xsk(port) => port.flush(),
            UplinkPort::Packet(port) => port.flush(),
            UplinkPort::Tap(port) => port.flush(),
            UplinkPort::Dpdk(port) => port.flush(),
        }
    }

    pub(crate) fn arm(&mut self) -> bool {
        match self {
            UplinkPort::Xsk(port) => port.arm(),
            // Its descriptor is readable whenever there is a frame.
            UplinkPort::Packet(_) | UplinkPort::Tap(_) => false,
            // Nobody wakes us: it is looked at when `next_tick` says.
            UplinkPort::Dpdk(_) => false,
        }
    }

    pub(crate) fn look(&mut self) -> Option<bool> {
        match self {
            UplinkPort::Xsk(port) => Some(port.look()),
            UplinkPort::Packet(_) | UplinkPort::Tap(_) | UplinkPort::Dpdk(_) => None,
        }
    }

    pub(crate) fn disarm(&mut self) {
        match self {
            UplinkPort::Xsk(port) => port.disarm(),
            UplinkPort::Packet(_) | UplinkPort::Tap(_) | UplinkPort::Dpdk(_) => {}
        }
    }

    pub(crate) fn kick_fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            UplinkPort::Xsk(port) => port.kick_fd(),
            UplinkPort::Packet(port) => port.kick_fd(),
            UplinkPort::Tap(port) => port.kick_fd(),
            UplinkPort::Dpdk(_) => None,
        }
    }

    pub(crate) fn kicked(&mut self) {
        match self {
            // A socket is readable as long as there are frames; what stands for it in memory is
            // not.
            UplinkPort::Xsk(port) => {
                if port.is_in_memory()
                    && let Some(kick) = port.kick_fd()
                {
                    let _ = rustix::io::read(kick, &mut [0; 8]);
                }
            }
            UplinkPort::Packet(_) | UplinkPort::Tap(_) | UplinkPort::Dpdk(_) => {}
        }
    }

    /// What time it is. Only what is polled minds.
    #[inline]
    pub(crate) fn tick(&mut self, mono_ns: u64) {
        if let UplinkPort::Dpdk(port) = self {
            port.tick(mono_ns);
        }
    }

    pub(crate) fn next_tick(&self) -> Option<u64> {
        match self {
            UplinkPort::Dpdk(port) => Some(port.next_tick()),
            UplinkPort::Xsk(_) | UplinkPort::Packet(_) | UplinkPort::Tap(_) => None,
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        match self {
            UplinkPort::Xsk(port) => port.is_up(),
            UplinkPort::Packet(port) => port.is_up(),
            UplinkPort::Tap(port) => port.is_up(),
            UplinkPort::Dpdk(port) => port.is_up(),
        }
    }

    pub(crate) fn mtu(&self) -> Option<u16> {
        match self {
            UplinkPort::Xsk(port) => port.mtu(),
            UplinkPort::Packet(port) => port.mtu(),
            UplinkPort::Tap(port) => port.mtu(),
            UplinkPort::Dpdk(port) => port.mtu(),
        }
    }

    pub(crate) fn info(&self) -> PortInfo {
        match self {
            UplinkPort::Xsk(port) => port.info(),
            UplinkPort::Packet(port) => port.info(),
            UplinkPort::Tap(port) => port.info(),
            UplinkPort::Dpdk(port) => port.info(),
        }
    }
}

impl From<XskPort> for UplinkPort {
    fn from(port: XskPort) -> Self {
        UplinkPort::Xsk(port)
    }
}

impl From<PacketPort> for UplinkPort {
    fn from(port: PacketPort) -> Self {
        UplinkPort::Packet(port)
    }
}

impl From<TapUplink> for UplinkPort {
    fn from(port: TapUplink) -> Self {
        UplinkPort::Tap(port)
    }
}

impl From<DpdkPort> for UplinkPort {
    fn from(port: DpdkPort) -> Self {
        UplinkPort::Dpdk(port)
    }
}
