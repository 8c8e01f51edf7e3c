//! What can be seen of a balancer at work: counters, flows, and why a packet goes where it goes.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::num::NonZeroU16;

use crate::balancer::Balancer;
use crate::counters::Counters;
use crate::error::Error;
use crate::flows::{Flow, FlowState};
use crate::hash::{self, Tuple};
use model::Service;
use model::{Protocol, ServiceKey};

impl Balancer {
    /// All counters.
    ///
    /// # Errors
    /// The kernel refuses to read the maps.
    pub fn counters(&self) -> Result<Counters, Error> {
        self.meters.read(&self.register)
    }

    /// How many flows each server has. Of services whose flows are all remembered (see
    /// [`Options::remember_all`](crate::Options::remember_all); datagram and sticky services
    /// always) those that are not closed and were seen within
    /// [`Options::idle`](crate::Options::idle), by reading the whole flow table; of others those
    /// that began less those that ended.
    ///
    /// # Errors
    /// The kernel refuses to read the maps.
    pub fn live_flows(&self) -> Result<BTreeMap<(ServiceKey, IpAddr), u64>, Error> {
        let mut live = self.memory.live(&self.register)?;
        for (owner, counters) in self.counters()?.servers {
            let service = self.services.get(&owner.0);
            if !service.is_some_and(|service| self.always_watched(service)) {
                live.insert(owner, counters.flows.saturating_sub(counters.ended));
            }
        }
        Ok(live)
    }

    /// Up to `limit` flows that are remembered and got past their first packet (see
    /// [`Options::remember_all`](crate::Options::remember_all)). Reads the whole flow table.
    ///
    /// # Errors
    /// The kernel refuses to read the maps.
    pub fn flows(&self, limit: usize) -> Result<Vec<Flow>, Error> {
        self.memory.flows(&self.register, limit)
    }

    /// Where a flow's next packet goes, as far as its first one would: and what is remembered of
    /// it, `None` when nothing is and the answer is its client's server (of a sticky service) or
    /// Maglev's. No answer at all: the flow's address and port have no service, or none of its
    /// servers is up.
    ///
    /// # Errors
    /// The kernel refuses to read the maps.
    pub fn explain(&self, tuple: &Tuple) -> Result<Option<(IpAddr, Option<FlowState>)>, Error> {
        let Some(service) = self.service_of(tuple) else {
            return Ok(None);
        };
        // One that waits to be in force has none.
        let Some(number) = self.register.services.of(&service.key()) else {
            return Ok(None);
        };
        let owner = |number| {
            let mut all = self.register.servers.iter();
            let owner = all.find(|(owner, its)| *its == number && owner.0 == service.key());
            owner.map(|(owner, _)| owner.1)
        };
        let table = &self.halves.image().maglevs[&u32::from(number)];
        let hash = match service.sticky {
            true => hash::of_client(self.settings.seed, tuple.client, tuple.vip),
            false => hash::of_flow(self.settings.seed, tuple),
        };
        let slot = table.slots[hash::slot(hash as u32)];
        let always = self.always_watched(service);
        if always || slot >> 16 != 0 {
            let found = self.memory.find(tuple, (!always).then_some(table.since))?;
            if let Some((server, state)) = found
                && let Some(address) = owner(server)
            {
                return Ok(Some((address, Some(state))));
            }
        }
        if service.sticky
            && let Some(address) = self.memory.find_client(tuple, number)?.and_then(owner)
        {
            return Ok(Some((address, None)));
        }
        Ok(owner(slot as u16).map(|address| (address, None)))
    }

    /// Whether every flow of a service is remembered.
    fn always_watched(&self, service: &Service) -> bool {
        self.settings.remember_all != 0
            || service.sticky
            || service.key().protocol() == Protocol::Udp
    }

    fn service_of(&self, tuple: &Tuple) -> Option<&Service> {
        let port = NonZeroU16::new(tuple.port);
        let key = |port| ServiceKey::new(tuple.vip, tuple.protocol, port).ok();
        let own = key(port).and_then(|key| self.services.get(&key));
        own.or_else(|| key(None).and_then(|key| self.services.get(&key)))
    }
}
