//! `butterfly neigh` and `arp`: the kernel's neighbours, and whether the router sends to them.

use api::v1;
use api::v1::router_event::Kind;
use clap::{Args, Subcommand};

use super::router::client;
use super::router_changes::Changes;
use crate::error::Error;
use crate::json;
use crate::output::Table;
use crate::query::Alone;
use crate::session::Session;

/// `neigh`, alone or with a word.
#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Example:\n  butterfly neigh list"
)]
pub struct NeighCommand {
    #[command(subcommand)]
    word: Option<NeighWord>,
    #[command(flatten)]
    alone: NeighArgs,
}

#[derive(Subcommand, Debug)]
enum NeighWord {
    /// List the neighbours, as the noun alone does
    #[command(visible_alias = "show")]
    List(NeighArgs),
}

impl NeighCommand {
    /// Prints the neighbours.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        let args = match self.word {
            Some(NeighWord::List(args)) => args,
            None => self.alone,
        };
        args.run(session).await
    }
}

/// `neigh list`.
#[derive(Args, Debug)]
#[command(after_help = "\
A reachable neighbour has to be confirmed when its time is up, a stale one may be forgotten. The
router has the kernel confirm those that it sends to.

Examples:
  butterfly neigh list
  butterfly neigh list --interface eth1 -6 --watch")]
pub struct NeighArgs {
    /// Of one interface
    #[arg(short, long, value_name = "INTERFACE")]
    interface: Option<String>,
    /// IPv4's alone
    #[arg(short = '4', long)]
    ipv4: bool,
    /// IPv6's alone
    #[arg(short = '6', long, conflicts_with = "ipv4")]
    ipv6: bool,
    #[command(flatten)]
    changes: Changes,
}

/// `arp`.
#[derive(Args, Debug)]
#[command(after_help = "\
The host's own addresses are permanent. With --json as `neigh -4`.

Example:
  butterfly arp")]
pub struct ArpArgs {
    /// Of one interface
    #[arg(short, long, value_name = "INTERFACE")]
    interface: Option<String>,
}

impl NeighArgs {
    /// Prints the neighbours, and then every change where that was asked for.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        let request = v1::ListNeighboursRequest {
            ipv4: self.ipv4,
            ipv6: self.ipv6,
            interface: self.interface.clone().unwrap_or_default(),
        };
        session.prefer_alone(Alone::Forward).await?;
        // Listened to first, so that no change falls between the list and them.
        let changes = self.changes.begin(client(session).await?).await?;
        let neighbours = client(session).await?.neighbours(request).await?;
        match session.out.json {
            true => print_json(&neighbours, session)?,
            false => session.out.table(&table(&neighbours))?,
        }
        let Some(changes) = changes else {
            return Ok(());
        };
        session.out.flush()?;
        let asked_for = |kind: &Kind| match kind {
            Kind::Neighbour(change) => change
                .neighbour
                .as_ref()
                .is_some_and(|one| self.asks_for(one)),
            Kind::ManyRoutes(many) => many.neighbours > 0,
            _ => false,
        };
        let (client, out) = session.client_and_output().await?;
        self.changes
            .print(client.only_v1("router")?, out, changes, asked_for)
            .await
    }

    /// Whether the request asks for this neighbour; the daemon's list decides alike.
    fn asks_for(&self, neighbour: &v1::Neighbour) -> bool {
        let six = neighbour.address.contains(':');
        let of_family = if six { !self.ipv4 } else { !self.ipv6 };
        let mut interface = self.interface.iter();
        of_family && interface.all(|name| *name == neighbour.interface)
    }
}

impl ArpArgs {
    /// Prints the IPv4 neighbours as `arp` does.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        let request = v1::ListNeighboursRequest {
            ipv4: true,
            ipv6: false,
            interface: self.interface.clone().unwrap_or_default(),
        };
        session.prefer_alone(Alone::Forward).await?;
        let neighbours = client(session).await?.neighbours(request).await?;
        if session.out.json {
            return print_json(&neighbours, session);
        }
        let names = self.interface.into_iter().collect();
        let interfaces = client(session).await?.interfaces(names).await?;
        let lines = neighbours.iter().map(arp_line);
        let own = interfaces.iter().flat_map(own_lines);
        session.out.text(&lines.chain(own).collect::<String>())
    }
}

