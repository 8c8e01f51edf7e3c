//! What may cross, by what is declared: the rules (docs/security-groups.md) and whom the wire's
//! frames are taken from (docs/security.md), said once more.

use std::collections::BTreeSet;
use std::net::IpAddr;

use control::model::{Config, Direction, GroupId, Nic, Peer, Ports, Rule, RuleMatch};
use wire::parse::protocol;
use wire::{Mac, Vni, build};

use super::frames::{Sent, Talk};

/// Whether a frame is for a NIC whose rules let it in. Then it has begun, also where the NIC is
/// broken or down and is not reached.
pub fn is_let_in(config: &Config, vni: Vni, sent: &Sent, talk: Talk) -> bool {
    let mut nics = config.nics.values();
    nics.any(|nic| {
        nic.vni == vni
            && nic.mac == sent.dst
            && allows(config, nic, Direction::Ingress, sent.from, talk)
    })
}

/// Whoever has the frame's destination on this host would let it in; who is on another one asks its
/// own rules.
pub fn enters(config: &Config, vni: Vni, sent: &Sent) -> bool {
    let Some(talk) = sent.talk else { return false };
    let here = config.nics.values();
    let mut here = here.filter(|nic| nic.vni == vni && nic.mac == sent.dst);
    here.all(|nic| allows(config, nic, Direction::Ingress, sent.from, talk))
}

/// What the switch itself says to a NIC: an answer, for a machine that is bound.
pub fn answered(config: &Config, nic: &Nic, sent: &Sent, frame: &[u8]) {
    let why = format!("back to its sender: {}", sent.says());
    assert!(sent.talk.is_none(), "{why}");
    let answer = |mac: Mac| match (sent.from, sent.to) {
        (IpAddr::V4(asker), IpAddr::V4(asked)) => build::arp_reply(mac, asked, sent.src, asker),
        (IpAddr::V6(asker), IpAddr::V6(asked)) => {
            build::neighbour_advertisement(mac, asked, sent.src, asker)
        }
        _ => unreachable!("both addresses are of one family"),
    };
    let bound = config.bindings.values();
    let mut bound = bound.filter(|one| one.vni == nic.vni && one.ips.contains(&sent.to));
    assert!(bound.any(|one| frame == answer(one.mac)), "{why}");
}

/// Whether a frame is taken from a host: by who it is, and in whose name.
pub fn is_taken(config: &Config, host: IpAddr, vni: Vni, sent: &Sent) -> bool {
    if !accepts_anybody(config, vni) && !hosts_of(config, vni).contains(&host) {
        return false;
    }
    let mut here = config.nics.values().filter(|nic| nic.vni == vni);
    if here.any(|nic| nic.mac == sent.src || nic.ips.contains(&sent.from)) {
        return false;
    }
    let by_mac = match config.bindings.get(&(vni, sent.src)) {
        Some(bound) => bound.host == host,
        None => learns(config, vni),
    };
    let bound = config.bindings.values();
    let mut bound = bound
        .filter(|one| one.vni == vni && one.ips.contains(&sent.from))
        .peekable();
    by_mac && (bound.peek().is_none() || bound.any(|one| one.host == host))
}

/// The hosts of a network: declared for it, for every one, or by what is bound to them.
pub fn hosts_of(config: &Config, vni: Vni) -> BTreeSet<IpAddr> {
    let declared = config.hosts.values().filter(|host| host.is_in(vni));
    let bound = config.bindings.values().filter(|one| one.vni == vni);
    let declared = declared.map(|host| host.address);
    declared.chain(bound.map(|one| one.host)).collect()
}

pub fn accepts_anybody(config: &Config, vni: Vni) -> bool {
    let said = config.networks.get(&vni).and_then(|said| said.from_anybody);
    // While nothing is declared at all: who is named by a binding is a host, too.
    let is_said = config.networks.values().any(|said| !said.is_default());
    said.unwrap_or(config.hosts.is_empty() && config.bindings.is_empty() && !is_said)
}

pub fn learns(config: &Config, vni: Vni) -> bool {
    let said = config.networks.get(&vni).and_then(|said| said.learning);
    said.unwrap_or(!config.bindings.values().any(|one| one.vni == vni))
}

/// The sender's rules.
pub fn leaves(config: &Config, nic: &Nic, sent: &Sent, talk: Talk) -> bool {
    let own = nic.ips.contains(&sent.from);
    egress(config, nic, own, sent.to, talk)
}

pub fn egress(config: &Config, nic: &Nic, own: bool, to: IpAddr, talk: Talk) -> bool {
    let restricts = |id: &GroupId| {
        let group = config.groups.get(id);
        group.is_none_or(|group| {
            let mut rules = group.rules.iter();
            rules.any(|rule| rule.direction() == Direction::Egress)
        })
    };
    match nic.security_groups.iter().any(restricts) {
        false => nic.bypass_filtering || own,
        true => allows(config, nic, Direction::Egress, to, talk),
    }
}

/// Whether a rule of one of its groups lets that pass, with this address at the other end.
pub fn allows(config: &Config, nic: &Nic, direction: Direction, other: IpAddr, talk: Talk) -> bool {
    let is_member = |id: &GroupId| {
        let Some(group) = config.groups.get(id) else {
            return false;
        };
        let of = |nic: &Nic| nic.security_groups.contains(id) && nic.ips.contains(&other);
        group.members.contains(&other) || config.nics.values().any(of)
    };
    let lets = |rule: &Rule| {
        let peer = match rule.peer() {
            Peer::Any => true,
            Peer::Net(net) => net.contains(&other),
            Peer::Group(id) => is_member(id),
        };
        let port = match rule.matching() {
            RuleMatch::Ports(Ports { start, end }) => (start..=end).contains(&talk.ports[1]),
            RuleMatch::Any | RuleMatch::Icmp(_) => true,
        };
        // ICMP stands for ICMPv6 where the packet is IPv6.
        let is_icmp = |one| one == protocol::ICMP && talk.protocol == protocol::ICMPV6;
        let protocol = rule.protocol();
        let protocol = protocol.is_none_or(|one| one == talk.protocol || is_icmp(one));
        rule.direction() == direction && protocol && port && peer
    };
    let groups = nic.security_groups.iter();
    let mut groups = groups.filter_map(|id| config.groups.get(id));
    nic.bypass_filtering || groups.any(|group| group.rules.iter().any(lets))
}
