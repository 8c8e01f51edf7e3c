//! A TAP device beside a NIC that the kernel does not see: the kernel's end of that NIC.
//!
//! What the NIC brings that is not ours is written here and is the kernel's, what the kernel sends
//! by the interface is read here and leaves by the NIC. So it has addresses, neighbours and routes
//! for the NIC as for any of its own. All frames are complete.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use wire::virtio_net::HDR_LEN_MRG;

use super::{TapError, TapOptions, TapPort};

/// The kernel's end of a NIC. The interface goes when this is dropped. Any thread may use it.
#[derive(Debug)]
pub struct TapBeside {
    name: String,
    fd: OwnedFd,
}

/// linux/if_tun.h, since 5.0.
const TUNSETCARRIER: libc::Ioctl = 0x4004_54e2;

/// No frame is left undone.
const COMPLETE: [u8; HDR_LEN_MRG] = [0; HDR_LEN_MRG];

impl TapBeside {
    /// Makes the interface and brings it up. Needs CAP_NET_ADMIN.
    ///
    /// # Errors
    /// As [`TapPort::open`].
    pub fn open(options: &TapOptions) -> Result<TapBeside, TapError> {
        let tap = TapPort::open(options)?;
        let fd = tap
            .fd
            .ok_or_else(|| TapError::Removed(options.name.clone()))?;
        Ok(TapBeside {
            name: options.name.clone(),
            fd,
        })
    }

    /// The interface's name, as it was made.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A frame that the kernel sends, into `out`: its length. `None`: there is none, or the
    /// interface is not up.
    pub fn read(&self, out: &mut [u8]) -> Option<usize> {
        let mut header = [0; HDR_LEN_MRG];
        let mut parts = [IoSliceMut::new(&mut header), IoSliceMut::new(out)];
        let length = rustix::io::readv(&self.fd, &mut parts).ok()?;
        length.checked_sub(HDR_LEN_MRG).filter(|length| *length > 0)
    }

    /// Gives the kernel a frame. False: it has no room for it, or the interface is not up.
    pub fn write(&self, frame: &[u8]) -> bool {
        let parts = [IoSlice::new(&COMPLETE), IoSlice::new(frame)];
        rustix::io::writev(self.fd.as_fd(), &parts).is_ok()
    }

    /// Tells the kernel whether the NIC has a link. Before Linux 5.0 it cannot be told.
    pub fn set_carrier(&self, up: bool) {
        let up = libc::c_int::from(up);
        // SAFETY: TUNSETCARRIER reads an int, which lives as long as the call.
        unsafe { libc::ioctl(self.fd.as_raw_fd(), TUNSETCARRIER, &raw const up) };
    }
}
