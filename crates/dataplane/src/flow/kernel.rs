//! Flows between two kernel devices of this host, or from one of them to another host, whose
//! packets the kernel may forward itself once the path has let them pass: containers' interfaces,
//! and the program `bpf/cable.bpf.c` at them.
//!
//! # Theory of operation
//!
//! **One judge.** The program decides nothing. A direction of a flow is *entered* under all that
//! its packets look like (the sender's device, both MAC and IP addresses, protocol, ports), and
//! then *permitted* by the worker whose fast path has just let a packet of that direction pass: by
//! a mark in memory that the program and all workers share. Packets that find an entry with the
//! mark in force go to the receiver's device; all others come up, as before. What may be permitted
//! is only what the fast path lets pass without a look at anything but the flow: TCP amid its
//! connection, UDP where no packet changes the state; between NICs without limits, sniffers and
//! captures. Who sends from another device, MAC or address makes another key and finds nothing.
//!
//! **The mark** is the *tag* of the entry, of which no two uses of one place have the same, and the
//! *generation* in force. [`Switch`](crate::Switch) raises the generation before it hands a view to
//! the workers, whatever differs in it: a snapshot, or a capture. So each change has every
//! direction come up again, where it is decided anew, and is permitted again by a store to memory.
//! A packet that a processor is just passing on when the generation is raised arrives as one would
//! that was delivered a moment before.
//!
//! **To other hosts** the program puts in front of a packet what the path would, and sends it by
//! the uplink: what is entered has the outer headers, made for one next hop and this flow. Another
//! underlay raises the generation, too, and its hops have other [numbers](crate::underlay),
//! so that each direction is entered anew with the headers of then. Where a machine was only
//! *learnt* to be, it is permitted for as long as the fast path relies on that, and then looked
//! for again. What goes to uplinks that are captured, in a VLAN or not the kernel's is the
//! workers', as is what wants an outer checksum over all of it.
//!
//! **From other hosts** it takes packets out of their outer headers where a program is at the
//! uplink that sees them before the worker does: at tc ingress of one that is joined by a packet
//! socket ([`Switch::set_kernel_device`](crate::Switch::set_kernel_device) says which). Their
//! direction is entered with the uplink, the network, and the endpoints of the outer packet: the
//! host that the worker has taken the packet from, and our address by which that is reached. Else
//! all is as above, and what is relied on of where the sender was learnt to be, too.
//!
//! **A state that changes** ([`Flows::set_state`](super::Flows)) takes the marks of both directions
//! away, before and behind, and so does the end of a flow. Before a state is looked at by a segment
//! that may change it, and before a flow is taken to have been idle, what the kernel has seen is
//! *folded* in: frames and bytes into the flow's, the NICs' and the rules' counters, the time of
//! the last packet, and how far each side of TCP has come. Else that is done twice a second, and
//! whenever flows are listed.
//!
//! **Who does what.** A worker asks, through a ring of its own that may be full, for a direction
//! that has sent [`ENOUGH`] frames to be entered; a thread of the daemon, which owns the
//! [`KernelFlowTable`], chooses a place and enters it in the kernel's map ([`KernelMap`]), and
//! tells the worker. A flow that ends marks its place; the thread takes it out of the map and gives
//! the place to others. All places taken, a full map or a full ring cost speed alone. Workers make
//! no system call for any of it but one: who asks while the thread [rests](KernelFlows::rest),
//! since nobody has asked for a while, wakes it.
//!
//! **Idle.** A direction that was silent for as long as the shortest timeout comes up, as one does
//! that may be over: the path knows its timeout, and permits it again or begins another flow.
//!
//! **Nobody there.** The program passes nothing when the daemon has not said for
//! [`GOOD_FOR_NS`] that it is there: a daemon that was killed leaves no way that it cannot close.
//!
//! When a direction is permitted, its next packets overtake those of it that are still on their way
//! by the worker. That is once a flow, and once after each change.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::Duration;

use bytemuck::allocation::zeroed_slice_box;
use foldhash::fast::RandomState;
use sys::bpf_array::BpfArray;
use wire::parse::{mac_bits, protocol::TCP};
use wire::vxlan::{self, Outer};
use wire::{Mac, Vni};

use super::entry::{Entry, FlowId, NONE};
use super::key::{Key, Side};
use super::table::FlowTable;
use super::tcp;
use super::timeouts::SHORTEST_SECS;
use crate::counters::Counters;
use crate::ids::{MAX_PORTS, MAX_UPLINKS, PortSlot, RuleSlot};
use crate::time::Now;
use crate::underlay::ReadyHop;

/// Connections that the kernel may be told of at the most.
pub const CONNECTIONS_MAX: u32 = 1 << 20;
/// Frames of a direction before it is entered: what is over after a few costs nothing more.
pub const ENOUGH: u64 = 10;
/// How long a word of the daemon's is good for, nanoseconds.
pub const GOOD_FOR_NS: u64 = 2_000_000_000;

/// A direction that was silent for so long comes up again: `KERNEL_IDLE_NS` of bpf/cable.h. (A
/// test compares what this file and that one have.)
const IDLE_NS: u64 = SHORTEST_SECS as u64 * 1_000_000_000;

/// Directions of one worker that wait to be entered.
const ASKS: usize = 1024;
/// Connections that are folded in one turn of a worker.
const FOLD_STEP: usize = 256;

/// Numbers of a direction's state: `struct kernel_state` of bpf/cable.h.
pub const STATE_NUMBERS: usize = 8;
const MARK: usize = 0;
const TERMS: usize = 1;
const FRAMES: usize = 2;
const BYTES: usize = 3;
const LAST_NS: usize = 4;
const END_ACK: usize = 5;
const EDGE: usize = 6;
const UNTIL: usize = 7;

/// Numbers of `struct kernel_force`.
pub const FORCE_NUMBERS: usize = 2;
const GENERATION: usize = 0;
const UNTIL_NS: usize = 1;

