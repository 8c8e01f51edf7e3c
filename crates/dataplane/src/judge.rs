//! The rules applied to one packet: may it leave this NIC, may it enter that one.
//!
//! Pure functions of the view: the path asks them for a flow's first packet and again when the
//! configuration has changed, and whoever wants to explain a drop can ask them the same.

use std::net::{IpAddr, Ipv6Addr};

use wire::Mac;

use crate::ids::{GroupIdx, RuleSlot};
use crate::ruleset::{Asked, Direction};
use crate::searches::Searches;
use crate::snapshot::{AddressPair, PortConfig, UnknownTcp};
use crate::view::View;

/// Permission for one side of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Grant {
    /// The rule that gave it; `None`: no rule was needed.
    pub rule: Option<RuleSlot>,
    /// The rule's group lets flows live on when the rule is taken away.
    pub drain: bool,
    /// What the rule's group says of TCP amid an unknown flow; without a rule, the NIC's groups.
    pub unknown_tcp: UnknownTcp,
}

/// What is asked about: a packet, or a flow by its first one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Question {
    pub src: IpAddr,
    pub dst: IpAddr,
    pub protocol: u8,
    /// Destination port, or ICMP `type << 8 | code`.
    pub selector: Option<u16>,
    /// The packet is amid a flow: prefer the group that says most of [`UnknownTcp`].
    pub midstream: bool,
}

impl Question {
    /// What rules of one direction are asked.
    #[inline]
    pub(crate) fn to_rules(self, direction: Direction) -> Asked {
        Asked {
            direction,
            protocol: self.protocol,
            selector: self.selector,
            peer: match direction {
                Direction::Egress => self.dst,
                Direction::Ingress => self.src,
            },
        }
    }
}

/// What a group says to a question.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum GroupAnswer {
    /// This rule of it allows what is asked.
    Allows(RuleSlot),
    /// None of its rules does.
    Silent,
    /// There is no such group: it allows nothing.
    Missing,
}

/// Told of each group that is asked, and what it says.
pub(crate) trait Look: FnMut(GroupIdx, GroupAnswer) {}
impl<F: FnMut(GroupIdx, GroupAnswer)> Look for F {}

/// Nobody looks: costs nothing.
fn unseen(_: GroupIdx, _: GroupAnswer) {}

/// May the packet leave `nic`? `owned` says whether its source address is the NIC's. In how many
/// places of the rules is looked is noted in `searches`, here and below.
#[inline]
pub(crate) fn egress(
    view: &View,
    nic: &PortConfig,
    question: &Question,
    owned: bool,
    searches: &mut Searches,
) -> Option<Grant> {
    egress_seen(view, nic, question, owned, unseen, searches)
}

/// Whether [`egress`] asks any rule.
#[inline]
pub(crate) fn is_egress_asked(view: &View, nic: &PortConfig, owned: bool) -> bool {
    !nic.bypass && (!owned || view.open_to(nic.slot).needs_egress)
}

/// Whether [`ingress`] asks any rule.
#[inline]
pub(crate) fn is_ingress_asked(nic: &PortConfig) -> bool {
    !nic.bypass
}

/// In how many places a question to a NIC's rules of this direction looks at the most.
pub(crate) fn most_looks(view: &View, nic: &PortConfig, direction: Direction) -> u64 {
    if nic.bypass {
        return 0;
    }
    let groups = nic.groups.iter();
    let groups = groups.filter_map(|group| view.groups().get(*group));
    groups.map(|group| group.rules.most_looks(direction)).sum()
}

/// What [`egress`] says; `look` is told which groups were asked.
pub(crate) fn egress_seen(
    view: &View,
    nic: &PortConfig,
    question: &Question,
    owned: bool,
    look: impl Look,
    searches: &mut Searches,
) -> Option<Grant> {
    if !is_egress_asked(view, nic, owned) {
        return Some(Grant {
            unknown_tcp: view.open_to(nic.slot).unknown_tcp,
            ..Grant::default()
        });
    }
    let asked = question.to_rules(Direction::Egress);
    by_groups(view, nic, &asked, question.midstream, look, searches)
}

/// May the packet enter `nic`?
#[inline]
pub(crate) fn ingress(
    view: &View,
    nic: &PortConfig,
    question: &Question,
    searches: &mut Searches,
) -> Option<Grant> {
    ingress_seen(view, nic, question, unseen, searches)
}

/// What [`ingress`] says; `look` is told which groups were asked.
pub(crate) fn ingress_seen(
    view: &View,
    nic: &PortConfig,
    question: &Question,
    look: impl Look,
    searches: &mut Searches,
) -> Option<Grant> {
    if !is_ingress_asked(nic) {
        return Some(Grant::default());
    }
    let asked = question.to_rules(Direction::Ingress);
    by_groups(view, nic, &asked, question.midstream, look, searches)
}

/// Asks the NIC's groups one after the other. A group that does not exist allows nothing.
fn by_groups(
    view: &View,
    nic: &PortConfig,
    asked: &Asked,
    midstream: bool,
    mut look: impl Look,
    searches: &mut Searches,
) -> Option<Grant> {
    let mut granted: Option<Grant> = None;
    let before = searches.looked;
    for index in &nic.groups {
        let Some(group) = view.groups().get(*index) else {
            look(*index, GroupAnswer::Missing);
            continue;
        };
        if granted.is_some_and(|granted| granted.unknown_tcp >= group.unknown_tcp) {
            continue;
        }
        let rule = searches.find((*index, group), asked, view.groups());
        look(
            *index,
            rule.map_or(GroupAnswer::Silent, GroupAnswer::Allows),
        );
        if let Some(rule) = rule {
            granted = Some(Grant {
                rule: Some(rule),
                drain: group.drain,
                unknown_tcp: group.unknown_tcp,
            });
            if !midstream || group.unknown_tcp == UnknownTcp::Adopt {
                break;
            }
        }
    }
    searches.note_question(before);
    granted
}

/// True when the NIC may send from `source`: an address of its own, an allowed pair's, or the
/// link-local one that its MAC gives. `mac` is what the packet was sent from; `None` when that is
/// not known any more.
#[inline]
pub(crate) fn owns(nic: &PortConfig, mac: Option<Mac>, source: IpAddr) -> bool {
    nic.addresses.contains(&source)
        || source == IpAddr::V6(nic.mac.link_local())
        || nic.pairs.iter().any(|pair| {
            let with = pair.mac.unwrap_or(nic.mac);
            let link_local = |mac: Mac| source == IpAddr::V6(mac.link_local());
            mac.is_none_or(|mac| mac == with) && (pair.net.contains(&source) || link_local(with))
        })
}

/// True when the NIC may send from this MAC address.
pub(crate) fn owns_mac(nic: &PortConfig, mac: Mac) -> bool {
    let paired = |pair: &AddressPair| pair.mac == Some(mac);
    mac == nic.mac || nic.pairs.iter().any(paired)
}

/// True for the address of nobody yet.
pub(crate) fn is_unspecified(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_unspecified(),
        IpAddr::V6(v6) => v6 == Ipv6Addr::UNSPECIFIED,
    }
}
