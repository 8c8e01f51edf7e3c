//! MAC addresses learnt: behind NICs that may have machines of their own (`learn_macs`), and at
//! hosts on other hosts, where the network allows that.
//!
//! Bounded: of one network a quarter for one NIC or host at most, and for one network three times
//! as many as are free, so that each other network finds room whatever is in one. For one host it
//! is half of all, in whatever networks, and the last eighth is for networks that have few, so that
//! they find room however many others somebody fills (`shares.rs`). What was not heard of for 300 s
//! is forgotten. When there is no room nothing is learnt: frames for such a MAC go to all learners
//! of the network, as for any unknown one. One that is known may always move, since that takes no
//! room, and it is not where it was.
//!
//! A network is known by its VNI here: its index is another network's when it is gone.
//!
//! Each worker has a table of its own and tells the others what it hears: new MACs and moves at
//! once, the rest once in ten seconds while it is heard, and again at once what could not be told.
//! Not more than [`NEWS_A_SECOND`].
//!
//! A MAC that was given to a NIC is looked up first and cannot be taken over. One that several NICs
//! share as an allowed pair's (VRRP) is where it was sent from last, and is not to be had by who
//! only learns.
//!
//! A worker whose memory outlives the process [notes](MacRecords) there what it hears itself.

mod shares;

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::SharedSeed;
use foldhash::quality::SeedableRandomState;
use hashbrown::HashMap;
use sys::huge::Zeroed;
use wire::{Mac, Vni};

use crate::flow::memory::before_what_follows;
use crate::ids::{PortSlot, PortUid};
use shares::Shares;

/// How long a MAC is remembered, as IEEE 802.1D bridges do.
pub(crate) const AGING_SECS: u32 = 300;

/// What is not new is told to the other workers, and noted for the next process, that often.
const TELL_EVERY_SECS: u32 = 10;

/// How much is told in a second.
const NEWS_A_SECOND: u32 = 4096;

/// How much waits to be told.
const NEWS_MAX: usize = 64;

/// A MAC that another worker is told of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct News {
    pub vni: Vni,
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

/// A MAC that the process before has learnt and handed over, and where that is to this one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HandedOverMac {
    /// The network.
    pub vni: Vni,
    /// The address.
    pub mac: Mac,
    /// Where it was heard.
    pub location: Location,
    /// When, by the clock of the data plane.
    pub heard_secs: u32,
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
    /// There are other workers.
    has_peers: bool,
    news: Vec<News>,
    /// Told in which second, and how much.
    told: (u32, u32),
    macs: HashMap<(Vni, Mac), Learned, SeedableRandomState>,
    /// In the order in which they are to be looked at for their age.
    queue: VecDeque<(Vni, Mac, u32)>,
    shares: Shares,
    /// One is somewhere else than it was: what was concluded from it is void.
    moved: bool,
    /// Where it is noted for the next process.
    records: Option<MacRecords>,
}

#[derive(Clone, Copy)]
struct Learned {
    location: Location,
    heard_secs: u32,
    /// When the other workers were told, or told us.
    told_secs: u32,
    /// Which record it is noted in, and when that was.
    noted: Option<(u32, u32)>,
}

/// Where a worker notes what it has heard, for the next process: a record for each MAC.
pub(crate) struct MacRecords {
    words: Zeroed<AtomicU64>,
    /// Records that were used, and those of them that are free again.
    used: u32,
    free: Vec<u32>,
}

/// What a record says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MacRecord {
    pub vni: Vni,
    pub mac: Mac,
    pub location: Location,
    pub heard_secs: u32,
}

/// Words of a record.
pub(crate) const MAC_WORDS: usize = 4;
/// Above a MAC in its record: what kind of location it has. No record is 0.
const AT_NIC: u64 = 1;
const AT_HOST_V4: u64 = 2;
const AT_HOST_V6: u64 = 3;

