//! What the host's firewall means for the router.

use netlink::firewall::Hook;

/// Which families' packets the firewall sees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Firewall {
    /// Hooks that see forwarded packets, by name.
    pub hooks: Vec<Hook>,
}

impl Firewall {
    /// Packets of IPv4 are the kernel's.
    pub fn sees_v4(&self) -> bool {
        self.hooks.iter().any(|hook| hook.v4)
    }

    /// Packets of IPv6 are the kernel's.
    pub fn sees_v6(&self) -> bool {
        self.hooks.iter().any(|hook| hook.v6)
    }
}
