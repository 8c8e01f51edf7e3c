//! What is printed of services: as they stand (`service show`), and what they do (`service stats`).

use std::time::Duration;

use api::v1;
use clap::Args;
use serde_json::Value;

use super::repeat::{Repeat, grown, megabits, rate};
use super::service::client;
use super::service_options::{key_words, service_key};
use crate::client::Client;
use crate::error::Error;
use crate::json;
use crate::output::{Output, Table};
use crate::session::Session;
use crate::words::span;

/// `service show`.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  butterfly service show 192.168.101.1:80")]
pub struct ShowArgs {
    /// Services [default: all]
    #[arg(value_name = "SERVICE", value_parser = service_key)]
    keys: Vec<v1::ServiceKey>,
}

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

impl ShowArgs {
    /// Does it.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        let client = client(session).await?;
        let services = match self.keys.is_empty() {
            true => client.services().await?,
            false => {
                let mut services = Vec::new();
                for key in self.keys {
                    services.push(client.service(key).await?);
                }
                services
            }
        };
        if session.out.json {
            let values = services.iter().map(|status| json::full("ServiceStatus", status));
            return session.out.value(&values.collect());
        }
        for (index, status) in services.iter().enumerate() {
            if index > 0 {
                session.out.text("\n")?;
            }
            print(status, &mut session.out)?;
        }
        Ok(())
    }
}

/// `name: value` lines, then a table of servers; what has its default is left out.
fn print(status: &v1::ServiceStatus, out: &mut Output) -> Result<(), Error> {
    let service = status.service.clone().unwrap_or_default();
    let up = match (status.in_service, status.announced) {
        (true, _) => "in service",
        (false, true) => "withdrawn (its address is announced by another service)",
        (false, false) => "withdrawn",
    };
    let mut lines = vec![
        ("service", key_words(&service.key.clone().unwrap_or_default())),
        ("state", up.into()),
        (
            "healthy",
            format!(
                "{} of {}, at least {}",
                status.healthy,
                status.servers.len(),
                service.min_healthy()
            ),
        ),
        ("encapsulation", encapsulation(&service)),
    ];
    if service.sticky {
        lines.push(("sticky", "on".into()));
    }
    if let Some(check) = &service.check {
        lines.push(("check", json::sparse("HealthCheck", check).to_string()));
    }
    lines
        .iter()
        .try_for_each(|(name, value)| out.text(&format!("{:<19} {value}", format!("{name}:"))))?;
    print_servers(&status.servers, out)
}

fn encapsulation(service: &v1::Service) -> String {
    let name = match service.encapsulation() {
        v1::Encapsulation::Unspecified | v1::Encapsulation::L2 => "l2",
        v1::Encapsulation::Ipip => "ipip",
        v1::Encapsulation::Gre => "gre",
        v1::Encapsulation::Fou => "fou",
        v1::Encapsulation::Gue => "gue",
    };
    match service.tunnel_port {
        0 => name.into(),
        port => format!("{name} port {port}"),
    }
}

/// A table of servers, or JSON.
pub fn print_servers(servers: &[v1::ServerStatus], out: &mut Output) -> Result<(), Error> {
    if out.json {
        return out.value(
            &servers
                .iter()
                .map(|status| json::full("ServerStatus", status))
                .collect(),
        );
    }
    let mut table = Table::new(&[
        "SERVER", ">WEIGHT", "STATE", "HEALTH", ">SINCE", ">FLOWS", ">PACKETS", ">BYTES", "BY", "WHY",
    ]);
    for status in servers {
        let server = status.server.clone().unwrap_or_default();
        let counters = status.counters.unwrap_or_default();
        let since = match status.since_ms {
            0 => String::new(),
            ms => span(ms * 1_000_000),
        };
        let way = match status.interface.is_empty() {
            true => String::new(),
            false => format!("{} {}", status.interface, status.mac),
        };
        let why = match status.unreachable.is_empty() {
            true => status.detail.clone(),
            false => status.unreachable.clone(),
        };
        table.row([
            server.address.clone(),
            server.weight().to_string(),
            state_name(server.state()).into(),
            health_name(status.health()).into(),
            since,
            counters.flows.to_string(),
            counters.packets.to_string(),
            counters.bytes.to_string(),
            way,
            why,
        ]);
    }
    out.table(&table)
}

