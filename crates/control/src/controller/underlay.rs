//! What the physical network under the overlay has to do with the model: which hosts it has to
//! reach, and how much it carries.

use super::{Controller, request};
use crate::attach::Declared;
use crate::error::Error;
use crate::model::{Flood, multicast_group};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

/// The hosts that the networks with a NIC of this host send to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Reach {
    /// Hosts of those networks. Others are sent to only when they were learnt.
    pub hosts: BTreeSet<IpAddr>,
    /// Multicast groups that they flood to, and hear.
    pub groups: BTreeSet<IpAddr>,
}

impl Controller {
    /// The hosts that this host sends to now.
    pub fn reach(&self) -> Reach {
        let (state, overlay) = (&self.state, &self.state.overlay);
        let mut reach = Reach::default();
        for vni in state.networks.keys().copied() {
            let members = overlay.members_of(vni).map(|(address, _)| address);
            reach.hosts.extend(members);
            if let Flood::Multicast(group) = overlay.mode(vni).flood {
                let own = || multicast_group(vni, self.settings.underlay_ipv6);
                reach.groups.insert(group.unwrap_or_else(own));
            }
        }
        if !state.networks.is_empty() {
            reach.hosts.extend(overlay.everywhere.iter().copied());
        }
        reach
    }

    /// Another largest packet of NICs that say none: they are told, as far as they can be while
    /// they run, and those that come later get it at once.
    pub fn set_default_mtu(&mut self, mtu: u16) -> Result<(), Error> {
        if self.settings.default_mtu == mtu {
            return Ok(());
        }
        let mut settings = self.settings.clone();
        settings.default_mtu = mtu;
        let mut next = self.state.clone();
        if next.recompile_mtu(&settings) {
            self.dataplane.publish(Arc::new(next.snapshot.clone()))?;
            self.state = next;
        }
        self.settings = settings;
        for entry in self
            .state
            .nics
            .values()
            .filter(|entry| entry.nic.mtu.is_none())
        {
            self.attachments
                .reconfigure(&request(&self.settings, entry, Declared::Before));
        }
        Ok(())
    }
}
