//! `butterfly router watch`: the router's events as they happen, one a line.

use std::time::Duration;

use api::v1;
use api::v1::router_event::Kind;
use clap::Args;

use super::events::{EventArgs, time};
use super::repeat::seconds;
use super::xdp_mode::{mode_name, mode_words};
use crate::error::Error;
use crate::session::Session;

/// `router watch`.
#[derive(Args, Debug)]
#[command(after_help = "\
Runs until it is interrupted or the daemon stops. With --json every event is one line.

Examples:
  butterfly router watch --snapshot
  butterfly router watch --json --counters=5 | jq .route")]
pub struct WatchArgs {
    #[command(flatten)]
    events: EventArgs,
    /// All counters, too, every second or every SECS
    #[arg(long, value_name = "SECS", num_args = 0..=1, require_equals = true,
        default_missing_value = "1", value_parser = seconds)]
    counters: Option<Duration>,
}

impl WatchArgs {
    /// The events alone.
    pub(super) fn of(events: EventArgs) -> WatchArgs {
        WatchArgs {
            events,
            counters: None,
        }
    }

    /// Prints the events as they happen.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        let (client, out) = session.client_and_output().await?;
        let v1 = client.only_v1("router watch")?;
        let request = v1::WatchRouterRequest {
            snapshot: self.events.snapshot,
            counters_ms: self.counters.map_or(0, |every| every.as_millis() as u32),
        };
        let events = v1.watch_router(request).await?;
        self.events
            .print(v1, out, events, "RouterEvent", |event| Some(line(event)))
            .await
    }
}

/// Time, and what happened.
pub fn line(event: &v1::RouterEvent) -> String {
    let at = time(event.time_unix_nanos);
    let what = match &event.kind {
        Some(Kind::Interface(interface)) => match mode_name(interface.mode()) {
            "" => format!("not routing on {}: {}", interface.name, interface.why),
            _ => format!(
                "routing on {}, {}",
                interface.name,
                mode_words(interface.mode())
            ),
        },
        Some(Kind::InterfaceDeleted(name)) => format!("{name} is given back"),
        Some(Kind::NoteAdded(note)) => note.clone(),
        Some(Kind::NoteRemoved(note)) => format!("no longer: {note}"),
        Some(Kind::Route(change)) => {
            let route = change.route.clone().unwrap_or_default();
            format!("{}route {}", deleted(change.deleted), route_words(&route))
        }
        Some(Kind::Neighbour(change)) => {
            let neighbour = change.neighbour.clone().unwrap_or_default();
            let v1::Neighbour {
                address,
                interface,
                mac,
                state,
                ..
            } = neighbour;
            let at = if mac.is_empty() {
                String::new()
            } else {
                format!(" at {mac}")
            };
            format!(
                "{}neighbour {address}{at} on {interface} {state}",
                deleted(change.deleted)
            )
        }
        Some(Kind::ManyRoutes(many)) => {
            let (routes, neighbours) = (many.routes, many.neighbours);
            format!("{routes} routes and {neighbours} neighbours changed")
        }
        Some(Kind::Counters(status)) => counters(status),
        Some(Kind::SnapshotEnd(_)) => "that is all there is now".into(),
        Some(Kind::Lagged(missed)) => {
            format!("{missed} events were missed: watch again with --snapshot")
        }
        None => "an event this version does not know".into(),
    };
    format!("{at} {what}").trim_end().to_owned()
}

fn deleted(deleted: bool) -> &'static str {
    if deleted { "deleted " } else { "" }
}

fn route_words(route: &v1::Route) -> String {
    let mut text = route.prefix.clone();
    for hop in &route.hops {
        if !hop.gateway.is_empty() {
            text += &format!(" via {}", hop.gateway);
        }
        if !hop.interface.is_empty() {
            text += &format!(" dev {}", hop.interface);
        }
    }
    if route.kind != "unicast" {
        text += &format!(" {}", route.kind);
    }
    if !route.why.is_empty() {
        text += &format!(": {}", route.why);
    }
    text
}

/// The counters of all interfaces and both families together.
fn counters(status: &v1::RouterStatus) -> String {
    let families = status
        .interfaces
        .iter()
        .flat_map(|one| [&one.ipv4, &one.ipv6]);
    let (mut forwarded, mut rest) = (0, 0);
    for family in families.flatten() {
        forwarded += family.forwarded;
        rest += family
            .reasons
            .iter()
            .map(|reason| reason.packets)
            .sum::<u64>();
    }
    format!("{forwarded} packets forwarded, {rest} not")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_a_line() {
        let event = |kind| v1::RouterEvent {
            time_unix_nanos: 1_500_000_042_000,
            sequence: 7,
            kind: Some(kind),
        };
        let route = v1::Route {
            prefix: "10.9.0.0/16".into(),
            kind: "unicast".into(),
            hops: vec![v1::RouteHop {
                gateway: "192.0.2.1".into(),
                interface: "eth2".into(),
                ..Default::default()
            }],
            ..Default::default()
        };
        let changed = Kind::Route(v1::RouteChanged {
            route: Some(route),
            deleted: true,
        });
        assert_eq!(
            line(&event(changed)),
            "1500.000042 deleted route 10.9.0.0/16 via 192.0.2.1 dev eth2"
        );
        let neighbour = Kind::Neighbour(v1::NeighbourChanged {
            neighbour: Some(v1::Neighbour {
                address: "192.0.2.1".into(),
                interface: "eth2".into(),
                mac: "02:00:00:00:00:01".into(),
                state: "reachable".into(),
                ..Default::default()
            }),
            deleted: false,
        });
        assert_eq!(
            line(&event(neighbour)),
            "1500.000042 neighbour 192.0.2.1 at 02:00:00:00:00:01 on eth2 reachable"
        );
    }
}
