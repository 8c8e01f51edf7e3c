//! The atomics of what is proven by trying every order of its steps: `tests/orders.rs` puts loom's
//! in their place.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
