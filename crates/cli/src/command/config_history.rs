//! `butterfly config`: what the configuration is, was, and is to be again.

use clap::{Args, Subcommand};
use serde_json::json;

use super::config;
use super::prune::refuse_too_much;
use crate::error::Error;
use crate::json;
use crate::output::Table;
use crate::session::Session;

/// `config`.
#[derive(Args, Debug)]
pub struct ConfigArgs {
    #[command(subcommand)]
    command: Option<ConfigCommand>,
}

/// What is asked of the history.
#[derive(Subcommand, Debug)]
pub enum ConfigCommand {
    /// Print the whole configuration as JSON, for `apply`: `config` alone
    #[command(after_help = "Example:\n  butterfly config get > host.json")]
    Get,
    /// List the changes that are kept, newest first: number, time (UTC), objects, author (API v1)
    #[command(after_help = "\
The daemon keeps them in its store: --store and --store-revisions of butterflyd.

Example:
  butterfly config history -n 10")]
    History(HistoryArgs),
    /// Show what differs between two revisions, or between one and now (API v1)
    #[command(after_help = "\
Examples:
  butterfly config diff 12         what has changed since revision 12
  butterfly config diff 12..15     what 13, 14 and 15 changed
  butterfly config diff            what the newest revision changed")]
    Diff(DiffArgs),
    /// Make the configuration what it was after a revision (API v1)
    #[command(after_help = "\
It is a change like any other, and a revision of its own: the way forward again is another
rollback. Interfaces that options of the daemon name stay.

Example:
  butterfly config rollback 12 --dry-run")]
    Rollback(RollbackArgs),
}

/// `config history`.
#[derive(Args, Debug)]
pub struct HistoryArgs {
    /// At most so many
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
}

/// `config diff`.
#[derive(Args, Debug)]
pub struct DiffArgs {
    /// REV or REV..REV; 0 is the empty configuration
    #[arg(value_name = "REV", value_parser = range)]
    range: Option<(u64, Option<u64>)>,
}

/// `config rollback`.
#[derive(Args, Debug)]
pub struct RollbackArgs {
    /// The revision; 0 is the empty configuration
    #[arg(value_name = "REV")]
    revision: u64,
    /// Compare only
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Delete as much as going back does
    #[arg(long, visible_alias = "yes")]
    prune: bool,
}

fn range(text: &str) -> Result<(u64, Option<u64>), String> {
    let number = |text: &str| {
        let parsed: Result<u64, _> = text.parse();
        parsed.map_err(|_| format!("'{text}' is no revision's number"))
    };
    match text.split_once("..") {
        None => Ok((number(text)?, None)),
        Some((from, to)) => match number(to)? {
            // In a request it stands for now.
            0 => Err("nothing comes before revision 0".to_owned()),
            to => Ok((number(from)?, Some(to))),
        },
    }
}

impl ConfigArgs {
    /// See [`Command::only_prints`](super::Command::only_prints).
    pub fn only_prints(&self) -> bool {
        !matches!(self.command, Some(ConfigCommand::Rollback(_)))
    }

    /// Prints the configuration, or what is asked of its history.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        match self.command {
            None | Some(ConfigCommand::Get) => config::print(session).await,
            Some(ConfigCommand::History(args)) => args.run(session).await,
            Some(ConfigCommand::Diff(args)) => args.run(session).await,
            Some(ConfigCommand::Rollback(args)) => args.run(session).await,
        }
    }
}

impl HistoryArgs {
    async fn run(self, session: &mut Session) -> Result<(), Error> {
        let client = session.client().await?.only_v1("config history")?;
        let revisions = client.revisions(self.limit.unwrap_or(0)).await?;
        if session.out.json {
            let revisions: Vec<_> = revisions
                .iter()
                .map(|revision| json::full("Revision", revision))
                .collect();
            return session.out.value(&json!({ "revisions": revisions }));
        }
        let mut table = Table::new(&[">revision", "time", ">objects", "author"]);
        for revision in revisions {
            table.row([
                revision.number.to_string(),
                utc(revision.time_unix_secs),
                revision.objects.to_string(),
                revision.author,
            ]);
        }
        session.out.table(&table)
    }
}

impl DiffArgs {
    async fn run(self, session: &mut Session) -> Result<(), Error> {
        let client = session.client().await?.only_v1("config diff")?;
        let (from, to) = match self.range {
            Some(range) => range,
            None => {
                let newest = client.revisions(1).await?;
                let Some(newest) = newest.first() else {
                    return config::show_changes(session, &[]);
                };
                (newest.number - 1, Some(newest.number))
            }
        };
        let changes = client.diff_revisions(from, to.unwrap_or(0)).await?;
        config::show_changes(session, &changes)
    }
}

impl RollbackArgs {
    async fn run(self, session: &mut Session) -> Result<(), Error> {
        let client = session.client().await?.only_v1("config rollback")?;
        if !self.dry_run && !self.prune {
            let planned = client.roll_back(self.revision, true).await?;
            let what = format!("going back to revision {}", self.revision);
            // Revision 0 has nothing.
            refuse_too_much(&what, &planned, self.revision == 0)?;
        }
        let applied = client.roll_back(self.revision, self.dry_run).await?;
        config::show(session, &applied, self.dry_run)
    }
}

/// A time as ISO 8601 writes it.
fn utc(unix_secs: u64) -> String {
    let (days, secs) = (unix_secs / 86_400, unix_secs % 86_400);
    // Years that begin in March end with the day that may be missing; 400 of them repeat.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let march = (5 * day + 2) / 153;
    let (month, day) = ((march + 2) % 12 + 1, day - (153 * march + 2) / 5 + 1);
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (secs / 3_600, secs / 60 % 60, secs % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (secs, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(secs), text);
        }
    }

    #[test]
    fn revisions_are_one_or_two_numbers() {
        assert_eq!(range("12"), Ok((12, None)));
        assert_eq!(range("0..15"), Ok((0, Some(15))));
        for text in ["", "..", "3..", "..3", "a", "1..0", "1...2", "-1"] {
            assert!(range(text).is_err(), "{text}");
        }
    }
}
