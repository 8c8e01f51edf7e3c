//! Sampling: one frame of many is copied for somebody who looks at it (sFlow), where it comes into
//! the switch: from the NIC that has sent it, or from an uplink, with its outer headers.
//!
//! A worker counts down how many frames of a source it leaves out, by batches, and puts the first
//! bytes of the next one into a bounded ring. It never waits: what does not fit is lost, and
//! counted. Each frame is taken with the same chance whatever was taken before, so that traffic in
//! step is not mistaken, and a source that sends little is seen as often as it should. A NIC may
//! have a rate of its own ([`PortConfig::sample_rate`](crate::PortConfig::sample_rate)). Where
//! nobody samples a batch costs one comparison.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use io::frame::Frame;

use crate::drop_reason::DropReason;
use crate::ids::{MAX_PORTS, MAX_UPLINKS, PortSlot};
use crate::round::{Fate, Item, Job, Verdict};
use crate::underlay::Underlay;

/// First bytes of a frame that are copied.
pub const HEAD: usize = 128;
/// Samples of one worker that wait for the reader.
pub const RING: usize = 4096;
/// One frame in so many at the least.
pub const RATE_MAX: u32 = 1 << 24;
/// NICs and uplinks.
const SOURCES: usize = MAX_PORTS + MAX_UPLINKS;

/// A frame of many.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sample {
    /// The NIC that has sent it, or the uplink that it came by.
    pub input: PortSlot,
    /// One frame in so many of that is taken.
    pub rate: u32,
    /// How many of its frames this worker could have taken until then, this one included.
    pub pool: u64,
    /// Where it went to.
    pub output: Output,
    /// Bytes of the whole frame.
    pub frame_len: u32,
    /// Its first bytes.
    pub head: [u8; HEAD],
    /// How many these are.
    pub head_len: u8,
}

/// Where a frame went to, as far as the step is concerned that says who gets it: a ring may be
/// full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output {
    /// It came from an uplink, or it waits for something.
    Unknown,
    /// A NIC, or the uplink to another host.
    Port(PortSlot),
    /// So many of them.
    Several(u32),
    /// Nobody.
    Dropped(Option<DropReason>),
}

/// The reader's end of all workers' rings.
#[derive(Debug)]
pub struct Samples {
    rings: Vec<Receiver<Sample>>,
    lost: Arc<AtomicU64>,
}

impl Samples {
    /// A sampler for each of so many workers, which takes one frame in `rate`; 0: none but of
    /// NICs with a rate of their own.
    pub(crate) fn new(workers: usize, rate: u32, seed: u64) -> (Samples, Vec<Sampler>) {
        let lost = Arc::default();
        let (mut rings, mut samplers) = (Vec::new(), Vec::new());
        for number in 0..workers as u64 {
            let (samples, ring) = sync_channel(RING);
            rings.push(ring);
            samplers.push(Sampler::new(
                rate,
                seed ^ (number + 1),
                samples,
                Arc::clone(&lost),
            ));
        }
        (Samples { rings, lost }, samplers)
    }

    /// What waits, oldest first by worker, with its number.
    pub fn take(&self) -> impl Iterator<Item = (usize, Sample)> + '_ {
        let waiting = |(worker, ring): (usize, &Receiver<Sample>)| {
            let taken: Vec<_> = ring.try_iter().take(RING).collect();
            taken.into_iter().map(move |sample| (worker, sample))
        };
        self.rings.iter().enumerate().flat_map(waiting)
    }

    /// Samples for which there was no room.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

/// A worker's side.
#[derive(Debug)]
pub(crate) struct Sampler {
    /// That of sources without one of their own.
    rate: u32,
    /// By slot.
    sources: Box<[Source]>,
    random: u64,
    samples: SyncSender<Sample>,
    lost: Arc<AtomicU64>,
}

/// Where frames come from.
#[derive(Clone, Copy, Default, Debug)]
struct Source {
    /// What `left_out` was drawn for; 0: none was.
    rate: u32,
    /// Frames to leave out until the next sample.
    left_out: u32,
    /// Frames that could have been taken.
    pool: u64,
}

impl Sampler {
    fn new(rate: u32, seed: u64, samples: SyncSender<Sample>, lost: Arc<AtomicU64>) -> Sampler {
        Sampler {
            rate: rate.min(RATE_MAX),
            sources: vec![Source::default(); SOURCES].into(),
            random: seed,
            samples,
            lost,
        }
    }

    /// What sources without a rate of their own are sampled at; 0: not at all.
    pub(crate) fn rate(&self) -> u32 {
        self.rate
    }

    /// Takes one of many of the frames that have come from `input`, whose `own` rate counts if it
    /// has one. `output` says where the frame of an index has gone.
    pub(crate) fn run(
        &mut self,
        input: PortSlot,
        own: Option<u32>,
        frames: &[Frame],
        output: impl Fn(usize) -> Output,
    ) {
        let rate = own.unwrap_or(self.rate);
        let mut first = 0;
        while let Some((index, pool)) = self.next(input, rate, first, frames.len()) {
            self.put(input, (rate, pool), output(index), &frames[index]);
            first = index + 1;
        }
    }

    /// The next frame to sample of a batch of so many, from `first` on, and the source's pool with
    /// it.
    fn next(
        &mut self,
        input: PortSlot,
        rate: u32,
        first: usize,
        frames: usize,
    ) -> Option<(usize, u64)> {
        let mut source = *self.sources.get(input.0 as usize)?;
        if source.rate != rate {
            (source.rate, source.left_out) = (rate, self.gap(rate));
        }
        let left = frames.saturating_sub(first);
        let taken = match rate {
            0 => None,
            _ if source.left_out as usize >= left => {
                source.left_out -= left as u32;
                source.pool += left as u64;
                None
            }
            _ => {
                let left_out = source.left_out as usize;
                source.left_out = self.gap(rate);
                source.pool += left_out as u64 + 1;
                Some((first + left_out, source.pool))
            }
        };
        self.sources[input.0 as usize] = source;
        taken
    }

