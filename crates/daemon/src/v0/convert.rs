//! v0 messages to the model and back. Texts are parsed by the model's own parsers, so errors read
//! alike in all APIs.
//!
//! v0 cannot say all that v1 can: an ICMP type, SCTP's ports, allowed address pairs are not in its
//! answers.

use std::net::IpAddr;

use api::v0::message_v0 as v0;
use control::model::{
    BenchKind, Direction, Group, GroupId, MacCase, Nic, NicId, NicKind, NicUpdate, Peer, Rule,
    check_sizes, parse_address, parse_addresses, parse_groups, parse_mac, parse_vni,
};
use control::{Error, HostSettings, NicStatus};

const TCP: u8 = 6;
const UDP: u8 = 17;

/// A NIC to create, as lenient as the original was: its guest may answer DHCP and send router
/// advertisements, too. What else v0 does not know of keeps its default.
pub fn nic(nic: v0::Nic, settings: &HostSettings) -> Result<Nic, Error> {
    let owner = format!("NIC '{}'", nic.id.escape_debug());
    let kind = kind(&owner, &nic)?;
    let mut new = Nic::new(
        NicId::new(&nic.id)?,
        parse_mac(&owner, &nic.mac)?,
        parse_vni(&owner, nic.vni)?,
    );
    new.ips = parse_addresses(&owner, &nic.ip)?;
    new.security_groups = parse_groups(&nic.security_group)?;
    new.anti_spoof = nic.ip_anti_spoof();
    new.sniff_target = match nic.sniff_target_nic_id.as_deref() {
        None | Some("") => None,
        Some(target) => Some(NicId::new(target)?),
    };
    new.bypass_filtering = nic.bypass_filtering();
    // The socket's path is the contract's, whatever a dump of another daemon says.
    new.path = nic.path.filter(|_| kind == NicKind::Tap);
    new.kind = kind;
    (new.allow_dhcp_server, new.allow_router_advertisements) = (true, true);
    (new.lenient, new.mac_case) = (true, MacCase::of(&nic.mac));
    new.packet_trace = nic.packet_trace.unwrap_or(settings.trace_default);
    new.packet_trace_path = nic.packet_trace_path;
    Ok(new)
}

fn kind(owner: &str, nic: &v0::Nic) -> Result<NicKind, Error> {
    let refuse = |field: &'static str, value: &str, why: &str| {
        Err(Error::Value {
            owner: owner.to_owned(),
            field: field.into(),
            value: value.to_owned(),
            why: why.to_owned(),
        })
    };
    match v0::nic::Type::try_from(nic.r#type.unwrap_or_default()) {
        Ok(v0::nic::Type::VhostUserServer) => Ok(NicKind::VhostUser),
        Ok(v0::nic::Type::Tap) => Ok(NicKind::Tap),
        Ok(v0::nic::Type::Bench) => match nic.btype() {
            "ICMP_SND_LIKE" => Ok(NicKind::Bench(BenchKind::Send {
                ip: parse_address(&owner, "dip", nic.dip())?,
                mac: parse_mac(&owner, nic.dmac())?,
            })),
            "ICMP_RCV_LIKE" => Ok(NicKind::Bench(BenchKind::Receive)),
            other => refuse("btype", other, "is not ICMP_SND_LIKE or ICMP_RCV_LIKE"),
        },
        Err(_) => refuse(
            "type",
            &nic.r#type.unwrap_or_default().to_string(),
            "is no type of NIC",
        ),
    }
}

/// Which NIC to update, and with what.
pub fn nic_update(update: v0::NicUpdateReq) -> Result<(NicId, NicUpdate), Error> {
    let owner = format!("NIC '{}'", update.id.escape_debug());
    // Nothing leaves a list as it is; a single "" empties it.
    let list = |values: Vec<String>| match values.as_slice() {
        [] => None,
        [only] if only.is_empty() => Some(Vec::new()),
        _ => Some(values),
    };
    let change = NicUpdate {
        ips: list(update.ip)
            .map(|ips| parse_addresses(&owner, &ips))
            .transpose()?,
        security_groups: list(update.security_group)
            .map(|ids| parse_groups(&ids))
            .transpose()?,
        anti_spoof: update.ip_anti_spoof,
        packet_trace: update.packet_trace,
        packet_trace_path: update.packet_trace_path,
        ..NicUpdate::default()
    };
    Ok((NicId::new(&update.id)?, change))
}

