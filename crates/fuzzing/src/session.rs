//! Target `session`: messages of hostile VMMs, with descriptors of all kinds, and frames in
//! between.
//!
//! Promises: no message or order of messages does more than end its own session; ports are handed
//! over and taken back in turn; a reply is a message, and so is what comes on the channel to a VMM;
//! the memory of the guest beside is untouched; after the last session has ended no port of it is
//! left.
//!
//! Input: steps of two VMMs, each a byte (its top bit says which VMM) and what the step takes: see
//! [`Vmm::step`].

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use io::frame::Batch;
use io::port::Port;
use io::vhost::channel::Channel;
use io::vhost::features::{self, protocol};
use io::vhost::message::{HEADER_LEN, Reader};
use io::vhost::request::*;
use io::vhost::session::{Outcome, Session};
use io::vhost::{NicOptions, PortKey, PortSink, PortState};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::MemfdFlags;
use testkit::vhost_frontend::{message, pair};
use wire::Mac;

use crate::input::Input;
use crate::witness::{EVERYTHING, Witness};

const STEPS_MAX: usize = 200;
const PAIRS: u16 = 3;
const MEMORY: u64 = 64 << 10;
const USER: u64 = 0x7f00_0000_0000;

/// Where a log begins in its file, and how long that is.
const LOG_AT: u64 = 100;
const LOG_FILE: u64 = 8192;

/// Ports by session and queue pair.
type Ports = BTreeMap<(PortKey, u16), Port>;

#[derive(Default)]
struct Switch(Mutex<Ports>);

impl Switch {
    fn ports(&self) -> MutexGuard<'_, Ports> {
        self.0.lock().expect("no panic before this one")
    }

    /// Every port's frames go to every other port and to the witness.
    fn turn(&self, witness: &mut Witness) {
        let mut ports = self.ports();
        let mut batch = Batch::new();
        let keys: Vec<(PortKey, u16)> = ports.keys().copied().collect();
        for from in &keys {
            let source = ports.get_mut(from).expect("a port that was there");
            let _ = source.receive(&mut batch);
            for (_, target) in ports.iter_mut().filter(|(key, _)| key.0 != from.0) {
                for index in 0..batch.len() {
                    let _ = target.transmit(&batch, index);
                }
                let _ = target.flush();
            }
            for index in 0..batch.len() {
                if batch.frames()[index].fault().is_none()
                    && let Err(error) = witness.port.transmit(&batch, index)
                {
                    assert!(Witness::may_refuse(error), "{error}");
                }
            }
            witness.receive();
            let source = ports.get_mut(from).expect("a port that was there");
            source.complete(&mut batch);
            source.arm();
            source.kicked();
            source.disarm();
            let _ = source.info();
        }
    }
}

impl PortSink for Switch {
    fn attach(&self, key: PortKey, pair: u16, port: Port) {
        assert!(
            self.ports().insert((key, pair), port).is_none(),
            "two ports for pair {pair} of {key:?}"
        );
    }

    fn detach(&self, key: PortKey, pair: u16) -> Option<Port> {
        let port = self.ports().remove(&(key, pair));
        assert!(port.is_some(), "took back a port that was not handed over");
        port
    }

    fn state(&self, _: PortKey, _: PortState) {}
}

struct Vmm {
    key: PortKey,
    nic: Arc<NicOptions>,
    /// The channel to the VMM, and the VMM's end of the pair that was offered last.
    channel: Option<Channel>,
    /// Stands still.
    now: Instant,
    far: Option<UnixStream>,
    /// The log that was offered last, and its length.
    log: Option<(File, u64)>,
    switch: Arc<Switch>,
    session: Option<Session>,
    reader: Reader,
    memory: OwnedFd,
}

/// Plays two VMMs.
pub fn session(data: &[u8]) {
    let mut input = Input::new(data);
    let switch = Arc::new(Switch::default());
    let mut witness = Witness::new(EVERYTHING);
    let mut vmms = [1, 2].map(|key| Vmm::new(PortKey(key), switch.clone()));
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        let op = input.u8();
        match op & 0x1f {
            0x1e | 0x1f => switch.turn(&mut witness),
            step => vmms[usize::from(op >> 7)].step(step, &mut input),
        }
    }
    switch.turn(&mut witness);
    for vmm in &mut vmms {
        vmm.hang_up();
    }
    assert!(switch.ports().is_empty(), "a port without a session");
    witness.check();
}

