//! `butterfly nic stats`: what NICs received and sent, since they were made or a second.

use std::time::Duration;

use api::v1;
use clap::Args;
use serde_json::{Value, json};

use super::repeat::{Repeat, grown, megabits, rate};
use crate::client::Client;
use crate::error::Error;
use crate::json;
use crate::output::Table;
use crate::session::Session;

/// `nic stats`.
#[derive(Args, Debug)]
#[command(after_help = "\
Bytes are those of Ethernet frames; in is what entered the guest. API v0 knows bytes alone.
`butterfly drops` says why frames were dropped. OUT KERNEL: frames of OUT FRAMES that the kernel
has forwarded itself, to containers and other hosts. Counting a NIC's connections (FLOWS) walks
the daemon's whole table of them; --watch leaves them out and costs the workers nothing.

Examples:
  butterfly nic stats vnic_1
  butterfly nic stats --watch
  butterfly nic stats vnic_1 --watch=0.5 --count 10")]
pub struct StatsArgs {
    /// Ids of NICs [default: all]
    #[arg(value_name = "NIC")]
    nics: Vec<String>,
    #[command(flatten)]
    repeat: Repeat,
}

impl StatsArgs {
    /// Prints the NICs' counters, once or every second.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        let all = session.client().await?.is_v1();
        if self.repeat.is_on() {
            let sample = async |client: &mut Client| client.nics_stats(&self.nics).await;
            let json = |sample: &v1::ListNicStatsResponse| counters(sample, all);
            let text = |before: &_, now: &_, time| moved(before, now, time, all);
            return self.repeat.run(session, sample, json, text).await;
        }
        let client = session.client().await?;
        let ids = match self.nics.is_empty() {
            true => client.nic_ids().await?,
            false => self.nics,
        };
        let mut nics = Vec::new();
        for id in &ids {
            nics.push(client.nic_stats(id).await?);
        }
        match session.out.json {
            true => session
                .out
                .value(&nics.iter().map(|stats| value(stats, all)).collect()),
            false => session.out.text(&totals(nics, all)),
        }
    }
}

/// Over API v0 only what it knows: a zero would be a lie.
fn value(stats: &v1::NicStats, all: bool) -> Value {
    match all {
        true => json::full("NicStats", stats),
        false => {
            json!({ "id": stats.id, "ingress_bytes": stats.ingress_bytes,
                "egress_bytes": stats.egress_bytes })
        }
    }
}

fn counters(sample: &v1::ListNicStatsResponse, all: bool) -> Value {
    match all {
        true => json::full("ListNicStatsResponse", sample),
        false => {
            json!({ "nics": sample.nics.iter()
                .map(|stats| value(stats, false)).collect::<Vec<_>>() })
        }
    }
}

fn totals(nics: Vec<v1::NicStats>, all: bool) -> String {
    let mut table = Table::new(&[
        "NIC",
        ">IN BYTES",
        ">OUT BYTES",
        ">IN FRAMES",
        ">OUT FRAMES",
        ">IN DROPS",
        ">OUT DROPS",
        ">FLOWS",
        ">OUT WAITS",
        ">OUT KERNEL",
    ]);
    let known = |count: u64| {
        if all {
            count.to_string()
        } else {
            String::new()
        }
    };
    for stats in nics {
        table.row([
            stats.id,
            stats.ingress_bytes.to_string(),
            stats.egress_bytes.to_string(),
            known(stats.ingress_frames),
            known(stats.egress_frames),
            known(stats.ingress_drops),
            known(stats.egress_drops),
            known(stats.flows),
            known(stats.egress_waits),
            known(stats.egress_kernel_frames),
        ]);
    }
    table.render()
}

/// By the daemon's own clock where it tells the time.
fn moved(
    before: &v1::ListNicStatsResponse,
    now: &v1::ListNicStatsResponse,
    time: Duration,
    all: bool,
) -> String {
    let time = match grown(before.time_ns, now.time_ns) {
        0 => time,
        nanos => Duration::from_nanos(nanos),
    };
    let mut table = Table::new(&[
        "NIC",
        ">IN Mbit/s",
        ">OUT Mbit/s",
        ">IN FRAMES/s",
        ">OUT FRAMES/s",
        ">IN DROPS/s",
        ">OUT DROPS/s",
        ">OUT KERNEL/s",
    ]);
    for stats in &now.nics {
        let old = before.nics.iter().find(|old| old.id == stats.id);
        let old = old.cloned().unwrap_or_default();
        let known = |before, now| match all {
            true => rate(grown(before, now), time),
            false => String::new(),
        };
        table.row([
            stats.id.clone(),
            megabits(grown(old.ingress_bytes, stats.ingress_bytes), time),
            megabits(grown(old.egress_bytes, stats.egress_bytes), time),
            known(old.ingress_frames, stats.ingress_frames),
            known(old.egress_frames, stats.egress_frames),
            known(old.ingress_drops, stats.ingress_drops),
            known(old.egress_drops, stats.egress_drops),
            known(old.egress_kernel_frames, stats.egress_kernel_frames),
        ]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(time_ns: u64, nics: &[(&str, u64)]) -> v1::ListNicStatsResponse {
        let nic = |(id, frames): &(&str, u64)| v1::NicStats {
            id: (*id).into(),
            ingress_frames: *frames,
            ingress_bytes: frames * 1000,
            egress_drops: frames / 10,
            egress_kernel_frames: frames / 2,
            ..Default::default()
        };
        v1::ListNicStatsResponse {
            time_ns,
            nics: nics.iter().map(nic).collect(),
        }
    }

    #[test]
    fn rates_go_by_the_daemon_s_clock() {
        let before = sample(1_000_000_000, &[("a", 100), ("gone", 5)]);
        let now = sample(3_000_000_000, &[("a", 300), ("new", 50)]);
        let expected = "\
NIC  IN Mbit/s  OUT Mbit/s  IN FRAMES/s  OUT FRAMES/s  IN DROPS/s  OUT DROPS/s  OUT KERNEL/s
a          0.8         0.0          100             0           0           10            50
new        0.2         0.0           25             0           0            2            12
";
        assert_eq!(moved(&before, &now, Duration::from_secs(9), true), expected);
    }

    #[test]
    fn api_v0_knows_bytes_and_no_time() {
        let (before, now) = (sample(0, &[("a", 100)]), sample(0, &[("a", 300)]));
        let expected = "\
NIC  IN Mbit/s  OUT Mbit/s  IN FRAMES/s  OUT FRAMES/s  IN DROPS/s  OUT DROPS/s OUT KERNEL/s
a          1.6         0.0  -            -             -           -  -
";
        let printed = moved(&before, &now, Duration::from_secs(1), false);
        let squeezed = |text: &str| {
            text.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(squeezed(&printed), squeezed(expected));
    }
}
