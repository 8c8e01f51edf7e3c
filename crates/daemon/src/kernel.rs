//! What the kernel knows of this host's network, followed once for all who ask: uplinks, load
//! balancer and router. It has a thread of its own, whose end or standstill is the daemon's:
//! without it all of them would go on by tables that nobody keeps in step any more.

use std::sync::Arc;

use netlink::Mirror;
use tokio::runtime::Handle;
use tokio::sync::OnceCell;

/// The name of that thread. A panic of it ends the process, as not every panic of the API does.
pub const THREAD: &str = "netlink";

/// Follows nothing until somebody asks; from then on as long as the daemon runs.
pub struct Kernel {
    mirror: OnceCell<Arc<Mirror>>,
    thread: Handle,
}

impl Kernel {
    /// What is followed is followed on that runtime.
    pub fn new(thread: Handle) -> Kernel {
        Kernel {
            mirror: OnceCell::new(),
            thread,
        }
    }

    /// The kernel's tables. The first call reads them. The error is a sentence.
    pub async fn mirror(&self) -> Result<Arc<Mirror>, String> {
        let mirror = self.mirror.get_or_try_init(|| self.start()).await;
        mirror
            .cloned()
            .map_err(|e| format!("the kernel's network cannot be followed: {e}"))
    }

    async fn start(&self) -> Result<Arc<Mirror>, String> {
        let started = self.thread.spawn(Mirror::start()).await;
        let mirror = started.map_err(|e| e.to_string())?;
        mirror.map(Arc::new).map_err(|e| e.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::watchdog;

    /// A thread of the API may hang, and a panic of one is taken for that of a request.
    #[test]
    fn tables_are_followed_where_it_was_said_and_not_where_they_were_asked_for() {
        let thread = watchdog::runtime(1).enable_all().build().unwrap();
        let kernel = Kernel::new(thread.handle().clone());
        let asks = watchdog::runtime(1).enable_all().build().unwrap();
        let mirror = asks.block_on(kernel.mirror()).unwrap();
        drop(asks);
        let mut watch = mirror.watch();
        // It would fail at once.
        let changed = async { tokio::time::timeout(Duration::ZERO, watch.changed()).await };
        assert!(!matches!(thread.block_on(changed), Ok(Err(_))));
    }
}
