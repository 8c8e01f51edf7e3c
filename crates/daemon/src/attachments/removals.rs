//! Interfaces that go. The kernel takes some 20 ms for one, most of it waiting for whoever may
//! still use it, and for many together hardly longer: so they are left to a thread here, which
//! removes at once all that have come meanwhile. Nobody waits for it but who has asked for the
//! removal ([`Removals::ending`]), and who wants an interface of the same name
//! ([`Removals::wait_for`]).

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use control::Ending;
use io::port::Port;
use netlink::change::Changes;

use crate::held::Held;

/// Removed at once, at the most: nobody else changes an interface of this host meanwhile.
const TOGETHER: usize = 256;
/// Threads that close devices which are in containers' namespaces, where they cannot go together.
const CLOSERS: usize = 8;

/// What is to go of one NIC.
pub struct Removal {
    /// The names of its interfaces here.
    pub names: Vec<String>,
    /// Its TAP device; `None`: the workers are gone, and it with them.
    pub port: Option<Port>,
    /// The host's end of its pair.
    pub near: Option<u32>,
    /// What the keeper holds it as, and lets go.
    pub held: Option<String>,
}

/// The thread, and the way to it.
pub struct Removals {
    shared: Arc<Shared>,
    /// What was begun when somebody last asked for the end of it.
    told: u64,
    /// From the first removal on.
    thread: Option<JoinHandle<()>>,
}

/// For whoever is to wait until nothing is about to go.
pub struct Settled(Arc<Shared>);

impl Settled {
    /// Returns when all is over that was begun.
    pub fn wait(&self) {
        self.0.wait(|state| state.over == state.begun);
    }
}

struct Shared {
    keeper: Option<Arc<Held>>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Removal>,
    /// The names of those that are going right now.
    going: Vec<String>,
    /// So many were begun, and so many are over.
    begun: u64,
    over: u64,
    ended: bool,
}

impl Removals {
    /// None yet.
    pub fn new(keeper: Option<Arc<Held>>) -> Removals {
        let shared = Shared {
            keeper,
            state: Mutex::default(),
            changed: Condvar::new(),
        };
        Removals {
            shared: Arc::new(shared),
            told: 0,
            thread: None,
        }
    }

    /// Begins to remove; returns at once.
    pub fn begin(&mut self, all: Vec<Removal>) {
        if all.is_empty() {
            return;
        }
        if self.thread.is_none() {
            let shared = self.shared.clone();
            let thread = std::thread::Builder::new().name("removals".into());
            match thread.spawn(move || shared.run()) {
                Ok(thread) => self.thread = Some(thread),
                Err(e) => {
                    tracing::warn!("a thread cannot be started: {e}; interfaces go while all wait");
                    return self.shared.remove(all);
                }
            }
        }
        let mut state = self.shared.lock();
        state.begun += all.len() as u64;
        state.waiting.extend(all);
        self.shared.changed.notify_all();
    }

    /// The end of what was begun since this was last asked; `None`: nothing was.
    pub fn ending(&mut self) -> Option<Ending> {
        let begun = self.shared.lock().begun;
        if std::mem::replace(&mut self.told, begun) == begun {
            return None;
        }
        let shared = self.shared.clone();
        Some(Ending::new(move || {
            shared.wait(|state| state.over >= begun);
        }))
    }

    /// For another thread.
    pub fn settled(&self) -> Settled {
        Settled(self.shared.clone())
    }

    /// Returns when no interface of one of these names is about to go.
    pub fn wait_for(&self, names: &[&str]) {
        let goes = |name: &String| names.contains(&name.as_str());
        self.shared.wait(|state| {
            let mut waiting = state.waiting.iter().flat_map(|one| &one.names);
            !state.going.iter().any(goes) && !waiting.any(goes)
        });
    }
}

impl Drop for Removals {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it is so.
    fn wait(&self, is_so: impl Fn(&State) -> bool) {
        let waited = self.changed.wait_while(self.lock(), |state| !is_so(state));
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Until the daemon ends, and all is removed.
    fn run(&self) {
        loop {
            let state = self.changed.wait_while(self.lock(), |state| {
                state.waiting.is_empty() && !state.ended
            });
            let mut state = state.unwrap_or_else(PoisonError::into_inner);
            let count = state.waiting.len().min(TOGETHER);
            if count == 0 {
                return;
            }
            let all: Vec<Removal> = state.waiting.drain(..count).collect();
            state.going = all.iter().flat_map(|one| one.names.clone()).collect();
            drop(state);
            self.remove(all);
            let mut state = self.lock();
            state.going.clear();
            state.over += count as u64;
            self.changed.notify_all();
        }
    }

    fn remove(&self, all: Vec<Removal>) {
        // A daemon that ends leaves what the keeper holds to the next one.
        let stays = |one: &Removal| {
            let keeper = self.keeper.as_ref().filter(|_| one.held.is_some());
            keeper.is_some_and(|keeper| keeper.stays())
        };
        let mut here = Vec::new();
        let (mut elsewhere, mut gone) = (Vec::new(), Vec::new());
        for one in all {
            let tap = match &one.port {
                Some(Port::Tap(tap)) if !stays(&one) => tap.index_here(),
                _ => None,
            };
            here.extend(tap.into_iter().chain(one.near));
            match tap {
                Some(_) => gone.push(one),
                None => elsewhere.push(one),
            }
        }
        let removed = Changes::new().and_then(|mut changes| changes.remove_all(&here));
        if let Err(e) = removed {
            tracing::warn!("{} interfaces do not go together: {e}", here.len());
            // Those of NICs go when they are closed; the ends of pairs do not.
            let ends = gone.iter().chain(&elsewhere).filter_map(|one| one.near);
            for near in ends {
                if let Err(e) = Changes::new().and_then(|mut changes| changes.remove(near)) {
                    tracing::warn!("interface {near} stays: {e}");
                }
            }
            elsewhere.append(&mut gone);
        }
        let close = |all: Vec<Removal>| all.into_iter().for_each(|one| self.close(one));
        close(gone);
        let each = elsewhere.len().div_ceil(CLOSERS).max(1);
        std::thread::scope(|scope| {
            while !elsewhere.is_empty() {
                let part = elsewhere.split_off(elsewhere.len().saturating_sub(each));
                if elsewhere.is_empty() {
                    close(part);
                } else {
                    scope.spawn(move || close(part));
                }
            }
        });
    }

    /// The last descriptors of a device, ours first: it goes with them.
    fn close(&self, one: Removal) {
        drop(one.port);
        if let (Some(name), Some(keeper)) = (&one.held, &self.keeper) {
            keeper.release(name);
        }
    }
}
