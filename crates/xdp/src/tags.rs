//! VLAN tags that a NIC takes out of frames and hands over beside them, where no XDP program sees
//! them: it is asked not to.

use rustix::net::{AddressFamily, SocketType, netdevice, socket};
use sys::ethtool;

use crate::error::Error;

/// A NIC that leaves VLAN tags in the frames it receives. Dropped, it does as it did before; where
/// the process was killed it leaves them in, and the kernel does that work.
#[derive(Debug)]
pub struct Tags {
    ifindex: u32,
    taken_out_before: bool,
}

impl Tags {
    /// Asks a NIC of the caller's network namespace to leave them.
    ///
    /// # Errors
    /// [`Error::Tags`]: it cannot be had.
    pub fn keep(ifindex: u32) -> Result<Self, Error> {
        let Some(name) = name_of(ifindex) else {
            return Err(Error::NoInterface { ifindex });
        };
        // A driver that does not say has no such setting.
        let taken_out_before = ethtool::strips_vlan_tags(&name) == Some(true);
        if taken_out_before {
            ethtool::strip_vlan_tags(&name, false).ok_or(Error::Tags { name })?;
        }
        Ok(Tags {
            ifindex,
            taken_out_before,
        })
    }

    /// A NIC that another process has asked already, and that took them out before.
    pub fn handed(ifindex: u32) -> Self {
        Tags {
            ifindex,
            taken_out_before: true,
        }
    }

    /// The NIC is to take them out again in the end.
    pub fn taken_out_before(&self) -> bool {
        self.taken_out_before
    }
}

impl Drop for Tags {
    fn drop(&mut self) {
        // An interface that is gone has no setting to be given back.
        if let Some(name) = name_of(self.ifindex).filter(|_| self.taken_out_before) {
            let _ = ethtool::strip_vlan_tags(&name, true);
        }
    }
}

/// By the name that it has now.
fn name_of(ifindex: u32) -> Option<String> {
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None).ok()?;
    netdevice::index_to_name(&socket, ifindex).ok()
}
