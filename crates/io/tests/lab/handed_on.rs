//! Two servers, the second of which takes the place of the first.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard};

use butterfly_io::vhost::features::PROTOCOL_FEATURES;
use butterfly_io::vhost::{LeftSession, PortKey, Server, SessionKeeper, Yielded};
use tempfile::TempDir;
use testkit::ring_driver::Guest;
use testkit::vhost_frontend::Frontend;

use super::{A, B, FEATURES, alone, guest};
use crate::switch::{Switch, nic, open_fds};

/// Has what is held of sessions, by NIC.
#[derive(Default)]
pub struct Kept(Mutex<BTreeMap<String, LeftSession>>);

impl Kept {
    pub fn names(&self) -> Vec<String> {
        self.0.lock().unwrap().keys().cloned().collect()
    }
}

impl SessionKeeper for Kept {
    fn hold(&self, nic: &str, record: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
        let fds = fds.iter().map(|fd| fd.try_clone_to_owned().unwrap());
        let left = LeftSession {
            record: record.to_owned(),
            fds: fds.collect(),
            is_held: true,
        };
        self.0.lock().unwrap().insert(nic.to_owned(), left);
        true
    }

    fn release(&self, nic: &str) {
        self.0.lock().unwrap().remove(nic);
    }

    fn ended(&self, nic: &str) -> bool {
        self.release(nic);
        false
    }

    fn closed(&self, _nic: &str) {}
}

/// Guests whose VMMs are connected to the first server, and run.
pub struct HandedOn {
    pub server: Server,
    pub switch: Arc<Switch>,
    pub kept: Arc<Kept>,
    /// The one that is to take its place, and waits.
    pub next: Server,
    pub next_switch: Arc<Switch>,
    pub next_kept: Arc<Kept>,
    pub vmms: [Frontend; 2],
    guests: [Guest; 2],
    dir: TempDir,
    fds_before: usize,
    _alone: MutexGuard<'static, ()>,
}

impl HandedOn {
    pub fn new() -> HandedOn {
        let alone = alone();
        let fds_before = open_fds();
        let dir = TempDir::new().unwrap();
        let [(switch, kept), (next_switch, next_kept)]: [(Arc<Switch>, Arc<Kept>); 2] =
            Default::default();
        let server = Server::start_keeping(switch.clone(), Some(kept.clone())).unwrap();
        let guests = [guest(), guest()];
        let vmms = [(A, &guests[0]), (B, &guests[1])].map(|(key, guest)| {
            let path = dir.path().join(name(key));
            server.listen(key, &path, nic(&name(key))).unwrap();
            let mut vmm = Frontend::connect(&path).unwrap();
            vmm.negotiate(FEATURES | PROTOCOL_FEATURES).unwrap();
            vmm.start(guest, [0, 0]).unwrap();
            vmm
        });
        let next = Server::start_waiting(next_switch.clone(), Some(next_kept.clone())).unwrap();
        for (path, socket) in server.listeners().unwrap() {
            let key = if path.ends_with(name(A)) { A } else { B };
            next.listen_by(key, &path, socket, nic(&name(key))).unwrap();
        }
        HandedOn {
            server,
            switch,
            kept,
            next,
            next_switch,
            next_kept,
            vmms,
            guests,
            dir,
            fds_before,
            _alone: alone,
        }
    }

    /// What the first server has held of a session.
    pub fn left(&self, key: PortKey) -> LeftSession {
        let kept = self.kept.0.lock().unwrap();
        let LeftSession { record, fds, .. } = &kept[&name(key)];
        let fds = fds.iter().map(|fd| fd.try_clone().unwrap());
        LeftSession {
            record: record.clone(),
            fds: fds.collect(),
            is_held: true,
        }
    }

    /// A frame from one guest to the other, by one of the two.
    pub fn one_frame(&mut self, switch: &Switch, mark: u8) {
        let [from, to] = &mut self.guests;
        super::one_frame(switch, from, to, mark);
    }

    /// All is taken down, and nothing is left open.
    pub fn end(self, yielded: Option<Yielded>) {
        let HandedOn {
            server,
            next,
            vmms,
            guests,
            kept,
            next_kept,
            switch,
            next_switch,
            dir,
            fds_before,
            _alone,
        } = self;
        drop((vmms, next));
        drop(yielded);
        drop(server);
        assert!(switch.lock().ports.is_empty() && next_switch.lock().ports.is_empty());
        drop((guests, kept, next_kept, dir));
        assert_eq!(open_fds(), fds_before, "descriptors left open");
    }
}

fn name(key: PortKey) -> String {
    format!("nic-{}", key.0)
}
