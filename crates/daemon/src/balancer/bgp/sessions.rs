//! What becomes of the sessions. BIRD is asked every few seconds: that it has taken its
//! configuration does not say that anybody is told of it. A session that it has given up it is told
//! to take up again, after ever longer pauses; one that is not there for longer than the hold time
//! is warned of.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bgp::{Neighbour, Session, Settings, Speaker, State};

use super::Shared;
use crate::app::App;

/// How often BIRD is asked.
const LOOK: Duration = Duration::from_secs(2);
/// How long after a session was given up BIRD is told to take it up again; then each time twice as
/// long, up to a maximum.
const AGAIN: Duration = Duration::from_secs(1);
const AGAIN_MAX: Duration = Duration::from_secs(60);

/// Those with all neighbours that the settings name; none without settings.
#[derive(Default)]
pub struct Sessions(Mutex<Vec<Watched>>);

/// One of them.
struct Watched {
    /// The neighbour's autonomous system.
    asn: u32,
    /// How long it may be away without a word here.
    hold: Duration,
    session: Session,
    /// Since when it is not established.
    lost: Option<Instant>,
    /// It is said in the log that it is not there.
    told: bool,
    /// When BIRD is told next to take it up again, and how long that is after the last time.
    again: Option<Instant>,
    pause: Duration,
}

impl Sessions {
    /// Where each stands now.
    pub fn states(&self) -> Vec<(IpAddr, State)> {
        let all = self.lock();
        let state = |one: &Watched| (one.session.neighbour, one.session.state);
        all.iter().map(state).collect()
    }

    /// A sentence for each that is not there for longer than the hold time.
    pub fn warnings(&self) -> Vec<String> {
        let now = Instant::now();
        let all = self.lock();
        let missed = all.iter().filter(|one| one.is_missed(now));
        missed.map(Watched::warning).collect()
    }

    /// From now on these are asked for.
    fn begin(&self, settings: &Settings, now: Instant) {
        let neighbours = settings.neighbours.iter();
        let watched = neighbours.map(|one| Watched::new(one, settings.hold, now));
        *self.lock() = watched.collect();
    }

