//! Counters that outlive the process: what is noted for the next one, and what the one before has
//! counted.

use super::Controller;
use crate::Error;
use crate::model::{GroupId, NicId, Rule};
use crate::stage::Staged;
use crate::state::{NicEntry, RuleCounter, State};
use dataplane::counters::PortCounters;
use dataplane::{Key, LeftCounts, StateMemory};
use std::sync::Arc;

/// What a NIC is called where its counters are left to the next process.
pub fn nic_key(id: &NicId) -> Key {
    Key::of(&["nic", id.as_str()])
}

fn rule_key(group: &GroupId, rule: &Rule) -> Key {
    Key::of(&["rule", group.as_str(), &rule.to_string()])
}

fn note_nic(memory: &StateMemory, entry: &NicEntry) {
    let key = nic_key(&entry.nic.id);
    memory.note_port(entry.slot, Some((entry.uid, key, &entry.baseline)));
}

fn note_rule(memory: &StateMemory, group: &GroupId, rule: &Rule, counter: &RuleCounter) {
    memory.note_rule(
        counter.slot,
        Some((rule_key(group, rule), counter.baseline)),
    );
}

impl Controller {
    /// Notes whose the slots are that an operation has given away or taken back. It is in force:
    /// nothing is counted any more in those that were taken back.
    pub(super) fn note_counted(&self, before: &State, staged: &Staged) {
        let Some(memory) = self.dataplane.state_memory() else {
            return;
        };
        for old in staged.nics.values().filter_map(|(old, _)| old.as_ref()) {
            memory.note_port(old.slot, None);
        }
        for new in staged.nics.values().filter_map(|(_, new)| new.as_ref()) {
            note_nic(memory, new);
        }
        let counter = |state: &State, group: &GroupId, rule: &Rule| {
            state.groups.get(group)?.counters.get(rule).copied()
        };
        for change in &staged.diff.groups {
            for rule in &change.diff.rules_removed {
                if let Some(counter) = counter(before, &change.id, rule) {
                    memory.note_rule(counter.slot, None);
                }
            }
            for rule in &change.diff.rules_added {
                if let Some(counter) = counter(&self.state, &change.id, rule) {
                    note_rule(memory, &change.id, rule, &counter);
                }
            }
        }
    }

    /// A NIC goes on counting where it has ended on another host, if it has counted less here: of
    /// each count it has the larger one, so that none falls, and none is counted twice that comes
    /// twice, or comes back.
    pub fn count_on(&mut self, id: &NicId, elsewhere: &PortCounters) -> Result<(), Error> {
        let now = self.dataplane.port_counters(self.entry(id)?.slot);
        let memory = self.dataplane.state_memory();
        if let Some(entry) = self.state.nics.get_mut(id) {
            let counted = now.since(&entry.baseline);
            let more = counted.most(elsewhere).less(&counted);
            entry.baseline = Arc::new(entry.baseline.less(&more));
            memory.iter().for_each(|memory| note_nic(memory, entry));
        }
        Ok(())
    }

    /// NICs and rules go on counting where a process before has ended; how many of them.
    pub fn carry_counts(&mut self, left: &LeftCounts) -> usize {
        let memory = self.dataplane.state_memory();
        let mut carried = 0;
        let ids: Vec<NicId> = self.state.nics.keys().cloned().collect();
        for id in ids {
            if let Some(counted) = left.ports.get(&nic_key(&id))
                && let Some(entry) = self.state.nics.get_mut(&id)
            {
                entry.baseline = Arc::new(entry.baseline.less(counted));
                memory.iter().for_each(|memory| note_nic(memory, entry));
                carried += 1;
            }
        }
        let ids: Vec<GroupId> = self.state.groups.keys().cloned().collect();
        for id in ids {
            let Some(entry) = self.state.groups.get_mut(&id) else {
                continue;
            };
            let rules: Vec<Rule> = entry.counters.keys().cloned().collect();
            for rule in rules {
                if let Some(counted) = left.rules.get(&rule_key(&id, &rule))
                    && let Some(counter) = entry.counters.get_mut(&rule)
                {
                    counter.baseline = counter.baseline.less(counted);
                    memory
                        .iter()
                        .for_each(|memory| note_rule(memory, &id, &rule, counter));
                    carried += 1;
                }
            }
        }
        if let Some(memory) = memory {
            memory.carry_drops(&left.drops);
        }
        carried
    }
}
