//! Makes the frame of a trace: what the request says, and for the rest what its sender would use.

use std::net::IpAddr;

use api::v1;
use api::v1::get_trace_request::{From, What};
use control::NicStatus;
use control::model::NicId;
use dataplane::PortSlot;
use tonic::Status;
use uplink::Fact;
use wire::build;
use wire::parse::{TcpFlags, protocol};
use wire::vxlan::{Ends, Outer, PORT, UdpChecksum};
use wire::{Mac, Vni, checksum};

use crate::access::Permitted;
use crate::app::App;
use crate::underlay::vlan_of;

/// The longest frame: 65,535 bytes of IP packet behind Ethernet.
const FRAME_MAX: usize = 65_535 + 14;
const PAYLOAD_MAX: u32 = 65_000;
const SOURCE_PORT: u16 = 40_000;

/// Who sends, and what.
pub struct Made {
    pub from: PortSlot,
    /// The NIC, when it is one.
    pub nic: Option<NicStatus>,
    pub vni: Option<Vni>,
    pub frame: Vec<u8>,
}

pub fn make(
    app: &App,
    control: &mut Permitted,
    request: v1::GetTraceRequest,
) -> Result<Made, Status> {
    let from = super::super::service::required(request.from, "nic and no host")?;
    let what = super::super::service::required(request.what, "frame and no headers")?;
    match from {
        From::Nic(id) => {
            let nic = control
                .nic(&NicId::new(&id).map_err(super::super::refused)?)
                .map_err(Status::from)?;
            let vni = nic.nic.vni;
            let frame = match what {
                What::Frame(frame) => bounded(frame)?,
                What::Headers(headers) => {
                    let mine = Sender {
                        name: format!("NIC '{id}'"),
                        mac: Some(nic.nic.mac),
                        addresses: nic.nic.host_addresses().collect(),
                        vni,
                    };
                    by_headers(control, &mine, &headers)?
                }
            };
            Ok(Made {
                from: nic.slot,
                nic: Some(nic),
                vni: Some(vni),
                frame,
            })
        }
        From::Host(host) => from_host(app, control, &host, what),
    }
}

/// Whom a frame by its headers is from.
struct Sender {
    name: String,
    mac: Option<Mac>,
    addresses: Vec<IpAddr>,
    vni: Vni,
}

fn from_host(
    app: &App,
    control: &mut Permitted,
    host: &v1::TraceFromHost,
    what: What,
) -> Result<Made, Status> {
    let uplinks = app.uplinks.running();
    let facts = uplinks.map(|uplinks| uplinks.facts());
    let facts = facts.as_deref().unwrap_or_default();
    // An uplink is the whole host's.
    control.whole().map_err(Status::from)?;
    let fact = match host.uplink.as_str() {
        "" => facts.iter().find(|fact| fact.joined),
        name => facts.iter().find(|fact| fact.interface == name),
    };
    let fact = fact.ok_or_else(|| match host.uplink.as_str() {
        "" => Status::failed_precondition("this host has no uplink that is joined"),
        name => Status::not_found(format!("there is no uplink '{}'", name.escape_debug())),
    })?;
    let from = PortSlot::uplink(fact.number);
    if host.outer {
        let What::Frame(frame) = what else {
            return Err(Status::invalid_argument(
                "outer headers are of a whole frame, not of one by its headers",
            ));
        };
        return Ok(Made {
            from,
            nic: None,
            vni: None,
            frame: bounded(frame)?,
        });
    }
    let vni = Vni::new(host.vni).map_err(|error| Status::invalid_argument(error.to_string()))?;
    let peer = address("host", &host.endpoint)?;
    let inner = match what {
        What::Frame(frame) => bounded(frame)?,
        What::Headers(headers) => {
            let source = match headers.source.as_str() {
                "" => None,
                text => Some(address("source", text)?),
            };
            // Who there has the address, or else who is there at all.
            let mut behind = control
                .bindings(Some(vni), Some(peer))
                .map_err(Status::from)?;
            let bound =
                behind.find(|binding| source.is_none_or(|source| binding.ips.contains(&source)));
            let sender = Sender {
                name: format!("host {peer}"),
                mac: bound.as_ref().map(|binding| binding.mac),
                addresses: bound.map_or_else(Vec::new, |binding| binding.ips.to_vec()),
                vni,
            };
            by_headers(control, &sender, &headers)?
        }
    };
    let kernel = uplinks.map(|uplinks| uplinks.kernel().snapshot());
    let vlan = |ours| vlan_of(ours, facts, kernel.as_deref()?);
    let frame = wrap(fact, peer, vni, &inner, vlan)?;
    Ok(Made {
        from,
        nic: None,
        vni: Some(vni),
        frame,
    })
}

