//! What services and servers received, in all or a second, and what was not sent on (`service
//! stats`).

use std::time::Duration;

use api::v1;
use clap::Args;
use serde_json::Value;

use super::repeat::{Repeat, grown, megabits, rate};
use super::service::client;
use super::service_words::key_words;
use crate::client::Client;
use crate::error::Error;
use crate::json;
use crate::output::Table;
use crate::session::Session;

/// `service stats`.
#[derive(Args, Debug)]
#[command(after_help = "\
Bytes are those of IP packets as they came. The last lines say what was not sent on, and why.

Examples:
  butterfly service stats
  butterfly service stats --watch=0.5 --count 10")]
pub struct StatsArgs {
    #[command(flatten)]
    repeat: Repeat,
}

impl StatsArgs {
    /// Prints what services and servers received, once or every second.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        let json = |sample: &v1::BalancerStats| -> Value { json::full("BalancerStats", sample) };
        if self.repeat.is_on() {
            let sample =
                async |client: &mut Client| client.only_v1("service")?.balancer_stats().await;
            return self.repeat.run(session, sample, json, moved).await;
        }
        let stats = client(session).await?.balancer_stats().await?;
        match session.out.json {
            true => session.out.value(&json(&stats)),
            false => session.out.text(&totals(&stats)),
        }
    }
}

/// Service, server ("" for all of them) and counters, in the answer's order.
fn rows(stats: &v1::BalancerStats) -> Vec<(String, String, v1::Counters)> {
    let mut rows = Vec::new();
    for service in &stats.services {
        let key = key_words(&service.key.clone().unwrap_or_default());
        rows.push((
            key.clone(),
            String::new(),
            service.counters.unwrap_or_default(),
        ));
        for server in &service.servers {
            rows.push((
                key.clone(),
                server.address.clone(),
                server.counters.unwrap_or_default(),
            ));
        }
    }
    rows
}

fn totals(stats: &v1::BalancerStats) -> String {
    let mut table = Table::new(&["SERVICE", "SERVER", ">FLOWS", ">PACKETS", ">BYTES"]);
    for (key, server, counters) in rows(stats) {
        table.row([
            key,
            server,
            counters.flows.to_string(),
            counters.packets.to_string(),
            counters.bytes.to_string(),
        ]);
    }
    let drop = |drop: &v1::BalancerDrop| {
        format!("{}: {} ({})\n", drop.reason, drop.packets, drop.description)
    };
    table.render() + &stats.drops.iter().map(drop).collect::<String>()
}

/// By the daemon's own clock.
fn moved(before: &v1::BalancerStats, now: &v1::BalancerStats, _: Duration) -> String {
    let time = Duration::from_nanos(grown(before.time_ns, now.time_ns));
    let old = rows(before);
    let mut table = Table::new(&["SERVICE", "SERVER", ">FLOWS/s", ">PACKETS/s", ">Mbit/s"]);
    for (key, server, counters) in rows(now) {
        let same = |row: &&(String, String, v1::Counters)| (&row.0, &row.1) == (&key, &server);
        let old = old
            .iter()
            .find(same)
            .map_or_else(Default::default, |row| row.2);
        table.row([
            key,
            server,
            rate(grown(old.flows, counters.flows), time),
            rate(grown(old.packets, counters.packets), time),
            megabits(grown(old.bytes, counters.bytes), time),
        ]);
    }
    let drop = |drop: &v1::BalancerDrop| {
        let old = before
            .drops
            .iter()
            .find(|old| old.reason == drop.reason)
            .map_or(0, |old| old.packets);
        match grown(old, drop.packets) {
            0 => String::new(),
            more => format!("{}: {}/s\n", drop.reason, rate(more, time)),
        }
    };
    table.render() + &now.drops.iter().map(drop).collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::service_words::service_key;

    fn sample(time_ns: u64, packets: u64) -> v1::BalancerStats {
        let counters = v1::Counters {
            packets,
            bytes: packets * 1000,
            flows: packets / 10,
        };
        let key = service_key("192.0.2.1:80").unwrap();
        v1::BalancerStats {
            time_ns,
            services: vec![v1::ServiceStats {
                key: Some(key),
                counters: Some(counters),
                servers: vec![v1::ServerStats {
                    address: "10.0.0.1".into(),
                    counters: Some(counters),
                }],
            }],
            drops: vec![v1::BalancerDrop {
                reason: "no_server".into(),
                description: "the service has no server that is up".into(),
                packets: packets / 100,
            }],
        }
    }

    #[test]
    fn totals_and_rates() {
        assert_eq!(
            totals(&sample(0, 200)),
            "\
SERVICE           SERVER    FLOWS  PACKETS   BYTES
192.0.2.1:80/tcp  -            20      200  200000
192.0.2.1:80/tcp  10.0.0.1     20      200  200000
no_server: 2 (the service has no server that is up)
"
        );
        assert_eq!(
            moved(
                &sample(1_000_000_000, 200),
                &sample(3_000_000_000, 2200),
                Duration::ZERO
            ),
            "\
SERVICE           SERVER    FLOWS/s  PACKETS/s  Mbit/s
192.0.2.1:80/tcp  -             100       1000     8.0
192.0.2.1:80/tcp  10.0.0.1      100       1000     8.0
no_server: 10/s
"
        );
    }
}
