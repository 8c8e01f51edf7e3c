//! Which uplinks lose frames now: the kernel, or DPDK, counts what it had no room or no buffer for,
//! and a counter does not say whether that is over.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use uplink::Fact;

/// So long after the last lost frame an uplink is one that loses frames.
const LOSES_FOR: Duration = Duration::from_secs(60);

/// What was found out, by uplink.
#[derive(Default)]
pub struct Losses(Mutex<BTreeMap<u32, Counted>>);

struct Counted {
    interface: String,
    /// What the counter said last.
    lost: u64,
    /// It loses frames: so many since that began, the last of them was found then.
    now: Option<(u64, Instant)>,
}

impl Losses {
    /// Looks at the counters; says what begins and ends.
    pub fn look(&self, uplinks: &[Fact], lost: impl Fn(u32) -> u64) {
        self.look_at(uplinks, lost, Instant::now());
    }

    fn look_at(&self, uplinks: &[Fact], lost: impl Fn(u32) -> u64, at: Instant) {
        let mut known = self.lock();
        known.retain(|number, _| uplinks.iter().any(|fact| fact.number == *number));
        for fact in uplinks {
            let lost = lost(fact.number);
            let counted = known.entry(fact.number).or_insert_with(|| Counted {
                interface: fact.interface.clone(),
                lost,
                now: None,
            });
            // Of sockets that were made anew it begins anew.
            let more = lost.saturating_sub(counted.lost);
            counted.lost = lost;
            let name = &fact.interface;
            match counted.now {
                None if more > 0 => {
                    tracing::warn!("uplink {name} loses frames: {more} in the last seconds");
                    counted.now = Some((more, at));
                }
                Some((before, _)) if more > 0 => counted.now = Some((before + more, at)),
                Some((all, last)) if at.duration_since(last) >= LOSES_FOR => {
                    tracing::info!("uplink {name} loses no frames any more; it were {all}");
                    counted.now = None;
                }
                _ => {}
            }
        }
    }

    /// That an uplink loses frames, in a sentence; `None`: it does not.
    pub fn of(&self, number: u32) -> Option<String> {
        let known = self.lock();
        let counted = known.get(&number)?;
        let (all, _) = counted.now?;
        Some(format!(
            "uplink {} loses frames for want of room: {all} since that began, the last within a \
             minute (docs/uplink.md, limits)",
            counted.interface
        ))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Counted>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_uplink_loses_frames_until_it_has_lost_none_for_a_minute() {
        let (losses, start) = (Losses::default(), Instant::now());
        let uplink = Fact {
            number: 3,
            interface: "eth1".into(),
            ..super::super::tests::fact()
        };
        let look = |secs, lost| {
            let at = start + Duration::from_secs(secs);
            losses.look_at(std::slice::from_ref(&uplink), |_| lost, at);
            losses.of(3)
        };
        // What was lost before is no news, and no loss of now.
        assert_eq!(look(0, 100), None);
        let told = look(2, 107).unwrap();
        assert!(
            told.starts_with("uplink eth1 loses frames for want of room: 7 since"),
            "{told}"
        );
        assert!(look(4, 110).unwrap().contains(": 10 since"));
        // Sockets that are made anew count anew.
        assert!(look(6, 1).unwrap().contains(": 10 since"));
        assert!(look(63, 1).is_some());
        assert_eq!(look(64, 1), None);
        assert!(look(66, 2).unwrap().contains(": 1 since"));
        losses.look_at(&[], |_| 2, start + Duration::from_secs(68));
        assert_eq!(losses.of(3), None);
    }
}