/// Phases of a place: free, chosen by the [`KernelFlowTable`], a flow's, no flow's any more.
const FREE: u8 = 0;
const CHOSEN: u8 = 1;
const HELD: u8 = 2;
const GONE: u8 = 3;

/// Memory that the program maps too, or a test's stand-in.
#[derive(Debug)]
pub enum KernelMemory {
    /// Of a BPF array.
    Map(BpfArray),
    /// Nobody else's.
    Own(Box<[AtomicU64]>),
}

impl KernelMemory {
    fn numbers(&self) -> &[AtomicU64] {
        match self {
            KernelMemory::Map(array) => array.numbers(),
            KernelMemory::Own(numbers) => numbers,
        }
    }
}

/// What the workers, the daemon's threads and the kernel's program share.
#[derive(Debug)]
pub struct KernelFlows {
    states: KernelMemory,
    force: KernelMemory,
    in_force: Mutex<InForce>,
    phases: Box<[AtomicU8]>,
    /// By place, as the phases.
    connections: Box<[Connection]>,
    /// The index of the device on the host of each NIC and uplink, by slot; 0: none that a program
    /// is at.
    devices: Box<[AtomicU32]>,
    held: AtomicU32,
    refused: AtomicU64,
    /// The thread that enters directions, and whether it rests.
    thread: OnceLock<Thread>,
    rests: AtomicBool,
}

/// The generation that is good, unless nothing is permitted.
#[derive(Default, Debug)]
struct InForce {
    generation: u32,
    closed: bool,
}

/// The connection that has a place: what is known of it beside its states.
#[derive(Default, Debug)]
struct Connection {
    flow: AtomicU32,
    tag: AtomicU32,
    /// Frames and bytes of the kernel's that are folded already, by side.
    folded: [[AtomicU64; 2]; 2],
    /// Between which devices each side is entered, as [`pair`] has them; 0: it is not.
    entered: [AtomicU64; 2],
    /// To which MAC address, as a number.
    macs: [AtomicU64; 2],
    /// From which.
    sources: [AtomicU64; 2],
    /// By which uplink, and in how many bytes of outer headers, as [`pair`] has them; 0: to a NIC
    /// of this host.
    wires: [AtomicU64; 2],
}

/// The devices of a direction as one number: of one to another host, the hop's is the second; of
/// one from there, it is the first.
fn pair(from: u32, to: u32) -> u64 {
    u64::from(from) << 32 | u64::from(to)
}

/// What the kernel has seen of a direction since the last fold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Seen {
    frames: u64,
    bytes: u64,
    last_ms: u32,
    end: u32,
    ack: u32,
    edge: u32,
}

impl Connection {
    fn is_entered(&self, side: Side, devices: u64, [to, from]: [Mac; 2]) -> bool {
        self.entered[side & 1].load(Ordering::Acquire) == devices
            && self.macs[side & 1].load(Ordering::Relaxed) == mac_bits(to)
            && self.sources[side & 1].load(Ordering::Relaxed) == mac_bits(from)
    }
}

impl KernelFlows {
    /// For so many connections: `states` has two states for each, one behind the other.
    pub fn new(states: KernelMemory, force: KernelMemory) -> Arc<KernelFlows> {
        let count = (states.numbers().len() / (2 * STATE_NUMBERS)).min(CONNECTIONS_MAX as usize);
        Arc::new(KernelFlows {
            states,
            force,
            in_force: Mutex::default(),
            phases: zeroed_slice_box(count),
            connections: (0..count).map(|_| Connection::default()).collect(),
            devices: zeroed_slice_box(MAX_PORTS + MAX_UPLINKS),
            held: AtomicU32::new(0),
            refused: AtomicU64::new(0),
            thread: OnceLock::new(),
            rests: AtomicBool::new(false),
        })
    }

    /// Said by the thread that updates the [`KernelFlowTable`], always the same one, before an
    /// update behind which it is going to [park](Self::park): the next worker that asks for
    /// something, also meanwhile, wakes it, and no other one does.
    pub fn rest(&self) {
        self.thread.get_or_init(std::thread::current);
        self.rests.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Parks that thread, so long at the most; not if a worker has asked since it began to rest.
    /// That it was unparked then may be forgotten: channels, too, park who waits for them.
    pub fn park(&self, longest: Duration) {
        if self.rests.load(Ordering::SeqCst) {
            std::thread::park_timeout(longest);
        }
    }

    /// Unparks that thread if it [rests](Self::rest).
    pub(crate) fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.rests.load(Ordering::Relaxed)
            && self.rests.swap(false, Ordering::SeqCst)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    /// How many connections there is room for.
    pub fn max(&self) -> u32 {
        self.connections.len() as u32
    }

    /// How many the kernel is told of.
    pub fn len(&self) -> u32 {
        self.held.load(Ordering::Relaxed)
    }

    /// It is told of none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Directions that were not entered for want of a place, or since the kernel did not take them.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// What is permitted stays so until then, on the monotonic clock.
    pub fn extend(&self, until_ns: u64) {
        if let Some(number) = self.force.numbers().get(UNTIL_NS) {
            number.store(until_ns, Ordering::Relaxed);
        }
    }

    /// Nothing is permitted any more, for good.
    pub fn close(&self) {
        self.put_in_force(|now| now.closed = true);
    }

    /// What is permitted from now on is again.
    pub fn reopen(&self) {
        self.put_in_force(|now| now.closed = false);
    }

    /// Nothing that was permitted before is any more. Gives the generation that is in force now.
    pub(crate) fn raise(&self) -> u32 {
        self.put_in_force(|now| {
            now.generation = match now.generation.wrapping_add(1) {
                0 => 1,
                next => next,
            };
        })
    }

    /// Changes what is in force, and gives the generation. Programs are told under the lock: of two
    /// changes the later one is what they hear last.
    fn put_in_force(&self, change: impl FnOnce(&mut InForce)) -> u32 {
        // Each change leaves it whole.
        let mut now = self.in_force.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut now);
        if let Some(number) = self.force.numbers().get(GENERATION) {
            let generation = if now.closed { 0 } else { now.generation };
            number.store(generation.into(), Ordering::SeqCst);
        }
        now.generation
    }

