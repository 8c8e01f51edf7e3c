//! `butterfly service watch`: the balancer's events as they happen, one a line.

use api::v1;
use api::v1::balancer_event::Kind;
use clap::Args;

use super::events::{EventArgs, time};
use super::service_show::health_name;
use super::service_words::key_words;
use crate::error::Error;
use crate::session::Session;

/// `service watch`.
#[derive(Args, Debug)]
#[command(after_help = "\
Runs until it is interrupted or the daemon stops. With --json every event is one line.

Examples:
  butterfly service watch --snapshot
  butterfly service watch --json | jq .address_changed")]
pub struct WatchArgs {
    #[command(flatten)]
    pub(super) events: EventArgs,
}

impl WatchArgs {
    /// Prints the events as they happen.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        let (client, out) = session.client_and_output().await?;
        let v1 = client.only_v1("service watch")?;
        let events = v1.watch_balancer(self.events.snapshot).await?;
        self.events
            .print(v1, out, events, "BalancerEvent", |event| Some(line(event)))
            .await
    }
}

/// Time, and what happened.
fn line(event: &v1::BalancerEvent) -> String {
    let at = time(event.time_unix_nanos);
    let name = |key: &Option<v1::ServiceKey>| key.as_ref().map_or_else(String::new, key_words);
    let what = match &event.kind {
        Some(Kind::ServiceChanged(status)) => {
            let service = status.service.clone().unwrap_or_default();
            let (healthy, servers) = (status.healthy, status.servers.len());
            format!(
                "service {} has {healthy} of {servers} servers healthy",
                name(&service.key)
            )
        }
        Some(Kind::ServiceDeleted(key)) => format!("service {} is deleted", key_words(key)),
        Some(Kind::HealthChanged(change)) => {
            let (key, health) = (name(&change.key), health_name(change.health()));
            format!(
                "service {key} server {} is {health} {}",
                change.server, change.detail
            )
        }
        Some(Kind::InServiceChanged(change)) => {
            let state = if change.in_service {
                "in service"
            } else {
                "withdrawn"
            };
            let (healthy, least) = (change.healthy, change.min_healthy);
            format!(
                "service {} is {state}: {healthy} healthy, at least {least}",
                name(&change.key)
            )
        }
        Some(Kind::AddressChanged(change)) => {
            let state = if change.announced {
                "announced"
            } else {
                "withdrawn"
            };
            format!("address {} is {state}", change.vip)
        }
        Some(Kind::SnapshotEnd(_)) => "that is all there is now".into(),
        Some(Kind::Lagged(missed)) => {
            format!("{missed} events were missed: watch again with --snapshot")
        }
        None => "an event this version does not know".into(),
    };
    format!("{at} {what}").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::service_words::service_key;

    #[test]
    fn an_event_is_a_line() {
        let change = v1::HealthChanged {
            key: service_key("192.0.2.1:80").ok(),
            server: "10.0.0.1".into(),
            health: v1::Health::Unhealthy.into(),
            detail: "no answer within 1000 ms".into(),
        };
        let event = v1::BalancerEvent {
            time_unix_nanos: 1_500_000_042_000,
            sequence: 7,
            kind: Some(Kind::HealthChanged(change)),
        };
        assert_eq!(
            line(&event),
            "1500.000042 service 192.0.2.1:80/tcp server 10.0.0.1 is unhealthy no answer within \
             1000 ms"
        );
    }
}
