//! `butterfly worker`: the threads that move frames, and what they do with their time.

use std::time::Duration;

use api::v1;
use clap::{Args, Subcommand};

use super::repeat::{Repeat, grown, quotient, rate};
use crate::client::Client;
use crate::error::Error;
use crate::json;
use crate::output::Table;
use crate::session::Session;
use crate::words::span;

/// `worker …`.
#[derive(Subcommand, Debug)]
pub enum WorkerCommand {
    /// Show all workers, a line each
    List(ListArgs),
    /// Show one worker: its time, its batches, the cost of its steps, its queues
    Show(ShowArgs),
}

const READING: &str = "\
Numbers are those of the second before the print (of --watch's interval). BUSY is the time in
turns of the loop that found frames, AWAKE that and polling in vain. Cycles are those of the
time-stamp counter, timed in one batch of many.";

/// `worker list`.
#[derive(Args, Debug)]
#[command(after_help = format!(
    "{READING}\n\nExamples:\n  butterfly worker list\n  butterfly worker list --watch"
))]
pub struct ListArgs {
    #[command(flatten)]
    repeat: Repeat,
}

/// `worker show`.
#[derive(Args, Debug)]
#[command(after_help = format!(
    "{READING}\n\nExamples:\n  butterfly worker show 0\n  butterfly worker show 0 --watch=5"
))]
pub struct ShowArgs {
    /// The worker's index, from 0
    worker: u32,
    #[command(flatten)]
    repeat: Repeat,
}

impl WorkerCommand {
    /// Runs the chosen `worker` command.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        match self {
            WorkerCommand::List(args) => {
                let sample = async |client: &mut Client| client.workers().await;
                let json = |workers: &_| json::full("ListWorkersResponse", workers);
                args.repeat
                    .run(session, sample, json, |before, now, _| list(before, now))
                    .await
            }
            WorkerCommand::Show(args) => {
                let index = args.worker;
                let sample = async |client: &mut Client| {
                    let workers = client.workers().await?.workers;
                    let one = workers.into_iter().find(|worker| worker.index == index);
                    one.ok_or_else(|| Error::Refused(format!("there is no worker {index}")))
                };
                let json = |worker: &_| json::full("WorkerStatus", worker);
                args.repeat
                    .run(session, sample, json, |before, now, _| show(before, now))
                    .await
            }
        }
    }
}

/// What a worker did between two answers.
struct Moved<'a> {
    before: &'a v1::WorkerStatus,
    now: &'a v1::WorkerStatus,
}

impl Moved<'_> {
    fn count(&self, of: impl Fn(&v1::WorkerStatus) -> u64) -> u64 {
        grown(of(self.before), of(self.now))
    }

    fn time(&self) -> Duration {
        Duration::from_nanos(self.count(|worker| worker.time_ns))
    }

    fn rate(&self, of: impl Fn(&v1::WorkerStatus) -> u64) -> String {
        rate(self.count(of), self.time())
    }

    /// A part of the time, in percent.
    fn share(&self, nanos: u64) -> String {
        let whole = self.count(|worker| worker.time_ns);
        quotient(nanos.min(whole) * 100, whole)
    }

    fn busy(&self) -> String {
        self.share(self.count(|worker| worker.busy_ns))
    }

    fn awake(&self) -> String {
        let asleep = self.count(|worker| worker.asleep_ns);
        self.share(self.count(|worker| worker.time_ns).saturating_sub(asleep))
    }

    fn batches(&self) -> Vec<(u32, u64)> {
        let classes = self.now.batches.iter().enumerate();
        let old = |class: usize| self.before.batches.get(class).map_or(0, |old| old.batches);
        classes
            .map(|(class, now)| (now.up_to, grown(old(class), now.batches)))
            .collect()
    }

    fn frames_a_batch(&self) -> String {
        let batches = self.batches().iter().map(|(_, count)| count).sum();
        quotient(self.count(|worker| worker.frames), batches)
    }

    /// Each step's cycles a frame, where a batch was timed meanwhile.
    fn steps(&self) -> Vec<(&str, f64)> {
        let cost = |now: &v1::StepCost| {
            let old = self.before.steps.iter().find(|old| old.name == now.name);
            let (cycles, frames) = old.map_or((0, 0), |old| (old.cycles, old.frames));
            (
                grown(cycles, now.cycles) as f64,
                grown(frames, now.frames) as f64,
            )
        };
        let steps = self
            .now
            .steps
            .iter()
            .map(|step| (step.name.as_str(), cost(step)));
        steps
            .filter(|(_, (_, frames))| *frames > 0.0)
            .map(|(name, (cycles, frames))| (name, cycles / frames))
            .collect()
    }

    fn cycles_a_frame(&self) -> String {
        let steps = self.steps();
        match steps.is_empty() {
            true => String::new(),
            false => format!("{:.0}", steps.iter().map(|(_, cycles)| cycles).sum::<f64>()),
        }
    }
}

