//! The words that a trie is written into: the kernel's, or memory of our own.

use std::sync::atomic::{AtomicU32, Ordering};

use sys::bpf_array::BpfArray;

/// Where the words are.
#[derive(Debug)]
pub enum Words {
    /// In the kernel, where the program reads them.
    Kernel(BpfArray),
    /// Here, for tests and for calculations.
    Memory(Vec<AtomicU32>),
}

impl Words {
    pub(super) fn all(&self) -> &[AtomicU32] {
        match self {
            Words::Kernel(array) => array.words(),
            Words::Memory(words) => words,
        }
    }

    pub(super) fn read(&self, word: usize) -> u32 {
        self.all()[word].load(Ordering::Relaxed)
    }

    /// After all that was written before.
    pub(super) fn write(&self, word: usize, value: u32) {
        self.all()[word].store(value, Ordering::Release);
    }
}
