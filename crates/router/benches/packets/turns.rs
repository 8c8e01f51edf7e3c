//! Several threads that measure in turn, on one CPU: what happens to the machine happens to all of
//! them.

use std::sync::{Condvar, Mutex, MutexGuard};

use rustix::thread::sched_getcpu;
use testkit::cpus;

/// Whose turn it is. A thread that panics in its turn ends all others.
pub struct Turns {
    count: usize,
    cpu: usize,
    whose: Mutex<usize>,
    passed: Condvar,
}

/// A turn; it is the next thread's when this is dropped.
pub struct Turn<'a> {
    turns: &'a Turns,
    whose: MutexGuard<'a, usize>,
}

impl Turns {
    /// Turns of so many threads, on the CPU that this one runs on.
    pub fn new(count: usize) -> Self {
        Turns {
            count,
            cpu: sched_getcpu(),
            whose: Mutex::new(0),
            passed: Condvar::new(),
        }
    }

    /// Moves the calling thread to the CPU of all.
    pub fn join(&self) {
        cpus::stay_on(&[self.cpu]);
    }

    /// Waits for the turn of thread `number`. All have to take theirs equally often.
    pub fn take(&self, number: usize) -> Turn<'_> {
        let whose = self.whose.lock().expect("nobody has panicked");
        let whose = self.passed.wait_while(whose, |whose| *whose != number);
        Turn {
            turns: self,
            whose: whose.expect("nobody has panicked"),
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.whose = (*self.whose + 1) % self.turns.count;
        self.turns.passed.notify_all();
    }
}