    /// Frames between two samples, as where each is taken with the chance 1 / `rate`: the
    /// geometric distribution. It remembers nothing, so that a gap that has begun goes on as a new
    /// one would.
    fn gap(&mut self, rate: u32) -> u32 {
        if rate <= 1 {
            return 0;
        }
        // SplitMix64 (Steele, Lea, Flood 2014).
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        // Above 0, 1 at the most: 53 bits are what a f64 has.
        let uniform = ((mixed >> 11) + 1) as f64 / (1u64 << 53) as f64;
        (uniform.ln() / (-1.0 / f64::from(rate)).ln_1p()) as u32
    }

    fn put(&self, input: PortSlot, (rate, pool): (u32, u64), output: Output, frame: &Frame) {
        let from = frame.head();
        let len = from.len().min(frame.len()).min(HEAD);
        let mut head = [0; HEAD];
        head[..len].copy_from_slice(&from[..len]);
        let sample = Sample {
            input,
            rate,
            pool,
            output,
            frame_len: frame.len() as u32,
            head,
            head_len: len as u8,
        };
        if self.samples.try_send(sample).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Where frame `index` of a round that is over has gone.
pub(crate) fn output(index: usize, items: &[Item], jobs: &[Job], underlay: &Underlay) -> Output {
    let mine = |job: &&Job| usize::from(job.frame) == index;
    let mut passed = jobs
        .iter()
        .filter(mine)
        .filter(|job| matches!(job.verdict, Verdict::Pass | Verdict::Wait));
    if let Some(first) = passed.next() {
        return match passed.count() as u32 {
            0 => match first.target.as_hop() {
                None => Output::Port(first.target),
                Some(hop) => underlay
                    .hop(hop)
                    .map_or(Output::Unknown, |hop| Output::Port(hop.uplink)),
            },
            others => Output::Several(1 + others),
        };
    }
    let refused = jobs.iter().filter(mine).find_map(|job| match job.verdict {
        Verdict::DropFrom(reason) | Verdict::DropTo(reason) => Some(reason),
        _ => None,
    });
    match items
        .iter()
        .find(|item| item.frame == index)
        .map(|item| item.fate)
    {
        Some(Fate::Dropped(reason)) => Output::Dropped(Some(reason)),
        Some(Fate::Held | Fate::Delivered) => Output::Unknown,
        _ => Output::Dropped(refused),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of so many batches of 64 frames are taken, where in a batch, and the last pool.
    fn taken(
        sampler: &mut Sampler,
        slot: u32,
        rate: u32,
        batches: usize,
    ) -> (usize, [u32; 64], u64) {
        let (mut count, mut places, mut last) = (0, [0; 64], 0);
        for _ in 0..batches {
            let mut first = 0;
            while let Some((index, pool)) = sampler.next(PortSlot(slot), rate, first, 64) {
                assert!(pool > last, "the pool grows: {pool} after {last}");
                (count, first, last) = (count + 1, index + 1, pool);
                places[index] += 1;
            }
        }
        (count, places, last)
    }

    #[test]
    fn one_in_so_many_is_taken_on_average_and_not_in_step() {
        let (samples, mut samplers) = Samples::new(1, 100, 42);
        let (count, places, pool) = taken(&mut samplers[0], 0, 100, 10_000);
        // 6,400 are expected; the deviation of the sum is 80.
        assert!((6000..6800).contains(&count), "{count}");
        assert!(places.iter().all(|count| *count > 40), "{places:?}");
        assert!((630_000..=640_000).contains(&pool), "{pool}");
        assert_eq!(samples.lost(), 0);
    }

    #[test]
    fn sources_that_send_little_are_seen_as_often_as_one_that_sends_much() {
        let (_samples, mut samplers) = Samples::new(1, 100, 42);
        let count: usize = (0..10_000)
            .map(|slot| taken(&mut samplers[0], slot, 100, 1).0)
            .sum();
        assert!((6000..6800).contains(&count), "{count}");
    }

    #[test]
    fn of_one_in_one_all_are_taken_and_of_none_none() {
        let (_samples, mut samplers) = Samples::new(1, 1, 7);
        let sampler = &mut samplers[0];
        let uplink = PortSlot::uplink(MAX_UPLINKS as u32 - 1);
        let taken: Vec<_> = (0..5)
            .map(|first| sampler.next(uplink, 1, first, 5))
            .collect();
        let each = |index: usize| Some((index, index as u64 + 1));
        assert_eq!(taken, [0, 1, 2, 3, 4].map(each));
        assert_eq!(sampler.next(uplink, 1, 5, 5), None);
        // What is not sampled is not in the pool.
        assert_eq!(sampler.next(uplink, 0, 0, 5), None);
        assert_eq!(sampler.next(uplink, 1, 0, 5), Some((0, 6)));
    }

    #[test]
    fn a_rate_that_changes_is_in_force_at_once() {
        let (_samples, mut samplers) = Samples::new(1, 1, 7);
        let sampler = &mut samplers[0];
        while sampler.next(PortSlot(3), RATE_MAX, 0, 64).is_some() {}
        assert!(sampler.sources[3].left_out > 0);
        assert!(matches!(sampler.next(PortSlot(3), 1, 0, 64), Some((0, _))));
    }
}
