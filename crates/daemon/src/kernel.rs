//! What the kernel knows of this host's network, followed once for all who ask: uplinks, load
//! balancer and router.

use std::sync::Arc;

use netlink::Mirror;
use tokio::sync::OnceCell;

/// Follows nothing until somebody asks; from then on as long as the daemon runs.
#[derive(Default)]
pub struct Kernel(OnceCell<Arc<Mirror>>);

impl Kernel {
    /// The kernel's tables. The first call reads them, on the runtime that it is made on, which has
    /// to go on. The error is a sentence.
    pub async fn mirror(&self) -> Result<Arc<Mirror>, String> {
        let started = self
            .0
            .get_or_try_init(|| async { Mirror::start().await.map(Arc::new) });
        let mirror = started.await;
        mirror
            .cloned()
            .map_err(|e| format!("the kernel's network cannot be followed: {e}"))
    }
}