    /// The index of a NIC's or an uplink's device; 0: none.
    #[inline]
    fn device(&self, slot: PortSlot) -> u32 {
        let device = self.devices.get(slot.0 as usize);
        device.map_or(0, |device| device.load(Ordering::Relaxed))
    }

    /// Gives true if that is another one than before.
    pub(crate) fn set_device(&self, slot: PortSlot, ifindex: u32) -> bool {
        let device = self.devices.get(slot.0 as usize);
        device.is_some_and(|device| device.swap(ifindex, Ordering::Relaxed) != ifindex)
    }

    fn state(&self, place: u32, side: Side) -> Option<&[AtomicU64]> {
        let start = (2 * place as usize + (side & 1)) * STATE_NUMBERS;
        self.states.numbers().get(start..start + STATE_NUMBERS)
    }

    fn connection(&self, place: u32) -> Option<&Connection> {
        self.connections.get(place as usize)
    }

    /// Takes what the kernel has seen and nobody has folded. `None`: nothing.
    fn claim(&self, place: u32, side: Side) -> Option<Seen> {
        let state = self.state(place, side)?;
        let number = |at: usize| state[at].load(Ordering::Relaxed);
        let [frames, bytes] = &self.connection(place)?.folded[side & 1];
        let (now_frames, now_bytes) = (number(FRAMES), number(BYTES));
        if frames.load(Ordering::Relaxed) == now_frames
            && bytes.load(Ordering::Relaxed) == now_bytes
        {
            return None;
        }
        let more = |folded: &AtomicU64, now: u64| {
            let before = folded.fetch_max(now, Ordering::Relaxed);
            now.saturating_sub(before)
        };
        let (end, ack) = halves(number(END_ACK));
        Some(Seen {
            frames: more(frames, now_frames),
            bytes: more(bytes, now_bytes),
            last_ms: (number(LAST_NS) / 1_000_000) as u32,
            end,
            ack,
            edge: halves(number(EDGE)).0,
        })
    }

    /// A flow takes a place that was chosen for it.
    fn begin(&self, place: u32, id: FlowId) -> bool {
        let Some(own) = self.connection(place) else {
            return false;
        };
        for side in 0..2 {
            // What was counted before was of another flow.
            self.claim(place, side);
            self.end_permit(place, side);
        }
        own.flow.store(id, Ordering::Relaxed);
        let taken = self.move_on(place, CHOSEN, HELD);
        if taken {
            self.held.fetch_add(1, Ordering::Relaxed);
        }
        taken
    }

    /// A flow leaves its place, which comes back to the [`KernelFlowTable`].
    fn end(&self, place: u32) {
        for side in 0..2 {
            self.end_permit(place, side);
        }
        if self.move_on(place, HELD, GONE) {
            self.held.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn move_on(&self, place: u32, from: u8, to: u8) -> bool {
        let phase = self.phases.get(place as usize);
        phase.is_some_and(|phase| {
            let moved = phase.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
            moved.is_ok()
        })
    }

    #[inline]
    fn end_permit(&self, place: u32, side: Side) {
        // Whatever is there: another worker's mark may not be seen yet.
        if let Some(state) = self.state(place, side) {
            state[MARK].store(0, Ordering::SeqCst);
        }
    }
}

/// Two 32-bit numbers that lie behind each other in memory.
fn halves(number: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = number.to_ne_bytes();
    (
        u32::from_ne_bytes([a, b, c, d]),
        u32::from_ne_bytes([e, f, g, h]),
    )
}

fn joined(first: u32, second: u32) -> u64 {
    let ([a, b, c, d], [e, f, g, h]) = (first.to_ne_bytes(), second.to_ne_bytes());
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

/// A worker's part.
pub(crate) struct KernelPart {
    shared: Arc<KernelFlows>,
    counters: Arc<Counters>,
    asks: SyncSender<Ask>,
    /// The one of the view in force.
    generation: u32,
    /// Places of flows that this worker has given them to.
    folding: Vec<u32>,
    fold_at: usize,
    fold_due: usize,
}

/// A worker wants a direction to be entered.
#[derive(Debug)]
pub(crate) struct Ask {
    id: FlowId,
    key: Key,
    side: Side,
    devices: u64,
    /// Destination and source.
    macs: [Mac; 2],
    wire: Option<Wire>,
    /// The NIC whose connection it is.
    charged: PortSlot,
}

/// How a direction goes to another host, or comes from there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wire {
    uplink: PortSlot,
    /// The uplink's interface.
    device: u32,
    outer: KernelOuter,
    /// It comes from there, in this network.
    from: Option<Vni>,
}

/// A direction that was entered.
#[derive(Clone, Debug)]
pub(crate) struct Entered {
    place: u32,
    id: FlowId,
    key: Key,
    side: Side,
    devices: u64,
    /// Destination and source.
    macs: [u64; 2],
    wire: u64,
}

impl Entered {
    pub fn place(&self) -> u32 {
        self.place
    }
}

/// A direction that may be permitted.
pub(crate) struct Offer<'a> {
    pub id: FlowId,
    pub entry: &'a Entry,
    /// The flow's state when that was looked at.
    pub state: u8,
    pub side: Side,
    /// The sender's slot and MAC address, and the receiver's.
    pub from: (PortSlot, Mac),
    pub to: (Way<'a>, Mac),
    pub max_frame: u32,
    /// So long it may be relied on, on the monotonic clock.
    pub until_ns: u64,
}

/// Where a direction leads.
#[derive(Clone, Copy)]
pub(crate) enum Way<'a> {
    /// To a NIC of this host.
    Near(PortSlot),
    /// To another host.
    Far {
        hop: &'a ReadyHop,
        vni: Vni,
        /// What the flow is called on the wire.
        hash: u32,
        /// See [`KernelOuter::dscp`].
        dscp: Option<u8>,
    },
    /// From another host to a NIC of this one.
    Back {
        /// The way to that host, by the uplink that its packets come by.
        hop: &'a ReadyHop,
        vni: Vni,
        to: PortSlot,
    },
}

impl Way<'_> {
    fn wire(&self) -> Option<Wire> {
        let (hop, vni, mut headers, port, dscp, from) = match *self {
            Way::Near(_) => return None,
            Way::Far {
                hop,
                vni,
                hash,
                dscp,
            } => (hop, vni, hop.outer, vxlan::source_port(hash), dscp, None),
            Way::Back { hop, vni, .. } => (hop, vni, hop.back, 0, None, Some(vni)),
        };
        headers.set_flow(vni, port, 0);
        Some(Wire {
            uplink: hop.uplink,
            device: hop.device,
            outer: KernelOuter { headers, dscp },
            from,
        })
    }
}

