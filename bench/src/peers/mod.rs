//! The switches under test, each started as its own process on one core with two vhost-user sockets.

pub mod butterfly;
mod ovs;
mod process;
mod testpmd;

pub use process::PeerError;

use std::path::{Path, PathBuf};

use testkit::vhost_frontend::Frontend;

/// The two guests' addresses; every peer that filters is configured for them.
pub const GUEST_MACS: [&str; 2] = ["52:54:00:00:00:0a", "52:54:00:00:00:0b"];

/// The address of guest 0 or 1.
pub fn guest_ip(index: usize) -> std::net::Ipv4Addr {
    std::net::Ipv4Addr::new(10, 0, 0, index as u8 + 1)
}

/// A switch, and how it is configured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peer {
    /// This project with 100 stateful rules on each NIC.
    ButterflyRules,
    /// This project with `bypass_filtering` NICs.
    ButterflyOpen,
    /// DPDK's bare two-copy loop: testpmd, two `net_vhost` devices, io forwarding.
    Testpmd,
    /// OVS-DPDK as a learning switch.
    OvsNormal,
    /// OVS-DPDK with a connection-tracking zone per guest and the same rules.
    OvsCt,
}

impl Peer {
    /// All of them, ours first.
    pub const ALL: [Peer; 5] = [
        Peer::ButterflyRules,
        Peer::ButterflyOpen,
        Peer::Testpmd,
        Peer::OvsNormal,
        Peer::OvsCt,
    ];

    /// The name in tables and in the ratios.
    pub fn name(self) -> &'static str {
        match self {
            Peer::ButterflyRules => "butterfly-rules",
            Peer::ButterflyOpen => "butterfly-open",
            Peer::Testpmd => "testpmd-io",
            Peer::OvsNormal => "ovs-normal",
            Peer::OvsCt => "ovs-ct",
        }
    }

    /// Starts the switch on `core`, everything it writes below `dir`.
    pub fn start(self, dir: &Path, core: usize) -> Result<Running, PeerError> {
        match self {
            Peer::ButterflyRules => butterfly::start(dir, core, true),
            Peer::ButterflyOpen => butterfly::start(dir, core, false),
            Peer::Testpmd => testpmd::start(dir, core),
            Peer::OvsNormal => ovs::start(dir, core, false),
            Peer::OvsCt => ovs::start(dir, core, true),
        }
    }
}

/// A started switch; dropping it ends its processes.
pub struct Running {
    /// Where the two guests connect.
    pub sockets: [PathBuf; 2],
    /// In the order they are to be ended.
    _processes: Vec<process::Process>,
}

impl Running {
    /// Connects a guest to each socket; the sessions last until they are dropped.
    pub fn connect(&self, guests: &[crate::guest::Guest; 2]) -> Result<[Frontend; 2], PeerError> {
        let [a, b] = [0, 1].map(|index| crate::guest::attach(&guests[index], &self.sockets[index]));
        Ok([a?, b?])
    }
}
