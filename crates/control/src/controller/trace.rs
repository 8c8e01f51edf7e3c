//! What `trace` needs of the model: names for what the data plane calls by numbers, and which rules
//! come nearest to allowing a frame. The rules are asked by the data plane's own code, one by one.

use std::net::IpAddr;

use dataplane::ruleset::{self, Asked, GroupMembers, RuleSet, RuleSpec};
use dataplane::snapshot::{Group, GroupIdx, PortSlot, RuleSlot};
use dataplane::{AddressSet, GroupAnswer};
use std::collections::HashMap;
use std::sync::Arc;
use wire::{Mac, Vni};

use super::Controller;
use crate::compile::rule_spec;
use crate::model::{Direction, GroupId, NicId, Rule};

/// So many rules of all groups are compared with a frame, and so many are told of each.
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
    /// And how many were not compared, since enough had been.
    pub not_compared: usize,
}

/// What groups have said to one frame: each is asked once, and of all their rules only so many are
/// compared.
#[derive(Debug)]
pub struct Explained {
    room: usize,
    said: HashMap<(GroupId, Asked, GroupAnswer), GroupVerdict>,
}

impl Default for Explained {
    fn default() -> Explained {
        Explained {
            room: COMPARED,
            said: HashMap::new(),
        }
    }
}

impl Explained {
    /// For another frame, which has what room is left.
    pub fn next_frame(&mut self) {
        self.said.clear();
    }
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

    /// One of a NIC's groups, by what the data plane calls it.
    pub fn group_of(&self, nic: PortSlot, group: GroupIdx) -> Option<&GroupId> {
        let nic = self.state.nics.get(self.nic_at(nic)?)?;
        let mut groups = nic.nic.security_groups.iter();
        groups.find(|id| {
            let entry = self.state.groups.get(*id);
            entry.is_some_and(|entry| entry.idx == group)
        })
    }

    /// What a group has said to the question of a frame, and why.
    pub fn explain(
        &self,
        id: &GroupId,
        question: &Asked,
        answer: GroupAnswer,
        explained: &mut Explained,
    ) -> Option<GroupVerdict> {
        let key = (id.clone(), *question, answer);
        if let Some(verdict) = explained.said.get(&key) {
            return Some(verdict.clone());
        }
        let entry = self.state.groups.get(id)?;
        let rules = entry.group.iter().flat_map(|group| group.rules.iter());
        let mine = rules.filter(|rule| {
            let egress = rule.direction() == Direction::Egress;
            egress == (question.direction == ruleset::Direction::Egress)
        });
        let count = mine.clone().count();
        let by = |slot: RuleSlot| {
            let mut rules = entry.counters.iter();
            let (rule, _) = rules.find(|(_, counter)| counter.slot == slot)?;
            Some(rule.clone())
        };
        let (mut misses, mut not_compared) = (Vec::new(), 0);
        let rule = match answer {
            GroupAnswer::Allows(slot) => by(slot),
            GroupAnswer::Missing => None,
            GroupAnswer::Silent => {
                let compared = count.min(explained.room);
                explained.room -= compared;
                not_compared = count - compared;
                let groups = Groups(&self.state.snapshot.groups);
                misses.extend(mine.take(compared).filter_map(|rule| {
                    let slot = entry.counters.get(rule)?.slot;
                    let spec = rule_spec(rule, slot, &self.state.groups)?;
                    Some(Miss {
                        rule: rule.clone(),
                        differs: differs(&spec, question, &groups),
                    })
                }));
                misses.sort_by_key(|miss| miss.differs.len());
                misses.truncate(TOLD);
                None
            }
        };
        let verdict = GroupVerdict {
            group: id.clone(),
            missing: answer == GroupAnswer::Missing,
            rule,
            rules: count,
            misses,
            not_compared,
        };
        explained.said.insert(key, verdict.clone());
        Some(verdict)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Group, Peer, Ports, RuleMatch};
    use crate::tests::world::{controller, group_id, nic, nic_id};

    fn rule(port: u16) -> Rule {
        let ports = RuleMatch::Ports(Ports {
            start: port,
            end: port,
        });
        Rule::new(Direction::Ingress, Some(6), ports, Peer::Any).unwrap()
    }

    /// Many targets, each in many groups of many rules, cost no more than one large group.
    #[test]
    fn a_group_is_asked_once_and_all_rules_share_what_is_compared() {
        let (mut controller, _shared) = controller();
        let names = ["g0", "g1", "g2"];
        controller.put_nic(nic("a", 1, &names)).unwrap();
        for name in names {
            let group = Group {
                rules: (0..900).map(rule).collect(),
                ..Group::new(group_id(name))
            };
            controller.put_group(group).unwrap();
        }
        let slot = controller.nic(&nic_id("a")).unwrap().slot;
        let question = Asked {
            direction: ruleset::Direction::Ingress,
            protocol: 6,
            selector: Some(5000),
            peer: "10.0.0.9".parse().unwrap(),
        };
        let mut explained = Explained::default();
        let mut ask = |name: &str| {
            let idx = controller.state.groups[&group_id(name)].idx;
            let id = controller.group_of(slot, idx).unwrap();
            let answer = GroupAnswer::Silent;
            let said = controller.explain(id, &question, answer, &mut explained);
            let said = said.unwrap();
            assert_eq!((&said.group, said.rules), (&group_id(name), 900));
            (said.misses.len(), said.not_compared, explained.room)
        };
        assert_eq!(ask("g0"), (TOLD, 0, COMPARED - 900));
        assert_eq!(ask("g0"), (TOLD, 0, COMPARED - 900));
        assert_eq!(ask("g1"), (TOLD, 0, COMPARED - 1800));
        assert_eq!(ask("g2"), (TOLD, 700, 0));
        explained.next_frame();
        let g1 = controller.explain(
            &group_id("g1"),
            &question,
            GroupAnswer::Silent,
            &mut explained,
        );
        assert_eq!(g1.unwrap().not_compared, 900);
    }
}
