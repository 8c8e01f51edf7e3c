//! A TAP device as a port: a container, a namespace or the host itself is the guest.
//!
//! What the interface's user transmits is read here, what is delivered to it is written. The device
//! speaks the virtio-net header, so checksums and segments stay undone between a TAP guest and a
//! virtual machine. Each frame is one system call in each direction; a delivered frame is copied
//! once, by the kernel, straight from the sender's memory. The port is driven by one worker, as all
//! ports.

mod beside;
mod device;
mod station;

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use wire::Mac;
use wire::checksum::Sum;
use wire::offload::{Gso, Offload};
use wire::virtio_net::{self, HDR_LEN_MRG};
use wire::vxlan::Outer;

pub use beside::TapBeside;
pub use device::{HeldTap, MachineTap, TapError, TapOptions};
pub use station::{Received, Receiver, TapUplink, TapVoice};

use crate::deliver::{self, Accepts, Piece, Sink};
use crate::error::{PortError, TransmitError};
use crate::frame::{BATCH, Batch, Fault, HEAD_MAX};
use crate::outer::{self, OuterSink};
use crate::port_info::PortInfo;

/// Pieces of a frame that one write takes: header, head and this many body segments. A frame in
/// more pieces (none of a sane guest) is copied together first.
const SEGMENTS_MAX: usize = 62;

/// The switch's end of a TAP device. The interface goes when this is dropped, unless somebody else
/// has another descriptor of it.
#[derive(Debug)]
pub struct TapPort {
    name: String,
    /// `None` of one that could not be made. Of one that is gone it stays, for the poller to forget
    /// it.
    fd: Option<OwnedFd>,
    mtu: Option<u16>,
    accepts: Accepts,
    received: u64,
    transmitted: u64,
    /// Frames in one piece, when they have to be: see [`TapPort::put`].
    scratch: Vec<u8>,
    broken: Option<String>,
    /// `broken` has been returned to the caller.
    reported: bool,
}

impl TapPort {
    /// Makes the interface and brings it up: see [`TapOptions`]. Needs CAP_NET_ADMIN.
    pub fn open(options: &TapOptions) -> Result<TapPort, TapError> {
        Ok(TapPort::of(device::open(options, true)?, options))
    }

    /// Makes the interface and leaves it down, for a caller that has something to do to it first.
    /// Needs CAP_NET_ADMIN.
    pub fn open_down(options: &TapOptions) -> Result<TapPort, TapError> {
        Ok(TapPort::of(device::open(options, false)?, options))
    }

    /// Takes up a device that [`open`](TapPort::open) has made in a process before this one. Its
    /// MAC address and MTU stay as they are: [`reconfigure`](TapPort::reconfigure) is for when they
    /// are to be others.
    pub fn adopt(fd: OwnedFd, options: &TapOptions) -> Result<TapPort, TapError> {
        Ok(TapPort::of(device::adopt(fd, options)?, options))
    }

    /// The port of a device that is gone and cannot be made now: it is broken, for this reason.
    pub fn gone(options: &TapOptions, why: String) -> TapPort {
        TapPort {
            name: options.name.clone(),
            fd: None,
            mtu: options.mtu,
            accepts: Accepts::default(),
            received: 0,
            transmitted: 0,
            scratch: Vec::new(),
            broken: Some(why),
            // Whoever makes it knows.
            reported: true,
        }
    }

