//! Who watches: one queue for all of them, of a stated number of bytes, from which each takes what
//! is its own. What a reader has not come to when its turn in the queue is over it has lost: that
//! is counted, told to it, and nobody else's loss.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api::v1;
use control::model::GroupId;
use prost::Message;
use tokio::sync::Notify;

use crate::access::Reach;
use crate::shares::Share;

/// What waits for readers, of all together: about so many bytes.
pub const BYTES_MAX: usize = 64 << 20;
/// Streams of one client, and of all clients.
pub const EACH_MAX: usize = 8;
pub const ALL_MAX: usize = 64;

/// All who watch. Cheap to clone.
#[derive(Clone, Default)]
pub struct Watchers(Arc<Shared>);

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    told: Notify,
}

#[derive(Default)]
struct Queue {
    parts: VecDeque<Part>,
    bytes: usize,
    /// The number of the first part there is.
    first: u64,
    next_reader: u64,
    readers: BTreeMap<u64, Reader>,
}

#[derive(Clone)]
struct Part {
    records: Arc<[v1::FlowRecord]>,
    bytes: usize,
}

struct Reader {
    wants: Arc<Wants>,
    /// The number of the part that it reads next.
    next: u64,
    /// Records that were lost since the last part it took.
    lost: u64,
}

/// What a reader is told.
struct Wants {
    /// What of it is the caller's.
    reach: Reach,
    /// Of this NIC alone, if it has a name.
    nic: String,
}

/// One who watches, until this is dropped.
pub struct Watching {
    watchers: Watchers,
    number: u64,
    _share: Share,
}

impl Watchers {
    pub fn are_there(&self) -> bool {
        !self.lock().readers.is_empty()
    }

    pub fn add(&self, reach: Reach, nic: String, share: Share) -> Watching {
        let mut queue = self.lock();
        let number = queue.next_reader;
        queue.next_reader += 1;
        let reader = Reader {
            wants: Arc::new(Wants { reach, nic }),
            next: queue.end(),
            lost: 0,
        };
        queue.readers.insert(number, reader);
        Watching {
            watchers: self.clone(),
            number,
            _share: share,
        }
    }

    /// Gives how many records somebody has lost since it reads too slowly.
    pub fn publish(&self, records: &[v1::FlowRecord]) -> u64 {
        let mut queue = self.lock();
        if queue.readers.is_empty() {
            return 0;
        }
        let bytes = records.iter().map(memory).sum();
        queue.bytes += bytes;
        queue.parts.push_back(Part {
            records: records.into(),
            bytes,
        });
        let mut lost = 0;
        while queue.bytes > BYTES_MAX {
            lost += queue.drop_first();
        }
        queue.trim();
        drop(queue);
        self.0.told.notify_waiters();
        lost
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// About what a record takes.
fn memory(record: &v1::FlowRecord) -> usize {
    size_of::<v1::FlowRecord>() + record.encoded_len()
}

impl Queue {
    /// The number of the part that comes next.
    fn end(&self) -> u64 {
        self.first + self.parts.len() as u64
    }

    /// Who has not read it has lost what was its own in it: how much that is.
    fn drop_first(&mut self) -> u64 {
        let Some(part) = self.parts.pop_front() else {
            return 0;
        };
        let mut all = 0;
        for reader in self.readers.values_mut() {
            if reader.next == self.first {
                let lost = reader.wants.of(&part.records).count() as u64;
                reader.next += 1;
                reader.lost += lost;
                all += lost;
            }
        }
        self.first += 1;
        self.bytes -= part.bytes;
        all
    }

    /// What everybody has read is kept for nobody.
    fn trim(&mut self) {
        let end = self.end();
        let read = self.readers.values().map(|reader| reader.next).min();
        while self.first < read.unwrap_or(end) {
            self.drop_first();
        }
    }
}

impl Watching {
    /// What is told next, of what is the caller's.
    pub async fn next(&self) -> v1::FlowRecords {
        loop {
            let mut told = std::pin::pin!(self.watchers.0.told.notified());
            told.as_mut().enable();
            while let Some((part, wants)) = self.part() {
                let records: Vec<_> = wants
                    .of(&part.records)
                    .map(|record| wants.shown(record))
                    .collect();
                if !records.is_empty() {
                    let lost = self.take_lost();
                    return v1::FlowRecords { records, lost };
                }
            }
            told.await;
        }
    }

    fn part(&self) -> Option<(Part, Arc<Wants>)> {
        let mut queue = self.watchers.lock();
        let first = queue.first;
        let reader = queue.readers.get_mut(&self.number)?;
        let (at, wants) = (reader.next - first, reader.wants.clone());
        let part = queue.parts.get(at as usize)?.clone();
        queue.readers.get_mut(&self.number)?.next += 1;
        queue.trim();
        Some((part, wants))
    }

    fn take_lost(&self) -> u64 {
        let mut queue = self.watchers.lock();
        let reader = queue.readers.get_mut(&self.number);
        reader.map_or(0, |reader| std::mem::take(&mut reader.lost))
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let mut queue = self.watchers.lock();
        queue.readers.remove(&self.number);
        queue.trim();
    }
}

impl Wants {
    fn of<'a>(&self, records: &'a [v1::FlowRecord]) -> impl Iterator<Item = &'a v1::FlowRecord> {
        let named = |record: &&v1::FlowRecord| {
            self.nic.is_empty() || [&record.nic, &record.peer_nic].contains(&&self.nic)
        };
        let theirs = |record: &&v1::FlowRecord| match &self.reach {
            Reach::Whole => true,
            reach => wire::Vni::new(record.vni).is_ok_and(|vni| reach.has_network(vni)),
        };
        records.iter().filter(named).filter(theirs)
    }

