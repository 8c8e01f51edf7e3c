//! How a node lies in its block, as `bpf/router.h` says: its runs in lines of 64 bytes, or behind
//! an index. What is far is read once where that can be: a line holds all that a lookup needs.
//!
//! The more runs a line holds, the fewer lines a million routes take, and the more of them stay in
//! the caches. So runs have three sizes: three bytes where all of a node's values fit into one,
//! which are the paths of most routers; a word; and two words, where there are children or values
//! beyond 16 bits. A million routes of IPv4 take 9.6 MiB so, and 14.1 without the runs of three
//! bytes (docs/journal/2026-11-23-router.md).

use crate::layout::CHILD;
use crate::runs::{Run, buckets};

/// Words that a line has.
pub const LINE: usize = 16;
/// Bit of a head: two words a run.
const WIDE: u32 = 1 << 31;
/// In the head of a line: how many runs it has after the first.
const MORE_SHIFT: u32 = 26;
const MORE_MASK: u32 = 0x1f;
/// The part of a head that is a value.
const VALUE: u32 = (1 << MORE_SHIFT) - 1;
/// Lines at the most, as a power of two: what is larger has an index, which takes less memory and
/// one read more.
const MOST_LINES: u8 = 6;
/// Runs of three bytes in a line: behind its head so many firsts of 16 bits, and then as many
/// values.
const SHORT_RUNS: usize = 20;
/// The first word of the values.
const SHORT_VALUES: usize = 1 + SHORT_RUNS / 2;

/// In which form a node lies in its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// For each value of the node's first bits a line of its own: its head, and the runs in it. One
    /// read finds all.
    Lines,
    /// A head, an index by the first bits, and all runs one behind the other.
    Index,
}

/// How large a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    /// Three bytes: values up to 255. In lines only.
    Short,
    /// A word: values up to 65,535.
    Word,
    /// Two words: anything.
    Wide,
}

impl Size {
    /// The smallest for these runs.
    fn of(runs: &[Run]) -> Size {
        match runs.iter().map(|run| run.entry).max().unwrap_or(0) {
            0..=0xff => Size::Short,
            0x100..=0xffff => Size::Word,
            _ => Size::Wide,
        }
    }

    /// Runs that a line has room for.
    fn room(self) -> usize {
        match self {
            Size::Short => SHORT_RUNS,
            Size::Word => LINE - 1,
            Size::Wide => (LINE - 1) / 2,
        }
    }
}

/// A node's form, and its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Lines, or an index.
    pub form: Form,
    /// How many first bits choose the line or the index's entry.
    pub bits: u8,
    size: Size,
}

impl Layout {
    /// The one that suits these runs.
    pub fn of(runs: &[Run], width: u8) -> Layout {
        let size = Size::of(runs);
        let bits = (runs.len().ilog2().saturating_sub(1) as u8)
            .min(width)
            .min(15);
        let index = Layout {
            form: Form::Index,
            bits,
            size: if size == Size::Short {
                Size::Word
            } else {
                size
            },
        };
        let largest = 3 * index.words(runs).div_ceil(LINE);
        let lines = (0..=width.min(MOST_LINES))
            .take_while(|bits| 1 << bits <= largest)
            .find(|bits| buckets(runs, width, *bits).all(|(_, in_it)| in_it.len() <= size.room()));
        lines.map_or(index, |bits| Layout {
            form: Form::Lines,
            bits,
            size,
        })
    }

    /// The words of the block, and where among them the entries of children are.
    pub fn draw(self, value: u32, runs: &[Run], width: u8) -> (Vec<u32>, Vec<usize>) {
        let (mut words, mut places) = (Vec::with_capacity(self.words(runs)), Vec::new());
        let head = value | if self.size == Size::Wide { WIDE } else { 0 };
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
                let entry =
                    |(first, in_it): (usize, &[Run])| first as u32 | (in_it.len() as u32 - 1) << 16;
                words.extend(buckets(runs, width, self.bits).map(entry));
                self.draw_runs(runs, &mut words, &mut places);
            }
        }
        (words, places)
    }

    fn draw_runs(self, runs: &[Run], words: &mut Vec<u32>, places: &mut Vec<usize>) {
        if self.size == Size::Short {
            return draw_short(runs, words);
        }
        for run in runs {
            if self.size == Size::Wide {
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
            Form::Index => 1 + (1 << self.bits) + (runs.len() << u8::from(self.size == Size::Wide)),
        }
    }

    /// The entry that leads to its block.
    pub fn entry(self, line: u32) -> u32 {
        let form = match (self.form, self.size) {
            (Form::Lines, Size::Short) => LINES | SHORT,
            (Form::Lines, _) => LINES,
            (Form::Index, _) => 0,
        };
        CHILD | form | u32::from(self.bits) << BITS_SHIFT | line
    }
}

