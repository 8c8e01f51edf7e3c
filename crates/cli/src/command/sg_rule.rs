//! `butterfly sg rule`: what a group allows. A rule has no name: `del` takes the same options as
//! `add`.

use api::v1;
use api::v1::rule::{Match, Peer};
use clap::{Args, Subcommand, ValueEnum};
use ipnet::IpNet;
use serde_json::{Value, json};

use crate::error::Error;
use crate::json;
use crate::output::Table;
use crate::session::Session;
use crate::words::{ICMP, ICMPV6, SCTP, TCP, UDP, protocol_name, rule_words as words};

/// `sg rule …`.
#[derive(Subcommand, Debug)]
pub enum RuleCommand {
    /// Add a rule, or one for each of several ports; creates the group when it is missing
    #[command(after_help = "\
Examples:
  butterfly sg rule add mysg --ip-proto tcp --port 22 --cidr 42.0.3.1/32
  butterfly sg rule add mysg --ip-proto tcp --port 80,443 --sg-members users
  butterfly sg rule add mysg --ip-proto icmp --cidr 10.0.0.0/8")]
    Add(RuleArgs),
    /// Take the rule of these very options away; one that is not there is away already
    #[command(after_help = "Example:\n  \
            butterfly sg rule del mysg --ip-proto tcp --port 22 --cidr 42.0.3.1/32")]
    Del(RuleArgs),
    /// List a group's rules
    List(ListArgs),
}

/// A group and a rule.
#[derive(Args, Debug)]
pub struct RuleArgs {
    /// Id of the group
    #[arg(value_name = "SG")]
    group: String,
    /// in: into the guest; out: out of it
    #[arg(long, value_name = "in|out", default_value = "in", ignore_case = true)]
    dir: Dir,
    /// tcp, udp, sctp, icmp (for IPv6 peers: ICMPv6), icmpv6, all, or a number
    #[arg(long, value_name = "PROTOCOL", value_parser = protocol, allow_hyphen_values = true)]
    ip_proto: Protocol,
    /// tcp, udp, sctp: the destination port, a range A-B, or several: 80,443,8000-8080, a rule
    /// each [default: all]
    #[arg(long, value_name = "PORT", value_delimiter = ',', value_parser = port_range,
        conflicts_with_all = ["port_start", "port_end"])]
    port: Vec<(u16, u16)>,
    /// The first port of a range
    #[arg(long, value_name = "PORT", requires = "port_end")]
    port_start: Option<u16>,
    /// The last port of a range
    #[arg(long, value_name = "PORT", requires = "port_start")]
    port_end: Option<u16>,
    /// API v1, icmp: this type alone
    #[arg(long, value_name = "TYPE")]
    icmp_type: Option<u8>,
    /// API v1, icmp: this code of the type alone
    #[arg(long, value_name = "CODE", requires = "icmp_type")]
    icmp_code: Option<u8>,
    /// The other end: a network, or one address [default: everybody]
    #[arg(long, value_name = "NET", value_parser = cidr, conflicts_with = "sg_members")]
    cidr: Option<String>,
    /// The other end: a group's members and NICs
    #[arg(long, value_name = "SG")]
    sg_members: Option<String>,
}

/// `sg rule list`.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  butterfly sg rule list mysg --counters")]
pub struct ListArgs {
    /// Id of the group
    #[arg(value_name = "SG")]
    group: String,
    /// API v1: with what each rule has let pass
    #[arg(short, long)]
    counters: bool,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum Dir {
    #[value(alias = "inbound", alias = "ingress")]
    In,
    #[value(alias = "outbound", alias = "egress")]
    Out,
}

/// An IP protocol number; none: all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Protocol(pub Option<u32>);

impl RuleCommand {
    /// See [`Command::only_prints`](super::Command::only_prints).
    pub fn only_prints(&self) -> bool {
        matches!(self, RuleCommand::List(_))
    }

    /// Runs the chosen `sg rule` command.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        match self {
            RuleCommand::Add(args) => {
                for rule in args.rules()? {
                    let client = session.client().await?;
                    client.add_rule(&args.group, rule.clone()).await?;
                    session.done_with(done(&args.group, &rule));
                }
                Ok(())
            }
            RuleCommand::Del(args) => {
                for rule in args.rules()? {
                    let client = session.client().await?;
                    client.delete_rule(&args.group, rule.clone()).await?;
                    session.done_with(done(&args.group, &rule));
                }
                Ok(())
            }
            RuleCommand::List(args) if args.counters => list_counters(args, session).await,
            RuleCommand::List(args) => list(args, session).await,
        }
    }
}

fn done(group: &str, rule: &v1::Rule) -> Value {
    json!({ "group": group, "rule": json::sparse("Rule", rule) })
}

