//! The way from the threads that see guests come and go to the controller, which they must not wait
//! for: it may be waiting for them. The latest state of each port is kept until the controller has
//! taken it, so that a guest that comes and goes all the time fills nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use control::NicState;
use dataplane::PortSlot;
use tokio::sync::Notify;

use crate::app::App;

/// Where states are left. Cheap to clone.
#[derive(Clone, Default)]
pub struct PortStates {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    latest: Mutex<BTreeMap<u32, NicState>>,
    news: Notify,
}

impl PortStates {
    /// From any thread; does not wait.
    pub fn leave(&self, slot: PortSlot, state: NicState) {
        self.lock().insert(slot.0, state);
        self.shared.news.notify_one();
    }

    /// Forgets what was left for a port that is being closed: its slot may be another NIC's next.
    pub fn forget(&self, slot: PortSlot) {
        self.lock().remove(&slot.0);
    }

    /// Brings states to the controller until the daemon stops.
    pub async fn deliver(self, app: Arc<App>) {
        let deliver = async {
            loop {
                self.shared.news.notified().await;
                tokio::task::block_in_place(|| {
                    // Under the controller's lock, so that no slot changes hands in between.
                    let mut control = app.control();
                    for (slot, state) in std::mem::take(&mut *self.lock()) {
                        control.port_state(PortSlot(slot), state);
                    }
                });
            }
        };
        tokio::select! {
            () = app.stopping() => (),
            () = deliver => (),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<u32, NicState>> {
        self.shared
            .latest
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
