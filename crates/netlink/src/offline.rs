//! The tables without a kernel: the caller gives the messages that a kernel would send. For tests
//! and fuzzing of what messages do to them.

use crate::message::messages;
use crate::mirror::Kinds;
use crate::model::Snapshot;
use crate::tables::Tables;

/// Tables that are fed messages by the caller.
#[derive(Debug, Default)]
pub struct Offline(Tables);

impl Offline {
    /// Takes in a datagram of the groups, as far as its messages fit. Says what changed.
    pub fn apply(&mut self, datagram: &[u8]) -> Kinds {
        let mut kinds = Kinds::NONE;
        for message in messages(datagram) {
            kinds |= self.0.apply(&message);
        }
        kinds
    }

    /// The tables as they are now.
    pub fn snapshot(&self) -> &Snapshot {
        &self.0.now
    }
}
