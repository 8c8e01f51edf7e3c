//! What NICs attach to: vhost-user sockets, TAP devices, containers' interfaces ([`veths`]), bench
//! ports and trace files, made for the controller and handed to the workers.

mod removals;
pub mod veths;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use container::PairSettings;
use control::model::{BenchKind, Mirror, Nic, NicKind, VhostMode};
use control::{AttachError, Attachments, Ending, NicState, OpenRequest};
use dataplane::{PortSlot, QueueId, Switch};
use io::bench::{BenchMode, BenchPort};
use io::guest_memory::MissingPages;
use io::port::{Port, PortInfo};
use io::tap::{TapError, TapOptions, TapPort};
use io::trace::capture::Tap;
use io::trace::{Folder, Trace};
use io::vhost::{MAX_PAIRS, NicOptions, PortKey, PortSink, PortState, Server, SessionKeeper};

use crate::arrivals::Arrivals;
use crate::bench_report;
use crate::held::Held;
use crate::mirrors::Mirrors;
use crate::namespaces;
use crate::start_gate::StartGate;
use crate::states::PortStates;
use crate::unix_socket::NicSockets;
use crate::upgrade::Predecessor;
use removals::{Removal, Removals, Settled};
use veths::{VethHandle, VethNics};

/// The largest MTU the kernel gives a TAP device: 65535 with the Ethernet header
/// (tun_net_initialize).
const TAP_MTU_MAX: u16 = u16::MAX - 14;

/// How long a guest's rings that run again are looked at, and how often: long enough for its worker
/// to find out that the guest still lies.
const LOOKS: u32 = 5;
const LOOK: Duration = Duration::from_millis(2);

/// The daemon's side of every attachment. Dropping it, and what [`vhost`](Self::vhost) gave, closes
/// all sockets.
pub struct HostAttachments {
    vhost: Arc<Server>,
    workers: Arc<StartGate>,
    switch: Arc<Switch>,
    states: PortStates,
    traces: Folder,
    sockets: NicSockets,
    missing_pages: MissingPages,
    veths: VethNics,
    /// Who has TAP devices outlive the daemon; `None`: nobody.
    held: Option<Arc<Held>>,
    /// The interfaces of TAP devices, by slot.
    taps: BTreeMap<u32, String>,
    mirrors: Mirrors,
    /// TAP devices behind containers' interfaces, by slot.
    cables: Cables,
    /// The daemon whose place this one is to take.
    predecessor: Option<Arc<Predecessor>>,
    removals: Removals,
    loading: Loading,
}

/// While this is true what is stored is being made: a container's interface whose NIC goes since
/// something else cannot be made stays, since the NIC is made again at once.
pub type Loading = Arc<AtomicBool>;

/// Who has had attachments before this process, and who has them after it.
pub struct Others {
    /// Who has TAP devices and sessions outlive it.
    pub held: Option<Arc<Held>>,
    /// The daemon whose place it is to take.
    pub predecessor: Option<Arc<Predecessor>>,
    /// For containers' flows from other hosts.
    pub arrivals: Arc<Arrivals>,
}

/// Names of TAP devices and descriptors of them, by slot.
type Cables = Arc<Mutex<BTreeMap<u32, (String, OwnedFd)>>>;

/// What a process is handed that this one gives way to, beside what the keeper has and listening
/// sockets.
pub struct LeftBehind {
    cables: Cables,
    veths: VethHandle,
    removals: Settled,
}

impl LeftBehind {
    /// Waits for what is about to go: the other process knows nothing of it.
    pub fn settle(&self) {
        self.removals.wait();
    }

    /// Descriptors, each with its name.
    pub fn descriptors(&self) -> std::io::Result<Vec<(String, OwnedFd)>> {
        let helper = namespaces::descriptor().transpose()?;
        let helper = helper.map(|socket| (NAMESPACES.to_owned(), socket));
        let cables = self.cables.lock().unwrap_or_else(PoisonError::into_inner);
        let cables = cables.values();
        let cables = cables.map(|(name, fd)| Ok((cable(name), fd.try_clone()?)));
        cables.chain(helper.map(Ok)).collect()
    }

