//! v1 messages to the model. Texts are parsed by the model's own parsers, so errors read alike in
//! all APIs.

pub mod overlay;

use std::net::IpAddr;
use std::sync::Arc;

use api::v1;
use control::model::{
    AccessList, AddressPair, BenchKind, Config, Direction, Feature, Group, GroupId, Icmp,
    Interface, Limit, Limits, MacCase, Mirror, MirrorKind, Nic, NicId, NicKind, NicUpdate, Peer,
    Ports, Removal, Rule, RuleMatch, SocketAccess, Timeouts, Veth, VethRoute, VhostMode, VmTap,
    check_sizes, parse_address, parse_addresses, parse_cidr, parse_groups, parse_mac, parse_mode,
    parse_vni, with_bursts,
};
use control::{Error, HostSettings};

use super::interface;
use crate::balancer;

/// A NIC to put; what is not given takes v1's default.
pub fn nic(nic: v1::Nic, settings: &HostSettings) -> Result<Nic, Error> {
    let owner = owner(&nic.id);
    let mut new = Nic::new(
        NicId::new(&nic.id)?,
        parse_mac(&owner, &nic.mac)?,
        parse_vni(&owner, nic.vni)?,
    );
    new.kind = kind(&owner, &nic)?;
    new.vhost_mode = vhost_mode(&owner, nic.vhost_mode)?;
    new.ips = parse_addresses(&owner, &nic.addresses)?;
    new.security_groups = parse_groups(&nic.security_groups)?;
    new.anti_spoof = nic.anti_spoof.unwrap_or(true);
    new.allowed_address_pairs = pairs(&owner, &nic.allowed_address_pairs)?;
    new.sniff_target = given(nic.sniff_target)
        .map(|id| NicId::new(&id))
        .transpose()?;
    let sniff_vni = nic.sniff_vni.map(|vni| parse_vni(&owner, vni));
    new.sniff_vni = sniff_vni.transpose()?;
    new.bypass_filtering = nic.bypass_filtering;
    new.path = given(nic.path);
    new.packet_trace = nic.packet_trace.unwrap_or(settings.trace_default);
    new.packet_trace_path = given(nic.packet_trace_path);
    new.timeouts = timeouts(nic.timeouts.unwrap_or_default());
    new.allow_dhcp_server = nic.allow_dhcp_server;
    new.allow_router_advertisements = nic.allow_router_advertisements;
    new.learn_macs = nic.learn_macs;
    new.link_down = nic.link_down;
    new.lenient = nic.lenient;
    new.shared = nic.shared;
    // The original took blanks, and what was made over its API has to be restored.
    if !new.lenient {
        word("NIC", new.id.as_str())?;
    }
    new.mac_case = MacCase::of(&nic.mac);
    new.mtu = mtu(&owner, nic.mtu)?;
    new.limit_out = limits(nic.limit_out.unwrap_or_default());
    new.limit_in = limits(nic.limit_in.unwrap_or_default());
    new.mirror = nic
        .mirror
        .map(|one| mirror(&owner, one))
        .transpose()?
        .flatten();
    new.sflow_rate = nic.sflow_rate;
    new.socket = SocketAccess {
        owner: given(nic.socket_owner),
        group: given(nic.socket_group),
        mode: socket_mode(&owner, nic.socket_mode)?,
    };
    Ok(new)
}

/// Whom a NIC's socket is to be given to, as it is said.
pub fn socket_names(nic: &v1::Nic) -> SocketAccess {
    SocketAccess {
        owner: given(nic.socket_owner.clone()),
        group: given(nic.socket_group.clone()),
        mode: None,
    }
}

/// An id that is new in API v1 can be printed, and is one word in a table or a command.
pub fn word(what: &'static str, id: &str) -> Result<(), Error> {
    // Quotes and backslashes are escaped, too, and are harmless.
    let plain = id.replace(['\'', '"', '\\'], "");
    let blank = id.chars().find(|c| c.is_whitespace());
    let why = match blank {
        Some(blank) => format!("has the blank {blank:?}"),
        None if plain.escape_debug().to_string() != plain => {
            "has characters that cannot be printed".to_owned()
        }
        None => return Ok(()),
    };
    Err(Error::Id {
        what,
        id: id.to_owned(),
        why: format!("{why}: an id is a printable word"),
    })
}

