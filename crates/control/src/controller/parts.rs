//! Whether a change leaves no more in a part of the networks than may be there. Counted is what is
//! declared in it, whoever has declared it: what was deleted does not count, and what the daemon
//! has read from its store when it starts does.

use crate::error::{Error, quota};
use crate::journal::Author;
use crate::model::{Group, GroupId, IdPattern, Part};
use crate::stage::Staged;
use crate::state::State;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use wire::{Mac, Vni};

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Counted {
    Nics,
    Networks,
    Bindings,
    BindingAddresses,
    Groups,
    Rules,
    Members,
}

use Counted::{BindingAddresses, Bindings, Groups, Members, Networks, Nics, Rules};

/// Where it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place<'a> {
    Network(Vni),
    Group(&'a GroupId),
}

use Place::{Group as InGroup, Network as InNetwork};

/// How many more there are of what, and where.
type Growth<'a> = BTreeMap<(Counted, Place<'a>), isize>;

/// Refuses what would be one too many. Of several parts that a network or a group is in, one with
/// room is enough.
pub(super) fn check(
    parts: &[Part],
    author: &Author,
    before: &State,
    after: &State,
    staged: &Staged,
) -> Result<(), Error> {
    if parts.is_empty() {
        return Ok(());
    }
    let growth = growth(before, after, staged);
    let kinds: BTreeSet<Counted> = growth.keys().map(|(what, _)| *what).collect();
    for what in kinds {
        let of_it = growth.iter().filter(|((of, _), _)| *of == what);
        let of_it: Vec<_> = of_it.map(|((_, place), by)| (*place, *by)).collect();
        if of_it.iter().all(|(_, by)| *by <= 0) {
            continue;
        }
        let refused = |part: &Part| {
            let own = of_it.iter().filter(|(place, _)| part.has(*place));
            let by: isize = own.map(|(_, by)| by).sum();
            match by > 0 {
                true => after.check_part(what, part, author).err(),
                false => None,
            }
        };
        let full: Vec<Option<Error>> = parts.iter().map(refused).collect();
        for (place, _) in of_it.iter().filter(|(_, by)| *by > 0) {
            let of_place = parts.iter().zip(&full).filter(|(part, _)| part.has(*place));
            let errors: Option<Vec<&Error>> = of_place.map(|(_, full)| full.as_ref()).collect();
            if let Some(error) = errors.as_ref().and_then(|errors| errors.first()) {
                return Err((*error).clone());
            }
        }
    }
    Ok(())
}

fn growth<'a>(before: &State, after: &State, staged: &'a Staged) -> Growth<'a> {
    let mut growth = Growth::new();
    let mut vnis = BTreeSet::new();
    let mut add = |what, place, by: isize| *growth.entry((what, place)).or_insert(0) += by;
    let count = |list: usize| list as isize;
    for (old, new) in staged.nics.values() {
        for (entry, by) in [(old, -1), (new, 1)] {
            if let Some(entry) = entry {
                add(Nics, InNetwork(entry.nic.vni), by);
                vnis.insert(entry.nic.vni);
            }
        }
    }
    let diff = &staged.diff;
    for change in &diff.bindings {
        let place = InNetwork(change.key.0);
        for (binding, by) in [(&change.from, -1), (&change.to, 1)] {
            if let Some(binding) = binding {
                add(Bindings, place, by);
                add(BindingAddresses, place, by * count(binding.ips.len()));
            }
        }
        vnis.insert(change.key.0);
    }
    vnis.extend(diff.networks.iter().map(|change| change.vni()));
    for vni in vnis {
        let is_known = |state: &State| isize::from(state.overlay.vnis.contains_key(&vni));
        add(Networks, InNetwork(vni), is_known(after) - is_known(before));
    }
    for change in &diff.groups {
        let (place, diff) = (InGroup(&change.id), &change.diff);
        let by = |added: usize, removed: usize| count(added) - count(removed);
        add(Groups, place, by(diff.added.into(), diff.removed.into()));
        let (added, removed) = (&diff.rules_added, &diff.rules_removed);
        add(Rules, place, by(added.len(), removed.len()));
        let (added, removed) = (&diff.members_added, &diff.members_removed);
        add(Members, place, by(added.len(), removed.len()));
    }
    growth
}

