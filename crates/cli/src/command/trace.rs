//! `butterfly trace`: would it pass? Says what becomes of a frame on its way through the switch,
//! and what would let it pass. With `--live`, what does happen.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use api::v1;
use api::v1::get_trace_request::{From, What};
use clap::Args;
use serde_json::{Value, json};

use super::trace_live::LiveArgs;
use super::trace_print::print;
use crate::error::Error;
use crate::json;
use crate::session::Session;
use crate::words::{ICMP, ICMPV6, SCTP, TCP, UDP};

/// Other hosts that a trace follows a frame to, one after the other.
const HOPS_MAX: usize = 8;

/// `trace`.
#[derive(Args, Debug)]
#[command(after_help = "\
Nothing is sent, counted, learnt or remembered: the path that judges all frames judges this one.
The exit code is 0 when it would pass and 1 when it would be dropped. docs/trace.md says more.

Examples:
  butterfly trace vm1 tcp 10.0.0.2:443
  butterfly trace vm1 icmp 10.0.0.2 --source 10.0.0.9
  butterfly trace vm1 tcp 10.0.0.2:443 --tcp-flags ack
  butterfly trace vm1 arp 10.0.0.2
  butterfly trace vm1 --pcap vm1.pcapng --number 7
  butterfly trace uplink --vni 42 --host 192.168.0.2 udp 10.0.0.1:53 --source 10.0.0.2
  butterfly trace vm1 tcp 10.0.0.7:80 --via 192.168.0.2=https://host2:9443
  butterfly trace --live vm1 'tcp port 443' --frames 20")]
pub struct TraceArgs {
    /// Who sends it: id of a NIC, or `uplink` for a machine of another --host
    from: String,
    /// tcp, udp, sctp, icmp, icmpv6, arp (or IPv6's question for a neighbour), or a protocol number
    #[arg(value_name = "PROTOCOL", conflicts_with_all = ["frame", "pcap"])]
    protocol: Option<String>,
    /// The destination: ADDRESS, ADDRESS:PORT or [ADDRESS]:PORT
    #[arg(value_name = "DESTINATION")]
    to: Option<String>,
    /// Source address, with or without a port [default: the sender's first, port 40000]
    #[arg(long, value_name = "ADDRESS[:PORT]")]
    source: Option<String>,
    /// Source MAC [default: the sender's]
    #[arg(long, value_name = "MAC")]
    source_mac: Option<String>,
    /// Destination MAC [default: who has the destination in this network]
    #[arg(long, value_name = "MAC")]
    dest_mac: Option<String>,
    /// tcp: fin, syn, rst, psh, ack, urg, or none [default: syn]
    #[arg(long, value_name = "FLAG", value_delimiter = ',')]
    tcp_flags: Vec<String>,
    /// icmp: the type [default: echo request]
    #[arg(long, value_name = "TYPE")]
    icmp_type: Option<u8>,
    /// icmp: the code
    #[arg(
        long,
        value_name = "CODE",
        default_value = "0",
        hide_default_value = true
    )]
    icmp_code: u8,
    /// 802.1Q VLAN ids, the outermost first
    #[arg(long, value_name = "VLAN", value_delimiter = ',')]
    vlan: Vec<u16>,
    /// TTL or hop limit [default: 64]
    #[arg(long)]
    ttl: Option<u8>,
    /// So many zeros behind the headers
    #[arg(
        long,
        value_name = "BYTES",
        default_value = "0",
        hide_default_value = true
    )]
    payload: u16,
    /// A fragment that begins there in its datagram; with a + behind it, others follow
    #[arg(long, value_name = "OFFSET[+]")]
    fragment: Option<String>,
    /// The fragment's identification
    #[arg(long, value_name = "ID", requires = "fragment")]
    fragment_id: Option<u32>,
    /// A whole frame in hexadecimal digits, from its Ethernet header on
    #[arg(long, value_name = "HEX", conflicts_with = "pcap")]
    frame: Option<String>,
    /// A frame of a pcap or pcapng file
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Which frame of the file, as tcpdump and Wireshark count
    #[arg(
        long,
        value_name = "N",
        requires = "pcap",
        default_value = "1",
        hide_default_value = true
    )]
    number: u32,
    /// uplink: the other host's address, which is declared
    #[arg(long, value_name = "ADDRESS")]
    host: Option<IpAddr>,
    /// uplink: the virtual network that the frame is for
    #[arg(long, value_name = "VNI", requires = "host")]
    vni: Option<u32>,
    /// uplink: the interface [default: the first]
    #[arg(long, value_name = "INTERFACE")]
    uplink: Option<String>,
    /// uplink: the frame has its VXLAN headers already
    #[arg(long, conflicts_with_all = ["host", "to"])]
    outer: bool,
    /// Ask the daemon of another host too, by its API endpoint, what becomes of what reaches it
    #[arg(long, value_name = "ADDRESS=ENDPOINT")]
    via: Vec<String>,
    #[command(flatten)]
    live: LiveArgs,
}

