//! `butterfly sg`: the groups themselves. Their rules are in [`super::sg_rule`], their members in
//! [`super::sg_member`].

use api::v1;
use clap::{Args, Subcommand, ValueEnum};

use super::sg_member::MemberCommand;
use super::sg_rule::RuleCommand;
use crate::error::Error;
use crate::json;
use crate::output::Output;
use crate::session::Session;
use crate::words::rule_words;

/// `sg …`.
#[derive(Subcommand, Debug)]
pub enum SgCommand {
    /// Create groups; one that is there already keeps its rules and members
    Add(AddArgs),
    /// Delete groups; one that is not there is deleted already. NICs and rules may go on naming
    /// them
    #[command(after_help = "Example:\n  butterfly sg del sg-web")]
    Del(Groups),
    /// List the groups' ids
    #[command(after_help = "Example:\n  butterfly sg list")]
    List,
    /// Show groups, their members and rules
    #[command(
        visible_alias = "details",
        after_help = "Example:\n  butterfly sg show sg-web"
    )]
    Show(MaybeGroups),
    /// What a group allows
    #[command(subcommand)]
    Rule(RuleCommand),
    /// The addresses a group stands for in other groups' rules, beside those of the NICs in it
    #[command(subcommand)]
    Member(MemberCommand),
}

/// `sg add`.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  butterfly sg add sg-web\n  butterfly sg add sg-web --removal drain"
)]
pub struct AddArgs {
    /// Ids of groups
    #[arg(required = true, value_name = "SG")]
    groups: Vec<String>,
    /// Empty the groups that are there already
    #[arg(long)]
    replace: bool,
    /// API v1: what becomes of connections when the last rule that allowed them goes [default: cut]
    #[arg(long)]
    removal: Option<Removal>,
    /// API v1: TCP connections may be taken up in their middle
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
        value_name = "true|false")]
    allow_midstream: Option<bool>,
    /// API v1: TCP in the middle of a connection that is not known is dropped, and its sender is
    /// not told by a reset
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
        value_name = "true|false")]
    silent_midstream: Option<bool>,
}

/// What becomes of connections that no rule allows any more.
#[derive(ValueEnum, Debug, Clone, Copy)]
enum Removal {
    /// They stop at once
    Cut,
    /// They live until they close or time out
    Drain,
}

/// One group or more.
#[derive(Args, Debug)]
pub struct Groups {
    /// Ids of groups
    #[arg(required = true, value_name = "SG")]
    groups: Vec<String>,
}

/// Groups, or all.
#[derive(Args, Debug)]
pub struct MaybeGroups {
    /// Ids of groups [default: all]
    #[arg(value_name = "SG")]
    groups: Vec<String>,
}

impl SgCommand {
    /// See [`Command::only_prints`](super::Command::only_prints).
    pub fn only_prints(&self) -> bool {
        match self {
            SgCommand::Rule(command) => command.only_prints(),
            SgCommand::Member(command) => command.only_prints(),
            other => matches!(other, SgCommand::List | SgCommand::Show(_)),
        }
    }

    /// Runs the chosen `sg` command.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        match self {
            SgCommand::Add(args) => add(args, session).await,
            SgCommand::Del(args) => {
                for id in args.groups {
                    session.client().await?.delete_group(&id).await?;
                    session.done("group", id);
                }
                Ok(())
            }
            SgCommand::List => {
                let ids = session.client().await?.group_ids().await?;
                session.out.names(&ids)
            }
            SgCommand::Show(args) => show(args, session).await,
            SgCommand::Rule(command) => command.run(session).await,
            SgCommand::Member(command) => command.run(session).await,
        }
    }
}

/// A group that is there keeps what it has, unless told otherwise: a script that runs twice must
/// not cut the connections that its own rules allowed.
async fn add(args: AddArgs, session: &mut Session) -> Result<(), Error> {
    let removal = args.removal.map(|removal| match removal {
        Removal::Cut => v1::Removal::Cut,
        Removal::Drain => v1::Removal::Drain,
    });
    for id in args.groups {
        let client = session.client().await?;
        if args.replace {
            let group = v1::Group {
                id: id.clone(),
                removal: removal.unwrap_or_default().into(),
                allow_midstream: args.allow_midstream.unwrap_or_default(),
                silent_midstream: args.silent_midstream.unwrap_or_default(),
                ..Default::default()
            };
            client.put_group(group).await?;
        } else {
            let update = v1::UpdateGroupRequest {
                id: id.clone(),
                removal: removal.map(Into::into),
                allow_midstream: args.allow_midstream,
                silent_midstream: args.silent_midstream,
            };
            client.update_group(update).await?;
        }
        session.done("group", id);
    }
    Ok(())
}

async fn show(args: MaybeGroups, session: &mut Session) -> Result<(), Error> {
    let client = session.client().await?;
    let groups = match args.groups.is_empty() {
        true => client.groups().await?,
        false => {
            let mut groups = Vec::new();
            for id in &args.groups {
                groups.push(client.group(id).await?);
            }
            groups
        }
    };
    if session.out.json {
        return session.out.value(
            &groups
                .iter()
                .map(|group| json::full("Group", group))
                .collect(),
        );
    }
    for (index, group) in groups.iter().enumerate() {
        if index > 0 {
            session.out.text("\n")?;
        }
        print(group, &mut session.out)?;
    }
    Ok(())
}

/// `name: value` lines; what has its default and is of API v1 alone is left out.
fn print(group: &v1::Group, out: &mut Output) -> Result<(), Error> {
    let mut lines = vec![("id", group.id.clone())];
    lines.extend(
        group
            .members
            .iter()
            .map(|member| ("member", member.clone())),
    );
    lines.extend(
        group
            .rules
            .iter()
            .map(|rule| ("rule", rule_words(rule).join(" "))),
    );
    if group.removal() == v1::Removal::Drain {
        lines.push(("removal", "drain".into()));
    }
    if group.allow_midstream {
        lines.push(("allow-midstream", "on".into()));
    }
    if group.silent_midstream {
        lines.push(("silent-midstream", "on".into()));
    }
    lines
        .iter()
        .try_for_each(|(name, value)| out.text(&format!("{:<19} {value}", format!("{name}:"))))
}
