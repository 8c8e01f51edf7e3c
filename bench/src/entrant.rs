//! A switch that takes part in a round: started once, with its guests connected, and halted while
//! others are measured.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use testkit::vhost_frontend::Frontend;
use wire::offload::Offload;

use crate::exchange::Kind;
use crate::flood::{self, Attack, FLOODER, Flood};
use crate::guest::{Described, Guest};
use crate::load::{self, Load, Turns};
use crate::passes::said;
use crate::peers::{Peer, PeerError, Running, Setup};
use crate::plan::{BASE, MANY, PER_MILLE, Plan, Row, Test};
use crate::report::Samples;
use crate::results::{Column, Seen};
use crate::{connections, idle, latency, rate};

/// Ring entries of a guest, and of one with 64 KiB buffers.
const RING: u16 = 1024;
const RING_LARGE: u16 = 256;

/// Ring entries of each guest of a crowd.
const RING_CROWD: u16 = 64;

/// Before the first frame after a quiet time. A worker sleeps much sooner.
pub const QUIET: Duration = Duration::from_millis(20);

/// How long a switch that was halted runs before its window begins.
const WARM: Duration = Duration::from_millis(15);

/// One switch and its guests.
pub struct Entrant {
    /// Which it is.
    pub peer: Peer,
    /// The test under way; none after an error.
    course: Option<Course>,
    /// Frames a second with [`BASE`] in this round.
    base: Samples,
    // In the order in which they go.
    sessions: Vec<Frontend>,
    guests: [Guest; 2],
    /// The third guest and the fourth, where there are such.
    attack: Option<Attack>,
    running: Running,
    _dir: TempDir,
}

/// What a test keeps from one window to the next.
enum Course {
    Rate(Load, Turns),
    Exchanges(Row, connections::Course),
    Flood(Flood, Turns),
    Alone,
    /// At so many frames a second.
    Loaded(f64),
    Idle,
}

impl Entrant {
    /// Starts the switch, connects guests that hear each other, and halts it.
    pub fn start(peer: Peer, core: usize, setup: Setup) -> Result<Entrant, PeerError> {
        let dir = tempfile::tempdir()
            .map_err(|error| PeerError(format!("temporary directory: {error}")))?;
        let running = peer.start(dir.path(), core, setup)?;
        let (ring, frame_max) = match setup {
            _ if setup.is_large() => (RING_LARGE, 65_536),
            _ => (RING, 2_036),
        };
        let guest = |index| match index > FLOODER && setup.has_crowd() {
            true => Guest::new(RING_CROWD, frame_max),
            false => Guest::new(ring, frame_max),
        };
        let guests: Vec<Guest> = (0..setup.guests()).map(guest).collect::<Result<_, _>>()?;
        let sessions = running.connect(&guests)?;
        let mut guests = guests.into_iter();
        let (Some(first), Some(second)) = (guests.next(), guests.next()) else {
            return Err(PeerError("two guests at least".to_owned()));
        };
        let attack = guests.next().zip(guests.next());
        let attack = attack.map(|(third, fourth)| Attack::new([third, fourth], guests.collect()));
        let attack = attack.transpose()?;
        let mut guests = [first, second];
        rate::meet(&mut guests)?;
        running.halt()?;
        Ok(Entrant {
            peer,
            course: None,
            base: Samples::default(),
            sessions,
            guests,
            attack,
            running,
            _dir: dir,
        })
    }

    /// What comes before the first window of a test. If it fails, that is said and the switch left
    /// out of the test.
    pub fn begin(&mut self, test: Test) {
        let begun = self.awake(|own| own.begun(test));
        self.course = said(self.peer.name(), begun);
    }

    /// One window of the test under way.
    pub fn window(&mut self, plan: &Plan) -> Vec<Seen<Row, Peer>> {
        let Some(mut course) = self.course.take() else {
            return Vec::new();
        };
        let measured = self.awake(|own| own.measured(&mut course, plan));
        let Some(rows) = said(self.peer.name(), measured) else {
            return Vec::new();
        };
        self.course = Some(course);
        let peer = self.peer;
        rows.into_iter()
            .map(|(row, value)| Seen { row, peer, value })
            .collect()
    }

    /// What comes behind the last window.
    pub fn end(&mut self) {
        if let Some(Course::Rate(..)) = self.course.take() {
            let ended = self.awake(|own| rate::end(&mut own.guests));
            said(self.peer.name(), ended);
        }
    }

    /// Does something while the switch runs.
    fn awake<T>(
        &mut self,
        what: impl FnOnce(&mut Entrant) -> Result<T, PeerError>,
    ) -> Result<T, PeerError> {
        self.running.resume()?;
        let done = what(self);
        self.running.halt()?;
        done
    }

