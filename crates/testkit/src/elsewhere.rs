//! The host that a guest came from, of which its memory is still to come (post-copy migration).
//!
//! Pages are put where they belong one by one: those that are waited for, and others. Nobody may
//! touch the guest's own view of it before all of it is there: a page would be made.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::Duration;

use rustix::fs::{FallocateFlags, fallocate};
use sys::userfault::{PAGE, Watcher};

use crate::ring_driver::Guest;

/// Memory that is elsewhere.
pub struct Elsewhere {
    file: File,
    bytes: Vec<u8>,
    /// Pages that are here, by number.
    here: BTreeSet<usize>,
    watcher: Watcher,
    /// Where the memory begins, as who waits for it says.
    pub base: u64,
}

impl Elsewhere {
    /// Takes a guest's memory away, which is one region. `watcher` is what POSTCOPY_ADVISE gave.
    pub fn of(guest: &Guest, watcher: OwnedFd) -> io::Result<Elsewhere> {
        let file = File::from(guest.regions().remove(0).fd);
        let mut bytes = vec![0; file.metadata()?.len() as usize];
        file.read_exact_at(&mut bytes, 0)?;
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&file, hole, 0, bytes.len() as u64)?;
        Ok(Elsewhere {
            file,
            bytes,
            here: BTreeSet::new(),
            watcher: Watcher::new(watcher),
            base: 0,
        })
    }

    /// Puts the page there that somebody begins to wait for within `patience`, and wakes who does.
    /// False: nobody did.
    pub fn bring(&mut self, patience: Duration) -> io::Result<bool> {
        let Some(addr) = self.watcher.next(patience)? else {
            return Ok(false);
        };
        let page = addr.checked_sub(self.base).map(|at| at as usize / PAGE);
        let page = page.filter(|page| page * PAGE < self.bytes.len());
        let page = page.ok_or_else(|| {
            io::Error::other(format!("{addr:#x} is waited for, behind {:#x}", self.base))
        })?;
        self.put(page)?;
        self.watcher.wake(addr)?;
        Ok(true)
    }

    /// Puts a page there, whether or not it is waited for.
    pub fn put(&mut self, page: usize) -> io::Result<()> {
        if self.here.insert(page) {
            let at = page * PAGE;
            self.file
                .write_all_at(&self.bytes[at..at + PAGE], at as u64)?;
        }
        self.watcher.wake(self.base + (page * PAGE) as u64)
    }

    /// Puts all pages there that are not.
    pub fn put_all(&mut self) -> io::Result<()> {
        (0..self.pages()).try_for_each(|page| self.put(page))
    }

    /// How many pages there are in all.
    pub fn pages(&self) -> usize {
        self.bytes.len() / PAGE
    }

    /// How many of them were put there.
    pub fn put_so_far(&self) -> usize {
        self.here.len()
    }

    /// How many are there in truth: more, when somebody had one made.
    pub fn there(&self) -> io::Result<usize> {
        Ok(self.file.metadata()?.blocks() as usize * 512 / PAGE)
    }
}
