//! vhost-user sessions without a socket: QEMU's own words, and what no honest VMM says.

mod switch;

use std::fs::File;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use butterfly_io::vhost::features::{self, protocol};
use butterfly_io::vhost::message::Reader;
use butterfly_io::vhost::request::*;
use butterfly_io::vhost::session::{Outcome, Session};
use butterfly_io::vhost::{NicOptions, PortKey, PortState};
use proptest::prelude::*;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::MemfdFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use switch::{PATIENCE, Switch, nic, open_fds, silent_helper};
use testkit::vhost_frontend::{message, pair};
use testkit::wait_for;

const KEY: PortKey = PortKey(7);
const VERSION: u32 = 1;
const NEED_REPLY: u32 = 9;

/// Tests here count the descriptors of the whole process: one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// What says the messages.
struct Vmm {
    switch: Arc<Switch>,
    session: Option<Session>,
    reader: Reader,
    now: Instant,
}

impl Vmm {
    fn new(options: NicOptions) -> Vmm {
        let switch = Arc::new(Switch::default());
        let session = Session::new(KEY, Arc::new(options), switch.clone());
        Vmm {
            switch,
            session: Some(session),
            reader: Reader::new(),
            now: Instant::now(),
        }
    }

    fn session(&self) -> &Session {
        self.session.as_ref().expect("a session that has not ended")
    }

    /// Says one message; `None` when the stream itself was found to be broken.
    fn try_say(&mut self, bytes: &[u8], fds: Vec<OwnedFd>) -> Option<Outcome> {
        let (mut rest, mut fds) = (bytes, fds);
        while !rest.is_empty() {
            let space = self.reader.space();
            let count = space.len().min(rest.len());
            space[..count].copy_from_slice(&rest[..count]);
            rest = &rest[count..];
            match self.reader.filled(count, std::mem::take(&mut fds)) {
                Ok(None) => {}
                Ok(Some(message)) => {
                    return Some(self.session.as_mut().unwrap().handle(message, self.now));
                }
                Err(error) => {
                    self.session.as_mut().unwrap().unreadable(error);
                    return None;
                }
            }
        }
        None
    }

    fn say(&mut self, request: u32, flags: u32, payload: &[u8], fds: Vec<OwnedFd>) -> Outcome {
        self.try_say(&message(request, flags, payload), fds)
            .expect("a whole message")
    }

    /// What becomes of a request that waits for another process; `None`: it waits still.
    fn try_again(&mut self, now: Instant) -> Option<Outcome> {
        let session = self.session.as_mut().unwrap();
        let outcome = session.try_again(now);
        session.waits_until(now).is_none().then_some(outcome)
    }

    /// Says it as an honest VMM would, and is neither answered nor sent away.
    fn send(&mut self, request: u32, payload: &[u8], fds: Vec<OwnedFd>) {
        let outcome = self.say(request, VERSION, payload, fds);
        assert_eq!(
            outcome,
            Outcome {
                reply: None,
                close: false
            },
            "{}",
            name(request)
        );
    }

    /// Says it and is sent away.
    fn is_refused(&mut self, request: u32, payload: &[u8], fds: Vec<OwnedFd>) {
        let outcome = self.say(request, VERSION, payload, fds);
        assert_eq!(
            outcome,
            Outcome {
                reply: None,
                close: true
            },
            "{} {payload:02x?}",
            name(request)
        );
    }

    /// Says it, and is told no without being sent away.
    fn is_told_no(&mut self, request: u32, payload: &[u8], fds: Vec<OwnedFd>) {
        let outcome = self.say(request, NEED_REPLY, payload, fds);
        let reply = Some(reply(request, 1));
        assert_eq!(
            outcome,
            Outcome {
                reply,
                close: false
            },
            "{} {payload:02x?}",
            name(request)
        );
    }

    fn negotiate(&mut self, features: u64) {
        self.send(
            SET_PROTOCOL_FEATURES,
            &protocol::OFFERED.to_ne_bytes(),
            vec![],
        );
        self.send(
            SET_FEATURES,
            &(features | features::VERSION_1).to_ne_bytes(),
            vec![],
        );
    }

    /// Memory of 1 MiB, and both rings of 64 entries as far as SET_VRING_CALL.
    fn set_up(&mut self, features: u64) {
        self.negotiate(features);
        self.send(
            SET_MEM_TABLE,
            &table(&[[0, 0x10_0000, USER, 0]]),
            vec![memory(0x10_0000)],
        );
        for ring in 0..2 {
            self.set_up_ring(ring);
        }
    }

    fn set_up_ring(&mut self, ring: u32) {
        self.send(SET_VRING_NUM, &pair(ring, 64), vec![]);
        self.send(SET_VRING_BASE, &pair(ring, 0), vec![]);
        self.send(
            SET_VRING_ADDR,
            &addresses(ring, USER + u64::from(ring) * 0x8000),
            vec![],
        );
        self.send(
            SET_VRING_KICK,
            &u64::from(ring).to_ne_bytes(),
            vec![event()],
        );
        self.send(
            SET_VRING_CALL,
            &u64::from(ring).to_ne_bytes(),
            vec![event()],
        );
    }

    fn state(&self) -> PortState {
        self.session().info().state
    }

    fn has_port(&self) -> bool {
        self.switch.lock().ports.keys().any(|(key, _)| *key == KEY)
    }

    /// Which rings the port of the first pair has: the one to receive from, the one to transmit on.
    fn rings(&self) -> [bool; 2] {
        let inner = self.switch.lock();
        let Some(port) = inner.ports.get(&(KEY, 0)) else {
            return [false; 2];
        };
        let state = port.info();
        [state.receiveq.is_some(), state.transmitq.is_some()]
    }
}

impl Drop for Vmm {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            session.end();
        }
        if !std::thread::panicking() {
            assert!(!self.has_port(), "the port of a session that has ended");
            assert_eq!(self.switch.state_of(KEY), Some(PortState::Disconnected));
        }
    }
}

const USER: u64 = 0x7f00_0000_0000;

fn memory(len: u64) -> OwnedFd {
    let fd = rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    File::from(fd.try_clone().unwrap()).set_len(len).unwrap();
    fd
}

fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

fn reply(request: u32, number: u64) -> Vec<u8> {
    message(request, 5, &number.to_ne_bytes())
}

/// A memory table of regions: guest address, size, user address, offset.
fn table(regions: &[[u64; 4]]) -> Vec<u8> {
    let words = std::iter::once(regions.len() as u64).chain(regions.iter().flatten().copied());
    words.flat_map(u64::to_ne_bytes).collect()
}

/// SET_LOG_BASE of so many bytes.
fn log(size: u64, offset: u64) -> Vec<u8> {
    [size.to_ne_bytes(), offset.to_ne_bytes()].concat()
}

