//! `butterfly uplink`: the interfaces that join this host to others.

use api::v1;
use clap::{Args, Subcommand};

use super::xdp_mode::Names;
use crate::error::Error;
use crate::json;
use crate::output::Table;
use crate::session::Session;
use crate::words::direction_name;

/// `uplink …`.
#[derive(Subcommand, Debug)]
pub enum UplinkCommand {
    /// Join this host to others by more interfaces, now or when they come
    #[command(after_help = "\
Beside the interface that has this host's address (`butterflyd -i`): where there are several, the
kernel's routes say which frames leave by which.

Example:
  butterfly uplink add eth2 + uplink list")]
    Add(Names),
    /// Leave interfaces to the kernel; one that was not named is left already
    #[command(after_help = "Example:\n  butterfly uplink del eth2")]
    Del(Names),
    /// List the uplinks, the mode that is in force on each, and why not a better one
    #[command(after_help = "Example:\n  butterfly uplink list")]
    List,
    /// Show all that can be seen of uplinks: addresses, queues, frames, drops
    #[command(after_help = "Example:\n  butterfly uplink show eth1")]
    Show(Interfaces),
}

/// Uplinks, or all.
#[derive(Args, Debug)]
pub struct Interfaces {
    /// Names of interfaces [default: all uplinks]
    #[arg(value_name = "INTERFACE")]
    interfaces: Vec<String>,
}

impl UplinkCommand {
    /// See [`Command::only_prints`](super::Command::only_prints).
    pub fn only_prints(&self) -> bool {
        matches!(self, UplinkCommand::List | UplinkCommand::Show(_))
    }

    /// Runs the chosen `uplink` command.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        let client = session.client().await?.only_v1("uplink")?;
        match self {
            UplinkCommand::Add(args) => add(args.names, session).await,
            UplinkCommand::Del(args) => {
                for name in args.names {
                    let client = session.client().await?.only_v1("uplink")?;
                    client.delete_uplink(name.clone()).await?;
                    session.done("uplink", name);
                }
                Ok(())
            }
            UplinkCommand::List => list(&client.uplinks().await?, session),
            UplinkCommand::Show(args) => {
                let mut all = client.uplinks().await?;
                let missing =
                    |name: &&String| all.uplinks.iter().all(|uplink| uplink.interface != **name);
                if let Some(name) = args.interfaces.iter().find(missing) {
                    return Err(Error::Refused(format!("there is no uplink '{name}'")));
                }
                let named = |uplink: &v1::Uplink| args.interfaces.contains(&uplink.interface);
                all.uplinks
                    .retain(|uplink| args.interfaces.is_empty() || named(uplink));
                show(&all, session)
            }
        }
    }
}

async fn add(names: Vec<String>, session: &mut Session) -> Result<(), Error> {
    let mut added = Vec::new();
    let mut refused = None;
    for name in names {
        let client = session.client().await?.only_v1("uplink")?;
        match client.add_uplink(name).await {
            Ok(uplink) => added.push(uplink),
            Err(error) => {
                refused = Some(error);
                break;
            }
        }
    }
    // Those before it were named all the same, which has to be said.
    let printed = if session.out.json {
        let values = added.iter().map(|one| json::full("Uplink", one));
        session.out.value(&values.collect())
    } else {
        added.iter().try_for_each(|uplink| {
            let how = match uplink.joined {
                true => uplink.mode.clone(),
                false => format!("not joined: {}", uplink.why),
            };
            session.out.text(&format!("{}: {how}", uplink.interface))
        })
    };
    refused.map_or(printed, Err)
}

fn list(all: &v1::ListUplinksResponse, session: &mut Session) -> Result<(), Error> {
    if session.out.json {
        return session.out.value(&json::full("ListUplinksResponse", all));
    }
    let mut table = Table::new(&[
        "INTERFACE",
        "STATE",
        ">MTU",
        ">QUEUES",
        "ADDRESSES",
        "MODE",
        "WHY",
    ]);
    for uplink in &all.uplinks {
        table.row([
            uplink.interface.clone(),
            state(uplink).to_owned(),
            uplink.mtu.to_string(),
            uplink.queues.to_string(),
            uplink.addresses.join(" "),
            uplink.mode.clone(),
            uplink.why.clone(),
        ]);
    }
    session.out.table(&table)
}

fn show(all: &v1::ListUplinksResponse, session: &mut Session) -> Result<(), Error> {
    if session.out.json {
        return session.out.value(&json::full("ListUplinksResponse", all));
    }
    for (index, uplink) in all.uplinks.iter().enumerate() {
        if index > 0 {
            session.out.text("\n")?;
        }
        for (name, value) in lines(uplink) {
            session
                .out
                .text(&format!("{:<10} {value}", format!("{name}:")))?;
        }
    }
    Ok(())
}

fn lines(uplink: &v1::Uplink) -> Vec<(&'static str, String)> {
    let mut lines = vec![
        ("interface", uplink.interface.clone()),
        ("state", state(uplink).to_owned()),
    ];
    let mut said = |name, value: &str| {
        if !value.is_empty() {
            lines.push((name, value.to_owned()));
        }
    };
    said("mode", &uplink.mode);
    said("why", &uplink.why);
    said("mac", &uplink.mac);
    uplink
        .addresses
        .iter()
        .for_each(|address| said("address", address));
    lines.push(("mtu", uplink.mtu.to_string()));
    lines.push(("queues", uplink.queues.to_string()));
    let frames = |frames, bytes| format!("{frames} frames, {bytes} bytes");
    lines.push((
        "received",
        frames(uplink.received_frames, uplink.received_bytes),
    ));
    if uplink.received_kernel_frames > 0 {
        let count = uplink.received_kernel_frames;
        lines.push(("by kernel", format!("{count} of these to containers")));
    }
    lines.push(("sent", frames(uplink.sent_frames, uplink.sent_bytes)));
    lines.push((
        "lost",
        format!("{} by the kernel for want of room", uplink.lost_by_kernel),
    ));
    let drops = uplink.drops.iter();
    lines.extend(drops.map(|drop| {
        let direction = direction_name(drop.direction());
        (
            "dropped",
            format!(
                "{direction} {} {}: {}",
                drop.frames, drop.reason, drop.description
            ),
        )
    }));
    lines
}

fn state(uplink: &v1::Uplink) -> &'static str {
    match (uplink.joined, uplink.up) {
        (false, _) => "not joined",
        (true, false) => "link down",
        (true, true) => "up",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_uplink_says_how_it_is_joined_and_why() {
        let uplink = v1::Uplink {
            interface: "eth1".into(),
            joined: true,
            up: true,
            mode: "packet socket".into(),
            why: "XDP is refused".into(),
            mtu: 1500,
            queues: 1,
            addresses: vec!["192.0.2.1".into()],
            received_frames: 7,
            received_bytes: 700,
            received_kernel_frames: 5,
            ..Default::default()
        };
        let lines: Vec<String> = lines(&uplink)
            .iter()
            .map(|(name, value)| format!("{name}: {value}"))
            .collect();
        assert_eq!(
            lines,
            [
                "interface: eth1",
                "state: up",
                "mode: packet socket",
                "why: XDP is refused",
                "address: 192.0.2.1",
                "mtu: 1500",
                "queues: 1",
                "received: 7 frames, 700 bytes",
                "by kernel: 5 of these to containers",
                "sent: 0 frames, 0 bytes",
                "lost: 0 by the kernel for want of room",
            ]
        );
    }
}
