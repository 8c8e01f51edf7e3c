//! Before delivery, for frames from the wire: TCP segments of one connection that follow each other
//! become one large frame for a receiver that has negotiated such (GRO), and so do datagrams of one
//! flow. One copy, one buffer and one walk through the guest's stack then do for many. Only frames
//! for one NIC alone are merged, and only while nothing of their flow is between them; a piece
//! whose checksum is wrong is passed on as it is, for its receiver to find out.

use io::frame::{Batch, Bits};
use io::port::Accepts;
use wire::checksum;
use wire::merge::{self, Piece};
use wire::offload::Gso;

use crate::ids::PortSlot;
use crate::round::{Job, Verdict};

/// Connections and flows of one batch that are merged at most; pieces of others pass as they are.
const TRAINS: usize = 8;

/// Pieces that become one frame.
struct Train {
    target: PortSlot,
    frame: usize,
    first: Piece,
    last: Piece,
    /// Bytes of payload so far.
    taken: usize,
    /// The frames behind the first.
    others: Vec<u8>,
    open: bool,
}

/// Merges what belongs together among `jobs`, which are in the order of their frames. `accepts`
/// says what the target of a job takes.
pub(crate) fn run(
    batch: &mut Batch,
    jobs: &mut Vec<Job>,
    mut accepts: impl FnMut(&Job) -> Accepts,
) {
    if jobs.len() < 2 {
        return;
    }
    let mut trains: Vec<Train> = Vec::new();
    for (index, job) in jobs.iter().enumerate() {
        let frame = usize::from(job.frame);
        let takes = accepts(job);
        if !takes.checksum || !(takes.tso4 || takes.tso6 || takes.uso) {
            continue;
        }
        let bytes = &batch.frames()[frame];
        let next = merge::piece(bytes.head(), bytes.len()).filter(|piece| match piece.gso() {
            // It is several already.
            _ if bytes.offload.gso != Gso::None => false,
            Gso::Tcp4 => takes.tso4,
            Gso::Tcp6 => takes.tso6,
            Gso::Udp => takes.uso,
            Gso::None => false,
        });
        let Some(next) = next.filter(|_| job.verdict == Verdict::Pass && is_alone(jobs, index))
        else {
            // It may be of one of these flows, and is not to be overtaken.
            close(&mut trains, job.target, |_| true);
            continue;
        };
        let fits = |train: &&mut Train| {
            let first = batch.frames()[train.frame].head();
            train.open
                && train.target == job.target
                && train.first.takes(first, train.taken, &next, bytes.head())
        };
        match trains.iter_mut().find(fits) {
            Some(train) if is_right(batch, frame, &next) => {
                train.others.push(job.frame);
                train.taken += next.payload().len();
                train.open = !next.ends(&train.first);
                train.last = next;
            }
            _ => {
                close(&mut trains, job.target, |train| {
                    train
                        .first
                        .same_flow(batch.frames()[train.frame].head(), bytes.head())
                });
                if trains.len() < TRAINS && is_right(batch, frame, &next) {
                    trains.push(Train {
                        target: job.target,
                        frame,
                        first: next,
                        last: next,
                        taken: next.payload().len(),
                        others: Vec::new(),
                        open: !next.ends(&next),
                    });
                }
            }
        }
    }
    let mut gone: Bits = 0;
    for train in trains.iter().filter(|train| !train.others.is_empty()) {
        if batch.join(train.frame, &train.others, train.first.payload().start) {
            let frame = &mut batch.frames_mut()[train.frame];
            frame.offload = train
                .first
                .finish(frame.head_mut(), train.taken, &train.last);
            gone |= train.others.iter().fold(0, |bits, other| bits | 1 << other);
        }
    }
    if gone != 0 {
        jobs.retain(|job| gone >> job.frame & 1 == 0);
    }
}

/// The frame of this job has no other target. Jobs of one frame are neighbours.
fn is_alone(jobs: &[Job], index: usize) -> bool {
    let frame = jobs[index].frame;
    let others = [index.wrapping_sub(1), index + 1].map(|other| jobs.get(other));
    others
        .into_iter()
        .flatten()
        .all(|other| other.frame != frame)
}

/// Nothing is added any more to those trains for a target that `which` says.
fn close(trains: &mut [Train], target: PortSlot, which: impl Fn(&Train) -> bool) {
    for train in trains.iter_mut() {
        train.open &= train.target != target || !which(train);
    }
}

/// The piece's checksums are right.
fn is_right(batch: &Batch, frame: usize, piece: &Piece) -> bool {
    let head = batch.frames()[frame].head();
    // Only begun: it was on no wire.
    let is_begun = batch.frames()[frame].offload.checksum.is_some();
    piece.header_sum(head).is_some_and(|sum| {
        is_begun || checksum::fold(checksum::add(sum, batch.sum_from(frame, piece.l4()))) == 0xffff
    })
}