/// Which NIC to update, and with what.
pub fn nic_update(update: v1::UpdateNicRequest) -> Result<(NicId, NicUpdate), Error> {
    let owner = owner(&update.id);
    let change = NicUpdate {
        ips: update
            .addresses
            .map(|list| parse_addresses(&owner, &list.addresses))
            .transpose()?,
        security_groups: update
            .security_groups
            .map(|list| parse_groups(&list.groups))
            .transpose()?,
        leave_groups: parse_groups(&update.leave_groups)?,
        join_groups: parse_groups(&update.join_groups)?,
        anti_spoof: update.anti_spoof,
        allowed_address_pairs: update
            .allowed_address_pairs
            .map(|list| pairs(&owner, &list.pairs))
            .transpose()?,
        bypass_filtering: update.bypass_filtering,
        packet_trace: update.packet_trace,
        packet_trace_path: update.packet_trace_path,
        timeouts: update.timeouts.map(timeouts),
        allow_dhcp_server: update.allow_dhcp_server,
        allow_router_advertisements: update.allow_router_advertisements,
        learn_macs: update.learn_macs,
        link_down: update.link_down,
        mtu: update.mtu.map(|value| mtu(&owner, value)).transpose()?,
        limit_out: update.limit_out.map(limits),
        limit_in: update.limit_in.map(limits),
        mirror: update.mirror.map(|one| mirror(&owner, one)).transpose()?,
        sflow_rate: update.sflow_rate.map(|rate| rate.frames),
        socket_owner: update.socket_owner.map(given),
        socket_group: update.socket_group.map(given),
        socket_mode: update
            .socket_mode
            .map(|mode| socket_mode(&owner, mode))
            .transpose()?,
    };
    Ok((NicId::new(&update.id)?, change))
}

fn kind(owner: &str, nic: &v1::Nic) -> Result<NicKind, Error> {
    let kind = v1::NicKind::try_from(nic.kind);
    if nic.bench.is_some() && kind != Ok(v1::NicKind::Bench) {
        return Err(Error::value(
            owner,
            "bench",
            "",
            "is given for a NIC of another kind",
        ));
    }
    if nic.veth.is_some() && kind != Ok(v1::NicKind::Veth) {
        let why = "is given for a NIC of another kind";
        return Err(Error::value(owner, "veth", "", why));
    }
    if nic.vm_tap.is_some() && kind != Ok(v1::NicKind::VmTap) {
        let why = "is given for a NIC of another kind";
        return Err(Error::value(owner, "vm_tap", "", why));
    }
    match kind {
        Ok(v1::NicKind::VmTap) => {
            let tap = nic.vm_tap.unwrap_or_default();
            Ok(NicKind::VmTap(VmTap {
                uid: tap.uid,
                gid: tap.gid,
                multi_queue: tap.multi_queue,
            }))
        }
        Ok(v1::NicKind::Veth) => {
            let veth = veth(owner, nic.veth.clone().unwrap_or_default())?;
            Ok(NicKind::Veth(Box::new(veth)))
        }
        Ok(v1::NicKind::Unspecified | v1::NicKind::VhostUser) => Ok(NicKind::VhostUser),
        Ok(v1::NicKind::Tap) => Ok(NicKind::Tap),
        Ok(v1::NicKind::Bench) => {
            bench(owner, nic.bench.clone().unwrap_or_default()).map(NicKind::Bench)
        }
        Err(_) => Err(Error::value(
            owner,
            "kind",
            &nic.kind.to_string(),
            "is no kind of NIC",
        )),
    }
}

fn vhost_mode(owner: &str, mode: i32) -> Result<VhostMode, Error> {
    match v1::VhostMode::try_from(mode) {
        Ok(v1::VhostMode::Unspecified | v1::VhostMode::Server) => Ok(VhostMode::Server),
        Ok(v1::VhostMode::Client) => Ok(VhostMode::Client),
        Err(_) => Err(Error::value(
            owner,
            "vhost mode",
            &mode.to_string(),
            "is neither server nor client",
        )),
    }
}

/// Empty is the daemon's own.
fn socket_mode(owner: &str, text: String) -> Result<Option<u32>, Error> {
    let Some(text) = given(text) else {
        return Ok(None);
    };
    let why = "are no permissions: three octal digits, as 660";
    let mode = parse_mode(&text);
    let mode = mode.ok_or_else(|| Error::value(owner, "socket mode", &text, why))?;
    Ok(Some(mode))
}

