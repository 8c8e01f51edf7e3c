//! A TAP device as an uplink, for a host where no interface has our address: the kernel behind the
//! interface is the wire.
//!
//! Other than a TAP NIC, whose guest is whoever uses the interface, we are a station of our own
//! here, with a MAC and an address that the kernel does not have: as a virtual machine would be
//! that the interface was made for. What comes is sifted by whoever opened the port ([`Receiver`]):
//! packets for us, questions that are answered at once, and the rest, which is nobody's. The kernel
//! completes what it sends by such a device, and takes what is complete.

use std::fmt;
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use wire::virtio_net::HDR_LEN_MRG;
use wire::vxlan::Outer;

use super::{TapError, TapOptions, TapPort};
use crate::deliver::Piece;
use crate::error::{PortError, TransmitError};
use crate::frame::Batch;
use crate::outer::{self, OuterSink};
use crate::port_info::PortInfo;
use crate::xsk::Link;

/// What a frame from the interface is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Received {
    /// A packet for us.
    Ours,
    /// A question; this frame is the answer.
    Question(Vec<u8>),
    /// Nothing that concerns us, or nothing more than was heard.
    Else,
}

/// Says what a frame is. Called by the worker that has the port: it must not wait.
pub type Receiver = Arc<dyn Fn(&[u8]) -> Received + Send + Sync>;

/// The port.
pub struct TapUplink {
    tap: TapPort,
    receiver: Receiver,
    link: Arc<Link>,
}

/// Sends frames of its own by the interface, from any thread. To be dropped with the port: the
/// interface goes with both.
#[derive(Debug)]
pub struct TapVoice(OwnedFd);

/// No frame is left undone.
const COMPLETE: [u8; HDR_LEN_MRG] = [0; HDR_LEN_MRG];

impl TapUplink {
    /// Makes the interface and brings it up; `link` is its MTU and state from now on. Needs
    /// CAP_NET_ADMIN.
    ///
    /// # Errors
    /// As [`TapPort::open`].
    pub fn open(
        options: &TapOptions,
        link: Arc<Link>,
        receiver: Receiver,
    ) -> Result<(TapUplink, TapVoice), TapError> {
        TapUplink::over(TapPort::open(options)?, options, link, receiver)
    }

    /// Goes on with an interface that another process has made, by its descriptor
    /// ([`TapVoice::try_clone`]).
    ///
    /// # Errors
    /// As [`TapPort::adopt`].
    pub fn adopt(
        fd: OwnedFd,
        options: &TapOptions,
        link: Arc<Link>,
        receiver: Receiver,
    ) -> Result<(TapUplink, TapVoice), TapError> {
        TapUplink::over(TapPort::adopt(fd, options)?, options, link, receiver)
    }

    fn over(
        tap: TapPort,
        options: &TapOptions,
        link: Arc<Link>,
        receiver: Receiver,
    ) -> Result<(TapUplink, TapVoice), TapError> {
        let step = |error| TapError::Step {
            name: options.name.clone(),
            step: "sharing its descriptor",
            error,
        };
        let voice = match &tap.fd {
            Some(fd) => fd.try_clone().map_err(step)?,
            // It has just been opened.
            None => return Err(step(std::io::ErrorKind::NotFound.into())),
        };
        Ok((
            TapUplink {
                tap,
                receiver,
                link,
            },
            TapVoice(voice),
        ))
    }

    pub(crate) fn receive(&mut self, batch: &mut Batch) -> Result<usize, PortError> {
        let receiver = &self.receiver;
        self.tap
            .receive_sifted(batch, |fd, frame| match receiver(frame) {
                Received::Ours => true,
                Received::Question(answer) => {
                    // Where there is no room for it now it is asked again.
                    let _ = say(fd.as_fd(), &answer);
                    false
                }
                Received::Else => false,
            })
    }

    pub(crate) fn flush(&mut self) -> Result<(), PortError> {
        self.tap.flush()
    }

    pub(crate) fn kick_fd(&self) -> Option<BorrowedFd<'_>> {
        self.tap.kick_fd()
    }

    pub(crate) fn is_up(&self) -> bool {
        self.tap.is_up() && self.link.is_up()
    }

    pub(crate) fn mtu(&self) -> Option<u16> {
        Some(u16::try_from(self.link.mtu()).unwrap_or(u16::MAX))
    }

    pub(crate) fn info(&self) -> PortInfo {
        PortInfo {
            up: self.is_up(),
            ..self.tap.info()
        }
    }
}

impl OuterSink for TapUplink {
    fn put_outer(&mut self, outer: Option<&Outer>, piece: &Piece<'_>) -> Result<(), TransmitError> {
        // The kernel takes frames of any length from here.
        if outer::len(outer, piece) > self.link.mtu() as usize + LINK_HEADER {
            return Err(TransmitError::TooSmall);
        }
        self.tap.put_outer(outer, piece)
    }
}

/// The Ethernet header: no tags here.
const LINK_HEADER: usize = 14;

impl TapVoice {
    /// For another process that is to go on with the interface.
    pub fn try_clone(&self) -> std::io::Result<OwnedFd> {
        self.0.try_clone()
    }

    /// Sends a frame. False when there was no room, or the interface is gone.
    pub fn say(&self, frame: &[u8]) -> bool {
        say(self.0.as_fd(), frame).is_ok()
    }
}

fn say(device: BorrowedFd<'_>, frame: &[u8]) -> rustix::io::Result<usize> {
    rustix::io::writev(device, &[IoSlice::new(&COMPLETE), IoSlice::new(frame)])
}

impl fmt::Debug for TapUplink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TapUplink")
            .field("tap", &self.tap)
            .field("link", &self.link)
            .finish_non_exhaustive()
    }
}