impl Part {
    fn has(&self, place: Place) -> bool {
        match place {
            InNetwork(vni) => self.has_network(vni),
            InGroup(id) => self.has_group(id),
        }
    }
}

impl State {
    fn check_part(&self, what: Counted, part: &Part, author: &Author) -> Result<(), Error> {
        let (name, limit) = match what {
            Nics => ("NICs", part.limits.nics),
            Networks => ("VNIs", part.limits.networks),
            Bindings => ("bindings", part.limits.bindings),
            BindingAddresses => ("IPs of bindings", part.limits.binding_addresses),
            Groups => ("groups", part.limits.groups),
            Rules => ("rules", part.limits.rules),
            Members => ("members", part.limits.members),
        };
        // Where the whole host has no more, the part has not either.
        let of_host = match what {
            Nics => self.nics.len(),
            Networks => self.overlay.vnis.len(),
            Bindings => self.overlay.bindings.len(),
            BindingAddresses => self.overlay.addresses,
            Groups => self.group_count,
            Rules => self.rule_count,
            Members => usize::MAX,
        };
        if of_host <= limit {
            return Ok(());
        }
        let owner = match author {
            Author::Daemon => "the part".to_owned(),
            Author::Client(who) => format!("the part of {who}"),
        };
        quota(owner, name, self.count_in(what, part), limit)
    }

    fn count_in(&self, what: Counted, part: &Part) -> usize {
        match what {
            Nics => {
                let networks = self.networks.iter();
                let own = networks.filter(|(vni, _)| part.has_network(**vni));
                own.map(|(_, network)| network.nics).sum()
            }
            Networks => self.networks_in(part, |first, last, is_first| {
                let vnis = self.overlay.vnis.range(first..=last);
                vnis.filter(|(vni, _)| is_first(**vni)).count()
            }),
            Bindings | BindingAddresses => self.networks_in(part, |first, last, is_first| {
                let keys = (first, Mac([0; 6]))..=(last, Mac::BROADCAST);
                let own = self.overlay.bindings.range(keys);
                let own = own.filter(|((vni, _), _)| is_first(*vni));
                match what {
                    Bindings => own.count(),
                    _ => own.map(|(_, binding)| binding.ips.len()).sum(),
                }
            }),
            Groups => self.groups_in(part, |_| 1),
            Rules => self.groups_in(part, |group| group.rules.len()),
            Members => self.groups_in(part, |group| group.members.len()),
        }
    }

    /// The sum over the part's ranges.
    fn networks_in(
        &self,
        part: &Part,
        count: impl Fn(Vni, Vni, &dyn Fn(Vni) -> bool) -> usize,
    ) -> usize {
        let ranges = part.ranges().map(|(range, is_first)| {
            match (Vni::new(*range.start()), Vni::new(*range.end())) {
                (Ok(first), Ok(last)) => count(first, last, &is_first),
                // Beyond 24 bits there are none.
                _ => 0,
            }
        });
        ranges.sum()
    }

    /// The sum over the part's groups.
    fn groups_in(&self, part: &Part, count: impl Fn(&Group) -> usize) -> usize {
        let of_pattern = |pattern: &IdPattern, is_first: &dyn Fn(&GroupId) -> bool| {
            let own = self.groups_by(pattern);
            let own = own.filter(|group| is_first(&group.id));
            own.map(|group| count(group)).sum::<usize>()
        };
        let patterns = part.patterns();
        patterns
            .map(|(pattern, is_first)| of_pattern(pattern, &is_first))
            .sum()
    }

    /// The groups that exist of a pattern, sorted.
    pub(super) fn groups_by<'a>(
        &'a self,
        pattern: &'a IdPattern,
    ) -> impl Iterator<Item = &'a Arc<Group>> {
        let (IdPattern::Id(from) | IdPattern::Prefix(from)) = pattern;
        let bounds = (Bound::Included(from.as_str()), Bound::Unbounded);
        let groups = self.groups.range::<_, str>(bounds);
        let own = groups.take_while(move |(id, _)| match pattern {
            IdPattern::Id(own) => id.as_str() == own,
            IdPattern::Prefix(prefix) => id.as_str().starts_with(prefix),
        });
        own.filter_map(|(_, entry)| entry.group.as_ref())
    }
}
