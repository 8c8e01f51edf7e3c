//! MAC addresses learnt behind NICs that may have machines of their own (`learn_macs`).
//!
//! Bounded, a quarter for one NIC at most; what was not heard of for 300 s is forgotten. When there is no
//! room nothing is learnt: frames for such a MAC go to all learners of the network, as for any unknown one.
//! A MAC that was given to a NIC is looked up first and cannot be taken over. One that several NICs share as an
//! allowed pair's (VRRP) is where it was sent from last, and is not to be had by who only learns.

use std::collections::VecDeque;

use foldhash::SharedSeed;
use foldhash::quality::SeedableRandomState;
use hashbrown::HashMap;
use wire::Mac;

use crate::snapshot::{NetworkIdx, PortSlot, PortUid};

/// How long a MAC is remembered, as IEEE 802.1D bridges do.
pub(crate) const AGING_SECS: u32 = 300;

pub(crate) struct LearnedMacs {
    max: usize,
    macs: HashMap<(NetworkIdx, Mac), Learned, SeedableRandomState>,
    /// In the order in which they are to be looked at for their age.
    queue: VecDeque<(NetworkIdx, Mac, u32)>,
    /// How many each NIC has.
    shares: HashMap<PortUid, usize, SeedableRandomState>,
}

#[derive(Clone, Copy)]
struct Learned {
    slot: PortSlot,
    uid: PortUid,
    heard_secs: u32,
}

impl LearnedMacs {
    pub(crate) fn new(max: u32, seed: u64) -> Self {
        let hasher = SeedableRandomState::with_seed(seed, SharedSeed::global_random());
        LearnedMacs {
            max: max as usize,
            macs: HashMap::with_hasher(hasher.clone()),
            queue: VecDeque::new(),
            shares: HashMap::with_hasher(hasher),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.macs.len()
    }

    /// Notes that `mac` was heard behind a NIC.
    pub(crate) fn hear(
        &mut self,
        network: NetworkIdx,
        mac: Mac,
        slot: PortSlot,
        uid: PortUid,
        now_secs: u32,
    ) {
        let share = self.shares.get(&uid).copied().unwrap_or(0);
        let share_full = share >= self.max.div_ceil(4);
        if let Some(known) = self.macs.get_mut(&(network, mac)) {
            if known.uid != uid {
                // It is where it was: who has as many as it may does not take others' either.
                if share_full {
                    return;
                }
                leave(&mut self.shares, known.uid);
                *self.shares.entry(uid).or_default() += 1;
            }
            *known = Learned {
                slot,
                uid,
                heard_secs: now_secs,
            };
            return;
        }
        if self.macs.len() >= self.max || share_full {
            return;
        }
        let learned = Learned {
            slot,
            uid,
            heard_secs: now_secs,
        };
        self.macs.insert((network, mac), learned);
        self.queue.push_back((network, mac, now_secs));
        *self.shares.entry(uid).or_default() += 1;
    }

    /// Behind which NIC `mac` was heard.
    #[inline]
    pub(crate) fn find(&self, network: NetworkIdx, mac: Mac, now_secs: u32) -> Option<(PortSlot, PortUid)> {
        let learned = self.macs.get(&(network, mac))?;
        let fresh = now_secs.wrapping_sub(learned.heard_secs) < AGING_SECS;
        fresh.then_some((learned.slot, learned.uid))
    }

    /// Forgets what is too old; looks at `count` MACs at most.
    pub(crate) fn age(&mut self, count: usize, now_secs: u32) {
        for _ in 0..count {
            let Some(&(network, mac, queued_secs)) = self.queue.front() else {
                return;
            };
            if now_secs.wrapping_sub(queued_secs) < AGING_SECS {
                return;
            }
            self.queue.pop_front();
            let Some(learned) = self.macs.get(&(network, mac)).copied() else {
                continue;
            };
            if now_secs.wrapping_sub(learned.heard_secs) < AGING_SECS {
                // Heard of since: to be looked at again when that is 300 s ago, or a little later.
                self.queue.push_back((network, mac, learned.heard_secs));
            } else {
                self.macs.remove(&(network, mac));
                leave(&mut self.shares, learned.uid);
            }
        }
    }
}

fn leave(shares: &mut HashMap<PortUid, usize, SeedableRandomState>, uid: PortUid) {
    if let Some(share) = shares.get_mut(&uid) {
        *share -= 1;
        if *share == 0 {
            shares.remove(&uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NET: NetworkIdx = NetworkIdx(0);

    fn mac(n: u8) -> Mac {
        Mac([2, 0, 0, 0, 0, n])
    }

    #[test]
    fn macs_are_forgotten_300_seconds_after_they_were_last_heard() {
        let mut macs = LearnedMacs::new(8, 1);
        macs.hear(NET, mac(1), PortSlot(1), PortUid(1), 0);
        macs.hear(NET, mac(1), PortSlot(2), PortUid(2), 200);
        macs.age(10, 300);
        assert_eq!(macs.find(NET, mac(1), 499), Some((PortSlot(2), PortUid(2))));
        assert_eq!(macs.find(NetworkIdx(1), mac(1), 499), None);
        assert_eq!(macs.find(NET, mac(1), 500), None);
        macs.age(10, 500);
        assert_eq!((macs.len(), macs.queue.len(), macs.shares.len()), (0, 0, 0));
    }

    #[test]
    fn one_nic_learns_a_quarter_at_most() {
        let mut macs = LearnedMacs::new(8, 1);
        for n in 0..8 {
            macs.hear(NET, mac(n), PortSlot(1), PortUid(1), 0);
        }
        assert_eq!(macs.len(), 2);
        macs.hear(NET, mac(9), PortSlot(2), PortUid(2), 0);
        assert_eq!(macs.find(NET, mac(9), 1), Some((PortSlot(2), PortUid(2))));
        // Nor by taking what another one has.
        macs.hear(NET, mac(9), PortSlot(1), PortUid(1), 1);
        assert_eq!(macs.find(NET, mac(9), 1), Some((PortSlot(2), PortUid(2))));
    }
}
