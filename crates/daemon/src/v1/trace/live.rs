//! `TraceFrames`: what does happen. Frames that a NIC sends come from a live trace of the workers
//! ([`dataplane::trial::live`]), with the report of each; those for it from a capture. A thread of
//! its own gives them names, for one reader. What is over the rate, or not read in time, is lost
//! and counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use api::v1;
use control::Explained;
use control::model::NicId;
use dataplane::trial::live::{Live, Outcome, Passed};
use dataplane::{CaptureError, DropReason};
use io::trace::capture::{Capture, Caught, Wanted};
use sys::cycles;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tonic::Status;
use wire::parse::parse;
use wire::pcapng::Direction;

use super::packet;
use crate::access::{Caller, Permitted};
use crate::app::App;
use crate::shares::Share;
use crate::v1::capture::{AT_ONCE, filter, written};
use crate::v1::refused;

/// Frames a second that are told when nothing is said, and at most.
const RATE: u32 = 100;
const RATE_MAX: u32 = 1000;
/// What is told of a frame, bytes.
const HEAD: usize = 256;
/// Frames on their way to the reader.
const AHEAD: usize = 256;
/// How often the workers are allowed more.
const STEP: Duration = Duration::from_millis(100);

/// A live trace that the workers know of; it ends when this is dropped.
pub struct Begun {
    _share: Share,
    switch: Arc<dataplane::Switch>,
    nic: NicId,
    live: Arc<Live>,
    sent: Receiver<Box<Passed>>,
    capture: Arc<Capture>,
    entering: Receiver<Caught>,
    per_second: u32,
    count: Option<u64>,
    until: Option<Instant>,
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.switch.end_live(&self.live);
        // Workers that have ended look at nothing any more.
        let _ = self.switch.end_capture(&self.capture);
    }
}

/// Checks what is asked for, and lets the workers begin.
pub fn begin(
    app: &App,
    control: &mut Permitted,
    request: &v1::TraceFramesRequest,
) -> Result<Begun, Status> {
    let id = NicId::new(&request.nic).map_err(refused)?;
    let nic = control.nic(&id)?;
    let filter = filter(&request.filter, control.caller())?;
    let per_second = match request.per_second {
        0 => RATE,
        rate if rate <= RATE_MAX => rate,
        rate => {
            return Err(Status::invalid_argument(format!(
                "{rate} frames a second: {RATE_MAX} are the most"
            )));
        }
    };
    let switch = app.workers.switch();
    if switch.captures() >= AT_ONCE {
        return Err(Status::resource_exhausted(format!(
            "{AT_ONCE} captures and live traces run already, which is the limit"
        )));
    }
    let share = app.capturing.take(control.caller())?;
    let (live, sent) = Live::new(filter.clone());
    let (capture, entering) = Capture::new(Wanted {
        filter,
        snap_len: HEAD,
        direction: Some(Direction::Inbound),
        dropped_only: false,
        received_only: false,
    });
    let place = (nic.slot, nic.uid);
    if !switch.begin_live(place, &live) {
        return Err(Status::resource_exhausted(format!(
            "NIC '{id}' is traced live already"
        )));
    }
    let begun = Begun {
        _share: share,
        switch: switch.clone(),
        nic: id,
        live,
        sent,
        capture,
        entering,
        per_second,
        count: (request.frames > 0).then_some(request.frames),
        until: (request.seconds > 0)
            .then(|| Instant::now() + Duration::from_secs(request.seconds.into())),
    };
    begun.live.supply(begun.step());
    let began = switch.begin_capture(&[place], &begun.capture);
    began.map_err(|error| match error {
        CaptureError::TooMany(_) => Status::resource_exhausted(format!("'{}': {error}", begun.nic)),
        CaptureError::Gone(gone) => Status::unavailable(gone.to_string()),
    })?;
    control.caller().captures();
    Ok(begun)
}

impl Begun {
    /// Frames that may be told in one [`STEP`].
    fn step(&self) -> usize {
        (self.per_second as usize).div_ceil(10)
    }
}

type Sender = mpsc::Sender<Result<v1::PassedFrame, Status>>;

/// The frames, until there were enough, nobody reads them or the daemon stops.
pub fn stream(
    app: Arc<App>,
    caller: Caller,
    begun: Begun,
) -> mpsc::Receiver<Result<v1::PassedFrame, Status>> {
    let of_app = app.clone();
    written(&of_app, AHEAD, |stopping| {
        let writer = Writer {
            app,
            caller,
            begun,
            stopping,
            runtime: Handle::current(),
            clock: (cycles::now(), Instant::now()),
            told: 0,
            lost: 0,
            lost_said: 0,
        };
        move |sender| writer.run(sender)
    })
}

