//! What packets did, read from all CPUs and added up.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use xdp::{PerCpuTable, Program};

use crate::compile::Register;
use crate::error::Error;
use crate::layout;
use model::ServiceKey;

/// Why a packet to a service address did not just go to its server: `enum reason` of
/// `bpf/balancer.h`, in its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// Dropped: the service has no server that is up.
    NoServer,
    /// Dropped: the way to the server is not known (no route, or no answer from the next hop).
    NoWay,
    /// Answered: its last hop was this one.
    Expired,
    /// Answered: it does not fit the way to the server.
    TooBig,
    /// Dropped: a later fragment whose first one was not seen.
    Fragment,
    /// Dropped: the frame cannot grow as far as its new headers need.
    NoRoom,
    /// Dropped: it would have been answered, but for the rate of answers or what it is.
    Silent,
    /// Answered: an echo request.
    Echo,
    /// Left to the kernel: headers that are broken, encrypted, or not those of a protocol that is
    /// balanced.
    NotUnderstood,
    /// Left to the kernel: no service has its protocol and port, or it follows a first fragment
    /// that was the kernel's.
    NoService,
    /// Sent, but its flow is not remembered: nobody in its bucket may go.
    TableFull,
    /// Sent: of a flow whose beginning was not seen.
    Adopted,
}

impl Reason {
    /// All, in the program's order.
    pub const ALL: [Reason; 12] = [
        Reason::NoServer,
        Reason::NoWay,
        Reason::Expired,
        Reason::TooBig,
        Reason::Fragment,
        Reason::NoRoom,
        Reason::Silent,
        Reason::Echo,
        Reason::NotUnderstood,
        Reason::NoService,
        Reason::TableFull,
        Reason::Adopted,
    ];

    /// One sentence for people.
    pub const fn description(self) -> &'static str {
        match self {
            Reason::NoServer => "Dropped: the service has no server that is up.",
            Reason::NoWay => "Dropped: no route to the server, or its next hop does not answer.",
            Reason::Expired => "Answered: the packet's last hop was the load balancer.",
            Reason::TooBig => "Answered: the packet does not fit the way to its server.",
            Reason::Fragment => "Dropped: a later fragment whose first one was not seen.",
            Reason::NoRoom => "Dropped: the frame cannot grow as far as its new headers need.",
            Reason::Silent => {
                "Dropped: it would have been answered, but for the rate of answers or what it is."
            }
            Reason::Echo => "Answered: an echo request to a service address.",
            Reason::NotUnderstood => {
                "Left to the kernel: headers that are broken, encrypted or of no protocol that is \
                 balanced."
            }
            Reason::NoService => {
                "Left to the kernel: no service has its protocol and port, or it follows a first \
                 fragment that was the kernel's."
            }
            Reason::TableFull => {
                "Sent, but its flow is not remembered: no flow in its bucket may go."
            }
            Reason::Adopted => "Sent: of a flow whose beginning was not seen.",
        }
    }

    /// The packet is lost: it was neither answered nor left to the kernel nor sent.
    pub const fn is_drop(self) -> bool {
        match self {
            Reason::NoServer
            | Reason::NoWay
            | Reason::Fragment
            | Reason::NoRoom
            | Reason::Silent => true,
            Reason::Expired
            | Reason::TooBig
            | Reason::Echo
            | Reason::NotUnderstood
            | Reason::NoService
            | Reason::TableFull
            | Reason::Adopted => false,
        }
    }

    /// The name that people and metrics use.
    pub const fn name(self) -> &'static str {
        match self {
            Reason::NoServer => "no_server",
            Reason::NoWay => "no_way",
            Reason::Expired => "expired",
            Reason::TooBig => "too_big",
            Reason::Fragment => "fragment",
            Reason::NoRoom => "no_room",
            Reason::Silent => "silent",
            Reason::Echo => "echo",
            Reason::NotUnderstood => "not_understood",
            Reason::NoService => "no_service",
            Reason::TableFull => "table_full",
            Reason::Adopted => "adopted",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What went to a server, since it was added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ServerCounters {
    /// Packets.
    pub packets: u64,
    /// Bytes of these as they came, from the IP header on.
    pub bytes: u64,
    /// Flows that began there: connections by their SYN or INIT, datagram flows by their first
    /// datagram. A SYN that is sent again counts once where flows are remembered, and again where
    /// they are not ([`Options`](crate::Options)).
    pub flows: u64,
    /// Flows that their clients ended. Where nothing is remembered, packets that do so: FIN, RST,
    /// ABORT.
    pub ended: u64,
}

impl std::ops::AddAssign for ServerCounters {
    fn add_assign(&mut self, other: Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.flows += other.flows;
        self.ended += other.ended;
    }
}

/// All counters at one time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Counters {
    /// By service and server.
    pub servers: BTreeMap<(ServiceKey, IpAddr), ServerCounters>,
    /// By reason, since the start; all of them.
    pub reasons: BTreeMap<Reason, u64>,
}

impl Counters {
    /// A service's: its servers' together.
    pub fn service(&self, key: &ServiceKey) -> ServerCounters {
        let mut sum = ServerCounters::default();
        let its = self
            .servers
            .iter()
            .filter(|((service, _), _)| service == key);
        its.for_each(|(_, counters)| sum += *counters);
        sum
    }

    /// Packets of a reason.
    pub fn reason(&self, reason: Reason) -> u64 {
        self.reasons.get(&reason).copied().unwrap_or_default()
    }
}

/// The maps of counters.
#[derive(Debug)]
pub(crate) struct Meters {
    servers: PerCpuTable<u32, layout::ServerCounters>,
    reasons: PerCpuTable<u32, layout::Counters>,
}

impl Meters {
    pub(crate) fn new(program: &Program) -> Result<Self, Error> {
        Ok(Meters {
            servers: program.per_cpu_table("server_counters")?,
            reasons: program.per_cpu_table("counters")?,
        })
    }

    /// A number's new owner starts at zero.
    pub(crate) fn reset(&self, server: u16) -> Result<(), Error> {
        let zero = bytemuck::Zeroable::zeroed();
        Ok(self.servers.set(&u32::from(server), &zero)?)
    }

    pub(crate) fn read(&self, register: &Register) -> Result<Counters, Error> {
        let mut counters = Counters::default();
        for (owner, number) in register.servers.iter() {
            let sum = counters.servers.entry(*owner).or_default();
            for cpu in self.servers.get(&u32::from(number))?.unwrap_or_default() {
                *sum += ServerCounters {
                    packets: cpu.packets,
                    bytes: cpu.bytes,
                    flows: cpu.flows,
                    ended: cpu.ended,
                };
            }
        }
        let cpus = self.reasons.get(&0)?.unwrap_or_default();
        for (index, reason) in Reason::ALL.into_iter().enumerate() {
            let sum = cpus.iter().map(|cpu| cpu.reason[index]).sum();
            counters.reasons.insert(reason, sum);
        }
        Ok(counters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_is_said_to_be_dropped() {
        for reason in Reason::ALL {
            let said = reason.description().starts_with("Dropped: ");
            assert_eq!(reason.is_drop(), said, "{reason}");
        }
    }
}