/// `None`: it says that there is none.
fn mirror(owner: &str, mirror: v1::Mirror) -> Result<Option<Mirror>, Error> {
    let of_port = |port: u32| {
        let why = "is not a UDP port";
        u16::try_from(port).map_err(|_| Error::value(owner, "mirror port", &port.to_string(), why))
    };
    let kind = match (v1::mirror::Kind::try_from(mirror.kind), mirror.port) {
        (Ok(v1::mirror::Kind::Unspecified | v1::mirror::Kind::Vxlan), port) => MirrorKind::Vxlan {
            port: match port {
                0 => wire::vxlan::PORT,
                port => of_port(port)?,
            },
            vni: match mirror.id {
                0 => None,
                id => Some(parse_vni(&owner, id)?),
            },
        },
        (Ok(v1::mirror::Kind::Erspan), 0) => MirrorKind::Erspan {
            session: match mirror.id {
                0 => 1,
                // What is too large is refused with the other bounds.
                id => id.try_into().unwrap_or(u16::MAX),
            },
        },
        (Ok(v1::mirror::Kind::Erspan), port) => {
            let why = "is given for ERSPAN, which has no ports";
            return Err(Error::value(owner, "mirror port", &port.to_string(), why));
        }
        (Err(_), _) => {
            let (kind, why) = (mirror.kind.to_string(), "is neither VXLAN nor ERSPAN");
            return Err(Error::value(owner, "mirror kind", &kind, why));
        }
    };
    if mirror.address.is_empty() {
        // Of a mirror that is not to be, nothing else is said.
        return match mirror == v1::Mirror::default() {
            true => Ok(None),
            false => {
                let why = "is no address of a collector";
                Err(Error::value(owner, "mirror address", "", why))
            }
        };
    }
    Ok(Some(Mirror {
        kind,
        address: parse_address(&owner, "mirror address", &mirror.address)?,
        direction: match v1::Direction::try_from(mirror.direction) {
            Ok(v1::Direction::Unspecified) => None,
            Ok(v1::Direction::Ingress) => Some(Direction::Ingress),
            Ok(v1::Direction::Egress) => Some(Direction::Egress),
            Err(_) => {
                let (value, why) = (mirror.direction.to_string(), "is no direction");
                return Err(Error::value(owner, "mirror direction", &value, why));
            }
        },
        snap_len: (mirror.snap_len != 0).then_some(mirror.snap_len),
    }))
}

fn bench(owner: &str, bench: v1::Bench) -> Result<BenchKind, Error> {
    match v1::bench::Role::try_from(bench.role) {
        Ok(v1::bench::Role::IcmpSender) => Ok(BenchKind::Send {
            ip: parse_address(&owner, "target_ip", &bench.target_ip)?,
            mac: parse_mac(&owner, &bench.target_mac)?,
        }),
        Ok(v1::bench::Role::IcmpReceiver) => Ok(BenchKind::Receive),
        _ => Err(Error::value(
            owner,
            "bench role",
            &bench.role.to_string(),
            "is no role: a kind BENCH needs one",
        )),
    }
}

fn veth(owner: &str, veth: v1::Veth) -> Result<Veth, Error> {
    let route = |route: &v1::VethRoute| {
        let via = match route.via.as_str() {
            "" => None,
            text => Some(parse_address(&owner, "route", text)?),
        };
        Ok(VethRoute {
            to: parse_cidr(&owner, &route.to)?,
            via,
        })
    };
    let net = |text: &String| parse_cidr(&owner, text);
    let gateway = |text: &String| parse_address(&owner, "gateway", text);
    Ok(Veth {
        netns: veth.netns,
        ifname: veth.ifname,
        subnets: veth.subnets.iter().map(net).collect::<Result<_, _>>()?,
        gateways: veth
            .gateways
            .iter()
            .map(gateway)
            .collect::<Result<_, _>>()?,
        routes: veth
            .routes
            .iter()
            .map(route)
            .collect::<Result<_, Error>>()?,
    })
}

fn pairs(owner: &str, pairs: &[v1::AddressPair]) -> Result<Vec<AddressPair>, Error> {
    let one = |pair: &v1::AddressPair| {
        let mac = match pair.mac.as_str() {
            "" => None,
            text => Some(parse_mac(&owner, text)?),
        };
        Ok(AddressPair {
            net: parse_cidr(&owner, &pair.net)?,
            mac,
        })
    };
    pairs.iter().map(one).collect()
}