impl MacRecord {
    fn words(&self) -> [u64; MAC_WORDS] {
        let (kind, [one, other]) = match self.location {
            Location::Nic(slot, uid) => (AT_NIC, [slot.0.into(), uid.0.into()]),
            Location::Host(IpAddr::V4(host)) => (AT_HOST_V4, [host.to_bits().into(), 0]),
            Location::Host(IpAddr::V6(host)) => {
                let bits = host.to_bits();
                (AT_HOST_V6, [bits as u64, (bits >> 64) as u64])
            }
        };
        let mac = self
            .mac
            .0
            .iter()
            .fold(0, |mac, byte| mac << 8 | u64::from(*byte));
        let network = u64::from(self.vni.id()) << 32 | u64::from(self.heard_secs);
        [kind << 48 | mac, network, one, other]
    }

    /// The inverse of [`words`](Self::words); `None`: it made none like these.
    pub(crate) fn of_words(words: &[u64]) -> Option<MacRecord> {
        let &[what, network, one, other] = words else {
            return None;
        };
        let location = match what >> 48 {
            AT_NIC => Location::Nic(
                PortSlot(one.try_into().ok()?),
                PortUid(other.try_into().ok()?),
            ),
            AT_HOST_V4 if other == 0 => {
                Location::Host(Ipv4Addr::from_bits(one.try_into().ok()?).into())
            }
            AT_HOST_V6 => {
                let bits = u128::from(other) << 64 | u128::from(one);
                Location::Host(Ipv6Addr::from_bits(bits).into())
            }
            _ => return None,
        };
        let mac: [u8; 6] = what.to_be_bytes()[2..].try_into().ok()?;
        Some(MacRecord {
            vni: Vni::new((network >> 32) as u32).ok()?,
            mac: Mac(mac),
            location,
            heard_secs: network as u32,
        })
    }
}

impl MacRecords {
    /// In words that nobody else writes to, all of them zero.
    pub(crate) fn new(words: Zeroed<AtomicU64>) -> MacRecords {
        MacRecords {
            words,
            used: 0,
            free: Vec::new(),
        }
    }

    /// Writes a record, in place of the one before or at an index of its own; `None`: there is no
    /// room.
    fn write(&mut self, at: Option<u32>, what: &MacRecord) -> Option<u32> {
        let at = at.or_else(|| self.free.pop()).unwrap_or(self.used);
        let record = self.record(at)?;
        // A record that is being written is nobody's.
        record[0].store(0, Ordering::Relaxed);
        before_what_follows();
        let [first, rest @ ..] = what.words();
        for (word, value) in record[1..].iter().zip(rest) {
            word.store(value, Ordering::Relaxed);
        }
        before_what_follows();
        record[0].store(first, Ordering::Relaxed);
        self.used = self.used.max(at + 1);
        Some(at)
    }

    fn clear(&mut self, at: u32) {
        if let Some(record) = self.record(at) {
            record[0].store(0, Ordering::Relaxed);
            before_what_follows();
            record[1..]
                .iter()
                .for_each(|word| word.store(0, Ordering::Relaxed));
            self.free.push(at);
        }
    }

    fn record(&self, at: u32) -> Option<&[AtomicU64]> {
        let start = at as usize * MAC_WORDS;
        self.words.get(start..start + MAC_WORDS)
    }
}

/// What was noted of a MAC.
struct Noted {
    /// When the others were told of it, long ago if it is news.
    told_secs: u32,
    /// It was unknown, or somewhere else.
    is_new: bool,
    /// What the next process finds of it is not so, or old.
    is_due: bool,
}

impl LearnedMacs {
    pub(crate) fn new(max: u32, seed: u64) -> Self {
        let hasher = SeedableRandomState::with_seed(seed, SharedSeed::global_random());
        LearnedMacs {
            has_peers: false,
            news: Vec::new(),
            told: (0, 0),
            macs: HashMap::with_hasher(hasher.clone()),
            queue: VecDeque::new(),
            shares: Shares::new(max as usize, hasher),
            moved: false,
            records: None,
        }
    }

    /// Notes for the next process what is heard from now on.
    pub(crate) fn note_in(&mut self, records: MacRecords) {
        self.records = Some(records);
    }

    pub(crate) fn len(&self) -> usize {
        self.macs.len()
    }

    /// Whether there are other workers to be told.
    pub(crate) fn share_with_others(&mut self, has_peers: bool) {
        self.has_peers = has_peers;
    }

