//! The switches under test, each started as its own process on one core with two vhost-user
//! sockets.

pub mod butterfly;
pub mod lasting;
pub mod ovs;
pub mod process;
mod testpmd;

pub use process::{PeerError, Process};

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use testkit::vhost_frontend::Frontend;
use wire::Mac;

use crate::guest::Guest;
use crate::plan::Test;
use crate::results::Column;

/// The two guests' addresses; every peer that filters is configured for them.
pub const GUEST_MACS: [&str; 2] = ["52:54:00:00:00:0a", "52:54:00:00:00:0b"];

/// The address of guest 0 or 1.
pub fn guest_ip(index: usize) -> std::net::Ipv4Addr {
    std::net::Ipv4Addr::new(10, 0, 0, index as u8 + 1)
}

/// The MAC address of a guest; of the first two those.
pub fn guest_mac(index: usize) -> Result<Mac, PeerError> {
    let first: Mac = GUEST_MACS[0]
        .parse()
        .map_err(|error| PeerError(format!("{error}")))?;
    let [a, b, c, d, e, last] = first.0;
    Ok(Mac([a, b, c, d, e, last + index as u8]))
}

/// What a switch is set up for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Setup {
    /// Two guests with small frames.
    Small,
    /// With frames of 64 KiB.
    Large,
    /// Small frames under 10,000 rules.
    ManyRules,
    /// Small frames, and two more guests, of which one floods the other.
    Flood,
    /// Frames of 64 KiB, and two more guests, of which one floods the other.
    LargeFlood,
    /// Small frames, and in a network of their own a guest that sends broadcasts and a crowd that
    /// hears them.
    Crowd,
    /// The same with frames of 64 KiB.
    LargeCrowd,
}

/// Who hears the broadcasts of a guest that floods.
pub const CROWD: usize = 24;

impl Setup {
    /// In this order.
    pub const ALL: [Setup; 7] = [
        Setup::Small,
        Setup::Large,
        Setup::ManyRules,
        Setup::Flood,
        Setup::LargeFlood,
        Setup::Crowd,
        Setup::LargeCrowd,
    ];

    /// How many guests there are.
    pub fn guests(self) -> usize {
        match self {
            Setup::Flood | Setup::LargeFlood => 4,
            Setup::Crowd | Setup::LargeCrowd => 3 + CROWD,
            Setup::Small | Setup::Large | Setup::ManyRules => 2,
        }
    }

    /// A guest sends broadcasts to a crowd.
    pub fn has_crowd(self) -> bool {
        matches!(self, Setup::Crowd | Setup::LargeCrowd)
    }

    /// How many guests have rules, the first ones. Who sends broadcasts and who hears them has
    /// none: a broadcast begins no connection.
    pub fn judged(self) -> usize {
        if self.has_crowd() { 2 } else { self.guests() }
    }

    /// Frames are of 64 KiB.
    pub fn is_large(self) -> bool {
        matches!(self, Setup::Large | Setup::LargeFlood | Setup::LargeCrowd)
    }

    /// Rules that every filtering switch has to look at.
    pub fn rules(self) -> u16 {
        match self {
            Setup::ManyRules => 10_000,
            _ => crate::RULES,
        }
    }
}

/// A switch, and how it is configured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peer {
    /// This project with 100 stateful rules on each NIC.
    ButterflyRules,
    /// This project with `bypass_filtering` NICs.
    ButterflyOpen,
    /// [`Peer::ButterflyRules`] with its core kept from halting (`--wake-us 0`): what the first
    /// frame waits for otherwise.
    ButterflyAwake,
    /// DPDK's bare two-copy loop: testpmd, two `net_vhost` devices, io forwarding.
    Testpmd,
    /// testpmd with packet buffers that hold 64 KiB: its best configuration for such frames, and
    /// measured with them alone.
    TestpmdLarge,
    /// OVS-DPDK as a learning switch.
    OvsNormal,
    /// OVS-DPDK with the same rules and one connection-tracking zone for both guests: what it could
    /// do if tenants did not have to be told apart.
    OvsCtOne,
    /// OVS-DPDK with the same rules and a zone per guest, which is what security groups mean: a
    /// connection is judged by the sender's zone and by the receiver's.
    OvsCt,
}

impl Column for Peer {
    const OURS: Peer = Peer::ButterflyRules;

    fn name(self) -> &'static str {
        match self {
            Peer::ButterflyRules => "butterfly-rules",
            Peer::ButterflyOpen => "butterfly-open",
            Peer::ButterflyAwake => "butterfly-awake",
            Peer::Testpmd => "testpmd-io",
            Peer::TestpmdLarge => "testpmd-large",
            Peer::OvsNormal => "ovs-normal",
            Peer::OvsCtOne => "ovs-ct-1zone",
            Peer::OvsCt => "ovs-ct",
        }
    }
}

