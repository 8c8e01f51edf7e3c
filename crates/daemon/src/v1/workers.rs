//! What the workers are doing, and the rings of their ports.

use std::collections::BTreeMap;

use api::v1;
use control::{Controller, NicStatus};
use dataplane::load::{STEPS, WorkerLoad};
use dataplane::report::PortReport;
use io::port::QueueInfo;
use io::vhost::{PortKey, RingInfo, SessionInfo, features};
use tonic::Status;

use crate::app::App;
use crate::worker_thread::{LoadReport, WorkerThreads};

/// Every worker with the queue pairs it has.
pub fn list(
    worker: &WorkerThreads,
    control: &Controller,
) -> Result<v1::ListWorkersResponse, Status> {
    let mut workers = statuses(worker)?;
    let names: BTreeMap<_, _> = control
        .nics()
        .map(|nic| (nic.slot, nic.nic.id.to_string()))
        .collect();
    let uses = worker.switch().queue_uses();
    let cycles: BTreeMap<_, _> = uses
        .iter()
        .map(|one| ((one.queue.slot, one.queue.pair), one.cycles))
        .collect();
    for (index, port) in worker.ports(None).map_err(gone)? {
        // A port whose NIC is being made or deleted has no name to go by, and no frame passes it.
        if let (Some(worker), Some(nic)) = (workers.get_mut(index), names.get(&port.slot)) {
            worker.queues.push(v1::WorkerQueue {
                nic: nic.clone(),
                pair: port.pair.into(),
                polled: port.polled,
                quiet_ns: port.quiet_ns,
                cycles: cycles
                    .get(&(port.slot, port.pair))
                    .copied()
                    .unwrap_or_default(),
            });
        }
    }
    for worker in &mut workers {
        worker
            .queues
            .sort_by(|a, b| (&a.nic, a.pair).cmp(&(&b.nic, b.pair)));
    }
    Ok(v1::ListWorkersResponse { workers })
}

/// Every worker without them.
pub fn statuses(worker: &WorkerThreads) -> Result<Vec<v1::WorkerStatus>, Status> {
    let reports = worker.reports().map_err(gone)?;
    Ok(reports
        .iter()
        .zip(0..)
        .map(|(report, index)| status(index, report))
        .collect())
}

fn status(index: u32, report: &LoadReport) -> v1::WorkerStatus {
    let load = &report.load;
    v1::WorkerStatus {
        index,
        core: report.core.map(|core| core as u32),
        load_percent: report.percent,
        frames: load.frames,
        flows: load.flows,
        max_flows: report.max_flows.into(),
        time_ns: load.at_ns,
        busy_ns: load.busy_ns,
        asleep_ns: load.asleep_ns,
        turns: load.turns,
        busy_turns: load.busy_turns,
        sleeps: load.sleeps,
        batches: batches(load),
        steps: steps(load),
        handed_over: load.handed_over,
        taken_over: load.taken_over,
        flows_evicted: load.flows_evicted,
        datagrams: load.datagrams,
        held_fragments: load.held_fragments,
        waiting_frames: load.waiting_frames,
        waited_frames: load.waited_frames,
        learned_macs: load.learned_macs,
        epoch: load.epoch,
        queues: vec![],
    }
}

fn batches(load: &WorkerLoad) -> Vec<v1::BatchCount> {
    let classes = load.batches.iter().enumerate();
    classes
        .map(|(class, batches)| v1::BatchCount {
            up_to: 1 << class,
            batches: *batches,
        })
        .collect()
}

/// None when none was timed: not "0 cycles".
fn steps(load: &WorkerLoad) -> Vec<v1::StepCost> {
    let timed = load.steps.iter().any(|step| step.frames > 0);
    let steps = STEPS.iter().zip(&load.steps).filter(|_| timed);
    steps
        .map(|(name, step)| v1::StepCost {
            name: (*name).into(),
            cycles: step.cycles,
            frames: step.frames,
        })
        .collect()
}

/// The queue pairs of a NIC.
pub fn queues(app: &App, nic: &NicStatus) -> Result<v1::NicQueues, Status> {
    let ports = app.workers.ports(Some(nic.slot)).map_err(gone)?;
    let mut pairs: Vec<_> = ports
        .into_iter()
        .map(|(index, port)| pair(index, port))
        .collect();
    pairs.sort_by_key(|pair| pair.pair);
    Ok(v1::NicQueues {
        id: nic.nic.id.to_string(),
        pairs,
        session: app
            .vhost
            .nic(PortKey(nic.slot.0))
            .and_then(|nic| nic.session)
            .map(session),
    })
}

fn session(info: SessionInfo) -> v1::VhostSession {
    let ring = |(ring, index): (RingInfo, u32)| v1::VhostRing {
        index,
        size: ring.size.into(),
        started: ring.started,
        enabled: ring.enabled,
        fault: ring.fault.unwrap_or_default(),
    };
    v1::VhostSession {
        features: info.features,
        feature_names: features::names(info.features.unwrap_or_default()),
        protocol_features: info.protocol_features,
        protocol_feature_names: features::protocol::names(info.protocol_features),
        mtu: info.mtu.unwrap_or_default().into(),
        rings: info.rings.into_iter().zip(0..).map(ring).collect(),
    }
}

fn pair(worker: usize, port: PortReport) -> v1::QueuePair {
    let info = port.info.unwrap_or_default();
    v1::QueuePair {
        pair: port.pair.into(),
        worker: worker as u32,
        backend: info.kind.into(),
        up: info.up,
        broken: info.broken.unwrap_or_default(),
        polled: port.polled,
        quiet_ns: port.quiet_ns,
        frames_received: info.frames_received,
        frames_transmitted: info.frames_transmitted,
        kicks: info.kicks,
        calls: info.calls,
        transmitq: info.transmitq.as_ref().map(ring),
        receiveq: info.receiveq.as_ref().map(ring),
    }
}

fn ring(queue: &QueueInfo) -> v1::Ring {
    let waiting = queue.avail_index.wrapping_sub(queue.next_avail);
    v1::Ring {
        size: queue.size.into(),
        packed: queue.packed,
        avail_index: queue.avail_index.into(),
        next_avail: queue.next_avail.into(),
        used_index: queue.used_index.into(),
        waiting: (!queue.packed).then_some(waiting.into()),
        in_flight: queue.in_flight.into(),
        interrupts_off: queue.interrupts_off,
        calls: queue.calls,
        features: queue.features,
        feature_names: features::names(queue.features),
        avail_wrap: queue.avail_wrap,
        used_wrap: queue.used_wrap,
    }
}

fn gone(error: impl std::fmt::Display) -> Status {
    Status::unavailable(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The manual says what each step is.
    #[test]
    fn the_proto_explains_every_step() {
        let proto = include_str!("../../../../proto/butterfly/v1/butterfly.proto");
        let (_, cost) = proto.split_once("message StepCost {").unwrap();
        let (comment, _) = cost.split_once("string name").unwrap();
        let explained: Vec<_> = comment.split('`').skip(1).step_by(2).collect();
        assert_eq!(explained, STEPS);
    }
}
