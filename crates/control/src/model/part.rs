//! A part of what is declared: some networks and some security groups, for somebody who may see or
//! change these alone, and how much there may be in them.

use super::{GroupId, NicId};
use crate::limits;
use std::ops::RangeInclusive;
use wire::Vni;

/// Some networks and some security groups.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Part {
    /// VNIs; ranges may overlap.
    pub networks: Vec<RangeInclusive<u32>>,
    /// Ids; patterns may overlap.
    pub groups: Vec<IdPattern>,
    /// Ids that NICs may have which are made in its networks, or come into them; `None`: any.
    pub nics: Option<Vec<IdPattern>>,
    /// What there may be in them.
    pub limits: PartLimits,
}

/// The id of a group or a NIC, or how ids begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdPattern {
    /// This one.
    Id(String),
    /// All that begin so.
    Prefix(String),
}

/// What may be in a part of what is declared, whoever declares it. What is changed may stay beyond
/// a limit, but comes no further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartLimits {
    /// NICs in its networks.
    pub nics: usize,
    /// VNIs that anything is said of.
    pub networks: usize,
    /// MACs that are bound to hosts.
    pub bindings: usize,
    /// Addresses of these bindings together.
    pub binding_addresses: usize,
    /// Groups.
    pub groups: usize,
    /// Rules of these groups together.
    pub rules: usize,
    /// Addresses that are listed by hand in these groups together.
    pub members: usize,
}

impl Part {
    /// Whether the network is one of its.
    pub fn has_network(&self, vni: Vni) -> bool {
        has_network(&self.networks, vni)
    }

    /// Whether the group is one of its.
    pub fn has_group(&self, id: &GroupId) -> bool {
        is_any_of(&self.groups, id.as_str())
    }

    /// Whether a NIC of this id may be made in its networks.
    pub fn has_nic_id(&self, id: &NicId) -> bool {
        let nics = self.nics.as_ref();
        nics.is_none_or(|nics| is_any_of(nics, id.as_str()))
    }

    /// Its ranges, and whether a network of one is in none of those before it.
    pub(crate) fn ranges(
        &self,
    ) -> impl Iterator<Item = (&RangeInclusive<u32>, impl Fn(Vni) -> bool)> {
        let ranges = self.networks.iter().enumerate();
        ranges.map(move |(at, range)| (range, move |vni| !has_network(&self.networks[..at], vni)))
    }

    /// Its patterns, and whether a group of one is none of those before it.
    pub(crate) fn patterns(&self) -> impl Iterator<Item = (&IdPattern, impl Fn(&GroupId) -> bool)> {
        let patterns = self.groups.iter().enumerate();
        patterns.map(move |(at, pattern)| {
            let first = move |id: &GroupId| !is_any_of(&self.groups[..at], id.as_str());
            (pattern, first)
        })
    }
}

/// The networks of several parts: ranges, sorted, of which none meets another one.
pub(crate) fn networks_of(parts: &[Part]) -> Vec<RangeInclusive<Vni>> {
    let ranges = parts.iter().flat_map(|part| &part.networks);
    let mut ranges: Vec<(u32, u32)> = ranges
        .map(|vnis| (*vnis.start(), (*vnis.end()).min(Vni::MAX)))
        .filter(|(first, last)| first <= last)
        .collect();
    ranges.sort_unstable();
    let mut merged: Vec<(u32, u32)> = Vec::new();
    for (first, last) in ranges {
        match merged.last_mut() {
            Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
            _ => merged.push((first, last)),
        }
    }
    let merged = merged.into_iter().filter_map(|(first, last)| {
        let range = Vni::new(first).ok()?..=Vni::new(last).ok()?;
        Some(range)
    });
    merged.collect()
}

