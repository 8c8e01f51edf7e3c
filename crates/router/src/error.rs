//! What can go wrong.

/// Each message names the thing and what is wrong with it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An interface that cannot be routed for.
    #[error("interface {name}: {why}")]
    Interface {
        /// Its name.
        name: String,
        /// Why not.
        why: String,
    },
    /// The program, a map, or attaching it.
    #[error(transparent)]
    Xdp(#[from] xdp::Error),
    /// The kernel's tables cannot be read.
    #[error(transparent)]
    Netlink(#[from] netlink::Error),
    /// A table could not be mapped into memory.
    #[error("cannot map the table {table} of {words} words into memory: {source}")]
    Memory {
        /// The map.
        table: &'static str,
        /// Its size.
        words: usize,
        /// What the system said.
        source: std::io::Error,
    },
}
