//! Blocks of lines in a table's memory, by the buddy system (Knowlton, 1965): a block has a power
//! of two of lines and lies at a multiple of its size; two free halves of one are one again. The
//! lowest free block that fits is taken, so what is in use stays together.
//!
//! A block that is given back rests until [`Blocks::rest`] has been called twice: a reader may be
//! in it.

use std::collections::BTreeSet;

use crate::layout::ELEMENT_LINES;

/// The largest block has `1 << LARGEST` lines: one element of the program's map.
pub const LARGEST: u8 = ELEMENT_LINES.ilog2() as u8;

/// A block: its first line, and its lines as a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Counted from the table's start.
    pub line: u32,
    /// `1 << order` lines.
    pub order: u8,
}

/// No block is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// Which lines are free.
#[derive(Debug)]
pub struct Blocks {
    free: [BTreeSet<u32>; LARGEST as usize + 1],
    resting: [Vec<Block>; 2],
    used: usize,
}

impl Blocks {
    /// The lines from `first` up to `end` are free.
    pub fn new(first: u32, end: u32) -> Blocks {
        let mut blocks = Blocks {
            free: Default::default(),
            resting: Default::default(),
            used: 0,
        };
        let mut line = first;
        while line < end {
            let room = (end - line).ilog2();
            let order = line.trailing_zeros().min(room).min(u32::from(LARGEST)) as u8;
            blocks.free[usize::from(order)].insert(line);
            line += 1 << order;
        }
        blocks
    }

    /// Takes the lowest of the smallest free blocks that fit.
    pub fn take(&mut self, order: u8) -> Result<Block, Full> {
        let fits = |from: &u8| !self.free[usize::from(*from)].is_empty();
        let from = (order..=LARGEST).find(fits).ok_or(Full)?;
        let line = self.free[usize::from(from)].pop_first().ok_or(Full)?;
        // The upper halves that are too much stay free.
        for half in order..from {
            self.free[usize::from(half)].insert(line + (1 << half));
        }
        self.used += 1 << order;
        Ok(Block { line, order })
    }

    /// Gives a block back; it rests first.
    pub fn give(&mut self, block: Block) {
        self.used -= 1 << block.order;
        self.resting[0].push(block);
    }

    /// To be called when every reader has left that was there at the last call.
    pub fn rest(&mut self) {
        for block in std::mem::take(&mut self.resting[1]) {
            self.free_block(block);
        }
        self.resting.swap(0, 1);
    }

    /// Lines in use.
    pub fn used(&self) -> usize {
        self.used
    }

    fn free_block(
        &mut self,
        Block {
            mut line,
            mut order,
        }: Block,
    ) {
        while order < LARGEST && self.free[usize::from(order)].remove(&(line ^ 1 << order)) {
            line &= !(1 << order);
            order += 1;
        }
        self.free[usize::from(order)].insert(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_become_one_again() {
        let mut blocks = Blocks::new(4, 16);
        let small = blocks.take(0).expect("room");
        assert_eq!(small, Block { line: 4, order: 0 });
        assert_eq!(blocks.take(1).expect("room").line, 6);
        assert_eq!(blocks.take(3).expect("room").line, 8);
        assert_eq!((blocks.take(1), blocks.used()), (Err(Full), 11));
        blocks.give(small);
        blocks.rest();
        assert_eq!(blocks.take(1), Err(Full), "a reader may be in it");
        blocks.rest();
        blocks.rest();
        assert_eq!(blocks.take(1).expect("both halves").line, 4);
    }
}
