//! What is printed of services as they stand (`service show`).

use api::v1;
use clap::Args;

use super::service::client;
use super::service_words::{key_words, service_key};
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

impl ShowArgs {
    /// Prints the services as they stand.
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
            let values = services
                .iter()
                .map(|status| json::full("ServiceStatus", status));
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
        (
            "service",
            key_words(&service.key.clone().unwrap_or_default()),
        ),
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
        "SERVER", ">WEIGHT", "STATE", "HEALTH", ">SINCE", ">FLOWS", ">PACKETS", ">BYTES", "BY",
        "WHY",
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

#[cfg(test)]
mod tests {
    use super::*;

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
            servers: vec![
                server(1, v1::Health::Healthy),
                server(2, v1::Health::Unhealthy),
            ],
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