struct Writer {
    app: Arc<App>,
    caller: Caller,
    begun: Begun,
    stopping: Arc<AtomicBool>,
    runtime: Handle,
    /// The cycle counter and the clock when it began: how long a cycle is.
    clock: (u64, Instant),
    told: u64,
    /// Of frames that enter, those over the rate.
    lost: u64,
    lost_said: u64,
}

impl Writer {
    fn run(mut self, sender: &Sender) {
        while !sender.is_closed() && !self.is_over() {
            let step = Instant::now();
            let missing = self.begun.step().saturating_sub(self.begun.live.supplied());
            self.begun.live.supply(missing);
            let mut passed = Vec::new();
            match self.begun.sent.recv_timeout(STEP) {
                Ok(first) => passed.push(first),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            passed.extend(self.begun.sent.try_iter());
            let mut frames = self.all_sent(&passed);
            drop(passed);
            let mut room = self.begun.step();
            while let Ok(caught) = self.begun.entering.try_recv() {
                self.begun.capture.taken(&caught);
                match room.checked_sub(1) {
                    Some(left) => {
                        room = left;
                        frames.push(entered(&caught));
                    }
                    None => self.lost += 1,
                }
            }
            frames.sort_by_key(|frame| frame.time_unix_nanos);
            for frame in frames {
                if self.is_over() || !self.send(sender, frame) {
                    return;
                }
            }
            // Not more often than that, whatever comes.
            let left = STEP.saturating_sub(step.elapsed());
            std::thread::sleep(left);
        }
    }

    fn is_over(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
            || self.begun.count.is_some_and(|count| self.told >= count)
            || self
                .begun
                .until
                .is_some_and(|until| Instant::now() >= until)
    }

    fn send(&mut self, sender: &Sender, mut frame: v1::PassedFrame) -> bool {
        let (live, captured) = (self.begun.live.counts().1, self.begun.capture.counts().1);
        let lost = live + captured + self.lost;
        frame.lost = lost - std::mem::replace(&mut self.lost_said, lost);
        self.told += 1;
        let app = self.app.clone();
        self.runtime.block_on(async {
            tokio::select! {
                sent = sender.send(Ok(frame)) => sent.is_ok(),
                () = app.stopping() => false,
            }
        })
    }

    /// The frames of a step. They take the controller once, from others who wait for it, and share
    /// the rules that are compared.
    fn all_sent(&self, passed: &[Box<Passed>]) -> Vec<v1::PassedFrame> {
        if passed.is_empty() {
            return Vec::new();
        }
        let mut control = self.app.control();
        let control = Permitted::new(&mut control, &self.caller);
        let names = super::names_of(&control, passed.iter().map(|passed| &*passed.report));
        let mut explained = Explained::default();
        let each = passed.iter().map(|passed| {
            explained.next_frame();
            let trace = super::trace_of_report(
                &self.app,
                &control,
                &self.begun.nic,
                &passed.report,
                &names,
                &mut explained,
            );
            self.sent(passed, trace)
        });
        each.collect()
    }

    fn sent(&self, passed: &Passed, mut trace: v1::Trace) -> v1::PassedFrame {
        let (delivered, held, reason) = match passed.fate {
            Outcome::Delivered => (true, false, None),
            Outcome::Held => (false, true, None),
            Outcome::Dropped(reason) => (false, false, reason),
        };
        let frame = std::mem::take(&mut trace.frame);
        let nd = passed.report.nd.as_ref();
        let known = passed.report.packet.as_ref();
        let what = known.map_or_else(String::new, |known| packet::words(known, nd, frame.len()));
        // What was foreseen gives way to what was seen.
        trace.passes = delivered || held;
        let (cycles, since) = self.clock;
        let ns_a_cycle =
            since.elapsed().as_nanos() as f64 / cycles::now().wrapping_sub(cycles).max(1) as f64;
        v1::PassedFrame {
            time_unix_nanos: passed.unix_ns,
            direction: v1::Direction::Egress.into(),
            head: frame[..frame.len().min(HEAD)].to_vec(),
            frame_len: frame.len() as u32,
            delivered,
            held,
            reason: reason.map_or("", DropReason::name).into(),
            trace: Some(trace),
            what,
            inside_nanos: (passed.cycles as f64 * ns_a_cycle) as u64,
            lost: 0,
        }
    }
}

fn entered(caught: &Caught) -> v1::PassedFrame {
    v1::PassedFrame {
        time_unix_nanos: caught.time_ns,
        direction: v1::Direction::Ingress.into(),
        head: caught.bytes.to_vec(),
        frame_len: caught.frame_len,
        what: parse(&caught.bytes, caught.frame_len as usize).map_or_else(
            |_| format!("{} bytes that cannot be parsed", caught.frame_len),
            |known| packet::words(&known, None, caught.frame_len as usize),
        ),
        delivered: caught.dropped.is_none(),
        reason: caught.dropped.unwrap_or_default().into(),
        ..Default::default()
    }
}
