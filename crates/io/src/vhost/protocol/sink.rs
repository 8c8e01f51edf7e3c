//! What a vhost-user session tells the rest of the switch, and what it is told about its NIC.

use crate::port::Port;

/// Which attachment of the switch a session is for: chosen by the caller, unique while it is open.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PortKey(pub u32);

/// How a vhost-user NIC is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PortState {
    /// No VMM is connected.
    Disconnected,
    /// A VMM is connected; no ring runs.
    Connected,
    /// At least one ring runs: frames can pass.
    Up,
    /// The guest or its VMM has set up a ring that cannot be run. A reset of the guest's driver
    /// mends it.
    Broken(String),
}

/// Where ports go. Implemented over the workers; called from the server's one thread, which serves
/// all other NICs only after the call has returned, and from several at once while sessions of a
/// process before are taken up. Callers of [`Server`](super::Server) wait for that thread: no
/// method here may wait for them in turn, be it by a lock that they hold.
pub trait PortSink: Send + Sync {
    /// Hands over the port of one queue pair, numbered from 0, to a worker.
    fn attach(&self, key: PortKey, pair: u16, port: Port);

    /// Takes the port of a queue pair back: waits until the worker has let go of it. `None` when no
    /// worker has it any more, because it is stopping.
    fn detach(&self, key: PortKey, pair: u16) -> Option<Port>;

    /// [`detach`](PortSink::detach) of many, with one question to each worker where that can be:
    /// those that were with workers.
    fn detach_all(&self, pairs: &[(PortKey, u16)]) -> Vec<((PortKey, u16), Port)> {
        let detach = |&(key, pair): &(PortKey, u16)| Some(((key, pair), self.detach(key, pair)?));
        pairs.iter().filter_map(detach).collect()
    }

    /// The NIC's state has changed.
    fn state(&self, key: PortKey, state: PortState);

    /// The guest has come here from another host and its VMM asks to tell the network so
    /// (SEND_RARP). Not to be left to a queue that can grow: a VMM may ask as fast as it can.
    fn announce(&self, _key: PortKey) {}
}