    /// That process looks after containers' interfaces from now on. Returns when this one does not.
    pub fn stand_still(&self) {
        self.veths.stand_still();
    }

    /// That process did not take over; or this one has taken the place of a daemon before.
    pub fn go_on(&self) {
        self.veths.go_on();
    }
}

/// What the socket to the namespace helper is called.
const NAMESPACES: &str = "namespaces";

/// What a TAP device behind a container's interface is called.
fn cable(name: &str) -> String {
    format!("cable {name}")
}

impl HostAttachments {
    /// Starts the vhost-user server; `workers` is where all ports wait until it is opened. Packet
    /// traces are written beneath `traces` alone; no other daemon has `socket_dir`.
    pub fn start(
        workers: Arc<StartGate>,
        states: PortStates,
        traces: Folder,
        sockets: NicSockets,
        socket_dir: &Path,
        others: Others,
        pairs: PairSettings,
    ) -> Result<HostAttachments, String> {
        let Others {
            held,
            predecessor,
            arrivals,
        } = others;
        let switch = workers.switch().clone();
        let sink = Arc::new(Sink {
            workers: workers.clone(),
            switch: switch.clone(),
            states: states.clone(),
        });
        let keeper = held.clone().map(|held| held as Arc<dyn SessionKeeper>);
        let vhost = match &predecessor {
            Some(_) => Server::start_waiting(sink, keeper),
            None => Server::start_keeping(sink, keeper),
        };
        let vhost = vhost.map_err(|e| format!("the vhost-user server cannot be started: {e}"))?;
        if let Some(socket) = predecessor.as_ref().and_then(|old| old.take(NAMESPACES)) {
            namespaces::go_on_with(socket)?;
        }
        Ok(HostAttachments {
            veths: VethNics::new(
                states.clone(),
                switch.clone(),
                socket_dir.display().to_string(),
                pairs,
                predecessor.as_ref().map(|old| old.apart()),
                arrivals,
            ),
            vhost: Arc::new(vhost),
            workers,
            switch,
            states,
            traces,
            sockets,
            missing_pages: MissingPages::Made,
            removals: Removals::new(held.clone()),
            held,
            taps: BTreeMap::new(),
            mirrors: Mirrors::default(),
            cables: Cables::default(),
            predecessor,
            loading: Loading::default(),
        })
    }

    /// To be told while what is stored is made.
    pub fn loading(&self) -> Loading {
        self.loading.clone()
    }

    /// Guests whose memory has pages that are missing lose their ports by them, if that is wanted.
    pub fn refusing_missing_pages(mut self, wanted: bool) -> HostAttachments {
        if wanted {
            self.missing_pages = MissingPages::Refused;
        }
        self
    }

    /// The vhost-user server, for whoever wants to look at its sessions.
    pub fn vhost(&self) -> Arc<Server> {
        self.vhost.clone()
    }

    /// What a process is handed that this one gives way to.
    pub fn left_behind(&self) -> LeftBehind {
        LeftBehind {
            cables: self.cables.clone(),
            veths: self.veths.handle(),
            removals: self.removals.settled(),
        }
    }

    /// The TAP device behind a container's interface: that of the daemon before, or a new one.
    fn cable(&self, slot: PortSlot, options: &TapOptions) -> Result<TapPort, AttachError> {
        let refuse = |e: &dyn std::fmt::Display| AttachError(e.to_string());
        let old = self.predecessor.as_ref();
        let left = old.and_then(|old| old.take(&cable(&options.name)));
        let tap = match left.map(|fd| TapPort::adopt(fd, options)) {
            None | Some(Err(TapError::Removed(_))) => TapPort::open_down(options),
            Some(adopted) => adopted,
        };
        let tap = tap.map_err(|e| refuse(&e))?;
        let fd = tap.descriptor().map(|fd| fd.try_clone_to_owned());
        if let Some(fd) = fd.transpose().map_err(|e| refuse(&e))? {
            let known = (options.name.clone(), fd);
            self.cables().insert(slot.0, known);
        }
        Ok(tap)
    }

    /// What there is belongs to the daemon before, which goes on should this one not come up.
    fn is_apart(&self) -> bool {
        self.predecessor
            .as_ref()
            .is_some_and(|old| old.is_daemon_still())
    }

