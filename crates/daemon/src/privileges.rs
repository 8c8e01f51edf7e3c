//! What the process may do beyond an ordinary user, and what it gives up.
//!
//! Run as root, nothing changes. Run as a user of its own with some capabilities, as
//! `packaging/butterflyd.service` does, the one that would be worth most to who takes the process
//! over, CAP_SYS_ADMIN, is needed for two things: the network namespace of health checks, and
//! entering those of containers. So both are left to a small process of its own
//! (`container::namespace_helper`), and the capability is given up for good before there is another
//! thread, and before anybody's bytes are read.

use rustix::process::geteuid;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use crate::namespaces;

/// To be called while the process has one thread. The error is a sentence.
pub fn settle() -> Result<(), String> {
    if geteuid().is_root() || !has(CapabilitySet::SYS_ADMIN) {
        return Ok(());
    }
    if let Err(why) = namespaces::prepare() {
        tracing::warn!("{why}");
    }
    give_up(CapabilitySet::SYS_ADMIN)
}

fn has(capability: CapabilitySet) -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(capability))
}

/// Takes a capability from the calling thread, those that it will start, and what it will run:
/// from the effective, permitted and inheritable sets, and so from the ambient one too
/// (capabilities(7)).
fn give_up(capability: CapabilitySet) -> Result<(), String> {
    let less = capabilities(None).and_then(|mut sets| {
        sets.effective.remove(capability);
        sets.permitted.remove(capability);
        sets.inheritable.remove(capability);
        set_capabilities(None, sets)
    });
    less.map_err(|e| format!("a capability cannot be given up: {e}"))
}