/// The packet in which the other host would send it to us, in the VLAN of our address.
fn wrap(
    fact: &Fact,
    peer: IpAddr,
    vni: Vni,
    inner: &[u8],
    vlan: impl Fn(IpAddr) -> Option<u16>,
) -> Result<Vec<u8>, Status> {
    let ours = fact.addresses.iter();
    let ends = ours
        .filter_map(|ours| Some((Ends::new(peer, *ours)?, *ours)))
        .next();
    let (ends, ours) = ends.ok_or_else(|| {
        Status::failed_precondition(format!(
            "uplink {} has no address of the family of {peer}",
            fact.interface
        ))
    })?;
    let macs = (Mac([2, 0, 0, 0, 0, 1]), fact.mac.unwrap_or_default());
    let mut outer = Outer::new(macs, vlan(ours), ends, 64, PORT, UdpChecksum::Zero);
    outer.set_flow(vni, SOURCE_PORT, 0);
    let mut frame = vec![0; outer.len()];
    outer.write(&mut frame, inner.len(), checksum::sum(inner));
    frame.extend_from_slice(inner);
    Ok(frame)
}

fn by_headers(
    control: &Permitted,
    sender: &Sender,
    headers: &v1::TraceHeaders,
) -> Result<Vec<u8>, Status> {
    let destination = address("destination", &headers.destination)?;
    let own = || {
        let mut alike = sender.addresses.iter();
        alike
            .find(|own| own.is_ipv6() == destination.is_ipv6())
            .copied()
    };
    let source = match headers.source.as_str() {
        "" => own().ok_or_else(|| {
            let (name, family) = (&sender.name, family(destination));
            Status::failed_precondition(format!(
                "{name} has no {family} address: say the source address"
            ))
        })?,
        text => address("source", text)?,
    };
    if source.is_ipv6() != destination.is_ipv6() {
        return Err(Status::invalid_argument(format!(
            "source {source} and destination {destination} are not of one family"
        )));
    }
    let source_mac = match (headers.source_mac.as_str(), sender.mac) {
        ("", Some(mac)) => mac,
        ("", None) => {
            return Err(Status::failed_precondition(format!(
                "no binding says which MAC {source} has at {}: say the source MAC",
                sender.name
            )));
        }
        (text, _) => mac("source_mac", text)?,
    };
    let mut frame = match headers.arp {
        true => question(source_mac, source, destination),
        false => {
            let to = match headers.destination_mac.as_str() {
                "" => destination_mac(control, sender, destination)?,
                text => mac("destination_mac", text)?,
            };
            packet((source_mac, to), (source, destination), headers)?
        }
    };
    if let Some(fragment) = &headers.fragment {
        let offset = u16::try_from(fragment.offset).ok().filter(|at| at % 8 == 0);
        let offset = offset.ok_or_else(|| {
            let at = fragment.offset;
            Status::invalid_argument(format!(
                "fragment offset {at} is not a multiple of 8 below 65536"
            ))
        })?;
        frame = build::fragment_at(&frame, offset, fragment.more, fragment.id);
    }
    bounded(tagged(frame, &headers.vlans)?)
}

/// ARP, or neighbour discovery.
fn question(mac: Mac, source: IpAddr, destination: IpAddr) -> Vec<u8> {
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(target)) => build::arp_request(mac, source, target),
        (IpAddr::V6(source), IpAddr::V6(target)) => {
            build::neighbour_solicitation(mac, source, target)
        }
        // Of one family: checked.
        _ => Vec::new(),
    }
}

fn destination_mac(
    control: &Permitted,
    sender: &Sender,
    destination: IpAddr,
) -> Result<Mac, Status> {
    match destination {
        IpAddr::V4(v4) if v4.is_broadcast() => return Ok(Mac::BROADCAST),
        // RFC 1112, section 6.4.
        IpAddr::V4(v4) if v4.is_multicast() => {
            let [_, a, b, c] = v4.octets();
            return Ok(Mac([1, 0, 0x5e, a & 0x7f, b, c]));
        }
        // RFC 2464, section 7.
        IpAddr::V6(v6) if v6.is_multicast() => {
            let [.., a, b, c, d] = v6.octets();
            return Ok(Mac([0x33, 0x33, a, b, c, d]));
        }
        _ => {}
    }
    let macs = control
        .macs_with(sender.vni, destination)
        .map_err(Status::from)?;
    macs.first().copied().ok_or_else(|| {
        Status::failed_precondition(format!(
            "nobody is known in VNI {} who has {destination}: say the destination MAC, for what a \
             router forwards that of the router",
            sender.vni
        ))
    })
}

