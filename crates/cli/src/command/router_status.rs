//! `butterfly router show`: what is counted, in all or a second, and what is in the way of more.

use std::time::Duration;

use api::v1;
use api::v1::router_reason::Fate;
use clap::Args;
use serde_json::Value;

use super::repeat::{Repeat, grown, megabits, rate};
use super::router::client;
use crate::client::Client;
use crate::error::Error;
use crate::json;
use crate::output::Table;
use crate::session::Session;

/// `router show`.
#[derive(Args, Debug)]
#[command(after_help = "\
Bytes are those of packets without Ethernet headers. The last table is what the kernel counted
itself in this network namespace: answers to what was left to it are its own.

Examples:
  butterfly router show
  butterfly router show --watch=0.5 --count 10")]
pub struct StatusArgs {
    #[command(flatten)]
    repeat: Repeat,
}

impl StatusArgs {
    /// Prints what the router counts, once or every second.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        let json = |sample: &v1::RouterStatus| -> Value { json::full("RouterStatus", sample) };
        if self.repeat.is_on() {
            let sample =
                async |client: &mut Client| client.only_v1("router")?.router_status().await;
            return self.repeat.run(session, sample, json, moved).await;
        }
        let status = client(session).await?.router_status().await?;
        match session.out.json {
            true => session.out.value(&json(&status)),
            false => session.out.text(&totals(&status)),
        }
    }
}

/// What is counted of an interface, of both families, and what it means.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    interface: String,
    counter: String,
    values: [u64; 2],
    meaning: String,
}

fn rows(status: &v1::RouterStatus) -> Vec<Row> {
    let interfaces = status.interfaces.iter();
    interfaces.flat_map(interface_rows).collect()
}

fn interface_rows(status: &v1::RouterInterfaceStatus) -> Vec<Row> {
    let name = status
        .interface
        .as_ref()
        .map(|interface| interface.name.clone());
    let name = name.unwrap_or_default();
    let families = [&status.ipv4, &status.ipv6].map(|family| family.clone().unwrap_or_default());
    let row = |counter: &str, of: fn(&v1::RouterCounters) -> u64, meaning: &str| Row {
        interface: name.clone(),
        counter: counter.into(),
        values: families.each_ref().map(of),
        meaning: meaning.into(),
    };
    let mut rows = vec![
        row("forwarded", |of| of.forwarded, "came in here"),
        row("forwarded_bytes", |of| of.forwarded_bytes, "their bytes"),
        row("sent", |of| of.sent, "left here"),
        row("known", |of| of.known, "came in here, their flow was known"),
    ];
    for reason in families.iter().flat_map(|family| &family.reasons) {
        if rows.iter().any(|row| row.counter == reason.reason) {
            continue;
        }
        let packets = |family: &v1::RouterCounters| {
            let mut reasons = family.reasons.iter();
            let same = reasons.find(|other| other.reason == reason.reason);
            same.map_or(0, |same| same.packets)
        };
        rows.push(Row {
            interface: name.clone(),
            counter: reason.reason.clone(),
            values: families.each_ref().map(packets),
            meaning: meaning(reason),
        });
    }
    rows
}

fn meaning(reason: &v1::RouterReason) -> String {
    match reason.fate() {
        Fate::Kernel => format!("to the kernel: {}", reason.description),
        Fate::Dropped | Fate::Unspecified => reason.description.clone(),
    }
}

fn totals(status: &v1::RouterStatus) -> String {
    let mut table = Table::new(&["INTERFACE", "COUNTER", ">IPV4", ">IPV6", "WHAT"]);
    for row in rows(status) {
        let [four, six] = row.values.map(|value| value.to_string());
        table.row([row.interface, row.counter, four, six, row.meaning]);
    }
    let mut text = table.render();
    for (family, used) in [("IPv4", status.ipv4), ("IPv6", status.ipv6)] {
        let used = used.unwrap_or_default();
        text += &format!(
            "{family}: {} prefixes, {} of {} nodes\n",
            used.prefixes, used.nodes, used.nodes_max
        );
    }
    for note in &status.notes {
        text += &format!("{note}\n");
    }
    let mut kernel = Table::new(&["KERNEL", ">IPV4", ">IPV6"]);
    for counter in &status.kernel {
        let [four, six] =
            [counter.ipv4, counter.ipv6].map(|value| value.map(|value| value.to_string()));
        kernel.row([
            counter.name.clone(),
            four.unwrap_or_default(),
            six.unwrap_or_default(),
        ]);
    }
    text += &kernel.render();
    if let Some(acl) = &status.acl {
        let mut rules = Table::new(&[">PACKETS", ">BYTES", "RULE"]);
        for rule in acl.rules.iter().chain(&acl.default) {
            let counts = [rule.packets, rule.bytes].map(|count| count.to_string());
            let [packets, bytes] = counts;
            rules.row([packets, bytes, rule.rule.clone()]);
        }
        text += &rules.render();
    }
    text
}

