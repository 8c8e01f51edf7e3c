//! A host that takes part in a round: started once, with its guest and its cable, and halted while
//! others are measured.

use std::path::Path;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use wire::offload::Offload;

use super::cable::{self, ADDRESSES, CHUNK, Cable, MACS, UPLINK};
use super::guest::Side;
use super::{Peer, Row, kernel};
use crate::guest::Guest;
use crate::load::{self, Load, Script, Turns};
use crate::passes::said;
use crate::peers::ovs::host::{self as ovs, Wire};
use crate::peers::{PeerError, Running, butterfly};
use crate::results::{Column, Row as _, Seen};
use crate::{interrupt, tunnel};

/// Ring entries of a guest, and of one with 64 KiB buffers.
const RING: u16 = 1024;
const RING_LARGE: u16 = 256;

/// Until guest 0 is reached and reaches the far end.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a host that was halted runs before its window begins.
const WARM: Duration = Duration::from_millis(20);

/// One host, its guest and its cable.
pub struct Host {
    /// Which it is.
    pub peer: Peer,
    /// What is sent; nothing after an error.
    course: Option<Course>,
    // In the order in which they go.
    side: Side,
    /// None where nothing runs but the kernel.
    running: Option<Running>,
    cable: Cable,
    _dir: TempDir,
}

/// What is sent in a row.
enum Course {
    /// By the guest.
    ToWire(Load, Box<Script>, Turns),
    /// From the far end.
    FromWire(Vec<u8>),
}

impl Host {
    /// Starts it, waits until its guest and the far end hear each other, and halts it.
    pub fn start(peer: Peer, core: usize, large: bool) -> Result<Host, PeerError> {
        let dir = tempfile::tempdir()
            .map_err(|error| PeerError(format!("temporary directory: {error}")))?;
        let cable = Cable::lay(matches!(peer, Peer::Butterfly | Peer::Kernel))?;
        let running = start(peer, &cable, dir.path(), core)?;
        let side = match &running {
            Some(running) => {
                let (ring, frame_max) = if large {
                    (RING_LARGE, 65_536)
                } else {
                    (RING, 2_036)
                };
                let guest = Guest::new(ring, frame_max)?;
                let _sessions = running.connect(std::slice::from_ref(&guest))?;
                let guest = Box::new(guest);
                Side::Rings { guest, _sessions }
            }
            None if peer == Peer::Kernel => Side::Ports(kernel::start(&cable, core)?.into()),
            None => Side::Discard {
                _sink: cable::sink(&cable.host, UPLINK)?,
            },
        };
        let mut host = Host {
            peer,
            course: None,
            side,
            running,
            cable,
            _dir: dir,
        };
        host.meet()?;
        host.halt()?;
        Ok(host)
    }

    /// What comes before the first window of a row. If it fails, that is said and the host left out
    /// of the row.
    pub fn begin(&mut self, row: Row) {
        let begun = self.awake(|own| own.begun(row));
        self.course = said(&self.in_row(row), begun);
    }

    /// One window.
    pub fn window(&mut self, row: Row, window: Duration) -> Vec<Seen<Row, Peer>> {
        let Some(mut course) = self.course.take() else {
            return Vec::new();
        };
        let measured = self.awake(|own| {
            // A neighbour's turn on our core can last longer than this one: nothing need arrive in
            // it.
            own.frames(&mut course, WARM)?;
            match own.frames(&mut course, window)? {
                0.0 => Err(PeerError(format!("nothing arrives within {window:.0?}"))),
                rate => Ok(rate),
            }
        });
        let peer = self.peer;
        let Some(value) = said(&self.in_row(row), measured) else {
            return Vec::new();
        };
        self.course = Some(course);
        vec![Seen { row, peer, value }]
    }

    /// What comes behind the last window.
    pub fn end(&mut self) {
        let settled = self.awake(Host::settle);
        said(self.peer.name(), settled);
        self.course = None;
    }

    /// Who has failed, and in which row.
    fn in_row(&self, row: Row) -> String {
        format!("{}, {}", self.peer.name(), row.name())
    }

    /// Does something while the host runs.
    fn awake<T>(
        &mut self,
        what: impl FnOnce(&mut Host) -> Result<T, PeerError>,
    ) -> Result<T, PeerError> {
        self.running.as_ref().map_or(Ok(()), Running::resume)?;
        let done = what(self);
        self.halt()?;
        done
    }

    fn halt(&self) -> Result<(), PeerError> {
        self.running.as_ref().map_or(Ok(()), Running::halt)
    }