fn packet(
    (source_mac, to): (Mac, Mac),
    (source, destination): (IpAddr, IpAddr),
    headers: &v1::TraceHeaders,
) -> Result<Vec<u8>, Status> {
    let port = |name: &str, number: u32| {
        u16::try_from(number)
            .map_err(|_| Status::invalid_argument(format!("{name} {number} is above 65535")))
    };
    let byte = |name: &str, number: u32| {
        u8::try_from(number)
            .map_err(|_| Status::invalid_argument(format!("{name} {number} is above 255")))
    };
    if headers.payload > PAYLOAD_MAX {
        return Err(Status::invalid_argument(format!(
            "payload {} is above {PAYLOAD_MAX} bytes",
            headers.payload
        )));
    }
    let sport = match headers.source_port {
        0 => SOURCE_PORT,
        number => port("source_port", number)?,
    };
    let dport = port("destination_port", headers.destination_port)?;
    let number = byte("protocol", headers.protocol)?;
    let ttl = match headers.ttl {
        0 => 64,
        ttl => byte("ttl", ttl)?,
    };
    let is_v6 = destination.is_ipv6();
    let frame = build::frame(source_mac, to)
        .ip(source, destination)
        .ttl(ttl);
    let frame = match number {
        protocol::TCP => {
            let flags = headers.tcp_flags.unwrap_or(TcpFlags::SYN.0.into());
            frame.tcp(sport, dport, TcpFlags(byte("tcp_flags", flags)?))
        }
        protocol::UDP => frame.udp(sport, dport),
        // An INIT chunk: what opens an association (RFC 9260, section 3.3.2).
        protocol::SCTP => frame.sctp(sport, dport, 0, 1),
        protocol::ICMP | protocol::ICMPV6 => {
            let of_v6 = number == protocol::ICMPV6;
            if of_v6 != is_v6 {
                let name = if of_v6 { "ICMPv6" } else { "ICMP" };
                return Err(Status::invalid_argument(format!(
                    "{name} does not go to {destination}"
                )));
            }
            let echo = if is_v6 { 128 } else { 8 };
            let kind = byte("icmp_type", headers.icmp_type.unwrap_or(echo))?;
            let code = byte("icmp_code", headers.icmp_code)?;
            frame.icmp(kind, code, u32::from(sport) << 16 | 1)
        }
        other => frame.protocol(other),
    };
    Ok(frame.payload(&vec![0; headers.payload as usize]).build())
}

/// With 802.1Q tags behind its MAC addresses.
fn tagged(mut frame: Vec<u8>, vlans: &[u32]) -> Result<Vec<u8>, Status> {
    for vlan in vlans.iter().rev() {
        let id = u16::try_from(*vlan).ok().filter(|id| *id < 4096);
        let id =
            id.ok_or_else(|| Status::invalid_argument(format!("VLAN {vlan} is not 0 to 4095")))?;
        let [high, low] = id.to_be_bytes();
        frame.splice(12..12, [0x81, 0x00, high, low]);
    }
    Ok(frame)
}

fn bounded(frame: Vec<u8>) -> Result<Vec<u8>, Status> {
    match frame.len() {
        0 => Err(Status::invalid_argument("the frame is empty")),
        len if len > FRAME_MAX => Err(Status::invalid_argument(format!(
            "the frame has {len} bytes, the longest {FRAME_MAX}"
        ))),
        _ => Ok(frame),
    }
}

fn family(address: IpAddr) -> &'static str {
    if address.is_ipv6() { "IPv6" } else { "IPv4" }
}

fn address(name: &str, text: &str) -> Result<IpAddr, Status> {
    text.parse().map_err(|_| {
        let text = text.escape_debug();
        Status::invalid_argument(format!("{name} '{text}' is no IP address"))
    })
}

fn mac(name: &str, text: &str) -> Result<Mac, Status> {
    text.parse().map_err(|_| {
        let text = text.escape_debug();
        Status::invalid_argument(format!("{name} '{text}' is no MAC address"))
    })
}
