//! Paths and hops in the program's memory: what a trie's entry leads to. Equal specs share a path,
//! equal neighbours a hop.
//!
//! A change of a neighbour or an interface rewrites the few paths that use it, never the entries of
//! a million routes. A hop in use never changes: a path is pointed to another one, word by word.
//! What is no longer used rests, as the tries' nodes do, before its place is used again.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};

use bytemuck::Pod;
use sys::bpf_array::BpfArray;

use crate::layout::{Counter, Hop, Member, PATH_MEMBERS, Path, kind};
use crate::spec::{Spec, Via};

/// A path by what it is made from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// What to do.
    pub spec: Spec,
    /// IPv6: single addresses under it have paths of their own.
    pub hosts: bool,
}

/// How a neighbour is reached now: made by the router from links, interfaces and neighbours.
pub trait Reach {
    /// The hop, or why there is none: the neighbour is unknown, or the interface is not ours.
    fn hop(&self, ifindex: u32, neighbour: IpAddr, mtu: Option<u32>) -> Result<Hop, Counter>;
}

/// Both tables.
#[derive(Debug)]
pub struct Paths {
    paths: Slots<Key>,
    hops: Slots<HopKey>,
    /// The hops that a path's members have, 0 for none.
    members: HashMap<u32, Vec<u32>>,
}

/// A hop without what changes by itself.
type HopKey = Hop;

/// The table is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl Paths {
    /// Over two mapped arrays. Path 0 is "no route".
    pub fn new(paths: BpfArray, hops: BpfArray) -> Paths {
        let all = Paths {
            paths: Slots::new(paths, size_of::<Path>() / 4),
            hops: Slots::new(hops, size_of::<Hop>() / 4),
            members: HashMap::new(),
        };
        let nothing = Path {
            reason: Counter::NoRoute as u8,
            ..Path::default()
        };
        all.paths.write(0, &nothing);
        all
    }

    /// The number of a path, made if it is new, and held until it is released as often.
    pub fn acquire(&mut self, key: &Key, reach: &impl Reach) -> Result<u32, Full> {
        if let Some(number) = self.paths.find(key) {
            self.paths.hold(number);
            return Ok(number);
        }
        let number = self.paths.add(key.clone())?;
        self.draw(number, key, reach);
        Ok(number)
    }

    /// Holds a path once more.
    pub fn hold(&mut self, number: u32) {
        self.paths.hold(number);
    }

    /// Gives a path back.
    pub fn release(&mut self, number: u32) {
        if self.paths.release(number) {
            for hop in self.members.remove(&number).unwrap_or_default() {
                self.hops.release_if_any(hop);
            }
        }
    }

    /// What a path was made from.
    pub fn key(&self, number: u32) -> Option<&Key> {
        self.paths.key(number)
    }

    /// The neighbours that a path's members have now, in their order; `None` for one that is the
    /// kernel's.
    pub fn hops(&self, number: u32) -> impl Iterator<Item = Option<&Hop>> {
        let hops = self.members.get(&number).into_iter().flatten();
        hops.map(|hop| self.hops.key(*hop))
    }

    /// Makes again the paths for which something may have changed.
    pub fn redraw(&mut self, reach: &impl Reach, concerns: impl Fn(&Spec) -> bool) {
        let concerned = self.paths.all().filter(|(_, key)| concerns(&key.spec));
        let concerned: Vec<(u32, Key)> = concerned
            .map(|(number, key)| (number, key.clone()))
            .collect();
        for (number, key) in concerned {
            self.draw(number, &key, reach);
        }
    }

    /// The neighbours that packets were sent to since the last call.
    pub fn take_used(&mut self) -> Vec<(u32, Via)> {
        let mut used = Vec::new();
        for (number, key) in self.paths.all() {
            let Spec::Via { members, .. } = &key.spec else {
                continue;
            };
            let hops = self.members.get(&number).into_iter().flatten();
            for (via, hop) in members.iter().zip(hops).filter(|(_, hop)| **hop != 0) {
                if self.hops.word(*hop, USED).load(Ordering::Relaxed) != 0 {
                    used.push((*hop, *via));
                }
            }
        }
        for (hop, _) in &used {
            self.hops.word(*hop, USED).store(0, Ordering::Relaxed);
        }
        used
    }

    /// To be called now and then: what was released before the last call is used again.
    pub fn rest(&mut self) {
        self.paths.rest();
        self.hops.rest();
    }

    /// Paths in use, and how many there can be.
    pub fn usage(&self) -> (usize, usize) {
        (self.paths.numbers.len(), self.paths.capacity)
    }

    fn draw(&mut self, number: u32, key: &Key, reach: &impl Reach) {
        let mut hops = Vec::new();
        let mut path = Path {
            kind: kind::PASS,
            hosts: key.hosts.into(),
            unicast: key.spec.is_unicast().into(),
            ifindex: key.spec.only_interface().unwrap_or(0),
            ..Path::default()
        };
        match &key.spec {
            Spec::Pass(reason) => path.reason = *reason as u8,
            Spec::Drop => path.kind = kind::DROP,
            Spec::Ask => path.kind = kind::ASK,
            Spec::OnLink { ifindex, mtu } => {
                // Whoever it is for, on an interface without ARP.
                let anybody = Via {
                    ifindex: *ifindex,
                    neighbour: IpAddr::from([0, 0, 0, 0]),
                    weight: 1,
                };
                hops = self.lead(&mut path, &[anybody], *mtu, reach);
                path.reason = Counter::Neighbour as u8;
            }
            Spec::Via { members, mtu } => hops = self.lead(&mut path, members, *mtu, reach),
        }
        self.paths.write(number, &path);
        for old in self.members.insert(number, hops).unwrap_or_default() {
            self.hops.release_if_any(old);
        }
    }

    /// Has a path lead to its members, or to the kernel where none is reached. Their hops' numbers.
    fn lead(
        &mut self,
        path: &mut Path,
        members: &[Via],
        mtu: Option<u32>,
        reach: &impl Reach,
    ) -> Vec<u32> {
        let reached: Vec<_> = members
            .iter()
            .map(|via| reach.hop(via.ifindex, via.neighbour, mtu))
            .collect();
        let hops: Vec<u32> = reached.iter().map(|hop| self.hop(hop)).collect();
        let known = hops.iter().any(|hop| *hop != 0);
        path.kind = if known { kind::FORWARD } else { kind::PASS };
        path.reason = reached
            .iter()
            .find_map(|hop| hop.err())
            .unwrap_or(Counter::Neighbour) as u8;
        path.count = members.len() as u8;
        path.member = shares(members, &hops);
        hops
    }

    /// A hop's number, held; 0 if there is none.
    fn hop(&mut self, reached: &Result<Hop, Counter>) -> u32 {
        let Ok(hop) = reached else {
            return 0;
        };
        if let Some(number) = self.hops.find(hop) {
            self.hops.hold(number);
            return number;
        }
        // Full: the kernel forwards to this one.
        let Ok(number) = self.hops.add(*hop) else {
            return 0;
        };
        self.hops.write(number, hop);
        number
    }
}

