//! `butterfly watch`: changes and events as they happen, one a line.

use api::v1;
use api::v1::event::Kind;
use clap::{Args, ValueEnum};

use super::events::{EventArgs, time};
use super::flow_records::print_records;
use super::{router_watch, service_watch};
use crate::error::Error;
use crate::session::Session;
use crate::words::state_name;

/// `watch`.
#[derive(Args, Debug)]
#[command(after_help = "\
Runs until it is interrupted or the daemon stops. With --json every event is one line.

Examples:
  butterfly watch --snapshot
  butterfly watch --of flows
  butterfly watch --of services --snapshot
  butterfly watch --json | jq .port_changed")]
pub struct WatchArgs {
    #[command(flatten)]
    events: EventArgs,
    /// changes: of the configuration and of NICs. flows: connections that begin and end, and what
    /// is refused. services: health of servers, and addresses that come and go. router: interfaces,
    /// routes and neighbours
    #[arg(
        long,
        value_name = "WHAT",
        default_value = "changes",
        hide_default_value = true
    )]
    of: Of,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    Changes,
    Flows,
    Services,
    Router,
}

impl WatchArgs {
    /// Prints changes and events as they happen.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        let events = self.events;
        match self.of {
            Of::Changes => {
                let (client, out) = session.client_and_output().await?;
                let v1 = client.only_v1("watch")?;
                let changes = v1.watch(events.snapshot).await?;
                let line = |event: &v1::Event| Some(line(event));
                events.print(v1, out, changes, "Event", line).await
            }
            Of::Flows => {
                let (client, out) = session.client_and_output().await?;
                let v1 = client.only_v1("watch")?;
                let records = v1.watch_flows("").await?;
                print_records(v1, out, records, events.count).await
            }
            Of::Services => service_watch::WatchArgs { events }.run(session).await,
            Of::Router => router_watch::WatchArgs::of(events).run(session).await,
        }
    }
}

/// Time, epoch, and what happened.
fn line(event: &v1::Event) -> String {
    let at = time(event.time_unix_nanos);
    let what = match &event.kind {
        Some(Kind::NicChanged(status)) => {
            let nic = status.nic.clone().unwrap_or_default();
            let (addresses, groups) = (nic.addresses.join(","), nic.security_groups.join(","));
            format!(
                "nic {} is vni={} mac={} ip={addresses} sg={groups}",
                nic.id, nic.vni, nic.mac
            )
        }
        Some(Kind::NicDeleted(id)) => format!("nic {id} is deleted"),
        Some(Kind::GroupChanged(group)) => {
            format!(
                "sg {} has {} rules, {} members",
                group.id,
                group.rules.len(),
                group.members.len()
            )
        }
        Some(Kind::GroupDeleted(id)) => format!("sg {id} is deleted"),
        Some(Kind::PortChanged(port)) => format!(
            "nic {} is {} {}",
            port.nic,
            state_name(port.state()),
            port.detail
        )
        .trim_end()
        .to_owned(),
        Some(Kind::EndpointChanged(status)) => {
            let endpoint = status.endpoint.clone().unwrap_or_default();
            let vnis = match endpoint.every_vni {
                true => "every VNI".to_owned(),
                false => format!("{} VNIs", endpoint.vnis.len()),
            };
            format!("host {} is in {vnis}", endpoint.address)
        }
        Some(Kind::EndpointDeleted(address)) => format!("host {address} is deleted"),
        Some(Kind::NetworkChanged(network)) => {
            format!("network {} is to work another way", network.vni)
        }
        Some(Kind::BindingChanged(binding)) => format!(
            "binding {} {} is host={} ip={}",
            binding.vni,
            binding.mac,
            binding.endpoint,
            binding.addresses.join(",")
        ),
        Some(Kind::BindingDeleted(key)) => format!("binding {} {} is deleted", key.vni, key.mac),
        Some(Kind::BindingsChanged(changed)) => {
            format!("{} bindings changed: list them again", changed.count)
        }
        Some(Kind::SnapshotEnd(_)) => "that is all there is now".into(),
        Some(Kind::Lagged(lagged)) => format!(
            "{} events were missed: watch again with --snapshot",
            lagged.missed
        ),
        None => "an event this version does not know".into(),
    };
    format!("{at} epoch={} {what}", event.epoch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_a_line() {
        let port = v1::PortChanged {
            nic: "vnic_1".into(),
            state: v1::PortState::Broken.into(),
            detail: "descriptor 7 is beyond the table".into(),
        };
        let event = v1::Event {
            time_unix_nanos: 1_500_000_042_000,
            epoch: 9,
            kind: Some(Kind::PortChanged(port)),
            ..Default::default()
        };
        assert_eq!(
            line(&event),
            "1500.000042 epoch=9 nic vnic_1 is broken descriptor 7 is beyond the table"
        );
    }
}
