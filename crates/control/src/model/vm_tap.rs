//! What a NIC of kind VM_TAP is for: the VMM that opens the device.

use super::nic::Nic;
use crate::error::Error;

/// Who may open the device, and how.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct VmTap {
    /// The user; `None`: root, or any if there is a group.
    pub uid: Option<u32>,
    /// The group; `None`: none.
    pub gid: Option<u32>,
    /// It has several queues.
    pub multi_queue: bool,
}

impl VmTap {
    /// The number that no user and no group has: the kernel takes it for "as it is".
    const NOBODY: u32 = u32::MAX;

    pub(crate) fn check(&self, nic: &Nic) -> Result<(), Error> {
        for (what, id) in [
            ("user of its TAP", self.uid),
            ("group of its TAP", self.gid),
        ] {
            if id == Some(VmTap::NOBODY) {
                let why = "is nobody's number";
                return Err(Error::value(
                    &nic.owner(),
                    what,
                    &VmTap::NOBODY.to_string(),
                    why,
                ));
            }
        }
        Ok(())
    }
}

impl std::fmt::Display for VmTap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let id = |id: Option<u32>| id.map_or("-".to_owned(), |id| id.to_string());
        write!(f, "{}:{}", id(self.uid), id(self.gid))?;
        if self.multi_queue {
            f.write_str(" with several queues")?;
        }
        Ok(())
    }
}
