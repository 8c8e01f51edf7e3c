//! Which captures run, for the workers to know: a part of the [`Switch`]'s face.
//!
//! A capture is no part of the configuration: workers are handed the view in force once more, with
//! other traces of some NICs in it. Its epoch is the same, so that no flow is decided again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use io::trace::capture::{Capture, Tap};

use super::Switch;
use crate::handle::{Command, WorkerGone};
use crate::ids::{PortSlot, PortUid};
use crate::trial::live::Live;
use crate::view::{Difference, View};

/// Captures that take from one NIC or uplink at most.
pub const CAPTURES_MAX: usize = 16;

/// The taps of each NIC and uplink, and who traces a NIC live.
#[derive(Default)]
pub(crate) struct Taps(
    Mutex<BTreeMap<PortSlot, (PortUid, Vec<Tap>)>>,
    Mutex<Vec<(PortSlot, PortUid, Arc<Live>)>>,
);

impl Taps {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<PortSlot, (PortUid, Vec<Tap>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lives(&self) -> MutexGuard<'_, Vec<(PortSlot, PortUid, Arc<Live>)>> {
        self.1.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What workers are handed of a view.
    pub(crate) fn applied_to(&self, view: &Arc<View>) -> Arc<View> {
        let all = self.lock();
        if all.is_empty() {
            return view.clone();
        }
        let each = all
            .iter()
            .map(|(slot, (uid, taps))| (*slot, *uid, &taps[..]));
        Arc::new(view.tapped(each, self.lives().clone()))
    }
}

/// A capture cannot begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CaptureError {
    /// See [`CAPTURES_MAX`].
    #[error("{CAPTURES_MAX} captures take from it already")]
    TooMany(PortSlot),
    /// Nothing is switched any more.
    #[error(transparent)]
    Gone(#[from] WorkerGone),
}

impl Switch {
    /// A capture begins to take the frames of these NICs and uplinks, whose place in the list is
    /// the [`source`](Tap::source) of their frames. An uplink's uid is not looked at. It ends with
    /// [`end_capture`](Self::end_capture), or for a NIC when that is gone.
    pub fn begin_capture(
        &self,
        places: &[(PortSlot, PortUid)],
        capture: &Arc<Capture>,
    ) -> Result<(), CaptureError> {
        let mut all = self.taps.lock();
        let full = places.iter().find(|(slot, uid)| {
            let there = all.get(slot).filter(|(other, _)| other == uid);
            there.is_some_and(|(_, taps)| taps.len() >= CAPTURES_MAX)
        });
        if let Some((slot, _)) = full {
            return Err(CaptureError::TooMany(*slot));
        }
        for ((slot, uid), source) in places.iter().zip(0..) {
            let (owner, taps) = all.entry(*slot).or_insert((*uid, Vec::new()));
            if owner != uid {
                // Of the NIC that had the slot before.
                (*owner, *taps) = (*uid, Vec::new());
            }
            taps.push(Tap {
                capture: capture.clone(),
                source,
            });
        }
        drop(all);
        Ok(self.hand_out_again()?)
    }

    /// How many captures there are.
    pub fn captures(&self) -> usize {
        let all = self.taps.lock();
        let taps = all.values().flat_map(|(_, taps)| taps);
        let mut which: Vec<_> = taps.map(|tap| Arc::as_ptr(&tap.capture)).collect();
        which.sort_unstable();
        which.dedup();
        which.len()
    }

    /// A capture takes nothing any more.
    pub fn end_capture(&self, capture: &Arc<Capture>) -> Result<(), WorkerGone> {
        let is_it = |tap: &Tap| Arc::ptr_eq(&tap.capture, capture);
        let mut all = self.taps.lock();
        all.values_mut()
            .for_each(|(_, taps)| taps.retain(|tap| !is_it(tap)));
        all.retain(|_, (_, taps)| !taps.is_empty());
        drop(all);
        self.hand_out_again()
    }

    /// A live trace begins to look at the frames that a NIC sends, of which a capture is to be
    /// begun behind it. One for a NIC at a time: false when there is one.
    pub fn begin_live(&self, (slot, uid): (PortSlot, PortUid), live: &Arc<Live>) -> bool {
        let mut lives = self.taps.lives();
        if lives.iter().any(|(of, its, _)| (*of, *its) == (slot, uid)) {
            return false;
        }
        lives.push((slot, uid, live.clone()));
        true
    }

    /// A live trace looks at nothing any more, when its capture is ended behind it.
    pub fn end_live(&self, live: &Arc<Live>) {
        self.taps
            .lives()
            .retain(|(.., one)| !Arc::ptr_eq(one, live));
    }

    /// The view in force once more, with the captures of now.
    pub(super) fn hand_out_again(&self) -> Result<(), WorkerGone> {
        let published = self
            .published
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let view = published.as_ref().ok_or(WorkerGone)?;
        let handed = self.taps.applied_to(view);
        let difference = Arc::new(Difference::default());
        let generation = self.end_permits();
        self.ask_all(|answer| {
            Command::Publish(handed.clone(), difference.clone(), generation, answer)
        })
        .map(drop)
    }
}
