//! What is written into a node's block, as `bpf/router.h` says: the runs of addresses that have one answer, in order, with an
//! index over them. No memory of its own, and no tree: see [`Trie`](crate::trie::Trie).

use crate::layout::CHILD;

/// A prefix that ends within a node: the first of its slots, the bits beyond the node's own, and what it leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Own {
    /// Of the node's `1 << width` slots.
    pub first: u16,
    /// From 1 to the width.
    pub len: u8,
    /// Not zero.
    pub value: u32,
}

/// Slots from `first` up to the next run's have one answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first slot.
    pub first: u32,
    /// A value, 0 for what the node's own is, or with `CHILD` where to go on.
    pub entry: u32,
}

/// The runs of sorted prefixes and children (slot, entry), and for each child what its slot has without it.
pub fn runs(prefixes: &[Own], children: &[(u16, u32)], width: u8) -> (Vec<Run>, Vec<u32>) {
    let mut runs = Vec::with_capacity(2 * (prefixes.len() + children.len()) + 1);
    let mut covers = Vec::with_capacity(children.len());
    // Prefixes around the one in hand, the shortest first: where each ends, and its entry.
    let mut open = vec![(1u32 << width, 0u32)];
    let (mut prefixes, mut children) = (prefixes.iter().peekable(), children.iter().peekable());
    push(&mut runs, 0, 0);
    loop {
        let prefix = prefixes.peek().map(|own| u32::from(own.first));
        let child = children.peek().map(|(slot, _)| u32::from(*slot));
        let Some(first) = prefix.into_iter().chain(child).min() else {
            break;
        };
        close(&mut runs, &mut open, first);
        // The prefixes that begin at a child's slot cover it.
        let (end, entry) = match prefixes.next_if(|own| u32::from(own.first) == first) {
            Some(own) => (first + (1 << (width - own.len)), own.value),
            None => {
                covers.push(open[open.len() - 1].1);
                let child = children.next().map_or(0, |(_, entry)| *entry);
                (first + 1, child)
            }
        };
        push(&mut runs, first, entry);
        open.push((end, entry));
    }
    close(&mut runs, &mut open, (1 << width) - 1);
    (runs, covers)
}

/// What ends at or before `at` gives way to what is around it.
fn close(runs: &mut Vec<Run>, open: &mut Vec<(u32, u32)>, at: u32) {
    while open.len() > 1 && open[open.len() - 1].0 <= at {
        let end = open[open.len() - 1].0;
        open.pop();
        push(runs, end, open[open.len() - 1].1);
    }
}

/// A run from here on: what began here before is nothing, and what goes on is one.
fn push(runs: &mut Vec<Run>, first: u32, entry: u32) {
    if runs.last().is_some_and(|last| last.first == first) {
        runs.pop();
    }
    if runs.last().is_none_or(|last| last.entry != entry) {
        runs.push(Run { first, entry });
    }
}

/// Words that a line has.
pub const LINE: usize = 16;
/// Bit of a head: two words a run.
const WIDE: u32 = 1 << 31;
/// In the head of a line: how many runs it has after the first.
const MORE_SHIFT: u32 = 27;
/// The part of a head that is a value.
const VALUE: u32 = (1 << MORE_SHIFT) - 1;
/// Lines at the most, as a power of two: what is larger has an index, which takes less memory and one read more.
const MOST_LINES: u8 = 6;

/// In which form a node lies in its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// For each value of the node's first bits a line of its own: its head, and the runs in it. One read finds all.
    Lines,
    /// A head, an index by the first bits, and all runs one behind the other.
    Index,
}

/// A node's form, and its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Lines, or an index.
    pub form: Form,
    /// How many first bits choose the line or the index's entry.
    pub bits: u8,
    /// Two words a run: there are children, or values beyond 16 bits.
    wide: bool,
}

impl Layout {
    /// The one that suits these runs.
    pub fn of(runs: &[Run], width: u8) -> Layout {
        let wide = runs.iter().any(|run| run.entry > u32::from(u16::MAX));
        let bits = (runs.len().ilog2().saturating_sub(1) as u8).min(width).min(15);
        let index = Layout {
            form: Form::Index,
            bits,
            wide,
        };
        let (room, largest) = ((LINE - 1) >> u8::from(wide), 3 * index.words(runs).div_ceil(LINE));
        let lines = (0..=width.min(MOST_LINES))
            .take_while(|bits| 1 << bits <= largest)
            .find(|bits| buckets(runs, width, *bits).all(|(_, in_it)| in_it.len() <= room));
        lines.map_or(index, |bits| Layout {
            form: Form::Lines,
            bits,
            wide,
        })
    }

