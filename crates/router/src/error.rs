//! What can go wrong.

/// Each message names the thing and what is wrong with it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An interface that cannot be routed for.
    #[error("interface {name}: {why}")]
    Interface {
        /// Its name.
        name: String,
        /// Why it cannot be routed for.
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
    /// An access list that cannot be.
    #[error("the access list: {0}")]
    Acl(#[from] crate::acl::ListError),
    /// What another process's router has handed over.
    #[error("the router before cannot be gone on with: {why}")]
    Handed {
        /// What is wrong with it.
        why: &'static str,
    },
    /// See [`Router::watch`](crate::Router::watch).
    #[error("the timer that notices a router that hangs does not start")]
    Timer,
}

impl Error {
    /// What the kernel says of the device that is to run the program, in words that name the
    /// interface and what holds it.
    pub(crate) fn of_interface(name: &str, error: xdp::Error) -> Error {
        let why = match error {
            xdp::Error::Occupied {
                name: program, id, ..
            } => {
                format!("it has an XDP program already: {program} (id {id})")
            }
            xdp::Error::TcOccupied {
                name: program, id, ..
            } => {
                let id = id.map(|id| format!(" (id {id})")).unwrap_or_default();
                format!(
                    "{program}{id} is at tc ingress already and would not see what is forwarded"
                )
            }
            xdp::Error::Attach { mode, source, .. } => format!("it refuses XDP ({mode}): {source}"),
            other => other.to_string(),
        };
        Error::Interface {
            name: name.to_owned(),
            why,
        }
    }
}
