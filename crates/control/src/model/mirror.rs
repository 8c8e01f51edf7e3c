//! A NIC's mirror: where copies of its frames are sent to, and how.

use super::{Direction, Nic, nic::is_host};
use crate::error::Error;
use std::fmt;
use std::net::IpAddr;

/// Of a frame at most, bytes: what fits in one UDP datagram behind its VXLAN header.
pub const SNAP_MAX: u32 = 65_000;

/// A collector of mirrored frames.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mirror {
    /// In which headers they are sent.
    pub kind: MirrorKind,
    /// The collector, which the host's own routes lead to.
    pub address: IpAddr,
    /// Frames of this direction alone. Default both.
    pub direction: Option<Direction>,
    /// The first bytes of each, so many at the most: up to [`SNAP_MAX`], which is the default.
    pub snap_len: Option<u32>,
}

/// The headers of mirrored frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MirrorKind {
    /// VXLAN (RFC 7348).
    Vxlan {
        /// The collector's UDP port.
        port: u16,
        /// The network of the collector's. Default: the NIC's number.
        vni: Option<wire::Vni>,
    },
    /// ERSPAN type II.
    Erspan {
        /// What the collector knows this mirror by: 1..=1023.
        session: u16,
    },
}

impl Mirror {
    /// Fails with what is out of bounds.
    pub(super) fn in_bounds(&self, nic: &Nic) -> Result<(), Error> {
        let refuse = |field, value: &dyn ToString, why| {
            Err(Error::value(&nic.owner(), field, &value.to_string(), why))
        };
        if !is_host(&self.address) {
            return refuse(
                "mirror address",
                &self.address,
                "is not the address of one host",
            );
        }
        match self.kind {
            MirrorKind::Vxlan { port: 0, .. } => {
                return refuse("mirror port", &0, "is not a UDP port");
            }
            MirrorKind::Erspan { session }
                if !(1..=wire::erspan::SESSION_MAX).contains(&session) =>
            {
                return refuse("mirror session", &session, "is not within 1 and 1023");
            }
            _ => {}
        }
        match self.snap_len {
            Some(bytes) if !(14..=SNAP_MAX).contains(&bytes) => refuse(
                "mirror snap length",
                &bytes,
                "is not within 14 and 65000 bytes",
            ),
            _ => Ok(()),
        }
    }
}

/// In a line, for what has changed.
impl fmt::Display for Mirror {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            MirrorKind::Vxlan { port, vni } => {
                write!(f, "vxlan {} port {port}", self.address)?;
                vni.map_or(Ok(()), |vni| write!(f, " vni {vni}"))
            }
            MirrorKind::Erspan { session } => {
                write!(f, "erspan {} session {session}", self.address)
            }
        }?;
        if let Some(direction) = self.direction {
            let only = match direction {
                Direction::Ingress => "in",
                Direction::Egress => "out",
            };
            write!(f, " {only} alone")?;
        }
        self.snap_len
            .map_or(Ok(()), |bytes| write!(f, " snap length {bytes}"))
    }
}
