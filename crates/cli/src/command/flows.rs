//! `butterfly drops` and `flows`: what the data plane counted, and the connections it knows.

use std::collections::HashMap;
use std::time::Duration;

use api::v1;
use clap::{Args, Subcommand};

use super::flows_select::{KillArgs, Which, watch};
use super::nic_state::{ExportArgs, ImportArgs};
use super::repeat::{Repeat, grown, rate};
use crate::client::Client;
use crate::error::Error;
use crate::json;
use crate::output::Table;
use crate::session::Session;
use crate::words::{direction_name, protocol_name};

/// `drops`.
#[derive(Args, Debug)]
#[command(after_help = "\
docs/drops.md explains the reasons.

Examples:
  butterfly drops vnic_1
  butterfly drops --watch")]
pub struct DropsArgs {
    /// Id of a NIC [default: all, and the totals under the name *]
    nic: Option<String>,
    /// Reasons that never happened, too
    #[arg(short, long)]
    all: bool,
    #[command(flatten)]
    repeat: Repeat,
}

/// `flows`, alone or with a word.
#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
With the id of a NIC alone it lists, as before; `flows list` takes every id.

Example:
  butterfly flows list vnic_1"
)]
pub struct FlowsCommand {
    #[command(subcommand)]
    word: Option<FlowsWord>,
    #[command(flatten)]
    alone: FlowsArgs,
}

#[derive(Subcommand, Debug)]
enum FlowsWord {
    /// List tracked connections, as the noun alone does
    #[command(visible_alias = "show")]
    List(FlowsArgs),
    /// Forget connections, one or all that match
    Kill(KillArgs),
    /// Write a NIC's connections and counters, for the host its machine moves to
    Export(ExportArgs),
    /// Take up what `flows export` wrote elsewhere
    Import(ImportArgs),
}

impl FlowsCommand {
    /// See [`Command::only_prints`](super::Command::only_prints).
    pub fn only_prints(&self) -> bool {
        matches!(self.word, None | Some(FlowsWord::List(_)))
    }

    /// Runs the chosen `flows` command.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        match self.word {
            Some(FlowsWord::List(args)) => args.run(session).await,
            Some(FlowsWord::Kill(args)) => args.run(session).await,
            Some(FlowsWord::Export(args)) => args.run(session).await,
            Some(FlowsWord::Import(args)) => args.run(session).await,
            None => self.alone.run(session).await,
        }
    }
}

/// `flows list`.
#[derive(Args, Debug)]
#[command(after_help = "\
All that is given has to hold.

Examples:
  butterfly flows list vnic_1
  butterfly flows list --group web --protocol tcp --port 443 --address 10.0.0.0/24
  butterfly flows list --state syn_sent --watch")]
pub struct FlowsArgs {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    repeat: Repeat,
}

impl DropsArgs {
    /// Prints what was dropped and why, once or every second.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        let nic = self.nic.unwrap_or_default();
        let json = |drops: &v1::ListDropsResponse| json::full("ListDropsResponse", drops);
        if self.repeat.is_on() {
            // Every reason each time: one that begins has something to be compared with.
            let sample = async |client: &mut Client| client.drops(&nic, true).await;
            let text = |before: &_, now: &_, time| moved(before, now, time, self.all);
            return self.repeat.run(session, sample, json, text).await;
        }
        let drops = session.client().await?.drops(&nic, self.all).await?;
        match session.out.json {
            true => session.out.value(&json(&drops)),
            false => {
                let mut table = drops_table(">FRAMES");
                for drop in drops.totals.iter().chain(&drops.drops) {
                    table.row(drop_row(drop, drop.frames.to_string()));
                }
                session.out.table(&table)
            }
        }
    }
}

fn drops_table(counts: &'static str) -> Table {
    Table::new(&["NIC", "DIR", counts, "REASON", "MEANING"])
}

fn drop_row(drop: &v1::Drop, count: String) -> [String; 5] {
    let nic = if drop.nic.is_empty() { "*" } else { &drop.nic };
    [
        nic.into(),
        direction_name(drop.direction()).into(),
        count,
        drop.reason.clone(),
        drop.description.clone(),
    ]
}

/// What is being dropped now. A NIC's counters are found by its name, since NICs come and go.
fn moved(
    before: &v1::ListDropsResponse,
    now: &v1::ListDropsResponse,
    time: Duration,
    all: bool,
) -> String {
    let key = |drop: &v1::Drop| (drop.nic.clone(), drop.direction, drop.reason.clone());
    let old: HashMap<_, u64> = before
        .drops
        .iter()
        .map(|drop| (key(drop), drop.frames))
        .collect();
    let mut sums: HashMap<_, u64> = HashMap::new();
    let mut rows = Vec::new();
    for drop in &now.drops {
        let frames = grown(old.get(&key(drop)).copied().unwrap_or(0), drop.frames);
        *sums.entry((drop.direction, &drop.reason)).or_default() += frames;
        rows.push((drop, frames));
    }
    let totals = now
        .totals
        .iter()
        .map(|total| (total, sums.get(&(total.direction, &total.reason))));
    let mut table = drops_table(">FRAMES/s");
    for (drop, frames) in totals
        .map(|(total, sum)| (total, sum.copied().unwrap_or(0)))
        .chain(rows)
    {
        if frames > 0 || all {
            table.row(drop_row(drop, rate(frames, time)));
        }
    }
    match table.render() {
        empty if empty.is_empty() => "nothing was dropped\n".into(),
        rows => rows,
    }
}

