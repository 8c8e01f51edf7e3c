//! `butterfly binding`: which machine is behind which other host.

use std::path::PathBuf;

use api::v1;
use clap::{Args, Subcommand};
use serde_json::json;

use super::config::lines;
use super::nic_options::address;
use super::nic_state::read_file;
use super::prune::refuse_too_many;
use crate::error::Error;
use crate::json;
use crate::output::Table;
use crate::session::Session;

/// `binding …`.
#[derive(Subcommand, Debug)]
pub enum BindingCommand {
    /// Say which host a machine is behind, in the place of what was said; a host that is not known
    /// becomes known
    Add(AddArgs),
    /// Delete bindings; one that is not there is deleted already
    #[command(after_help = "Example:\n  butterfly binding del --vni 42 52:54:00:12:34:02")]
    Del(Macs),
    /// List bindings
    List(ListArgs),
    /// Show bindings
    #[command(after_help = "Example:\n  butterfly binding show --vni 42 52:54:00:12:34:02")]
    Show(Macs),
    /// Make the bindings exactly those of a file, in one step
    Set(SetArgs),
}

/// `binding add`.
#[derive(Args, Debug)]
#[command(after_help = "\
ARP and neighbour discovery for the addresses are answered on this host.

Example:
  butterfly binding add --vni 42 --mac 52:54:00:12:34:02 --ip 42.0.0.2 --host 192.168.0.2")]
pub struct AddArgs {
    /// The virtual network
    #[arg(long)]
    vni: u32,
    /// The machine's MAC address
    #[arg(long)]
    mac: String,
    /// The host's address
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    host: String,
    /// The machine's IPv4 and IPv6 addresses
    #[arg(long, num_args = 1.., value_parser = address)]
    ip: Vec<String>,
}

/// MACs of a network.
#[derive(Args, Debug)]
pub struct Macs {
    /// The virtual network
    #[arg(long)]
    vni: u32,
    /// MAC addresses of machines
    #[arg(required = true, value_name = "MAC")]
    macs: Vec<String>,
}

/// `binding list`.
#[derive(Args, Debug)]
#[command(after_help = "\
With --json it is what `binding set` reads, with the network that --vni says; but with --host it is
not, since a host's bindings cannot be replaced alone.

Examples:
  butterfly binding list --host 192.168.0.2
  butterfly binding list --vni 42 --json > bindings.json")]
pub struct ListArgs {
    /// Those of this virtual network [default: of all]
    #[arg(long)]
    vni: Option<u32>,
    /// Those behind this host [default: behind any]
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    host: Option<String>,
}

/// `binding set`.
#[derive(Args, Debug)]
#[command(after_help = "\
The file holds a butterfly.v1.SetBindingsRequest, in JSON or in protobuf text format, as
`binding list --json` prints it. Where it says a network, or --vni does, the bindings of that one
are replaced, and else all. What is not in it is deleted; hosts stay. What changes is printed as by
`apply`. A file that would delete more than ten bindings and a tenth of them, or an empty one that
would delete any, is refused without --prune: it is most likely not the file that was meant.

Examples:
  butterfly binding set bindings.json
  butterfly binding set bindings.json --vni 42 --dry-run")]
pub struct SetArgs {
    /// The bindings; - is standard input
    file: PathBuf,
    /// Replace those of this virtual network alone [default: what the file says]
    #[arg(long)]
    vni: Option<u32>,
    /// Check and compare only
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Delete as much as the file says
    #[arg(long, visible_alias = "yes")]
    prune: bool,
}

impl BindingCommand {
    /// See [`Command::only_prints`](super::Command::only_prints).
    pub fn only_prints(&self) -> bool {
        matches!(self, BindingCommand::List(_) | BindingCommand::Show(_))
    }

    /// Runs the chosen `binding` command.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        match self {
            BindingCommand::Add(args) => {
                let binding = v1::Binding {
                    vni: args.vni,
                    mac: args.mac,
                    addresses: args.ip,
                    endpoint: args.host,
                };
                let key = json!({ "vni": binding.vni, "mac": binding.mac });
                let v1 = session.client().await?.only_v1("binding")?;
                v1.put_bindings(vec![binding]).await?;
                session.done("binding", key);
                Ok(())
            }
            BindingCommand::Del(args) => {
                let v1 = session.client().await?.only_v1("binding")?;
                let keys = keys(args);
                v1.delete_bindings(keys.clone()).await?;
                for key in keys {
                    session.done("binding", json!({ "vni": key.vni, "mac": key.mac }));
                }
                Ok(())
            }
            BindingCommand::List(args) => list(args, session).await,
            BindingCommand::Show(args) => show(args, session).await,
            BindingCommand::Set(args) => set(args, session).await,
        }
    }
}

