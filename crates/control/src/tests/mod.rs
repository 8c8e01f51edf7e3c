//! Sessions at the level of operations, over a world in memory (`world.rs`) and over a real worker
//! (`worker.rs`).

mod apply;
mod incremental;
mod nics;
mod overlay;
mod own;
mod quotas;
mod refusals;
mod services;
mod sessions;
mod worker;
pub(crate) mod world;
