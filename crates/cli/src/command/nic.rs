//! `butterfly nic`: the NICs themselves. Their groups are in [`super::nic_sg`], their connections
//! in [`super::nic_state`], what they do in [`super::nic_stats`] and [`super::nic_show`].

use api::{shell, v1};
use clap::{Args, Subcommand};
use serde_json::json;

use super::nic_details;
use super::nic_how;
use super::nic_options::{NicAdd, NicUpdate};
use super::nic_sg::NicSgCommand;
use super::nic_show::ShowArgs;
use super::nic_state::{ExportArgs, ImportArgs};
use super::nic_stats::StatsArgs;
use crate::error::Error;
use crate::output::{Table, say};
use crate::session::Session;
use crate::words::state_name;

/// `nic …`.
#[derive(Subcommand, Debug)]
pub enum NicCommand {
    /// Create a NIC; prints its socket's path
    Add(Box<NicAdd>),
    /// Delete NICs; one that is not there is deleted already
    #[command(after_help = "Example:\n  butterfly nic del vnic_1 vnic_2")]
    Del(Nics),
    /// List the NICs' ids
    List(ListArgs),
    /// Show the values of NICs; `show` says more
    #[command(hide = true, after_help = "Example:\n  butterfly nic details vnic_1")]
    Details(MaybeNics),
    /// Show what NICs received and sent, in all or a second
    Stats(StatsArgs),
    /// Show all that can be seen of NICs: values, counters, drops, queues and rings
    Show(ShowArgs),
    /// Change a NIC's values
    Update(Box<NicUpdate>),
    /// A NIC's security groups
    #[command(subcommand)]
    Sg(NicSgCommand),
    /// `flows export`, as it was called before
    #[command(hide = true)]
    Export(ExportArgs),
    /// `flows import`, as it was called before
    #[command(hide = true)]
    Import(ImportArgs),
}

/// One NIC or more.
#[derive(Args, Debug)]
pub struct Nics {
    /// Ids of NICs
    #[arg(required = true, value_name = "NIC")]
    nics: Vec<String>,
}

/// NICs, or all.
#[derive(Args, Debug)]
pub struct MaybeNics {
    /// Ids of NICs [default: all]
    #[arg(value_name = "NIC")]
    nics: Vec<String>,
}

/// `nic list`.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  butterfly nic list --long")]
pub struct ListArgs {
    /// A table of NICs instead of ids
    #[arg(short, long)]
    long: bool,
    /// Those that are stored and could not be made when the daemon started, instead
    #[arg(long, conflicts_with = "long")]
    unmade: bool,
}

impl NicCommand {
    /// See [`Command::only_prints`](super::Command::only_prints).
    pub fn only_prints(&self) -> bool {
        match self {
            NicCommand::Sg(command) => command.only_prints(),
            other => matches!(
                other,
                NicCommand::List(_)
                    | NicCommand::Details(_)
                    | NicCommand::Stats(_)
                    | NicCommand::Show(_)
            ),
        }
    }

    /// Runs the chosen `nic` command.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        match self {
            NicCommand::Add(args) => add(*args, session).await,
            NicCommand::Del(args) => {
                for id in args.nics {
                    session.client().await?.delete_nic(&id).await?;
                    session.done("nic", id);
                }
                Ok(())
            }
            NicCommand::List(args) => list(args, session).await,
            NicCommand::Details(args) => nic_details::run(args.nics, session).await,
            NicCommand::Stats(args) => args.run(session).await,
            NicCommand::Show(args) => args.run(session).await,
            NicCommand::Update(args) => update(*args, session).await,
            NicCommand::Sg(command) => command.run(session).await,
            NicCommand::Export(args) => args.run(session).await,
            NicCommand::Import(args) => args.run(session).await,
        }
    }
}

async fn add(args: NicAdd, session: &mut Session) -> Result<(), Error> {
    let (replace, how) = (args.replace, args.how);
    let nic = args.nic()?;
    let id = nic.id.clone();
    let status = session.client().await?.put_nic(nic, replace).await?;
    say_missing_groups(&status);
    say_broken(&status);
    if how && !session.out.json {
        return session.out.text(nic_how::lines(&status).trim_end());
    }
    let path = status.path;
    match session.out.json {
        true => session.out.value(&json!({ "id": id, "path": path })),
        false => session.out.text(&path),
    }
}

async fn list(args: ListArgs, session: &mut Session) -> Result<(), Error> {
    if args.unmade {
        let client = session.client().await?.only_v1("nic list --unmade")?;
        let nics = client.unmade_nics().await?.into_iter();
        return session
            .out
            .names(&nics.map(|nic| nic.id).collect::<Vec<_>>());
    }
    if !args.long {
        let ids = session.client().await?.nic_ids().await?;
        return session.out.names(&ids);
    }
    let nics = session.client().await?.nics().await?;
    if session.out.json {
        return nic_details::print(&nics, &mut session.out);
    }
    let mut table = Table::new(&["ID", ">VNI", "MAC", "STATE", "ADDRESSES", "GROUPS", "PATH"]);
    for status in nics {
        let state = state_name(status.state());
        let nic = status.nic.unwrap_or_default();
        let (addresses, groups) = (nic.addresses.join(","), nic.security_groups.join(","));
        table.row([
            nic.id,
            nic.vni.to_string(),
            nic.mac,
            state.into(),
            addresses,
            groups,
            status.path,
        ]);
    }
    session.out.table(&table)
}

/// Timeouts are replaced all three together by the API, one by one on the command line.
async fn update(args: NicUpdate, session: &mut Session) -> Result<(), Error> {
    let mut request = args.request()?;
    let client = session.client().await?;
    if let Some(new) = request.timeouts.as_mut().filter(|_| client.is_v1()) {
        let old = client
            .nic(&request.id)
            .await?
            .nic
            .and_then(|nic| nic.timeouts)
            .unwrap_or_default();
        for (new, old) in [
            (&mut new.tcp_established_secs, old.tcp_established_secs),
            (&mut new.udp_secs, old.udp_secs),
            (&mut new.udp_stream_secs, old.udp_stream_secs),
        ] {
            if *new == 0 {
                *new = old;
            }
        }
    }
    let id = request.id.clone();
    let status = client.update_nic(request).await?;
    say_missing_groups(&status);
    say_broken(&status);
    session.done("nic", id);
    Ok(())
}

/// Says on stderr why a NIC of which all is known at once does not work.
fn say_broken(status: &v1::NicStatus) {
    if status.state() == v1::PortState::Broken {
        let id = status.nic.as_ref().map_or("", |nic| &nic.id);
        let why = &status.detail;
        say(&format!("butterfly: NIC {id} is broken: {why}\n"));
    }
}

/// Says on stderr which groups of a NIC are not there, since nothing passes by them.
pub fn say_missing_groups(status: &v1::NicStatus) {
    let id = status.nic.as_ref().map_or("", |nic| &nic.id);
    for group in &status.missing_security_groups {
        say(&format!(
            "butterfly: NIC {id} is in group {group}, which is not there: nothing comes in by its \
             rules, and nothing goes out that needs one, until `butterfly sg add {}`\n",
            shell::word(group)
        ));
    }
}
