//! `butterfly network`: how virtual networks reach other hosts.

use api::v1;
use clap::{Args, Subcommand, ValueEnum};

use super::nic_options::address;
use crate::error::Error;
use crate::json;
use crate::output::Table;
use crate::session::Session;

/// `network …`.
#[derive(Subcommand, Debug)]
pub enum NetworkCommand {
    /// List the networks that a NIC, a host or a binding is in, or of which something is said
    #[command(after_help = "Example:\n  butterfly network list")]
    List,
    /// Show how networks work, who is in them, and which MACs were learnt
    #[command(after_help = "Example:\n  butterfly network show 42")]
    Show(Vnis),
    /// Say how networks work; what is not said follows from who is known of them
    Set(SetArgs),
}

/// One VNI or more.
#[derive(Args, Debug)]
pub struct Vnis {
    /// VNIs of networks
    #[arg(required = true, value_name = "VNI")]
    vnis: Vec<u32>,
}

/// `network set`.
#[derive(Args, Debug)]
#[command(after_help = "\
What is not said: a network without host and binding learns, floods to its multicast group and
hears anybody, as the original Butterfly, until any host is known or anything is said of any
network, and nobody from then on; one with hosts learns, floods to each of them and hears them
alone; one with bindings does the same and does not learn.

Examples:
  butterfly network set 42 --learning on --flood multicast --group 239.1.1.1 --from anybody
  butterfly network set 42 --dhcp-server 192.168.0.2 --router 192.168.0.2 192.168.0.3
  butterfly network set 42      (nothing is said any more)")]
pub struct SetArgs {
    /// VNIs of networks
    #[arg(required = true, value_name = "VNI")]
    vnis: Vec<u32>,
    /// Learn where MACs are from where their frames come from
    #[arg(long)]
    learning: Option<Switch>,
    /// Where frames for all go
    #[arg(long)]
    flood: Option<Flood>,
    /// --flood multicast: the group [default: 230.x.y.z, which the VNI makes]
    #[arg(long, value_parser = address)]
    group: Option<String>,
    /// Whom VXLAN is taken from
    #[arg(long)]
    from: Option<From>,
    /// Hosts on which a machine may answer as a DHCP server [default: none, once anything is
    /// declared]
    #[arg(long, value_name = "HOST", num_args = 1.., value_parser = address)]
    dhcp_server: Vec<String>,
    /// Hosts on which a machine may send router advertisements and redirects [default: likewise]
    #[arg(long, value_name = "HOST", num_args = 1.., value_parser = address)]
    router: Vec<String>,
}

#[derive(ValueEnum, Debug, Clone, Copy)]
enum From {
    /// Whoever sends it, known or not
    Anybody,
    /// The network's hosts alone
    #[value(alias = "endpoints")]
    Hosts,
}

#[derive(ValueEnum, Debug, Clone, Copy)]
enum Switch {
    On,
    Off,
}

#[derive(ValueEnum, Debug, Clone, Copy)]
enum Flood {
    /// A copy to each host of the network
    HeadEnd,
    /// One copy to an IP multicast group
    Multicast,
    /// Nowhere: they stay on this host
    Off,
}

impl NetworkCommand {
    /// See [`Command::only_prints`](super::Command::only_prints).
    pub fn only_prints(&self) -> bool {
        matches!(self, NetworkCommand::List | NetworkCommand::Show(_))
    }

    /// Runs the chosen `network` command.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        match self {
            NetworkCommand::List => list(session).await,
            NetworkCommand::Show(args) => show(args, session).await,
            NetworkCommand::Set(args) => set(args, session).await,
        }
    }
}

async fn set(args: SetArgs, session: &mut Session) -> Result<(), Error> {
    let flood = match args.flood {
        None => v1::Flood::Unspecified,
        Some(Flood::HeadEnd) => v1::Flood::HeadEnd,
        Some(Flood::Multicast) => v1::Flood::Multicast,
        Some(Flood::Off) => v1::Flood::Off,
    };
    for vni in args.vnis {
        let network = v1::Network {
            vni,
            learning: args.learning.map(|learning| matches!(learning, Switch::On)),
            flood: flood.into(),
            multicast_group: args.group.clone().unwrap_or_default(),
            from_anybody: args.from.map(|from| matches!(from, From::Anybody)),
            dhcp_servers: args.dhcp_server.clone(),
            routers: args.router.clone(),
        };
        let v1 = session.client().await?.only_v1("network")?;
        v1.put_network(network).await?;
        session.done("network", vni);
    }
    Ok(())
}

async fn list(session: &mut Session) -> Result<(), Error> {
    let networks = session
        .client()
        .await?
        .only_v1("network")?
        .networks()
        .await?;
    if session.out.json {
        let all = networks
            .iter()
            .map(|network| json::full("NetworkStatus", network));
        return session.out.value(&all.collect());
    }
    let mut table = Table::new(&[
        ">VNI",
        "LEARNING",
        "FLOOD",
        "FROM",
        ">NICS",
        ">HOSTS",
        ">BINDINGS",
    ]);
    for network in networks {
        table.row([
            network
                .network
                .as_ref()
                .map_or(0, |said| said.vni)
                .to_string(),
            learning(&network).to_owned(),
            flood(&network),
            from(&network).to_owned(),
            network.nics.to_string(),
            network.endpoints.to_string(),
            network.bindings.to_string(),
        ]);
    }
    session.out.table(&table)
}