    fn cables(&self) -> MutexGuard<'_, BTreeMap<u32, (String, OwnedFd)>> {
        self.cables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new device for a NIC, or the one that a daemon before has left.
    fn open_tap(&self, request: &OpenRequest<'_>) -> Result<TapPort, AttachError> {
        self.removals.wait_for(&[request.path]);
        let options = tap_options(request, request.path);
        match &self.held {
            Some(held) => held.tap(&options),
            None => TapPort::open(&options).map_err(|e| AttachError(e.to_string())),
        }
    }

    /// As [`open_tap`](Self::open_tap). In the place of another daemon, which has the NIC already,
    /// one whose device is gone and cannot be made is there all the same, and broken: it is no
    /// reason not to take that place.
    fn open_tap_or_broken(&self, request: &OpenRequest<'_>) -> Result<TapPort, AttachError> {
        self.open_tap(request).or_else(|why| {
            if !self.is_apart() {
                return Err(why);
            }
            tracing::error!("NIC '{}' has no interface: {why}", request.nic.id);
            let options = tap_options(request, request.path);
            Ok(TapPort::gone(&options, why.0))
        })
    }

    fn heal_tap(&mut self, request: &OpenRequest<'_>) -> NicState {
        match self.open_again(request.slot, || self.open_tap(request)) {
            Ok(()) => NicState::Up,
            Err(why) => NicState::Broken(why),
        }
    }

    /// What is behind a container's interface, or a VMM's, and that interface.
    fn heal_veth(&mut self, request: &OpenRequest<'_>) -> Option<NicState> {
        let slot = request.slot;
        let options = tap_options(request, &veths::tap_name(request.path));
        match self.open_again(slot, || self.cable(slot, &options)) {
            Ok(()) => self.veths.heal(request),
            Err(why) => Some(NicState::Broken(why)),
        }
    }

    /// Has a port whose TAP device is gone be another one. The error is a sentence.
    fn open_again(
        &self,
        slot: PortSlot,
        open: impl FnOnce() -> Result<TapPort, AttachError>,
    ) -> Result<(), String> {
        let mut ports = self.ports(slot);
        if ports.next().is_some_and(|port| port.broken.is_none()) {
            return Ok(());
        }
        let attach = |port| {
            let attached = self.workers.attach(slot.into(), port);
            attached.map_err(|e| e.to_string())
        };
        let port = self.workers.detach(slot.into());
        let gone = match port.map_err(|e| e.to_string())? {
            Some(Port::Tap(tap)) if tap.broken().is_none() => return attach(Port::Tap(tap)),
            gone => gone,
        };
        match open() {
            Ok(tap) => attach(Port::Tap(tap)),
            Err(why) => {
                // It is there to be tried again, and says why it is broken.
                if let Some(gone) = gone {
                    let _ = attach(gone);
                }
                Err(why.to_string())
            }
        }
    }

    /// What workers say of a NIC's ports; nothing of those that wait for them.
    fn ports(&self, slot: PortSlot) -> impl Iterator<Item = PortInfo> {
        let ports = self.switch.ports(Some(slot)).unwrap_or_default();
        ports.into_iter().filter_map(|(_, port)| port.info)
    }

    /// What workers have found wrong with these NICs since their rings ran again.
    fn look_at_rings(&self, slots: &[PortSlot]) -> BTreeMap<u32, String> {
        let mut broken = BTreeMap::new();
        for _ in 0..LOOKS {
            for &slot in slots {
                let why = self.ports(slot).find_map(|port| port.broken);
                broken.extend(why.map(|why| (slot.0, why)));
            }
            std::thread::sleep(LOOK);
        }
        broken
    }

    /// Ports that are up for as long as they are there.
    fn attach(&self, slot: PortSlot, port: Port) -> Result<(), AttachError> {
        self.workers
            .attach(slot.into(), port)
            .map_err(|e| AttachError(e.to_string()))?;
        self.states.leave(slot.0, NicState::Up);
        Ok(())
    }

