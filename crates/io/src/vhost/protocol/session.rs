//! One VMM's vhost-user session as a state machine: a message comes in, a reply and a port go out.
//!
//! The session owns what the VMM has set up (features, memory, rings) whenever the port is not with
//! a worker. A NIC has one queue pair or several, each of them a port of its own ([`super::pair`]).
//! A request that changes any of it takes the ports back first that it is about, one or all
//! ([`PortSink::detach`] waits for the worker), changes their parts, and hands over new ports where
//! a ring can run: the packet path knows no lock. A ring runs when its size and addresses are
//! known, SET_VRING_KICK has started it, and it is enabled. How many pairs a guest uses is between
//! it and its VMM, which enables and disables them at any time. Reading, writing and waiting are
//! [`super::server`]'s.
//!
//! A breach of the protocol is one log line. If only the VMM can have caused it, the connection is
//! closed, since nothing it says can be relied on; what a guest can cause through an honest VMM
//! (ring sizes, ring addresses) leaves the ring stopped and the connection open, so that a reset of
//! the guest mends it.
//!
//! What a guest has left in a transmit ring that its VMM turns off is taken and dropped, as the
//! specification wants it: a guest which goes on with fewer pairs would wait for it for good.
//! Chosen: a ring that was not enabled yet is left alone, since a VMM that comes back starts rings
//! before it enables them. Error eventfds (SET_VRING_ERR) are taken and closed.

mod memory;

use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sys::allowance::Allowance;
use sys::poll::Doorbell;
use tracing::{info, warn};
use wire::Mac;

use crate::guest_memory::{GuestMemory, RegionSpec};
use crate::port::Port;
use crate::post_copy::PostCopy;
use crate::vhost::dirty_log::DirtyLog;
use crate::vhost::features::{self, protocol};
use crate::vhost::limits::SLOTS_MAX;
use crate::vhost::nic_options::NicOptions;
use crate::vhost::protocol::breach::Breach;
use crate::vhost::protocol::channel::{self, ChannelError};
use crate::vhost::protocol::log_lines::{Line, Lines};
use crate::vhost::protocol::message::{ConfigSpan, Message, MessageError, Reply, RingValue};
use crate::vhost::protocol::pair::{self, Common, Owner, Pair};
use crate::vhost::protocol::request::{self, LogSpec, Request, RingAddresses, RingFd};
use crate::vhost::protocol::ring_state::{Base, Log, RingInfo, RingState};
use crate::vhost::protocol::saved::{Copies, LeftError, Saved, SavedRing};
use crate::vhost::protocol::session::memory::PostCopyStage;
use crate::vhost::protocol::sink::{PortKey, PortSink, PortState};
use crate::vhost::virtqueue::notifier::{self, NotifyFd};

/// The most entries of a ring of either kind (virtio 1.2, sections 2.7 and 2.8.10.1).
const SIZE_MAX: u16 = 32768;

/// The longest configuration space that vhost-user knows. Behind what virtio-net defines are
/// zeroes.
const CONFIG_MAX: usize = 256;

/// How often a guest is announced: QEMU asks five times in some seconds after a migration, or as it
/// was told.
const ANNOUNCEMENTS: u32 = 16;
const ANNOUNCE_EVERY: Duration = Duration::from_millis(100);

/// How often a process that waits for pages is started for a NIC, of its sessions one after the
/// other: each is a fork, and a guest is moved here once.
const HELPERS: u32 = 8;
const HELPER_EVERY: Duration = Duration::from_secs(10);

/// Lines that the log has for one session of a VMM that does what it should not. The one with which
/// it ends comes in any case.
const COMPLAINTS: u32 = 64;

/// The smallest MTU that IPv4 works with (RFC 791), which virtio asks for too.
const MTU_MIN: u64 = 68;

/// What is to be done after a message.
#[derive(Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Bytes to be sent.
    pub reply: Option<Vec<u8>>,
    /// The connection is to be closed, after the reply.
    pub close: bool,
}

impl Outcome {
    const NOTHING: Outcome = Outcome {
        reply: None,
        close: false,
    };
}

/// A request, and what is to be said of it.
struct Asked {
    request: Request,
    number: u32,
    wants_ack: bool,
}

/// A session at one moment, for dumps.
#[derive(Clone, Debug)]
pub struct SessionInfo {
    /// How the NIC is.
    pub state: PortState,
    /// What the guest's driver has taken of [`features::offered`]; `None` before SET_FEATURES.
    pub features: Option<u64>,
    /// What the VMM has taken of [`protocol::OFFERED`].
    pub protocol_features: u64,
    /// The MTU in force, if any was offered or asked for.
    pub mtu: Option<u16>,
    /// The rings of all queue pairs up to the last that the VMM has described, and of the first in
    /// any case: of each pair the one that the guest receives from, then the one that it transmits
    /// on.
    pub rings: Vec<RingInfo>,
}