    /// BIRD has said this, or why it has not. Whether it is to be told to take up again what it has
    /// given up.
    fn take(&self, found: Result<Vec<Session>, String>, now: Instant) -> bool {
        let mut all = self.lock();
        match found {
            Ok(found) => {
                for (one, session) in all.iter_mut().zip(found) {
                    one.take(session, now);
                }
                // Each of them counts its pauses.
                let due = all.iter_mut().map(|one| one.is_due(now));
                due.fold(false, |any, one| any | one)
            }
            Err(why) => {
                for one in &mut *all {
                    let session = Session {
                        state: State::Down,
                        error: why.clone(),
                        ..one.session
                    };
                    one.take(session, now);
                }
                false
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Watched>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watched {
    fn new(neighbour: &Neighbour, hold: Duration, now: Instant) -> Watched {
        Watched {
            asn: neighbour.asn,
            hold,
            session: Session {
                neighbour: neighbour.address,
                state: State::Idle,
                error: String::new(),
            },
            lost: Some(now),
            told: false,
            again: None,
            pause: AGAIN,
        }
    }

    fn take(&mut self, session: Session, now: Instant) {
        self.session = session;
        if self.session.state == State::Established {
            (self.lost, self.again, self.pause) = (None, None, AGAIN);
            if std::mem::take(&mut self.told) {
                let neighbour = self.session.neighbour;
                tracing::info!("the BGP session with {neighbour} is established");
            }
            return;
        }
        self.lost.get_or_insert(now);
        if self.is_missed(now) && !self.told {
            self.told = true;
            tracing::warn!("{}", self.warning());
        }
    }

    /// Whether BIRD is to be told now to take it up again; then the next time is later.
    fn is_due(&mut self, now: Instant) -> bool {
        if self.session.state != State::Down {
            return false;
        }
        let is_due = match self.again {
            Some(again) if again > now => return false,
            again => again.is_some(),
        };
        self.again = Some(now + self.pause);
        self.pause = AGAIN_MAX.min(2 * self.pause);
        is_due
    }

    fn is_missed(&self, now: Instant) -> bool {
        let away = |since: Instant| now.saturating_duration_since(since);
        self.lost.is_some_and(|since| away(since) > self.hold)
    }

    fn warning(&self) -> String {
        let Session {
            neighbour,
            state,
            error,
        } = &self.session;
        let (state, asn) = (state.name(), self.asn);
        let error = match error.as_str() {
            "" => String::new(),
            error => format!(", {error}"),
        };
        format!(
            "the BGP session with {neighbour} (AS {asn}) is not established, and no address is \
             announced by it: {state}{error}"
        )
    }
}

/// Asks for them, for ever.
pub(super) async fn watch(app: Arc<App>, speaker: Shared, settings: Settings) {
    let sessions = &app.bgp;
    sessions.begin(&settings, Instant::now());
    loop {
        // Whoever has something to announce does not wait for this answer.
        let asking = speaker.lock().await.as_ref().map(Speaker::sessions);
        let found = match asking {
            Some(asking) => asking.await.map_err(|error| error.to_string()),
            None => Err("BIRD does not run".to_owned()),
        };
        if sessions.take(found, Instant::now()) {
            let speaker = speaker.lock().await;
            if let Some(speaker) = &*speaker
                && let Err(error) = speaker.announce_again().await
            {
                tracing::error!("BGP: {error}");
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn sessions(now: Instant) -> Sessions {
        let text = "[local]\nas = 65001\nrouter-id = 10.1.2.3\nhold = 9\n\
                    [neighbour 10.1.2.1]\nas = 65002\n[neighbour 10.1.2.2]\nas = 65003\n";
        let sessions = Sessions::default();
        sessions.begin(&text.parse().unwrap(), now);
        sessions
    }

    fn found(states: [(State, &str); 2]) -> Result<Vec<Session>, String> {
        let neighbours = ["10.1.2.1", "10.1.2.2"].map(|ip| ip.parse().unwrap());
        let one = |(neighbour, (state, error)): (IpAddr, (State, &str))| Session {
            neighbour,
            state,
            error: error.to_owned(),
        };
        Ok(neighbours.into_iter().zip(states).map(one).collect())
    }

    fn warnings(sessions: &Sessions, now: Instant) -> Vec<String> {
        let all = sessions.lock();
        let missed = all.iter().filter(|one| one.is_missed(now));
        missed.map(Watched::warning).collect()
    }

    #[test]
    fn a_session_is_missed_after_the_hold_time() {
        let start = Instant::now();
        let sessions = sessions(start);
        let up = (State::Established, "");
        let refused = (State::Active, "Socket: Connection refused");
        assert!(!sessions.take(found([up, refused]), start + SECOND));
        assert_eq!(
            warnings(&sessions, start + 9 * SECOND),
            Vec::<String>::new()
        );
        let missed = "the BGP session with 10.1.2.2 (AS 65003) is not established, and no address \
                      is announced by it: Active, Socket: Connection refused";
        assert_eq!(warnings(&sessions, start + 10 * SECOND), [missed]);
        // A word of BIRD's about something else does not begin it anew; the session does.
        sessions.take(found([up, (State::Connect, "")]), start + 10 * SECOND);
        assert_eq!(warnings(&sessions, start + 11 * SECOND).len(), 1);
        sessions.take(found([up, up]), start + 12 * SECOND);
        assert_eq!(
            warnings(&sessions, start + 60 * SECOND),
            Vec::<String>::new()
        );
        sessions.take(found([up, refused]), start + 60 * SECOND);
        assert_eq!(
            warnings(&sessions, start + 69 * SECOND),
            Vec::<String>::new()
        );
        assert_eq!(warnings(&sessions, start + 70 * SECOND), [missed]);
        // BIRD itself says nothing any more: nobody is known to be told.
        sessions.take(Err("BIRD does not answer".to_owned()), start + 80 * SECOND);
        let all = warnings(&sessions, start + 90 * SECOND);
        assert_eq!(all.len(), 2);
        assert!(all[0].ends_with("Down, BIRD does not answer"), "{all:?}");
        let down = sessions
            .states()
            .iter()
            .all(|(_, state)| *state == State::Down);
        assert!(down);
    }

    /// Of those that try by themselves BIRD is told nothing.
    #[test]
    fn what_is_given_up_is_tried_again_with_growing_pauses() {
        let start = Instant::now();
        let sessions = sessions(start);
        let (active, up) = ((State::Active, ""), (State::Established, ""));
        let down = (State::Down, "Error: No listening socket");
        let told = |from: u32, states: [(State, &str); 2]| -> Vec<u32> {
            let at = |second: &u32| sessions.take(found(states), start + *second * SECOND);
            (from..from + 200).filter(at).collect()
        };
        assert_eq!(told(0, [active, up]), Vec::<u32>::new());
        let times = told(200, [active, down]);
        assert_eq!(times, [201, 203, 207, 215, 231, 263, 323, 383]);
        // It was up, and is given up again.
        told(400, [active, up]);
        assert_eq!(told(600, [active, down])[..3], [601, 603, 607]);
        assert!(!sessions.take(Err("silent".to_owned()), start + 1000 * SECOND));
    }
}