    /// Between two batches, as everything that is done to a port. Frames wait in the device
    /// meanwhile.
    fn reconfigure_tap(&self, request: &OpenRequest<'_>) -> Result<(), AttachError> {
        let refuse = |e: &dyn std::fmt::Display| AttachError(e.to_string());
        let Some(mut port) = self
            .workers
            .detach(request.slot.into())
            .map_err(|e| refuse(&e))?
        else {
            return Ok(());
        };
        let options = tap_options(request, request.path);
        let done = match &mut port {
            Port::Tap(tap) => {
                let done = tap.reconfigure(options.mac, options.mtu);
                let held = self.held.as_ref();
                let held = held.filter(|_| self.taps.contains_key(&request.slot.0));
                if let (Ok(()), Some(held)) = (&done, held) {
                    held.hold(tap, &options);
                }
                done
            }
            _ => Ok(()),
        };
        // Back in any case: a device that keeps its old values works on.
        self.workers
            .attach(request.slot.into(), port)
            .map_err(|e| refuse(&e))?;
        done.map_err(|e| refuse(&e))
    }
}

impl Attachments for HostAttachments {
    fn open(&mut self, request: &OpenRequest<'_>) -> Result<(), AttachError> {
        let nic = request.nic;
        match &nic.kind {
            NicKind::VhostUser => {
                let (key, path) = (PortKey(request.slot.0), Path::new(request.path));
                let (vhost, options) = (&self.vhost, options(request, self.missing_pages));
                let left = self.held.as_ref();
                let left = left.and_then(|held| held.session(nic.id.as_str()));
                let old = self.predecessor.as_ref();
                let handed = old.and_then(|old| old.vhost_listener(path));
                let opened = match (nic.vhost_mode, handed) {
                    (VhostMode::Server, Some(socket)) => {
                        vhost.listen_by(key, path, socket, options)
                    }
                    (VhostMode::Server, None) => {
                        let file = self.sockets.of(nic).map_err(AttachError)?;
                        vhost.listen_again(key, path, file, options, left)
                    }
                    (VhostMode::Client, _) => vhost.connect_again(key, path, options, left),
                };
                opened.map_err(|e| AttachError(e.to_string()))
            }
            NicKind::Tap => {
                let tap = self.open_tap_or_broken(request)?;
                let broken = tap.broken().map(|why| NicState::Broken(why.to_owned()));
                let attached = self.attach(request.slot, Port::Tap(tap));
                match (&attached, &self.held) {
                    (Ok(()), _) => {
                        self.taps.insert(request.slot.0, request.path.to_owned());
                        if let Some(broken) = broken {
                            self.states.leave(request.slot.0, broken);
                        }
                    }
                    (Err(_), Some(held)) => held.release(request.path),
                    (Err(_), None) => (),
                }
                attached
            }
            NicKind::Veth(_) | NicKind::VmTap(_) => {
                let refuse = |e: &dyn std::fmt::Display| AttachError(e.to_string());
                let options = tap_options(request, &veths::tap_name(request.path));
                self.removals.wait_for(&[request.path, &options.name]);
                let tap = self.cable(request.slot, &options)?;
                let opened = self.veths.open(request).map_err(|e| refuse(&e));
                let attached = opened.and_then(|state| {
                    self.attach(request.slot, Port::Tap(tap))?;
                    Ok(state)
                });
                let state = attached.inspect_err(|_| {
                    if !self.is_apart() {
                        let near = self.veths.close(request.slot);
                        let names = vec![request.path.to_owned(), options.name.clone()];
                        self.removals.begin(vec![removal(names, None, near, None)]);
                    }
                    drop(self.cables().remove(&request.slot.0));
                })?;
                self.states.leave(request.slot.0, state);
                Ok(())
            }
            NicKind::Bench(kind) => self.attach(request.slot, bench_port(nic, kind)?),
        }
    }

    fn give_socket(&mut self, request: &OpenRequest<'_>) -> Result<(), AttachError> {
        let file = self.sockets.of(request.nic).map_err(AttachError)?;
        match self.vhost.give(PortKey(request.slot.0), file) {
            None | Some(Ok(())) => Ok(()),
            Some(Err(e)) => Err(AttachError(e.to_string())),
        }
    }