/// One connection of a VMM.
pub struct Session {
    key: PortKey,
    nic: Arc<NicOptions>,
    sink: Arc<dyn PortSink>,
    features: Option<u64>,
    protocol_features: u64,
    memory: Option<Arc<GuestMemory>>,
    post_copy: PostCopyStage,
    /// A request that needs what who waits for pages has not answered yet.
    parked: Option<Asked>,
    /// Starts of who waits for pages, of the NIC's sessions before too.
    helpers: Allowance,
    /// What goes with the next reply.
    descriptor: Option<OwnedFd>,
    /// Rung when rings can run that could not for want of pages, or a request can be followed.
    bell: Option<Doorbell>,
    /// What `memory` was made of, for the next that is added or removed, and for the record.
    regions: Vec<RegionSpec>,
    /// Descriptors of rings for the record; `None`: the session ends with the process. By pair.
    copies: Option<Vec<[Copies; pair::RINGS]>>,
    /// Where written pages are to be noted while LOG_ALL or a ring's flag is set.
    log: Option<Log>,
    /// The process before may have had a log, which did not come along: what is to be noted from
    /// now on needs another one. Every VMM that is known sends one whenever it begins to move its
    /// guest.
    log_is_gone: bool,
    /// What SET_LOG_FD has brought.
    log_call: Option<Arc<OwnedFd>>,
    /// Device status as the VMM has set it last (virtio 1.2, section 2.1).
    status: u8,
    /// The queue pairs, as many as the guest may have.
    pairs: Vec<Pair>,
    /// What NET_SET_MTU asked for.
    mtu: Option<u16>,
    /// What the guest was told last of [`NicOptions::link_up`].
    link_up: bool,
    /// What SET_BACKEND_REQ_FD has brought, until somebody takes it.
    channel: Option<OwnedFd>,
    state: PortState,
    /// Some ring has run.
    served: bool,
    unknown_logged: bool,
    announcements: Allowance,
    /// Lines left of [`COMPLAINTS`].
    complaints: u32,
    /// What else the log has of the NIC, of its sessions before too.
    lines: RefCell<Lines>,
}

impl Session {
    /// How often a NIC has who waits for pages started.
    pub(in crate::vhost) const HELPERS: Allowance = Allowance::new(HELPERS, HELPER_EVERY);

    /// A VMM has connected.
    pub fn new(key: PortKey, nic: Arc<NicOptions>, sink: Arc<dyn PortSink>) -> Self {
        let pairs = std::iter::repeat_with(Pair::default);
        let pairs = pairs.take(nic.pairs().into()).collect();
        let mut session = Session {
            link_up: nic.link_up,
            channel: None,
            key,
            nic,
            sink,
            features: None,
            protocol_features: 0,
            memory: None,
            post_copy: PostCopyStage::Off,
            parked: None,
            helpers: Session::HELPERS,
            descriptor: None,
            bell: None,
            regions: Vec::new(),
            copies: None,
            log: None,
            log_is_gone: false,
            log_call: None,
            status: 0,
            pairs,
            mtu: None,
            state: PortState::Disconnected,
            served: false,
            unknown_logged: false,
            announcements: Allowance::new(ANNOUNCEMENTS, ANNOUNCE_EVERY),
            complaints: COMPLAINTS,
            lines: RefCell::default(),
        };
        session.change_state(PortState::Connected);
        session
    }

    /// This session, of which a record can be [had](Session::saved) for the next process.
    pub(in crate::vhost) fn outliving(mut self) -> Self {
        let copies = std::iter::repeat_with(Default::default).take(self.pairs.len());
        self.copies = Some(copies.collect());
        self
    }

    /// Lines that the log has had of the NIC, for its next session.
    pub(in crate::vhost) fn lines(&self) -> Lines {
        *self.lines.borrow()
    }

    /// This session, behind one of the NIC of which the log has had so many.
    pub(in crate::vhost) fn saying(mut self, lines: Lines) -> Self {
        self.lines = RefCell::new(lines);
        self
    }

    /// What the NIC has left of starts of who waits for pages, for its next session.
    pub(in crate::vhost) fn helpers(&self) -> Allowance {
        self.helpers
    }

    /// This session, behind one of the NIC that has left so much of [`Session::HELPERS`].
    pub(in crate::vhost) fn starting(mut self, helpers: Allowance) -> Self {
        self.helpers = helpers;
        self
    }

    /// This session, which rings `bell` when [`pages_came`](Session::pages_came) or
    /// [`try_again`](Session::try_again) is to be called.
    pub(in crate::vhost) fn ringing(mut self, bell: Doorbell) -> Self {
        self.bell = Some(bell);
        self
    }