    /// To be kept for a process after this one; `None` once the device is gone.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.device().map(AsFd::as_fd)
    }

    /// `None` once the device is gone.
    fn device(&self) -> Option<&OwnedFd> {
        self.fd.as_ref().filter(|_| self.broken.is_none())
    }

    /// The interface's index, if it is in the network namespace of this thread. `None`: it is
    /// elsewhere, or gone, or the kernel does not say.
    pub fn index_here(&self) -> Option<u32> {
        device::index_here(self.device()?).ok().flatten()
    }

    /// Why the device is gone, if it is.
    pub fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    fn of(device: device::Device, options: &TapOptions) -> TapPort {
        let all = Accepts {
            uso: device.uso,
            ..Accepts::ALL
        };
        TapPort {
            name: options.name.clone(),
            fd: Some(device.fd),
            mtu: options.mtu,
            accepts: if options.offloads {
                all
            } else {
                Accepts::default()
            },
            received: 0,
            transmitted: 0,
            scratch: Vec::new(),
            broken: None,
            reported: false,
        }
    }

    /// Gives the interface another MAC address and MTU (`None`: it keeps its own), wherever it was
    /// moved and whatever it was renamed to. For whoever owns the port, before it is a worker's: a
    /// call or two of the system.
    pub fn reconfigure(&mut self, mac: Mac, mtu: Option<u16>) -> Result<(), TapError> {
        let Some(fd) = self.device() else {
            return Ok(());
        };
        device::reconfigure(fd, &self.name, mac, mtu)?;
        self.mtu = mtu.or(self.mtu);
        Ok(())
    }

    pub(crate) fn receive(&mut self, batch: &mut Batch) -> Result<usize, PortError> {
        self.receive_sifted(batch, |_, _| true)
    }

    /// Receives frames, but for those that `keep` says no to; it may write to the device.
    fn receive_sifted(
        &mut self,
        batch: &mut Batch,
        mut keep: impl FnMut(&OwnedFd, &[u8]) -> bool,
    ) -> Result<usize, PortError> {
        self.report()?;
        let (Some(fd), None) = (&self.fd, &self.broken) else {
            return Ok(0);
        };
        let mut failure = None;
        let (mut count, mut sifted) = (0, 0);
        let mut header = [0; HDR_LEN_MRG];
        while batch.room() > 0 {
            let mut fault = false;
            let pushed = batch.push_with(|buffer| {
                let len = loop {
                    let mut parts = [IoSliceMut::new(&mut header), IoSliceMut::new(buffer)];
                    let len = rustix::io::readv(fd, &mut parts)?.saturating_sub(HDR_LEN_MRG);
                    if len == 0 || keep(fd, &buffer[..len]) {
                        break len;
                    }
                    sifted += 1;
                    // Others wait for this worker, too: the rest with the next turn.
                    if sifted == BATCH {
                        break 0;
                    }
                };
                let offload = virtio_net::decode(&header);
                fault = offload.is_err();
                Ok::<_, Errno>((len > 0).then(|| (len, offload.unwrap_or_default())))
            });
            match pushed {
                Ok(true) => count += 1,
                Ok(false) => break,
                Err(errno) => {
                    failure = Some(errno);
                    break;
                }
            }
            if fault && let Some(frame) = batch.frames_mut().last_mut() {
                frame.set_fault(Fault::BadOffload);
            }
        }
        self.received += count as u64;
        batch.count_others(sifted);
        if let Some(errno) = failure {
            self.failed(errno);
        }
        // With frames in hand they come first, and the error with the next call.
        if count == 0 {
            self.report()?;
        }
        Ok(count)
    }

    pub(crate) fn transmit(&mut self, batch: &Batch, index: usize) -> Result<(), TransmitError> {
        if self.broken.is_some() {
            return Err(TransmitError::Down);
        }
        deliver::deliver(batch, index, self.accepts, self)
    }

    pub(crate) fn transmit_outer(
        &mut self,
        batch: &Batch,
        index: usize,
        outer: &Outer,
    ) -> Result<(), TransmitError> {
        if self.broken.is_some() {
            return Err(TransmitError::Down);
        }
        outer::deliver(batch, index, Some(outer), Accepts::default(), self)
    }

    pub(crate) fn flush(&mut self) -> Result<(), PortError> {
        self.report()
    }

    /// Readable as long as there are frames: no need to ask for it. Of a device that is gone, too,
    /// for the poller to forget it: closing it is not enough where the keeper has it as well.
    pub(crate) fn kick_fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    /// True as long as the interface exists. Whether its user has set it up shows when frames are
    /// delivered.
    pub(crate) fn is_up(&self) -> bool {
        self.broken.is_none()
    }

    pub(crate) fn mtu(&self) -> Option<u16> {
        self.mtu
    }

    pub(crate) fn accepts(&self) -> Accepts {
        self.accepts
    }

    pub(crate) fn info(&self) -> PortInfo {
        PortInfo {
            kind: "tap",
            up: self.is_up(),
            frames_received: self.received,
            frames_transmitted: self.transmitted,
            broken: self.broken.clone(),
            ..PortInfo::default()
        }
    }

    /// Says once that the device is gone.
    fn report(&mut self) -> Result<(), PortError> {
        match &self.broken {
            Some(what) if !self.reported => {
                self.reported = true;
                Err(PortError::Broken { what: what.clone() })
            }
            _ => Ok(()),
        }
    }

    /// What an error of a read or write means for the frame; errors that mean the end of the device
    /// are kept.
    fn failed(&mut self, errno: Errno) -> TransmitError {
        match errno {
            Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::INTR => TransmitError::Full,
            // The interface is not set up.
            Errno::IO => TransmitError::Down,
            // The kernel could not make sense of the header, or the sender's memory has gone.
            Errno::INVAL | Errno::FAULT => TransmitError::BadOffload,
            Errno::MSGSIZE => TransmitError::TooSmall,
            errno => {
                self.broken = Some(if errno == Errno::BADFD {
                    format!("TAP interface '{}' was removed", self.name)
                } else {
                    format!(
                        "TAP interface '{}': {}",
                        self.name,
                        std::io::Error::from(errno)
                    )
                });
                TransmitError::Broken
            }
        }
    }

    /// Writes header, head and body as they are, wherever they are.
    fn write_parts(
        fd: &OwnedFd,
        header: &[u8],
        head: &[u8],
        piece: &Piece<'_>,
    ) -> rustix::io::Result<()> {
        let mut parts = [libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        }; SEGMENTS_MAX + 2];
        let own = [header, head].map(|bytes| (bytes.as_ptr(), bytes.len()));
        let body = piece
            .body
            .segments()
            .map(|segment| (segment.ptr, segment.len));
        let mut count = 0;
        for (part, (ptr, len)) in parts.iter_mut().zip(own.into_iter().chain(body)) {
            *part = libc::iovec {
                iov_base: ptr.cast_mut().cast(),
                iov_len: len,
            };
            count += 1;
        }
        // SAFETY: `header` and `head` are slices, and a body segment is valid for reads while the
        // batch is not cleared (`Segment`), which outlives this call; the kernel only reads. The
        // guest may write its bytes meanwhile: the receiver gets what the kernel copied.
        let written = unsafe { libc::writev(fd.as_raw_fd(), parts.as_ptr(), count) };
        if written < 0 {
            Err(last_errno())
        } else {
            Ok(())
        }
    }
}