impl RuleArgs {
    /// One for each port or range; all of them are looked at before the first is sent.
    fn rules(&self) -> Result<Vec<v1::Rule>, Error> {
        let ranges = self.port.iter().copied();
        let ranges: Vec<(u16, u16)> = ranges.chain(self.port_start.zip(self.port_end)).collect();
        if ranges.is_empty() {
            return Ok(vec![self.rule(None)?]);
        }
        ranges
            .into_iter()
            .map(|range| self.rule(Some(range)))
            .collect()
    }

    fn rule(&self, range: Option<(u16, u16)>) -> Result<v1::Rule, Error> {
        let Protocol(protocol) = self.ip_proto;
        if range.is_some() && !matches!(protocol, Some(TCP | UDP | SCTP)) {
            let name = protocol_name(protocol);
            return Err(Error::Usage(format!(
                "ports are of tcp, udp and sctp; --ip-proto {name} has none"
            )));
        }
        if let Some((start, end)) = range.filter(|(start, end)| start > end) {
            return Err(Error::Usage(format!(
                "the port range {start}-{end} is empty"
            )));
        }
        if self.icmp_type.is_some() && !matches!(protocol, Some(ICMP | ICMPV6)) {
            let name = protocol_name(protocol);
            return Err(Error::Usage(format!(
                "--icmp-type is of icmp and icmpv6; --ip-proto {name} has none"
            )));
        }
        let ports = range.map(|(start, end)| {
            Match::Ports(v1::PortRange {
                start: start.into(),
                end: end.into(),
            })
        });
        let icmp = self.icmp_type.map(|kind| {
            Match::Icmp(v1::IcmpMatch {
                r#type: Some(kind.into()),
                code: self.icmp_code.map(Into::into),
            })
        });
        let direction = match self.dir {
            Dir::In => v1::Direction::Ingress,
            Dir::Out => v1::Direction::Egress,
        };
        Ok(v1::Rule {
            direction: direction.into(),
            protocol,
            r#match: ports.or(icmp),
            peer: self
                .cidr
                .clone()
                .map(Peer::Cidr)
                .or(self.sg_members.clone().map(Peer::Group)),
        })
    }
}

async fn list(args: ListArgs, session: &mut Session) -> Result<(), Error> {
    let rules = session.client().await?.rules(&args.group).await?;
    if session.out.json {
        return session
            .out
            .value(&rules.iter().map(|rule| json::full("Rule", rule)).collect());
    }
    let mut table = Table::new(&["DIR", "PROTO", "PORTS", "PEER"]);
    rules.iter().for_each(|rule| table.row(words(rule)));
    session.out.table(&table)
}

async fn list_counters(args: ListArgs, session: &mut Session) -> Result<(), Error> {
    let counters = session.client().await?.rule_counters(&args.group).await?;
    if session.out.json {
        let value = counters
            .iter()
            .map(|counter| json::full("RuleCounter", counter))
            .collect::<Value>();
        return session.out.value(&json!(value));
    }
    let mut table = Table::new(&[
        "DIR", "PROTO", "PORTS", "PEER", ">FLOWS", ">FRAMES", ">BYTES",
    ]);
    for counter in counters {
        let [dir, proto, ports, peer] = words(&counter.rule.unwrap_or_default());
        let [flows, frames, bytes] =
            [counter.flows, counter.frames, counter.bytes].map(|count| count.to_string());
        table.row([dir, proto, ports, peer, flows, frames, bytes]);
    }
    session.out.table(&table)
}

pub fn protocol(text: &str) -> Result<Protocol, String> {
    Ok(Protocol(match text.to_ascii_lowercase().as_str() {
        "all" | "any" | "-1" => None,
        "tcp" => Some(TCP),
        "udp" => Some(UDP),
        "sctp" => Some(SCTP),
        "icmp" => Some(ICMP),
        "icmpv6" => Some(ICMPV6),
        number => Some(
            number
                .parse::<u8>()
                .map_err(|_| "expected tcp, udp, sctp, icmp, icmpv6, all or 0..255")?
                .into(),
        ),
    }))
}

fn port_range(text: &str) -> Result<(u16, u16), String> {
    let (start, end) = text.split_once('-').unwrap_or((text, text));
    let port = |text: &str| {
        text.parse::<u16>()
            .map_err(|_| "expected a port, 0..65535, or a range A-B".to_owned())
    };
    Ok((port(start)?, port(end)?))
}

/// `ADDRESS/LENGTH`; an address alone stands for itself.
fn cidr(text: &str) -> Result<String, String> {
    let alone = || text.parse::<std::net::IpAddr>().ok().map(IpNet::from);
    text.parse::<IpNet>()
        .ok()
        .or_else(alone)
        .map(|net| net.to_string())
        .ok_or("expected ADDRESS/LENGTH".into())
}
