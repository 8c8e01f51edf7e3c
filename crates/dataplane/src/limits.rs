//! What a NIC may send and be sent in a second, and the token buckets that say whether it has.
//!
//! A [`Bucket`] is one number: when it will be full again. To take from it moves that moment on,
//! time alone refills it, so there is no timer and no chunk to hand out: a NIC's bucket is one
//! atomic word that the workers of all its queues share, written once a batch. A bucket that is not
//! empty gives whatever it is asked for and is in debt after it, so that a frame larger than the
//! burst passes too and is paid for before the next one.
//!
//! What a NIC sends beyond its bits and packets is not dropped: it is left in its ring until there
//! are tokens (`worker.rs`), which is how a full ring tells the guest's own TCP to send more
//! slowly. What is sent to a NIC beyond them waits in a short queue where it would be delivered
//! (`stages/deliver.rs`, `shaper.rs`), and is dropped when that is full. New connections and floods
//! are dropped in both directions: to let them wait would stop all else in the same ring.

use std::sync::atomic::{AtomicU64, Ordering};

use io::frame::Frame;
use wire::offload::Gso;
use wire::parse::ETHERNET_LEN;

use crate::drop_reason::DropReason;
use crate::time::Now;

/// So much a second, and at most so much at once after a pause.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Limit {
    /// A second: bits, packets, connections or frames. At least 1.
    pub rate: u64,
    /// At once: bytes where the rate is in bits, else the unit of the rate. At least 1.
    pub burst: u64,
}

/// The limits of one direction; `None`: no limit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Limits {
    /// Bits of Ethernet frames without FCS, preamble and gap. A frame that is to be cut into
    /// segments is charged as these are, each with its headers.
    pub bits: Option<Limit>,
    /// Packets; a frame that is to be cut into segments is as many.
    pub packets: Option<Limit>,
    /// New tracked flows. Egress: that the NIC begins. Ingress: that others begin with it.
    pub connections: Option<Limit>,
    /// Broadcast, multicast and unknown-unicast packets; a frame that is to be cut into segments is
    /// as many.
    pub floods: Option<Limit>,
}

impl Limits {
    /// There is none.
    pub fn is_empty(&self) -> bool {
        *self == Limits::default()
    }
}

/// The limits of a NIC with the state of their buckets, shared by all workers.
#[derive(Debug)]
pub struct Meters {
    /// What the NIC sends.
    pub egress: Meter,
    /// What it is sent.
    pub ingress: Meter,
}

/// The limits of one direction and their buckets.
#[derive(Debug)]
pub struct Meter {
    limits: Limits,
    bits: Option<Bucket>,
    packets: Option<Bucket>,
    connections: Option<Bucket>,
    floods: Option<Bucket>,
    /// How often a queue was left alone for want of tokens.
    held: AtomicU64,
    /// For how long in all, nanoseconds: of each queue.
    held_ns: AtomicU64,
}

impl Meters {
    /// Full buckets; `None` where there is no limit.
    pub fn new(egress: Limits, ingress: Limits) -> Option<Meters> {
        (!egress.is_empty() || !ingress.is_empty()).then(|| Meters {
            egress: Meter::new(egress),
            ingress: Meter::new(ingress),
        })
    }

    /// New connections are limited: a pair with this NIC has to have flows, whatever it allows.
    pub(crate) fn count_connections(&self) -> bool {
        self.egress.connections.is_some() || self.ingress.connections.is_some()
    }
}

/// What may wait for tokens is what comes in this part of a second.
const QUEUE_PART: u64 = 40;

/// But so much at the least and at the most: TCP needs a few of its segments in flight, and a queue
/// that is longer makes it slower and no faster.
const QUEUE_BYTES: (u64, u64) = (32 << 10, 1 << 20);
const QUEUE_PACKETS: (u64, u64) = (32, 1024);

/// And no more than comes in this part of a second.
const LONGEST_PART: u64 = 4;

/// What waits for tokens is looked at no more often, unless the bucket would be full before.
const LOOK_NS: u64 = 100_000;

/// What may wait for tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct QueueRoom {
    pub bytes: usize,
    pub packets: usize,
}

/// What frames are charged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Charge {
    pub bytes: u64,
    pub packets: u64,
}

