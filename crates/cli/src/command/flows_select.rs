//! Which connections are meant, in the words that `flows list` and `flows kill` share, and what
//! `flows list --watch` and `flows kill` do with them.

use std::collections::HashMap;
use std::time::Duration;

use api::v1;
use clap::{Args, ValueEnum};

use super::daemon::confirm;
use super::flows::end;
use super::repeat::{Repeat, grown, megabits};
use super::sg_rule::{Protocol, protocol};
use crate::client::Client;
use crate::error::Error;
use crate::json;
use crate::output::{Table, say};
use crate::session::Session;
use crate::words::{direction_name, protocol_name};

/// Connections that are watched, at most.
const WATCHED_MAX: usize = 100_000;

/// What a connection is to be.
#[derive(Args, Debug, Clone, Default)]
pub struct Which {
    /// Id of a NIC at either end [default: all]
    nic: Option<String>,
    /// With a NIC of this group at either end
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    /// tcp, udp, sctp, icmp, icmpv6, or a number from 0 to 255
    #[arg(long, value_name = "PROTOCOL", value_parser = protocol)]
    protocol: Option<Protocol>,
    /// Either end has this address, or one of this prefix; several: each of them
    #[arg(long, value_name = "ADDRESS[/LENGTH]")]
    address: Vec<String>,
    /// Either end has this port; several: each of them
    #[arg(long, value_name = "PORT")]
    port: Vec<u16>,
    /// In this state, as the column has it; several: one of them
    #[arg(long, value_name = "STATE")]
    state: Vec<String>,
    /// allowed by the rules in force, or undecided: they have changed, and its next packet asks
    /// them
    #[arg(long, value_name = "VERDICT")]
    verdict: Option<Verdict>,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Allowed,
    Undecided,
}

impl Which {
    /// The NIC, and what else is asked for.
    pub fn request(&self) -> (String, Option<v1::FlowFilter>) {
        let filter = v1::FlowFilter {
            group: self.group.clone().unwrap_or_default(),
            protocol: self.protocol.and_then(|Protocol(number)| number),
            addresses: self.address.clone(),
            ports: self.port.iter().map(|port| u32::from(*port)).collect(),
            states: self.state.clone(),
            current: self.verdict.map(|verdict| verdict == Verdict::Allowed),
        };
        let is_any = filter == v1::FlowFilter::default();
        (
            self.nic.clone().unwrap_or_default(),
            (!is_any).then_some(filter),
        )
    }

    /// As `flows list` asks for them.
    pub fn list(&self) -> v1::ListFlowsRequest {
        let (nic, filter) = self.request();
        v1::ListFlowsRequest {
            nic,
            filter,
            ..Default::default()
        }
    }
}

/// Prints what the connections carry, again and again.
pub async fn watch(which: &Which, repeat: &Repeat, session: &mut Session) -> Result<(), Error> {
    let sample = async |client: &mut Client| {
        let v1 = client.only_v1("flows")?;
        let mut stream = v1.flows(which.list()).await?;
        let mut flows = Vec::new();
        while flows.len() < WATCHED_MAX
            && let Some(flow) = v1.next_in_time(&mut stream).await?
        {
            flows.push(flow);
        }
        Ok(flows)
    };
    let json = |flows: &Vec<v1::Flow>| {
        let each = flows.iter().map(|flow| json::full("Flow", flow));
        each.collect::<Vec<_>>().into()
    };
    let text = |before: &Vec<v1::Flow>, now: &Vec<v1::Flow>, time| moved(before, now, time);
    repeat.run(session, sample, json, text).await
}

