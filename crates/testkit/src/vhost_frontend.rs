//! A VMM without a machine: the frontend's side of vhost-user, over a real socket.
//!
//! With a [`Guest`] it makes a complete guest in the test's own process: the frontend negotiates
//! and hands over memory and rings in QEMU's order, the guest drives the rings. Everything below
//! [`Frontend::send`] can also be said by hand, in any order, with any length and any descriptors.
//! Waits are bounded by [`PATIENCE`].

use crate::PATIENCE;
use std::io::{self, ErrorKind, IoSlice, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use ::io::guest_memory::RegionSpec;
use ::io::vhost::features::{self, protocol};
use ::io::vhost::request::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags};
use sys::fd_message;

use crate::ring_driver::Guest;
use crate::ring_driver::queue::Queue;

const VERSION: u32 = 1;
const NEED_REPLY: u32 = 1 << 3;
const REPLY: u32 = 1 << 2;

/// A ring as a VMM describes it; addresses are the VMM's.
#[derive(Debug)]
pub struct RingSpec<'a> {
    /// Entries.
    pub size: u16,
    /// The descriptor table.
    pub descriptors: u64,
    /// The available ring.
    pub available: u64,
    /// The used ring.
    pub used: u64,
    /// Where the backend is notified.
    pub kick: BorrowedFd<'a>,
    /// Where the backend notifies.
    pub call: BorrowedFd<'a>,
}

/// A connection to a vhost-user backend.
#[derive(Debug)]
pub struct Frontend {
    socket: UnixStream,
    reply_ack: bool,
}

impl Frontend {
    /// Connects to the backend's socket.
    pub fn connect(path: &Path) -> io::Result<Frontend> {
        Frontend::over(UnixStream::connect(path)?)
    }