impl FlowsArgs {
    /// Prints each flow as it comes: there may be a million of them.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        if self.repeat.is_on() {
            return watch(&self.which, &self.repeat, session).await;
        }
        let (client, out) = session.client_and_output().await?;
        let v1 = client.only_v1("flows")?;
        let mut flows = v1.flows(self.which.list()).await?;
        let mut previous: Option<String> = None;
        while let Some(flow) = v1.next_in_time(&mut flows).await? {
            let first = previous.is_none();
            if !out.json {
                if first {
                    out.text(&row(HEADINGS.map(Into::into)))?;
                }
                out.text(&row(cells(&flow)))?;
                previous = Some(String::new());
                continue;
            }
            // One JSON array, a flow a line: the comma comes once there is a next one.
            match previous.replace(json::full("Flow", &flow).to_string()) {
                None => out.text("[")?,
                Some(previous) => out.text(&format!("  {previous},"))?,
            }
        }
        match previous {
            _ if !out.json => Ok(()),
            None => out.text("[]"),
            Some(last) => out.text(&format!("  {last}\n]")),
        }
    }
}

const HEADINGS: [&str; 10] = [
    "NIC",
    "DIR",
    "PROTO",
    "SOURCE",
    "DESTINATION",
    "STATE",
    "AGE s",
    "TIMEOUT s",
    "BYTES",
    "REPLY BYTES",
];

/// Columns of a fixed width, because the rows are not known before they are printed.
fn row(cells: [String; 10]) -> String {
    let [
        nic,
        dir,
        proto,
        source,
        destination,
        state,
        age,
        timeout,
        bytes,
        reply,
    ] = cells;
    format!(
        "{nic:<16} {dir:<3} {proto:<6} {source:<21} {destination:<21} {state:<12} {age:>6} \
         {timeout:>9} {bytes:>12} {reply:>12}"
    )
}

/// An address and its port, if it has one.
pub fn end(address: &str, port: u32) -> String {
    match (address.contains(':'), port) {
        (_, 0) => address.to_owned(),
        (true, port) => format!("[{address}]:{port}"),
        (false, port) => format!("{address}:{port}"),
    }
}

fn cells(flow: &v1::Flow) -> [String; 10] {
    [
        flow.nic.clone(),
        direction_name(flow.direction()).into(),
        protocol_name(Some(flow.protocol)),
        end(&flow.source, flow.source_port),
        end(&flow.destination, flow.destination_port),
        flow.state.clone(),
        flow.age_secs.to_string(),
        flow.timeout_secs.to_string(),
        flow.original_bytes.to_string(),
        flow.reply_bytes.to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_watched_with_what_begins_and_the_sum_of_all_nics() {
        let drop = |nic: &str, reason: &str, frames| v1::Drop {
            nic: nic.into(),
            direction: v1::Direction::Ingress.into(),
            reason: reason.into(),
            description: "Why.".into(),
            frames,
        };
        let answer = |a, b, hairpin| v1::ListDropsResponse {
            totals: vec![drop("", "ring_full", a + b), drop("", "hairpin", hairpin)],
            drops: vec![
                drop("a", "ring_full", a),
                drop("b", "ring_full", b),
                drop("b", "hairpin", hairpin),
            ],
        };
        let (before, now) = (answer(10, 0, 7), answer(20, 4, 7));
        let expected = "\
NIC  DIR  FRAMES/s  REASON     MEANING
*    in          7  ring_full  Why.
a    in          5  ring_full  Why.
b    in          2  ring_full  Why.
";
        let two = Duration::from_secs(2);
        assert_eq!(moved(&before, &now, two, false), expected);
        assert_eq!(moved(&before, &now, two, true).lines().count(), 1 + 5);
        assert_eq!(moved(&now, &now, two, false), "nothing was dropped\n");
    }

    #[test]
    fn a_flow_is_an_aligned_row() {
        let flow = v1::Flow {
            nic: "vnic_1".into(),
            direction: v1::Direction::Egress.into(),
            protocol: 6,
            source: "42.0.0.1".into(),
            destination: "fd00::2".into(),
            source_port: 40000,
            destination_port: 80,
            state: "established".into(),
            age_secs: 3,
            timeout_secs: 432_000,
            original_bytes: 120,
            reply_bytes: 9000,
            ..Default::default()
        };
        let expected = "\
NIC              DIR PROTO  SOURCE                DESTINATION           STATE         AGE s TIMEOUT s        BYTES  REPLY BYTES
vnic_1           out tcp    42.0.0.1:40000        [fd00::2]:80          established       3    432000          120         9000";
        assert_eq!(
            format!("{}\n{}", row(HEADINGS.map(Into::into)), row(cells(&flow))),
            expected
        );
    }
}
