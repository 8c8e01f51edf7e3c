//! `butterfly trace --live`: frames of a NIC as they pass, with what became of each and why.

use api::v1;
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use super::capture::compile;
use super::events::time;
use super::trace_print::one;
use crate::error::Error;
use crate::json;
use crate::output::say;
use crate::session::Session;
use crate::words::direction_name;

/// The options of `trace --live`.
#[derive(Args, Debug)]
pub struct LiveArgs {
    /// What does happen: frames of the NIC as they pass, those that are dropped too; behind the NIC
    /// a filter, libpcap's (pcap-filter(7)), as one word
    #[arg(long, conflicts_with_all = ["frame", "pcap", "host", "outer", "via"])]
    live: bool,
    /// --live: end after so many frames
    #[arg(
        short = 'n',
        long,
        visible_alias = "count",
        value_name = "FRAMES",
        requires = "live"
    )]
    frames: Option<u64>,
    /// --live: end after so many seconds
    #[arg(long, value_name = "SECONDS", requires = "live")]
    seconds: Option<u32>,
    /// --live: frames a second that are told at most, up to 1000 [default: 100]
    #[arg(long, value_name = "FRAMES", requires = "live")]
    rate: Option<u32>,
    /// --live: every step of each frame
    #[arg(short, long, requires = "live")]
    verbose: bool,
}

impl LiveArgs {
    /// Whether it was asked for.
    pub fn is_on(&self) -> bool {
        self.live
    }

    /// Prints frames until there were enough, or it is interrupted.
    pub async fn run(
        &self,
        session: &mut Session,
        nic: &str,
        filter: &[&str],
    ) -> Result<(), Error> {
        let request = v1::TraceFramesRequest {
            nic: nic.into(),
            filter: compile(&filter.join(" "))?,
            frames: self.frames.unwrap_or_default(),
            seconds: self.seconds.unwrap_or_default(),
            per_second: self.rate.unwrap_or_default(),
        };
        let (client, out) = session.client_and_output().await?;
        let v1 = client.only_v1("trace --live")?;
        let mut frames = v1.trace_frames(request).await?;
        let mut interrupted = signal(SignalKind::interrupt())?;
        let mut ended = signal(SignalKind::terminate())?;
        let mut lost = 0;
        loop {
            let frame = tokio::select! {
                frame = v1.next(&mut frames) => frame?,
                _ = interrupted.recv() => None,
                _ = ended.recv() => None,
            };
            let Some(frame) = frame else { break };
            lost += frame.lost;
            match out.json {
                true => out.value_line(&json::full("PassedFrame", &frame))?,
                false => out.text(&self.text(&frame))?,
            }
            out.flush()?;
        }
        if lost > 0 {
            say(&format!(
                "{lost} more frames passed that are not told: more than --rate, or not read in time"
            ));
        }
        Ok(())
    }

    fn text(&self, frame: &v1::PassedFrame) -> String {
        let mut text = line(frame);
        if let Some(trace) = frame.trace.as_ref().filter(|_| self.verbose) {
            text.push('\n');
            one(&mut text, trace);
        }
        text
    }
}

/// Time, direction, what it is, what became of it, where it went and by what, how long it took.
fn line(frame: &v1::PassedFrame) -> String {
    let fate = match (frame.delivered, frame.held, frame.reason.as_str()) {
        (true, ..) => "passes".to_owned(),
        (_, true, _) => "waits".to_owned(),
        (.., "") => "dropped".to_owned(),
        (.., reason) => format!("dropped: {reason}"),
    };
    let trace = frame.trace.as_ref();
    let targets = trace.map_or(&[][..], |trace| &trace.targets);
    let to = match targets {
        [] => String::new(),
        [one] => target(one),
        several => format!(", {} targets", several.len()),
    };
    let inside = match frame.inside_nanos {
        0 => String::new(),
        nanos => format!(", {:.1} us", nanos as f64 / 1000.0),
    };
    format!(
        "{} {:<3} {} {fate}{to}{inside}",
        time(frame.time_unix_nanos),
        direction_name(frame.direction()),
        frame.what,
    )
}

/// Where it was to go, and what decided that.
fn target(target: &v1::TraceTarget) -> String {
    let name = match (target.nic.as_str(), target.endpoint.as_str()) {
        ("", "") => String::new(),
        ("", host) => format!(", to host {host}"),
        (nic, _) => format!(", to {nic}"),
    };
    let known = target.steps.iter().find(|step| step.step == "known_flow");
    let rule = target
        .groups
        .iter()
        .rev()
        .find(|asked| asked.rule.is_some());
    let by = match (rule, known) {
        (Some(asked), _) => format!(", by a rule of {}", asked.group),
        (None, Some(step)) => format!(", {}", step.text),
        (None, None) => String::new(),
    };
    name + &by
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_a_line() {
        let passed = v1::PassedFrame {
            time_unix_nanos: 1_500_000_042_000,
            direction: v1::Direction::Egress.into(),
            what: "a > b, 60 bytes".into(),
            delivered: true,
            inside_nanos: 3210,
            trace: Some(v1::Trace {
                targets: vec![v1::TraceTarget {
                    nic: "vm2".into(),
                    groups: vec![v1::TraceGroup {
                        group: "web".into(),
                        rule: Some(v1::Rule::default()),
                        ..Default::default()
                    }],
                    ..Default::default()
                }],
                ..Default::default()
            }),
            ..Default::default()
        };
        assert_eq!(
            line(&passed),
            "1500.000042 out a > b, 60 bytes passes, to vm2, by a rule of web, 3.2 us"
        );
        let dropped = v1::PassedFrame {
            direction: v1::Direction::Ingress.into(),
            delivered: false,
            inside_nanos: 0,
            reason: "no_ingress_rule".into(),
            trace: None,
            ..passed
        };
        assert_eq!(
            line(&dropped),
            "1500.000042 in  a > b, 60 bytes dropped: no_ingress_rule"
        );
    }
}