    /// Takes the connection that a backend in client mode makes; bounded by [`PATIENCE`].
    pub fn accept(listener: &UnixListener) -> io::Result<Frontend> {
        let wait = Timespec {
            tv_sec: PATIENCE.as_secs() as i64,
            tv_nsec: 0,
        };
        if poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&wait))? == 0 {
            return Err(ErrorKind::TimedOut.into());
        }
        Frontend::over(listener.accept()?.0)
    }

    fn over(socket: UnixStream) -> io::Result<Frontend> {
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        Ok(Frontend {
            socket,
            reply_ack: false,
        })
    }

    /// Takes what the backend offers of `wanted` and of REPLY_ACK, MQ and NET_MTU, in QEMU's order;
    /// gives the virtio features taken. Without [`features::PROTOCOL_FEATURES`] in `wanted` as an
    /// old VMM does.
    pub fn negotiate(&mut self, wanted: u64) -> io::Result<u64> {
        let taken = self.get(GET_FEATURES)? & wanted;
        if taken & features::PROTOCOL_FEATURES != 0 {
            let offered = self.get(GET_PROTOCOL_FEATURES)?;
            let protocol = offered & (protocol::REPLY_ACK | protocol::MQ | protocol::NET_MTU);
            self.set(SET_PROTOCOL_FEATURES, protocol)?;
            self.reply_ack = protocol & protocol::REPLY_ACK != 0;
            if protocol & protocol::MQ != 0 {
                self.get(GET_QUEUE_NUM)?;
            }
        }
        self.call(SET_OWNER, &[], &[])?;
        self.set(SET_FEATURES, taken)?;
        Ok(taken)
    }

    /// Hands over the guest's memory and starts both rings, where the guest's driver is in them;
    /// `bases` is what SET_VRING_BASE says of the ring to receive from and the one to transmit on.
    pub fn start(&mut self, guest: &Guest, bases: [u16; 2]) -> io::Result<()> {
        self.set_memory(guest)?;
        for (index, queue) in [&guest.receiveq, &guest.transmitq].into_iter().enumerate() {
            self.start_ring(index as u32, queue, bases[index])?;
        }
        self.enable(2)
    }

    /// Hands over the memory and starts both rings of a guest of any other kind: the ring it
    /// receives from, and the one it transmits on. Where the driver is in them `bases` says.
    pub fn start_with(
        &mut self,
        memory: &[RegionSpec],
        rings: [RingSpec<'_>; 2],
        bases: [u16; 2],
    ) -> io::Result<()> {
        self.memory_table(memory)?;
        for (index, ring) in rings.into_iter().enumerate() {
            self.ring_table(index as u32, ring, bases[index].into())?;
        }
        self.enable(2)
    }

    /// Hands over the memory and starts the rings, from their beginning, of a guest with several
    /// queue pairs, each of them a [`Guest`] in a place of its own.
    pub fn start_pairs(&mut self, pairs: &[Guest]) -> io::Result<()> {
        let memory: Vec<RegionSpec> = pairs.iter().flat_map(Guest::regions).collect();
        self.memory_table(&memory)?;
        let rings = pairs
            .iter()
            .flat_map(|pair| [&pair.receiveq, &pair.transmitq]);
        for (index, queue) in rings.enumerate() {
            self.start_ring(index as u32, queue, 0)?;
        }
        self.enable(2 * pairs.len() as u32)
    }

    /// SET_VRING_ENABLE for so many rings, where the protocol has it.
    fn enable(&mut self, rings: u32) -> io::Result<()> {
        if self.reply_ack {
            for index in 0..rings {
                self.ring(SET_VRING_ENABLE, index, 1)?;
            }
        }
        Ok(())
    }

    /// SET_MEM_TABLE.
    pub fn set_memory(&mut self, guest: &Guest) -> io::Result<()> {
        self.memory_table(&guest.regions())
    }

    fn memory_table(&mut self, regions: &[RegionSpec]) -> io::Result<()> {
        let (payload, fds) = table(regions);
        self.call(SET_MEM_TABLE, &payload, &fds)
    }

    /// POSTCOPY_ADVISE: gives the descriptor by which the memory's pages are waited for.
    pub fn advise(&mut self) -> io::Result<OwnedFd> {
        self.send(POSTCOPY_ADVISE, &[], &[])?;
        let mut bytes = [0; 12];
        let received = fd_message::receive(&self.socket, &mut bytes, 1, RecvFlags::empty())?;
        if bytes[..] != message(POSTCOPY_ADVISE, VERSION | REPLY, &[])[..] {
            let what = format!("{bytes:02x?} is no reply to POSTCOPY_ADVISE");
            return Err(io::Error::new(ErrorKind::InvalidData, what));
        }
        let fd = received.fds.into_iter().next();
        fd.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "no descriptor came along"))
    }

    /// Hands over memory whose pages are still elsewhere, of one region, after POSTCOPY_LISTEN:
    /// gives where the backend has it. It may be touched after [`watched`](Frontend::watched).
    pub fn set_arriving_memory(&mut self, guest: &Guest) -> io::Result<u64> {
        self.say_arriving_memory(guest)?;
        self.arriving_memory(guest)
    }

    /// The first half of that.
    pub fn say_arriving_memory(&mut self, guest: &Guest) -> io::Result<()> {
        let regions = guest.regions();
        let (payload, fds) = table(&regions);
        self.send(SET_MEM_TABLE, &payload, &fds)
    }

    /// The second half of it: the answer.
    pub fn arriving_memory(&mut self, guest: &Guest) -> io::Result<u64> {
        let regions = guest.regions();
        let (payload, _) = table(&regions);
        let mut bytes = vec![0; 12 + payload.len()];
        self.socket.read_exact(&mut bytes)?;
        let said = message(SET_MEM_TABLE, VERSION | REPLY, &payload);
        let address = 12 + 8 + 16..12 + 8 + 24;
        let same = |range: std::ops::Range<usize>| bytes[range.clone()] == said[range];
        if !same(0..address.start) || !same(address.end..said.len()) {
            let what = format!("{bytes:02x?} is no reply to SET_MEM_TABLE");
            return Err(io::Error::new(ErrorKind::InvalidData, what));
        }
        let word = bytes[address].try_into().expect("eight bytes");
        Ok(u64::from_ne_bytes(word))
    }

    /// The memory is watched from now on.
    pub fn watched(&mut self) -> io::Result<()> {
        self.send(SET_MEM_TABLE, &0u64.to_ne_bytes(), &[])
    }

    /// POSTCOPY_END.
    pub fn end_post_copy(&mut self) -> io::Result<()> {
        match self.get(POSTCOPY_END)? {
            0 => Ok(()),
            code => Err(io::Error::other(format!("POSTCOPY_END: {code}"))),
        }
    }

    /// Describes a ring and starts it; it may still have to be enabled. Of a packed ring `base` is
    /// what the driver knows.
    pub fn start_ring(&mut self, index: u32, queue: &Queue, base: u16) -> io::Result<()> {
        let base = match queue.is_packed() {
            true => queue.base(),
            false => base.into(),
        };
        let (kick, call) = (queue.kick_fd(), queue.call_fd());
        let ring = RingSpec {
            size: queue.size,
            descriptors: queue.user_addr(queue.desc_at),
            available: queue.user_addr(queue.avail_at),
            used: queue.user_addr(queue.used_at),
            kick: kick.as_fd(),
            call: call.as_fd(),
        };
        self.ring_table(index, ring, base)
    }

    fn ring_table(&mut self, index: u32, ring: RingSpec<'_>, base: u32) -> io::Result<()> {
        self.ring(SET_VRING_NUM, index, ring.size.into())?;
        self.ring(SET_VRING_BASE, index, base)?;
        let mut addresses = pair(index, 0);
        for address in [ring.descriptors, ring.used, ring.available, 0] {
            addresses.extend(address.to_ne_bytes());
        }
        self.call(SET_VRING_ADDR, &addresses, &[])?;
        self.ring_fd(SET_VRING_KICK, index, ring.kick)?;
        self.ring_fd(SET_VRING_CALL, index, ring.call)
    }

    /// Stops both rings as QEMU does; gives where they were.
    pub fn stop(&mut self) -> io::Result<[u16; 2]> {
        let mut bases = [0; 2];
        for (index, base) in bases.iter_mut().enumerate() {
            if self.reply_ack {
                self.ring(SET_VRING_ENABLE, index as u32, 0)?;
            }
            *base = self.vring_base(index as u32)?;
        }
        Ok(bases)
    }

    /// GET_VRING_BASE: stops a ring.
    pub fn vring_base(&mut self, index: u32) -> io::Result<u16> {
        self.packed_base(index).map(|base| base as u16)
    }

    /// GET_VRING_BASE: stops a packed ring, whose answer has two halves: where the device takes and
    /// where it gives back.
    pub fn packed_base(&mut self, index: u32) -> io::Result<u32> {
        self.send(GET_VRING_BASE, &pair(index, 0), &[])?;
        let reply = self.reply(GET_VRING_BASE)?;
        Ok((u64::from_ne_bytes(reply) >> 32) as u32)
    }

    /// Asks for a number.
    pub fn get(&mut self, request: u32) -> io::Result<u64> {
        self.send(request, &[], &[])?;
        self.reply(request).map(u64::from_ne_bytes)
    }

    /// Sends a request whose payload is a number, acknowledged if possible.
    pub fn set(&mut self, request: u32, value: u64) -> io::Result<()> {
        self.call(request, &value.to_ne_bytes(), &[])
    }

    /// Sends a request whose payload is a ring and a number, acknowledged if possible.
    pub fn ring(&mut self, request: u32, index: u32, value: u32) -> io::Result<()> {
        self.call(request, &pair(index, value), &[])
    }

    /// Hands over a ring's descriptor, acknowledged if possible.
    pub fn ring_fd(&mut self, request: u32, index: u32, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.call(request, &u64::from(index).to_ne_bytes(), &[fd])
    }

    /// Sends a request that has no reply of its own. With REPLY_ACK it is waited for, and `Err` of
    /// [`ErrorKind::PermissionDenied`] says that the backend has refused it.
    pub fn call(&mut self, request: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        if !self.reply_ack {
            return self.send(request, payload, fds);
        }
        self.send_bytes(&message(request, VERSION | NEED_REPLY, payload), fds)?;
        match u64::from_ne_bytes(self.reply(request)?) {
            0 => Ok(()),
            code => {
                let what = format!("{} was refused with {code}", name(request));
                Err(io::Error::new(ErrorKind::PermissionDenied, what))
            }
        }
    }

    /// Sends a message that does not ask for an acknowledgement.
    pub fn send(&mut self, request: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send_bytes(&message(request, VERSION, payload), fds)
    }

    /// Sends any bytes, and descriptors with the first of them.
    pub fn send_bytes(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let parts = [IoSlice::new(bytes)];
        let sent = fd_message::send(&self.socket, &parts, fds, SendFlags::empty())?;
        io::Write::write_all(&mut &self.socket, &bytes[sent..])
    }

    /// The reply to `request`: eight bytes of payload, which all replies have.
    pub fn reply(&mut self, request: u32) -> io::Result<[u8; 8]> {
        let mut bytes = [0; 20];
        self.socket.read_exact(&mut bytes)?;
        let mut payload = [0; 8];
        payload.copy_from_slice(&bytes[12..]);
        if bytes[..12] != message(request, VERSION | REPLY, &payload)[..12] {
            let what = format!("{bytes:02x?} is no reply to {}", name(request));
            return Err(io::Error::new(ErrorKind::InvalidData, what));
        }
        Ok(payload)
    }

    /// Takes all protocol features that are offered, which [`negotiate`](Frontend::negotiate) does
    /// not.
    pub fn take_everything(&mut self) -> io::Result<()> {
        let offered = self.get(GET_PROTOCOL_FEATURES)?;
        self.set(SET_PROTOCOL_FEATURES, offered)?;
        self.reply_ack = offered & protocol::REPLY_ACK != 0;
        Ok(())
    }

    /// Reads a part of the device's configuration space; empty when there is none.
    pub fn config(&mut self, offset: u32, len: usize) -> io::Result<Vec<u8>> {
        let mut payload = [offset, len as u32, 0].map(u32::to_ne_bytes).concat();
        payload.resize(12 + len, 0);
        self.send(GET_CONFIG, &payload, &[])?;
        let mut header = [0; 12];
        self.socket.read_exact(&mut header)?;
        let got = u32::from_ne_bytes(header[8..].try_into().expect("four bytes")) as usize;
        payload.resize(got, 0);
        self.socket.read_exact(&mut payload)?;
        let expected = message(GET_CONFIG, VERSION | REPLY, &payload);
        if header != expected[..12] || got < 12 {
            let what = format!("{header:02x?} is no reply to GET_CONFIG");
            return Err(io::Error::new(ErrorKind::InvalidData, what));
        }
        Ok(payload.split_off(12))
    }

    /// Gives the backend a way to ask, and has the other end of it.
    pub fn channel(&mut self) -> io::Result<UnixStream> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_read_timeout(Some(PATIENCE))?;
        self.call(SET_BACKEND_REQ_FD, &[], &[theirs.as_fd()])?;
        Ok(ours)
    }

    /// Waits until the backend has closed the connection; true if nothing was left to be read
    /// before that.
    pub fn wait_closed(&mut self) -> io::Result<bool> {
        let mut byte = [0; 1];
        match self.socket.read(&mut byte) {
            Ok(count) => Ok(count == 0),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// The socket, for what is not foreseen here.
    pub fn socket(&self) -> &UnixStream {
        &self.socket
    }
}

/// A memory table, and its files.
fn table(regions: &[RegionSpec]) -> (Vec<u8>, Vec<BorrowedFd<'_>>) {
    let mut payload = (regions.len() as u64).to_ne_bytes().to_vec();
    let words = regions.iter().flat_map(RegionSpec::numbers);
    payload.extend(words.flat_map(u64::to_ne_bytes));
    let fds = regions.iter().map(|region| region.fd.as_fd());
    (payload, fds.collect())
}

/// A message's bytes.
pub fn message(request: u32, flags: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in [request, flags, payload.len() as u32] {
        bytes.extend(word.to_ne_bytes());
    }
    bytes.extend_from_slice(payload);
    bytes
}

/// The payload of requests about a ring.
pub fn pair(index: u32, value: u32) -> Vec<u8> {
    [index.to_ne_bytes(), value.to_ne_bytes()].concat()
}