    fn begun(&mut self, test: Test) -> Result<Course, PeerError> {
        self.running.forget_connections()?;
        let guests = &mut self.guests;
        // What an error has left in the rings.
        rate::drain(guests)?;
        Ok(match test {
            Test::Rate(load) => Course::Rate(load, rate::begin(guests, load)?),
            Test::Exchanges(kind) => {
                let course = connections::Course::begin(guests, kind)?;
                Course::Exchanges(Row::Exchanges(kind), course)
            }
            Test::ManyRules => {
                let course = connections::Course::begin(guests, Kind::Connection)?;
                Course::Exchanges(Row::ManyRules, course)
            }
            Test::Flood(flood) => {
                if let Some(attack) = &mut self.attack {
                    attack.prepare(flood)?;
                }
                let turns = rate::begin(guests, BASE)?;
                // The answers of round trips.
                guests[1].prepare(&load::datagram(1, BASE.frame_bytes())?, &Offload::default());
                Course::Flood(flood, turns)
            }
            Test::Alone | Test::Loaded | Test::Idle => {
                latency::begin(guests)?;
                match test {
                    Test::Alone => Course::Alone,
                    Test::Loaded if self.base.count() > 0 => {
                        Course::Loaded(0.8 * self.base.median())
                    }
                    Test::Loaded => {
                        return Err(PeerError(
                            "the rate that 80 % are of is not known".to_owned(),
                        ));
                    }
                    _ => Course::Idle,
                }
            }
        })
    }

    fn measured(&mut self, course: &mut Course, plan: &Plan) -> Result<Vec<(Row, f64)>, PeerError> {
        let guests = &mut self.guests;
        match course {
            Course::Rate(load, turns) => {
                rate::flood(guests, turns, 0, WARM, WARM)?;
                let rate = rate::flood(guests, turns, 0, plan.window, plan.window)?;
                let mut rows = vec![(Row::Rate(*load), rate)];
                if *load == BASE {
                    self.base.push(rate);
                }
                if *load == MANY {
                    let mut one = Turns::of(BASE).written();
                    guests[0].prepare(&load::datagram(0, BASE.frame_bytes())?, &Offload::default());
                    rate::flood(guests, &mut one, 0, WARM, WARM)?;
                    let one = rate::flood(guests, &mut one, 0, plan.window, plan.window)?;
                    rows.push((Row::OfOne, rate / one));
                }
                Ok(rows)
            }
            Course::Flood(flood, turns) => {
                let Some(attack) = &mut self.attack else {
                    return Err(PeerError("no third guest".to_owned()));
                };
                let mut seen = [(0.0, 0.0); 2];
                for (on, seen) in [false, true].into_iter().zip(&mut seen) {
                    attack.on = on;
                    let restarts = attack.restarts()?;
                    let restarts = restarts.as_ref().zip(self.sessions.get_mut(FLOODER));
                    *seen = beside_restarts(restarts, || {
                        flood::arriving(guests, attack, turns, WARM)?;
                        let rate = flood::arriving(guests, attack, turns, plan.window)?;
                        rate::drain(guests)?;
                        let times = flood::round_trips(guests, attack, plan.window)?;
                        Ok((rate, times.quantile(0.99)))
                    })?;
                }
                attack.on = false;
                let [alone, flooded] = seen;
                Ok(vec![
                    (Row::Flood(*flood), flooded.0 / alone.0),
                    (Row::FloodedRoundTrip(*flood), flooded.1 / alone.1),
                ])
            }
            Course::Exchanges(row, connections) => {
                connections.window(guests, WARM)?;
                Ok(vec![(*row, connections.window(guests, plan.window)?)])
            }
            Course::Alone => {
                latency::alone(guests, WARM)?;
                Ok(round_trips(false, latency::alone(guests, plan.window)?))
            }
            Course::Loaded(rate) => {
                latency::loaded(guests, *rate, WARM)?;
                Ok(round_trips(
                    true,
                    latency::loaded(guests, *rate, plan.window)?,
                ))
            }
            Course::Idle => {
                let used = idle::measure(&self.running.pids(), plan.idle)?;
                if self.peer.sleeps() && used.percent > 1.0 {
                    eprintln!("{} is not idle: {used}", self.peer.name());
                }
                let times = Samples::from(latency::after_quiet(guests, plan.first_frames, QUIET)?);
                Ok(vec![
                    (Row::IdleCpu, used.percent),
                    (Row::FirstFrame { longest: false }, times.median()),
                    (Row::FirstFrame { longest: true }, times.quantile(1.0)),
                ])
            }
        }
    }
}

/// Measures while a VMM starts its guest's rings anew over and over, if there is one that does.
fn beside_restarts<T>(
    restarts: Option<(&Described, &mut Frontend)>,
    measure: impl FnOnce() -> Result<T, PeerError>,
) -> Result<T, PeerError> {
    let Some((guest, session)) = restarts else {
        return measure();
    };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let restarting = scope.spawn(|| -> std::io::Result<()> {
            while !stop.load(Ordering::Relaxed) {
                guest.start_again(session)?;
            }
            Ok(())
        });
        let measured = measure();
        stop.store(true, Ordering::Relaxed);
        let ended = restarting.join();
        let ended = ended.map_err(|_| PeerError("a restart panicked".to_owned()))?;
        ended.map_err(|error| PeerError(format!("a guest's rings start no more: {error}")))?;
        measured
    })
}

fn round_trips(loaded: bool, times: Vec<f64>) -> Vec<(Row, f64)> {
    let times = Samples::from(times);
    let row = |per_mille| {
        let time = times.quantile(f64::from(per_mille) / 1000.0);
        (Row::RoundTrip { loaded, per_mille }, time)
    };
    PER_MILLE.map(row).to_vec()
}