async fn show(args: Vnis, session: &mut Session) -> Result<(), Error> {
    let v1 = session.client().await?.only_v1("network")?;
    let mut networks = Vec::new();
    for vni in args.vnis {
        networks.push(v1.network(vni).await?);
    }
    if session.out.json {
        let all = networks
            .iter()
            .map(|network| json::full("NetworkStatus", network));
        return session.out.value(&all.collect());
    }
    for (index, network) in networks.iter().enumerate() {
        if index > 0 {
            session.out.text("\n")?;
        }
        for (name, value) in lines(network) {
            session
                .out
                .text(&format!("{:<10} {value}", format!("{name}:")))?;
        }
    }
    Ok(())
}

/// `name: value`; behind a value whether it was said or follows.
fn lines(network: &v1::NetworkStatus) -> Vec<(&'static str, String)> {
    let said = network.network.clone().unwrap_or_default();
    let origin = |said: bool| if said { "as said" } else { "by default" };
    let mut lines = vec![
        ("vni", said.vni.to_string()),
        (
            "learning",
            format!(
                "{} ({})",
                learning(network),
                origin(said.learning.is_some())
            ),
        ),
        (
            "flood",
            format!(
                "{} ({})",
                flood(network),
                origin(said.flood() != v1::Flood::Unspecified)
            ),
        ),
        (
            "from",
            format!(
                "{} ({})",
                from(network),
                origin(said.from_anybody.is_some())
            ),
        ),
        ("dhcp", trusted(&said.dhcp_servers, network.any_dhcp_server)),
        ("routers", trusted(&said.routers, network.any_router)),
        ("nics", network.nics.to_string()),
        ("bindings", network.bindings.to_string()),
    ];
    let endpoints = network.endpoint_addresses.iter();
    lines.extend(endpoints.map(|address| ("host", address.clone())));
    lines.extend(network.learned.iter().map(|mac| ("learnt", learned(mac))));
    lines
}

/// `52:54:00:00:00:02 at 192.0.2.2, 12 s ago`.
fn learned(learned: &v1::LearnedMac) -> String {
    use v1::learned_mac::Place;
    let place = match &learned.place {
        Some(Place::Endpoint(address)) => format!("at {address}"),
        Some(Place::Nic(nic)) => format!("behind NIC {nic}"),
        None => "behind a NIC that is gone".to_owned(),
    };
    format!("{} {place}, {} s ago", learned.mac, learned.age_secs)
}

fn learning(network: &v1::NetworkStatus) -> &'static str {
    if network.learning { "on" } else { "off" }
}

fn flood(network: &v1::NetworkStatus) -> String {
    match network.flood() {
        v1::Flood::Unspecified => String::new(),
        v1::Flood::HeadEnd => "head-end".into(),
        v1::Flood::Multicast => format!("multicast {}", network.multicast_group),
        v1::Flood::Off => "off".into(),
    }
}

/// Which hosts are trusted.
fn trusted(named: &[String], anybody: bool) -> String {
    match (anybody, named) {
        (true, _) => "anybody".into(),
        (false, []) => "nobody".into(),
        (false, hosts) => hosts.join(" "),
    }
}

fn from(network: &v1::NetworkStatus) -> &'static str {
    if network.from_anybody {
        "anybody"
    } else {
        "hosts"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_says_what_was_said_and_what_follows() {
        let network = v1::NetworkStatus {
            network: Some(v1::Network {
                vni: 42,
                learning: Some(true),
                dhcp_servers: vec!["10.0.0.2".into(), "10.0.0.3".into()],
                ..Default::default()
            }),
            learning: true,
            flood: v1::Flood::Multicast.into(),
            multicast_group: "230.0.0.42".into(),
            from_anybody: true,
            nics: 2,
            endpoint_addresses: vec!["10.0.0.2".into()],
            learned: vec![
                v1::LearnedMac {
                    mac: "52:54:00:00:00:02".into(),
                    place: Some(v1::learned_mac::Place::Endpoint("10.0.0.2".into())),
                    age_secs: 12,
                },
                v1::LearnedMac {
                    mac: "52:54:00:00:00:03".into(),
                    place: Some(v1::learned_mac::Place::Nic("vm-1".into())),
                    age_secs: 0,
                },
            ],
            ..Default::default()
        };
        let lines: Vec<String> = lines(&network)
            .into_iter()
            .map(|(name, value)| format!("{name}: {value}"))
            .collect();
        assert_eq!(
            lines,
            [
                "vni: 42",
                "learning: on (as said)",
                "flood: multicast 230.0.0.42 (by default)",
                "from: anybody (by default)",
                "dhcp: 10.0.0.2 10.0.0.3",
                "routers: nobody",
                "nics: 2",
                "bindings: 0",
                "host: 10.0.0.2",
                "learnt: 52:54:00:00:00:02 at 10.0.0.2, 12 s ago",
                "learnt: 52:54:00:00:00:03 behind NIC vm-1, 0 s ago",
            ]
        );
    }
}