impl Vmm {
    fn new(key: PortKey, switch: Arc<Switch>) -> Vmm {
        let memory = rustix::fs::memfd_create("vmm", MemfdFlags::CLOEXEC).expect("a memfd");
        rustix::fs::ftruncate(&memory, MEMORY).expect("memory for a guest");
        let nic = NicOptions {
            name: "fuzzed".to_owned(),
            network: None,
            mac: Mac([2, 0, 0, 0, 0, 1]),
            mtu: Some(1500),
            offloads: true,
            link_up: true,
            pairs: PAIRS,
            missing_pages: Default::default(),
            page_helper: None,
        };
        Vmm {
            key,
            nic: Arc::new(nic),
            channel: None,
            now: Instant::now(),
            far: None,
            log: None,
            switch,
            session: None,
            reader: Reader::new(),
            memory,
        }
    }

    fn step(&mut self, step: u8, input: &mut Input) {
        let ring = u32::from(input.u8()) % (2 * u32::from(PAIRS) + 1);
        match step {
            // Anything at all.
            0 => {
                let (request, flags) = (u32::from(input.u8()), u32::from(input.u8()));
                let payload = input.piece();
                let fds = self.descriptors(input);
                self.say(&message(request, flags, payload), fds);
            }
            1 => {
                let fds = self.descriptors(input);
                self.say(input.piece(), fds);
            }
            2 => self.number(SET_FEATURES, features::offered(&self.nic) & input.u64()),
            3 => self.number(SET_PROTOCOL_FEATURES, protocol::OFFERED & input.u64()),
            4 => self.memory_table(input),
            5 => self.send(SET_VRING_NUM, &pair(ring, 1 << (input.u8() % 17)), vec![]),
            6 => self.send(SET_VRING_BASE, &pair(ring, input.u16().into()), vec![]),
            7 => {
                let mut payload = pair(ring, u32::from(input.u8() == 0xff));
                let mut place = 0;
                for _ in 0..3 {
                    place = u64::from(input.u16()) * 2;
                    payload.extend((USER + place).to_ne_bytes());
                }
                // Where the log has it: inside of it, behind it, or at the end of all addresses.
                let log = if ring == 1 {
                    0u64.wrapping_sub(place)
                } else {
                    place
                };
                payload.extend(log.to_ne_bytes());
                self.send(SET_VRING_ADDR, &payload, vec![]);
            }
            8 => self.ring_fd(SET_VRING_KICK, ring, input),
            9 => self.ring_fd(SET_VRING_CALL, ring, input),
            10 => self.ring_fd(SET_VRING_ERR, ring, input),
            11 => self.send(
                SET_VRING_ENABLE,
                &pair(ring, u32::from(input.u8() & 3)),
                vec![],
            ),
            12 => self.send(GET_VRING_BASE, &pair(ring, 0), vec![]),
            13 => self.number(NET_SET_MTU, input.u16().into()),
            14 => self.number(SEND_RARP, input.u64()),
            15 => {
                let plain = [
                    GET_FEATURES,
                    GET_PROTOCOL_FEATURES,
                    GET_QUEUE_NUM,
                    SET_OWNER,
                    RESET_OWNER,
                ];
                self.send(plain[usize::from(input.u8()) % plain.len()], &[], vec![]);
            }
            16..=20 => self.write(input),
            21 => self.cut_short(u64::from(input.u8() % 17) << 12),
            22 => self.hang_up(),
            23 => self.set_up(input.u64(), input.u8()),
            24 => self.offer_chain(ring, input),
            25 => self.offer_channel(input),
            26 => self.change_link(),
            27 => self.say_on_channel(input),
            28 => {
                let mut payload = [input.u16().into(), u32::from(input.u8()), 0]
                    .map(u32::to_ne_bytes)
                    .concat();
                payload.resize(12 + usize::from(payload[4]), 0);
                self.send(GET_CONFIG, &payload, vec![]);
            }
            29 => self.offer_log(input),
            _ => self.send(step.into(), &[], vec![]),
        }
    }

    /// What an honest VMM says first, all of it.
    fn set_up(&mut self, features: u64, choice: u8) {
        self.number(SET_PROTOCOL_FEATURES, protocol::OFFERED);
        self.number(
            SET_FEATURES,
            features::offered(&self.nic) & (features | features::VERSION_1),
        );
        let mut table = 1u64.to_ne_bytes().to_vec();
        for word in [0, MEMORY, USER, 0] {
            table.extend(word.to_ne_bytes());
        }
        let fd = self.memory.try_clone().expect("a duplicate");
        self.send(SET_MEM_TABLE, &table, vec![fd]);
        // All pairs, or the first: the rings of two pairs share their memory.
        let rings = if choice & 0x80 != 0 {
            2 * u32::from(PAIRS)
        } else {
            2
        };
        for ring in 0..rings {
            let at = USER + u64::from(ring % 2) * 0x4000;
            self.send(SET_VRING_NUM, &pair(ring, 1 << (choice % 8)), vec![]);
            self.send(SET_VRING_BASE, &pair(ring, 0), vec![]);
            let mut payload = pair(ring, 0);
            for place in [at, at + 0x2000, at + 0x1000, 0] {
                payload.extend(place.to_ne_bytes());
            }
            self.send(SET_VRING_ADDR, &payload, vec![]);
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
            self.send(SET_VRING_ENABLE, &pair(ring, 1), vec![]);
        }
    }

