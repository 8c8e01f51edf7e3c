//! `CaptureFrames`: frames as they pass, as pcapng. The workers put copies into a bounded queue
//! ([`io::trace::capture`]); a thread of the capture's own makes blocks of them, for one reader.
//! What that one does not take is lost, and counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use api::v1;
use control::model::NicId;
use dataplane::{CaptureError, PortSlot, PortUid};
use io::trace::capture::{Capture, Caught, Wanted};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tonic::Status;
use wire::bpf::{Filter, Instruction};
use wire::pcapng::{self, Direction, PacketBlock};

use crate::access::{Caller, Permitted};
use crate::app::App;
use crate::events;
use crate::shares::Share;

/// NICs and uplinks of one capture.
const TAPS_MAX: usize = 64;
/// Captures and live traces of all clients at one time: each may hold 8 MiB of frames.
pub(crate) const AT_ONCE: usize = 16;
/// Instructions of a filter of who has a part of the networks. It runs on a worker, of which others
/// have guests, too; libpcap makes some ten for an address and a port.
const PART_INSTRUCTIONS_MAX: usize = 256;
/// A part is sent when it has so many bytes, or nothing more is there.
const PART_BYTES: usize = 256 << 10;
/// Parts on their way to the reader.
const AHEAD: usize = 4;
/// How often it is looked whether the reader is gone, and what was lost is told.
const LOOK: Duration = Duration::from_millis(200);
const COUNTS_EVERY: Duration = Duration::from_secs(1);
/// What libpcap takes for "all of it".
const SNAP_MAX: usize = 262_144;

const APPLICATION: &str = concat!("butterfly ", env!("CARGO_PKG_VERSION"));

/// A capture that the workers know of; it ends when this is dropped.
pub struct Begun {
    _share: Share,
    switch: Arc<dataplane::Switch>,
    capture: Arc<Capture>,
    frames: Receiver<Caught>,
    names: Vec<String>,
    snap_len: usize,
    count: Option<u64>,
    until: Option<Instant>,
}

impl Drop for Begun {
    fn drop(&mut self) {
        // Workers that have ended catch nothing any more.
        let _ = self.switch.end_capture(&self.capture);
    }
}

/// Checks what is asked for, and lets the workers begin.
pub fn begin(
    app: &App,
    control: &mut Permitted,
    request: &v1::CaptureFramesRequest,
) -> Result<Begun, Status> {
    let (names, taps) = taps(app, control, request)?;
    let share = app.capturing.take(control.caller())?;
    let filter = filter(&request.filter, control.caller())?;
    let direction = match request.direction() {
        v1::Direction::Unspecified => None,
        // As the guest's interface sees it.
        v1::Direction::Ingress => Some(Direction::Inbound),
        v1::Direction::Egress => Some(Direction::Outbound),
    };
    let snap_len = match request.snap_len {
        0 => SNAP_MAX,
        bytes => (bytes as usize).min(SNAP_MAX),
    };
    let (capture, frames) = Capture::new(Wanted {
        filter,
        snap_len,
        direction,
        dropped_only: request.dropped_only,
        received_only: false,
    });
    let switch = app.workers.switch();
    if switch.captures() >= AT_ONCE {
        return Err(Status::resource_exhausted(format!(
            "{AT_ONCE} captures run already, which is the limit"
        )));
    }
    let named = |slot: PortSlot| taps.iter().position(|(tap, _)| *tap == slot);
    switch
        .begin_capture(&taps, &capture)
        .map_err(|error| match error {
            CaptureError::TooMany(slot) => {
                let name = named(slot).map_or("", |index| names[index].as_str());
                Status::resource_exhausted(format!("'{name}': {error}"))
            }
            CaptureError::Gone(gone) => Status::unavailable(gone.to_string()),
        })?;
    control.caller().captures();
    let whole = |seconds: u32| Duration::from_secs(seconds.into());
    Ok(Begun {
        _share: share,
        switch: switch.clone(),
        capture,
        frames,
        names,
        snap_len,
        count: (request.frames > 0).then_some(request.frames),
        until: (request.seconds > 0).then(|| Instant::now() + whole(request.seconds)),
    })
}

type Taps = Vec<(PortSlot, PortUid)>;