impl Sink for TapPort {
    fn put(&mut self, piece: &Piece<'_>) -> Result<(), TransmitError> {
        let (Some(fd), None) = (&self.fd, &self.broken) else {
            return Err(TransmitError::Down);
        };
        let in_place = piece.checksum.is_none()
            && piece.body.segments().take(SEGMENTS_MAX + 1).count() <= SEGMENTS_MAX;
        let written = if in_place {
            let mut room = [0; HEAD_MAX];
            let head = piece.head_in(&mut room, Sum::new());
            let header = virtio_net::encode(&piece.offload, headers_len(&piece.offload, head), 0);
            Self::write_parts(fd, &header, head, piece)
        } else {
            let mut scratch = std::mem::take(&mut self.scratch);
            piece.linearize(&mut scratch);
            let head = &scratch[..piece.head.len()];
            let header = virtio_net::encode(&piece.offload, headers_len(&piece.offload, head), 0);
            let parts = [IoSlice::new(&header), IoSlice::new(&scratch)];
            let written = rustix::io::writev(fd, &parts);
            self.scratch = scratch;
            written.map(|_| ())
        };
        written.map_err(|errno| self.failed(errno))?;
        self.transmitted += 1;
        Ok(())
    }
}

impl OuterSink for TapPort {
    fn put_outer(&mut self, outer: Option<&Outer>, piece: &Piece<'_>) -> Result<(), TransmitError> {
        let (Some(fd), None) = (&self.fd, &self.broken) else {
            return Err(TransmitError::Down);
        };
        let header = virtio_net::encode(&Offload::default(), 0, 0);
        self.scratch.resize(outer::len(outer, piece), 0);
        outer::write(&mut self.scratch, outer, piece, None);
        let written = rustix::io::writev(fd, &[IoSlice::new(&header), IoSlice::new(&self.scratch)]);
        written.map_err(|errno| self.failed(errno))?;
        self.transmitted += 1;
        Ok(())
    }
}

/// How many bytes the headers of a frame have that is to be cut into segments: the hint by which
/// the kernel decides what to keep together. 0 for other frames.
fn headers_len(offload: &Offload, head: &[u8]) -> u16 {
    let Some(checksum) = offload.checksum else {
        return 0;
    };
    let transport = usize::from(checksum.start);
    let len = match offload.gso {
        Gso::None => return 0,
        Gso::Udp => 8,
        // The upper half of the 13th byte: TCP's header length in units of four bytes.
        Gso::Tcp4 | Gso::Tcp6 => head
            .get(transport + 12)
            .map_or(20, |byte| usize::from(byte >> 4) * 4),
    };
    (transport + len).min(head.len()) as u16
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests;