    /// Without the names of groups that are not the caller's.
    fn shown(&self, record: &v1::FlowRecord) -> v1::FlowRecord {
        let mut shown = record.clone();
        for rule in [&mut shown.egress_rule, &mut shown.ingress_rule] {
            let group = rule.as_ref().map(|rule| GroupId::new(&rule.group));
            let theirs = match group {
                Some(Ok(group)) => self.reach.has_group(&group),
                _ => false,
            };
            if !theirs {
                *rule = None;
            }
        }
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::{Caller, Peer};
    use crate::shares::Shares;

    /// What a worker that begins connections as fast as it can tells in one poll.
    fn flood(vni: u32) -> Vec<v1::FlowRecord> {
        let record = v1::FlowRecord {
            vni,
            nic: "3a9a2c1e-5f3b-4f0e-9f55-0a1b2c3d4e5f".into(),
            source: "2001:db8:1234:5678:9abc:def0:1234:1".into(),
            ..Default::default()
        };
        vec![record; super::super::PART]
    }

    fn share() -> Share {
        let shares = Shares::new("streams", 1, 1);
        shares.take(&Caller::seeing(&Peer::unknown())).unwrap()
    }

    /// Readers that stop at different times, while a guest begins connections without end.
    #[tokio::test]
    async fn readers_that_do_not_read_cost_a_stated_number_of_bytes() {
        let watchers = Watchers::default();
        let part = flood(42);
        let count = part.len() as u64;
        let keen = watchers.add(Reach::Whole, String::new(), share());
        let (mut stalled, mut parts) = (Vec::new(), 0u64);
        let mut lost = 0;
        let fits = (BYTES_MAX / part.iter().map(memory).sum::<usize>()) as u64;
        while parts < fits + 50 {
            if stalled.len() < 50 {
                stalled.push(watchers.add(Reach::Whole, String::new(), share()));
            }
            lost += watchers.publish(&part);
            parts += 1;
            let told = keen.next().await;
            assert_eq!((told.records.len() as u64, told.lost), (count, 0));
            let queue = watchers.lock();
            let held: usize = queue.parts.iter().map(|part| part.bytes).sum();
            assert_eq!(held, queue.bytes);
            assert!(held <= BYTES_MAX, "{} MiB", held >> 20);
        }
        // The first one has lost what does not fit; it is told so once, and reads on.
        let told = stalled[0].next().await;
        assert_eq!(told.lost, (parts - fits) * count);
        assert_eq!(stalled[0].next().await.lost, 0);
        let each: u64 = (0..50)
            .map(|at| parts - at)
            .map(|all| all.saturating_sub(fits))
            .sum();
        assert_eq!(lost, each * count, "all of them are counted");
        drop((stalled, keen));
        let queue = watchers.lock();
        assert_eq!((queue.parts.len(), queue.bytes), (0, 0));
    }

    #[tokio::test]
    async fn what_is_another_s_is_neither_told_nor_lost() {
        let watchers = Watchers::default();
        let blue = crate::access::part(42..=42);
        let blue = watchers.add(blue, String::new(), share());
        let red = flood(7);
        while watchers.lock().first == 0 {
            assert_eq!(watchers.publish(&red), 0);
        }
        watchers.publish(&flood(42));
        let told = blue.next().await;
        assert_eq!((told.records[0].vni, told.lost), (42, 0));
    }
}