fn taps(
    app: &App,
    control: &mut Permitted,
    request: &v1::CaptureFramesRequest,
) -> Result<(Vec<String>, Taps), Status> {
    let count = request.nics.len() + request.uplinks.len();
    if count == 0 || count > TAPS_MAX {
        return Err(Status::invalid_argument(format!(
            "a capture of {count} NICs and uplinks: it has 1 to {TAPS_MAX}"
        )));
    }
    let mut taps = Vec::with_capacity(count);
    for id in &request.nics {
        let id = NicId::new(id).map_err(super::refused)?;
        let nic = control.nic(&id)?;
        taps.push((nic.slot, nic.uid));
    }
    if !request.uplinks.is_empty() {
        // An uplink has what all networks say.
        control.whole()?;
        let facts = app.uplinks.running().map(|uplinks| uplinks.facts());
        for name in &request.uplinks {
            let mut facts = facts.iter().flat_map(|facts| facts.iter());
            let fact = facts.find(|fact| fact.interface == *name).ok_or_else(|| {
                Status::not_found(format!("there is no uplink '{}'", name.escape_debug()))
            })?;
            taps.push((PortSlot::uplink(fact.number), PortUid(0)));
        }
    }
    let mut seen = taps.clone();
    seen.sort_unstable();
    seen.dedup();
    if seen.len() < taps.len() {
        return Err(Status::invalid_argument("a NIC or uplink is named twice"));
    }
    let names = request.nics.iter().chain(&request.uplinks).cloned();
    Ok((names.collect(), taps))
}

/// Checks a filter, which is `None` where there is no instruction. INVALID_ARGUMENT for what is no
/// program, and for one that is longer than its client's may be.
pub fn filter(program: &[v1::BpfInstruction], caller: &Caller) -> Result<Option<Filter>, Status> {
    if program.is_empty() {
        return Ok(None);
    }
    let count = program.len();
    if caller.has_part() && count > PART_INSTRUCTIONS_MAX {
        return Err(Status::invalid_argument(format!(
            "a filter of {count} instructions: that of a client of a part of the networks has 1 to \
             {PART_INSTRUCTIONS_MAX}"
        )));
    }
    let narrow = |one: &v1::BpfInstruction| {
        Some(Instruction {
            code: one.code.try_into().ok()?,
            jt: one.jt.try_into().ok()?,
            jf: one.jf.try_into().ok()?,
            k: one.k,
        })
    };
    let each = program.iter().enumerate().map(|(at, one)| {
        narrow(one).ok_or_else(|| {
            Status::invalid_argument(format!("the filter's instruction {at} is none"))
        })
    });
    let program = each.collect::<Result<Vec<_>, _>>()?;
    let filter = Filter::new(&program);
    filter
        .map(Some)
        .map_err(|error| Status::invalid_argument(error.to_string()))
}

/// The parts of a capture, until it is over, nobody reads them or the daemon stops.
pub fn stream(app: Arc<App>, begun: Begun) -> mpsc::Receiver<Result<v1::CapturePart, Status>> {
    let of_app = app.clone();
    written(&of_app, AHEAD, |stopping| {
        let writer = Writer::new(app, begun, stopping);
        move |sender| writer.run(sender)
    })
}

/// What a thread of its own writes, `ahead` of its reader at most. `make` gives what runs there;
/// the flag is set when the daemon stops.
pub(super) fn written<T: Send + 'static, W: FnOnce(&mpsc::Sender<T>) + Send + 'static>(
    app: &Arc<App>,
    ahead: usize,
    make: impl FnOnce(Arc<AtomicBool>) -> W,
) -> mpsc::Receiver<T> {
    let (sender, receiver) = mpsc::channel(ahead);
    let stopping = Arc::new(AtomicBool::new(false));
    let (told, of_app) = (stopping.clone(), app.clone());
    // Goes with the writer. A sender here would keep the stream open when that has ended.
    let (writing, written) = oneshot::channel::<()>();
    drop(tokio::spawn(async move {
        tokio::select! {
            () = of_app.stopping() => told.store(true, Ordering::Relaxed),
            _ = written => (),
        }
    }));
    let write = make(stopping);
    tokio::task::spawn_blocking(move || {
        write(&sender);
        drop(writing);
    });
    receiver
}

/// Makes blocks of what was caught.
struct Writer {
    app: Arc<App>,
    stopping: Arc<AtomicBool>,
    runtime: Handle,
    begun: Begun,
    block: Vec<u8>,
    frames: u64,
    told: (u64, u64),
    told_at: Instant,
}