impl Charge {
    /// A frame alone.
    pub(crate) fn of(frame: &Frame) -> Charge {
        let len = frame.len() as u64;
        let one = Charge {
            bytes: len,
            packets: 1,
        };
        if frame.offload.gso == Gso::None || frame.offload.gso_size == 0 {
            return one;
        }
        let header = header_len(frame) as u64;
        let payload = len.saturating_sub(header);
        let packets = payload.div_ceil(frame.offload.gso_size.into()).max(1);
        Charge {
            bytes: len + (packets - 1) * header,
            packets,
        }
    }

    /// Several.
    pub(crate) fn of_all<'a>(frames: impl Iterator<Item = &'a Frame>) -> Charge {
        frames
            .map(Charge::of)
            .fold(Charge::default(), |all, one| Charge {
                bytes: all.bytes + one.bytes,
                packets: all.packets + one.packets,
            })
    }
}

/// Bytes of headers that each segment of a frame has. The checksum of every frame that is to be cut
/// is left to us, and begins where its transport header does.
fn header_len(frame: &Frame) -> usize {
    let Some(checksum) = frame.offload.checksum else {
        return ETHERNET_LEN;
    };
    let start = usize::from(checksum.start);
    let transport = match frame.offload.gso {
        Gso::Udp | Gso::None => 8,
        Gso::Tcp4 | Gso::Tcp6 => frame
            .head()
            .get(start + 12)
            .map_or(20, |offset| usize::from(offset >> 4) * 4),
    };
    start + transport
}

impl Meter {
    fn new(limits: Limits) -> Meter {
        // A rate in bits and a burst in bytes: both in bytes, of which there are an eighth a
        // second.
        let bits = |limit| Bucket::new(limit, 8);
        let count = |limit| Bucket::new(limit, 1);
        Meter {
            limits,
            bits: limits.bits.map(bits),
            packets: limits.packets.map(count),
            connections: limits.connections.map(count),
            floods: limits.floods.map(count),
            held: AtomicU64::new(0),
            held_ns: AtomicU64::new(0),
        }
    }

    /// What it was made of.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// How often a queue of the NIC was not received from for want of tokens, and for how many
    /// nanoseconds in all.
    pub fn held(&self) -> (u64, u64) {
        (
            self.held.load(Ordering::Relaxed),
            self.held_ns.load(Ordering::Relaxed),
        )
    }

    /// How many nanoseconds the NIC has to wait before it may send more; 0: it may.
    pub(crate) fn wait_ns(&self, now: Now) -> u64 {
        let both = [&self.bits, &self.packets];
        let waits = both.into_iter().flatten().map(|bucket| bucket.wait_ns(now));
        waits.max().unwrap_or(0)
    }