    /// A descriptor and an available entry where [`set_up`](Self::set_up) has put the rings.
    fn offer_chain(&mut self, ring: u32, input: &mut Input) {
        let at = u64::from(ring % 2) * 0x4000;
        let (index, addr, len) = (input.u8() % 128, input.u16(), input.u16());
        let (flags, next) = (input.u8() & 7, input.u8() % 128);
        let bytes = testkit::ring_driver::queue::descriptor(
            addr.into(),
            len.into(),
            flags.into(),
            next.into(),
        );
        self.write_at(at + 16 * u64::from(index), &bytes);
        let avail = input.u8();
        self.write_at(
            at + 0x1004 + 2 * u64::from(avail % 128),
            &u16::from(index).to_le_bytes(),
        );
        self.write_at(at + 0x1002, &(u16::from(avail) + 1).to_le_bytes());
    }

    fn offer_channel(&mut self, input: &mut Input) {
        let kind = input.u8();
        let fd = if kind < 0xe0 {
            let (near, far) = UnixStream::pair().expect("a pair of sockets");
            far.set_nonblocking(true).expect("a socket of ours");
            self.far = Some(far);
            near.into()
        } else {
            self.descriptor(kind)
        };
        self.send(SET_BACKEND_REQ_FD, &[], vec![fd]);
    }

    /// A log of written pages in the middle of a file, which it may be too small for.
    fn offer_log(&mut self, input: &mut Input) {
        let (size, choice) = (u64::from(input.u8() % 8), input.u8());
        self.check_log();
        let file =
            File::from(rustix::fs::memfd_create("log", MemfdFlags::CLOEXEC).expect("a memfd"));
        file.set_len(LOG_FILE).expect("room for a log");
        let fd = match choice {
            0xf0.. => self.descriptor(choice),
            _ => file.try_clone().expect("a duplicate").into(),
        };
        self.log = Some((file, size));
        let payload = [size.to_ne_bytes(), LOG_AT.to_ne_bytes()].concat();
        match choice & 3 {
            0 => self.send(SET_LOG_FD, &[], vec![event()]),
            _ => self.send(SET_LOG_BASE, &payload, vec![fd]),
        }
        if choice & 4 != 0 {
            self.number(
                SET_FEATURES,
                features::offered(&self.nic) & !features::RING_PACKED,
            );
        }
    }

    /// Nothing was written beside the last log.
    fn check_log(&mut self) {
        let Some((file, size)) = self.log.take() else {
            return;
        };
        let mut bytes = vec![0; LOG_FILE as usize];
        file.read_exact_at(&mut bytes, 0).expect("a file of ours");
        bytes[LOG_AT as usize..(LOG_AT + size) as usize].fill(0);
        assert!(
            bytes.iter().all(|byte| *byte == 0),
            "written beside the log"
        );
    }

    /// The operator takes the link down, or up again.
    fn change_link(&mut self) {
        let mut nic = NicOptions::clone(&self.nic);
        nic.link_up = !nic.link_up;
        self.nic = Arc::new(nic);
        let Some(session) = &mut self.session else {
            return;
        };
        if session.change(&self.nic)
            && session.reads_config()
            && let Some(channel) = &mut self.channel
            && channel.config_changed(session.has_acks()).is_err()
        {
            self.channel = None;
        }
    }

    /// The VMM reads what it was told, says something, perhaps what is waited for, and perhaps
    /// hangs up.
    fn say_on_channel(&mut self, input: &mut Input) {
        let choice = input.u8();
        let Some(far) = &mut self.far else { return };
        let mut told = Vec::new();
        if choice & 1 != 0 {
            let _ = far.read_to_end(&mut told);
            for message in told.chunks(HEADER_LEN) {
                assert_eq!(
                    message[..4],
                    2u32.to_ne_bytes(),
                    "a message of another kind"
                );
                assert_eq!(message[8..], [0; 4], "a part of a message");
            }
        }
        let ack = [2u32, 5, 8, 0, 0].map(u32::to_ne_bytes).concat();
        let said = if choice & 6 == 0 { input.piece() } else { &ack };
        let _ = far.write(said);
        if choice & 0x80 != 0 {
            self.far = None;
        }
        for _ in 0..=said.len() {
            if let Some(channel) = &mut self.channel
                && channel.read().is_err()
            {
                self.channel = None;
            }
        }
    }