/// The patterns of several parts, sorted, of which none has a group that another one has.
pub(crate) fn patterns_of(parts: &[Part]) -> Vec<&IdPattern> {
    let mut patterns: Vec<&IdPattern> = parts.iter().flat_map(|part| &part.groups).collect();
    patterns.sort_unstable_by_key(|pattern| match pattern {
        IdPattern::Prefix(begin) => (begin, 0),
        IdPattern::Id(id) => (id, 1),
    });
    // What a prefix has stands right behind it.
    patterns.dedup_by(|next, before| match (before, next) {
        (IdPattern::Prefix(begin), IdPattern::Id(next) | IdPattern::Prefix(next)) => {
            next.starts_with(begin.as_str())
        }
        (IdPattern::Id(id), IdPattern::Id(next)) => id == next,
        (IdPattern::Id(_), IdPattern::Prefix(_)) => false,
    });
    patterns
}

fn has_network(ranges: &[RangeInclusive<u32>], vni: Vni) -> bool {
    ranges.iter().any(|vnis| vnis.contains(&vni.id()))
}

fn is_any_of(patterns: &[IdPattern], id: &str) -> bool {
    patterns.iter().any(|pattern| match pattern {
        IdPattern::Id(own) => own == id,
        IdPattern::Prefix(prefix) => id.starts_with(prefix),
    })
}

/// A quarter of what the host has, so that no part takes all places from the others.
impl Default for PartLimits {
    fn default() -> PartLimits {
        PartLimits {
            nics: limits::NICS / 4,
            networks: limits::VNIS / 4,
            bindings: limits::BINDINGS / 4,
            binding_addresses: limits::BINDING_IPS / 4,
            groups: limits::GROUPS / 4,
            rules: limits::RULES / 4,
            // Of the host's there is no number: as many as rules.
            members: limits::RULES / 4,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_several_parts_have_is_walked_once() {
        use IdPattern::{Id, Prefix};
        let part = |networks: &[RangeInclusive<u32>], groups: &[IdPattern]| Part {
            networks: networks.to_vec(),
            groups: groups.to_vec(),
            ..Part::default()
        };
        let parts = [
            part(
                &[50..=60, 1..=5, 6..=7, Vni::MAX - 1..=u32::MAX],
                &[Id("ab".into()), Prefix("b".into()), Id("a".into())],
            ),
            part(
                &[55..=70, 52..=53, u32::MAX - 1..=u32::MAX],
                &[Prefix("ab".into()), Id("abc".into()), Prefix("bb".into())],
            ),
            part(&[], &[Id("a".into()), Id("b".into()), Prefix("ac".into())]),
        ];
        let vnis = |range: RangeInclusive<Vni>| (range.start().id(), range.end().id());
        let networks: Vec<_> = networks_of(&parts).into_iter().map(vnis).collect();
        assert_eq!(networks, [(1, 7), (50, 70), (Vni::MAX - 1, Vni::MAX)]);
        let patterns: Vec<_> = patterns_of(&parts).into_iter().cloned().collect();
        let expected = [
            Id("a".into()),
            Prefix("ab".into()),
            Prefix("ac".into()),
            Prefix("b".into()),
        ];
        assert_eq!(patterns, expected);
        assert!(networks_of(&[]).is_empty() && patterns_of(&[]).is_empty());
    }

    #[test]
    fn a_part_has_groups_by_id_and_by_how_they_begin() {
        let part = Part {
            groups: vec![
                IdPattern::Id("web".into()),
                IdPattern::Prefix("blue-".into()),
            ],
            ..Part::default()
        };
        for (group, is_its) in [
            ("web", true),
            ("web2", false),
            ("blue-db", true),
            ("blue", false),
            ("xblue-db", false),
        ] {
            let id = GroupId::new(group).unwrap();
            assert_eq!(part.has_group(&id), is_its, "{group}");
        }
    }

    #[test]
    fn a_part_has_any_id_of_a_nic_unless_it_says_which() {
        let of = |nics| Part {
            nics,
            ..Part::default()
        };
        let id = |id| NicId::new(id).unwrap();
        assert!(of(None).has_nic_id(&id("x")));
        assert!(!of(Some(vec![])).has_nic_id(&id("x")));
        let blue = of(Some(vec![IdPattern::Prefix("blue-".into())]));
        assert!(blue.has_nic_id(&id("blue-1")) && !blue.has_nic_id(&id("red-1")));
    }
}
