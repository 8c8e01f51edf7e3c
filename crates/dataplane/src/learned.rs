//! MAC addresses learnt: behind NICs that may have machines of their own (`learn_macs`), and at
//! hosts on other hosts, where the network allows that.
//!
//! Bounded, a quarter for one NIC or host at most; what was not heard of for 300 s is
//! forgotten. When there is no room nothing is learnt: frames for such a MAC go to all learners of
//! the network, as for any unknown one.
//!
//! Each worker has a table of its own and tells the others what it hears: new MACs and moves at
//! once, the rest once in ten seconds while it is heard, and again at once what could not be told.
//! Not more than [`NEWS_A_SECOND`].
//!
//! A MAC that was given to a NIC is looked up first and cannot be taken over. One that several NICs
//! share as an allowed pair's (VRRP) is where it was sent from last, and is not to be had by who
//! only learns.

use std::collections::VecDeque;
use std::net::IpAddr;

use foldhash::SharedSeed;
use foldhash::quality::SeedableRandomState;
use hashbrown::HashMap;
use wire::Mac;

use crate::ids::{NetworkIdx, PortSlot, PortUid};

/// How long a MAC is remembered, as IEEE 802.1D bridges do.
pub(crate) const AGING_SECS: u32 = 300;

/// What is not new is told to the other workers that often.
const TELL_EVERY_SECS: u32 = 10;

/// How much is told in a second.
const NEWS_A_SECOND: u32 = 4096;

/// How much waits to be told.
const NEWS_MAX: usize = 64;

/// A MAC that another worker is told of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct News {
    pub network: NetworkIdx,
    pub mac: Mac,
    pub location: Location,
}

/// A MAC that was learnt, for whoever looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LearnedMac {
    /// The address.
    pub mac: Mac,
    /// Where it was heard last.
    pub location: Location,
    /// Seconds since then.
    pub age_secs: u32,
}

/// Behind what a MAC was heard.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Location {
    /// A NIC of this host.
    Nic(PortSlot, PortUid),
    /// A host on another host.
    Host(IpAddr),
}

pub(crate) struct LearnedMacs {
    max: usize,
    /// There are other workers.
    tells: bool,
    news: Vec<News>,
    /// Told in which second, and how much.
    told: (u32, u32),
    macs: HashMap<(NetworkIdx, Mac), Learned, SeedableRandomState>,
    /// In the order in which they are to be looked at for their age.
    queue: VecDeque<(NetworkIdx, Mac, u32)>,
    /// How many are at each location.
    shares: HashMap<Location, usize, SeedableRandomState>,
    /// One is somewhere else than it was: what was concluded from it is void.
    moved: bool,
}

#[derive(Clone, Copy)]
struct Learned {
    location: Location,
    heard_secs: u32,
    /// When the other workers were told, or told us.
    told_secs: u32,
}

/// What was noted of a MAC.
struct Noted {
    /// When the others were told of it, long ago if it is news.
    told_secs: u32,
    /// It was unknown, or somewhere else.
    is_new: bool,
}