/// All firsts, two a word, the lower half first; then all values, four a word.
fn draw_short(runs: &[Run], words: &mut Vec<u32>) {
    let line = words.len() - 1;
    words.resize(line + LINE, 0);
    for (number, run) in runs.iter().enumerate() {
        words[line + 1 + number / 2] |= run.first << (number % 2 * 16);
        words[line + SHORT_VALUES + number / 4] |= run.entry << (number % 4 * 8);
    }
}

/// Flag of an entry: the block is in lines.
const LINES: u32 = 1 << 30;
/// Flag of an entry with `LINES`: a run takes three bytes.
const SHORT: u32 = 1 << 29;
/// Field of an entry: how many first bits choose; of three bits with `LINES`, else of four.
const BITS_SHIFT: u32 = 26;

/// A head with another value.
pub fn with_value(head: u32, value: u32) -> u32 {
    head & !VALUE | value
}

/// The first line of the block that an entry leads to.
pub fn line_of(entry: u32) -> u32 {
    entry & ((1 << BITS_SHIFT) - 1)
}

/// What the node to which an entry leads says of a slot: a value or a child, 0 for nothing; and
/// what its head says.
pub fn look(word: impl Fn(usize) -> u32, entry: u32, slot: u32, width: u8) -> (u32, u32) {
    let lines = entry & LINES != 0;
    let bits = entry >> BITS_SHIFT & if lines { 7 } else { 0xf };
    let bucket = (slot >> (u32::from(width) - bits)) as usize;
    let at = if lines { bucket * LINE } else { 0 };
    let head = word(at);
    let (base, low, more) = if lines {
        (at + 1, 0, head >> MORE_SHIFT & MORE_MASK)
    } else {
        let index = word(1 + bucket);
        (1 + (1usize << bits), index & 0xffff, index >> 16)
    };
    let search =
        |first: &dyn Fn(usize) -> u32| last_before(first, slot, low as usize, more as usize);
    let entry = if lines && entry & SHORT != 0 {
        let found = search(&|run| word(base + run / 2) >> (run % 2 * 16) & 0xffff);
        word(at + SHORT_VALUES + found / 4) >> (found % 4 * 8) & 0xff
    } else if head & WIDE != 0 {
        let found = search(&|run| word(base + 2 * run) >> 16);
        word(base + 2 * found + 1)
    } else {
        let found = search(&|run| word(base + run) >> 16);
        word(base + found) & 0xffff
    };
    (entry, head & VALUE)
}

/// Among run `low` and `more` after it the last that begins at or before a slot.
fn last_before(first: &dyn Fn(usize) -> u32, slot: u32, mut low: usize, mut more: usize) -> usize {
    while more > 0 {
        let half = more.div_ceil(2);
        if first(low + half) <= slot {
            low += half;
        }
        more -= half;
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `count` runs spread over 1,024 slots, with values up to `most`.
    fn spread(count: u32, most: u32) -> Vec<Run> {
        let run = |number| Run {
            first: number * (1024 / count),
            entry: if number % 2 == 1 { most } else { number + 1 },
        };
        (0..count).map(run).collect()
    }

    #[test]
    fn every_form_says_what_the_runs_say() {
        let cases = [
            (20, 255, Form::Lines, 0),
            (20, 256, Form::Lines, 1),
            (100, 255, Form::Lines, 3),
            (100, 300, Form::Lines, 3),
            (100, 1 << 17, Form::Lines, 5),
        ];
        for (count, most, form, bits) in cases {
            let runs = spread(count, most);
            let layout = Layout::of(&runs, 10);
            assert_eq!(
                (layout.form, layout.bits),
                (form, bits),
                "{count} runs to {most}"
            );
            let (words, _) = layout.draw(7, &runs, 10);
            for slot in 0..1024 {
                let run = runs.iter().rev().find(|run| run.first <= slot);
                let found = look(|at| words[at], layout.entry(0), slot, 10);
                assert_eq!(
                    Some(found),
                    run.map(|run| (run.entry, 7)),
                    "{count} runs to {most}, {slot}"
                );
            }
        }
    }
}