fn list(before: &v1::ListWorkersResponse, now: &v1::ListWorkersResponse) -> String {
    let mut table = Table::new(&[
        ">WORKER",
        ">CORE",
        ">BUSY %",
        ">AWAKE %",
        ">FRAMES/s",
        ">FRAMES/BATCH",
        ">CYCLES/FRAME",
        ">HANDED OVER/s",
        ">FLOWS",
        ">QUEUES",
        ">POLLED",
    ]);
    for now in &now.workers {
        let old = before.workers.iter().find(|old| old.index == now.index);
        let moved = Moved {
            before: old.unwrap_or(now),
            now,
        };
        table.row([
            now.index.to_string(),
            now.core.map(|core| core.to_string()).unwrap_or_default(),
            moved.busy(),
            moved.awake(),
            moved.rate(|worker| worker.frames),
            moved.frames_a_batch(),
            moved.cycles_a_frame(),
            moved.rate(|worker| worker.handed_over),
            now.flows.to_string(),
            now.queues.len().to_string(),
            now.queues
                .iter()
                .filter(|queue| queue.polled)
                .count()
                .to_string(),
        ]);
    }
    table.render()
}

fn show(before: &v1::WorkerStatus, now: &v1::WorkerStatus) -> String {
    let moved = Moved { before, now };
    let mut text = String::new();
    let mut line =
        |name: &str, value: String| text += &format!("{:<16} {value}\n", format!("{name}:"));
    let core = now
        .core
        .map_or(String::new(), |core| format!(" on core {core}"));
    line("worker", format!("{}{core}", now.index));
    line(
        "time",
        format!("busy {} %, awake {} %", moved.busy(), moved.awake()),
    );
    let turns = moved.count(|worker| worker.turns);
    let busy_turns = quotient(moved.count(|worker| worker.busy_turns) * 100, turns);
    line(
        "turns",
        format!(
            "{}/s, {} % with frames, {} sleeps/s",
            moved.rate(|worker| worker.turns),
            or_dash(busy_turns),
            moved.rate(|worker| worker.sleeps)
        ),
    );
    line(
        "frames",
        format!(
            "{}/s, {} a batch",
            moved.rate(|worker| worker.frames),
            or_dash(moved.frames_a_batch())
        ),
    );
    line("batches", batches(&moved));
    let steps = moved
        .steps()
        .into_iter()
        .map(|(name, cycles)| format!("{name} {cycles:.0}"));
    let steps = match moved.cycles_a_frame() {
        all if all.is_empty() => "-".into(),
        all => format!("{all}: {}", steps.collect::<Vec<_>>().join(", ")),
    };
    line("cycles a frame", steps);
    line(
        "other workers",
        format!(
            "{} frames/s handed over, {} taken over",
            moved.rate(|worker| worker.handed_over),
            moved.rate(|worker| worker.taken_over)
        ),
    );
    line(
        "flows",
        format!(
            "{} of {}, {}/s evicted",
            now.flows,
            now.max_flows,
            moved.rate(|worker| worker.flows_evicted)
        ),
    );
    line(
        "fragments",
        format!(
            "{} datagrams in reassembly, {} fragments held",
            now.datagrams, now.held_fragments
        ),
    );
    line(
        "next hops",
        format!(
            "{} frames wait for one, {} have",
            now.waiting_frames, now.waited_frames
        ),
    );
    line("learnt MACs", now.learned_macs.to_string());
    line("epoch", now.epoch.to_string());
    let table = queues(&moved);
    match now.queues.is_empty() {
        true => text + "queues:          none\n",
        false => format!(
            "{text}queues:          {}\n\n{}",
            now.queues.len(),
            table.render()
        ),
    }
}

/// Which queue pairs make it busy: each one's part of the cycles that all of them cost.
fn queues(moved: &Moved<'_>) -> Table {
    let cost = |queue: &v1::WorkerQueue| {
        let mut before = moved.before.queues.iter();
        let old = before.find(|old| old.nic == queue.nic && old.pair == queue.pair);
        // One that came from another worker meanwhile has cost cycles there.
        old.map_or(0, |old| grown(old.cycles, queue.cycles))
    };
    let all: u64 = moved.now.queues.iter().map(cost).sum();
    let mut table = Table::new(&["NIC", ">PAIR", "STATE", ">QUIET", ">CYCLES %"]);
    for queue in &moved.now.queues {
        let state = if queue.polled { "polled" } else { "parked" };
        table.row([
            queue.nic.clone(),
            queue.pair.to_string(),
            state.into(),
            span(queue.quiet_ns),
            quotient(cost(queue) * 100, all),
        ]);
    }
    table
}