/// A NIC as nic_details gives it back.
pub fn nic_details(status: &NicStatus) -> v0::Nic {
    let nic = &*status.nic;
    let (kind, btype) = match &nic.kind {
        NicKind::VhostUser => (v0::nic::Type::VhostUserServer, None),
        // v0 has no word for a veth; to its clients it is an interface of the host, too.
        NicKind::Tap | NicKind::Veth(_) | NicKind::VmTap(_) => (v0::nic::Type::Tap, None),
        NicKind::Bench(BenchKind::Send { .. }) => (v0::nic::Type::Bench, Some("ICMP_SND_LIKE")),
        NicKind::Bench(BenchKind::Receive) => (v0::nic::Type::Bench, Some("ICMP_RCV_LIKE")),
    };
    let target = match &nic.kind {
        NicKind::Bench(BenchKind::Send { ip, mac }) => Some((ip.to_string(), mac.to_string())),
        _ => None,
    };
    let (dip, dmac) = target.unzip();
    v0::Nic {
        id: nic.id.to_string(),
        mac: nic.mac_text(),
        vni: nic.vni.id(),
        ip: nic.ips.iter().map(IpAddr::to_string).collect(),
        security_group: nic.security_groups.iter().map(GroupId::to_string).collect(),
        ip_anti_spoof: Some(nic.anti_spoof),
        sniff_target_nic_id: nic.sniff_target.as_ref().map(NicId::to_string),
        bypass_filtering: Some(nic.bypass_filtering),
        r#type: Some(kind.into()),
        path: path(status),
        packet_trace: Some(nic.packet_trace),
        packet_trace_path: Some(
            nic.packet_trace_path
                .as_ref()
                .unwrap_or(&status.trace_path)
                .clone(),
        ),
        btype: btype.map(str::to_owned),
        dip,
        dmac,
    }
}

/// Where a NIC is attached, as nic_add answers. A bench NIC is nowhere; the original printed its
/// null pointer, and its client takes an answer without a path for a failure.
pub fn path(status: &NicStatus) -> Option<String> {
    match &status.nic.kind {
        NicKind::Bench(_) => Some("(nil)".to_owned()),
        _ => Some(status.path.clone()),
    }
}

/// A group to create.
pub fn group(sg: v0::Sg) -> Result<Group, Error> {
    let mut group = Group::new(GroupId::new(&sg.id)?);
    check_sizes(&group.id, sg.member.len(), sg.rule.len())?;
    group.members = sg
        .member
        .iter()
        .map(|text| member(&sg.id, text))
        .collect::<Result<_, _>>()?;
    group.rules = sg.rule.iter().map(rule).collect::<Result<_, _>>()?;
    Ok(group)
}

/// A member of a group.
pub fn member(group: &str, text: &str) -> Result<IpAddr, Error> {
    parse_address(&format!("group '{}'", group.escape_debug()), "member", text)
}

/// A group as sg_details gives it back.
pub fn sg_details(group: &Group) -> v0::Sg {
    v0::Sg {
        id: group.id.to_string(),
        member: group.members.iter().map(IpAddr::to_string).collect(),
        rule: group.rules.iter().map(rule_details).collect(),
    }
}

/// A rule to add, checked: as the original, it must say who is at the other end.
pub fn rule(rule: &v0::Rule) -> Result<Rule, Error> {
    if rule.cidr.is_none() && rule.security_group.is_none() {
        let why = "has neither a CIDR nor a security group; for anybody, add one with 0.0.0.0/0 \
                   and one with ::/0";
        return Err(Error::Rule(why.to_owned()));
    }
    rule_to_delete(rule)
}

/// A rule to take away: one for anybody, which API v1 can make, may be said with neither a CIDR nor
/// a security group.
pub fn rule_to_delete(rule: &v0::Rule) -> Result<Rule, Error> {
    let direction = match v0::rule::Direction::try_from(rule.direction) {
        Ok(v0::rule::Direction::Inbound) => Direction::Ingress,
        Ok(v0::rule::Direction::Outbound) => Direction::Egress,
        Err(_) => {
            return Err(Error::Rule(format!(
                "direction {} is neither in nor out",
                rule.direction
            )));
        }
    };
    let cidr = rule
        .cidr
        .as_ref()
        .map(|cidr| (cidr.address.as_str(), cidr.mask_size));
    Rule::from_v0(
        direction,
        rule.protocol,
        rule.port_start,
        rule.port_end,
        cidr,
        rule.security_group.as_deref(),
    )
}

/// A rule as it is given back: ports for TCP and UDP only, host bits as written.
pub fn rule_details(rule: &Rule) -> v0::Rule {
    let ports = rule
        .ports()
        .filter(|_| matches!(rule.protocol(), Some(TCP | UDP)));
    let (cidr, security_group) = match rule.peer() {
        Peer::Any => (None, None),
        Peer::Net(net) => (
            Some(v0::Cidr {
                address: net.addr().to_string(),
                mask_size: net.prefix_len().into(),
            }),
            None,
        ),
        Peer::Group(group) => (None, Some(group.to_string())),
    };
    v0::Rule {
        direction: match rule.direction() {
            Direction::Ingress => v0::rule::Direction::Inbound,
            Direction::Egress => v0::rule::Direction::Outbound,
        }
        .into(),
        protocol: rule.protocol().map_or(-1, i32::from),
        port_start: ports.map(|ports| ports.start.into()),
        port_end: ports.map(|ports| ports.end.into()),
        cidr,
        security_group,
    }
}