    /// Counts a wait.
    pub(crate) fn note_wait(&self, ns: u64) {
        self.held.fetch_add(1, Ordering::Relaxed);
        self.held_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// How many frames such as those of before may be sent at once; one at the least.
    pub(crate) fn frames(&self, now: Now, before: Charge, frames: u64) -> usize {
        let part = |bucket: &Option<Bucket>, charged: u64| {
            let Some(bucket) = bucket else {
                return usize::MAX;
            };
            let each = charged.div_ceil(frames.max(1)).max(1);
            (bucket.level(now) / each).try_into().unwrap_or(usize::MAX)
        };
        let bits = part(&self.bits, before.bytes);
        bits.min(part(&self.packets, before.packets)).max(1)
    }

    /// Takes what frames cost, be it more than there is.
    pub(crate) fn charge(&self, charge: Charge, now: Now) {
        if let Some(bits) = &self.bits {
            bits.take(charge.bytes, now);
        }
        if let Some(packets) = &self.packets {
            packets.take(charge.packets, now);
        }
    }

    /// Lets a frame pass and charges it, or says why not.
    pub(crate) fn admit(&self, frame: &Frame, now: Now) -> Result<(), DropReason> {
        if self.wait_ns(now) > 0 {
            return Err(self.short_of(now));
        }
        self.charge_one(frame, now);
        Ok(())
    }

    /// Takes what a frame costs, be it more than there is.
    pub(crate) fn charge_one(&self, frame: &Frame, now: Now) {
        if self.bits.is_some() || self.packets.is_some() {
            self.charge(Charge::of(frame), now);
        }
    }

    /// The limit that a frame which is dropped now is dropped for.
    pub(crate) fn short_of(&self, now: Now) -> DropReason {
        let has = |bucket: &Option<Bucket>| match bucket {
            Some(bucket) => bucket.wait_ns(now) == 0,
            None => true,
        };
        match (has(&self.bits), &self.bits, &self.packets) {
            (false, _, _) | (true, Some(_), None) => DropReason::BitLimit,
            (true, Some(_), Some(_)) if has(&self.packets) => DropReason::BitLimit,
            _ => DropReason::PacketLimit,
        }
    }

    /// What may wait for tokens (`shaper.rs`).
    pub(crate) fn queue_room(&self) -> QueueRoom {
        let part = |limit: Option<Limit>, per: u64, (least, most): (u64, u64)| {
            let Some(Limit { rate, .. }) = limit else {
                return most as usize;
            };
            let least = least.min(rate / per / LONGEST_PART);
            (rate / per / QUEUE_PART).clamp(least, most) as usize
        };
        QueueRoom {
            bytes: part(self.limits.bits, 8, QUEUE_BYTES),
            packets: part(self.limits.packets, 1, QUEUE_PACKETS),
        }
    }

    /// A frame that comes now would wait for too long, even alone.
    pub(crate) fn is_too_long(&self, now: Now) -> bool {
        self.wait_ns(now) > 1_000_000_000 / LONGEST_PART
    }

    /// When what waits for tokens is looked at again, monotonic nanoseconds: not for each frame
    /// where the bucket holds several, since it is filled meanwhile.
    pub(crate) fn queue_until(&self, now: Now) -> u64 {
        let both = [&self.bits, &self.packets].into_iter().flatten();
        let half = both.map(|bucket| bucket.size / PARTS / 2).min();
        let pause = half.unwrap_or(0).clamp(1, LOOK_NS);
        now.mono_ns.saturating_add(self.wait_ns(now).max(pause))
    }

    /// More is owed than [may wait](Self::queue_room).
    pub(crate) fn owes_too_much(&self, now: Now) -> bool {
        let room = self.queue_room();
        let owes = |bucket: &Option<Bucket>, units: usize| {
            let Some(bucket) = bucket else { return false };
            bucket.wait_ns(now) > bucket.time_of(units as u64) / PARTS
        };
        owes(&self.bits, room.bytes) || owes(&self.packets, room.packets)
    }

    /// One more connection. A trial takes nothing.
    pub(crate) fn admit_connection(&self, now: Now, is_trial: bool) -> Result<(), DropReason> {
        some(&self.connections, 1, now, is_trial).ok_or(DropReason::ConnectionLimit)
    }

    /// One more frame for many, that is so many packets. A trial takes nothing.
    pub(crate) fn admit_flood(
        &self,
        packets: u64,
        now: Now,
        is_trial: bool,
    ) -> Result<(), DropReason> {
        some(&self.floods, packets, now, is_trial).ok_or(DropReason::FloodLimit)
    }
}

/// Takes so many if there is one; a trial only looks.
fn some(bucket: &Option<Bucket>, count: u64, now: Now, is_trial: bool) -> Option<()> {
    let Some(bucket) = bucket else {
        return Some(());
    };
    if bucket.wait_ns(now) > 0 {
        return None;
    }
    if !is_trial {
        bucket.take(count, now);
    }
    Some(())
}

/// Parts of a nanosecond that buckets reckon in: a byte at 1 Tbit/s is half of one.
const PARTS: u64 = 64;

/// Parts of a second.
const SECOND: u128 = 1_000_000_000 * PARTS as u128;

/// A bucket fuller or emptier than this is not reckoned with: 1.1 years.
const LONGEST: u64 = 1 << 61;

/// A token bucket.
#[derive(Debug)]
struct Bucket {
    /// Units a second, times `per`.
    rate: u64,
    per: u64,
    /// How long it takes to fill, in parts.
    size: u64,
    /// When it is full again, in parts, which wrap; 0: nothing was ever taken.
    full_at: AtomicU64,
}

impl Bucket {
    /// A full one. `limit.rate` is in `per`th parts of the unit in which it is charged.
    fn new(limit: Limit, per: u64) -> Bucket {
        let mut bucket = Bucket {
            rate: limit.rate.max(1),
            per,
            size: 0,
            full_at: AtomicU64::new(0),
        };
        // A bucket of no size would never have anything.
        bucket.size = bucket.time_of(limit.burst.max(1)).max(1);
        bucket
    }

    /// How long it takes until so many units have come.
    fn time_of(&self, units: u64) -> u64 {
        let parts = u128::from(units) * u128::from(self.per) * SECOND / u128::from(self.rate);
        parts.min(LONGEST.into()) as u64
    }

