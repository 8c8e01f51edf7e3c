//! Who waits for the disk, and who does the waiting for all.

use crate::error::Error;
use crate::{Store, Ticket};
use redb::Durability;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a sync waits for changes that are announced.
const GATHER: Duration = Duration::from_millis(2);

#[derive(Default)]
pub(crate) struct State {
    tickets: Mutex<Tickets>,
    changed: Condvar,
}

#[derive(Default)]
struct Tickets {
    /// The last that was given out, and the revision that was made with it.
    written: (u64, u64),
    /// All up to here are durable, or lost.
    settled: u64,
    /// The newest revision that is durable; `None`: the file is not read yet.
    durable: Option<u64>,
    /// How many tickets the last sync settled.
    together: u64,
    /// First and last of those that are lost, oldest first. An entry for each failure of the disk.
    lost: Vec<(u64, u64)>,
    /// Somebody syncs.
    syncing: bool,
    /// Operations that may write.
    announced: usize,
}

/// Somebody who may write a change, until this is dropped.
pub struct Announced<'a> {
    state: &'a State,
}

impl State {
    fn lock(&self) -> MutexGuard<'_, Tickets> {
        self.tickets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file was opened, and has this revision.
    pub(crate) fn begin(&self, revision: u64) {
        let mut tickets = self.lock();
        tickets.durable = Some(revision);
        tickets.written.1 = revision;
    }

    /// A revision was written.
    pub(crate) fn written(&self, revision: u64) -> Ticket {
        let mut tickets = self.lock();
        tickets.written = (tickets.written.0 + 1, revision);
        self.changed.notify_all();
        Ticket(tickets.written.0)
    }

    /// The newest revision that is durable; 0: none is known.
    pub(crate) fn durable(&self) -> u64 {
        self.lock().durable.unwrap_or(0)
    }

    /// What is not durable is lost. The newest revision that is, if any is known.
    pub(crate) fn lost(&self) -> Option<u64> {
        let mut tickets = self.lock();
        if tickets.settled < tickets.written.0 {
            let range = (tickets.settled + 1, tickets.written.0);
            tickets.lost.push(range);
            tickets.settled = range.1;
        }
        tickets.written.1 = tickets.durable.unwrap_or(0);
        self.changed.notify_all();
        tickets.durable
    }
}

impl Tickets {
    /// Whether one behind the first, up to the second, is lost.
    fn is_lost(&self, since: Ticket, upto: Ticket) -> bool {
        let mut lost = self.lost.iter();
        lost.any(|(first, last)| *last > since.0 && *first <= upto.0)
    }
}

impl Store {
    /// Says that a change may come, which a sync that begins before it may wait for a little.
    pub fn announce(&self) -> Announced<'_> {
        self.sync.lock().announced += 1;
        Announced { state: &self.sync }
    }

    /// Whether it is decided that a change outlives a crash, and that it does; `None`: it is not.
    pub fn is_durable(&self, ticket: Ticket) -> Option<bool> {
        let tickets = self.sync.lock();
        let before = Ticket(ticket.0.saturating_sub(1));
        (tickets.settled >= ticket.0).then(|| !tickets.is_lost(before, ticket))
    }

    /// The last change that was written.
    pub fn last(&self) -> Ticket {
        Ticket(self.sync.lock().written.0)
    }

    /// Returns when the change, and all before it, outlive a crash. [`Error::Lost`]: it does not,
    /// and is not there any more.
    pub fn sync(&self, ticket: Ticket) -> Result<(), Error> {
        self.sync_since(Ticket(ticket.0.saturating_sub(1)), ticket)
    }

    /// Returns when the changes up to the second outlive a crash. [`Error::Lost`]: one of those
    /// behind the first does not.
    pub fn sync_since(&self, since: Ticket, ticket: Ticket) -> Result<(), Error> {
        let mut tickets = self.sync.lock();
        loop {
            if tickets.settled >= ticket.0 {
                return match tickets.is_lost(since, ticket) {
                    true => Err(Error::Lost(self.path().to_owned())),
                    false => Ok(()),
                };
            }
            if tickets.syncing {
                let woken = self.sync.changed.wait(tickets);
                tickets = woken.unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            tickets.syncing = true;
            tickets = self.gather(tickets);
            let (upto, revision) = tickets.written;
            drop(tickets);
            // A durable transaction takes those before it along. An error settles them as lost.
            let synced = self.transact(
                Durability::Immediate,
                |_| Ok(()),
                |()| {
                    let mut tickets = self.sync.lock();
                    tickets.together = upto.saturating_sub(tickets.settled);
                    tickets.settled = tickets.settled.max(upto);
                    tickets.durable = tickets.durable.max(Some(revision));
                },
            );
            tickets = self.sync.lock();
            tickets.syncing = false;
            self.sync.changed.notify_all();
            if let Err(error) = synced
                && tickets.is_lost(since, ticket)
            {
                return Err(error);
            }
        }
    }
}

impl Store {
    /// Waits for those that are announced, and for as many as came together the last time: who was
    /// woken by that sync is about to come again.
    fn gather<'a>(&'a self, mut tickets: MutexGuard<'a, Tickets>) -> MutexGuard<'a, Tickets> {
        let start = Instant::now();
        loop {
            let waiting = tickets.written.0 - tickets.settled;
            let patience = match tickets.announced {
                0 if waiting >= tickets.together => return tickets,
                0 => GATHER / 4,
                _ => GATHER,
            };
            let Some(left) = patience.checked_sub(start.elapsed()) else {
                return tickets;
            };
            let woken = self.sync.changed.wait_timeout(tickets, left);
            tickets = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        self.state.lock().announced -= 1;
        self.state.changed.notify_all();
    }
}
