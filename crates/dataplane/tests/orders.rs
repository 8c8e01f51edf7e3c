//! What several workers do at once without locks, in every order that the language's memory model
//! allows: loom runs each story again and again and lets every load read every value that it may.
//! The sources are those of the crate, with loom's atomics in place of the machine's. Not among
//! them is what goes through `rtrb`, which is tested so itself.

#[path = "../src/sleep_flag.rs"]
mod sleep_flag;
#[path = "../src/flow/spare.rs"]
mod spare;
#[path = "../src/flow/turns.rs"]
#[allow(dead_code, reason = "these tests use a part of it")]
mod turns;

/// What the sources name as the crate's.
mod atomic {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
}

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use loom::thread;
use sleep_flag::{SleepFlag, settle};
use spare::Spare;
use turns::Turns;

/// Tells the story in every order with at most three preemptions: all orders of the longer stories
/// take hours.
fn every_order(story: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(story);
}

/// A flow in the table: where it is found, its state, whose entry it is, and the worker's list that
/// it is in.
struct Table {
    found: AtomicBool,
    state: AtomicU32,
    whose: AtomicU32,
    listed: AtomicBool,
    turns: Turns,
}

/// Who has made the flow.
const OWNER: usize = 0;
const READER: usize = 1;
const OTHER: usize = 2;

impl Table {
    fn new(workers: usize) -> Arc<Table> {
        Arc::new(Table {
            found: AtomicBool::new(true),
            state: AtomicU32::new(1),
            whose: AtomicU32::new(1),
            listed: AtomicBool::new(true),
            turns: Turns::new(workers),
        })
    }

    /// One turn of a worker that looks the first flow up.
    fn turn(&self) {
        self.turns.begin(READER);
        self.look_up();
    }

    /// What is found stays that flow's until the turn ends.
    fn look_up(&self) {
        if self.found.load(Ordering::Acquire) {
            self.is_that_flow_s("another flow's entry is in use");
        }
    }

    /// What is found in the list stays that flow's as well.
    fn look_at_list(&self) {
        if self.listed.load(Ordering::Acquire) {
            self.is_that_flow_s("another flow's entry is looked at");
        }
    }

    fn is_that_flow_s(&self, otherwise: &str) {
        assert_eq!(self.whose.load(Ordering::Relaxed), 1, "{otherwise}");
    }

    /// Takes the flow out. True for one of those who try.
    fn take_out(&self) -> bool {
        let out = self
            .found
            .compare_exchange(true, false, Ordering::SeqCst, Ordering::Relaxed);
        if out.is_ok() {
            self.state.swap(0, Ordering::Release);
        }
        out.is_ok()
    }

    /// Makes the entry of a flow that is out another's when that may be: now, or not in this story.
    fn reuse(&self) {
        self.listed.store(false, Ordering::Release);
        let since = self.turns.now();
        thread::yield_now();
        if self.turns.passed(OWNER, &since) {
            self.whose.store(2, Ordering::Relaxed);
        }
    }

    /// The owner takes the flow out.
    fn replace(&self) {
        assert!(self.take_out());
        self.reuse();
    }
}

/// What another worker does meanwhile.
fn beside(table: &Arc<Table>, run: impl FnOnce(&Table) + Send + 'static) -> thread::JoinHandle<()> {
    let table = table.clone();
    thread::spawn(move || run(&table))
}

#[test]
fn an_entry_in_use_does_not_become_another_flow_s() {
    every_order(|| {
        let table = Table::new(2);
        let reader = beside(&table, |table| {
            for _ in 0..3 {
                table.turn();
            }
        });
        table.replace();
        reader.join().unwrap();
    });
}