    /// Is set up as the session of a process before was, as if the VMM said all of it anew. That
    /// one may still run its rings. An error: it cannot be; a breach is in the log.
    pub(in crate::vhost) fn prepare(&mut self, saved: Saved<OwnedFd>) -> Result<(), LeftError> {
        self.link_up = saved.link_up;
        let status = u8::try_from(saved.status);
        self.status = status.map_err(|_| LeftError("has a number that cannot be"))?;
        if saved.arriving {
            let unasked = PostCopy::unasked(self.bell.clone());
            let unasked = unasked.map_err(|_| LeftError("cannot be waited for"))?;
            self.post_copy = PostCopyStage::listening(unasked);
        }
        for request in saved.into_requests() {
            if let Err(breach) = self.apply(request, Instant::now()) {
                self.log(&breach);
                return Err(LeftError("cannot be"));
            }
        }
        self.log_is_gone = true;
        Ok(())
    }

    /// Runs the rings that the process before has run; that it goes on is for the caller to say.
    pub(in crate::vhost) fn go_on(&mut self) {
        let (state, run) = self.run_rings();
        if let Err(breach) = run {
            self.log(&breach);
        }
        self.change_state(state);
        // What was given back may not have been said.
        for copies in self.copies.iter().flatten().flatten() {
            copies.raise_call();
        }
    }