/// 0 is the default. Bounds are the model's to check.
fn timeouts(timeouts: v1::Timeouts) -> Timeouts {
    let default = Timeouts::default();
    let or = |value, default| if value == 0 { default } else { value };
    Timeouts {
        tcp_established_secs: or(timeouts.tcp_established_secs, default.tcp_established_secs),
        udp_secs: or(timeouts.udp_secs, default.udp_secs),
        udp_stream_secs: or(timeouts.udp_stream_secs, default.udp_stream_secs),
    }
}

/// Those that are there, with a burst. Bounds are the model's to check.
fn limits(limits: v1::Limits) -> Limits {
    let one = |limit: Option<v1::Limit>| {
        limit.map(|limit| Limit {
            rate: limit.rate,
            burst: limit.burst,
        })
    };
    with_bursts(Limits {
        bits: one(limits.bits),
        packets: one(limits.packets),
        connections: one(limits.connections),
        floods: one(limits.floods),
    })
}

/// 0 is the daemon's own.
fn mtu(owner: &str, mtu: u32) -> Result<Option<u16>, Error> {
    let mtu: u16 = mtu.try_into().map_err(|_| {
        Error::value(
            owner,
            "MTU",
            &mtu.to_string(),
            "is above the largest, 65535",
        )
    })?;
    Ok(Some(mtu).filter(|mtu| *mtu != 0))
}

/// A group to put.
pub fn group(group: v1::Group) -> Result<Group, Error> {
    let mut new = Group::new(GroupId::new(&group.id)?);
    check_sizes(&new.id, group.members.len(), group.rules.len())?;
    new.members = group
        .members
        .iter()
        .map(|text| member(&group.id, text))
        .collect::<Result<_, _>>()?;
    new.rules = group.rules.iter().map(rule).collect::<Result<_, _>>()?;
    new.removal = removal(&new.id, group.removal)?;
    new.allow_midstream = group.allow_midstream;
    new.silent_midstream = group.silent_midstream;
    Ok(new)
}

/// What becomes of connections that no rule allows any more.
pub fn removal(group: &GroupId, number: i32) -> Result<Removal, Error> {
    match v1::Removal::try_from(number) {
        Ok(v1::Removal::Unspecified | v1::Removal::Cut) => Ok(Removal::Cut),
        Ok(v1::Removal::Drain) => Ok(Removal::Drain),
        Err(_) => {
            let owner = format!("group '{group}'");
            Err(Error::value(
                &owner,
                "removal",
                &number.to_string(),
                "is neither cut nor drain",
            ))
        }
    }
}

/// A member of a group.
pub fn member(group: &str, text: &str) -> Result<IpAddr, Error> {
    parse_address(&format!("group '{}'", group.escape_debug()), "member", text)
}

/// A rule, checked and normalised.
pub fn rule(rule: &v1::Rule) -> Result<Rule, Error> {
    let direction = match v1::Direction::try_from(rule.direction) {
        Ok(v1::Direction::Ingress) => Direction::Ingress,
        Ok(v1::Direction::Egress) => Direction::Egress,
        _ => {
            return Err(Error::Rule(format!(
                "direction {} is neither ingress nor egress",
                rule.direction
            )));
        }
    };
    let protocol = rule
        .protocol
        .map(|number| octet("protocol", number))
        .transpose()?;
    let matching = match &rule.r#match {
        None => RuleMatch::Any,
        Some(v1::rule::Match::Ports(range)) => RuleMatch::Ports(Ports {
            start: port(range.start)?,
            end: port(range.end)?,
        }),
        Some(v1::rule::Match::Icmp(icmp)) => RuleMatch::Icmp(Icmp {
            kind: icmp
                .r#type
                .map(|number| octet("ICMP type", number))
                .transpose()?,
            code: icmp
                .code
                .map(|number| octet("ICMP code", number))
                .transpose()?,
        }),
    };
    let peer = match &rule.peer {
        None => Peer::Any,
        Some(v1::rule::Peer::Cidr(text)) => Peer::Net(parse_cidr(&"rule", text)?),
        Some(v1::rule::Peer::Group(id)) => Peer::Group(GroupId::new(id)?),
    };
    Rule::new(direction, protocol, matching, peer)
}

fn octet(what: &str, number: u32) -> Result<u8, Error> {
    number
        .try_into()
        .map_err(|_| Error::Rule(format!("{what} {number} is above 255")))
}

