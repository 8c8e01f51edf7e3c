//! `butterfly watch`: changes and events as they happen, one a line.

use std::collections::{BTreeSet, HashMap};

use api::v1;
use api::v1::event::Kind;
use clap::{Args, ValueEnum};

use super::events::{EventArgs, time};
use super::flow_records::print_records;
use super::{router_watch, service_watch};
use crate::error::Error;
use crate::session::Session;
use crate::words::{rule_words, state_name};

/// `watch`.
#[derive(Args, Debug)]
#[command(after_help = "\
Runs until it is interrupted or the daemon stops. With --json every event is one line.
A group's line says which rules and members came and went since its line before; --snapshot begins
with a line of each.

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
                let mut groups = Groups::default();
                let line = |event: &v1::Event| Some(line(event, &mut groups));
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

/// The rules and members of each group when it was told of last.
#[derive(Default)]
struct Groups(HashMap<String, BTreeSet<String>>);

/// So many rules and members that come or go are named in one line.
const NAMED: usize = 8;

impl Groups {
    /// What has come and gone since the group was told of last, if it was.
    fn change(&mut self, group: &v1::Group) -> String {
        let rules = group.rules.iter();
        let rules = rules.map(|rule| format!("rule {}", rule_words(rule).join(" ")));
        let members = group.members.iter().map(|ip| format!("member {ip}"));
        let new: BTreeSet<String> = rules.chain(members).collect();
        let Some(old) = self.0.get(&group.id) else {
            self.0.insert(group.id.clone(), new);
            return String::new();
        };
        let come = new.difference(old).map(|one| format!(", + {one}"));
        let gone = old.difference(&new).map(|one| format!(", - {one}"));
        let all: Vec<String> = come.chain(gone).collect();
        let mut text = all[..all.len().min(NAMED)].concat();
        if all.len() > NAMED {
            text += &format!(", and {} more", all.len() - NAMED);
        }
        self.0.insert(group.id.clone(), new);
        text
    }
}

/// Time, epoch, and what happened.
fn line(event: &v1::Event, groups: &mut Groups) -> String {
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
                "sg {} has {} rules, {} members{}",
                group.id,
                group.rules.len(),
                group.members.len(),
                groups.change(group)
            )
        }
        Some(Kind::GroupDeleted(id)) => {
            groups.0.remove(id);
            format!("sg {id} is deleted")
        }
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
            line(&event, &mut Groups::default()),
            "1500.000042 epoch=9 nic vnic_1 is broken descriptor 7 is beyond the table"
        );
    }

    #[test]
    fn what_comes_to_a_group_and_goes_is_named() {
        let mut groups = Groups::default();
        let mut told = |kind: Kind| {
            let event = v1::Event {
                kind: Some(kind),
                ..Default::default()
            };
            let line = line(&event, &mut groups);
            line.strip_prefix("0.000000 epoch=0 sg web ")
                .map(str::to_owned)
        };
        let group = |ports: std::ops::Range<u32>, members: &[&str]| {
            let rule = |port| v1::Rule {
                protocol: Some(6),
                r#match: Some(v1::rule::Match::Ports(v1::PortRange {
                    start: port,
                    end: port,
                })),
                ..Default::default()
            };
            Kind::GroupChanged(v1::Group {
                id: "web".into(),
                rules: ports.map(rule).collect(),
                members: members.iter().map(|ip| (*ip).into()).collect(),
                ..Default::default()
            })
        };
        let deleted = || Kind::GroupDeleted("web".into());
        let session = [
            (group(80..81, &[]), "has 1 rules, 0 members"),
            (
                group(81..82, &["10.0.0.7"]),
                "has 1 rules, 1 members, + member 10.0.0.7, + rule in tcp 81 all, \
                 - rule in tcp 80 all",
            ),
            (group(81..82, &["10.0.0.7"]), "has 1 rules, 1 members"),
            (
                group(81..82, &[]),
                "has 1 rules, 0 members, - member 10.0.0.7",
            ),
            (deleted(), "is deleted"),
            (group(1..3, &[]), "has 2 rules, 0 members"),
            (
                group(1..13, &[]),
                "has 12 rules, 0 members, + rule in tcp 10 all, + rule in tcp 11 all, \
                 + rule in tcp 12 all, + rule in tcp 3 all, + rule in tcp 4 all, \
                 + rule in tcp 5 all, + rule in tcp 6 all, + rule in tcp 7 all, and 2 more",
            ),
        ];
        for (kind, expected) in session {
            assert_eq!(told(kind).as_deref(), Some(expected));
        }
    }
}