impl Offer<'_> {
    /// Destination and source.
    fn macs(&self) -> [Mac; 2] {
        [self.to.1, self.from.1]
    }
}

impl KernelPart {
    /// The NIC, or the uplink, has a device that a program is at.
    #[inline]
    pub fn serves(&self, slot: PortSlot) -> bool {
        self.shared.device(slot) != 0
    }

    /// A program is at this device of an uplink.
    #[inline]
    pub fn is_at(&self, uplink: PortSlot, device: u32) -> bool {
        device != 0 && self.shared.device(uplink) == device
    }

    /// A packet of this direction has just passed by the fast path: permits those that follow, or
    /// asks for the direction to be entered.
    pub fn offer(&self, offer: &Offer, now: Now) {
        let own = || self.shared.device(offer.from.0);
        let devices = match &offer.to.0 {
            Way::Near(slot) => pair(own(), self.shared.device(*slot)),
            Way::Far { hop, .. } => pair(own(), hop.id),
            Way::Back { hop, to, .. } => pair(hop.id, self.shared.device(*to)),
        };
        let (entry, side) = (offer.entry, offer.side);
        let place = entry.kernel.get().checked_sub(1);
        if let Some(place) = place
            && let Some(own) = self.shared.connection(place)
            && own.is_entered(side, devices, offer.macs())
        {
            self.permit(place, offer, devices, now);
            return;
        }
        // Not more often than every two seconds.
        let asked = now.secs() as u8 | 1;
        if entry.sides[side].asked.get() == asked {
            return;
        }
        let ask = Ask {
            id: offer.id,
            key: entry.key(),
            side,
            devices,
            macs: offer.macs(),
            wire: offer.to.0.wire(),
            charged: entry.charged(),
        };
        if self.ask(ask) {
            entry.sides[side].asked.set(asked);
        }
    }

    /// False: the ring is full.
    fn ask(&self, ask: Ask) -> bool {
        let is_taken = self.asks.try_send(ask).is_ok();
        if is_taken {
            self.shared.wake();
        }
        is_taken
    }

