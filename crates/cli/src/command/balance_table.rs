//! What `butterfly balance` prints: flows and rates of each server, and what was not sent on.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Instant;

use balancer::{Counters, ServerCounters, ServiceKey};
use serde_json::{Value, json};

use super::repeat::{grown, megabits, rate};
use crate::output::Table;

/// What there is to be seen at one moment.
pub struct Sample {
    pub counters: Counters,
    /// Flows that live now, of each server of a service.
    pub live: BTreeMap<(ServiceKey, IpAddr), u64>,
    pub at: Instant,
}

/// A row a server of a service, one for all of them, and a line for each reason why packets were
/// not just sent on.
pub fn text(before: &Sample, now: &Sample) -> String {
    let time = now.at - before.at;
    let mut table = Table::new(&[
        "SERVICE",
        "SERVER",
        ">FLOWS",
        ">NEW/s",
        ">PACKETS/s",
        ">Mbit/s",
        ">PACKETS",
        ">BYTES",
    ]);
    let mut row =
        |service: String, server: String, flows: u64, old: ServerCounters, new: ServerCounters| {
            table.row([
                service,
                server,
                flows.to_string(),
                rate(grown(old.flows, new.flows), time),
                rate(grown(old.packets, new.packets), time),
                megabits(grown(old.bytes, new.bytes), time),
                new.packets.to_string(),
                new.bytes.to_string(),
            ]);
        };
    let (mut old_all, mut new_all) = (ServerCounters::default(), ServerCounters::default());
    for (owner, new) in &now.counters.servers {
        let old = before
            .counters
            .servers
            .get(owner)
            .copied()
            .unwrap_or_default();
        let flows = now.live.get(owner).copied().unwrap_or_default();
        row(owner.0.to_string(), owner.1.to_string(), flows, old, *new);
        old_all += old;
        new_all += *new;
    }
    row(
        "all".into(),
        String::new(),
        now.live.values().sum(),
        old_all,
        new_all,
    );
    let mut text = table.render();
    for (reason, count) in &now.counters.reasons {
        let more = grown(before.counters.reason(*reason), *count);
        if more > 0 {
            text += &format!(
                "{reason}: {}/s ({})\n",
                rate(more, time),
                reason.description()
            );
        }
    }
    text
}

/// The counters since the beginning, and the flows that live.
pub fn json(now: &Sample) -> Value {
    let server = |(owner, counters): (&(ServiceKey, IpAddr), &ServerCounters)| {
        json!({
            "service": owner.0.to_string(),
            "server": owner.1.to_string(),
            "live_flows": now.live.get(owner).copied().unwrap_or_default(),
            "flows": counters.flows,
            "packets": counters.packets,
            "bytes": counters.bytes,
        })
    };
    let reasons = now.counters.reasons.iter().filter(|(_, count)| **count > 0);
    let reasons: serde_json::Map<String, Value> = reasons
        .map(|(reason, count)| (reason.name().to_owned(), json!(count)))
        .collect();
    json!({
        "servers": now.counters.servers.iter().map(server).collect::<Vec<_>>(),
        "reasons": reasons,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use balancer::{Protocol, Reason};
    use std::time::Duration;

    fn sample(at: Instant, packets: u64) -> Sample {
        let key = |last: u8| {
            ServiceKey::new([192, 0, 2, last].into(), Protocol::Tcp, 80.try_into().ok()).unwrap()
        };
        let owner = |last: u8| (key(last), IpAddr::from([10, 0, 0, last]));
        let counters = ServerCounters {
            packets,
            bytes: packets * 1000,
            flows: packets / 10,
            ended: 0,
        };
        Sample {
            counters: Counters {
                servers: [(owner(1), counters), (owner(2), counters)].into(),
                reasons: [(Reason::NoServer, packets / 100)].into(),
            },
            live: [(owner(1), 7), (owner(2), 5)].into(),
            at,
        }
    }

    #[test]
    fn flows_and_rates_of_each_server_and_of_all() {
        let begin = Instant::now();
        let text = text(
            &sample(begin, 200),
            &sample(begin + Duration::from_secs(2), 2200),
        );
        assert_eq!(
            text,
            "\
SERVICE           SERVER    FLOWS  NEW/s  PACKETS/s  Mbit/s  PACKETS    BYTES
192.0.2.1:80/tcp  10.0.0.1      7    100       1000     8.0     2200  2200000
192.0.2.2:80/tcp  10.0.0.2      5    100       1000     8.0     2200  2200000
all               -            12    200       2000    16.0     4400  4400000
no_server: 10/s (Dropped: the service has no server that is up.)
"
        );
    }

    #[test]
    fn programs_read_counters() {
        let value = json(&sample(Instant::now(), 200));
        assert_eq!(
            value["servers"][1],
            json!({ "service": "192.0.2.2:80/tcp", "server": "10.0.0.2", "live_flows": 5,
                "flows": 20,
                    "packets": 200, "bytes": 200_000 })
        );
        assert_eq!(value["reasons"], json!({ "no_server": 2 }));
    }
}