    /// Notes where `mac` was heard, in the network with this VNI. True when it is new there.
    pub(crate) fn learn(&mut self, vni: Vni, mac: Mac, location: Location, now_secs: u32) -> bool {
        let news = News { vni, mac, location };
        let Some(noted) = self.note(&news, now_secs) else {
            return false;
        };
        if noted.is_due {
            self.note_for_next(&news, now_secs);
        }
        self.queue_news(news, noted.told_secs, now_secs);
        noted.is_new
    }

    /// Takes up what a process before has heard, unless something newer is known. With `notes` it
    /// is noted for the next one, too.
    pub(crate) fn take_up(&mut self, news: &News, heard_secs: u32, notes: bool) -> bool {
        let known = self.macs.get(&(news.vni, news.mac));
        let is_newer = |known: &Learned| heard_secs.wrapping_sub(known.heard_secs) > AGING_SECS;
        if known.is_some_and(is_newer) || self.note(news, heard_secs).is_none() {
            return false;
        }
        if notes {
            self.note_for_next(news, heard_secs);
        }
        true
    }

    #[cold]
    fn note_for_next(&mut self, news: &News, heard_secs: u32) {
        let known = self.macs.get_mut(&(news.vni, news.mac));
        if let (Some(records), Some(known)) = (&mut self.records, known) {
            let what = MacRecord {
                vni: news.vni,
                mac: news.mac,
                location: news.location,
                heard_secs,
            };
            let at = records.write(known.noted.map(|(at, _)| at), &what);
            known.noted = at.map(|at| (at, heard_secs));
        }
    }