    /// Another worker may change the flow's state or end it meanwhile: it takes the mark away
    /// behind that, and here is looked behind the mark whether that has happened. One of the two
    /// sees the other (each has a fence between its store and its load).
    fn permit(&self, place: u32, offer: &Offer, devices: u64, now: Now) {
        let Offer {
            entry,
            side,
            max_frame,
            until_ns,
            ..
        } = *offer;
        let (Some(state), Some(own)) = (
            self.shared.state(place, side),
            self.shared.connection(place),
        ) else {
            return;
        };
        let tag = own.tag.load(Ordering::Acquire);
        let mark = u64::from(tag) << 32 | u64::from(self.generation);
        let is_so = |number: usize, value: u64| state[number].load(Ordering::Relaxed) == value;
        let last_ns = state[LAST_NS].load(Ordering::Relaxed);
        let idle = now.mono_ns.saturating_sub(last_ns) >= IDLE_NS;
        if is_so(MARK, mark) && is_so(UNTIL, until_ns) && !idle {
            return;
        }
        // Who still has the place has it by this tag, and not by the next use's.
        let is_as_it_was = || {
            entry.kernel.get() == place + 1
                && entry.state.get() == offer.state
                && own.is_entered(side, devices, offer.macs())
        };
        if !is_as_it_was() {
            return;
        }
        // What the program would still write to what is stored here were lost.
        self.shared.end_permit(place, side);
        self.fold(entry);
        let mine = &entry.sides[side];
        state[TERMS].store(
            joined(max_frame, mine.scale.get().into()),
            Ordering::Relaxed,
        );
        state[END_ACK].store(joined(mine.end.get(), mine.ack.get()), Ordering::Relaxed);
        state[EDGE].store(joined(mine.edge.get(), 0), Ordering::Relaxed);
        state[UNTIL].store(until_ns, Ordering::Relaxed);
        state[LAST_NS].store(now.mono_ns, Ordering::Relaxed);
        state[MARK].store(mark, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if !is_as_it_was() {
            let _ = state[MARK].compare_exchange(mark, 0, Ordering::SeqCst, Ordering::Relaxed);
        }
    }

    /// Takes over what the kernel has seen of a flow.
    pub fn fold(&self, entry: &Entry) {
        if let Some(place) = entry.kernel.get().checked_sub(1) {
            self.fold_place(place, entry);
        }
    }

    fn fold_place(&self, place: u32, entry: &Entry) {
        for side in 0..2 {
            let Some(seen) = self.shared.claim(place, side) else {
                continue;
            };
            let (mine, other) = (&entry.sides[side], &entry.sides[1 - side]);
            mine.count(seen.frames, seen.bytes);
            if (seen.last_ms.wrapping_sub(mine.last_ms.get()) as i32) > 0 {
                mine.touch(seen.last_ms);
            }
            if entry.protocol() == TCP {
                tcp::follow_seen(mine, seen.end, seen.ack, seen.edge);
            }
            let (mut from, mut to) = (PortSlot(mine.slot.get()), PortSlot(other.slot.get()));
            let (mut received, mut delivered) = (seen.bytes, seen.bytes);
            let own = self.shared.connection(place);
            let wire = own.map_or(0, |own| own.wires[side & 1].load(Ordering::Relaxed));
            if wire != 0 {
                let uplink = PortSlot((wire >> 32) as u32);
                let outer = seen.frames * (wire & 0xffff_ffff);
                if from.remote_of().is_some() {
                    from = uplink;
                    received += outer;
                } else {
                    to = uplink;
                    delivered += outer;
                }
            }
            self.counters.received(from, seen.frames, received);
            self.counters.delivered_all(to, seen.frames, delivered);
            self.counters.kernel_forwarded(from, seen.frames);
            for rule in mine.rules().into_iter().filter(|rule| *rule != NONE) {
                let rule = RuleSlot(rule);
                self.counters.rule_passed(rule, seen.frames, seen.bytes);
            }
        }
    }

    /// No packet of a flow is forwarded any more before the path has let another one pass.
    #[inline]
    pub fn withdraw(&self, entry: &Entry) {
        if let Some(place) = entry.kernel.get().checked_sub(1) {
            for side in 0..2 {
                self.shared.end_permit(place, side);
            }
        }
    }

    /// A flow is over.
    #[cold]
    pub fn leave(&self, entry: &Entry) {
        let mark = entry.kernel.get();
        let Some(place) = mark.checked_sub(1) else {
            return;
        };
        // One of those who try; see `permit`.
        if entry.kernel.change(mark, 0) {
            fence(Ordering::SeqCst);
            for side in 0..2 {
                self.shared.end_permit(place, side);
            }
            self.fold_place(place, entry);
            self.shared.end(place);
        }
    }

    /// Another view is in force; what was folded before was under the one before.
    pub fn set_generation(&mut self, generation: u32) {
        self.generation = generation;
    }

    /// Directions that were entered. Gives the places that no flow took.
    pub fn take_entered(&mut self, table: &FlowTable, all: &[Entered]) -> Vec<u32> {
        let mut refused = Vec::new();
        for one in all {
            let entry = table.entry(one.id);
            let mark = one.place + 1;
            let there = entry.is(&one.key) && !entry.is_out();
            let mine = there && entry.kernel.get() == mark;
            let takes = || {
                if !there || !entry.kernel.change(0, mark) {
                    return false;
                }
                let begun = self.shared.begin(one.place, one.id);
                if !begun {
                    entry.kernel.set(0);
                }
                begun
            };
            if !mine && !takes() {
                refused.push(one.place);
                continue;
            }
            if !mine {
                self.folding.push(one.place);
            }
            // What has gone another way counts for that.
            self.fold(entry);
            if let Some(own) = self.shared.connection(one.place) {
                let [to, from] = one.macs;
                own.macs[one.side & 1].store(to, Ordering::Relaxed);
                own.sources[one.side & 1].store(from, Ordering::Relaxed);
                own.wires[one.side & 1].store(one.wire, Ordering::Relaxed);
                own.entered[one.side & 1].store(one.devices, Ordering::Release);
            }
        }
        refused
    }

    /// It is time to fold all.
    pub fn begin_fold(&mut self) {
        self.fold_due = self.folding.len();
    }

    /// Something is still to be folded.
    pub fn has_work(&self) -> bool {
        self.fold_due > 0
    }

    /// Folds some, or all at once.
    pub fn fold_some(&mut self, table: &FlowTable, all: bool) {
        let step = match all {
            true => self.folding.len(),
            false => self.fold_due.min(FOLD_STEP),
        };
        self.fold_due = self.fold_due.saturating_sub(step);
        for _ in 0..step {
            if self.fold_at >= self.folding.len() {
                self.fold_at = 0;
            }
            let Some(&number) = self.folding.get(self.fold_at) else {
                return;
            };
            let place = self.shared.connection(number);
            let id = place.map_or(NONE, |place| place.flow.load(Ordering::Relaxed));
            if id < table.high() && table.entry(id).kernel.get() == number + 1 {
                let entry = table.entry(id);
                self.fold(entry);
                if !entry.is_out() {
                    self.fold_at += 1;
                    continue;
                }
                // Another worker took it out while it was given its place.
                self.leave(entry);
            }
            self.folding.swap_remove(self.fold_at);
        }
    }
}

/// What the packets of a direction look like: `struct kernel_key` of bpf/cable.h.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct KernelKey {
    /// The index of the sender's device, or of an uplink's.
    pub device: u32,
    /// Ethernet's destination and source.
    pub macs: [Mac; 2],
    /// IP's source.
    pub from: IpAddr,
    /// IP's destination, of the same family.
    pub to: IpAddr,
    /// Source and destination port.
    pub ports: [u16; 2],
    /// TCP or UDP, as in the IP header.
    pub protocol: u8,
    /// The network of what comes by an uplink; `None`: a NIC has sent it.
    pub vni: Option<Vni>,
}

/// What is entered for them: `struct kernel_flow` of bpf/cable.h.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KernelFlow {
    /// Which of the states.
    pub state: u32,
    /// Which use of it.
    pub tag: u32,
    /// The index of the receiver's device, or of an uplink's.
    pub to: u32,
    /// What is put in front of its packets, which leave by an uplink; where the key has a network,
    /// what is in front of them.
    pub outer: Option<KernelOuter>,
}

/// Outer headers as the kernel's program has them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KernelOuter {
    /// Without TOS, lengths and checksum.
    pub headers: Outer,
    /// The outer DSCP; `None`: the inner packet's.
    pub dscp: Option<u8>,
}

/// The map that the program looks packets up in.
pub trait KernelMap {
    /// Enters a direction, in the place of what was there under the key. False: it is full.
    fn enter(&mut self, key: &KernelKey, flow: &KernelFlow) -> bool;
    /// Takes one out.
    fn leave(&mut self, key: &KernelKey);
}

/// What is entered in the kernel's map, kept by one thread of the daemon.
#[derive(Debug)]
pub struct KernelFlowTable {
    shared: Arc<KernelFlows>,
    asks: Vec<Receiver<Ask>>,
    free: VecDeque<u32>,
    flows: HashMap<[u64; Key::WORDS], u32, RandomState>,
    entries: HashMap<KernelKey, (u32, Side), RandomState>,
    records: Vec<Record>,
    /// Places by the NIC whose connections have them.
    held: HashMap<PortSlot, u32, RandomState>,
}