    fn memory_table(&mut self, input: &mut Input) {
        let count = usize::from(input.u8() % 9);
        let mut payload = (count as u64).to_ne_bytes().to_vec();
        let mut fds = Vec::new();
        for index in 0..count {
            let choice = input.u8();
            let mut words = [
                index as u64 * MEMORY,
                MEMORY,
                USER + index as u64 * MEMORY,
                0,
            ];
            for (bit, word) in words.iter_mut().enumerate() {
                match choice >> (2 * bit) & 3 {
                    1 => *word = u64::from(input.u8()) << 9,
                    2 => *word = word.wrapping_sub(u64::from(input.u8())),
                    3 => *word = input.u64(),
                    _ => {}
                }
                payload.extend(word.to_ne_bytes());
            }
            fds.push(self.descriptor(if choice == 0xff { input.u8() } else { 0 }));
        }
        self.send(SET_MEM_TABLE, &payload, fds);
    }

    fn ring_fd(&mut self, request: u32, ring: u32, input: &mut Input) {
        let choice = input.u8();
        let (none, kind) = (choice & 1 != 0, choice >> 1);
        let fds = if none {
            vec![]
        } else {
            vec![self.descriptor(if kind < 64 { 1 } else { kind })]
        };
        self.number_with(request, u64::from(ring) | u64::from(none) << 8, fds);
    }

    fn descriptors(&self, input: &mut Input) -> Vec<OwnedFd> {
        (0..input.u8() % 11)
            .map(|_| self.descriptor(input.u8()))
            .collect()
    }

    fn descriptor(&self, kind: u8) -> OwnedFd {
        match kind % 4 {
            0 => self.memory.try_clone().expect("a duplicate"),
            1 => event(),
            2 => rustix::pipe::pipe().expect("a pipe").0,
            _ => File::open("/dev/null").expect("a file").into(),
        }
    }

    fn number(&mut self, request: u32, value: u64) {
        self.number_with(request, value, vec![]);
    }

    fn number_with(&mut self, request: u32, value: u64, fds: Vec<OwnedFd>) {
        self.send(request, &value.to_ne_bytes(), fds);
    }

    fn send(&mut self, request: u32, payload: &[u8], fds: Vec<OwnedFd>) {
        self.say(&message(request, 9, payload), fds);
    }

    /// Says bytes as the server would read them; hangs up when it would.
    fn say(&mut self, bytes: &[u8], mut fds: Vec<OwnedFd>) {
        let session = self
            .session
            .get_or_insert_with(|| Session::new(self.key, self.nic.clone(), self.switch.clone()));
        let mut rest = bytes;
        let mut close = false;
        while !rest.is_empty() && !close {
            let space = self.reader.space();
            let count = space.len().min(rest.len());
            assert!(count > 0, "a reader without space");
            space[..count].copy_from_slice(&rest[..count]);
            rest = &rest[count..];
            match self.reader.filled(count, std::mem::take(&mut fds)) {
                Ok(None) => {}
                Ok(Some(message)) => {
                    close = answered(session.handle(message, self.now));
                    if let Some(socket) = session.take_channel() {
                        self.channel = Some(Channel::new(socket));
                    }
                }
                Err(error) => {
                    session.unreadable(error);
                    close = true;
                }
            }
            let _ = session.info();
        }
        if close {
            self.hang_up();
        }
    }

    fn hang_up(&mut self) {
        if let Some(session) = self.session.take() {
            session.end();
        }
        self.check_log();
        self.reader = Reader::new();
        (self.channel, self.far) = (None, None);
        assert!(
            !self.switch.ports().keys().any(|(key, _)| *key == self.key),
            "a port without a session"
        );
    }

    fn write(&mut self, input: &mut Input) {
        let at = u64::from(input.u16());
        let len = usize::from(input.u8());
        self.write_at(at, input.take(len));
    }

    /// Into the file, which is the guest's memory.
    fn write_at(&mut self, at: u64, bytes: &[u8]) {
        let len = bytes.len().min((MEMORY - at.min(MEMORY)) as usize);
        rustix::io::pwrite(self.memory.as_fd(), &bytes[..len], at).expect("room in a memfd");
    }

    fn cut_short(&mut self, len: u64) {
        rustix::fs::ftruncate(&self.memory, len).expect("a memfd without seals");
    }
}

/// True when the connection is to be closed.
fn answered(outcome: Outcome) -> bool {
    if let Some(reply) = outcome.reply {
        let said = u32::from_ne_bytes(reply[8..HEADER_LEN].try_into().expect("four bytes"));
        assert_eq!(
            reply.len(),
            HEADER_LEN + said as usize,
            "a reply of another length"
        );
    }
    outcome.close
}

fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd")
}