impl LearnedMacs {
    pub(crate) fn new(max: u32, seed: u64) -> Self {
        let hasher = SeedableRandomState::with_seed(seed, SharedSeed::global_random());
        LearnedMacs {
            max: max as usize,
            tells: false,
            news: Vec::new(),
            told: (0, 0),
            macs: HashMap::with_hasher(hasher.clone()),
            queue: VecDeque::new(),
            shares: HashMap::with_hasher(hasher),
            moved: false,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.macs.len()
    }

    /// Whether there are other workers to be told.
    pub(crate) fn share_with_others(&mut self, tells: bool) {
        self.tells = tells;
    }

    /// Notes where `mac` was heard. True when it is new there.
    pub(crate) fn learn(
        &mut self,
        network: NetworkIdx,
        mac: Mac,
        location: Location,
        now_secs: u32,
    ) -> bool {
        let news = News {
            network,
            mac,
            location,
        };
        let Some(noted) = self.note(&news, now_secs) else {
            return false;
        };
        self.queue_news(news, noted.told_secs, now_secs);
        noted.is_new
    }

    fn queue_news(&mut self, news: News, told_secs: u32, now_secs: u32) {
        let due = now_secs.wrapping_sub(told_secs) >= TELL_EVERY_SECS;
        if !self.tells || !due || self.news.len() >= NEWS_MAX {
            return;
        }
        if self.told.0 != now_secs {
            self.told = (now_secs, 0);
        }
        if self.told.1 < NEWS_A_SECOND {
            self.told.1 += 1;
            self.news.push(news);
            self.set_told(&news, now_secs);
        }
    }

    /// Notes what another worker has heard.
    pub(crate) fn hear_from_others(&mut self, news: &News, now_secs: u32) {
        if self.note(news, now_secs).is_some() {
            self.set_told(news, now_secs);
        }
    }

    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    /// What is to be told next.
    pub(crate) fn next_news(&mut self) -> Option<News> {
        self.news.pop()
    }

    /// Some worker could not be told of it: all are, when the MAC is heard again.
    pub(crate) fn was_not_told(&mut self, news: &News) {
        if let Some(known) = self.macs.get_mut(&(news.network, news.mac)) {
            known.told_secs = known.heard_secs.wrapping_sub(TELL_EVERY_SECS);
        }
    }

    fn set_told(&mut self, news: &News, now_secs: u32) {
        if let Some(known) = self.macs.get_mut(&(news.network, news.mac)) {
            known.told_secs = now_secs;
        }
    }

    /// `None` when there was no room for it.
    fn note(&mut self, news: &News, now_secs: u32) -> Option<Noted> {
        let News {
            network,
            mac,
            location,
        } = *news;
        let share = self.shares.get(&location).copied().unwrap_or(0);
        let share_full = share >= self.max.div_ceil(4);
        let mut learned = Learned {
            location,
            heard_secs: now_secs,
            told_secs: now_secs.wrapping_sub(TELL_EVERY_SECS),
        };
        let mut is_new = true;
        if let Some(known) = self.macs.get_mut(&(network, mac)) {
            if known.location != location {
                // It is where it was: who has as many as it may does not take others' either.
                if share_full {
                    return None;
                }
                leave(&mut self.shares, known.location);
                *self.shares.entry(location).or_default() += 1;
                self.moved = true;
            } else {
                learned.told_secs = known.told_secs;
                is_new = false;
            }
            *known = learned;
            return Some(Noted {
                told_secs: learned.told_secs,
                is_new,
            });
        }
        if self.macs.len() >= self.max || share_full {
            return None;
        }
        self.macs.insert((network, mac), learned);
        self.queue.push_back((network, mac, now_secs));
        *self.shares.entry(location).or_default() += 1;
        Some(Noted {
            told_secs: learned.told_secs,
            is_new,
        })
    }

    /// Copies what another table knows of a MAC, for a [trial](crate::trial).
    pub(crate) fn copy_in(&mut self, of: &LearnedMacs, network: NetworkIdx, mac: Mac) {
        if let Some(learned) = of.macs.get(&(network, mac)) {
            self.macs.insert((network, mac), *learned);
            *self.shares.entry(learned.location).or_default() += 1;
        }
    }

    /// Where `mac` was heard.
    #[inline]
    pub(crate) fn find(&self, network: NetworkIdx, mac: Mac, now_secs: u32) -> Option<Location> {
        let learned = self.macs.get(&(network, mac))?;
        let fresh = now_secs.wrapping_sub(learned.heard_secs) < AGING_SECS;
        fresh.then_some(learned.location)
    }

    /// All of one network that are relied on. Looks at the whole table: some hundred microseconds
    /// at the most.
    pub(crate) fn of(&self, network: NetworkIdx, now_secs: u32) -> Vec<LearnedMac> {
        let shown = |((_, mac), learned): (&(NetworkIdx, Mac), &Learned)| LearnedMac {
            mac: *mac,
            location: learned.location,
            age_secs: now_secs.wrapping_sub(learned.heard_secs),
        };
        let here = self
            .macs
            .iter()
            .filter(|((in_network, _), _)| *in_network == network);
        here.map(shown)
            .filter(|learned| learned.age_secs < AGING_SECS)
            .collect()
    }

    /// True once after a MAC was heard somewhere else than before.
    #[inline]
    pub(crate) fn take_moved(&mut self) -> bool {
        std::mem::take(&mut self.moved)
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
                leave(&mut self.shares, learned.location);
            }
        }
    }
}

