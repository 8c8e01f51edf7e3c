//! Runs a trial on a worker: the same stages in the same order as for all frames, on a side of the
//! trial's own.

use io::frame::{BATCH, Batch};

use super::watch::Watcher;
use super::{End, Report, Stage, Trial};
use crate::ids::PortSlot;
use crate::overlay::TunnelSource;
use crate::path::{Path, judge};
use crate::ports::Ports;
use crate::queue::QueueId;
use crate::round::Round;
use crate::snapshot::PortConfig;
use crate::stages::outer;
use crate::time::Now;

/// What becomes of the frame. Reads the path and the ports, and changes neither.
pub(crate) fn run(trial: &mut Trial, path: &Path, ports: &Ports, now: Now) -> Box<Report> {
    let mut batch = Batch::new();
    batch.push_bytes(&trial.frame, trial.offload);
    let mut report = Box::new(Report {
        worker: trial.worker,
        epoch: path.view.epoch(),
        arrival: None,
        frame: std::mem::take(&mut trial.frame),
        packet: None,
        nd: None,
        always: false,
        near: false,
        learns: None,
        answer: None,
        end: None,
        targets: Vec::new(),
        more_targets: 0,
        copies: Vec::new(),
    });
    if trial.from.is_uplink() {
        from_wire(trial, path, ports, &mut batch, &mut report, now);
        return report;
    }
    match path.view.port(trial.from) {
        Some(nic) => judged(trial, path, ports, &batch, (nic, None), &mut report, now),
        None => report.end = Some((Stage::Parse, End::NoSender)),
    }
    report
}

/// A frame from the wire loses its outer headers first.
fn from_wire(
    trial: &mut Trial,
    path: &Path,
    ports: &Ports,
    batch: &mut Batch,
    report: &mut Report,
    now: Now,
) {
    let mut sources = [outer::NOWHERE; BATCH];
    let mut refused = None;
    let refuse = |_, reason| refused = Some(reason);
    let going = outer::run(batch, &path.view, &path.underlay, &mut sources, refuse);
    if let Some(reason) = refused {
        report.end = Some((Stage::Outer, End::Dropped(reason)));
    }
    if going == 0 {
        return;
    }
    report.arrival = Some((sources[0].network, sources[0].host));
    report.frame = batch.to_bytes(0);
    match path.view.remote(sources[0].network) {
        Some(remote) => {
            let sender = (remote, Some(&sources));
            judged(trial, path, ports, batch, sender, report, now);
        }
        None => report.end = Some((Stage::Parse, End::NoSender)),
    }
}

fn judged(
    trial: &mut Trial,
    path: &Path,
    ports: &Ports,
    batch: &Batch,
    (nic, sources): (&PortConfig, Option<&[TunnelSource; BATCH]>),
    report: &mut Report,
    now: Now,
) {
    let from: QueueId = QueueId::from(trial.from);
    trial.tables.wide_searches = path.tables.wide_searches.clone();
    let mut round = Round {
        nic,
        from,
        sources,
        view: &path.view,
        underlay: &path.underlay,
        wanted: &trial.wanted,
        counters: &trial.counters,
        tables: &mut trial.tables,
        batch,
        items: &mut Vec::new(),
        jobs: &mut Vec::new(),
        cases: &mut Vec::new(),
        waits: &mut Vec::new(),
        replies: &mut trial.replies,
        now,
        is_trial: true,
    };
    let mut watcher = Watcher::new(report, &path.tables);
    judge(&mut round, 1, &mut |stage, round: &mut Round| {
        watcher.after(stage, round);
    });
    watcher.deliver(&round, |target: PortSlot, steer| {
        ports.outlook(target, steer)
    });
}