fn state_name(state: v1::ServerState) -> &'static str {
    match state {
        v1::ServerState::Unspecified | v1::ServerState::Up => "up",
        v1::ServerState::Draining => "draining",
        v1::ServerState::Down => "down",
    }
}

/// Health in a word; empty when the API does not say.
pub fn health_name(health: v1::Health) -> &'static str {
    match health {
        v1::Health::Unspecified => "",
        v1::Health::Unknown => "unknown",
        v1::Health::Healthy => "healthy",
        v1::Health::Unhealthy => "unhealthy",
    }
}

impl StatsArgs {
    /// Does it.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        let json = |sample: &v1::BalancerStats| -> Value { json::full("BalancerStats", sample) };
        if self.repeat.is_on() {
            let sample = async |client: &mut Client| client.only_v1("service")?.balancer_stats().await;
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
        rows.push((key.clone(), String::new(), service.counters.unwrap_or_default()));
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
    let drop =
        |drop: &v1::BalancerDrop| format!("{}: {} ({})\n", drop.reason, drop.packets, drop.description);
    table.render() + &stats.drops.iter().map(drop).collect::<String>()
}

/// By the daemon's own clock.
fn moved(before: &v1::BalancerStats, now: &v1::BalancerStats, _: Duration) -> String {
    let time = Duration::from_nanos(grown(before.time_ns, now.time_ns));
    let old = rows(before);
    let mut table = Table::new(&["SERVICE", "SERVER", ">FLOWS/s", ">PACKETS/s", ">Mbit/s"]);
    for (key, server, counters) in rows(now) {
        let same = |row: &&(String, String, v1::Counters)| (&row.0, &row.1) == (&key, &server);
        let old = old.iter().find(same).map_or_else(Default::default, |row| row.2);
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

    #[test]
    fn a_service_with_its_servers() {
        let screen = crate::output::testing::Screen::default();
        let server = |last: u8, health: v1::Health| v1::ServerStatus {
            server: Some(v1::Server {
                address: format!("10.0.0.{last}"),
                weight: Some(1),
                state: v1::ServerState::Up.into(),
                ..Default::default()
            }),
            health: health.into(),
            since_ms: 3000,
            interface: "eth0".into(),
            mac: "52:54:00:00:00:01".into(),
            detail: match health {
                v1::Health::Unhealthy => "HTTP status 503".into(),
                _ => String::new(),
            },
            ..Default::default()
        };
        let status = v1::ServiceStatus {
            service: Some(v1::Service {
                key: Some(service_key("192.0.2.1:80").unwrap()),
                encapsulation: v1::Encapsulation::Gue.into(),
                tunnel_port: 6080,
                min_healthy: Some(1),
                ..Default::default()
            }),
            in_service: true,
            healthy: 1,
            servers: vec![server(1, v1::Health::Healthy), server(2, v1::Health::Unhealthy)],
            ..Default::default()
        };
        print(&status, &mut screen.output(false)).unwrap();
        assert_eq!(
            screen.text(),
            "\
service:            192.0.2.1:80/tcp
state:              in service
healthy:            1 of 2, at least 1
encapsulation:      gue port 6080
SERVER    WEIGHT  STATE  HEALTH     SINCE  FLOWS  PACKETS  BYTES  BY                      WHY
10.0.0.1       1  up     healthy      3 s      0        0      0  eth0 52:54:00:00:00:01  -
10.0.0.2       1  up     unhealthy    3 s      0        0      0  eth0 52:54:00:00:00:01  HTTP status 503
"
        );
    }
}
