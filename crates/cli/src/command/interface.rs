//! `butterfly interface`: the interfaces of the daemon's host, in the words of BSD's `ifconfig`, as
//! netmap-fwd prints them.

use api::v1;
use clap::{Args, Subcommand};

use super::router::client;
use super::xdp_mode::mode_name;
use crate::error::Error;
use crate::json;
use crate::output::Table;
use crate::query::Alone;
use crate::session::Session;

/// `interface`, alone or with a word.
#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Example:\n  butterfly interface show eth1"
)]
pub struct InterfaceCommand {
    #[command(subcommand)]
    word: Option<InterfaceWord>,
    #[command(flatten)]
    alone: InterfaceArgs,
}

#[derive(Subcommand, Debug)]
enum InterfaceWord {
    /// List the interfaces, a line each
    #[command(after_help = "Example:\n  butterfly interface list")]
    List,
    /// Show all that is known of interfaces, as the noun alone does
    Show(InterfaceArgs),
}

/// `interface show`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  butterfly interface show
  butterfly interface show eth1 eth2.100")]
pub struct InterfaceArgs {
    /// Names of interfaces [default: all]
    #[arg(value_name = "INTERFACE")]
    names: Vec<String>,
}

impl InterfaceCommand {
    /// Runs the chosen `interface` command.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        session.prefer_alone(Alone::Forward).await?;
        match self.word {
            Some(InterfaceWord::List) => list(session).await,
            Some(InterfaceWord::Show(args)) => args.run(session).await,
            None => self.alone.run(session).await,
        }
    }
}

async fn list(session: &mut Session) -> Result<(), Error> {
    let interfaces = client(session).await?.interfaces(Vec::new()).await?;
    if session.out.json {
        let values = interfaces.iter().map(|one| json::full("Interface", one));
        return session.out.value(&values.collect());
    }
    let headings = [
        "NAME",
        "STATE",
        ">MTU",
        "MAC",
        "ADDRESSES",
        "MODE",
        "FEATURES",
    ];
    let mut table = Table::new(&headings);
    for interface in interfaces {
        let state = match (interface.up, interface.running) {
            (false, _) => "down",
            (true, false) => "no link",
            (true, true) => "up",
        };
        let mode = match interface.features.is_empty() {
            true => "",
            false => mode_name(interface.mode()),
        };
        table.row([
            interface.name.clone(),
            state.into(),
            interface.mtu.to_string(),
            interface.mac.clone(),
            interface.addresses.join(" "),
            mode.into(),
            interface.features.join(", "),
        ]);
    }
    session.out.table(&table)
}

impl InterfaceArgs {
    async fn run(self, session: &mut Session) -> Result<(), Error> {
        let interfaces = client(session).await?.interfaces(self.names).await?;
        if session.out.json {
            let values = interfaces.iter().map(|one| json::full("Interface", one));
            return session.out.value(&values.collect());
        }
        session
            .out
            .text(&interfaces.iter().map(lines).collect::<String>())
    }
}

fn lines(interface: &v1::Interface) -> String {
    let flags = [
        (interface.up, "UP"),
        (interface.loopback, "LOOPBACK"),
        (interface.running, "RUNNING"),
    ];
    let on = flags.iter().filter(|(on, _)| *on);
    let flags: Vec<&str> = on.map(|(_, name)| *name).collect();
    let mut text = format!(
        "{}: flags=<{}> mtu {}\n",
        interface.name,
        flags.join(","),
        interface.mtu
    );
    let mut line = |name: &str, value: &str| {
        if !value.is_empty() {
            text += &format!("       {name} {value}\n");
        }
    };
    line("kind", &interface.kind);
    line("ether", &interface.mac);
    if interface.vlan != 0 {
        line(
            "vlan",
            &format!("{} parent {}", interface.vlan, interface.parent),
        );
    }
    line("master", &interface.master);
    for address in &interface.addresses {
        let word = if address.contains(':') {
            "inet6"
        } else {
            "inet"
        };
        line(word, address);
    }
    let features = interface.features.join(", ");
    match (features.is_empty(), interface.xdp_program) {
        (true, 0) => {}
        (true, id) => line("xdp", &format!("program {id}, somebody else's")),
        (false, _) => match mode_name(interface.mode()) {
            "tc" => line("tc", &features),
            mode => line("xdp", &format!("{mode}: {features}")),
        },
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_in_the_words_of_ifconfig() {
        let interface = v1::Interface {
            name: "eth1.100".into(),
            up: true,
            running: true,
            mtu: 1500,
            mac: "00:08:a2:09:5b:4b".into(),
            kind: "vlan".into(),
            vlan: 100,
            parent: "eth1".into(),
            addresses: vec!["10.0.0.1/24".into(), "2001:db8::1/64".into()],
            features: vec!["load balancer".into(), "router".into()],
            mode: v1::XdpMode::Native.into(),
            ..Default::default()
        };
        assert_eq!(
            lines(&interface),
            "\
eth1.100: flags=<UP,RUNNING> mtu 1500
       kind vlan
       ether 00:08:a2:09:5b:4b
       vlan 100 parent eth1
       inet 10.0.0.1/24
       inet6 2001:db8::1/64
       xdp native: load balancer, router
"
        );
    }
}