/// By the daemon's own clock. Reasons that did not happen are left out.
fn moved(before: &v1::RouterStatus, now: &v1::RouterStatus, _: Duration) -> String {
    let time = Duration::from_nanos(grown(before.time_ns, now.time_ns));
    let old = rows(before);
    let mut table = Table::new(&["INTERFACE", "COUNTER", ">IPV4/s", ">IPV6/s"]);
    for row in rows(now) {
        let same = |old: &&Row| (&old.interface, &old.counter) == (&row.interface, &row.counter);
        let old = old.iter().find(same).map_or([0, 0], |old| old.values);
        let more = [0, 1].map(|at| grown(old[at], row.values[at]));
        let bytes = row.counter == "forwarded_bytes";
        let always = bytes || row.counter == "forwarded" || row.counter == "sent";
        if !always && more == [0, 0] {
            continue;
        }
        let [four, six] = more.map(|more| match bytes {
            true => megabits(more, time),
            false => rate(more, time),
        });
        let counter = if bytes { "Mbit".into() } else { row.counter };
        table.row([row.interface, counter, four, six]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(time_ns: u64, packets: u64) -> v1::RouterStatus {
        let reason = |reason: &str, description: &str, fate: Fate, packets| v1::RouterReason {
            reason: reason.into(),
            description: description.into(),
            fate: fate.into(),
            packets,
        };
        v1::RouterStatus {
            time_ns,
            interfaces: vec![v1::RouterInterfaceStatus {
                interface: Some(v1::RouterInterface {
                    name: "eth1".into(),
                    ..Default::default()
                }),
                ipv4: Some(v1::RouterCounters {
                    forwarded: packets,
                    forwarded_bytes: packets * 1000,
                    sent: 7,
                    known: packets / 2,
                    reasons: vec![reason("no_route", "no route", Fate::Kernel, packets / 10)],
                }),
                ipv6: Some(v1::RouterCounters {
                    reasons: vec![reason(
                        "blackhole",
                        "dropped by a blackhole route",
                        Fate::Dropped,
                        3,
                    )],
                    ..Default::default()
                }),
            }],
            notes: vec!["IPv4 is left to the kernel: a hook".into()],
            ipv4: Some(v1::RouterTable {
                prefixes: 5,
                nodes: 1,
                nodes_max: 16,
            }),
            ipv6: None,
            kernel: vec![v1::KernelCounter {
                name: "too_big_sent".into(),
                ipv4: None,
                ipv6: Some(4),
            }],
            acl: Some(v1::RouterAcl {
                rules: vec![v1::RouterAclRule {
                    rule: "allow proto tcp".into(),
                    packets: 12,
                    bytes: 1200,
                }],
                default: Some(v1::RouterAclRule {
                    rule: "default deny".into(),
                    packets: 3,
                    bytes: 180,
                }),
                nftables: Vec::new(),
            }),
        }
    }

    #[test]
    fn totals_have_both_families_beside_each_other() {
        assert_eq!(
            totals(&status(0, 200)),
            "\
INTERFACE  COUNTER            IPV4  IPV6  WHAT
eth1       forwarded           200     0  came in here
eth1       forwarded_bytes  200000     0  their bytes
eth1       sent                  7     0  left here
eth1       known               100     0  came in here, their flow was known
eth1       no_route             20     0  to the kernel: no route
eth1       blackhole             0     3  dropped by a blackhole route
IPv4: 5 prefixes, 1 of 16 nodes
IPv6: 0 prefixes, 0 of 0 nodes
IPv4 is left to the kernel: a hook
KERNEL        IPV4  IPV6
too_big_sent     -     4
PACKETS  BYTES  RULE
     12   1200  allow proto tcp
      3    180  default deny
"
        );
    }

    #[test]
    fn rates_leave_out_what_did_not_happen() {
        let (before, now) = (status(1_000_000_000, 200), status(3_000_000_000, 2200));
        assert_eq!(
            moved(&before, &now, Duration::ZERO),
            "\
INTERFACE  COUNTER    IPV4/s  IPV6/s
eth1       forwarded    1000       0
eth1       Mbit          8.0     0.0
eth1       sent            0       0
eth1       known         500       0
eth1       no_route      100       0
"
        );
    }
}