/// What is entered of one place.
#[derive(Clone, Copy, Default, Debug)]
struct Record {
    flow: [u64; Key::WORDS],
    keys: [Option<KernelKey>; 2],
    /// `None`: the place is free.
    charged: Option<PortSlot>,
}

impl KernelFlowTable {
    /// An empty one for so many workers, and the workers' parts.
    pub(crate) fn new(
        shared: &Arc<KernelFlows>,
        counters: impl Iterator<Item = Arc<Counters>>,
    ) -> (KernelFlowTable, Vec<KernelPart>) {
        let (parts, asks) = counters
            .map(|counters| {
                let (asks, ring) = sync_channel(ASKS);
                let part = KernelPart {
                    shared: shared.clone(),
                    counters,
                    asks,
                    generation: 0,
                    folding: Vec::new(),
                    fold_at: 0,
                    fold_due: 0,
                };
                (part, ring)
            })
            .unzip();
        let table = KernelFlowTable {
            shared: shared.clone(),
            asks,
            free: (0..shared.max()).collect(),
            flows: HashMap::default(),
            entries: HashMap::default(),
            records: vec![Record::default(); shared.max() as usize],
            held: HashMap::default(),
        };
        (table, parts)
    }

    /// Takes out what is over and enters what workers have asked for since the last call. Gives how
    /// many directions that were. `notify` tells a worker what was entered, and gives the places
    /// that no flow took; its error ends the update.
    pub(crate) fn update<E>(
        &mut self,
        map: &mut impl KernelMap,
        mut notify: impl FnMut(usize, Vec<Entered>) -> Result<Vec<u32>, E>,
    ) -> Result<usize, E> {
        // What is asked for comes after what was over by then.
        let asks: Vec<Vec<Ask>> = self
            .asks
            .iter()
            .map(|ring| ring.try_iter().take(ASKS).collect())
            .collect();
        self.take_back(map);
        let mut count = 0;
        for (worker, asks) in asks.into_iter().enumerate() {
            let entered: Vec<Entered> = asks
                .iter()
                .filter_map(|ask| {
                    let entered = self.enter(ask, map);
                    let refused = u64::from(entered.is_none());
                    self.shared.refused.fetch_add(refused, Ordering::Relaxed);
                    entered
                })
                .collect();
            if entered.is_empty() {
                continue;
            }
            count += entered.len();
            for place in notify(worker, entered)? {
                // The flow was over meanwhile, and has no other direction there.
                if self.shared.move_on(place, CHOSEN, GONE) {
                    self.take_back_one(place, map);
                }
            }
        }
        Ok(count)
    }

    fn take_back(&mut self, map: &mut impl KernelMap) {
        for place in 0..self.shared.max() {
            let phase = &self.shared.phases[place as usize];
            if phase.load(Ordering::Acquire) == GONE {
                self.take_back_one(place, map);
            }
        }
    }

    fn take_back_one(&mut self, place: u32, map: &mut impl KernelMap) {
        let record = std::mem::take(&mut self.records[place as usize]);
        for (side, key) in record.keys.into_iter().enumerate() {
            if let Some(key) = key {
                self.leave(place, side, &key, map);
            }
            let own = &self.shared.connections[place as usize];
            own.entered[side].store(0, Ordering::Relaxed);
        }
        if self.flows.get(&record.flow) == Some(&place) {
            self.flows.remove(&record.flow);
        }
        if let Some(charged) = record.charged
            && let Some(held) = self.held.get_mut(&charged)
        {
            *held -= 1;
            if *held == 0 {
                self.held.remove(&charged);
            }
        }
        self.shared.phases[place as usize].store(FREE, Ordering::Release);
        self.free.push_back(place);
    }

    /// Takes a direction out, unless another flow has its key now.
    fn leave(&mut self, place: u32, side: Side, key: &KernelKey, map: &mut impl KernelMap) {
        if self.entries.get(key) == Some(&(place, side)) {
            self.entries.remove(key);
            map.leave(key);
        }
    }

