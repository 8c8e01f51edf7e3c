//! The way from the threads that see guests and interfaces come and go to the controller, which
//! they must not wait for: it may be waiting for them. The latest state of each is kept until the
//! controller has taken it, so that what comes and goes all the time fills nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use control::model::Feature;
use control::{Controller, InterfaceStatus, NicState};
use dataplane::PortSlot;
use tokio::sync::Notify;

use crate::app::App;

/// Where the states of ports are left.
pub type PortStates = States<u32, NicState>;
/// Where those of interfaces are left, by their feature and name.
pub type InterfaceStates = States<(Feature, String), InterfaceStatus>;

/// Where states are left. Cheap to clone.
pub struct States<K, V> {
    shared: Arc<Shared<K, V>>,
}

struct Shared<K, V> {
    latest: Mutex<BTreeMap<K, V>>,
    news: Notify,
}

impl<K: Ord, V> Default for States<K, V> {
    fn default() -> States<K, V> {
        let shared = Shared {
            latest: Mutex::new(BTreeMap::new()),
            news: Notify::new(),
        };
        States {
            shared: Arc::new(shared),
        }
    }
}

impl<K, V> Clone for States<K, V> {
    fn clone(&self) -> States<K, V> {
        States {
            shared: self.shared.clone(),
        }
    }
}

impl<K: Ord, V> States<K, V> {
    /// From any thread; does not wait.
    pub fn leave(&self, whose: K, state: V) {
        self.lock().insert(whose, state);
        self.shared.news.notify_one();
    }

    /// Forgets what was left for a port that is being closed: its slot may be another NIC's next.
    pub fn forget(&self, whose: &K) {
        self.lock().remove(whose);
    }

    /// Brings states to the controller until the daemon stops.
    pub async fn deliver(self, app: Arc<App>, record: fn(&mut Controller, K, V)) {
        let deliver = async {
            loop {
                self.shared.news.notified().await;
                tokio::task::block_in_place(|| {
                    // Under the controller's lock, so that no slot changes hands in between.
                    let mut control = app.control();
                    let latest = std::mem::take(&mut *self.lock());
                    for (whose, state) in latest {
                        record(&mut control, whose, state);
                    }
                });
            }
        };
        tokio::select! {
            () = app.stopping() => (),
            () = deliver => (),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<K, V>> {
        self.shared
            .latest
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// A port's state.
pub fn record_port(control: &mut Controller, slot: u32, state: NicState) {
    control.port_state(PortSlot(slot), state);
}

/// An interface's.
pub fn record_interface(
    control: &mut Controller,
    (feature, _): (Feature, String),
    status: InterfaceStatus,
) {
    control.interface_state(feature, status);
}