/// Where `used` is in a hop, in words.
const USED: usize = std::mem::offset_of!(Hop, used) / 4;

/// Upper bounds of the hashes of each member, as the kernel's fib_rebalance() draws them.
fn shares(members: &[Via], hops: &[u32]) -> [Member; PATH_MEMBERS] {
    let total: u64 = members.iter().map(|via| u64::from(via.weight)).sum();
    let mut shares = [Member::default(); PATH_MEMBERS];
    let mut sum = 0;
    for ((share, via), hop) in shares.iter_mut().zip(members).zip(hops) {
        sum += u64::from(via.weight);
        let upper = ((sum << 31) + total / 2) / total;
        *share = Member {
            hop: *hop,
            upper: upper.saturating_sub(1) as u32,
        };
    }
    shares
}

/// Numbered places in a mapped array, by what is in them. Place 0 is never given out.
#[derive(Debug)]
struct Slots<K> {
    array: BpfArray,
    words: usize,
    capacity: usize,
    numbers: HashMap<K, u32>,
    held: Vec<Option<(K, u32)>>,
    free: Vec<u32>,
    resting: [Vec<u32>; 2],
}

impl<K: Clone + Eq + std::hash::Hash> Slots<K> {
    fn new(array: BpfArray, words: usize) -> Self {
        let capacity = array.words().len() / words;
        Slots {
            array,
            words,
            capacity,
            numbers: HashMap::new(),
            held: vec![None],
            free: Vec::new(),
            resting: Default::default(),
        }
    }

    fn find(&self, key: &K) -> Option<u32> {
        self.numbers.get(key).copied()
    }

    fn key(&self, number: u32) -> Option<&K> {
        self.held.get(number as usize)?.as_ref().map(|(key, _)| key)
    }

    fn all(&self) -> impl Iterator<Item = (u32, &K)> {
        self.numbers.iter().map(|(key, number)| (*number, key))
    }

    fn add(&mut self, key: K) -> Result<u32, Full> {
        let number = match self.free.pop() {
            Some(number) => number,
            None if self.held.len() < self.capacity => {
                self.held.push(None);
                self.held.len() as u32 - 1
            }
            None => return Err(Full),
        };
        self.numbers.insert(key.clone(), number);
        self.held[number as usize] = Some((key, 1));
        Ok(number)
    }

    fn hold(&mut self, number: u32) {
        if let Some((_, count)) = &mut self.held[number as usize] {
            *count += 1;
        }
    }

    /// Whether that was the last.
    fn release(&mut self, number: u32) -> bool {
        let Some((key, count)) = &mut self.held[number as usize] else {
            return false;
        };
        *count -= 1;
        if *count > 0 {
            return false;
        }
        self.numbers.remove(key);
        self.held[number as usize] = None;
        self.resting[0].push(number);
        true
    }

    fn release_if_any(&mut self, number: u32) {
        if number != 0 {
            self.release(number);
        }
    }

    fn rest(&mut self) {
        self.free.append(&mut self.resting[1]);
        self.resting.swap(0, 1);
    }

    fn word(&self, number: u32, word: usize) -> &AtomicU32 {
        &self.array.words()[number as usize * self.words + word]
    }

    /// Word by word, the first one last: it says what the others mean.
    fn write<V: Pod>(&self, number: u32, value: &V) {
        let words: Vec<u32> = bytemuck::bytes_of(value)
            .chunks_exact(4)
            .map(bytemuck::pod_read_unaligned)
            .collect();
        for (at, word) in words.iter().enumerate().rev() {
            self.word(number, at).store(*word, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_by_weight() {
        let via = |weight| Via {
            ifindex: 1,
            neighbour: IpAddr::from([192, 0, 2, 1]),
            weight,
        };
        let shares = shares(&[via(1), via(3)], &[7, 8]);
        assert_eq!((shares[0].hop, shares[0].upper), (7, (1 << 29) - 1));
        assert_eq!((shares[1].hop, shares[1].upper), (8, (1 << 31) - 1));
    }
}
