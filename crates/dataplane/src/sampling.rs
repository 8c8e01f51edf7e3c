//! Sampling: one frame of many is copied for somebody who looks at it (sFlow), where it comes into
//! the switch: from the NIC that has sent it, or from an uplink, with its outer headers.
//!
//! A worker counts down how many frames it leaves out, by batches, and puts the first bytes of the
//! next one into a bounded ring. It never waits: what does not fit is lost, and counted. Gaps are
//! drawn at random with the right mean, so that traffic in step with them is not mistaken. Where
//! nobody samples a batch costs one comparison.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use io::frame::Frame;

use crate::drop_reason::DropReason;
use crate::ids::PortSlot;
use crate::round::{Fate, Item, Job, Verdict};
use crate::underlay::Underlay;

/// First bytes of a frame that are copied.
pub const HEAD: usize = 128;
/// Samples of one worker that wait for the reader.
pub const RING: usize = 4096;
/// One frame in so many at the least.
pub const RATE_MAX: u32 = 1 << 24;

/// A frame of many.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sample {
    /// The NIC that has sent it, or the uplink that it came by.
    pub input: PortSlot,
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
    /// A sampler for each of so many workers, which takes one frame in `rate`.
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

    /// What waits, oldest first by worker.
    pub fn take(&self) -> impl Iterator<Item = Sample> + '_ {
        self.rings
            .iter()
            .flat_map(|ring| ring.try_iter().take(RING))
    }

    /// Samples for which there was no room.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

/// A worker's side.
#[derive(Debug)]
pub(crate) struct Sampler {
    rate: u32,
    /// Frames to leave out until the next sample.
    left_out: u32,
    random: u64,
    samples: SyncSender<Sample>,
    lost: Arc<AtomicU64>,
}

impl Sampler {
    fn new(rate: u32, seed: u64, samples: SyncSender<Sample>, lost: Arc<AtomicU64>) -> Sampler {
        let mut sampler = Sampler {
            rate: rate.clamp(1, RATE_MAX),
            left_out: 0,
            random: seed,
            samples,
            lost,
        };
        sampler.left_out = sampler.gap();
        sampler
    }

    /// Frames between two samples: 0 to 2 (rate - 1), each as likely.
    fn gap(&mut self) -> u32 {
        // SplitMix64 (Steele, Lea, Flood 2014).
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let span = 2 * u64::from(self.rate) - 1;
        ((mixed ^ mixed >> 31) % span) as u32
    }

    /// The next frame to sample of a batch of so many, from `first` on.
    pub(crate) fn next(&mut self, first: usize, frames: usize) -> Option<usize> {
        let left = frames.saturating_sub(first);
        if self.left_out as usize >= left {
            self.left_out -= left as u32;
            return None;
        }
        let index = first + self.left_out as usize;
        self.left_out = self.gap();
        Some(index)
    }

    pub(crate) fn put(&self, input: PortSlot, output: Output, frame: &Frame) {
        let from = frame.head();
        let len = from.len().min(frame.len()).min(HEAD);
        let mut head = [0; HEAD];
        head[..len].copy_from_slice(&from[..len]);
        let sample = Sample {
            input,
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

    #[test]
    fn one_in_so_many_is_taken_on_average_and_not_in_step() {
        let (samples, mut samplers) = Samples::new(1, 100, 42);
        let sampler = &mut samplers[0];
        let (mut taken, mut places) = (0, [0; 64]);
        for _ in 0..10_000 {
            let mut first = 0;
            while let Some(index) = sampler.next(first, 64) {
                (taken, first) = (taken + 1, index + 1);
                places[index] += 1;
            }
        }
        // 6,400 are expected; the deviation of the sum is below 60.
        assert!((6000..6800).contains(&taken), "{taken}");
        assert!(places.iter().all(|count| *count > 40), "{places:?}");
        assert_eq!(samples.lost(), 0);
    }

    #[test]
    fn of_one_in_one_all_are_taken() {
        let (_, mut samplers) = Samples::new(1, 1, 7);
        let taken: Vec<_> = (0..5).map(|first| samplers[0].next(first, 5)).collect();
        assert_eq!(taken, [Some(0), Some(1), Some(2), Some(3), Some(4)]);
        assert_eq!(samplers[0].next(5, 5), None);
    }
}