    fn close(&mut self, gone: &[(Arc<Nic>, PortSlot)]) {
        if self.is_apart() {
            return;
        }
        let mut queues = Vec::new();
        for (nic, slot) in gone {
            match nic.kind {
                NicKind::VhostUser => drop(self.vhost.close(PortKey(slot.0))),
                _ => queues.push(QueueId::from(*slot)),
            }
        }
        // Workers that are gone have dropped their ports already.
        let ports = self.workers.detach_all(&queues).unwrap_or_default();
        let mut ports: BTreeMap<u32, Port> = ports
            .into_iter()
            .map(|(queue, port)| (queue.slot.0, port))
            .collect();
        let mut removals = Vec::new();
        for (nic, slot) in gone {
            let port = ports.remove(&slot.0);
            match nic.kind {
                NicKind::VhostUser | NicKind::Bench(_) => (),
                NicKind::Tap => {
                    let name = self.taps.remove(&slot.0);
                    let held = name.clone().filter(|_| self.held.is_some());
                    removals.push(removal(name.into_iter().collect(), port, None, held));
                }
                NicKind::Veth(_) | NicKind::VmTap(_) => {
                    let (name, near) = (self.veths.name(*slot), self.veths.close(*slot));
                    self.cables().remove(&slot.0);
                    let near = near.filter(|_| !self.loading.load(Ordering::Acquire));
                    let tap = name.as_deref().map(veths::tap_name);
                    let names = name.into_iter().chain(tap).collect();
                    removals.push(removal(names, port, near, None));
                }
            }
            self.states.forget(&slot.0);
        }
        self.removals.begin(removals);
    }

    fn ending(&mut self) -> Option<Ending> {
        self.removals.ending()
    }

    fn reconfigure(&mut self, request: &OpenRequest<'_>) {
        let done = match &request.nic.kind {
            // A guest's driver reads what it is offered once, when it starts: this is for the next
            // session.
            NicKind::VhostUser => {
                self.vhost.change(
                    PortKey(request.slot.0),
                    options(request, self.missing_pages),
                );
                Ok(())
            }
            NicKind::Tap => self.reconfigure_tap(request),
            NicKind::Veth(_) | NicKind::VmTap(_) => {
                let done = self.reconfigure_tap(request);
                self.veths.change(request);
                done
            }
            NicKind::Bench(kind) => {
                bench_port(request.nic, kind).and_then(|port| self.attach(request.slot, port))
            }
        };
        if let Err(e) = done {
            tracing::warn!("NIC '{}' keeps its old values: {e}", request.nic.id);
        }
    }

    fn heal(&mut self, requests: &[OpenRequest<'_>]) -> Vec<Option<NicState>> {
        // What was left of before is no news: whoever breaks again says so again.
        requests
            .iter()
            .for_each(|request| self.states.forget(&request.slot.0));
        let again = |request: &OpenRequest<'_>| match request.nic.kind {
            NicKind::Veth(_) | NicKind::VmTap(_) => self.heal_veth(request),
            NicKind::Tap => Some(self.heal_tap(request)),
            NicKind::VhostUser => self.vhost.retry(PortKey(request.slot.0)).map(told),
            NicKind::Bench(_) => None,
        };
        let mut states: Vec<_> = requests.iter().map(again).collect();
        let is_ring = |request: &&OpenRequest<'_>| request.nic.kind == NicKind::VhostUser;
        let rings = requests.iter().filter(is_ring).map(|request| request.slot);
        let rings: Vec<PortSlot> = rings.collect();
        if !rings.is_empty() {
            let mut broken = self.look_at_rings(&rings);
            for (request, state) in requests.iter().zip(&mut states) {
                if let Some(why) = broken.remove(&request.slot.0) {
                    *state = Some(NicState::Broken(why));
                }
            }
        }
        states
    }

    fn trace(&mut self, nic: &Nic, path: &str) -> Result<Option<Trace>, AttachError> {
        let trace = Trace::open(&self.traces, Path::new(path), nic.id.as_str());
        trace
            .map(Some)
            .map_err(|e| AttachError(format!("packet trace {path}: {e}")))
    }

    fn mirror(&mut self, nic: &Nic, mirror: &Mirror) -> Result<Option<Tap>, AttachError> {
        self.mirrors
            .begin(nic, mirror)
            .map(Some)
            .map_err(AttachError)
    }
}