    /// How long it is until it is full.
    fn missing(full_at: u64, now: u64) -> u64 {
        match full_at {
            0 => 0,
            at => (at.wrapping_sub(now) as i64).max(0) as u64,
        }
    }

    /// Nanoseconds until it has something; 0: it has.
    fn wait_ns(&self, now: Now) -> u64 {
        let missing = Bucket::missing(self.full_at.load(Ordering::Relaxed), parts(now));
        match missing < self.size {
            true => 0,
            false => (missing - self.size) / PARTS + 1,
        }
    }

    /// How many units it has.
    fn level(&self, now: Now) -> u64 {
        let missing = Bucket::missing(self.full_at.load(Ordering::Relaxed), parts(now));
        let there = u128::from(self.size.saturating_sub(missing));
        (there * u128::from(self.rate) / SECOND / u128::from(self.per)) as u64
    }

    /// Takes units, be they more than there are.
    fn take(&self, units: u64, now: Now) {
        let (time, now) = (self.time_of(units), parts(now));
        // Orders nothing else: a number that several count up.
        let _ = self
            .full_at
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |full_at| {
                let missing = Bucket::missing(full_at, now) + time;
                Some(now.wrapping_add(missing.min(LONGEST)).max(1))
            });
    }
}

fn parts(now: Now) -> u64 {
    now.mono_ns.wrapping_mul(PARTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ns: u64) -> Now {
        Now {
            mono_ns: ns,
            unix_ns: 0,
        }
    }

    const SEC: u64 = 1_000_000_000;

    /// 80 bits a second are 10 bytes; the burst is in bytes.
    #[test]
    fn a_bucket_gives_its_burst_at_once_and_then_its_rate() {
        let bucket = Bucket::new(
            Limit {
                rate: 80,
                burst: 30,
            },
            8,
        );
        let start = 7 * SEC;
        assert_eq!(
            (bucket.level(at(start)), bucket.wait_ns(at(start))),
            (30, 0)
        );
        bucket.take(29, at(start));
        assert_eq!((bucket.level(at(start)), bucket.wait_ns(at(start))), (1, 0));
        // What is more than it has is owed: 100 bytes are 10 seconds.
        bucket.take(101, at(start));
        assert_eq!(bucket.level(at(start)), 0);
        assert_eq!(bucket.wait_ns(at(start)), 10 * SEC + 1);
        assert_eq!(bucket.wait_ns(at(start + 10 * SEC)), 1);
        assert_eq!(bucket.wait_ns(at(start + 10 * SEC + 1)), 0);
        assert_eq!(bucket.level(at(start + 11 * SEC)), 10);
        // No more than the burst is ever there.
        assert_eq!(bucket.level(at(start + 1000 * SEC)), 30);
    }

    #[test]
    fn no_rate_is_too_high_or_too_low_and_no_time_too_late() {
        for (rate, burst) in [(1, u64::MAX), (u64::MAX, 1), (1, 1), (u64::MAX, u64::MAX)] {
            for now in [1, u64::MAX / PARTS - 1, u64::MAX / PARTS, u64::MAX] {
                let bucket = Bucket::new(Limit { rate, burst }, 8);
                assert_eq!(bucket.wait_ns(at(now)), 0, "{rate} {burst} {now}");
                bucket.take(u64::MAX, at(now));
                bucket.take(u64::MAX, at(now));
                let _ = (bucket.level(at(now)), bucket.wait_ns(at(now)));
            }
        }
    }

    /// At 100 Gbit/s a frame of 60 bytes takes 4.8 ns: what is rounded off does not add up.
    #[test]
    fn small_frames_at_high_rates_are_charged_exactly() {
        let limit = Limit {
            rate: 100_000_000_000,
            burst: 1_000_000,
        };
        let bucket = Bucket::new(limit, 8);
        for _ in 0..1_000_000 {
            bucket.take(60, at(SEC));
        }
        let expected = 60_000_000 * 8 / 100 - 1_000_000 * 8 / 100;
        let waits = bucket.wait_ns(at(SEC));
        assert!(
            waits.abs_diff(expected) * 500 < expected,
            "{waits} {expected}"
        );
    }

    #[test]
    fn several_threads_take_no_more_than_there_is() {
        let bucket = Bucket::new(
            Limit {
                rate: 1000,
                burst: 10,
            },
            1,
        );
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| bucket.take(1, at(SEC))));
            }
        });
        assert_eq!(bucket.wait_ns(at(SEC)), 4 * SEC - SEC / 100 + 1);
    }
}