/// One host's answer.
pub struct Traced {
    /// The other host's address; `None`: this one.
    pub host: Option<IpAddr>,
    pub trace: v1::Trace,
}

impl TraceArgs {
    /// Asks, prints, and fails when it would not pass.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        if self.live.is_on() {
            let words = [&self.protocol, &self.to].into_iter().flatten();
            let words: Vec<&str> = words.map(String::as_str).collect();
            return self.live.run(session, &self.from, &words).await;
        }
        let vias = self.vias()?;
        let request = self.request()?;
        let client = session.client().await?.only_v1("trace")?;
        let first = client.trace(request).await?;
        let mut traces = vec![Traced {
            host: None,
            trace: first,
        }];
        follow(session, &vias, &mut traces).await?;
        let printed = match session.out.json {
            true => session.out.value(&as_json(&traces)),
            false => session.out.text(print(&traces).trim_end()),
        };
        // It passes when somebody gets it in the end.
        let arrives = |at: usize| arrives(&traces, at);
        match arrives(0) {
            true => printed,
            false => Err(Error::Refused("it would not pass".into())),
        }
    }

    fn vias(&self) -> Result<Vec<(IpAddr, String)>, Error> {
        let one = |text: &String| {
            let (host, endpoint) = text.split_once('=')?;
            Some((host.parse().ok()?, endpoint.to_owned()))
        };
        let each = self.via.iter().map(|text| {
            one(text).ok_or_else(|| Error::Usage(format!("--via '{text}' is not ADDRESS=ENDPOINT")))
        });
        each.collect()
    }

    fn request(&self) -> Result<v1::GetTraceRequest, Error> {
        let is_uplink = self.host.is_some() || self.outer;
        if is_uplink && self.from != "uplink" {
            let from = &self.from;
            return Err(Error::Usage(format!(
                "--host and --outer go with 'trace uplink', not with '{from}'"
            )));
        }
        let from = match is_uplink {
            false => From::Nic(self.from.clone()),
            true => From::Host(v1::TraceFromHost {
                uplink: self.uplink.clone().unwrap_or_default(),
                vni: self.vni.unwrap_or_default(),
                endpoint: self.host.map(|host| host.to_string()).unwrap_or_default(),
                outer: self.outer,
            }),
        };
        if self.host.is_some() && self.vni.is_none() {
            return Err(Error::Usage(
                "--host needs the --vni that the frame is for".into(),
            ));
        }
        Ok(v1::GetTraceRequest {
            from: Some(from),
            what: Some(self.what()?),
        })
    }

    fn what(&self) -> Result<What, Error> {
        if let Some(hex) = &self.frame {
            return from_hex(hex).map(What::Frame);
        }
        if let Some(file) = &self.pcap {
            return from_file(file, self.number).map(What::Frame);
        }
        let (Some(protocol), Some(to)) = (&self.protocol, &self.to) else {
            return Err(Error::Usage(
                "say what is sent: PROTOCOL and DESTINATION, --frame or --pcap".into(),
            ));
        };
        let (destination, destination_port) = end("destination", to)?;
        let (source, source_port) = match &self.source {
            Some(text) => {
                let (address, port) = end("source", text)?;
                (address.to_string(), port)
            }
            None => (String::new(), None),
        };
        let (protocol, arp) = protocol_of(protocol, destination)?;
        if destination_port.is_some() && !matches!(protocol, TCP | UDP | SCTP) {
            return Err(Error::Usage(format!(
                "'{to}' has a port, and the protocol has none"
            )));
        }
        if destination_port.is_none() && matches!(protocol, TCP | UDP | SCTP) && !arp {
            return Err(Error::Usage(format!("'{to}' has no port: ADDRESS:PORT")));
        }
        let tcp_flags = match self.tcp_flags.is_empty() {
            true => None,
            false => Some(flags(&self.tcp_flags)?),
        };
        Ok(What::Headers(v1::TraceHeaders {
            protocol,
            arp,
            source,
            destination: destination.to_string(),
            source_port: source_port.unwrap_or_default().into(),
            destination_port: destination_port.unwrap_or_default().into(),
            source_mac: self.source_mac.clone().unwrap_or_default(),
            destination_mac: self.dest_mac.clone().unwrap_or_default(),
            tcp_flags,
            icmp_type: self.icmp_type.map(Into::into),
            icmp_code: self.icmp_code.into(),
            vlans: self.vlan.iter().map(|vlan| u32::from(*vlan)).collect(),
            ttl: self.ttl.unwrap_or_default().into(),
            payload: self.payload.into(),
            fragment: self.fragment()?,
        }))
    }

    fn fragment(&self) -> Result<Option<v1::TraceFragment>, Error> {
        let Some(text) = &self.fragment else {
            return Ok(None);
        };
        let offset = text.trim_end_matches('+').parse().map_err(|_| {
            Error::Usage(format!(
                "--fragment '{text}' is not an offset, with or without a +"
            ))
        })?;
        Ok(Some(v1::TraceFragment {
            offset,
            more: text.ends_with('+'),
            id: self.fragment_id.unwrap_or_default(),
        }))
    }
}

