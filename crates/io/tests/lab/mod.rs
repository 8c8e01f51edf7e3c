//! A vhost-user server with real sockets, in server and in client mode; guests are rings in this
//! process, behind a frontend of the testkit.
#![allow(dead_code, reason = "each test file uses its part")]

pub mod handed_on;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use butterfly_io::vhost::features::{MRG_RXBUF, PROTOCOL_FEATURES, VERSION_1};
use butterfly_io::vhost::{PortKey, PortState, Server};
use tempfile::TempDir;
use testkit::ring_driver::{Guest, GuestOptions, Shape};
use testkit::vhost_frontend::Frontend;
use wire::offload::Offload;

use crate::switch::{Switch, nic, open_fds};

pub const A: PortKey = PortKey(1);
pub const B: PortKey = PortKey(2);
pub const FEATURES: u64 = VERSION_1 | MRG_RXBUF;

/// What sockets in server mode are called, but for the key.
const SOCKET: &str = "qemu-vhost-";

/// A server, its switch and a directory of sockets. One at a time: descriptors are counted.
pub struct Lab {
    server: Option<Server>,
    pub switch: Arc<Switch>,
    dir: TempDir,
    fds_before: usize,
    _alone: MutexGuard<'static, ()>,
}

/// Tests here count the descriptors of the whole process: one at a time.
pub fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Lab {
    pub fn new() -> Lab {
        let alone = alone();
        let fds_before = open_fds();
        let switch = Arc::new(Switch::default());
        let server = Server::start(switch.clone()).unwrap();
        Lab {
            server: Some(server),
            switch,
            dir: TempDir::new().unwrap(),
            fds_before,
            _alone: alone,
        }
    }

    pub fn server(&self) -> &Server {
        self.server
            .as_ref()
            .expect("the server runs until the lab is dropped")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Where a NIC in server mode listens.
    pub fn socket(&self, key: PortKey) -> PathBuf {
        self.path(&format!("{SOCKET}{}", key.0))
    }

    /// A NIC in server mode.
    pub fn listen(&self, key: PortKey) {
        self.server()
            .listen(key, &self.socket(key), nic(&format!("nic-{}", key.0)))
            .unwrap();
    }

    /// A VMM of a NIC in server mode.
    pub fn connect(&self, key: PortKey) -> Frontend {
        Frontend::connect(&self.socket(key)).unwrap()
    }

    /// A NIC in client mode, whose VMM listens at `path`.
    pub fn dial(&self, key: PortKey, path: &Path) {
        self.server()
            .connect(key, path, nic(&format!("nic-{}", key.0)))
            .unwrap();
    }

    /// A VMM of a NIC in server mode that is connected and whose rings run.
    pub fn boot(&self, key: PortKey, guest: &Guest) -> Frontend {
        self.start(key, self.connect(key), guest)
    }

    /// Has a VMM that is connected start its rings.
    pub fn start(&self, key: PortKey, mut vmm: Frontend, guest: &Guest) -> Frontend {
        assert_eq!(
            vmm.negotiate(FEATURES | PROTOCOL_FEATURES).unwrap(),
            FEATURES | PROTOCOL_FEATURES
        );
        vmm.start(guest, [0, 0]).unwrap();
        assert_eq!(self.switch.state_of(key), Some(PortState::Up));
        vmm
    }

    /// Sends a frame from one guest to another and sees that it, and nothing else, arrives.
    pub fn one_frame(&self, from: &mut Guest, to: &mut Guest, mark: u8) {
        one_frame(&self.switch, from, to, mark);
    }
}

fn one_frame(switch: &Switch, from: &mut Guest, to: &mut Guest, mark: u8) {
    assert!(
        from.send(&frame(mark), Offload::default(), &Shape::whole()),
        "room to send"
    );
    from.transmitq.publish();
    assert_eq!(switch.turn(), []);
    let received: Vec<Vec<u8>> = to
        .receive()
        .into_iter()
        .map(|received| received.frame)
        .collect();
    assert_eq!(received, [frame(mark)]);
    assert_eq!(from.reclaim(), 1);
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.server = None;
        if std::thread::panicking() {
            return;
        }
        assert!(
            self.switch.lock().ports.is_empty(),
            "ports without a server"
        );
        for file in std::fs::read_dir(self.dir.path()).unwrap() {
            let name = file.unwrap().file_name();
            let ours = name.to_string_lossy().starts_with(SOCKET);
            assert!(!ours, "{} is left behind", name.display());
        }
        assert_eq!(open_fds(), self.fds_before, "descriptors left open");
    }
}

pub fn guest() -> Guest {
    guest_at(0)
}

/// A guest, or a queue pair of one, whose memory is in another place.
pub fn guest_at(place: u64) -> Guest {
    Guest::new(GuestOptions {
        features: FEATURES,
        place,
        ..GuestOptions::default()
    })
}

/// A frame that says where it comes from.
pub fn frame(mark: u8) -> Vec<u8> {
    let mut frame = vec![mark; 700];
    frame[..6].copy_from_slice(&[0xff; 6]);
    frame
}