fn port(number: u32) -> Result<u16, Error> {
    number
        .try_into()
        .map_err(|_| Error::Rule(format!("port {number} is above 65535")))
}

fn router_acl(acl: &v1::RouterAccessList) -> Result<AccessList, Error> {
    let owner = "router: access list";
    let default = AccessList::default_of(&acl.default);
    let default_allows = default.map_err(|why| Error::Invalid(format!("{owner}: {why}")))?;
    let rule = |(index, rule): (usize, &String)| {
        let wrong = |why: String| {
            let why = format!("is no rule: {why}");
            Error::value(owner, format!("rule {}", index + 1), rule, &why)
        };
        rule.parse().map_err(wrong)
    };
    let rules = acl.rules.iter().enumerate().map(rule);
    Ok(AccessList {
        rules: rules.collect::<Result<_, _>>()?,
        default_allows,
    })
}

/// A whole configuration. Two of one id would lose one of them: refused.
pub fn config(config: v1::Config, settings: &HostSettings) -> Result<Config, Error> {
    let mut new = Config::default();
    if let Some(balancer) = config.balancer {
        let (services, interfaces) = balancer::convert::config(balancer)?;
        new.services = Some(services);
        let interfaces = interfaces.map(|interfaces| (Feature::Balancer, interfaces));
        new.interfaces.extend(interfaces);
    }
    if let Some(router) = config.router {
        let interfaces = router.interfaces.iter();
        let interfaces = interfaces.map(|one| interface::wanted(&one.name, one.mode));
        let interfaces = interfaces.collect::<Result<_, _>>()?;
        new.interfaces.insert(Feature::Router, interfaces);
        let acl = router.acl.as_ref().map(router_acl).transpose()?;
        new.router_acl = Some(acl.map(Arc::new));
    }
    if let Some(uplinks) = config.uplinks {
        let interfaces = uplinks.interfaces.iter();
        let interfaces = interfaces.map(|name| Interface::new(name, None));
        let interfaces = interfaces.collect::<Result<_, _>>()?;
        new.interfaces.insert(Feature::Uplink, interfaces);
    }
    for given in config.nics {
        let nic = nic(given, settings)?;
        if let Some(twice) = new.nics.insert(nic.id.clone(), nic) {
            return Err(Error::value(
                &owner(twice.id.as_str()),
                "id",
                twice.id.as_str(),
                "is given twice",
            ));
        }
    }
    for given in config.groups {
        let group = group(given)?;
        if let Some(twice) = new.groups.insert(group.id.clone(), group) {
            return Err(Error::value(
                &format!("group '{}'", twice.id),
                "id",
                twice.id.as_str(),
                "is given twice",
            ));
        }
    }
    new.hosts = overlay::hosts(config.endpoints)?;
    new.networks = overlay::networks(config.networks)?;
    new.bindings = overlay::bindings(&config.bindings)?;
    Ok(new)
}

fn owner(id: &str) -> String {
    format!("NIC '{}'", id.escape_debug())
}

/// proto3's empty text is an absent one.
fn given(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// None of them is looked at: the first one already is no rule.
    #[test]
    fn too_many_rules_or_members_are_refused_by_their_number() {
        let too_many = |members, rules| {
            let made = group(v1::Group {
                id: "web".into(),
                members: vec!["nobody".into(); members],
                rules: vec![v1::Rule::default(); rules],
                ..Default::default()
            });
            made.unwrap_err().to_string()
        };
        assert_eq!(
            too_many(0, 10_001),
            "group 'web' would have 10001 rules, the limit is 10000"
        );
        assert_eq!(
            too_many(16_385, 0),
            "group 'web' would have 16385 members, the limit is 16384"
        );
    }

    #[test]
    fn new_ids_are_printable_words() {
        for good in ["vnic_1", "été", "a'b", "eni-1:5", "日本"] {
            assert!(word("NIC", good).is_ok(), "{good}");
        }
        for bad in [
            "a b",
            " a",
            "a\u{a0}b",
            "a\u{202e}b",
            "a\u{200b}b",
            "a\u{3000}",
        ] {
            let error = word("NIC", bad).unwrap_err().to_string();
            assert!(error.contains("printable word"), "{error}");
        }
        let error = word("group", "a b").unwrap_err().to_string();
        assert_eq!(
            error,
            "group id 'a b' has the blank ' ': an id is a printable word"
        );
    }
}
