//! What passed in the last hour: the host's rates every ten seconds, each NIC's every minute.
//!
//! Samples are counters as they are everywhere else, read while the daemon runs with a page; a rate
//! is the difference of two. Memory is bounded: an hour of the host's, and of as many NICs as there
//! are, an hour of three numbers.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use control::NicStats;
use dataplane::drop_reason::REASONS;
use dataplane::{DropReason, load::WorkerLoad};
use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior};

use crate::app::App;

/// Between two samples of the host.
const STEP: Duration = Duration::from_secs(10);
/// Samples of the host that are kept.
const STEPS: usize = 360;
/// Steps of the host between two samples of its NICs.
const NIC_STEPS: u32 = 6;
/// Samples of a NIC that are kept.
const NIC_SAMPLES: usize = STEPS / NIC_STEPS as usize;

/// The last hour. Cheap to clone.
#[derive(Clone, Default)]
pub struct History(Arc<Mutex<Recorded>>);

#[derive(Default)]
struct Recorded {
    last: Option<Totals>,
    host: VecDeque<Sample>,
    /// Counters of each NIC when its last sample was taken, and when that was.
    nic_last: BTreeMap<String, [u64; 4]>,
    nic_at: Option<Instant>,
    nics: BTreeMap<String, VecDeque<NicSample>>,
}

/// Counters at one moment.
struct Totals {
    at: Instant,
    /// From guests: frames, bytes; to guests: frames, bytes.
    passed: [u64; 4],
    drops: [u64; REASONS],
    /// Nanoseconds of all workers in turns that found a frame.
    busy_ns: u64,
    workers: usize,
    flows: u64,
}

/// Rates a second between two moments.
struct Sample {
    /// Seconds of the Unix epoch when it ended.
    at: u64,
    passed: [f32; 4],
    /// Those that are not 0.
    drops: Vec<(DropReason, f32)>,
    /// Share of the workers' time, from 0 to 1.
    busy: f32,
    flows: u64,
}

/// Of a NIC: bits a second from it, and to it, and frames dropped a second.
type NicSample = [f32; 3];

impl History {
    /// Takes samples until the daemon stops.
    pub async fn record(self, app: Arc<App>) {
        let sampling = async {
            let mut ticks = tokio::time::interval(STEP);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            for step in 0u32.. {
                ticks.tick().await;
                let (app, history) = (app.clone(), self.clone());
                let sampled = tokio::task::spawn_blocking(move || history.sample(&app, step));
                if !matches!(sampled.await, Ok(Ok(()))) {
                    tracing::warn!("the page's history has a gap: the workers did not answer");
                }
            }
        };
        tokio::select! {
            () = app.stopping() => (),
            () = sampling => (),
        }
    }

    fn sample(&self, app: &App, step: u32) -> Result<(), String> {
        let loads = app.workers.loads().map_err(|e| e.to_string())?;
        let [out, into] = app.workers.switch().dropped_frames();
        let stats: Vec<NicStats> = app
            .control()
            .all_nic_stats()
            .map(|(_, _, stats)| stats)
            .collect();
        let now = Instant::now();
        let drops = std::array::from_fn(|reason| out[reason] + into[reason]);
        let totals = Totals::new(now, &stats, drops, &loads);
        let unix = SystemTime::now().duration_since(UNIX_EPOCH);
        let mut kept = self.lock();
        kept.add(totals, unix.unwrap_or_default().as_secs());
        if step.is_multiple_of(NIC_STEPS) {
            kept.add_nics(now, &stats);
        }
        Ok(())
    }

    /// The host's last hour, oldest first: an array of samples for each of `at`, `egress_frames`,
    /// `egress_bytes`, `ingress_frames`, `ingress_bytes`, `busy`, `flows`, and for each reason of
    /// `drops`.
    pub fn host(&self) -> Value {
        let kept = self.lock();
        let passed =
            |which: usize| -> Vec<f32> { kept.host.iter().map(|one| one.passed[which]).collect() };
        let mut drops: BTreeMap<&str, Vec<f32>> = BTreeMap::new();
        for (index, sample) in kept.host.iter().enumerate() {
            for (reason, rate) in &sample.drops {
                let row = drops.entry(reason.name());
                row.or_insert_with(|| vec![0.0; kept.host.len()])[index] = *rate;
            }
        }
        json!({
            "step_secs": STEP.as_secs(),
            "at": kept.host.iter().map(|one| one.at).collect::<Vec<_>>(),
            "egress_frames": passed(0),
            "egress_bytes": passed(1),
            "ingress_frames": passed(2),
            "ingress_bytes": passed(3),
            "busy": kept.host.iter().map(|one| one.busy).collect::<Vec<_>>(),
            "flows": kept.host.iter().map(|one| one.flows).collect::<Vec<_>>(),
            "drops": drops,
        })
    }

