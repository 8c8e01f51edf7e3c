//! `butterfly host`: other hosts, which API v1 calls endpoints.

use api::v1;
use clap::{Args, Subcommand};

use super::nic_options::address;
use crate::error::Error;
use crate::json;
use crate::output::Table;
use crate::session::Session;

/// `host …`.
#[derive(Subcommand, Debug)]
pub enum HostCommand {
    /// Make other hosts known, and put them into networks; one that is known keeps what it has
    Add(AddArgs),
    /// Forget other hosts, or take them out of networks; one that is not known is forgotten already
    Del(DelArgs),
    /// List the other hosts
    #[command(after_help = "Example:\n  butterfly host list")]
    List,
    /// Show hosts: what they are called, their networks, and how many machines are behind them
    #[command(after_help = "Example:\n  butterfly host show 192.168.0.2")]
    Show(ShowArgs),
}

/// `host show`.
#[derive(Args, Debug)]
pub struct ShowArgs {
    /// Addresses of hosts [default: all]
    #[arg(value_name = "ADDRESS", value_parser = address)]
    addresses: Vec<String>,
}

/// `host add`.
#[derive(Args, Debug)]
#[command(after_help = "\
Frames for all of a network go to each of its hosts, and VXLAN is taken from hosts that are known
alone. While nothing is declared networks work as the original Butterfly's: by IP multicast, with
whoever answers.

Examples:
  butterfly host add 192.168.0.2 192.168.0.3 --vni 42 43
  butterfly host add 192.168.0.2 --every-vni --name rack2")]
pub struct AddArgs {
    /// Addresses of hosts, IPv4 or IPv6
    #[arg(required = true, value_name = "ADDRESS", value_parser = address)]
    addresses: Vec<String>,
    /// Networks that they take part in, beside others
    #[arg(long, num_args = 1.., value_name = "VNI", conflicts_with = "every_vni")]
    vni: Vec<u32>,
    /// They take part in every network
    #[arg(long)]
    every_vni: bool,
    /// What people call it
    #[arg(long)]
    name: Option<String>,
    /// Take them out of all other networks
    #[arg(long)]
    replace: bool,
}

/// `host del`.
#[derive(Args, Debug)]
#[command(after_help = "\
One that bindings name is refused, unless they are to go with it.

Examples:
  butterfly host del 192.168.0.3 --bindings
  butterfly host del 192.168.0.2 --vni 43")]
pub struct DelArgs {
    /// Addresses of hosts
    #[arg(required = true, value_name = "ADDRESS", value_parser = address)]
    addresses: Vec<String>,
    /// Take them out of these networks only
    #[arg(long, num_args = 1.., value_name = "VNI", conflicts_with = "bindings")]
    vni: Vec<u32>,
    /// Delete the bindings that name them, too
    #[arg(long)]
    bindings: bool,
}

impl HostCommand {
    /// See [`Command::only_prints`](super::Command::only_prints).
    pub fn only_prints(&self) -> bool {
        matches!(self, HostCommand::List | HostCommand::Show(_))
    }

    /// Runs the chosen `host` command.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        match self {
            HostCommand::Add(args) => add(args, session).await,
            HostCommand::Del(args) => del(args, session).await,
            HostCommand::List => list(session).await,
            HostCommand::Show(args) => show(args, session).await,
        }
    }
}

async fn add(args: AddArgs, session: &mut Session) -> Result<(), Error> {
    for address in args.addresses {
        let v1 = session.client().await?.only_v1("host")?;
        if args.replace {
            let endpoint = v1::Endpoint {
                address: address.clone(),
                name: args.name.clone().unwrap_or_default(),
                vnis: args.vni.clone(),
                every_vni: args.every_vni,
            };
            v1.put_endpoint(endpoint).await?;
        } else {
            let update = v1::UpdateEndpointRequest {
                address: address.clone(),
                name: args.name.clone(),
                every_vni: args.every_vni.then_some(true),
                leave_vnis: vec![],
                join_vnis: args.vni.clone(),
            };
            v1.update_endpoint(update).await?;
        }
        session.done("endpoint", address);
    }
    Ok(())
}