fn keys(args: Macs) -> Vec<v1::BindingKey> {
    let vni = args.vni;
    args.macs
        .into_iter()
        .map(|mac| v1::BindingKey { vni, mac })
        .collect()
}

async fn list(args: ListArgs, session: &mut Session) -> Result<(), Error> {
    let request = v1::ListBindingsRequest {
        vni: args.vni,
        endpoint: args.host.clone().unwrap_or_default(),
    };
    let v1 = session.client().await?.only_v1("binding")?;
    let bindings = v1.bindings(request).await?;
    if session.out.json {
        let set = v1::SetBindingsRequest {
            bindings,
            vni: args.vni,
            dry_run: false,
        };
        let mut value = json::full("SetBindingsRequest", &set);
        // No field of the message: `set` does not take a host's bindings for all.
        if let Some(host) = args.host {
            value["endpoint"] = json!(host);
        }
        return session.out.value(&value);
    }
    print(bindings, session)
}

async fn show(args: Macs, session: &mut Session) -> Result<(), Error> {
    let v1 = session.client().await?.only_v1("binding")?;
    let mut bindings = Vec::new();
    for key in keys(args) {
        bindings.push(v1.binding(key).await?);
    }
    if session.out.json {
        let all = bindings
            .iter()
            .map(|binding| json::full("Binding", binding));
        return session.out.value(&all.collect());
    }
    print(bindings, session)
}

fn print(bindings: Vec<v1::Binding>, session: &mut Session) -> Result<(), Error> {
    let mut table = Table::new(&[">VNI", "MAC", "HOST", "IP"]);
    for binding in bindings {
        let addresses = binding.addresses.join(" ");
        table.row([
            binding.vni.to_string(),
            binding.mac,
            binding.endpoint,
            addresses,
        ]);
    }
    session.out.table(&table)
}

async fn set(args: SetArgs, session: &mut Session) -> Result<(), Error> {
    let file = args.file.display().to_string();
    let text = String::from_utf8(read_file(&args.file)?);
    let text = text.map_err(|_| Error::Usage(format!("{file} is no text")))?;
    let mut request: v1::SetBindingsRequest = json::parse("SetBindingsRequest", &text)
        .map_err(|error| Error::Usage(format!("{file} holds no whole set of bindings: {error}")))?;
    // What the line says wins over what the file says.
    request.vni = args.vni.or(request.vni);
    request.dry_run |= args.dry_run;
    let dry_run = request.dry_run;
    let v1 = session.client().await?.only_v1("binding")?;
    if !dry_run && !args.prune {
        let trial = v1::SetBindingsRequest {
            dry_run: true,
            ..request.clone()
        };
        // Not all that are deleted are listed, but all are counted.
        let deleted = v1.set_bindings(trial).await?.deleted as usize;
        if deleted > 0 {
            let replaced = v1::ListBindingsRequest {
                vni: request.vni,
                ..Default::default()
            };
            let now = v1.bindings(replaced).await?.len();
            let is_empty = request.bindings.is_empty();
            refuse_too_many(&file, "bindings", deleted, now, is_empty)?;
        }
    }
    let done = v1.set_bindings(request).await?;
    if session.out.json {
        let mut value = json::full("BindingsResponse", &done);
        value["dry_run"] = json!(dry_run);
        return session.out.value(&value);
    }
    done.changes
        .iter()
        .try_for_each(|change| session.out.text(&lines(change)))?;
    let counted = done.created + done.updated + done.deleted;
    let listed = done
        .changes
        .iter()
        .filter(|change| is_binding(change))
        .count() as u64;
    match counted - listed.min(counted) {
        0 => Ok(()),
        more => session.out.text(&format!("and {more} bindings more")),
    }
}

fn is_binding(change: &v1::Change) -> bool {
    matches!(change.subject, Some(v1::change::Subject::Binding(_)))
}