    /// `None`: there is no place, or the kernel does not take it.
    fn enter(&mut self, ask: &Ask, map: &mut impl KernelMap) -> Option<Entered> {
        let place = match self.flows.get(&ask.key.words) {
            Some(place) => *place,
            None => self.choose(ask)?,
        };
        let (mut from, mut to) = ((ask.devices >> 32) as u32, ask.devices as u32);
        if let Some(wire) = &ask.wire {
            match wire.from {
                None => to = wire.device,
                Some(_) => from = wire.device,
            }
        }
        let key = KernelKey {
            device: from,
            macs: ask.macs,
            from: ask.key.address(ask.side),
            to: ask.key.address(1 - ask.side),
            ports: [ask.key.port(ask.side), ask.key.port(1 - ask.side)],
            protocol: ask.key.protocol(),
            vni: ask.wire.and_then(|wire| wire.from),
        };
        // What was permitted is not what is entered now, which only a packet that passes from here
        // on permits; `permit` looks for this behind its mark.
        let own = &self.shared.connections[place as usize];
        own.entered[ask.side & 1].store(0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.shared.end_permit(place, ask.side);
        let before = self.records[place as usize].keys[ask.side].replace(key);
        if let Some(before) = before.filter(|before| *before != key) {
            self.leave(place, ask.side, &before, map);
        }
        let flow = KernelFlow {
            state: 2 * place + ask.side as u32,
            tag: self.shared.connections[place as usize]
                .tag
                .load(Ordering::Relaxed),
            to,
            outer: ask.wire.map(|wire| wire.outer),
        };
        if from == 0 || to == 0 || !map.enter(&key, &flow) {
            self.leave(place, ask.side, &key, map);
            self.records[place as usize].keys[ask.side] = None;
            if self.shared.move_on(place, CHOSEN, GONE) {
                self.take_back_one(place, map);
            }
            return None;
        }
        self.entries.insert(key, (place, ask.side));
        Some(Entered {
            place,
            id: ask.id,
            key: ask.key,
            side: ask.side,
            devices: ask.devices,
            macs: ask.macs.map(mac_bits),
            wire: ask.wire.map_or(0, |wire| {
                pair(wire.uplink.0, wire.outer.headers.len() as u32)
            }),
        })
    }

    /// A place for a connection. A NIC has three times as many as are free at the most, so that
    /// each other one finds some however many connections one has for however long: three quarters
    /// of all where it is alone.
    fn choose(&mut self, ask: &Ask) -> Option<u32> {
        let held = self.held.get(&ask.charged).copied().unwrap_or(0);
        if held as usize >= 3 * self.free.len() {
            return None;
        }
        let place = self.free.pop_front()?;
        *self.held.entry(ask.charged).or_default() += 1;
        self.flows.insert(ask.key.words, place);
        self.records[place as usize].flow = ask.key.words;
        self.records[place as usize].charged = Some(ask.charged);
        // No two uses of a place have the same; 0 is none.
        let tag = &self.shared.connections[place as usize].tag;
        tag.store(
            tag.load(Ordering::Relaxed).wrapping_add(1).max(1),
            Ordering::Relaxed,
        );
        self.shared.phases[place as usize].store(CHOSEN, Ordering::Release);
        Some(place)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;
    use crate::flow::info::Party;
    use crate::ids::PortUid;

    fn numbers(count: usize) -> KernelMemory {
        KernelMemory::Own(zeroed_slice_box(count))
    }

    fn shared(connections: usize) -> Arc<KernelFlows> {
        let states = numbers(2 * STATE_NUMBERS * connections);
        KernelFlows::new(states, numbers(FORCE_NUMBERS))
    }

    /// The map as the kernel has it, with a bound.
    #[derive(Default)]
    struct Map(HashMap<KernelKey, KernelFlow>, usize);

    impl KernelMap for Map {
        fn enter(&mut self, key: &KernelKey, flow: &KernelFlow) -> bool {
            if self.0.len() >= self.1 && !self.0.contains_key(key) {
                return false;
            }
            self.0.insert(*key, *flow);
            true
        }

        fn leave(&mut self, key: &KernelKey) {
            self.0.remove(key);
        }
    }

    fn ask(uids: (u32, u32), port: u16, side: Side) -> Ask {
        let party = |uid: u32, last: u8, port| Party {
            uid: PortUid(uid),
            address: [10, 0, 0, last].into(),
            port,
        };
        let ends = (party(uids.0, 1, port), party(uids.1, 2, 80));
        Ask {
            id: 0,
            key: Key::between(TCP, false, ends).0,
            side,
            devices: pair(7 + side as u32, 8 - side as u32),
            macs: [Mac([2; 6]), Mac([4; 6])],
            wire: None,
            charged: PortSlot(uids.0),
        }
    }

    fn state(shared: &KernelFlows, place: u32, side: Side, frames: u64) {
        let state = shared.state(place, side).unwrap();
        state[FRAMES].fetch_add(frames, Ordering::Relaxed);
        state[BYTES].fetch_add(100 * frames, Ordering::Relaxed);
        state[LAST_NS].store(5_000_000, Ordering::Relaxed);
        state[END_ACK].store(joined(11, 12), Ordering::Relaxed);
        state[EDGE].store(joined(13, 0), Ordering::Relaxed);
    }

    /// The program's header has the same places and times.
    #[test]
    fn the_program_reads_what_is_written_here() {
        let header = include_str!("../../../../bpf/cable.h");
        let idle = format!("#define KERNEL_IDLE_NS {IDLE_NS}ull ");
        assert!(header.contains(&idle), "{idle}");
        let places = |name: &str| -> HashMap<&str, usize> {
            let (_, body) = header
                .split_once(&format!("struct {name} {{"))
                .expect("it is there");
            let body = body.split('}').next().unwrap_or_default();
            let mut at = 0;
            let fields = body.lines().filter_map(|line| {
                let (kind, rest) = line.trim().split_once(' ')?;
                let (name, _) = rest.split_once(';')?;
                let (name, count) = name.split_once('[').unwrap_or((name, "1]"));
                let size = match kind {
                    "__u64" => 8,
                    "__u32" => 4,
                    "__u8" => 1,
                    _ => return None,
                };
                let count: usize = count.trim_end_matches(']').parse().unwrap();
                let place = at;
                at += size * count;
                Some((name, place))
            });
            let mut fields: HashMap<&str, usize> = fields.collect();
            fields.insert("", at);
            fields
        };
        let expect = |name, expected: &[(&str, usize)]| {
            let found = places(name);
            for &(field, place) in expected {
                assert_eq!(found.get(field), Some(&place), "{name}.{field}");
            }
        };
        let state = [
            ("mark", 8 * MARK),
            ("max_frame", 8 * TERMS),
            ("scale", 8 * TERMS + 4),
            ("frames", 8 * FRAMES),
            ("bytes", 8 * BYTES),
            ("last_ns", 8 * LAST_NS),
            ("end", 8 * END_ACK),
            ("ack", 8 * END_ACK + 4),
            ("edge", 8 * EDGE),
            ("until_ns", 8 * UNTIL),
            ("", 8 * STATE_NUMBERS),
        ];
        expect("kernel_state", &state);
        let force = [
            ("generation", 8 * GENERATION),
            ("until_ns", 8 * UNTIL_NS),
            ("", 8 * FORCE_NUMBERS),
        ];
        expect("kernel_force", &force);
    }

    #[test]
    fn what_the_kernel_has_seen_is_claimed_once_and_by_the_flow_that_it_was_of() {
        let shared = shared(2);
        shared.phases[1].store(CHOSEN, Ordering::Relaxed);
        assert!(shared.begin(1, 9) && !shared.begin(1, 10));
        state(&shared, 1, 1, 3);
        let expected = Seen {
            frames: 3,
            bytes: 300,
            last_ms: 5,
            end: 11,
            ack: 12,
            edge: 13,
        };
        assert_eq!(shared.claim(1, 1), Some(expected));
        assert_eq!((shared.claim(1, 1), shared.claim(1, 0)), (None, None));
        // The next flow in this place begins at nothing.
        state(&shared, 1, 1, 2);
        shared.end(1);
        assert_eq!((shared.len(), shared.claim(7, 0)), (0, None));
        shared.phases[1].store(CHOSEN, Ordering::Relaxed);
        assert!(shared.begin(1, 11));
        assert_eq!(shared.claim(1, 1), None);
    }

    #[test]
    fn a_generation_ends_what_was_permitted_and_none_is_in_force_when_it_is_closed() {
        let shared = shared(1);
        let in_force = || shared.force.numbers()[GENERATION].load(Ordering::Relaxed);
        assert_eq!((shared.raise(), shared.raise(), in_force()), (1, 2, 2));
        shared.put_in_force(|now| now.generation = u32::MAX);
        assert_eq!((shared.raise(), in_force()), (1, 1), "0 is none");
        shared.close();
        assert_eq!(in_force(), 0);
        assert_eq!((shared.raise(), in_force()), (2, 0), "for good");
        shared.reopen();
        assert_eq!(in_force(), 2, "what was raised meanwhile");
    }

    #[test]
    fn who_reopens_puts_no_generation_of_before_in_force() {
        for _ in 0..1_000 {
            let shared = shared(1);
            shared.raise();
            shared.close();
            let (begin, other) = (Arc::new(Barrier::new(2)), shared.clone());
            let raises = std::thread::spawn({
                let begin = begin.clone();
                move || {
                    begin.wait();
                    other.raise()
                }
            });
            begin.wait();
            shared.reopen();
            let last = raises.join().unwrap();
            let in_force = shared.force.numbers()[GENERATION].load(Ordering::Relaxed);
            assert_eq!(in_force, u64::from(last));
        }
    }

    #[test]
    fn places_are_given_and_taken_back_and_a_key_is_of_who_entered_it_last() {
        let shared = shared(2);
        let (mut table, _) = KernelFlowTable::new(&shared, [Arc::default()].into_iter());
        let mut map = Map(HashMap::new(), 9);
        let first = table.enter(&ask((1, 2), 1000, 0), &mut map).unwrap();
        let back = table.enter(&ask((1, 2), 1000, 1), &mut map).unwrap();
        assert_eq!((first.place, back.place, map.0.len()), (0, 0, 2));
        // Another NIC with the same addresses and devices: the same packets.
        let other = table.enter(&ask((1, 3), 1000, 0), &mut map).unwrap();
        assert_eq!((other.place, map.0.len()), (1, 2));
        assert!(
            table.enter(&ask((1, 2), 1001, 0), &mut map).is_none(),
            "full"
        );
        let tag = |place: usize| shared.connections[place].tag.load(Ordering::Relaxed);
        let before = tag(0);
        shared.phases[0].store(GONE, Ordering::Relaxed);
        table.take_back(&mut map);
        let left: Vec<u32> = map.0.values().map(|flow| flow.state).collect();
        assert_eq!(left, [2], "what the other has entered stays");
        let next = table.enter(&ask((1, 2), 1001, 0), &mut map).unwrap();
        assert_eq!(next.place, 0);
        assert_ne!(tag(0), before, "nothing of before fits it");
    }

    /// Who rests is woken by the first that asks, and by nobody when it does not rest.
    #[test]
    fn who_asks_wakes_the_thread_that_rests() {
        const LONG: Duration = Duration::from_secs(60);
        const HALF: Duration = Duration::from_secs(30);
        let shared = shared(64);
        let (mut table, mut parts) = KernelFlowTable::new(&shared, [Arc::default()].into_iter());
        let part = parts.pop().unwrap();
        let (said, hears) = sync_channel(0);
        let of_thread = shared.clone();
        let thread = std::thread::spawn(move || {
            for _ in 0..100 {
                of_thread.rest();
                // What comes before it parks wakes it as well, also while it waits for the channel.
                said.send("parks").unwrap();
                of_thread.park(LONG);
                said.send("is awake").unwrap();
            }
        });
        let mut map = Map(HashMap::new(), 1000);
        for round in 0..100 {
            assert_eq!(hears.recv_timeout(HALF), Ok("parks"));
            // While it parks, or before.
            std::thread::sleep(Duration::from_micros(50 * (round % 2)));
            assert!(part.ask(ask((1, 9), 1000, 0)) && part.ask(ask((1, 9), 1001, 0)));
            assert_eq!(hears.recv_timeout(HALF), Ok("is awake"), "{round}");
            let update = table.update(&mut map, |_, _| Ok::<_, ()>(Vec::new()));
            assert_eq!(update, Ok(2));
        }
        thread.join().unwrap();
        assert!(!shared.rests.load(Ordering::SeqCst), "it was woken once");
    }

    /// A NIC asks for all places, and keeps them.
    #[test]
    fn one_nic_leaves_places_to_others() {
        let shared = shared(64);
        let (mut table, _) = KernelFlowTable::new(&shared, [Arc::default()].into_iter());
        let mut map = Map(HashMap::new(), 1000);
        let mut count = |nic: u32| {
            let asks = (1000..1100).map(|port| ask((nic, 9), port, 0));
            asks.filter(|ask| table.enter(ask, &mut map).is_some())
                .count()
        };
        assert_eq!(count(1), 48);
        assert_eq!(count(2), 12);
        assert_eq!(count(3), 3);
        assert_eq!(count(1), 48, "those that it has");
    }

    #[test]
    fn what_the_kernel_does_not_take_leaves_its_place_to_others() {
        let shared = shared(1);
        let (mut table, _) = KernelFlowTable::new(&shared, [Arc::default()].into_iter());
        let mut map = Map(HashMap::new(), 0);
        assert!(table.enter(&ask((1, 2), 1000, 0), &mut map).is_none());
        map.1 = 1;
        assert!(table.enter(&ask((1, 2), 1001, 0), &mut map).is_some());
    }
}