    fn queue_news(&mut self, news: News, told_secs: u32, now_secs: u32) {
        let due = now_secs.wrapping_sub(told_secs) >= TELL_EVERY_SECS;
        if !self.has_peers || !due || self.news.len() >= NEWS_MAX {
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
    pub(crate) fn note_from_worker(&mut self, news: &News, now_secs: u32) {
        if let Some(noted) = self.note(news, now_secs) {
            self.set_told(news, now_secs);
            if noted.is_new {
                self.take_back_note(news);
            }
        }
    }

    /// It is for another worker to note where this MAC is by now.
    fn take_back_note(&mut self, news: &News) {
        let known = self.macs.get_mut(&(news.vni, news.mac));
        if let (Some(records), Some(known)) = (&mut self.records, known)
            && let Some((at, _)) = known.noted.take()
        {
            records.clear(at);
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
        if let Some(known) = self.macs.get_mut(&(news.vni, news.mac)) {
            known.told_secs = known.heard_secs.wrapping_sub(TELL_EVERY_SECS);
        }
    }

    fn set_told(&mut self, news: &News, now_secs: u32) {
        if let Some(known) = self.macs.get_mut(&(news.vni, news.mac)) {
            known.told_secs = now_secs;
        }
    }

    /// `None` when there was no room for it.
    fn note(&mut self, news: &News, now_secs: u32) -> Option<Noted> {
        let News { vni, mac, location } = *news;
        let mut learned = Learned {
            location,
            heard_secs: now_secs,
            told_secs: now_secs.wrapping_sub(TELL_EVERY_SECS),
            noted: None,
        };
        let (mut is_new, notes) = (true, self.records.is_some());
        if let Some(known) = self.macs.get_mut(&(vni, mac)) {
            if known.location != location {
                self.shares.leave(vni, known.location);
                self.shares.enter(vni, location);
                self.moved = true;
            } else {
                learned.told_secs = known.told_secs;
                is_new = false;
            }
            learned.noted = known.noted;
            *known = learned;
            let old = |(_, at): (u32, u32)| now_secs.wrapping_sub(at) >= TELL_EVERY_SECS;
            return Some(Noted {
                told_secs: learned.told_secs,
                is_new,
                is_due: notes && (is_new || learned.noted.is_none_or(old)),
            });
        }
        if !self.shares.has_room(vni, location, self.macs.len()) {
            return None;
        }
        self.macs.insert((vni, mac), learned);
        self.queue.push_back((vni, mac, now_secs));
        self.shares.enter(vni, location);
        Some(Noted {
            told_secs: learned.told_secs,
            is_new,
            is_due: notes,
        })
    }

    /// Copies what another table knows of a MAC, for a [trial](crate::trial).
    pub(crate) fn copy_in(&mut self, of: &LearnedMacs, vni: Vni, mac: Mac) {
        if let Some(learned) = of.macs.get(&(vni, mac)) {
            self.macs.insert((vni, mac), *learned);
            self.shares.enter(vni, learned.location);
        }
    }

    /// Where `mac` was heard.
    #[inline]
    pub(crate) fn find(&self, vni: Vni, mac: Mac, now_secs: u32) -> Option<Location> {
        let learned = self.macs.get(&(vni, mac))?;
        let fresh = now_secs.wrapping_sub(learned.heard_secs) < AGING_SECS;
        fresh.then_some(learned.location)
    }

    /// All of one network that are relied on. Looks at the whole table: some hundred microseconds
    /// at the most.
    pub(crate) fn of(&self, vni: Vni, now_secs: u32) -> Vec<LearnedMac> {
        let shown = |((_, mac), learned): (&(Vni, Mac), &Learned)| LearnedMac {
            mac: *mac,
            location: learned.location,
            age_secs: now_secs.wrapping_sub(learned.heard_secs),
        };
        let here = self.macs.iter().filter(|((of, _), _)| *of == vni);
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
            let Some(&(vni, mac, queued_secs)) = self.queue.front() else {
                return;
            };
            if now_secs.wrapping_sub(queued_secs) < AGING_SECS {
                return;
            }
            self.queue.pop_front();
            let Some(learned) = self.macs.get(&(vni, mac)).copied() else {
                continue;
            };
            if now_secs.wrapping_sub(learned.heard_secs) < AGING_SECS {
                // Heard of since: to be looked at again when that is 300 s ago, or a little later.
                self.queue.push_back((vni, mac, learned.heard_secs));
            } else {
                self.macs.remove(&(vni, mac));
                self.shares.leave(vni, learned.location);
                if let (Some(records), Some((at, _))) = (&mut self.records, learned.noted) {
                    records.clear(at);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(vni: u32) -> Vni {
        Vni::new(vni).unwrap()
    }

    fn here() -> Vni {
        net(42)
    }

    fn nic(n: u32) -> Location {
        Location::Nic(PortSlot(n), PortUid(n))
    }

    fn host(address: &str) -> Location {
        Location::Host(address.parse().unwrap())
    }

    fn mac(n: u8) -> Mac {
        Mac([2, 0, 0, 0, 0, n])
    }

    #[test]
    fn macs_are_forgotten_300_seconds_after_they_were_last_heard() {
        let mut macs = LearnedMacs::new(8, 1);
        macs.learn(here(), mac(1), nic(1), 0);
        macs.learn(here(), mac(1), nic(2), 200);
        macs.age(10, 300);
        assert_eq!(macs.find(here(), mac(1), 499), Some(nic(2)));
        assert_eq!(macs.find(net(43), mac(1), 499), None);
        let shown = LearnedMac {
            mac: mac(1),
            location: nic(2),
            age_secs: 299,
        };
        assert_eq!(
            (macs.of(here(), 499), macs.of(net(43), 499)),
            (vec![shown], vec![])
        );
        assert_eq!(macs.of(here(), 500), []);
        assert_eq!(macs.find(here(), mac(1), 500), None);
        macs.age(10, 500);
        assert_eq!((macs.len(), macs.queue.len(), macs.shares.len()), (0, 0, 0));
        assert!(macs.shares.are_free());
    }

    #[test]
    fn what_is_new_or_moved_is_told_at_once_and_the_rest_every_ten_seconds() {
        let (mut macs, mut other) = (LearnedMacs::new(8, 1), LearnedMacs::new(8, 1));
        macs.share_with_others(true);
        other.share_with_others(true);
        let mut news_of = |uid: u32, now| {
            macs.learn(here(), mac(1), nic(uid), now);
            let news = macs.next_news();
            if let Some(news) = news.filter(|_| now == 25) {
                macs.was_not_told(&news);
            }
            news.map(|news| match news.location {
                Location::Nic(_, uid) => uid.0,
                Location::Host(_) => 0,
            })
        };
        assert_eq!(
            (news_of(1, 5), news_of(1, 6), news_of(1, 14)),
            (Some(1), None, None)
        );
        assert_eq!(
            (news_of(1, 15), news_of(1, 16), news_of(2, 16)),
            (Some(1), None, Some(2))
        );
        assert_eq!((news_of(2, 20), news_of(2, 26)), (None, Some(2)));
        assert_eq!(
            (news_of(2, 27), news_of(1, 25), news_of(1, 25)),
            (None, Some(1), Some(1))
        );

        let news = News {
            vni: here(),
            mac: mac(1),
            location: nic(1),
        };
        other.note_from_worker(&news, 5);
        assert_eq!(other.find(here(), mac(1), 6), Some(nic(1)));
        assert!(!other.has_news(), "it is not told back");
    }

    #[test]
    fn one_nic_learns_a_quarter_at_most() {
        let mut macs = LearnedMacs::new(8, 1);
        for n in 0..8 {
            macs.learn(here(), mac(n), nic(1), 0);
        }
        assert_eq!(macs.len(), 2);
        macs.learn(here(), mac(9), nic(2), 0);
        assert_eq!(macs.find(here(), mac(9), 1), Some(nic(2)));
        // One that is known moves all the same, which takes no room.
        assert!(macs.learn(here(), mac(9), nic(1), 1));
        assert_eq!(macs.find(here(), mac(9), 1), Some(nic(1)));
        assert!(!macs.learn(here(), mac(10), nic(1), 1));
        assert_eq!(macs.len(), 3);
    }

    /// One network's guest has others believe in many machines at its host. Another network's
    /// machine comes to that host, and one moves there.
    #[test]
    fn what_a_host_has_of_one_network_takes_no_room_of_another_s() {
        let mut macs = LearnedMacs::new(16, 1);
        let (crowded, before, other) = (host("192.0.2.7"), host("192.0.2.8"), net(43));
        macs.learn(other, mac(1), before, 0);
        for n in 0..16 {
            macs.learn(here(), mac(n), crowded, 0);
        }
        assert_eq!(macs.len(), 1 + 4);
        assert!(macs.learn(other, mac(2), crowded, 1));
        assert!(macs.learn(other, mac(1), crowded, 1));
        assert_eq!(macs.find(other, mac(1), 1), Some(crowded));
        macs.age(16, AGING_SECS);
        assert_eq!((macs.len(), macs.shares.len()), (2, 1));
        macs.age(16, 1 + AGING_SECS);
        assert_eq!((macs.len(), macs.shares.len()), (0, 0));
    }

    #[test]
    fn the_nics_of_one_network_leave_room_to_others() {
        let mut macs = LearnedMacs::new(16, 1);
        let other = net(43);
        for n in 0..16 {
            macs.learn(here(), mac(n), nic(u32::from(n) % 4), 0);
        }
        assert_eq!(
            macs.len(),
            11,
            "three quarters, and two are for who has few"
        );
        for n in 0..16 {
            macs.learn(other, mac(n), nic(4 + u32::from(n) % 4), 0);
        }
        assert_eq!(macs.len(), 14, "three quarters of what was left");
        macs.age(16, AGING_SECS);
        assert!(macs.learn(other, mac(1), nic(9), AGING_SECS));
    }

    /// A MAC of a network, as many as are asked for.
    fn nth(n: u32) -> Mac {
        let [a, b, c, d] = n.to_be_bytes();
        Mac([2, 1, a, b, c, d])
    }

    /// Somebody has a learning NIC in each of many networks, and has all that they can get. A
    /// network that comes then has some room all the same.
    #[test]
    fn many_networks_that_are_full_leave_room_for_those_that_have_few() {
        const MAX: u32 = 65_536;
        let mut macs = LearnedMacs::new(MAX, 1);
        for full in 100..140 {
            let mut n = 0;
            while macs.learn(net(full), nth(n), nic(full), 0) {
                n += 1;
            }
        }
        assert!(macs.len() > 49_152, "{}", macs.len());
        for network in 1..100 {
            for n in 0..16 {
                let is_new = macs.learn(net(network), nth(n), nic(1000 + network), 0);
                assert!(is_new, "network {network}, {n}");
            }
            assert!(!macs.learn(net(network), nth(16), nic(1000 + network), 0));
        }
    }

    /// A host takes part in many networks, and lets them all believe in machines.
    #[test]
    fn one_host_leaves_room_to_others_in_whatever_networks_it_is() {
        let mut macs = LearnedMacs::new(65_536, 1);
        let (greedy, other) = (host("192.0.2.7"), host("192.0.2.8"));
        for network in 1..2000 {
            let mut n = 0;
            while macs.learn(net(network), nth(n), greedy, 0) {
                n += 1;
            }
        }
        assert_eq!(
            macs.len(),
            49_152,
            "half, and a quarter by sixteen a network"
        );
        // In a network of its own, and in one of the first that the other has filled.
        for n in 0..1000 {
            assert!(macs.learn(net(5000), nth(n), other, 0), "{n}");
        }
        assert!(macs.learn(net(1), mac(1), other, 0));
    }

    /// What the next process would read.
    fn noted(memory: &sys::shared_memory::SharedMemory) -> Vec<MacRecord> {
        let mut found = Vec::new();
        let bytes = 8 * MAC_WORDS;
        let end = 8 * bytes as u64;
        let read = |_: u64, part: &[u8]| {
            let words: Vec<u64> = part
                .as_chunks::<8>()
                .0
                .iter()
                .map(|word| u64::from_ne_bytes(*word))
                .collect();
            found.extend(MacRecord::of_words(&words));
        };
        sys::shared_memory::read(std::os::fd::AsFd::as_fd(memory), (0, end), bytes, read).unwrap();
        found
    }

    #[test]
    fn what_a_worker_hears_is_noted_for_the_next_process() {
        let memory = sys::shared_memory::SharedMemory::new("test", 1 << 21).unwrap();
        let mut macs = LearnedMacs::new(8, 1);
        macs.note_in(MacRecords::new(
            Zeroed::shared(&memory, 0, 8 * MAC_WORDS).unwrap(),
        ));
        let record = |n, location, heard_secs| MacRecord {
            vni: here(),
            mac: mac(n),
            location,
            heard_secs,
        };
        macs.learn(here(), mac(1), nic(1), 5);
        macs.learn(here(), mac(2), host("192.0.2.7"), 6);
        macs.learn(here(), mac(3), host("fd00::7:8"), 7);
        // Not with each frame.
        macs.learn(here(), mac(1), nic(1), 14);
        let all = [
            record(1, nic(1), 5),
            record(2, host("192.0.2.7"), 6),
            record(3, host("fd00::7:8"), 7),
        ];
        assert_eq!(noted(&memory), all);
        macs.learn(here(), mac(1), nic(1), 15);
        // A MAC that moves here, and one that another worker has heard elsewhere.
        macs.learn(here(), mac(2), nic(2), 16);
        let news = News {
            vni: here(),
            mac: mac(3),
            location: nic(3),
        };
        macs.note_from_worker(&news, 17);
        assert_eq!(
            noted(&memory),
            [record(1, nic(1), 15), record(2, nic(2), 16)]
        );
        macs.learn(here(), mac(4), nic(4), 18);
        assert_eq!(noted(&memory).len(), 3);
        macs.age(10, 15 + AGING_SECS + 5);
        macs.age(10, 18 + AGING_SECS + 5);
        assert_eq!((noted(&memory), macs.len()), (vec![], 0));
    }

    #[test]
    fn what_is_taken_up_is_as_old_as_it_was_and_no_newer_word_is_lost() {
        let mut macs = LearnedMacs::new(8, 1);
        let news = |n| News {
            vni: here(),
            mac: mac(n),
            location: nic(7),
        };
        macs.learn(here(), mac(1), nic(1), 100);
        assert!(!macs.take_up(&news(1), 90, true));
        assert!(macs.take_up(&news(2), 90, true));
        assert_eq!(macs.find(here(), mac(1), 101), Some(nic(1)));
        assert_eq!(macs.find(here(), mac(2), 389), Some(nic(7)));
        assert_eq!(macs.find(here(), mac(2), 390), None);
    }

    #[test]
    fn records_that_nobody_writes_are_refused() {
        let good = MacRecord {
            vni: here(),
            mac: mac(9),
            location: nic(1),
            heard_secs: 5,
        };
        assert_eq!(MacRecord::of_words(&good.words()), Some(good));
        for (word, lie) in [
            (0, 0),
            (0, 4 << 48),
            (1, u64::MAX),
            (2, 1 << 32),
            (3, 1 << 32),
        ] {
            let mut words = good.words();
            words[word] = lie;
            assert_eq!(MacRecord::of_words(&words), None, "{word} {lie}");
        }
    }
}