    /// All that the VMM has set up, for the next process; `None`: it does not outlive this one.
    pub(in crate::vhost) fn saved(&self) -> Option<Saved<BorrowedFd<'_>>> {
        let copies = self.copies.as_ref()?;
        if self.is_logged() {
            return None;
        }
        let packed = self.is_packed();
        let known = self.pairs.iter().rposition(Pair::is_known);
        let pairs = self
            .pairs
            .iter()
            .zip(copies)
            .take(known.map_or(0, |last| last + 1));
        let rings = pairs.flat_map(|(pair, copies)| {
            let rings = pair.rings.iter().zip(copies);
            rings.map(|(ring, copies)| SavedRing {
                size: ring.size.into(),
                addresses: ring.addresses,
                // Where a ring that runs is, it shows.
                base: match ring.base {
                    Base::New => None,
                    _ if ring.started && pair.is_attached() => None,
                    base => Some(base.value(packed)),
                },
                kick: copies.kick(),
                call: copies.call(),
                started: ring.started,
                enabled: ring.enabled,
                turned_off: ring.turned_off,
            })
        });
        let regions = self.regions.iter();
        let regions = regions.map(|region| (region.numbers(), region.fd.as_fd()));
        Some(Saved {
            features: self.features,
            protocol_features: self.protocol_features,
            mtu: self.mtu.map(u64::from),
            status: self.status.into(),
            link_up: self.link_up,
            arriving: self.is_arriving(),
            regions: regions.collect(),
            rings: rings.collect(),
        })
    }

    /// Takes one message, which came at `now`. No other one may come before what it
    /// [waits](Self::waits_until) for.
    pub fn handle(&mut self, message: Message, now: Instant) -> Outcome {
        let number = message.request;
        let acks = self.protocol_features & protocol::REPLY_ACK != 0;
        let wants_ack = message.needs_reply() && acks && !request::has_reply(number);
        match Request::parse(message) {
            Ok(request) => {
                // That one is an answer itself.
                let wants_ack = wants_ack && !matches!(request, Request::MemoryWatched { .. });
                let asked = Asked {
                    request,
                    number,
                    wants_ack,
                };
                self.follow(asked, now)
            }
            Err(error) => self.finish(number, wants_ack, Err(error.into())),
        }
    }

    /// When [`try_again`](Self::try_again) is to be called, if the bell is not rung before: the
    /// last message needs what who waits for pages has not answered yet.
    pub fn waits_until(&self, now: Instant) -> Option<Instant> {
        self.parked.as_ref()?;
        let asks_again = self
            .post_copy
            .pages()
            .and_then(|pages| pages.asks_again(now));
        Some(asks_again.unwrap_or(now))
    }

    /// Takes the message that waits once more.
    pub fn try_again(&mut self, now: Instant) -> Outcome {
        match self.parked.take() {
            Some(asked) => self.follow(asked, now),
            None => Outcome::NOTHING,
        }
    }

    fn follow(&mut self, asked: Asked, now: Instant) -> Outcome {
        let done = match self.is_answered(&asked.request, now) {
            Ok(true) => self.apply(asked.request, now),
            Ok(false) => {
                self.parked = Some(asked);
                return Outcome::NOTHING;
            }
            Err(breach) => Err(breach),
        };
        self.finish(asked.number, asked.wants_ack, done)
    }

    fn finish(
        &mut self,
        number: u32,
        wants_ack: bool,
        done: Result<Option<Reply>, Breach>,
    ) -> Outcome {
        let done = match done {
            Err(breach) if breach.closes() => Err(breach),
            // Whatever was changed or refused: what can run, runs on.
            done => match self.plug() {
                // One of several steps: a ring's memory may come with the next.
                Err(_) if matches!(number, request::ADD_MEM_REG | request::REM_MEM_REG) => done,
                // Who waits for an answer is to have it.
                Err(breach) if matches!(done, Ok(Some(_))) => {
                    self.log(&breach);
                    done
                }
                plugged => plugged.and(done),
            },
        };
        match done {
            Ok(Some(reply)) => Outcome {
                reply: Some(reply.encode(number)),
                close: false,
            },
            Ok(None) => Outcome {
                reply: wants_ack.then(|| Reply::ack(true).encode(number)),
                close: false,
            },
            Err(breach) => {
                self.log(&breach);
                let reply = wants_ack.then(|| Reply::ack(false).encode(number));
                Outcome {
                    reply,
                    close: breach.closes(),
                }
            }
        }
    }

    /// The stream of messages has lost its meaning; the connection is to be closed.
    pub fn unreadable(&mut self, error: MessageError) {
        self.log(&Breach::Message(error));
    }

    /// Takes the descriptor that goes with the last reply.
    pub fn take_descriptor(&mut self) -> Option<OwnedFd> {
        self.descriptor.take()
    }

    /// Takes what is to be the channel to the VMM, if a message since the last call has brought
    /// one: then it takes the place of the one before.
    pub fn take_channel(&mut self) -> Option<OwnedFd> {
        self.channel.take()
    }

    /// A VMM is to be told at once of such options.
    pub fn is_news(&self, nic: &NicOptions) -> bool {
        self.link_up != nic.link_up
    }

    /// The NIC's options are others. What a guest was offered stays as it is until the next session
    /// (its MTU must not change at all: virtio 1.2, section 5.1.4.1), but its link goes up or down
    /// at once: true when it does.
    pub fn change(&mut self, nic: &NicOptions) -> bool {
        let is_news = self.is_news(nic);
        self.link_up = nic.link_up;
        is_news
    }

    /// The VMM reads the configuration space here, and can be told to do so again.
    pub fn reads_config(&self) -> bool {
        self.protocol_features & protocol::CONFIG != 0
    }

    /// The channel to the VMM is closed, and the VMM is told nothing any more.
    pub fn lost_channel(&self, error: ChannelError) {
        info!(
            nic = self.nic.name,
            "the channel to the VMM is closed: {error}"
        );
    }

    /// True when some ring has run: the VMM came for more than to go again.
    pub fn has_served(&self) -> bool {
        self.served
    }

    /// Messages of this side can ask for an acknowledgement.
    pub fn has_acks(&self) -> bool {
        self.protocol_features & protocol::REPLY_ACK != 0
    }

    /// The pairs whose ports are with workers.
    pub(in crate::vhost) fn attached(&self) -> impl Iterator<Item = (PortKey, u16)> {
        let pairs = (0..)
            .zip(&self.pairs)
            .filter(|(_, pair)| pair.is_attached());
        pairs.map(|(number, _)| (self.key, number))
    }

    /// Has a pair's port again that was taken from its worker (`None`: that one is stopping), and
    /// says nothing of it to anybody.
    pub(in crate::vhost) fn take_port(&mut self, pair: u16, port: Option<Port>) {
        if let Some(pair) = self.pairs.get_mut(usize::from(pair)) {
            pair.take_back(port);
        }
    }

    /// Gives the workers what they had.
    pub(in crate::vhost) fn give_ports(&mut self) {
        if let Err(breach) = self.plug() {
            self.log(&breach);
        }
    }

    /// The VMM has gone, or is to go: takes the port back and forgets everything.
    pub fn end(mut self) {
        self.unplug_all();
        self.memory = None;
        self.post_copy = PostCopyStage::Off;
        self.set_state(PortState::Disconnected);
    }

    /// It was made ready and is not to be gone on with. Of its VMM nothing is known here.
    pub(in crate::vhost) fn forget(mut self) {
        self.change_state(PortState::Disconnected);
    }

    /// For dumps.
    pub fn info(&self) -> SessionInfo {
        let known = self.pairs.iter().rposition(Pair::is_known);
        let known = known.map_or(0, |last| last + 1);
        SessionInfo {
            state: self.state.clone(),
            features: self.features,
            protocol_features: self.protocol_features,
            mtu: self.mtu(),
            rings: self.pairs[..known.max(1)]
                .iter()
                .flat_map(|pair| pair.info(self.features))
                .collect(),
        }
    }

    fn apply(&mut self, request: Request, now: Instant) -> Result<Option<Reply>, Breach> {
        match request {
            Request::GetFeatures => return Ok(Some(Reply::Number(self.offered()))),
            Request::GetProtocolFeatures => {
                let offered = protocol::offered(&self.nic);
                return Ok(Some(Reply::Number(offered)));
            }
            Request::GetQueueNum => return Ok(Some(Reply::Number(self.pairs.len() as u64))),
            Request::GetMaxMemSlots => {
                self.negotiated(protocol::CONFIGURE_MEM_SLOTS, request::GET_MAX_MEM_SLOTS)?;
                return Ok(Some(Reply::Number(SLOTS_MAX as u64)));
            }
            Request::GetConfig(span) => {
                self.negotiated(protocol::CONFIG, request::GET_CONFIG)?;
                return Ok(Some(Reply::Config(self.config(span))));
            }
            Request::GetStatus => {
                self.negotiated(protocol::STATUS, request::GET_STATUS)?;
                return Ok(Some(Reply::Number(self.status.into())));
            }
            Request::GetVringBase(ring) => return self.stop_ring(ring).map(Some),
            Request::SetFeatures(features) => self.set_features(features)?,
            Request::SetProtocolFeatures(features) => self.set_protocol_features(features)?,
            Request::SetOwner => {}
            Request::ResetOwner => self.disable_all(),
            Request::SetMemTable(regions) => return self.set_memory(regions),
            Request::MemoryWatched { request, value } => self.watched(request, value)?,
            Request::SetLogBase(log) => {
                self.set_log(log)?;
                // QEMU waits for any answer, rust-vmm for one that says that it worked.
                return Ok(Some(Reply::ack(true)));
            }
            Request::SetLogFd(call) => self.set_log_call(call)?,
            Request::SetVringNum(ring) => self.set_size(ring)?,
            Request::SetVringAddr(addresses) => self.set_addresses(addresses)?,
            Request::SetVringBase(ring) => self.set_base(ring)?,
            Request::SetVringKick(kick) => self.start_ring(kick)?,
            Request::SetVringCall(call) => self.set_call(call)?,
            Request::SetVringErr(error) => {
                self.ring_at(request::SET_VRING_ERR, error.index)?;
            }
            Request::SetVringEnable(ring) => self.set_enabled(ring)?,
            Request::SendRarp(mac) => self.announce(mac, now)?,
            Request::SetBackendReqFd(socket) => self.set_channel(socket)?,
            Request::NetSetMtu(mtu) => self.set_mtu(mtu)?,
            Request::SetConfig(ConfigSpan { offset, bytes, .. }) => {
                self.negotiated(protocol::CONFIG, request::SET_CONFIG)?;
                let len = bytes.len();
                return Err(Breach::Config { offset, len });
            }
            Request::SetStatus(status) => self.set_status(status)?,
            Request::ResetDevice => {
                self.negotiated(protocol::RESET_DEVICE, request::RESET_DEVICE)?;
                self.reset();
            }
            Request::AddMemReg(region) => return self.add_region(region),
            Request::RemMemReg(region) => self.remove_region(region)?,
            Request::PostcopyAdvise => return self.advise().map(Some),
            Request::PostcopyListen => self.listen()?,
            Request::PostcopyEnd => return self.end_post_copy().map(Some),
            Request::Other(number) if request::has_reply(number) => {
                return Err(Breach::Unanswerable { request: number });
            }
            Request::Other(number) => return Err(Breach::Unknown { request: number }),
        }
        Ok(None)
    }

    fn offered(&self) -> u64 {
        features::offered(&self.nic)
    }

    fn set_features(&mut self, features: u64) -> Result<(), Breach> {
        let surplus = features & !self.offered();
        if surplus != 0 {
            return Err(Breach::Features {
                request: request::SET_FEATURES,
                surplus,
            });
        }
        if self.features != Some(features) {
            self.unplug_all();
            self.features = Some(features);
            self.rings().for_each(RingState::memory_changed);
        }
        Ok(())
    }

    /// Whether written pages are to be noted, of buffers or of a ring.
    fn is_logged(&self) -> bool {
        let of_ring = |ring: &RingState| ring.addresses.is_some_and(|at| at.is_logged());
        let mut rings = self.pairs.iter().flat_map(|pair| &pair.rings);
        self.features
            .is_some_and(|all| all & features::LOG_ALL != 0)
            || rings.any(of_ring)
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<(), Breach> {
        let surplus = features & !protocol::offered(&self.nic);
        if surplus != 0 {
            return Err(Breach::Features {
                request: request::SET_PROTOCOL_FEATURES,
                surplus,
            });
        }
        self.protocol_features = features;
        Ok(())
    }

    fn set_log(&mut self, spec: LogSpec) -> Result<(), Breach> {
        self.negotiated(protocol::LOG_SHMFD, request::SET_LOG_BASE)?;
        let missing = self.nic.missing_pages;
        let log = DirtyLog::with(spec.fd, spec.size, spec.offset, missing);
        let log = log.map_err(Breach::Log)?;
        self.unplug_all();
        self.rings().for_each(RingState::memory_changed);
        self.log = Some(Log {
            log: Arc::new(log),
            call: self.log_call.clone(),
        });
        self.log_is_gone = false;
        Ok(())
    }

    fn set_log_call(&mut self, call: OwnedFd) -> Result<(), Breach> {
        if !notifier::is_eventfd(&call) {
            return Err(Breach::LogFd);
        }
        self.unplug_all();
        let call = Arc::new(call);
        if let Some(log) = &mut self.log {
            log.call = Some(Arc::clone(&call));
        }
        self.log_call = Some(call);
        Ok(())
    }

    fn set_status(&mut self, status: u64) -> Result<(), Breach> {
        self.negotiated(protocol::STATUS, request::SET_STATUS)?;
        self.status = u8::try_from(status).map_err(|_| Breach::Status(status))?;
        if status == 0 {
            self.reset();
        }
        Ok(())
    }

    /// The device is as after the connection was made, but for what is the VMM's and not the
    /// guest's: the memory, of which a VMM tells only what changes, and the features of the
    /// protocol.
    fn reset(&mut self) {
        self.disable_all();
        // Notification descriptors stay: a VMM sends them anew only when they change.
        self.rings().for_each(RingState::stop);
        self.features = None;
        self.status = 0;
    }

    fn announce(&mut self, mac: Mac, now: Instant) -> Result<(), Breach> {
        self.negotiated(protocol::RARP, request::SEND_RARP)?;
        let own = self.nic.mac;
        if mac != own {
            return Err(Breach::Rarp { mac, own });
        }
        if !self.announcements.take(now) {
            return Err(Breach::Announcements {
                burst: ANNOUNCEMENTS,
                every: ANNOUNCE_EVERY,
            });
        }
        self.sink.announce(self.key);
        Ok(())
    }

    fn set_channel(&mut self, socket: OwnedFd) -> Result<(), Breach> {
        self.negotiated(protocol::BACKEND_REQ, request::SET_BACKEND_REQ_FD)?;
        if !channel::is_channel(socket.as_fd()) {
            return Err(Breach::Channel);
        }
        self.channel = Some(socket);
        Ok(())
    }

    /// A part of the configuration space (virtio 1.2, section 5.1.4); nothing if it reaches behind
    /// its end. A guest is never asked to announce itself there: it would acknowledge that on the
    /// control queue, which is the VMM's.
    fn config(&self, asked: ConfigSpan) -> ConfigSpan {
        const LINK_UP: u16 = 1;
        let pairs = self.pairs.len() as u16;
        let mut space = [0; CONFIG_MAX];
        space[..6].copy_from_slice(&self.nic.mac.0);
        for (at, field) in [
            (6, u16::from(self.link_up) * LINK_UP),
            (8, pairs),
            (10, self.mtu().unwrap_or(0)),
        ] {
            space[at..at + 2].copy_from_slice(&field.to_le_bytes());
        }
        let start = asked.offset as usize;
        let part = space.get(start..start.saturating_add(asked.bytes.len()));
        ConfigSpan {
            bytes: part.unwrap_or_default().to_vec(),
            ..asked
        }
    }

    /// A request is one only with the feature that brings it.
    fn negotiated(&self, feature: u64, request: u32) -> Result<(), Breach> {
        if self.protocol_features & feature != 0 {
            return Ok(());
        }
        Err(match request::has_reply(request) {
            true => Breach::Unanswerable { request },
            false => Breach::Unknown { request },
        })
    }

    fn set_mtu(&mut self, mtu: u64) -> Result<(), Breach> {
        let max = self.nic.mtu.unwrap_or(u16::MAX);
        let fits = u16::try_from(mtu)
            .ok()
            .filter(|&mtu| mtu <= max && u64::from(mtu) >= MTU_MIN);
        let Some(mtu) = fits else {
            return Err(Breach::Mtu { mtu, max });
        };
        if self.mtu != Some(mtu) {
            self.unplug_all();
            self.mtu = Some(mtu);
        }
        Ok(())
    }

    fn mtu(&self) -> Option<u16> {
        self.mtu.or(self.nic.mtu)
    }

    /// Which pair a ring belongs to, and which of the two it is.
    fn ring_at(&self, request: u32, index: u32) -> Result<(usize, usize), Breach> {
        let (at, rings) = (index as usize, self.pairs.len() * pair::RINGS);
        if at < rings {
            return Ok((at / pair::RINGS, at % pair::RINGS));
        }
        Err(Breach::Index {
            request,
            ring: index,
            rings,
        })
    }

    /// A ring that is about to be changed: its pair's port is taken back.
    fn ring(&mut self, request: u32, index: u32) -> Result<&mut RingState, Breach> {
        let (pair, ring) = self.ring_at(request, index)?;
        self.unplug(pair);
        Ok(&mut self.pairs[pair].rings[ring])
    }

    fn rings(&mut self) -> impl Iterator<Item = &mut RingState> {
        self.pairs.iter_mut().flat_map(|pair| &mut pair.rings)
    }

    fn set_size(&mut self, RingValue { index, value }: RingValue) -> Result<(), Breach> {
        // The kind of ring may not be known yet: a split one of another size cannot run
        // (`Queue::new`).
        let split = self.features.is_some() && !self.is_packed();
        let ring = self.ring(request::SET_VRING_NUM, index)?;
        let fits = |size: &u16| (1..=SIZE_MAX).contains(size) && (!split || size.is_power_of_two());
        let size = u16::try_from(value).ok().filter(fits);
        ring.size = size.unwrap_or(0);
        size.map(|_| ()).ok_or(Breach::Size {
            ring: index,
            size: value,
        })
    }

    fn set_addresses(&mut self, addresses: RingAddresses) -> Result<(), Breach> {
        let logs = self.protocol_features & protocol::LOG_SHMFD != 0;
        let ring = self.ring(request::SET_VRING_ADDR, addresses.index)?;
        if addresses.is_logged() && !logs {
            return Err(Breach::Logging {
                ring: addresses.index,
            });
        }
        ring.addresses = Some(addresses);
        Ok(())
    }

    fn set_base(&mut self, RingValue { index, value }: RingValue) -> Result<(), Breach> {
        let packed = self.is_packed();
        let ring = self.ring(request::SET_VRING_BASE, index)?;
        if !packed && value > u16::MAX.into() {
            return Err(Breach::Base {
                ring: index,
                base: value,
            });
        }
        ring.base = Base::Given(value);
        Ok(())
    }

    fn start_ring(&mut self, given: RingFd) -> Result<(), Breach> {
        let (ring, kick) = self.ring_and_fd(request::SET_VRING_KICK, given, Copies::kick_mut)?;
        ring.start(kick);
        Ok(())
    }

    fn set_call(&mut self, given: RingFd) -> Result<(), Breach> {
        let (ring, call) = self.ring_and_fd(request::SET_VRING_CALL, given, Copies::call_mut)?;
        ring.call = call;
        Ok(())
    }

    /// A ring that is to have another descriptor, and the descriptor; where copies are kept for the
    /// record, one is made. An error: there is no such ring, or no descriptor to be had.
    fn ring_and_fd(
        &mut self,
        request: u32,
        RingFd { index, fd }: RingFd,
        copy: fn(&mut Copies) -> &mut Option<NotifyFd>,
    ) -> Result<(&mut RingState, Option<NotifyFd>), Breach> {
        let (pair, ring) = self.ring_at(request, index)?;
        let fd = fd.map(NotifyFd::from);
        if let Some(copies) = &mut self.copies {
            let copied = fd.as_ref().map(NotifyFd::try_clone).transpose();
            *copy(&mut copies[pair][ring]) = copied.map_err(Breach::Copy)?;
        }
        Ok((self.ring(request, index)?, fd))
    }

    fn stop_ring(&mut self, RingValue { index, .. }: RingValue) -> Result<Reply, Breach> {
        let packed = self.is_packed();
        let ring = self.ring(request::GET_VRING_BASE, index)?;
        ring.stop();
        let value = ring.base.value(packed);
        Ok(Reply::Ring(RingValue { index, value }))
    }

    fn set_enabled(&mut self, RingValue { index, value }: RingValue) -> Result<(), Breach> {
        let (pair, ring) = self.ring_at(request::SET_VRING_ENABLE, index)?;
        if value > 1 {
            return Err(Breach::Enable { ring: index, value });
        }
        let enabled = value == 1;
        if self.pairs[pair].rings[ring].enabled != enabled {
            self.unplug(pair);
            self.pairs[pair].rings[ring].enable(enabled);
        }
        Ok(())
    }

    fn disable_all(&mut self) {
        self.unplug_all();
        self.rings().for_each(|ring| {
            ring.enabled = false;
            ring.turned_off = false;
        });
    }

    /// The rings are packed ones: their bases have two halves.
    fn is_packed(&self) -> bool {
        self.features
            .is_some_and(|features| features & features::RING_PACKED != 0)
    }

    /// Takes one pair's port back from its worker.
    fn unplug(&mut self, pair: usize) {
        let owner = owner(self.key, &self.nic, &*self.sink, &self.lines, pair);
        self.pairs[pair].unplug(owner);
    }

    fn unplug_all(&mut self) {
        (0..self.pairs.len()).for_each(|pair| self.unplug(pair));
    }

    /// Hands ports to workers where there is none and a ring can run, and says how the NIC is now.
    fn plug(&mut self) -> Result<(), Breach> {
        let (state, result) = self.run_rings();
        self.set_state(state);
        result
    }

    fn run_rings(&mut self) -> (PortState, Result<(), Breach>) {
        let mut result = Ok(());
        // Before a look, so that no page that comes after it is missed.
        let arriving = self.post_copy.arriving();
        if let Some(arriving) = arriving {
            arriving.wait();
        }
        let may_run = self.post_copy.may_wait() && !(self.log_is_gone && self.is_logged());
        let memory = self.memory.as_ref().filter(|_| may_run);
        if let (Some(memory), Some(features)) = (memory, self.features) {
            let common = Common {
                memory,
                features,
                mtu: self.mtu(),
                log: self.log.as_ref(),
            };
            for (number, pair) in self.pairs.iter_mut().enumerate() {
                let owner = owner(self.key, &self.nic, &*self.sink, &self.lines, number);
                let plugged = pair.plug(owner, common);
                result = result.and(plugged);
            }
        }
        if let Some(arriving) = arriving
            && !self.pairs.iter().any(Pair::awaits_pages)
        {
            arriving.wait_no_more();
        }
        let mut faults = self.pairs.iter().enumerate();
        let fault = faults.find_map(|(number, pair)| match (number, pair.fault()?) {
            (0, fault) => Some(fault.clone()),
            (number, fault) => Some(format!("queue pair {number}: {fault}")),
        });
        let state = match fault {
            Some(fault) => PortState::Broken(fault),
            None if self.pairs.iter().any(Pair::is_up) => PortState::Up,
            None => PortState::Connected,
        };
        (state, result)
    }

    /// Runs rings again that were stopped because the guest broke the protocol, each from where it
    /// stopped. How the NIC is then; a guest that goes on lying is found out by the worker.
    pub fn retry(&mut self) -> PortState {
        self.unplug_all();
        self.rings().for_each(RingState::retry);
        if let Err(breach) = self.plug() {
            self.log(&breach);
        }
        self.state.clone()
    }

    fn set_state(&mut self, state: PortState) {
        if self.state == state {
            return;
        }
        // The cause of what is broken has been or is being logged as a breach.
        if !matches!(state, PortState::Broken(_))
            && let Some(line) = self.lines.get_mut().take(Instant::now())
        {
            self.log_state(&state, line);
        }
        self.change_state(state);
    }

    fn log_state(&self, state: &PortState, Line { left_out }: Line) {
        let nic = &self.nic.name;
        match state {
            PortState::Disconnected => info!(nic, left_out, "the VMM has disconnected"),
            PortState::Connected => info!(nic, left_out, "down: no ring runs"),
            PortState::Up => self.log_with(left_out, "up"),
            PortState::Broken(_) => {}
        }
    }

    /// Says in the log how it is served, and with what.
    pub fn log_served(&self, how: &str) {
        self.log_with(None, how);
    }

    fn log_with(&self, left_out: Option<u64>, how: &str) {
        let features = format_args!("{:#x}", self.features.unwrap_or(0));
        info!(nic = self.nic.name, left_out, %features, mtu = self.mtu(), "{how}");
    }

    fn change_state(&mut self, state: PortState) {
        self.served |= state == PortState::Up;
        self.state = state.clone();
        self.sink.state(self.key, state);
    }

    fn log(&mut self, breach: &Breach) {
        if matches!(breach, Breach::Unknown { .. })
            && std::mem::replace(&mut self.unknown_logged, true)
        {
            return;
        }
        let consequence = if breach.closes() {
            "; closing the connection"
        } else {
            let Some(left) = self.complaints.checked_sub(1) else {
                return;
            };
            self.complaints = left;
            if left > 0 {
                ""
            } else {
                "; no more is said of this VMM's mistakes"
            }
        };
        warn!(nic = self.nic.name, "vhost-user: {breach}{consequence}");
    }
}

fn owner<'a>(
    key: PortKey,
    nic: &'a NicOptions,
    sink: &'a dyn PortSink,
    lines: &'a RefCell<Lines>,
    pair: usize,
) -> Owner<'a> {
    Owner {
        lines,
        key,
        nic: &nic.name,
        sink,
        pair: pair as u16, // below MAX_PAIRS
    }
}