type Sender = mpsc::Sender<Result<v1::CapturePart, Status>>;

impl Writer {
    fn new(app: Arc<App>, begun: Begun, stopping: Arc<AtomicBool>) -> Writer {
        let mut block = Vec::new();
        pcapng::section_header(&mut block, APPLICATION);
        for name in &begun.names {
            pcapng::interface(&mut block, name, begun.snap_len as u32);
        }
        Writer {
            app,
            stopping,
            runtime: Handle::current(),
            begun,
            block,
            frames: 0,
            told: (0, 0),
            told_at: Instant::now(),
        }
    }

    fn run(mut self, sender: &Sender) {
        // Who reads it knows at once that it has begun.
        let mut going = self.send(sender);
        while going && !sender.is_closed() && !self.is_over() {
            match self.begun.frames.recv_timeout(self.patience()) {
                Ok(caught) => {
                    self.put(&caught);
                    self.put_more();
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if self.told_at.elapsed() >= COUNTS_EVERY {
                self.put_counts();
            }
            if !self.block.is_empty() {
                going = self.send(sender);
            }
        }
        if going {
            self.told_at = Instant::now();
            self.put_counts();
            self.send(sender);
        }
    }

    /// What is there already, as far as a part goes.
    fn put_more(&mut self) {
        while self.block.len() < PART_BYTES
            && self.begun.count.is_none_or(|count| self.frames < count)
        {
            match self.begun.frames.try_recv() {
                Ok(caught) => self.put(&caught),
                Err(_) => return,
            }
        }
    }

    fn put(&mut self, caught: &Caught) {
        self.begun.capture.taken(caught);
        self.frames += 1;
        let comment = caught.dropped.map(|reason| format!("dropped: {reason}"));
        let packet = PacketBlock {
            interface: caught.source,
            time_ns: caught.time_ns,
            frame_len: caught.frame_len,
            data: &caught.bytes,
            direction: Some(caught.direction),
            comment: comment.as_deref(),
        };
        pcapng::packet(&mut self.block, &packet);
    }

    /// How much was seen and lost, if that has changed.
    fn put_counts(&mut self) {
        self.told_at = Instant::now();
        let counts = self.begun.capture.counts();
        if counts != self.told {
            self.told = counts;
            let (seen, lost) = counts;
            pcapng::statistics(&mut self.block, 0, events::unix_nanos(), seen, lost);
        }
    }

    fn is_over(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
            || self.begun.count.is_some_and(|count| self.frames >= count)
            || self
                .begun
                .until
                .is_some_and(|until| Instant::now() >= until)
    }

    fn patience(&self) -> Duration {
        let left = self
            .begun
            .until
            .map(|until| until.saturating_duration_since(Instant::now()));
        left.map_or(LOOK, |left| left.min(LOOK))
    }

    /// False when nobody reads any more. Waits for a slow reader: the queue before us is what
    /// overflows then.
    fn send(&mut self, sender: &Sender) -> bool {
        let part = v1::CapturePart {
            pcapng: std::mem::take(&mut self.block),
            frames: self.frames,
            lost: self.begun.capture.counts().1,
        };
        self.runtime.block_on(async {
            tokio::select! {
                sent = sender.send(Ok(part)) => sent.is_ok(),
                () = self.app.stopping() => false,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::part;

    #[test]
    fn a_tenant_s_filter_is_short() {
        let (root, operator) = (Caller::of_user(0), Caller::of_user(60_001));
        let tenant = operator.clone().of_part(part(42..=42));
        let program = |count: usize| {
            let instruction = |code, k| v1::BpfInstruction {
                code,
                k,
                ..Default::default()
            };
            let mut program = vec![instruction(0x00, 1); count - 1];
            program.push(instruction(0x06, 1));
            program
        };
        let refused = filter(&program(257), &tenant).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::InvalidArgument);
        assert_eq!(
            refused.message(),
            "a filter of 257 instructions: that of a client of a part of the networks has 1 to 256"
        );
        assert!(filter(&program(256), &tenant).unwrap().is_some());
        assert!(filter(&[], &tenant).unwrap().is_none());
        for whole in [root, operator] {
            assert!(filter(&program(4096), &whole).unwrap().is_some());
            let refused = filter(&program(4097), &whole).unwrap_err();
            assert!(refused.message().ends_with("1 to 4096"), "{refused}");
        }
    }
}
