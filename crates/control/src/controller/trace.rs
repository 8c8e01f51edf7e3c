//! What `trace` needs of the model: names for what the data plane calls by numbers, and which rules
//! come nearest to allowing a frame. The rules are asked by the data plane's own code, one by one.

use std::net::IpAddr;

use dataplane::ruleset::{self, Asked, GroupMembers, RuleSet, RuleSpec};
use dataplane::snapshot::{Group, GroupIdx, PortSlot, RuleSlot};
use dataplane::{AddressSet, GroupAnswer};
use std::sync::Arc;
use wire::{Mac, Vni};

use super::Controller;
use crate::compile::rule_spec;
use crate::model::{GroupId, NicId, Rule};

/// So many rules of a group are compared with a frame, and so many are told.
const COMPARED: usize = 2000;
const TOLD: usize = 8;

/// What a group says to a frame, in the model's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupVerdict {
    /// The group.
    pub group: GroupId,
    /// There is no such group.
    pub missing: bool,
    /// The rule that allows it.
    pub rule: Option<Rule>,
    /// How many rules of this direction the group has.
    pub rules: usize,
    /// Where none allows it: those that differ in least.
    pub misses: Vec<Miss>,
}

/// A rule that does not allow a frame, and what differs: some of `peer`, `ports`, `protocol`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Miss {
    /// The rule.
    pub rule: Rule,
    /// What it asks that the frame has not.
    pub differs: Vec<&'static str>,
}

/// What rules that name groups look up.
struct Groups<'a>(&'a imbl::Vector<Option<Arc<Group>>>);

impl GroupMembers for Groups<'_> {
    fn members(&self, group: GroupIdx) -> Option<&AddressSet> {
        Some(&self.0.get(group.0 as usize)?.as_ref()?.members)
    }
}

impl Controller {
    /// The NIC that has a slot.
    pub fn nic_at(&self, slot: PortSlot) -> Option<&NicId> {
        self.state.by_slot.get(&slot.0)
    }

    /// The MACs of the NICs that have an address in a network, or else of the bindings.
    pub fn macs_with(&self, vni: Vni, address: IpAddr) -> Vec<Mac> {
        let nics = self.state.addresses.get(&(vni, address));
        let here: Vec<Mac> = nics
            .into_iter()
            .flat_map(|ids| ids.iter())
            .filter_map(|id| Some(self.state.nics.get(id)?.nic.mac))
            .collect();
        match here.is_empty() {
            false => here,
            true => self
                .bindings(Some(vni), None)
                .filter(|binding| binding.ips.contains(&address))
                .map(|binding| binding.mac)
                .collect(),
        }
    }

    /// The rule of one of a NIC's groups that counts in a slot.
    pub fn rule_of(&self, nic: &NicId, slot: RuleSlot) -> Option<(GroupId, Rule)> {
        let groups = &self.state.nics.get(nic)?.nic.security_groups;
        groups.iter().find_map(|id| {
            let entry = self.state.groups.get(id)?;
            let mut rules = entry.counters.iter();
            let (rule, _) = rules.find(|(_, counter)| counter.slot == slot)?;
            Some((id.clone(), rule.clone()))
        })
    }

    /// What a group has said to the question of a frame, and why.
    pub fn explain(
        &self,
        group: GroupIdx,
        question: &Asked,
        answer: GroupAnswer,
    ) -> Option<GroupVerdict> {
        let (id, entry) = self
            .state
            .groups
            .iter()
            .find(|(_, entry)| entry.idx == group)?;
        let rules = entry.group.iter().flat_map(|group| group.rules.iter());
        let compiled = rules.filter_map(|rule| {
            let slot = entry.counters.get(rule)?.slot;
            Some((rule, rule_spec(rule, slot, &self.state.groups)?))
        });
        let mine: Vec<(&Rule, RuleSpec)> = compiled
            .filter(|(_, spec)| spec.direction == question.direction)
            .collect();
        let by = |slot: RuleSlot| mine.iter().find(|(_, spec)| spec.slot == slot);
        let rule = match answer {
            GroupAnswer::Allows(slot) => by(slot).map(|(rule, _)| (*rule).clone()),
            GroupAnswer::Silent | GroupAnswer::Missing => None,
        };
        let mut misses = Vec::new();
        if answer == GroupAnswer::Silent {
            let groups = Groups(&self.state.snapshot.groups);
            let compared = mine.iter().take(COMPARED);
            misses.extend(compared.map(|(rule, spec)| Miss {
                rule: (*rule).clone(),
                differs: differs(spec, question, &groups),
            }));
            misses.sort_by_key(|miss| miss.differs.len());
            misses.truncate(TOLD);
        }
        Some(GroupVerdict {
            group: id.clone(),
            missing: answer == GroupAnswer::Missing,
            rule,
            rules: mine.len(),
            misses,
        })
    }
}

/// The fewest conditions of a rule without which it would allow what is asked: found by asking the
/// rule without them.
fn differs(spec: &RuleSpec, question: &Asked, groups: &Groups) -> Vec<&'static str> {
    const CONDITIONS: [&[&str]; 5] = [
        &["peer"],
        &["ports"],
        &["protocol"],
        &["peer", "ports"],
        &["peer", "protocol"],
    ];
    let allows = |left_out: &&&[&str]| {
        let mut wider = spec.clone();
        if left_out.contains(&"peer") {
            wider.peer = ruleset::Peer::Any;
        }
        if left_out.contains(&"ports") {
            wider.selector = 0..=u16::MAX;
        }
        if left_out.contains(&"protocol") {
            (wider.protocol, wider.selector) = (None, 0..=u16::MAX);
        }
        RuleSet::new(vec![wider]).decide(question, groups).is_some()
    };
    let fewest = CONDITIONS.iter().find(allows);
    fewest.map_or_else(|| vec!["peer", "protocol"], |fewest| fewest.to_vec())
}
