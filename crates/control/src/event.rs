//! What happened, for whoever watches. Events are numbered without gaps; a subscriber that is more than
//! [`limits::EVENTS`](crate::limits::EVENTS) behind is told how many it missed (`RecvError::Lagged`) and reads the
//! configuration anew.

use crate::diff::{Diff, FieldChange, GroupDiff, NicDiff};
use crate::model::{GroupId, NicId};
use tokio::sync::broadcast;

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

    /// One event for each NIC and group of the diff.
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
    }
}