/// The sizes that batches had, in percent of them.
fn batches(moved: &Moved<'_>) -> String {
    let classes = moved.batches();
    let all: u64 = classes.iter().map(|(_, count)| count).sum();
    let mut above = 0;
    let mut parts = Vec::new();
    for (up_to, count) in classes {
        let sizes = match above + 1 {
            least if least == up_to => least.to_string(),
            least => format!("{least}-{up_to}"),
        };
        above = up_to;
        if count > 0 {
            parts.push(format!("{sizes}: {} %", quotient(count * 100, all)));
        }
    }
    or_dash(parts.join(", "))
}

fn or_dash(text: String) -> String {
    if text.is_empty() { "-".into() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker after so many seconds, half of them busy, a quarter asleep.
    fn worker(secs: u64) -> v1::WorkerStatus {
        let batches = [1, 2, 4, 8, 16, 32].map(|up_to| v1::BatchCount {
            up_to,
            batches: if up_to == 4 {
                secs * 30
            } else if up_to == 32 {
                secs * 10
            } else {
                0
            },
        });
        let step = |name: &str, cycles| v1::StepCost {
            name: name.into(),
            cycles: cycles * secs,
            frames: 10 * secs,
        };
        v1::WorkerStatus {
            core: Some(2),
            time_ns: 7 + secs * 1_000_000_000,
            busy_ns: secs * 500_000_000,
            asleep_ns: secs * 250_000_000,
            turns: secs * 1000,
            busy_turns: secs * 40,
            sleeps: secs,
            frames: secs * 400,
            batches: batches.into(),
            steps: vec![step("parse", 120), step("judge", 300), step("other", 0)],
            handed_over: secs * 3,
            flows: 12,
            max_flows: 1024,
            epoch: 5,
            queues: vec![
                v1::WorkerQueue {
                    nic: "a".into(),
                    pair: 0,
                    polled: true,
                    quiet_ns: 1500,
                    cycles: secs * 300,
                },
                v1::WorkerQueue {
                    nic: "a".into(),
                    pair: 1,
                    polled: false,
                    quiet_ns: 90_000_000_000,
                    cycles: secs * 100,
                },
            ],
            ..Default::default()
        }
    }

    #[test]
    fn a_line_a_worker() {
        let workers = |secs| v1::ListWorkersResponse {
            workers: vec![worker(secs)],
        };
        let expected = "\
WORKER  CORE  BUSY %  AWAKE %  FRAMES/s  FRAMES/BATCH  CYCLES/FRAME  HANDED OVER/s  FLOWS  QUEUES  POLLED
     0     2    50.0     75.0       400          10.0            42              3     12       2       1
";
        assert_eq!(list(&workers(10), &workers(12)), expected);
    }

    #[test]
    fn one_worker_whole() {
        let expected = "\
worker:          0 on core 2
time:            busy 50.0 %, awake 75.0 %
turns:           1000/s, 4.0 % with frames, 1 sleeps/s
frames:          400/s, 10.0 a batch
batches:         3-4: 75.0 %, 17-32: 25.0 %
cycles a frame:  42: parse 12, judge 30, other 0
other workers:   3 frames/s handed over, 0 taken over
flows:           12 of 1024, 0/s evicted
fragments:       0 datagrams in reassembly, 0 fragments held
next hops:       0 frames wait for one, 0 have
learnt MACs:     0
epoch:           5
queues:          2

NIC  PAIR  STATE   QUIET  CYCLES %
a       0  polled   1 us      75.0
a       1  parked   90 s      25.0
";
        assert_eq!(show(&worker(1), &worker(3)), expected);
    }

    #[test]
    fn a_worker_without_work_says_so() {
        let idle = |secs: u64| v1::WorkerStatus {
            time_ns: secs * 1_000_000_000,
            asleep_ns: secs * 1_000_000_000,
            ..Default::default()
        };
        let text = show(&idle(1), &idle(2));
        for line in [
            "time:            busy 0.0 %, awake 0.0 %",
            "turns:           0/s, - % with frames, 0 sleeps/s",
            "frames:          0/s, - a batch",
            "batches:         -",
            "cycles a frame:  -",
            "queues:          none",
        ] {
            assert!(
                text.lines().any(|printed| printed == line),
                "{line} is not in:\n{text}"
            );
        }
    }
}