/// Asks the hosts that a frame would reach, as far as somebody has said how.
async fn follow(
    session: &Session,
    vias: &[(IpAddr, String)],
    traces: &mut Vec<Traced>,
) -> Result<(), Error> {
    let mut at = 0;
    while at < traces.len() && traces.len() <= HOPS_MAX {
        let targets = traces[at].trace.targets.clone();
        at += 1;
        for target in targets
            .iter()
            .filter(|target| target.passes && !target.packet.is_empty())
        {
            let host: Option<IpAddr> = target.endpoint.parse().ok();
            let via = vias.iter().find(|(address, _)| Some(*address) == host);
            let Some((host, endpoint)) = via else {
                continue;
            };
            let mut client = session.connect_to(endpoint).await?;
            let request = v1::GetTraceRequest {
                from: Some(From::Host(v1::TraceFromHost {
                    outer: true,
                    ..Default::default()
                })),
                what: Some(What::Frame(target.packet.clone())),
            };
            let trace = client.only_v1("trace --via")?.trace(request).await?;
            traces.push(Traced {
                host: Some(*host),
                trace,
            });
        }
    }
    Ok(())
}

/// Whether somebody gets it: a NIC, or another host that was not asked.
fn arrives(traces: &[Traced], at: usize) -> bool {
    let trace = &traces[at].trace;
    let by = |target: &v1::TraceTarget| {
        let host: Option<IpAddr> = target.endpoint.parse().ok();
        let asked = traces
            .iter()
            .position(|traced| host.is_some() && traced.host == host);
        match asked.filter(|next| *next > at) {
            Some(next) => arrives(traces, next),
            None => target.passes || target.waits,
        }
    };
    trace.passes && (trace.targets.is_empty() || trace.targets.iter().any(by))
}

fn as_json(traces: &[Traced]) -> Value {
    let mut first = json::full("Trace", &traces[0].trace);
    let others = traces[1..].iter().map(|traced| {
        let host = traced.host.map(|host| host.to_string());
        json!({ "host": host, "trace": json::full("Trace", &traced.trace) })
    });
    let others: Vec<Value> = others.collect();
    if let Some(object) = first.as_object_mut().filter(|_| !others.is_empty()) {
        object.insert("other_hosts".into(), others.into());
    }
    first
}

/// `tcp`, …, by number; whether it is a question for a neighbour instead.
fn protocol_of(text: &str, destination: IpAddr) -> Result<(u32, bool), Error> {
    let number = match text.to_ascii_lowercase().as_str() {
        "tcp" => TCP,
        "udp" => UDP,
        "sctp" => SCTP,
        "icmp" | "ping" if destination.is_ipv6() => ICMPV6,
        "icmp" | "ping" => ICMP,
        "icmpv6" => ICMPV6,
        "arp" | "nd" => return Ok((0, true)),
        other => match other.parse::<u8>() {
            Ok(number) => number.into(),
            Err(_) => return Err(Error::Usage(format!("'{text}' is no protocol"))),
        },
    };
    Ok((number, false))
}

/// An address, with or without a port.
fn end(name: &str, text: &str) -> Result<(IpAddr, Option<u16>), Error> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok((address, None));
    }
    let both = text.parse::<SocketAddr>();
    both.map(|both| (both.ip(), Some(both.port())))
        .map_err(|_| Error::Usage(format!("{name} '{text}' is not ADDRESS or ADDRESS:PORT")))
}

