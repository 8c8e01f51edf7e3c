//! Who has how many of the MACs learnt, and whether one more has room.

use std::net::IpAddr;

use foldhash::quality::SeedableRandomState;
use wire::Vni;

use super::Location;
use crate::count::Count;

/// The last one in so many of the table is for networks that have few MACs.
const RESERVED: usize = 8;

/// So many are few in a table of 65,536, in which there is room for 512 such networks.
const FEW: usize = 16;
const FEW_OF: usize = 4096;

/// How many there are, by whom they are charged to.
pub(super) struct Shares {
    max: usize,
    /// Of a network at each location: networks share a host, and not its part of the room.
    locations: Count<(Vni, Location)>,
    /// In each network.
    networks: Count<Vni>,
    /// At each other host, in all networks.
    hosts: Count<IpAddr>,
}

impl Shares {
    /// Of a table for `max` of them.
    pub(super) fn new(max: usize, hasher: SeedableRandomState) -> Shares {
        Shares {
            max,
            locations: Count::new(hasher.clone()),
            networks: Count::new(hasher.clone()),
            hosts: Count::new(hasher),
        }
    }

    /// Another one may be noted there, beside the `used` ones of the table.
    pub(super) fn has_room(&self, vni: Vni, location: Location, used: usize) -> bool {
        let in_network = self.networks.of(&vni);
        let at_host = match location {
            Location::Host(host) => self.hosts.of(&host),
            Location::Nic(..) => 0,
        };
        let free = self.max.saturating_sub(used);
        let is_few = in_network < (self.max / FEW_OF).clamp(1, FEW);
        // Machines of many networks may be at one host, and those of one guest there in some: a
        // network that has few finds room beyond a host's part, up to three quarters.
        let (free, of_host) = match is_few {
            true => (free, self.max - self.max / 4),
            false => (
                free.saturating_sub(self.max / RESERVED),
                self.max.div_ceil(2),
            ),
        };
        free > 0
            && (is_few || in_network < 3 * free)
            && at_host < of_host
            && self.locations.of(&(vni, location)) < self.max.div_ceil(4)
    }

    /// One is noted there.
    pub(super) fn enter(&mut self, vni: Vni, location: Location) {
        self.locations.add(&(vni, location));
        self.networks.add(&vni);
        if let Location::Host(host) = location {
            self.hosts.add(&host);
        }
    }

    /// One of those that are noted there is not any more.
    pub(super) fn leave(&mut self, vni: Vni, location: Location) {
        self.locations.take(&(vni, location));
        self.networks.take(&vni);
        if let Location::Host(host) = location {
            self.hosts.take(&host);
        }
    }

    /// How many locations have some.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.locations.len()
    }

    /// Nobody has any.
    #[cfg(test)]
    pub(super) fn are_free(&self) -> bool {
        self.locations.len() + self.networks.len() + self.hosts.len() == 0
    }
}