impl Peer {
    /// All of them, ours first.
    pub const ALL: [Peer; 8] = [
        Peer::ButterflyRules,
        Peer::ButterflyOpen,
        Peer::ButterflyAwake,
        Peer::Testpmd,
        Peer::TestpmdLarge,
        Peer::OvsNormal,
        Peer::OvsCtOne,
        Peer::OvsCt,
    ];

    /// Whether it sleeps when there is nothing to do.
    pub fn sleeps(self) -> bool {
        matches!(
            self,
            Peer::ButterflyRules | Peer::ButterflyOpen | Peer::ButterflyAwake
        )
    }

    /// Whether it keeps its core from halting as long as it is up, halted or not. It is up when no
    /// other is.
    pub fn keeps_awake(self) -> bool {
        self == Peer::ButterflyAwake
    }

    /// Whether this test measures it.
    pub fn takes(self, test: Test) -> bool {
        match self {
            Peer::TestpmdLarge => test.setup() == Setup::Large,
            Peer::ButterflyAwake => test == Test::Idle,
            // Rules and floods are for those that track.
            Peer::ButterflyRules | Peer::OvsCt => true,
            _ => matches!(test.setup(), Setup::Small | Setup::Large),
        }
    }

    /// Starts the switch on `core`, everything it writes below `dir`.
    pub fn start(self, dir: &Path, core: usize, setup: Setup) -> Result<Running, PeerError> {
        let large = setup.is_large();
        match self {
            Peer::ButterflyRules => butterfly::start(dir, core, setup, true, &[]),
            Peer::ButterflyOpen => butterfly::start(dir, core, setup, false, &[]),
            Peer::ButterflyAwake => butterfly::start(dir, core, setup, true, &["--wake-us", "0"]),
            Peer::Testpmd => testpmd::start(dir, core, large, false),
            Peer::TestpmdLarge => testpmd::start(dir, core, large, true),
            Peer::OvsNormal => ovs::start(dir, core, setup, ovs::Pipeline::Normal),
            Peer::OvsCtOne => ovs::start(dir, core, setup, ovs::Pipeline::OneZone),
            Peer::OvsCt => ovs::start(dir, core, setup, ovs::Pipeline::ZonePerGuest),
        }
    }
}

/// Who listens on a switch's sockets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Listens {
    Switch,
    Vmm,
}

/// A started switch; dropping it ends its processes.
pub struct Running {
    /// Where the guests are connected.
    sockets: Vec<PathBuf>,
    listens: Listens,
    /// Makes the switch forget connections, where it has a limit that tests one after the other
    /// would reach.
    forget: Option<Box<dyn Fn() -> Result<(), PeerError>>>,
    /// The switch first, in the order they are to be ended.
    processes: Vec<process::Process>,
}

impl Running {
    /// Connects a guest to each socket; the sessions last until they are dropped.
    pub fn connect(&self, guests: &[Guest]) -> Result<Vec<Frontend>, PeerError> {
        let fail = |socket: &Path, error: std::io::Error| {
            PeerError(format!("{}: {error}", socket.display()))
        };
        // A switch that connects looks for its sockets about once a second: they must all be there.
        let listeners: Option<Vec<UnixListener>> = match self.listens {
            Listens::Switch => None,
            Listens::Vmm => {
                let bind =
                    |path: &PathBuf| UnixListener::bind(path).map_err(|error| fail(path, error));
                Some(self.sockets.iter().map(bind).collect::<Result<_, _>>()?)
            }
        };
        let sessions = self.sockets.iter().zip(guests).enumerate();
        let sessions = sessions.map(|(index, (socket, guest))| {
            let frontend = match &listeners {
                None => Frontend::connect(socket),
                Some(listeners) => Frontend::accept(&listeners[index]),
            };
            let attached = frontend.and_then(|frontend| guest.attach(frontend));
            attached.map_err(|error| fail(socket, error))
        });
        sessions.collect()
    }

    /// Makes the switch forget the connections it has seen, if it needs that.
    pub fn forget_connections(&self) -> Result<(), PeerError> {
        self.forget.as_ref().map_or(Ok(()), |forget| forget())
    }

    /// Halts the switch: it takes no part of its core, and keeps what it knows.
    pub fn halt(&self) -> Result<(), PeerError> {
        self.processes.iter().try_for_each(process::Process::halt)
    }

    /// Lets it go on.
    pub fn resume(&self) -> Result<(), PeerError> {
        self.processes.iter().try_for_each(process::Process::resume)
    }

    /// The switch's processes.
    pub fn pids(&self) -> Vec<u32> {
        self.processes.iter().map(process::Process::pid).collect()
    }
}
