//! `butterfly drops` and `flows`: what the data plane counted, and the connections it knows.

use api::v1;
use clap::Args;

use crate::error::Error;
use crate::json;
use crate::output::Table;
use crate::session::Session;
use crate::words::protocol_name;

/// `drops`.
#[derive(Args, Debug)]
#[command(after_help = "docs/drops.md explains the reasons.\n\nExample:\n  butterfly drops vnic_1")]
pub struct DropsArgs {
    /// Id of a NIC [default: all, and the totals under the name *]
    nic: Option<String>,
    /// Reasons that never happened, too
    #[arg(short, long)]
    all: bool,
}

/// `flows`.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  butterfly flows vnic_1")]
pub struct FlowsArgs {
    /// Id of a NIC [default: all]
    nic: Option<String>,
}

impl DropsArgs {
    /// Does it.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        let drops = session
            .client()
            .await?
            .drops(&self.nic.unwrap_or_default(), self.all)
            .await?;
        if session.out.json {
            return session.out.value(&json::full("ListDropsResponse", &drops));
        }
        let mut table = Table::new(&["NIC", "DIR", ">FRAMES", "REASON", "MEANING"]);
        for drop in drops.totals.into_iter().chain(drops.drops) {
            let nic = if drop.nic.is_empty() {
                "*".into()
            } else {
                drop.nic.clone()
            };
            let direction = direction(drop.direction());
            table.row([
                nic,
                direction.into(),
                drop.frames.to_string(),
                drop.reason,
                drop.description,
            ]);
        }
        session.out.table(&table)
    }
}

impl FlowsArgs {
    /// Prints each flow as it comes: there may be a million of them.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        let (client, out) = session.client_and_output().await?;
        let v1 = client.only_v1("flows")?;
        let mut flows = v1.flows(&self.nic.unwrap_or_default()).await?;
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
        "{nic:<16} {dir:<3} {proto:<6} {source:<21} {destination:<21} {state:<12} {age:>6} {timeout:>9} {bytes:>12} {reply:>12}"
    )
}

fn cells(flow: &v1::Flow) -> [String; 10] {
    let end = |address: &str, port: u32| match (address.contains(':'), port) {
        (_, 0) => address.to_owned(),
        (true, port) => format!("[{address}]:{port}"),
        (false, port) => format!("{address}:{port}"),
    };
    [
        flow.nic.clone(),
        direction(flow.direction()).into(),
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

fn direction(direction: v1::Direction) -> &'static str {
    match direction {
        v1::Direction::Egress => "out",
        v1::Direction::Ingress => "in",
        v1::Direction::Unspecified => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