    /// A NIC's last hour, oldest first: arrays of bits a second from and to it, and of frames
    /// dropped a second. `None` of a NIC that has no sample.
    pub fn nic(&self, id: &str) -> Option<Value> {
        let kept = self.lock();
        let samples = kept.nics.get(id)?;
        let of = |which: usize| -> Vec<f32> { samples.iter().map(|one| one[which]).collect() };
        Some(json!({
            "step_secs": (STEP * NIC_STEPS).as_secs(),
            "egress_bits": of(0),
            "ingress_bits": of(1),
            "drops": of(2),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Recorded> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Totals {
    fn new(at: Instant, stats: &[NicStats], drops: [u64; REASONS], loads: &[WorkerLoad]) -> Totals {
        let mut passed = [0; 4];
        for nic in stats {
            let own = [nic.frames_out, nic.bytes_out, nic.frames_in, nic.bytes_in];
            for (sum, own) in passed.iter_mut().zip(own) {
                *sum += own;
            }
        }
        Totals {
            at,
            passed,
            drops,
            busy_ns: loads.iter().map(|load| load.busy_ns).sum(),
            workers: loads.len(),
            flows: loads.iter().map(|load| load.flows).sum(),
        }
    }
}

/// By how much a counter has grown; what has shrunk, since a NIC is gone, has not.
fn grown(now: u64, before: u64, secs: f32) -> f32 {
    now.saturating_sub(before) as f32 / secs
}

impl Recorded {
    fn add(&mut self, now: Totals, unix: u64) {
        if let Some(last) = &self.last {
            let secs = now.at.duration_since(last.at).as_secs_f32();
            if secs == 0.0 {
                return;
            }
            let drops = DropReason::ALL.iter().map(|reason| {
                let index = *reason as usize;
                (*reason, grown(now.drops[index], last.drops[index], secs))
            });
            let workers = now.workers.max(1) as f32;
            self.host.push_back(Sample {
                at: unix,
                passed: std::array::from_fn(|n| grown(now.passed[n], last.passed[n], secs)),
                drops: drops.filter(|(_, rate)| *rate > 0.0).collect(),
                busy: (grown(now.busy_ns, last.busy_ns, secs) / 1e9 / workers).min(1.0),
                flows: now.flows,
            });
            if self.host.len() > STEPS {
                self.host.pop_front();
            }
        }
        self.last = Some(now);
    }

    fn add_nics(&mut self, now: Instant, stats: &[NicStats]) {
        let secs = self.nic_at.replace(now).map(|at| now.duration_since(at));
        let secs = secs.map(|passed| passed.as_secs_f32());
        let secs = secs.filter(|secs| *secs > 0.0);
        let mut last = BTreeMap::new();
        for nic in stats {
            let dropped = |drops: &[(DropReason, u64)]| drops.iter().map(|(_, n)| n).sum::<u64>();
            let id = nic.id.as_str();
            let drops = [dropped(&nic.drops_out), dropped(&nic.drops_in)];
            let counters = [nic.bytes_out, nic.bytes_in, drops[0], drops[1]];
            if let (Some(secs), Some(before)) = (secs, self.nic_last.get(id)) {
                let rate = |n: usize| grown(counters[n], before[n], secs);
                let samples = self.nics.entry(id.to_owned()).or_default();
                samples.push_back([rate(0) * 8.0, rate(1) * 8.0, rate(2) + rate(3)]);
                if samples.len() > NIC_SAMPLES {
                    samples.pop_front();
                }
            }
            last.insert(id.to_owned(), counters);
        }
        // What is gone is not told any more; what comes back begins anew.
        self.nics.retain(|id, _| last.contains_key(id));
        self.nic_last = last;
    }
}