    /// The words of the block, and where among them the entries of children are.
    pub fn draw(self, value: u32, runs: &[Run], width: u8) -> (Vec<u32>, Vec<usize>) {
        let (mut words, mut places) = (Vec::with_capacity(self.words(runs)), Vec::new());
        let head = value | if self.wide { WIDE } else { 0 };
        match self.form {
            Form::Lines => {
                for (bucket, (_, in_it)) in buckets(runs, width, self.bits).enumerate() {
                    words.resize(bucket * LINE, 0);
                    words.push(head | (in_it.len() as u32 - 1) << MORE_SHIFT);
                    self.draw_runs(in_it, &mut words, &mut places);
                }
            }
            Form::Index => {
                words.push(head);
                let entry = |(first, in_it): (usize, &[Run])| first as u32 | (in_it.len() as u32 - 1) << 16;
                words.extend(buckets(runs, width, self.bits).map(entry));
                self.draw_runs(runs, &mut words, &mut places);
            }
        }
        (words, places)
    }

    fn draw_runs(self, runs: &[Run], words: &mut Vec<u32>, places: &mut Vec<usize>) {
        for run in runs {
            if self.wide {
                words.extend([run.first << 16, run.entry]);
            } else {
                words.push(run.first << 16 | run.entry);
            }
            if run.entry & CHILD != 0 {
                places.push(words.len() - 1);
            }
        }
    }

    /// Where heads are.
    pub fn heads(self) -> impl Iterator<Item = usize> {
        let count = if self.form == Form::Lines {
            1 << self.bits
        } else {
            1
        };
        (0..count).map(|line| line * LINE)
    }

    fn words(self, runs: &[Run]) -> usize {
        match self.form {
            Form::Lines => LINE << self.bits,
            Form::Index => 1 + (1 << self.bits) + (runs.len() << u8::from(self.wide)),
        }
    }

    /// The entry that leads to its block.
    pub fn entry(self, line: u32) -> u32 {
        let form = if self.form == Form::Lines { LINES } else { 0 };
        CHILD | form | u32::from(self.bits) << BITS_SHIFT | line
    }
}

/// Of an entry: the block is in lines.
const LINES: u32 = 1 << 30;
/// Of an entry: how many first bits.
const BITS_SHIFT: u32 = 26;

/// A head with another value.
pub fn with_value(head: u32, value: u32) -> u32 {
    head & !VALUE | value
}

/// For each value of the first bits: the number of the run that it begins in, and that one with all that begin within.
fn buckets(runs: &[Run], width: u8, bits: u8) -> impl Iterator<Item = (usize, &[Run])> {
    let slots = 1u32 << (width - bits);
    let mut end = 0;
    (0..1u32 << bits).map(move |bucket| {
        let next = (bucket + 1) * slots;
        // The last one before goes on, unless another begins here.
        let begins = runs.get(end).is_some_and(|run| run.first == bucket * slots);
        let first = if begins { end } else { end - 1 };
        while runs.get(end).is_some_and(|run| run.first < next) {
            end += 1;
        }
        (first, &runs[first..end])
    })
}

/// The first line of the block that an entry leads to.
pub fn line_of(entry: u32) -> u32 {
    entry & ((1 << BITS_SHIFT) - 1)
}

/// What the node to which an entry leads says of a slot: a value or a child, 0 for nothing; and what its head says.
pub fn look(word: impl Fn(usize) -> u32, entry: u32, slot: u32, width: u8) -> (u32, u32) {
    let bits = entry >> BITS_SHIFT & 0xf;
    let bucket = (slot >> (u32::from(width) - bits)) as usize;
    let (head, base, mut low, mut more);
    if entry & LINES != 0 {
        head = word(bucket * LINE);
        base = bucket * LINE + 1;
        (low, more) = (0, (head >> MORE_SHIFT & 0xf) as usize);
    } else {
        head = word(0);
        base = 1 + (1usize << bits);
        let index = word(1 + bucket);
        (low, more) = ((index & 0xffff) as usize, (index >> 16) as usize);
    }
    let wide = head & WIDE != 0;
    while more > 0 {
        let half = more.div_ceil(2);
        if word(base + ((low + half) << u8::from(wide))) >> 16 <= slot {
            low += half;
        }
        more -= half;
    }
    let entry = if wide {
        word(base + 2 * low + 1)
    } else {
        word(base + low) & 0xffff
    };
    (entry, head & VALUE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_what_the_longest_prefix_says() {
        let own = |first, len, value| Own { first, len, value };
        let prefixes = [own(0, 1, 1), own(4, 3, 2), own(4, 4, 1), own(8, 2, 3)];
        let (runs, covers) = runs(&prefixes, &[(5, CHILD), (15, CHILD | 1)], 4);
        let run = |first, entry| Run { first, entry };
        // 0..8 has 1, within it 4..6 has 2, within that 4 has 1 and 5 a child; 8..12 has 3; the rest is the node's.
        let expected = [
            run(0, 1),
            run(5, CHILD),
            run(6, 1),
            run(8, 3),
            run(12, 0),
            run(15, CHILD | 1),
        ];
        assert_eq!(runs, expected);
        assert_eq!(covers, [2, 0]);
    }
}