/// What goes of a NIC whose interfaces have these names here.
fn removal(
    names: Vec<String>,
    port: Option<Port>,
    near: Option<u32>,
    held: Option<String>,
) -> Removal {
    Removal {
        names,
        port,
        near,
        held,
    }
}

/// A TAP device for the NIC, under this name.
fn tap_options(request: &OpenRequest<'_>, name: &str) -> TapOptions {
    TapOptions {
        name: name.to_owned(),
        mac: request.nic.mac,
        mtu: Some(mtu(request)),
        offloads: request.offloads,
    }
}

fn mtu(request: &OpenRequest<'_>) -> u16 {
    request.mtu.min(TAP_MTU_MAX)
}

fn bench_port(nic: &Nic, kind: &BenchKind) -> Result<Port, AttachError> {
    let mode = match *kind {
        BenchKind::Send { ip, mac } => BenchMode::Send { ip, mac },
        BenchKind::Receive => BenchMode::Receive,
    };
    let addresses: Vec<_> = nic.host_addresses().collect();
    let port = BenchPort::new(nic.mac, &addresses, mode).map_err(|e| AttachError(e.to_string()))?;
    if let (BenchMode::Send { ip, .. }, Some(report)) = (mode, port.report()) {
        bench_report::print(ip, &report).map_err(|e| AttachError(e.to_string()))?;
    }
    Ok(Port::Bench(Box::new(port)))
}

fn options(request: &OpenRequest<'_>, missing_pages: MissingPages) -> NicOptions {
    NicOptions {
        name: request.nic.id.to_string(),
        network: Some(request.nic.vni.id()),
        mac: request.nic.mac,
        mtu: Some(request.mtu),
        offloads: request.offloads,
        link_up: !request.nic.link_down,
        pairs: MAX_PAIRS,
        missing_pages,
        page_helper: page_helper(missing_pages),
    }
}

/// Who waits for pages of a guest that runs here before its memory. Its VMM can have pages made
/// there, which is what memory that is to be populated already is not to cost.
fn page_helper(missing_pages: MissingPages) -> Option<&'static Path> {
    // Also when the file was replaced by a newer one since.
    (missing_pages == MissingPages::Made).then(|| Path::new("/proc/self/exe"))
}

/// The vhost-user server's way to the workers.
struct Sink {
    workers: Arc<StartGate>,
    switch: Arc<Switch>,
    states: PortStates,
}

impl PortSink for Sink {
    fn attach(&self, key: PortKey, pair: u16, port: Port) {
        // A worker that is gone takes no port: the daemon is stopping.
        let _ = self.workers.attach(queue(key, pair), port);
    }

    fn detach(&self, key: PortKey, pair: u16) -> Option<Port> {
        self.workers.detach(queue(key, pair)).ok().flatten()
    }

    fn detach_all(&self, pairs: &[(PortKey, u16)]) -> Vec<((PortKey, u16), Port)> {
        let queues: Vec<_> = pairs.iter().map(|&(key, pair)| queue(key, pair)).collect();
        let ports = self.workers.detach_all(&queues).unwrap_or_default();
        let at = |queue: QueueId| (PortKey(queue.slot.0), queue.pair);
        ports
            .into_iter()
            .map(|(queue, port)| (at(queue), port))
            .collect()
    }

    fn announce(&self, key: PortKey) {
        // Waited for, as all that is asked of the worker: a VMM that asks for this all the time
        // fills no queue.
        let _ = self.switch.announce(PortSlot(key.0));
    }

    fn state(&self, key: PortKey, state: PortState) {
        self.states.leave(key.0, told(state));
    }
}

fn told(state: PortState) -> NicState {
    match state {
        // A VMM without a running driver moves no frame: for users that is a guest that is not
        // there.
        PortState::Disconnected | PortState::Connected => NicState::Down,
        PortState::Up => NicState::Up,
        PortState::Broken(why) => NicState::Broken(why),
    }
}

fn queue(key: PortKey, pair: u16) -> QueueId {
    let slot = PortSlot(key.0);
    QueueId { slot, pair }
}
