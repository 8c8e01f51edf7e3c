//! How often who has a part of the networks may change something. A change is in force for the next
//! frame of everybody: all connections of the host are judged anew once, and it is recorded. Root
//! and operators of the whole host may do so as often as they like; a part's are bounded, so that
//! nobody costs other tenants their known connections all the time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sys::allowance::Allowance;

use super::permitted::Refusal;

/// Changes of one client at once, and how long until it may make one more. What changes nothing is
/// none.
const AT_ONCE: u32 = 4096;
const EVERY: Duration = Duration::from_millis(100);

/// What each of these clients may change still. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct ChangeRate(Arc<Mutex<BTreeMap<Arc<str>, Allowance>>>);

impl ChangeRate {
    /// Whether a client may change something now.
    ///
    /// # Errors
    /// It has changed too much of late.
    pub fn admit(&self, who: &Arc<str>, now: Instant) -> Result<(), Refusal> {
        let mut clients = self.lock();
        let left = clients.get_mut(who).map(|theirs| theirs.left(now));
        match left {
            Some(0) => Err(Refusal::TooOften(format!(
                "{who} has made {AT_ONCE} changes and more of late; who has a part of the networks \
                 may make {} a second then: ask again later",
                Duration::from_secs(1).as_millis() / EVERY.as_millis()
            ))),
            _ => Ok(()),
        }
    }

    /// A client has changed something.
    pub fn changed(&self, who: &Arc<str>, now: Instant) {
        let mut clients = self.lock();
        if !clients.contains_key(who) {
            // Who has changed nothing for long is as one who never has.
            clients.retain(|_, theirs| !theirs.is_whole(now));
        }
        let new = || Allowance::new(AT_ONCE, EVERY);
        clients.entry(who.clone()).or_insert_with(new).take(now);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Allowance>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_changed_much_waits_and_nobody_else() {
        let rate = ChangeRate::default();
        let (one, other) = (Arc::from("one"), Arc::from("other"));
        let start = Instant::now();
        for _ in 0..AT_ONCE {
            rate.admit(&one, start).unwrap();
            rate.changed(&one, start);
        }
        let refused = rate.admit(&one, start).unwrap_err().to_string();
        assert!(
            refused.starts_with("one has made 4096 changes"),
            "{refused}"
        );
        assert!(refused.contains("may make 10 a second"), "{refused}");
        rate.admit(&other, start).unwrap();
        rate.admit(&one, start + EVERY).unwrap();
        rate.changed(&one, start + EVERY);
        rate.admit(&one, start + EVERY).unwrap_err();
        // Who has been quiet for long takes no room.
        rate.changed(&other, start + EVERY * (AT_ONCE + 2));
        assert_eq!(rate.lock().keys().collect::<Vec<_>>(), [&other]);
    }
}