async fn del(args: DelArgs, session: &mut Session) -> Result<(), Error> {
    for address in args.addresses {
        let v1 = session.client().await?.only_v1("host")?;
        if args.vni.is_empty() {
            let with_bindings = args.bindings;
            let request = v1::DeleteEndpointRequest {
                address: address.clone(),
                with_bindings,
            };
            v1.delete_endpoint(request).await?;
        } else {
            let update = v1::UpdateEndpointRequest {
                address: address.clone(),
                leave_vnis: args.vni.clone(),
                ..Default::default()
            };
            v1.update_endpoint(update).await?;
        }
        session.done("endpoint", address);
    }
    Ok(())
}

/// `name: value` lines, every network of a host among them.
async fn show(args: ShowArgs, session: &mut Session) -> Result<(), Error> {
    let v1 = session.client().await?.only_v1("host")?;
    let mut all = v1.endpoints().await?;
    // As the daemon writes them: 2001:DB8::1 and 2001:db8:0::1 are one address.
    let asked = args.addresses.iter().map(|text| {
        let parsed = text.parse::<std::net::IpAddr>();
        parsed.map_or_else(|_| text.clone(), |ip| ip.to_string())
    });
    let asked: Vec<String> = asked.collect();
    let is = |status: &v1::EndpointStatus, address: &String| {
        let endpoint = status.endpoint.as_ref();
        endpoint.is_some_and(|endpoint| endpoint.address == *address)
    };
    let missing = |address: &&String| !all.endpoints.iter().any(|status| is(status, address));
    if let Some(address) = asked.iter().find(missing) {
        return Err(Error::Refused(format!("host {address} is not known")));
    }
    all.endpoints
        .retain(|status| asked.is_empty() || asked.iter().any(|address| is(status, address)));
    if session.out.json {
        let value = json::full("ListEndpointsResponse", &all);
        return session.out.value(&value);
    }
    for (index, status) in all.endpoints.into_iter().enumerate() {
        let endpoint = status.endpoint.unwrap_or_default();
        let vnis = match endpoint.every_vni {
            true => "every".to_owned(),
            false => endpoint.vnis.iter().map(|vni| format!("{vni} ")).collect(),
        };
        let blank = if index > 0 { "\n" } else { "" };
        session.out.text(&format!(
            "{blank}address:  {}\nname:     {}\nbindings: {}\nvnis:     {}",
            endpoint.address,
            endpoint.name,
            status.bindings,
            vnis.trim_end()
        ))?;
    }
    Ok(())
}

async fn list(session: &mut Session) -> Result<(), Error> {
    let all = session.client().await?.only_v1("host")?.endpoints().await?;
    if session.out.json {
        return session
            .out
            .value(&json::full("ListEndpointsResponse", &all));
    }
    let mut table = Table::new(&["ADDRESS", "NAME", ">BINDINGS", "VNIS"]);
    for status in all.endpoints {
        let endpoint = status.endpoint.unwrap_or_default();
        let vnis = match endpoint.every_vni {
            true => "every".to_owned(),
            false => shortened(&endpoint.vnis),
        };
        table.row([
            endpoint.address,
            endpoint.name,
            status.bindings.to_string(),
            vnis,
        ]);
    }
    session.out.table(&table)
}

/// The first few; `--json` has all.
fn shortened(vnis: &[u32]) -> String {
    const SHOWN: usize = 8;
    let mut words: Vec<String> = vnis.iter().take(SHOWN).map(u32::to_string).collect();
    if vnis.len() > SHOWN {
        words.push(format!("and {} more", vnis.len() - SHOWN));
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::shortened;

    #[test]
    fn a_long_list_is_cut() {
        assert_eq!(shortened(&[]), "");
        assert_eq!(shortened(&[42, 43]), "42 43");
        let many: Vec<u32> = (1..=10).collect();
        assert_eq!(shortened(&many), "1 2 3 4 5 6 7 8 and 2 more");
    }
}