fn flags(names: &[String]) -> Result<u32, Error> {
    const NAMES: [&str; 8] = ["fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr"];
    names.iter().try_fold(0, |flags, name| {
        let lower = name.to_ascii_lowercase();
        match NAMES.iter().position(|known| *known == lower) {
            Some(bit) => Ok(flags | 1 << bit),
            None if lower == "none" => Ok(flags),
            None => Err(Error::Usage(format!(
                "--tcp-flags '{name}' is none of {}",
                NAMES.join(", ")
            ))),
        }
    })
}

fn from_hex(text: &str) -> Result<Vec<u8>, Error> {
    let digits: Vec<u8> = text
        .bytes()
        .filter(|byte| !byte.is_ascii_whitespace() && *byte != b':')
        .collect();
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let byte = |pair: &[u8]| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?);
    let bytes: Option<Vec<u8>> = digits.chunks(2).map(byte).collect();
    bytes.ok_or_else(|| Error::Usage("--frame is not pairs of hexadecimal digits".into()))
}

/// Frame `number` of a capture file, from 1. libpcap reads both formats.
fn from_file(file: &std::path::Path, number: u32) -> Result<Vec<u8>, Error> {
    let name = file.display();
    let wrong = |why: String| Error::Usage(format!("{name}: {why}"));
    let mut capture = pcap::Capture::from_file(file).map_err(|error| wrong(error.to_string()))?;
    if capture.get_datalink() != pcap::Linktype::ETHERNET {
        return Err(wrong("is not a capture of Ethernet frames".into()));
    }
    if number == 0 {
        return Err(Error::Usage("--number counts from 1".into()));
    }
    let mut count = 0;
    loop {
        match capture.next_packet() {
            Ok(packet) => {
                count += 1;
                if count < number {
                    continue;
                }
                if packet.header.caplen < packet.header.len {
                    let (caught, whole) = (packet.header.caplen, packet.header.len);
                    return Err(wrong(format!(
                        "of frame {number} {caught} of {whole} bytes were captured"
                    )));
                }
                return Ok(packet.data.to_vec());
            }
            Err(pcap::Error::NoMorePackets) => {
                return Err(wrong(format!("has {count} frames, no frame {number}")));
            }
            Err(error) => return Err(wrong(error.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: TraceArgs,
    }

    fn request(words: &[&str]) -> Result<v1::GetTraceRequest, Error> {
        let words = ["trace"].iter().chain(words);
        Line::try_parse_from(words).unwrap().args.request()
    }

    #[test]
    fn a_line_is_a_frame_s_headers() {
        let asked = request(&["vm1", "tcp", "[fd00::2]:443", "--tcp-flags", "syn,ack"]).unwrap();
        assert_eq!(asked.from, Some(From::Nic("vm1".into())));
        let expected = v1::TraceHeaders {
            protocol: 6,
            destination: "fd00::2".into(),
            destination_port: 443,
            tcp_flags: Some(18),
            ..Default::default()
        };
        assert_eq!(asked.what, Some(What::Headers(expected)));
    }

    #[test]
    fn what_cannot_be_is_refused_by_its_name() {
        for (words, why) in [
            (&["vm1"][..], "say what is sent"),
            (&["vm1", "tcp", "10.0.0.2"], "'10.0.0.2' has no port"),
            (&["vm1", "icmp", "10.0.0.2:1"], "has a port"),
            (&["vm1", "tcp", "somewhere:1"], "'somewhere:1'"),
            (&["vm1", "tpc", "10.0.0.2:1"], "'tpc' is no protocol"),
            (&["vm1", "tcp", "10.0.0.2:1", "--tcp-flags", "sin"], "'sin'"),
            (
                &["vm1", "udp", "10.0.0.2:1", "--fragment", "x"],
                "--fragment 'x'",
            ),
            (&["vm1", "--frame", "0g"], "--frame"),
            (&["vm1", "--frame", "012"], "--frame"),
            (
                &[
                    "vm1",
                    "udp",
                    "10.0.0.2:1",
                    "--host",
                    "10.1.0.1",
                    "--vni",
                    "1",
                ],
                "'vm1'",
            ),
            (
                &["uplink", "udp", "10.0.0.2:1", "--host", "10.1.0.1"],
                "--vni",
            ),
        ] {
            let error = request(words).unwrap_err().to_string();
            assert!(error.contains(why), "{words:?}: {error}");
        }
        assert_eq!(from_hex("02:00 0a\nFf").unwrap(), [2, 0, 10, 255]);
    }
}
