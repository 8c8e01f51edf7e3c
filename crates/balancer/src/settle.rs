//! Forgetting changes of servers: after a while no flow needs to be told from those that began
//! since, and its packets are the cheapest again.

use std::collections::BTreeSet;

use crate::balancer::Balancer;
use crate::compile::Table;
use crate::error::Error;
use crate::flows::{now_ns, tick_of};
use crate::layout::TICK_MASK;

/// Words of flows that are older than this many ticks, 17 hours, do not count: half of their
/// clock's round, and some room.
const OLDEST: u32 = TICK_MASK / 2 - TICK_MASK / 16;

impl Balancer {
    /// Forgets changes that were longer ago than [`Options::settle`](crate::Options::settle), of
    /// services all of whose open flows are where new ones would go. To be called now and then, as
    /// [`Follower::run`](crate::Follower::run) does; reads the flow table only when a change is
    /// due.
    ///
    /// # Errors
    /// The kernel refuses to read or write the maps.
    pub fn settle(&mut self) -> Result<(), Error> {
        if self.held {
            return Ok(());
        }
        let now = now_ns();
        let settle = self.settle.as_nanos() as u64;
        let overdue = |table: &Table| {
            table
                .changed_ns
                .is_some_and(|changed| now - changed >= settle)
        };
        let mut image = self.halves.image().clone();
        let unsettled = match image.maglevs.values().any(|table| overdue(table)) {
            true => self.memory.unsettled(&image, tick_of(settle))?,
            false => BTreeSet::new(),
        };
        let mut changed = Vec::new();
        for (number, table) in &image.maglevs {
            if overdue(table) && !unsettled.contains(number) {
                changed.push((*number, table.settled()));
            } else if table.changed_ns.is_some() && age(table.since, now) > OLDEST {
                // The clock of the words goes round: what is older would soon look new.
                let since = tick_of(now).wrapping_sub(OLDEST - OLDEST / 16) & TICK_MASK;
                changed.push((*number, table.since(since as u16)));
            }
        }
        if changed.is_empty() {
            return Ok(());
        }
        changed
            .into_iter()
            .for_each(|(number, table)| image.replace(number, table));
        self.publish(None, image)
    }

    /// Whether no service's flows are watched because its servers have changed.
    pub fn is_settled(&self) -> bool {
        self.halves
            .image()
            .maglevs
            .values()
            .all(|table| table.changed_ns.is_none())
    }
}

fn age(since: u16, now_ns: u64) -> u32 {
    tick_of(now_ns).wrapping_sub(since.into()) & TICK_MASK
}
