//! What a NIC allows without looking at a packet (security-groups.md 12), worked out once when its
//! groups or their rules change.

use crate::flow::NONE;
use crate::ids::RuleSlot;
use crate::ruleset::Direction;
use crate::snapshot::{Group, PortConfig, UnknownTcp};

/// What a NIC allows without looking at a packet, by family: `[IPv4, IPv6]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Open {
    /// Everything may come in.
    pub ingress: [Opening; 2],
    /// Everything (from its own addresses, when no rule says so) may go out.
    pub egress: [Opening; 2],
    /// Only what an egress rule allows may go out: a group of it has one, or is missing and might.
    pub needs_egress: bool,
    /// What becomes of TCP amid an unknown flow that goes out without a rule: the last that a group
    /// of it says, by the order of [`UnknownTcp`].
    pub unknown_tcp: UnknownTcp,
}

/// Whether everything passes, and by which rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Opening {
    /// The rules have to be asked.
    #[default]
    No,
    /// The NIC bypasses filtering, or has no egress rule: only the source address is to be checked.
    Free,
    /// A rule allows everything.
    Rule(RuleSlot),
}

impl Default for Open {
    fn default() -> Open {
        Open::CLOSED
    }
}

impl Open {
    /// What a slot without a NIC allows.
    pub const CLOSED: Open = Open {
        ingress: [Opening::No; 2],
        egress: [Opening::No; 2],
        needs_egress: true,
        unknown_tcp: UnknownTcp::Reset,
    };

    /// What a network allows on other hosts, whose rules are asked there.
    pub const UNFILTERED: Open = Open {
        ingress: [Opening::Free; 2],
        egress: [Opening::Free; 2],
        needs_egress: false,
        unknown_tcp: UnknownTcp::Reset,
    };

    /// What a NIC allows whose groups are these, `None` for those that do not exist.
    pub fn of<'a>(
        config: &PortConfig,
        groups: impl Iterator<Item = Option<&'a Group>> + Clone,
    ) -> Open {
        if config.bypass {
            return Open::UNFILTERED;
        }
        let part = groups.map(GroupOpen::of);
        let opening = |which: fn(&GroupOpen) -> [Option<RuleSlot>; 2], v6: usize| {
            let by = part.clone().find_map(|group| which(&group)[v6]);
            by.map_or(Opening::No, Opening::Rule)
        };
        let needs_egress = part.clone().any(|group| group.needs_egress);
        let egress = |v6| match needs_egress {
            true => opening(|group| group.egress, v6),
            false => Opening::Free,
        };
        let ingress = |v6| opening(|group| group.ingress, v6);
        let unknown_tcp = part.clone().map(|group| group.unknown_tcp).max();
        Open {
            ingress: [ingress(0), ingress(1)],
            egress: [egress(0), egress(1)],
            needs_egress,
            unknown_tcp: unknown_tcp.unwrap_or_default(),
        }
    }
}

/// What a group adds to what its NICs allow: only when this changes have they to be asked anew.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct GroupOpen {
    ingress: [Option<RuleSlot>; 2],
    egress: [Option<RuleSlot>; 2],
    needs_egress: bool,
    unknown_tcp: UnknownTcp,
}

impl GroupOpen {
    pub fn of(group: Option<&Group>) -> GroupOpen {
        // What a missing group would not have let out is not known: it is taken for one with egress
        // rules.
        let Some(group) = group else {
            return GroupOpen {
                ingress: [None; 2],
                egress: [None; 2],
                needs_egress: true,
                unknown_tcp: UnknownTcp::Reset,
            };
        };
        // A group that drains keeps the state of its flows: they are to outlive its rules.
        let by = |direction| {
            [false, true].map(|v6| match group.drain {
                true => None,
                false => group.rules.open(direction, v6),
            })
        };
        GroupOpen {
            ingress: by(Direction::Ingress),
            egress: by(Direction::Egress),
            needs_egress: group.rules.has_egress(),
            unknown_tcp: group.unknown_tcp,
        }
    }
}

impl Opening {
    /// The rule's slot, or [`NONE`].
    #[inline]
    pub(crate) fn rule_slot(self) -> u32 {
        match self {
            Opening::Rule(rule) => rule.0,
            Opening::No | Opening::Free => NONE,
        }
    }
}