fn print_json(neighbours: &[v1::Neighbour], session: &mut Session) -> Result<(), Error> {
    let values = neighbours.iter().map(|one| json::full("Neighbour", one));
    session.out.value(&values.collect())
}

fn table(neighbours: &[v1::Neighbour]) -> Table {
    let mut table = Table::new(&["ADDRESS", "MAC", "INTERFACE", "STATE", ">EXPIRES", "BY"]);
    for neighbour in neighbours {
        table.row([
            neighbour.address.clone(),
            neighbour.mac.clone(),
            neighbour.interface.clone(),
            neighbour.state.clone(),
            neighbour
                .expires_ms
                .map_or(String::new(), |ms| format!("{} s", seconds(ms))),
            if neighbour.fast { "fast" } else { "kernel" }.into(),
        ]);
    }
    table
}

/// Begun seconds count.
fn seconds(ms: u64) -> u64 {
    ms.div_ceil(1000)
}

/// A line as netmap-fwd prints it.
fn arp_line(neighbour: &v1::Neighbour) -> String {
    let v1::Neighbour {
        address,
        interface,
        mac,
        state,
        ..
    } = neighbour;
    let mac = if mac.is_empty() { "(incomplete)" } else { mac };
    let until = match neighbour.expires_ms {
        Some(ms) => format!("expires {} seconds", seconds(ms)),
        None => state.clone(),
    };
    format!("? ({address}) at {mac} on {interface} {until}\n")
}

fn own_lines(interface: &v1::Interface) -> Vec<String> {
    let four = interface
        .addresses
        .iter()
        .filter(|address| !address.contains(':'));
    let line = |address: &String| {
        let ip = address.split('/').next().unwrap_or_default();
        format!(
            "? ({ip}) at {} on {} permanent\n",
            interface.mac, interface.name
        )
    };
    match interface.loopback || interface.mac.is_empty() {
        true => Vec::new(),
        false => four.map(line).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn neighbour(last: u8, state: &str, expires_ms: Option<u64>) -> v1::Neighbour {
        v1::Neighbour {
            address: format!("10.0.0.{last}"),
            interface: "igb3".into(),
            mac: "02:13:06:c3:52:48".into(),
            state: state.into(),
            fast: true,
            expires_ms,
            ..Default::default()
        }
    }

    #[test]
    fn arp_is_as_netmap_fwd_prints_it() {
        assert_eq!(
            arp_line(&neighbour(2, "reachable", Some(1_181_001))),
            "? (10.0.0.2) at 02:13:06:c3:52:48 on igb3 expires 1182 seconds\n"
        );
        let unknown = v1::Neighbour {
            mac: String::new(),
            ..neighbour(3, "incomplete", None)
        };
        assert_eq!(
            arp_line(&unknown),
            "? (10.0.0.3) at (incomplete) on igb3 incomplete\n"
        );
        let own = v1::Interface {
            name: "igb5".into(),
            mac: "00:08:a2:09:5b:4d".into(),
            addresses: vec!["192.168.0.88/24".into(), "fe80::1/64".into()],
            ..Default::default()
        };
        assert_eq!(
            own_lines(&own),
            ["? (192.168.0.88) at 00:08:a2:09:5b:4d on igb5 permanent\n"]
        );
    }

    #[test]
    fn a_table_of_neighbours() {
        let rows = [
            neighbour(2, "reachable", Some(29_500)),
            neighbour(4, "permanent", None),
        ];
        assert_eq!(
            table(&rows).render(),
            "\
ADDRESS   MAC                INTERFACE  STATE      EXPIRES  BY
10.0.0.2  02:13:06:c3:52:48  igb3       reachable     30 s  fast
10.0.0.4  02:13:06:c3:52:48  igb3       permanent        -  fast
"
        );
    }
}
