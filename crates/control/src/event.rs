//! What happened, for whoever watches. Events are numbered without gaps; a subscriber that is more
//! than [`limits::EVENTS`](crate::limits::EVENTS) behind is told how many it missed
//! (`RecvError::Lagged`) and reads the configuration anew.

use crate::diff::{Diff, FieldChange, GroupDiff, NicDiff};
use crate::model::{BindingKey, GroupId, NicId};
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
    /// A NIC has other values; which.
    NicChanged(NicId, Vec<FieldChange>),
    /// A NIC is gone.
    NicRemoved(NicId),
    /// A guest came or went.
    NicState(NicId, NicState),
    /// A group is there.
    GroupAdded(GroupId),
    /// A group changed; how.
    GroupChanged(GroupId, GroupDiff),
    /// A group is gone.
    GroupRemoved(GroupId),
    /// An endpoint is there, or has other values.
    EndpointChanged(IpAddr),
    /// An endpoint is gone.
    EndpointRemoved(IpAddr),
    /// Something else is said of a VNI.
    NetworkChanged(Vni),
    /// A binding is there, or has other values.
    BindingChanged(BindingKey),
    /// A binding is gone.
    BindingRemoved(BindingKey),
    /// So many bindings have changed at once that they are not told one by one.
    BindingsChanged(usize),
}

/// Numbers events and sends them.
pub(crate) struct Events {
    sequence: u64,
    sender: broadcast::Sender<Event>,
}

impl Events {
    pub(crate) fn new(capacity: usize) -> Events {
        Events {
            sequence: 0,
            sender: broadcast::Sender::new(capacity),
        }
    }

    pub(crate) fn subscribe(&self) -> broadcast::Receiver<Event> {
        self.sender.subscribe()
    }

    /// The number of the last event.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    pub(crate) fn send(&mut self, epoch: u64, kind: EventKind) {
        self.sequence += 1;
        // An error only says that nobody listens.
        let _ = self.sender.send(Event {
            sequence: self.sequence,
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
                diff => EventKind::GroupChanged(id, diff.clone()),
            };
            self.send(epoch, kind);
        }
        for change in &diff.nics {
            let id = change.id.clone();
            let kind = match &change.diff {
                NicDiff::Added(_) => EventKind::NicAdded(id),
                NicDiff::Removed => EventKind::NicRemoved(id),
                NicDiff::Changed(fields) => EventKind::NicChanged(id, fields.clone()),
            };
            self.send(epoch, kind);
        }
        for change in &diff.endpoints {
            let kind = match change.to {
                Some(_) => EventKind::EndpointChanged(change.address),
                None => EventKind::EndpointRemoved(change.address),
            };
            self.send(epoch, kind);
        }
        for change in &diff.networks {
            self.send(epoch, EventKind::NetworkChanged(change.vni()));
        }
        if diff.bindings.len() > BINDINGS_TOLD {
            self.send(epoch, EventKind::BindingsChanged(diff.bindings.len()));
            return;
        }
        for change in &diff.bindings {
            let kind = match change.to {
                Some(_) => EventKind::BindingChanged(change.key),
                None => EventKind::BindingRemoved(change.key),
            };
            self.send(epoch, kind);
        }
    }
}