fn leave(shares: &mut HashMap<Location, usize, SeedableRandomState>, location: Location) {
    if let Some(share) = shares.get_mut(&location) {
        *share -= 1;
        if *share == 0 {
            shares.remove(&location);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NET: NetworkIdx = NetworkIdx(0);

    fn nic(n: u32) -> Location {
        Location::Nic(PortSlot(n), PortUid(n))
    }

    fn mac(n: u8) -> Mac {
        Mac([2, 0, 0, 0, 0, n])
    }

    #[test]
    fn macs_are_forgotten_300_seconds_after_they_were_last_heard() {
        let mut macs = LearnedMacs::new(8, 1);
        macs.learn(NET, mac(1), nic(1), 0);
        macs.learn(NET, mac(1), nic(2), 200);
        macs.age(10, 300);
        assert_eq!(macs.find(NET, mac(1), 499), Some(nic(2)));
        assert_eq!(macs.find(NetworkIdx(1), mac(1), 499), None);
        let shown = LearnedMac {
            mac: mac(1),
            location: nic(2),
            age_secs: 299,
        };
        assert_eq!(
            (macs.of(NET, 499), macs.of(NetworkIdx(1), 499)),
            (vec![shown], vec![])
        );
        assert_eq!(macs.of(NET, 500), []);
        assert_eq!(macs.find(NET, mac(1), 500), None);
        macs.age(10, 500);
        assert_eq!((macs.len(), macs.queue.len(), macs.shares.len()), (0, 0, 0));
    }

    #[test]
    fn what_is_new_or_moved_is_told_at_once_and_the_rest_every_ten_seconds() {
        let (mut macs, mut other) = (LearnedMacs::new(8, 1), LearnedMacs::new(8, 1));
        macs.share_with_others(true);
        other.share_with_others(true);
        let mut hear = |uid: u32, now| {
            macs.learn(NET, mac(1), nic(uid), now);
            let news = macs.next_news();
            if let Some(news) = news.filter(|_| now == 25) {
                macs.was_not_told(&news);
            }
            news.map(|news| match news.location {
                Location::Nic(_, uid) => uid.0,
                Location::Host(_) => 0,
            })
        };
        assert_eq!((hear(1, 5), hear(1, 6), hear(1, 14)), (Some(1), None, None));
        assert_eq!(
            (hear(1, 15), hear(1, 16), hear(2, 16)),
            (Some(1), None, Some(2))
        );
        assert_eq!((hear(2, 20), hear(2, 26)), (None, Some(2)));
        assert_eq!(
            (hear(2, 27), hear(1, 25), hear(1, 25)),
            (None, Some(1), Some(1))
        );

        let news = News {
            network: NET,
            mac: mac(1),
            location: nic(1),
        };
        other.hear_from_others(&news, 5);
        assert_eq!(other.find(NET, mac(1), 6), Some(nic(1)));
        assert!(!other.has_news(), "it is not told back");
    }

    #[test]
    fn one_nic_learns_a_quarter_at_most() {
        let mut macs = LearnedMacs::new(8, 1);
        for n in 0..8 {
            macs.learn(NET, mac(n), nic(1), 0);
        }
        assert_eq!(macs.len(), 2);
        macs.learn(NET, mac(9), nic(2), 0);
        assert_eq!(macs.find(NET, mac(9), 1), Some(nic(2)));
        // Nor by taking what another one has.
        macs.learn(NET, mac(9), nic(1), 1);
        assert_eq!(macs.find(NET, mac(9), 1), Some(nic(2)));
    }
}