/// What connections have carried since the sample before: the busiest first.
fn moved(before: &[v1::Flow], now: &[v1::Flow], time: Duration) -> String {
    let key = |flow: &v1::Flow| {
        let source = (flow.source.clone(), flow.source_port);
        let destination = (flow.destination.clone(), flow.destination_port);
        let nics = (flow.nic.clone(), flow.peer_nic.clone());
        (nics, flow.protocol, source, destination)
    };
    let bytes = |flow: &v1::Flow| [flow.original_bytes, flow.reply_bytes];
    let old: HashMap<_, [u64; 2]> = before.iter().map(|flow| (key(flow), bytes(flow))).collect();
    let mut rows: Vec<(u64, [u64; 2], &v1::Flow)> = now
        .iter()
        .map(|flow| {
            let then = old.get(&key(flow)).copied().unwrap_or_default();
            let [there, back] = bytes(flow);
            let more = [grown(then[0], there), grown(then[1], back)];
            (more[0] + more[1], more, flow)
        })
        .collect();
    rows.sort_by_key(|(sum, ..)| std::cmp::Reverse(*sum));
    let mut table = Table::new(&[
        "NIC",
        "DIR",
        "PROTO",
        "SOURCE",
        "DESTINATION",
        "STATE",
        ">Mbit/s",
        ">REPLY Mbit/s",
        ">BYTES",
        ">REPLY BYTES",
    ]);
    for (_, more, flow) in rows {
        table.row([
            flow.nic.clone(),
            direction_name(flow.direction()).into(),
            protocol_name(Some(flow.protocol)),
            end(&flow.source, flow.source_port),
            end(&flow.destination, flow.destination_port),
            flow.state.clone(),
            megabits(more[0], time),
            megabits(more[1], time),
            flow.original_bytes.to_string(),
            flow.reply_bytes.to_string(),
        ]);
    }
    match table.render() {
        empty if empty.is_empty() => "no connection\n".into(),
        rows => rows,
    }
}

/// `flows kill`.
#[derive(Args, Debug)]
#[command(after_help = "\
All connections that match are forgotten, as if they had been idle for too long. What comes next
of them is judged by the rules: TCP in the middle of a connection is ended by a reset, but for
groups with --allow-midstream or --silent-midstream (`sg add`); a datagram that is allowed begins
anew. So change the rule first, where nothing of it is to pass. Between NICs that allow everything
there are no connections to forget.

Where more than one match, a terminal is asked; elsewhere --yes has to be there. The audit log has
who did it.

Examples:
  butterfly flows kill vm1 --protocol tcp --address 10.0.0.2 --port 443 --port 50022
  butterfly flows kill --group web --address 192.0.2.0/24 --yes")]
pub struct KillArgs {
    #[command(flatten)]
    which: Which,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
}

impl KillArgs {
    /// Counts those that match, asks, and has them forgotten.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        let (nic, filter) = self.which.request();
        if nic.is_empty() && filter.is_none() {
            let why = "say which connections: a NIC, or one of the options of `flows kill --help`";
            return Err(Error::Usage(why.into()));
        }
        let v1 = session.client().await?.only_v1("flows kill")?;
        if !self.yes {
            let mut count = 0u64;
            let mut stream = v1.flows(self.which.list()).await?;
            while v1.next_in_time(&mut stream).await?.is_some() {
                count += 1;
            }
            if count > 1 {
                confirm(&format!("{count} connections would be forgotten"))?;
            }
        }
        let killed = v1
            .delete_flows(v1::DeleteFlowsRequest { nic, filter })
            .await?;
        match session.out.json {
            true => session.done("flows", killed),
            false => say(&match killed {
                1 => "1 connection forgotten".to_owned(),
                count => format!("{count} connections forgotten"),
            }),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(port: u32, bytes: [u64; 2]) -> v1::Flow {
        v1::Flow {
            nic: "a".into(),
            direction: v1::Direction::Egress.into(),
            protocol: 6,
            source: "10.0.0.1".into(),
            destination: "10.0.0.2".into(),
            source_port: port,
            destination_port: 80,
            state: "established".into(),
            original_bytes: bytes[0],
            reply_bytes: bytes[1],
            ..Default::default()
        }
    }

    #[test]
    fn what_carries_most_comes_first() {
        let before = [flow(1, [0, 0]), flow(2, [1_000_000, 0])];
        let now = [
            flow(1, [125_000, 0]),
            flow(2, [1_000_000, 250_000]),
            flow(3, [0, 0]),
        ];
        let expected = "\
NIC  DIR  PROTO  SOURCE      DESTINATION  STATE        Mbit/s  REPLY Mbit/s    BYTES  REPLY BYTES
a    out  tcp    10.0.0.1:2  10.0.0.2:80  established     0.0           2.0  1000000       250000
a    out  tcp    10.0.0.1:1  10.0.0.2:80  established     1.0           0.0   125000            0
a    out  tcp    10.0.0.1:3  10.0.0.2:80  established     0.0           0.0        0            0
";
        let second = Duration::from_secs(1);
        assert_eq!(moved(&before, &now, second), expected);
        assert_eq!(moved(&before, &[], second), "no connection\n");
    }
}