#[test]
fn nor_where_another_worker_takes_it_out() {
    every_order(|| {
        let table = Table::new(3);
        let reader = beside(&table, Table::turn);
        let other = beside(&table, |table| {
            table.turns.begin(OTHER);
            assert!(table.take_out());
            table.turns.begin(OTHER);
        });
        // The owner comes by.
        if table.state.load(Ordering::Relaxed) == 0 {
            table.reuse();
        }
        reader.join().unwrap();
        other.join().unwrap();
    });
}

/// Both take it out at the same moment: who has won still looks at it.
#[test]
fn nor_where_two_take_it_out() {
    every_order(|| {
        let table = Table::new(2);
        let reader = beside(&table, |table| {
            table.turns.begin(READER);
            if table.take_out() {
                table.is_that_flow_s("another flow is taken out");
            }
            table.turns.begin(READER);
        });
        table.take_out();
        table.reuse();
        reader.join().unwrap();
    });
}

#[test]
fn nor_for_who_looks_at_another_worker_s_list() {
    every_order(|| {
        let table = Table::new(2);
        let reader = beside(&table, |table| {
            for _ in 0..3 {
                table.turns.begin(READER);
                table.look_at_list();
            }
        });
        table.replace();
        reader.join().unwrap();
    });
}

#[test]
fn nor_that_of_a_worker_that_wakes() {
    every_order(|| {
        let table = Table::new(2);
        let reader = beside(&table, |table| {
            table.turn();
            let turns = table.turns.sleep(READER);
            table.turns.wake(READER, turns);
            // The rest of the turn that it fell asleep in.
            table.look_up();
            table.turn();
        });
        table.replace();
        reader.join().unwrap();
    });
}

#[test]
fn a_spare_entry_has_one_taker() {
    const ENTRIES: u32 = 2;
    every_order(|| {
        let spare = Arc::new(Spare::new());
        let links: Arc<Vec<AtomicU32>> =
            Arc::new((0..ENTRIES).map(|_| AtomicU32::new(0)).collect());
        let taken: Arc<Vec<AtomicBool>> =
            Arc::new((0..ENTRIES).map(|_| AtomicBool::new(false)).collect());
        for id in 0..ENTRIES {
            spare.push(id, |next| links[id as usize].store(next, Ordering::Relaxed));
        }
        let worker = || {
            let (spare, links, taken) = (spare.clone(), links.clone(), taken.clone());
            move || {
                let pop = || spare.pop(|id| links[id as usize].load(Ordering::Relaxed));
                let first = pop();
                if let Some(id) = first {
                    assert!(
                        !taken[id as usize].swap(true, Ordering::Relaxed),
                        "{id} has two takers"
                    );
                    // It is used for a flow, and then given back: its link is another number for a
                    // while.
                    links[id as usize].store(77, Ordering::Relaxed);
                    taken[id as usize].store(false, Ordering::Relaxed);
                    spare.push(id, |next| links[id as usize].store(next, Ordering::Relaxed));
                }
                if let Some(id) = pop() {
                    assert!(
                        !taken[id as usize].swap(true, Ordering::Relaxed),
                        "{id} has two takers"
                    );
                }
            }
        };
        let other = thread::spawn(worker());
        worker()();
        other.join().unwrap();
    });
}

#[test]
fn nobody_sleeps_while_something_waits_for_it() {
    every_order(|| {
        let shared = Arc::new((
            SleepFlag::new(),
            AtomicBool::new(false),
            AtomicBool::new(false),
        ));
        let sender = thread::spawn({
            let shared = shared.clone();
            move || {
                let (flag, ring, bell) = &*shared;
                ring.store(true, Ordering::Release);
                settle();
                if flag.is_on() {
                    bell.store(true, Ordering::Release);
                }
            }
        });
        let (flag, ring, bell) = &*shared;
        flag.begin();
        let sleeps = !ring.load(Ordering::Acquire);
        sender.join().unwrap();
        assert!(
            !sleeps || bell.load(Ordering::Acquire),
            "it sleeps, and nobody wakes it"
        );
        flag.end();
        assert!(!flag.is_on());
    });
}
