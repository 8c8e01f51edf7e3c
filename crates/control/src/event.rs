//! What happened, for whoever watches: one stream in one order for NICs, services and interfaces.
//! Events are numbered without gaps; a subscriber that is more
//! than [`limits::EVENTS`](crate::limits::EVENTS) behind is told how many it missed
//! (`RecvError::Lagged`) and reads the configuration anew.

use crate::diff::{Diff, GroupDiff, NicDiff};
use crate::features::InterfaceStatus;
use crate::model::{BindingKey, Feature, GroupId, Interface, NicId, ServiceKey};
use health::Health;
use std::net::IpAddr;
use tokio::sync::broadcast;
use wire::Vni;

/// Bindings that one operation changes and that are told one by one. More would push everything
/// else out of the queues.
const BINDINGS_TOLD: usize = 1_024;

/// Whether a guest is there.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum NicState {
    /// No guest is attached, or its driver is not running.
    #[default]
    Down,
    /// The guest's driver is running.
    Up,
    /// The guest broke the protocol and its port is stopped; why.
    Broken(String),
}

/// One event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// 1 for the first since the daemon started, then one more each.
    pub sequence: u64,
    /// Counted likewise, but among the events of its own part alone: of the switch, of services, of
    /// interfaces.
    pub number: u64,
    /// The snapshot that this came with, or that was in force.
    pub epoch: u64,
    /// What happened.
    pub kind: EventKind,
}

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EventKind {
    /// A NIC is there.
    NicAdded(NicId),
    /// A NIC has other values. Which is asked of the controller: events wait by the thousand.
    NicChanged(NicId),
    /// A NIC is gone.
    NicRemoved(NicId),
    /// A guest came or went.
    NicState(NicId, NicState),
    /// A group is there.
    GroupAdded(GroupId),
    /// A group changed.
    GroupChanged(GroupId),
    /// A group is gone.
    GroupRemoved(GroupId),
    /// A host is there, or has other values.
    HostChanged(IpAddr),
    /// A host is gone.
    HostRemoved(IpAddr),
    /// Something else is said of a VNI.
    NetworkChanged(Vni),
    /// A binding is there, or has other values.
    BindingChanged(BindingKey),
    /// A binding is gone.
    BindingRemoved(BindingKey),
    /// So many bindings have changed at once that they are not told one by one.
    BindingsChanged(usize),
    /// A service is there, or has other values or servers.
    ServiceChanged(ServiceKey),
    /// A service is gone.
    ServiceRemoved(ServiceKey),
    /// A server's health has turned.
    ServerHealth {
        /// The service.
        key: ServiceKey,
        /// The server.
        server: IpAddr,
        /// How it is now.
        health: Health,
        /// Why, when it is not well.
        detail: String,
    },
    /// A service has its minimum of healthy servers, or has not any more.
    InService {
        /// Which one.
        key: ServiceKey,
        /// It has.
        in_service: bool,
        /// Servers that are healthy.
        healthy: usize,
        /// Those that it takes.
        min_healthy: u32,
    },
    /// A service's address is to be announced or withdrawn.
    Address {
        /// The address.
        vip: IpAddr,
        /// It is to be announced.
        announced: bool,
    },
    /// A feature is to work on an interface, or in another mode.
    InterfaceChanged(Feature, Interface),
    /// A feature is not to work on an interface any more.
    InterfaceRemoved(Feature, String),
    /// An interface of a feature was attached, or is not any more.
    InterfaceState(Feature, InterfaceStatus),
}

/// What an event is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// NICs, groups, other hosts.
    Switch,
    /// Services and their servers.
    Services,
    /// The interfaces of features.
    Interfaces,
}

impl EventKind {
    /// What it is about.
    pub fn part(&self) -> Part {
        match self {
            EventKind::ServiceChanged(_)
            | EventKind::ServiceRemoved(_)
            | EventKind::ServerHealth { .. }
            | EventKind::InService { .. }
            | EventKind::Address { .. } => Part::Services,
            EventKind::InterfaceChanged(..)
            | EventKind::InterfaceRemoved(..)
            | EventKind::InterfaceState(..) => Part::Interfaces,
            _ => Part::Switch,
        }
    }
}

/// Numbers events and sends them.
pub(crate) struct Events {
    sequence: u64,
    /// The last number of each part.
    numbers: [u64; 3],
    sender: broadcast::Sender<Event>,
}

impl Events {
    pub(crate) fn new(capacity: usize) -> Events {
        Events {
            sequence: 0,
            numbers: [0; 3],
            sender: broadcast::Sender::new(capacity),
        }
    }

    pub(crate) fn subscribe(&self) -> broadcast::Receiver<Event> {
        self.sender.subscribe()
    }

    /// The number of a part's last event.
    pub(crate) fn number(&self, part: Part) -> u64 {
        self.numbers[part as usize]
    }

    pub(crate) fn send(&mut self, epoch: u64, kind: EventKind) {
        self.sequence += 1;
        let number = &mut self.numbers[kind.part() as usize];
        *number += 1;
        // An error only says that nobody listens.
        let _ = self.sender.send(Event {
            sequence: self.sequence,
            number: *number,
            epoch,
            kind,
        });
    }

    /// One event for each thing of the diff, but for very many bindings.
    pub(crate) fn send_diff(&mut self, epoch: u64, diff: &Diff) {
        for change in &diff.groups {
            let id = change.id.clone();
            let kind = match &change.diff {
                GroupDiff { added: true, .. } => EventKind::GroupAdded(id),
                GroupDiff { removed: true, .. } => EventKind::GroupRemoved(id),
                GroupDiff { .. } => EventKind::GroupChanged(id),
            };
            self.send(epoch, kind);
        }
        for change in &diff.nics {
            let id = change.id.clone();
            let kind = match &change.diff {
                NicDiff::Added(_) => EventKind::NicAdded(id),
                NicDiff::Removed => EventKind::NicRemoved(id),
                NicDiff::Changed(_) => EventKind::NicChanged(id),
            };
            self.send(epoch, kind);
        }
        for change in &diff.hosts {
            let kind = match change.to {
                Some(_) => EventKind::HostChanged(change.address),
                None => EventKind::HostRemoved(change.address),
            };
            self.send(epoch, kind);
        }
        for change in &diff.networks {
            self.send(epoch, EventKind::NetworkChanged(change.vni()));
        }
        if diff.bindings.len() > BINDINGS_TOLD {
            self.send(epoch, EventKind::BindingsChanged(diff.bindings.len()));
        } else {
            for change in &diff.bindings {
                let kind = match change.to {
                    Some(_) => EventKind::BindingChanged(change.key),
                    None => EventKind::BindingRemoved(change.key),
                };
                self.send(epoch, kind);
            }
        }
        for change in &diff.services {
            let kind = match change.to {
                Some(_) => EventKind::ServiceChanged(change.key),
                None => EventKind::ServiceRemoved(change.key),
            };
            self.send(epoch, kind);
        }
        for change in &diff.interfaces {
            let kind = match &change.to {
                Some(to) => EventKind::InterfaceChanged(change.feature, to.clone()),
                None => EventKind::InterfaceRemoved(change.feature, change.name.clone()),
            };
            self.send(epoch, kind);
        }
    }
}