/// SET_VRING_ADDR with the three parts at distances of 0x1000 from `at`.
fn addresses(ring: u32, at: u64) -> Vec<u8> {
    let mut payload = pair(ring, 0);
    for part in [at, at + 0x2000, at + 0x1000, 0] {
        payload.extend(part.to_ne_bytes());
    }
    payload
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

/// What QEMU 7.2 says for a guest whose firmware (iPXE) drives the card, is reset, and drives it
/// again: taken down from QEMU itself. Request, flags, payload, descriptors ('e'vent or 'm'emory).
const QEMU_CONNECTS: &[(u32, u32, &str, &str)] = &[
    (1, 1, "", ""),
    (15, 1, "", ""),
    (16, 1, "1900000000000000", ""),
    (17, 1, "", ""),
    (3, 1, "", ""),
    (1, 1, "", ""),
    (13, 1, "0000000000000000", "e"),
    (14, 1, "0000000000000000", "e"),
    (13, 1, "0100000000000000", "e"),
    (14, 1, "0100000000000000", "e"),
    (18, 1, "0000000001000000", ""),
    (18, 1, "0100000001000000", ""),
];
const QEMU_STARTS: &[(u32, u32, &str, &str)] = &[
    (20, 9, "7805000000000000", ""),
    (18, 1, "0000000001000000", ""),
    (18, 1, "0100000001000000", ""),
    (2, 1, "0800004001000000", ""),
    (
        5,
        9,
        "01000000000000000000000000000000000000040000000000f0ff8b4a7f00000000000000000000",
        "m",
    ),
    (8, 1, "0000000000010000", ""),
    (10, 1, "0000000000000000", ""),
    (
        9,
        1,
        "000000000000000000e0f58f4a7f00000000f68f4a7f000000f0f58f4a7f00000010f60300000000",
        "",
    ),
    (12, 1, "0000000000000000", "e"),
    (13, 1, "0000000000000000", "e"),
    (8, 1, "0100000000010000", ""),
    (10, 1, "0100000000000000", ""),
    (
        9,
        1,
        "01000000000000000010f68f4a7f00000030f68f4a7f00000020f68f4a7f00000040f60300000000",
        "",
    ),
    (12, 1, "0100000000000000", "e"),
    (13, 1, "0100000000000000", "e"),
];
const QEMU_STOPS: &[(u32, u32, &str, &str)] = &[
    (11, 1, "0000000000000000", ""),
    (11, 1, "0100000000000000", ""),
];

/// Says them all; gives the numbers of the replies.
fn play(vmm: &mut Vmm, messages: &[(u32, u32, &str, &str)]) -> Vec<(u32, u64)> {
    let mut replies = Vec::new();
    for &(request, flags, payload, fds) in messages {
        let fd = |kind| {
            if kind == 'e' {
                event()
            } else {
                memory(0x400_0000)
            }
        };
        let outcome = vmm.say(request, flags, &hex(payload), fds.chars().map(fd).collect());
        assert!(!outcome.close, "{}", name(request));
        if let Some(bytes) = outcome.reply {
            let number = u64::from_ne_bytes(bytes[12..].try_into().unwrap());
            assert_eq!(bytes, reply(request, number));
            replies.push((request, number));
        }
    }
    replies
}

#[test]
fn qemus_own_words_bring_a_guest_up_through_a_reset() {
    let _alone = alone();
    let fds = open_fds();
    let mut vmm = Vmm::new(nic("qemu"));
    let offered = 0x01c0_000d_7423_bbab;
    let expected = [(1, offered), (15, 0x1_a23f), (17, 1), (1, offered)];
    assert_eq!(play(&mut vmm, QEMU_CONNECTS), expected);
    for _ in 0..2 {
        assert!(!vmm.has_port());
        assert_eq!(play(&mut vmm, QEMU_STARTS), [(20, 0), (5, 0)]);
        assert_eq!((vmm.rings(), vmm.state()), ([true, true], PortState::Up));
        assert_eq!(vmm.session().info().mtu, Some(1400));
        assert_eq!(play(&mut vmm, QEMU_STOPS), [(11, 0), (11, 1)]);
    }
    let states = vmm.switch.states_of(KEY);
    use PortState::{Connected, Up};
    assert_eq!(states, [Connected, Up, Connected, Up, Connected]);
    drop(vmm);
    assert_eq!(open_fds(), fds);
}

#[test]
fn a_ring_runs_when_it_is_described_started_and_enabled() {
    let _alone = alone();
    let mut vmm = Vmm::new(nic("rings"));
    vmm.set_up(features::PROTOCOL_FEATURES);
    assert_eq!(
        vmm.rings(),
        [false, false],
        "with protocol features rings start disabled"
    );
    vmm.send(SET_VRING_ENABLE, &pair(1, 1), vec![]);
    assert_eq!(
        (vmm.rings(), vmm.state()),
        ([false, true], PortState::Up),
        "one way"
    );
    vmm.send(SET_VRING_ENABLE, &pair(0, 1), vec![]);
    assert_eq!(vmm.rings(), [true, true]);
    // Turned off, the ring that the guest transmits on is emptied, and the other left alone.
    vmm.send(SET_VRING_ENABLE, &pair(1, 0), vec![]);
    assert_eq!((vmm.rings(), vmm.state()), ([true, true], PortState::Up));
    vmm.send(SET_VRING_ENABLE, &pair(0, 0), vec![]);
    assert_eq!(
        (vmm.rings(), vmm.state()),
        ([false, true], PortState::Connected)
    );
    // Started anew it is left alone until it is enabled: what the guest has sent meanwhile goes out
    // then.
    vmm.send(SET_VRING_KICK, &1u64.to_ne_bytes(), vec![event()]);
    assert_eq!(
        (vmm.rings(), vmm.state()),
        ([false, false], PortState::Connected)
    );
    vmm.send(SET_VRING_ENABLE, &pair(0, 1), vec![]);
    vmm.send(SET_VRING_ENABLE, &pair(1, 1), vec![]);
    let outcome = vmm.say(GET_VRING_BASE, VERSION, &pair(0, 0), vec![]);
    assert_eq!(outcome.reply, Some(message(GET_VRING_BASE, 5, &pair(0, 0))));
    assert_eq!(vmm.rings(), [false, true]);
    // Enabling does not start, a kick does; without a descriptor it is polled.
    vmm.send(SET_VRING_ENABLE, &pair(0, 0), vec![]);
    vmm.send(SET_VRING_ENABLE, &pair(0, 1), vec![]);
    assert_eq!(vmm.rings(), [false, true]);
    vmm.send(SET_VRING_KICK, &0x100u64.to_ne_bytes(), vec![]);
    assert_eq!(vmm.rings(), [true, true]);
    vmm.send(RESET_OWNER, &[], vec![]);
    assert_eq!(
        (vmm.rings(), vmm.state()),
        ([false, false], PortState::Connected)
    );

    let mut old = Vmm::new(nic("old"));
    old.set_up(0);
    assert_eq!(
        old.rings(),
        [true, true],
        "without protocol features rings start enabled"
    );
}

/// The pairs that have a port.
fn pairs(vmm: &Vmm) -> Vec<u16> {
    vmm.switch
        .lock()
        .ports
        .keys()
        .map(|(_, pair)| *pair)
        .collect()
}

/// The pairs whose port was handed over since this was last asked.
fn handed_over(vmm: &Vmm) -> Vec<u16> {
    let attached = std::mem::take(&mut vmm.switch.lock().attached);
    attached.into_iter().map(|(_, pair)| pair).collect()
}

#[test]
fn each_pair_comes_and_goes_alone_and_memory_takes_them_all() {
    let _alone = alone();
    let fds = open_fds();
    let options = NicOptions {
        pairs: 4,
        ..nic("wide")
    };
    let mut vmm = Vmm::new(options);
    let features = vmm.say(GET_FEATURES, VERSION, &[], vec![]).reply.unwrap();
    assert_eq!(features, reply(GET_FEATURES, 0x01c0_000d_7463_bbab));
    let count = vmm.say(GET_QUEUE_NUM, VERSION, &[], vec![]).reply.unwrap();
    assert_eq!(count, reply(GET_QUEUE_NUM, 4));
    vmm.set_up(features::PROTOCOL_FEATURES | features::MQ);
    (2..6).for_each(|ring| vmm.set_up_ring(ring));
    assert!(pairs(&vmm).is_empty());
    // In whatever order, a pair between two others left out.
    for ring in [4, 0, 1, 5] {
        vmm.send(SET_VRING_ENABLE, &pair(ring, 1), vec![]);
    }
    assert_eq!((pairs(&vmm), vmm.state()), (vec![0, 2], PortState::Up));
    assert_eq!(handed_over(&vmm), [2, 0, 0, 2]);

    // What is said of one ring leaves the other pairs where they are.
    vmm.send(SET_VRING_CALL, &5u64.to_ne_bytes(), vec![event()]);
    assert_eq!(handed_over(&vmm), [2]);
    vmm.send(SET_VRING_ENABLE, &pair(2, 1), vec![]);
    assert_eq!((handed_over(&vmm), pairs(&vmm)), (vec![1], vec![0, 1, 2]));
    for ring in [4, 5] {
        vmm.send(SET_VRING_ENABLE, &pair(ring, 0), vec![]);
    }
    assert_eq!(
        pairs(&vmm),
        [0, 1, 2],
        "what was left in a queue that is off is taken out of it"
    );
    assert_eq!(handed_over(&vmm), [2, 2]);
    let outcome = vmm.say(GET_VRING_BASE, VERSION, &pair(5, 0), vec![]);
    assert_eq!(outcome.reply, Some(message(GET_VRING_BASE, 5, &pair(5, 0))));
    assert_eq!(pairs(&vmm), [0, 1], "until it is stopped");
    let outcome = vmm.say(GET_VRING_BASE, VERSION, &pair(2, 0), vec![]);
    assert_eq!(outcome.reply, Some(message(GET_VRING_BASE, 5, &pair(2, 0))));
    assert_eq!((pairs(&vmm), vmm.state()), (vec![0], PortState::Up));
    let enabled: Vec<bool> = vmm
        .session()
        .info()
        .rings
        .iter()
        .map(|ring| ring.enabled)
        .collect();
    assert_eq!(enabled, [true, true, true, false, false, false]);

    // One that cannot run is said so, and the others run on.
    vmm.set_up_ring(2);
    vmm.is_told_no(SET_VRING_ADDR, &addresses(2, 0), vec![]);
    let PortState::Broken(why) = vmm.state() else {
        panic!("{:?}", vmm.state())
    };
    assert_eq!(
        why,
        "queue pair 1: the descriptor table of 1024 bytes at 0x0 is not in the guest's memory"
    );
    assert_eq!(pairs(&vmm), [0]);
    vmm.send(SET_VRING_ADDR, &addresses(2, USER + 0x1_0000), vec![]);
    vmm.send(SET_VRING_KICK, &2u64.to_ne_bytes(), vec![event()]);
    assert_eq!((pairs(&vmm), vmm.state()), (vec![0, 1], PortState::Up));

    handed_over(&vmm);
    vmm.send(
        SET_MEM_TABLE,
        &table(&[[0, 0x10_0000, USER, 0]]),
        vec![memory(0x10_0000)],
    );
    assert_eq!(handed_over(&vmm), [0, 1]);
    vmm.send(NET_SET_MTU, &1400u64.to_ne_bytes(), vec![]);
    assert_eq!(handed_over(&vmm), [0, 1]);
    vmm.is_refused(SET_VRING_NUM, &pair(8, 64), vec![]);
    drop(vmm);
    assert_eq!(open_fds(), fds);
}

#[test]
fn a_session_holds_as_many_pairs_as_there_can_be() {
    let _alone = alone();
    let fds = open_fds();
    let options = |pairs| NicOptions {
        pairs,
        ..nic("widest")
    };
    for (pairs, expected) in [(0, 1), (1, 1), (64, 64), (65, 64), (u16::MAX, 64)] {
        let mut vmm = Vmm::new(options(pairs));
        let count = vmm.say(GET_QUEUE_NUM, VERSION, &[], vec![]).reply.unwrap();
        assert_eq!(count, reply(GET_QUEUE_NUM, expected), "{pairs} pairs");
    }
    let mut vmm = Vmm::new(options(64));
    vmm.set_up(features::MQ);
    let room = table(&[[0, 0x40_0000, USER, 0]]);
    vmm.send(SET_MEM_TABLE, &room, vec![memory(0x40_0000)]);
    (2..128).for_each(|ring| vmm.set_up_ring(ring));
    assert_eq!(pairs(&vmm), (0..64).collect::<Vec<u16>>());
    assert_eq!(vmm.session().info().rings.len(), 128);
    vmm.is_refused(SET_VRING_KICK, &128u64.to_ne_bytes(), vec![event()]);
    drop(vmm);
    assert_eq!(open_fds(), fds);
}

#[test]
fn a_request_that_says_nothing_new_leaves_the_port_alone() {
    let _alone = alone();
    let mut vmm = Vmm::new(nic("calm"));
    vmm.set_up(0);
    let attached = vmm.switch.lock().attached.len();
    vmm.send(SET_VRING_ENABLE, &pair(0, 1), vec![]);
    let attached_once = vmm.switch.lock().attached.len();
    vmm.send(SET_VRING_ENABLE, &pair(0, 1), vec![]);
    vmm.send(SET_FEATURES, &features::VERSION_1.to_ne_bytes(), vec![]);
    vmm.send(SET_VRING_ERR, &0u64.to_ne_bytes(), vec![event()]);
    vmm.send(SET_OWNER, &[], vec![]);
    assert_eq!(vmm.switch.lock().attached.len(), attached_once);
    assert!(attached_once <= attached + 1);
}

#[test]
fn a_guest_is_announced_under_its_own_name() {
    let _alone = alone();
    let mut vmm = Vmm::new(nic("rarp"));
    vmm.negotiate(0);
    vmm.is_told_no(SEND_RARP, &[2, 0, 0, 0, 0, 9, 0, 0], vec![]);
    assert!(vmm.switch.lock().announced.is_empty());
    vmm.send(SEND_RARP, &[2, 0, 0, 0, 0, 1, 0, 0], vec![]);
    assert_eq!(vmm.switch.lock().announced, [KEY]);
    // Sixteen at once, ten a second: each is a frame to all of its network.
    for _ in 1..16 {
        vmm.send(SEND_RARP, &[2, 0, 0, 0, 0, 1, 0, 0], vec![]);
    }
    vmm.is_told_no(SEND_RARP, &[2, 0, 0, 0, 0, 1, 0, 0], vec![]);
    vmm.now += Duration::from_millis(100);
    vmm.send(SEND_RARP, &[2, 0, 0, 0, 0, 1, 0, 0], vec![]);
    vmm.is_told_no(SEND_RARP, &[2, 0, 0, 0, 0, 1, 0, 0], vec![]);
    assert_eq!(vmm.switch.lock().announced, [KEY; 17]);
}

#[test]
fn packed_rings_have_any_number_of_entries() {
    let _alone = alone();
    let mut vmm = Vmm::new(nic("any"));
    vmm.set_up(features::PROTOCOL_FEATURES | features::RING_PACKED);
    vmm.send(SET_VRING_ENABLE, &pair(0, 1), vec![]);
    vmm.send(SET_VRING_ENABLE, &pair(1, 1), vec![]);
    assert_eq!(vmm.rings(), [true, true]);
    for size in [1, 3, 65] {
        vmm.send(SET_VRING_NUM, &pair(0, size), vec![]);
        assert_eq!(vmm.rings(), [true, true], "size {size}");
    }
    for size in [0, 32769, 65536 + 64] {
        vmm.is_told_no(SET_VRING_NUM, &pair(0, size), vec![]);
        assert_eq!(vmm.rings(), [false, true], "size {size}");
    }
    // Before the kind is known, any will do; a split ring of such a size does not run.
    let mut vmm = Vmm::new(nic("any"));
    vmm.send(SET_VRING_NUM, &pair(1, 65), vec![]);
    vmm.negotiate(features::PROTOCOL_FEATURES);
    vmm.is_told_no(SET_VRING_NUM, &pair(1, 65), vec![]);
}

#[test]
fn the_link_is_what_the_operator_wants_and_the_rest_waits_for_the_next_session() {
    let _alone = alone();
    let down = NicOptions {
        link_up: false,
        ..nic("link")
    };
    let mut vmm = Vmm::new(down.clone());
    let up = NicOptions {
        mtu: Some(9000),
        ..nic("link")
    };
    assert!(!vmm.session().reads_config());
    vmm.negotiate(0);
    assert!(vmm.session().reads_config());
    let status_and_mtu = |vmm: &mut Vmm| {
        let outcome = vmm.say(GET_CONFIG, VERSION, &span(6, &[0; 6]), vec![]);
        let bytes = outcome.reply.unwrap().split_off(24);
        [bytes[0], bytes[1], bytes[4], bytes[5]]
    };
    let session = |vmm: &mut Vmm, options| vmm.session.as_mut().unwrap().change(options);
    assert_eq!(status_and_mtu(&mut vmm), [0, 0, 0xdc, 0x05]);
    assert!(session(&mut vmm, &up));
    assert!(!session(&mut vmm, &up), "nothing new");
    assert_eq!(status_and_mtu(&mut vmm), [1, 0, 0xdc, 0x05]);
    assert!(session(&mut vmm, &down));
    assert_eq!(status_and_mtu(&mut vmm), [0, 0, 0xdc, 0x05]);
}

#[test]
fn a_channel_to_the_vmm_is_one_of_a_pair_of_stream_sockets() {
    let _alone = alone();
    let fds = open_fds();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("listener");
    let listener = UnixListener::bind(&path).unwrap();
    let connected = UnixStream::connect(&path).unwrap();
    let accepted = listener.accept().unwrap().0;
    let inet = TcpListener::bind("127.0.0.1:0").unwrap();
    let remote = TcpStream::connect(inet.local_addr().unwrap()).unwrap();
    let unconnected = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    let pipe = rustix::pipe::pipe().unwrap();
    let wrong: Vec<OwnedFd> = vec![
        event(),
        memory(4096),
        File::open("/dev/null").unwrap().into(),
        pipe.0,
        pipe.1,
        UnixDatagram::pair().unwrap().0.into(),
        rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap()
        .0,
        // Both ends of a connection by name: a session's own could be one.
        connected.into(),
        accepted.into(),
        listener.into(),
        remote.into(),
        inet.into(),
        unconnected,
    ];
    for (number, fd) in wrong.into_iter().enumerate() {
        let mut vmm = Vmm::new(nic("channel"));
        vmm.negotiate(0);
        let outcome = vmm.say(SET_BACKEND_REQ_FD, NEED_REPLY, &[], vec![fd]);
        let reply = Some(reply(SET_BACKEND_REQ_FD, 1));
        assert_eq!(outcome, Outcome { reply, close: true }, "number {number}");
        assert!(vmm.session.as_mut().unwrap().take_channel().is_none());
    }
    let mut vmm = Vmm::new(nic("channel"));
    vmm.negotiate(0);
    // The second takes the place of the first.
    let pairs = [UnixStream::pair().unwrap(), UnixStream::pair().unwrap()];
    for (ours, mut theirs) in pairs {
        theirs.set_read_timeout(Some(PATIENCE)).unwrap();
        vmm.send(SET_BACKEND_REQ_FD, &[], vec![ours.into()]);
        let taken = vmm.session.as_mut().unwrap().take_channel().unwrap();
        drop(taken);
        assert_eq!(theirs.read(&mut [0; 1]).unwrap(), 0);
    }
    vmm.is_refused(SET_BACKEND_REQ_FD, &[0; 8], vec![event()]);
    drop(vmm);
    drop(dir);
    assert_eq!(open_fds(), fds);
}

#[test]
fn the_offer_follows_the_nic() {
    let _alone = alone();
    let plain = NicOptions {
        offloads: false,
        mtu: None,
        ..nic("plain")
    };
    let mut vmm = Vmm::new(plain);
    let offered = vmm.say(GET_FEATURES, VERSION, &[], vec![]).reply.unwrap();
    assert_eq!(offered, reply(GET_FEATURES, 0xd_7423_8020));
    // What was not offered cannot be taken: CSUM, MTU, and what does not exist.
    for bit in [0u32, 3, 63] {
        let mut vmm = Vmm::new(NicOptions {
            offloads: false,
            mtu: None,
            ..nic("plain")
        });
        vmm.is_refused(SET_FEATURES, &(1u64 << 32 | 1 << bit).to_ne_bytes(), vec![]);
    }
    vmm.is_refused(SET_PROTOCOL_FEATURES, &(1u64 << 8).to_ne_bytes(), vec![]);
}

#[test]
fn an_mtu_is_one_and_not_above_the_nics() {
    let _alone = alone();
    let mut vmm = Vmm::new(nic("mtu"));
    vmm.negotiate(features::PROTOCOL_FEATURES | features::MTU);
    for bad in [0u64, 67, 1501, 65536, u64::MAX] {
        vmm.is_told_no(NET_SET_MTU, &bad.to_ne_bytes(), vec![]);
    }
    assert_eq!(vmm.session().info().mtu, Some(1500));
    vmm.send(NET_SET_MTU, &68u64.to_ne_bytes(), vec![]);
    assert_eq!(vmm.session().info().mtu, Some(68));
}

#[test]
fn what_is_not_known_is_declined_and_what_waits_for_an_answer_is_not_left_waiting() {
    let _alone = alone();
    let fds = open_fds();
    let mut vmm = Vmm::new(nic("other"));
    // Known, but not asked for: the feature was not taken.
    vmm.send(RESET_DEVICE, &[], vec![]);
    vmm.send(SET_STATUS, &1u64.to_ne_bytes(), vec![]);
    vmm.send(ADD_MEM_REG, &[0; 40], vec![event()]);
    vmm.send(SET_BACKEND_REQ_FD, &[], vec![event()]);
    vmm.send(SEND_RARP, &[2, 0, 0, 0, 0, 1, 0, 0], vec![]);
    assert!(vmm.switch.lock().announced.is_empty());
    vmm.negotiate(features::PROTOCOL_FEATURES);
    for request in [GPU_SET_SOCKET, SET_VRING_ENDIAN, 41, 9999] {
        vmm.is_told_no(request, &[1, 2, 3], vec![event()]);
    }
    for request in [GET_STATUS, GET_CONFIG, GET_MAX_MEM_SLOTS] {
        let payload: &[u8] = if request == GET_CONFIG { &[0; 12] } else { &[] };
        Vmm::new(nic("without")).is_refused(request, payload, vec![]);
    }
    vmm.is_refused(GET_INFLIGHT_FD, &[0; 16], vec![event()]);
    drop(vmm);
    assert_eq!(open_fds(), fds);
}

#[test]
fn impossible_rings_do_not_run_and_a_new_start_mends_them() {
    let _alone = alone();
    let fds = open_fds();
    let mut vmm = Vmm::new(nic("impossible"));
    vmm.set_up(features::PROTOCOL_FEATURES);
    vmm.send(SET_VRING_ENABLE, &pair(0, 1), vec![]);
    vmm.send(SET_VRING_ENABLE, &pair(1, 1), vec![]);
    assert_eq!(vmm.rings(), [true, true]);
    for size in [0, 3, 65, 32769, 65536, u32::MAX] {
        vmm.is_told_no(SET_VRING_NUM, &pair(0, size), vec![]);
        assert_eq!(vmm.rings(), [false, true], "size {size}");
    }
    vmm.send(SET_VRING_NUM, &pair(0, 64), vec![]);
    assert_eq!(vmm.rings(), [true, true]);

    let misaligned = |at: usize| {
        let mut payload = addresses(0, USER);
        payload[at] += 1;
        payload
    };
    let outside = addresses(0, USER + 0x10_0000 - 0x2000);
    let nowhere = addresses(0, 0);
    let wrapping = addresses(0, u64::MAX - 0x2000);
    for wrong in [
        misaligned(8),
        misaligned(16),
        misaligned(24),
        outside,
        nowhere,
        wrapping,
    ] {
        vmm.is_told_no(SET_VRING_ADDR, &wrong, vec![]);
        assert_eq!(vmm.rings(), [false, true]);
        assert!(
            matches!(vmm.state(), PortState::Broken(_)),
            "{:?}",
            vmm.state()
        );
        // What the VMM does when the guest resets its driver.
        vmm.say(GET_VRING_BASE, VERSION, &pair(0, 0), vec![]);
        vmm.set_up_ring(0);
        assert_eq!((vmm.rings(), vmm.state()), ([true, true], PortState::Up));
    }
    // No eventfd: the worker would wait on it.
    vmm.is_told_no(SET_VRING_KICK, &0u64.to_ne_bytes(), vec![memory(4096)]);
    vmm.is_told_no(
        SET_VRING_CALL,
        &1u64.to_ne_bytes(),
        vec![File::open("/dev/null").unwrap().into()],
    );
    assert_eq!(vmm.rings(), [false, false]);
    drop(vmm);
    assert_eq!(open_fds(), fds);
}

#[test]
fn what_only_a_vmm_can_do_wrong_ends_the_session() {
    let _alone = alone();
    let fds = open_fds();
    let cases: Vec<(u32, Vec<u8>, Vec<OwnedFd>)> = vec![
        (SET_VRING_NUM, pair(2, 64), vec![]),
        (SET_VRING_BASE, pair(u32::MAX, 0), vec![]),
        (SET_VRING_BASE, pair(0, 65536), vec![]),
        (GET_VRING_BASE, pair(2, 0), vec![]),
        (SET_VRING_ENABLE, pair(2, 1), vec![]),
        (SET_VRING_ENABLE, pair(0, 2), vec![]),
        (SET_VRING_KICK, 2u64.to_ne_bytes().to_vec(), vec![event()]),
        (SET_VRING_CALL, 255u64.to_ne_bytes().to_vec(), vec![event()]),
        (SET_VRING_ERR, 2u64.to_ne_bytes().to_vec(), vec![event()]),
        (SET_VRING_KICK, 0u64.to_ne_bytes().to_vec(), vec![]),
        (
            SET_VRING_KICK,
            0u64.to_ne_bytes().to_vec(),
            vec![event(), event()],
        ),
        (
            SET_VRING_KICK,
            0x100u64.to_ne_bytes().to_vec(),
            vec![event()],
        ),
        (SET_VRING_ADDR, addresses(9, USER), vec![]),
        (SET_LOG_BASE, log(0, 0), vec![memory(4096)]),
        (SET_LOG_BASE, log(4097, 0), vec![memory(4096)]),
        (SET_LOG_BASE, log(4096, 1), vec![memory(4096)]),
        (SET_LOG_BASE, log(u64::MAX, 1), vec![memory(4096)]),
        (SET_LOG_BASE, log(1 << 62, 0), vec![memory(4096)]),
        (SET_LOG_BASE, log(4096, 0), vec![]),
        (SET_LOG_BASE, log(4096, 0), vec![memory(4096), memory(4096)]),
        (SET_LOG_BASE, log(8, 0), vec![event()]),
        (
            SET_LOG_BASE,
            log(8, 0),
            vec![File::open("/dev/zero").unwrap().into()],
        ),
        (SET_LOG_FD, vec![], vec![memory(4096)]),
        (SET_LOG_FD, vec![], vec![]),
        (SET_FEATURES, vec![0; 8], vec![event()]),
        (SET_OWNER, vec![0; 8], vec![]),
        (SET_MEM_TABLE, table(&[]), vec![]),
        (SET_MEM_TABLE, table(&[[0, 4096, USER, 0]]), vec![]),
        (SET_MEM_TABLE, table(&[[0, 0, USER, 0]]), vec![memory(4096)]),
        (
            SET_MEM_TABLE,
            table(&[[0, u64::MAX, USER, 0]]),
            vec![memory(4096)],
        ),
        (
            SET_MEM_TABLE,
            table(&[[0, 1 << 62, USER, 0]]),
            vec![memory(4096)],
        ),
        (
            SET_MEM_TABLE,
            table(&[[u64::MAX - 4095, 8192, USER, 0]]),
            vec![memory(8192)],
        ),
        (
            SET_MEM_TABLE,
            table(&[[0, 8192, u64::MAX - 4095, 0]]),
            vec![memory(8192)],
        ),
        (
            SET_MEM_TABLE,
            table(&[[0, 8192, USER, 4096]]),
            vec![memory(8192)],
        ),
        (
            SET_MEM_TABLE,
            table(&[[0, 4096, USER, u64::MAX]]),
            vec![memory(4096)],
        ),
        (SET_MEM_TABLE, table(&[[0, 4096, USER, 0]]), vec![event()]),
        (
            SET_MEM_TABLE,
            table(&[[0, 4096, USER, 0]]),
            vec![File::open("/dev/zero").unwrap().into()],
        ),
        (
            SET_MEM_TABLE,
            table(&[[0, 8192, USER, 0], [4096, 8192, USER + 8192, 0]]),
            vec![memory(8192), memory(8192)],
        ),
        (
            SET_MEM_TABLE,
            table(&[[0, 8192, USER, 0], [8192, 8192, USER + 4096, 0]]),
            vec![memory(8192), memory(8192)],
        ),
    ];
    for (request, payload, fds) in cases {
        let mut vmm = Vmm::new(nic("wrong"));
        vmm.set_up(0);
        assert_eq!(vmm.state(), PortState::Up);
        vmm.is_refused(request, &payload, fds);
    }
    assert_eq!(open_fds(), fds);
}

#[test]
fn a_refusal_that_is_waited_for_is_told_before_the_end() {
    let _alone = alone();
    let mut vmm = Vmm::new(nic("told"));
    vmm.negotiate(features::PROTOCOL_FEATURES);
    let outcome = vmm.say(
        SET_MEM_TABLE,
        NEED_REPLY,
        &table(&[[0, 0, USER, 0]]),
        vec![memory(4096)],
    );
    assert_eq!(
        outcome,
        Outcome {
            reply: Some(reply(SET_MEM_TABLE, 1)),
            close: true
        }
    );
}

#[test]
fn memory_that_is_replaced_takes_the_rings_along() {
    let _alone = alone();
    let mut vmm = Vmm::new(nic("hotplug"));
    vmm.set_up(0);
    let two = table(&[
        [0, 0x10_0000, USER, 0],
        [0x10_0000, 0x10_0000, USER + 0x10_0000, 0],
    ]);
    vmm.send(
        SET_MEM_TABLE,
        &two,
        vec![memory(0x10_0000), memory(0x10_0000)],
    );
    assert_eq!((vmm.rings(), vmm.state()), ([true, true], PortState::Up));
    // Memory that the rings are not in stops them.
    let elsewhere = table(&[[0, 0x1000, USER + 0x10_0000, 0]]);
    vmm.is_told_no(SET_MEM_TABLE, &elsewhere, vec![memory(0x1000)]);
    assert_eq!(vmm.rings(), [false, false]);
    assert!(matches!(vmm.state(), PortState::Broken(_)));
}

/// Counts lines of the log.
#[derive(Clone, Default)]
struct Count(Arc<std::sync::atomic::AtomicUsize>);

impl tracing::Subscriber for Count {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// With another MTU, or another place of a ring, no line would be the one before.
#[test]
fn a_vmm_fills_no_log_with_what_it_may_do() {
    let _alone = alone();
    let count = Count::default();
    let begin = Instant::now();
    tracing::subscriber::with_default(count.clone(), || {
        let mut vmm = Vmm::new(nic("talks"));
        vmm.set_up(features::PROTOCOL_FEATURES);
        for number in 100..300 {
            vmm.send(NET_SET_MTU, &u64::from(number).to_ne_bytes(), vec![]);
            vmm.send(SET_VRING_BASE, &pair(0, number), vec![]);
            vmm.send(SET_VRING_ENABLE, &pair(0, 1), vec![]);
            assert_eq!(vmm.state(), PortState::Up);
            vmm.send(SET_VRING_ENABLE, &pair(0, 0), vec![]);
            assert_eq!(vmm.state(), PortState::Connected);
        }
    });
    let lines = count.0.load(std::sync::atomic::Ordering::Relaxed) as u64;
    let most = 17 + begin.elapsed().as_secs() / 10;
    assert!((10..=most).contains(&lines), "{lines} lines");
}

/// What is in the place of memory that a VMM has taken away is the switch's own: a ring that is
/// started again there, as often as its VMM likes, would have more and more of it used.
#[test]
fn a_ring_does_not_run_in_memory_that_is_gone() {
    let _alone = alone();
    let mut vmm = Vmm::new(nic("gone"));
    let file = memory(0x10_0000);
    let one = table(&[[0, 0x10_0000, USER, 0]]);
    vmm.negotiate(0);
    vmm.send(SET_MEM_TABLE, &one, vec![file.try_clone().unwrap()]);
    (0..2).for_each(|ring| vmm.set_up_ring(ring));
    assert_eq!((vmm.rings(), vmm.state()), ([true, true], PortState::Up));
    File::from(file).set_len(0).unwrap();
    // The first look is what finds it out, the second says so.
    let broken: Vec<_> = (0..3).flat_map(|_| vmm.switch.turn()).collect();
    assert_eq!(broken.len(), 1, "{broken:?}");
    for ring in [0u64, 1, 0, 1] {
        vmm.send(SET_VRING_KICK, &ring.to_ne_bytes(), vec![event()]);
        assert!(!vmm.has_port(), "ring {ring} runs in memory of ours");
        let PortState::Broken(why) = vmm.state() else {
            panic!("{:?}", vmm.state());
        };
        assert!(why.contains("the guest's memory was cut short"), "{why}");
    }
    // Memory that is there mends it.
    vmm.send(SET_MEM_TABLE, &one, vec![memory(0x10_0000)]);
    assert_eq!((vmm.rings(), vmm.state()), ([true, true], PortState::Up));
}

/// Memory that is still elsewhere is for a VMM that was offered to wait for it, and said first.
#[test]
fn pages_that_are_elsewhere_are_waited_for_where_that_was_offered() {
    let _alone = alone();
    let fds = open_fds();
    let watched = 0u64.to_ne_bytes();
    let mut vmm = Vmm::new(nic("without"));
    vmm.negotiate(features::PROTOCOL_FEATURES);
    vmm.is_told_no(POSTCOPY_LISTEN, &[], vec![]);
    for (request, payload) in [
        (POSTCOPY_ADVISE, &[][..]),
        (POSTCOPY_END, &[]),
        (SET_MEM_TABLE, &watched),
        (ADD_MEM_REG, &watched),
    ] {
        let mut vmm = Vmm::new(nic("without"));
        vmm.negotiate(features::PROTOCOL_FEATURES);
        vmm.is_refused(request, payload, vec![]);
    }
    let options = |program: &'static str| NicOptions {
        page_helper: Some(std::path::Path::new(program)),
        ..nic("with")
    };
    let takes = |vmm: &mut Vmm| {
        let all = protocol::OFFERED | protocol::PAGEFAULT;
        vmm.send(SET_PROTOCOL_FEATURES, &all.to_ne_bytes(), vec![]);
    };
    // Who would wait is not there, or ends at once.
    let mut without = Vmm::new(options("/nonexistent"));
    takes(&mut without);
    without.is_refused(POSTCOPY_ADVISE, &[], vec![]);
    let mut ends = Vmm::new(options("/bin/false"));
    takes(&mut ends);
    let begun = ends.now;
    // It may have ended by then.
    let outcome = ends.say(POSTCOPY_ADVISE, VERSION, &[], vec![]);
    let mut outcome = Some(outcome).filter(|outcome| outcome.close);
    let ended = wait_for("its end", PATIENCE, || {
        Ok(outcome.take().or_else(|| ends.try_again(begun)))
    });
    let ended = ended.unwrap();
    assert_eq!((ended.reply, ended.close), (None, true));
    // Nobody here was asked to wait: somebody before may have been.
    let mut late = Vmm::new(options("/bin/false"));
    takes(&mut late);
    let ended = late.say(POSTCOPY_END, VERSION, &[], vec![]);
    assert_eq!(
        ended.reply,
        Some(reply(POSTCOPY_END, 0)),
        "it came to nothing"
    );
    late.send(POSTCOPY_LISTEN, &[], vec![]);
    drop((vmm, without, ends, late));
    // Threads that heard of nobody end by themselves.
    let until = Instant::now() + PATIENCE;
    while open_fds() > fds {
        assert!(Instant::now() < until, "descriptors are left");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Who waits for pages stands still when its VMM wants it to. The session says when to look again,
/// and until then there is nothing to be done for it.
#[test]
fn who_says_nothing_is_asked_again_and_given_up_in_time() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let mut vmm = Vmm::new(NicOptions {
        page_helper: Some(silent_helper(dir.path())),
        ..nic("still")
    });
    let all = protocol::OFFERED | protocol::PAGEFAULT;
    vmm.send(SET_PROTOCOL_FEATURES, &all.to_ne_bytes(), vec![]);
    assert_eq!(vmm.session().waits_until(vmm.now), None);
    vmm.send(POSTCOPY_ADVISE, &[], vec![]);
    let until = vmm.now + Duration::from_secs(5);
    assert_eq!(vmm.session().waits_until(vmm.now), Some(until));
    assert_eq!(vmm.try_again(until - Duration::from_nanos(1)), None);
    assert_eq!(vmm.session().waits_until(until), Some(until));
    let (reply, close) = (None, true);
    assert_eq!(vmm.try_again(until), Some(Outcome { reply, close }));
    assert_eq!(vmm.session().waits_until(until), None);
}

/// SET_VRING_ADDR as [`addresses`], with writes to the used ring in the log at `used`.
fn logged_addresses(ring: u32, at: u64, used: u64) -> Vec<u8> {
    let mut payload = addresses(ring, at);
    payload[4] = 1;
    payload[32..].copy_from_slice(&used.to_ne_bytes());
    payload
}

#[test]
fn a_guest_is_moved_in_qemus_words() {
    let _alone = alone();
    let fds = open_fds();
    let mut vmm = Vmm::new(nic("moved"));
    vmm.set_up(0);
    let all = |vmm: &mut Vmm, features: u64| {
        vmm.send(
            SET_FEATURES,
            &(features | features::VERSION_1).to_ne_bytes(),
            vec![],
        );
    };
    let at = |ring: u32| USER + u64::from(ring) * 0x8000;
    for _ in 0..2 {
        // It begins: the log first, then what is to be in it.
        let outcome = vmm.say(SET_LOG_BASE, VERSION, &log(4096, 0), vec![memory(4096)]);
        let reply = Some(reply(SET_LOG_BASE, 0));
        let close = false;
        assert_eq!(outcome, Outcome { reply, close });
        all(&mut vmm, features::LOG_ALL);
        for ring in 0..2 {
            let used = u64::from(ring) * 0x8000 + 0x2000;
            vmm.send(
                SET_VRING_ADDR,
                &logged_addresses(ring, at(ring), used),
                vec![],
            );
        }
        assert_eq!((vmm.rings(), vmm.state()), ([true, true], PortState::Up));
        // It is called off.
        all(&mut vmm, 0);
        for ring in 0..2 {
            vmm.send(SET_VRING_ADDR, &addresses(ring, at(ring)), vec![]);
        }
        assert_eq!((vmm.rings(), vmm.state()), ([true, true], PortState::Up));
    }
    // Only the first bring-up was one.
    let up = |state: &&(PortKey, PortState)| state.1 == PortState::Up;
    assert_eq!(vmm.switch.lock().states.iter().filter(up).count(), 1);
    drop(vmm);
    assert_eq!(open_fds(), fds);
}

#[test]
fn a_log_too_small_stops_the_nic_until_it_is_large_enough() {
    let _alone = alone();
    let mut vmm = Vmm::new(nic("small"));
    vmm.set_up(features::LOG_ALL);
    // 1 MiB are 256 pages, which are 32 bytes.
    let log_of = |vmm: &mut Vmm, size: u64| {
        let outcome = vmm.say(SET_LOG_BASE, VERSION, &log(size, 0), vec![memory(4096)]);
        assert!(!outcome.close);
        outcome.reply
    };
    for size in [1, 31] {
        log_of(&mut vmm, size);
        let why = format!("the log of written pages, of {size} bytes, has no bit for the page of");
        assert_eq!(vmm.rings(), [false, false]);
        let state = vmm.state();
        let PortState::Broken(said) = &state else {
            panic!("{state:?}");
        };
        assert!(said.contains(&format!("{why} 0xfffff")), "{said}");
    }
    assert_eq!(log_of(&mut vmm, 32), Some(reply(SET_LOG_BASE, 0)));
    assert_eq!((vmm.rings(), vmm.state()), ([true, true], PortState::Up));
    // Nor may a used ring be where the log has no bit; what is not to be noted may be anywhere.
    for used in [0xf_ff00, 0x10_0000, u64::MAX - 4, u64::MAX] {
        vmm.is_told_no(SET_VRING_ADDR, &logged_addresses(0, USER, used), vec![]);
        assert_eq!(vmm.rings(), [false, true], "{used:#x}");
        vmm.send(SET_FEATURES, &features::VERSION_1.to_ne_bytes(), vec![]);
        assert_eq!(vmm.rings(), [false, true], "{used:#x}");
        vmm.send(SET_VRING_ADDR, &addresses(0, USER), vec![]);
        vmm.send(
            SET_FEATURES,
            &(features::LOG_ALL | features::VERSION_1).to_ne_bytes(),
            vec![],
        );
        assert_eq!(vmm.rings(), [true, true], "{used:#x}");
    }
    // Memory that comes is to have room in it as well.
    let more = table(&[
        [0, 0x10_0000, USER, 0],
        [0x10_0000, 0x1000, USER + 0x10_0000, 0],
    ]);
    vmm.is_told_no(
        SET_MEM_TABLE,
        &more,
        vec![memory(0x10_0000), memory(0x1000)],
    );
    assert_eq!(vmm.rings(), [false, false]);
    log_of(&mut vmm, 33);
    assert_eq!((vmm.rings(), vmm.state()), ([true, true], PortState::Up));
}

#[test]
fn a_log_is_not_taken_without_its_feature() {
    let _alone = alone();
    let fds = open_fds();
    let without = || {
        let mut vmm = Vmm::new(nic("without"));
        let taken = protocol::OFFERED & !protocol::LOG_SHMFD;
        vmm.send(SET_PROTOCOL_FEATURES, &taken.to_ne_bytes(), vec![]);
        vmm
    };
    without().is_refused(SET_LOG_BASE, &log(4096, 0), vec![memory(4096)]);
    without().is_refused(SET_VRING_ADDR, &logged_addresses(0, USER, 0), vec![]);
    assert_eq!(open_fds(), fds);
}

/// A configuration access: offset, flags 0, and the bytes.
fn span(offset: u32, bytes: &[u8]) -> Vec<u8> {
    let mut payload = [offset, bytes.len() as u32, 0]
        .map(u32::to_ne_bytes)
        .concat();
    payload.extend(bytes);
    payload
}

#[test]
fn the_configuration_space_says_what_the_nic_is_and_is_not_written() {
    let _alone = alone();
    let mut vmm = Vmm::new(nic("config"));
    vmm.negotiate(features::PROTOCOL_FEATURES);
    let mut read = |offset: u32, len: usize| {
        let outcome = vmm.say(GET_CONFIG, VERSION, &span(offset, &vec![0xa5; len]), vec![]);
        assert!(!outcome.close);
        outcome.reply.unwrap()
    };
    // MAC, link up, one pair of queues, MTU; nothing behind.
    let mut space = nic("config").mac.0.to_vec();
    space.extend([1, 0, 1, 0, 0xdc, 0x05]);
    space.resize(256, 0);
    assert_eq!(read(0, 256), message(GET_CONFIG, 5, &span(0, &space)));
    assert_eq!(read(6, 2), message(GET_CONFIG, 5, &span(6, &[1, 0])));
    for (offset, len) in [(0, 257), (1, 256), (256, 1), (u32::MAX, 4)] {
        assert_eq!(
            read(offset, len),
            message(GET_CONFIG, 5, &span(offset, &[]))
        );
    }
    vmm.is_told_no(SET_CONFIG, &span(0, &[2, 0, 0, 0, 0, 9]), vec![]);
    vmm.is_refused(GET_CONFIG, &span(0, &[0; 4])[..15], vec![]);
}

#[test]
fn a_device_is_reset_by_request_and_by_status() {
    let _alone = alone();
    for request in [RESET_DEVICE, SET_STATUS] {
        let mut vmm = Vmm::new(nic("reset"));
        vmm.set_up(0);
        vmm.send(SET_STATUS, &0xfu64.to_ne_bytes(), vec![]);
        let status = |vmm: &mut Vmm| vmm.say(GET_STATUS, VERSION, &[], vec![]).reply.unwrap();
        assert_eq!(status(&mut vmm), reply(GET_STATUS, 0xf));
        assert_eq!((vmm.rings(), vmm.state()), ([true, true], PortState::Up));
        let payload: &[u8] = if request == SET_STATUS { &[0; 8] } else { &[] };
        vmm.send(request, payload, vec![]);
        assert_eq!(
            (vmm.rings(), vmm.state()),
            ([false, false], PortState::Connected)
        );
        assert_eq!(status(&mut vmm), reply(GET_STATUS, 0));
        assert_eq!(vmm.session().info().features, None);
        // The memory is still there: a VMM does not hand over again what has not changed.
        vmm.send(SET_FEATURES, &features::VERSION_1.to_ne_bytes(), vec![]);
        vmm.set_up_ring(0);
        assert_eq!((vmm.rings(), vmm.state()), ([true, false], PortState::Up));
        vmm.is_refused(SET_STATUS, &256u64.to_ne_bytes(), vec![]);
    }
}

/// ADD_MEM_REG and REM_MEM_REG: guest address, size, user address, offset.
fn region(words: [u64; 4]) -> Vec<u8> {
    [0].iter()
        .chain(&words)
        .flat_map(|word| word.to_ne_bytes())
        .collect()
}

#[test]
fn memory_comes_and_goes_region_by_region() {
    let _alone = alone();
    let fds = open_fds();
    let mut vmm = Vmm::new(nic("slots"));
    vmm.negotiate(0);
    let slots = vmm
        .say(GET_MAX_MEM_SLOTS, VERSION, &[], vec![])
        .reply
        .unwrap();
    assert_eq!(slots, reply(GET_MAX_MEM_SLOTS, 64));
    let low = region([0, 0x10_0000, USER, 0]);
    let high = region([0x100_0000, 0x1000, USER + 0x100_0000, 0]);
    vmm.send(ADD_MEM_REG, &low, vec![memory(0x10_0000)]);
    (0..2).for_each(|ring| vmm.set_up_ring(ring));
    assert_eq!((vmm.rings(), vmm.state()), ([true, true], PortState::Up));
    // The second time is QEMU's for another pair of queues.
    for _ in 0..2 {
        vmm.send(ADD_MEM_REG, &high, vec![memory(0x1000)]);
        assert_eq!((vmm.rings(), vmm.state()), ([true, true], PortState::Up));
    }
    // What the rings lie in goes and comes back, which is acknowledged, and they run again.
    let outcome = vmm.say(REM_MEM_REG, NEED_REPLY, &low, vec![event()]);
    assert_eq!(
        (outcome.reply, outcome.close),
        (Some(reply(REM_MEM_REG, 0)), false)
    );
    assert_eq!(vmm.rings(), [false, false]);
    (0..2).for_each(|_| vmm.send(REM_MEM_REG, &high, vec![]));
    vmm.send(ADD_MEM_REG, &high, vec![memory(0x1000)]);
    assert_eq!(vmm.rings(), [false, false]);
    vmm.send(ADD_MEM_REG, &low, vec![memory(0x10_0000)]);
    assert_eq!((vmm.rings(), vmm.state()), ([true, true], PortState::Up));
    drop(vmm);
    assert_eq!(open_fds(), fds);
}

#[test]
fn regions_that_cannot_be_end_the_session() {
    let _alone = alone();
    let fds = open_fds();
    let low = region([0, 0x10_0000, USER, 0]);
    let cases = [
        (ADD_MEM_REG, region([0, 0, USER, 0]), true),
        (
            ADD_MEM_REG,
            region([0x8_0000, 0x10_0000, USER + 0x100_0000, 0]),
            true,
        ),
        (ADD_MEM_REG, region([0x100_0000, 0x10_0000, USER, 0]), true),
        (
            ADD_MEM_REG,
            region([0x100_0000, 0x20_0000, USER + 0x100_0000, 0]),
            true,
        ),
        (
            ADD_MEM_REG,
            region([0x100_0000, 0x10_0000, USER + 0x100_0000, u64::MAX]),
            true,
        ),
    ];
    for (request, payload, file) in cases {
        let mut vmm = Vmm::new(nic("slots"));
        vmm.negotiate(0);
        vmm.send(ADD_MEM_REG, &low, vec![memory(0x10_0000)]);
        vmm.is_refused(
            request,
            &payload,
            file.then(|| memory(0x10_0000)).into_iter().collect(),
        );
    }
    let mut vmm = Vmm::new(nic("slots"));
    vmm.negotiate(0);
    for slot in 0..64u64 {
        let at = slot * 0x1000;
        vmm.send(
            ADD_MEM_REG,
            &region([at, 0x1000, USER + at, 0]),
            vec![memory(0x1000)],
        );
    }
    let next = region([0x10_0000, 0x1000, USER + 0x10_0000, 0]);
    vmm.is_refused(ADD_MEM_REG, &next, vec![memory(0x1000)]);
    drop(vmm);
    assert_eq!(open_fds(), fds);
}

/// A message, its flags, payload and kinds of descriptors.
type Words = (u32, u32, Vec<u8>, Vec<u8>);

fn any_message() -> impl Strategy<Value = Words> {
    let payload = prop_oneof![
        Just(vec![]),
        any::<[u8; 8]>().prop_map(|bytes| bytes.to_vec()),
        (
            0u32..7,
            prop_oneof![Just(0u32), Just(1), Just(64), Just(256), any::<u32>()]
        )
            .prop_map(|(ring, value)| pair(ring, value)),
        (0u32..7, 0u64..0x20_0000).prop_map(|(ring, at)| addresses(ring, USER + at * 16)),
        (0u64..9, 0u64..0x20_0000, 0u64..4).prop_map(|(count, size, gap)| {
            let regions: Vec<[u64; 4]> = (0..count)
                .map(|at| [at * size, size, USER + at * (size + gap), 0])
                .collect();
            table(&regions)
        }),
        Just(features::VERSION_1.to_ne_bytes().to_vec()),
        Just(
            (features::VERSION_1 | features::PROTOCOL_FEATURES)
                .to_ne_bytes()
                .to_vec()
        ),
        Just(protocol::OFFERED.to_ne_bytes().to_vec()),
        (0u64..4, 0u64..0x20_0000).prop_map(|(at, size)| region([
            at * 0x10_0000,
            size,
            USER + at * 0x10_0000,
            0
        ])),
        (0u32..300, prop::collection::vec(any::<u8>(), 0..20))
            .prop_map(|(offset, bytes)| span(offset, &bytes)),
        prop::collection::vec(any::<u8>(), 0..300),
    ];
    let flags = prop_oneof![8 => Just(VERSION), 8 => Just(NEED_REPLY), 1 => any::<u32>()];
    (
        0u32..45,
        flags,
        payload,
        prop::collection::vec(0u8..3, 0..9),
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Whatever is said in whatever order, on top of a session that runs or not: no panic, nothing
    /// leaked, and a port only while a ring runs.
    #[test]
    fn any_words_in_any_order(
        running in any::<bool>(), words in prop::collection::vec(any_message(), 1..40),
    ) {
        let _alone = alone();
        let fds = open_fds();
        let mut vmm = Vmm::new(NicOptions {
            pairs: 3,
            ..nic("any")
        });
        if running {
            vmm.set_up(0);
            (2..4).for_each(|ring| vmm.set_up_ring(ring));
        }
        for (request, flags, payload, kinds) in words {
            let fd = |kind| match kind {
                0 => event(),
                1 => memory(0x10_0000),
                _ => File::open("/dev/null").unwrap().into(),
            };
            let bytes = message(request, flags, &payload);
            let Some(outcome) =
                vmm.try_say(&bytes, kinds.into_iter().map(fd).collect()) else { break };
            for port in vmm.switch.lock().ports.values() {
                let state = port.info();
                prop_assert!(state.receiveq.is_some() || state.transmitq.is_some());
            }
            if outcome.close {
                break;
            }
            if vmm.state() == PortState::Up {
                prop_assert!(vmm.has_port());
            }
            vmm.switch.turn();
        }
        drop(vmm);
        prop_assert_eq!(open_fds(), fds);
    }
}