    /// Waits until the guests hear each other: guest 0 begins, as rules allow, and is answered.
    fn meet(&mut self) -> Result<(), PeerError> {
        if matches!(self.side, Side::Discard { .. }) {
            return Ok(());
        }
        let answer = tunnel::wrapped(&load::datagram(1, 60)?)?;
        let (start, sent, got) = (Instant::now(), self.cable.arrived()?, self.arrived()?);
        loop {
            self.side.say(&load::datagram(0, 60)?)?;
            interrupt::sleep(Duration::from_millis(10))?;
            self.cable.at_far_end(|far| far.send(&answer, 1))?;
            interrupt::sleep(Duration::from_millis(10))?;
            let heard = self.side.take() > 0 || self.arrived()? > got;
            if heard && self.cable.arrived()? > sent {
                return Ok(());
            }
            if start.elapsed() > PATIENCE {
                let what = if heard {
                    "the far end does not hear the guest"
                } else {
                    "the guest hears nothing"
                };
                return Err(PeerError(what.to_owned()));
            }
        }
    }

    fn begun(&mut self, row: Row) -> Result<Course, PeerError> {
        match row {
            Row::ToWire(load) => {
                let script = load::script(load)?;
                for (from, frame) in &script.first {
                    match from {
                        0 => self.side.say(frame)?,
                        _ => {
                            let frame = tunnel::wrapped(frame)?;
                            self.cable.at_far_end(|far| far.send(&frame, 1))?;
                        }
                    }
                    interrupt::sleep(Duration::from_millis(10))?;
                }
                self.side.take();
                self.side.prepare(&script.frame, &script.offload);
                Ok(Course::ToWire(load, script.into(), Turns::of(load)))
            }
            Row::FromWire(load) => {
                self.side
                    .prepare(&load::datagram(0, 60)?, &Offload::default());
                let frame = load::request_from_afar(load.frame_bytes())?;
                Ok(Course::FromWire(tunnel::wrapped(&frame)?))
            }
        }
    }

    /// Sends for so long; gives frames a second, counted where they arrive.
    fn frames(&mut self, course: &mut Course, time: Duration) -> Result<f64, PeerError> {
        let start = Instant::now();
        let count = match course {
            Course::ToWire(load, script, turns) => {
                let before = self.cable.arrived()?;
                self.side
                    .flood(&script.frame, &script.offload, turns, time)?;
                (self.cable.arrived()? - before) as f64 / tunnel::pieces(*load) as f64
            }
            Course::FromWire(frame) => {
                let before = self.arrived()?;
                let side = &mut self.side;
                let taken = self.cable.at_far_end(|far| {
                    let mut taken = 0;
                    while start.elapsed() < time {
                        interrupt::check()?;
                        far.send(frame, CHUNK)?;
                        taken += side.take();
                    }
                    Ok(taken)
                })?;
                (taken + self.arrived()? - before) as f64
            }
        };
        Ok(count / start.elapsed().as_secs_f64())
    }

    /// Frames that have come to the guest and are counted without being taken.
    fn arrived(&self) -> Result<u64, PeerError> {
        match &self.side {
            Side::Rings { .. } => Ok(0),
            Side::Ports(ports) => ports.arrived(),
            Side::Discard { .. } => cable::received(&self.cable.host, UPLINK),
        }
    }

    /// Waits until nothing arrives any more.
    fn settle(&mut self) -> Result<(), PeerError> {
        let mut before = self.arrived()?;
        loop {
            interrupt::sleep(Duration::from_millis(30))?;
            let now = self.arrived()?;
            if self.side.take() == 0 && now == before {
                return Ok(());
            }
            before = now;
        }
    }
}

/// The host's switch, where it is a process.
fn start(peer: Peer, cable: &Cable, dir: &Path, core: usize) -> Result<Option<Running>, PeerError> {
    let holder = cable.host.pid();
    let ends = ovs::Ends {
        holder,
        uplink: UPLINK,
        addresses: ADDRESSES,
        macs: MACS.map(|mac| mac.to_string()),
    };
    Ok(match peer {
        Peer::Butterfly => Some(butterfly::start_host(dir, core, holder, UPLINK, ADDRESSES)?),
        Peer::ButterflyDpdk => {
            let [_, far] = &ends.macs;
            Some(butterfly::start_host_by_dpdk(
                dir, core, holder, UPLINK, ADDRESSES, far,
            )?)
        }
        Peer::OvsAfPacket => Some(ovs::start(dir, core, Wire::AfPacket, &ends)?),
        Peer::OvsAfXdp => Some(ovs::start(dir, core, Wire::AfXdp, &ends)?),
        Peer::Kernel | Peer::Sender => None,
    })
}
