//! What NICs attach to: vhost-user sockets, TAP devices, containers' interfaces ([`veths`]), bench
//! ports and trace files, made for the controller and handed to the workers.

pub mod veths;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use control::model::{BenchKind, Mirror, Nic, NicKind, VhostMode};
use control::{AttachError, Attachments, NicState, OpenRequest};
use dataplane::{PortSlot, QueueId, Switch};
use io::bench::{BenchMode, BenchPort};
use io::guest_memory::MissingPages;
use io::port::Port;
use io::tap::{TapOptions, TapPort};
use io::trace::Trace;
use io::trace::capture::Tap;
use io::vhost::{MAX_PAIRS, NicOptions, PortKey, PortSink, PortState, Server, SessionKeeper};

use crate::bench_report;
use crate::held::Held;
use crate::mirrors::Mirrors;
use crate::start_gate::StartGate;
use crate::states::PortStates;
use crate::unix_socket::NicSockets;
use crate::upgrade::Predecessor;
use veths::{VethHandle, VethNics};

/// The largest MTU the kernel gives a TAP device: 65535 with the Ethernet header
/// (tun_net_initialize).
const TAP_MTU_MAX: u16 = u16::MAX - 14;

/// The daemon's side of every attachment. Dropping it, and what [`vhost`](Self::vhost) gave, closes
/// all sockets.
pub struct HostAttachments {
    vhost: Arc<Server>,
    workers: Arc<StartGate>,
    states: PortStates,
    trace_dir: PathBuf,
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
}

/// Who has had attachments before this process, and who has them after it.
pub struct Others {
    /// Who has TAP devices and sessions outlive it.
    pub held: Option<Arc<Held>>,
    /// The daemon whose place it is to take.
    pub predecessor: Option<Arc<Predecessor>>,
}

/// Names of TAP devices and descriptors of them, by slot.
type Cables = Arc<Mutex<BTreeMap<u32, (String, OwnedFd)>>>;

/// What a process is handed that this one gives way to, beside what the keeper has and listening
/// sockets.
pub struct LeftBehind {
    cables: Cables,
    veths: VethHandle,
}

impl LeftBehind {
    /// Descriptors, each with its name.
    pub fn descriptors(&self) -> std::io::Result<Vec<(String, OwnedFd)>> {
        let keeper = self.veths.keeper().transpose()?;
        let keeper = keeper.map(|socket| (NAMESPACES.to_owned(), socket));
        let cables = self.cables.lock().unwrap_or_else(PoisonError::into_inner);
        let cables = cables.values();
        let cables = cables.map(|(name, fd)| Ok((cable(name), fd.try_clone()?)));
        cables.chain(keeper.map(Ok)).collect()
    }

    /// That process did not take over.
    pub fn join_again(&self) {
        self.veths.join_again();
    }
}

/// What the socket to the keeper of namespaces is called.
const NAMESPACES: &str = "namespaces";

/// What a TAP device behind a container's interface is called.
fn cable(name: &str) -> String {
    format!("cable {name}")
}

impl HostAttachments {
    /// Starts the vhost-user server. Packet traces are written beneath `trace_dir` alone; no other
    /// daemon has `socket_dir`. The kernel may forward so many flows between containers itself.
    pub fn start(
        switch: Arc<Switch>,
        states: PortStates,
        trace_dir: PathBuf,
        sockets: NicSockets,
        socket_dir: &Path,
        others: Others,
        kernel_flows: u32,
    ) -> Result<HostAttachments, String> {
        let Others { held, predecessor } = others;
        let workers = Arc::new(StartGate::new(switch.clone()));
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
            VethNics::go_on_with(socket)?;
        }
        Ok(HostAttachments {
            veths: VethNics::new(
                states.clone(),
                switch,
                socket_dir.display().to_string(),
                kernel_flows,
            ),
            vhost: Arc::new(vhost),
            workers,
            states,
            trace_dir,
            sockets,
            missing_pages: MissingPages::Made,
            held,
            taps: BTreeMap::new(),
            mirrors: Mirrors::default(),
            cables: Cables::default(),
            predecessor,
        })
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
        }
    }

    /// The TAP device behind a container's interface: that of the daemon before, or a new one.
    fn cable(&self, slot: PortSlot, options: &TapOptions) -> Result<TapPort, AttachError> {
        let refuse = |e: &dyn std::fmt::Display| AttachError(e.to_string());
        let old = self.predecessor.as_ref();
        let tap = match old.and_then(|old| old.take(&cable(&options.name))) {
            Some(fd) => TapPort::adopt(fd, options),
            None => TapPort::open_down(options),
        };
        let tap = tap.map_err(|e| refuse(&e))?;
        let fd = tap.descriptor().map(|fd| fd.try_clone_to_owned());
        if let Some(fd) = fd.transpose().map_err(|e| refuse(&e))? {
            let known = (options.name.clone(), fd);
            self.cables().insert(slot.0, known);
        }
        Ok(tap)
    }

    fn cables(&self) -> MutexGuard<'_, BTreeMap<u32, (String, OwnedFd)>> {
        self.cables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where all ports wait until it is opened.
    pub fn gate(&self) -> Arc<StartGate> {
        self.workers.clone()
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
                        vhost.listen_again(key, path, self.sockets.0, options, left)
                    }
                    (VhostMode::Client, _) => vhost.connect_again(key, path, options, left),
                };
                opened.map_err(|e| AttachError(e.to_string()))
            }
            NicKind::Tap => {
                let options = tap_options(request, request.path);
                let tap = match &self.held {
                    Some(held) => held.tap(&options)?,
                    None => TapPort::open(&options).map_err(|e| AttachError(e.to_string()))?,
                };
                let attached = self.attach(request.slot, Port::Tap(tap));
                match (&attached, &self.held) {
                    (Ok(()), _) => drop(self.taps.insert(request.slot.0, options.name)),
                    (Err(_), Some(held)) => held.release(&options.name),
                    (Err(_), None) => (),
                }
                attached
            }
            NicKind::Veth(veth) => {
                let refuse = |e: &dyn std::fmt::Display| AttachError(e.to_string());
                let options = tap_options(request, &veths::tap_name(request.path));
                let tap = self.cable(request.slot, &options)?;
                let opened = self.veths.open(request, veth).map_err(|e| refuse(&e));
                let attached = opened.and_then(|state| {
                    let attached = self.attach(request.slot, Port::Tap(tap));
                    attached
                        .map(|()| state)
                        .inspect_err(|_| self.veths.close(request.slot))
                });
                let state =
                    attached.inspect_err(|_| drop(self.cables().remove(&request.slot.0)))?;
                self.states.leave(request.slot.0, state);
                Ok(())
            }
            NicKind::Bench(kind) => self.attach(request.slot, bench_port(nic, kind)?),
        }
    }

    fn close(&mut self, nic: &Nic, slot: PortSlot) {
        match nic.kind {
            NicKind::VhostUser => {
                self.vhost.close(PortKey(slot.0));
            }
            // Dropping the port removes the device. A worker that is gone has dropped it already.
            NicKind::Tap | NicKind::Bench(_) => drop(self.workers.detach(slot.into())),
            NicKind::Veth(_) => {
                self.veths.close(slot);
                self.cables().remove(&slot.0);
                drop(self.workers.detach(slot.into()));
            }
        }
        if let (Some(interface), Some(held)) = (self.taps.remove(&slot.0), &self.held) {
            held.release(&interface);
        }
        self.states.forget(&slot.0);
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
            NicKind::Veth(veth) => {
                let done = self.reconfigure_tap(request);
                self.veths.change(request, veth);
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

    fn heal(&mut self, request: &OpenRequest<'_>) -> Option<NicState> {
        match request.nic.kind {
            NicKind::Veth(_) => self.veths.heal(request.slot),
            _ => None,
        }
    }

    fn trace(&mut self, nic: &Nic, path: &str) -> Result<Option<Trace>, AttachError> {
        let trace = Trace::open(&self.trace_dir, Path::new(path), nic.id.as_str());
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
        mac: request.nic.mac,
        mtu: Some(request.mtu),
        offloads: request.offloads,
        link_up: !request.nic.link_down,
        pairs: MAX_PAIRS,
        missing_pages,
    }
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

    fn announce(&self, key: PortKey) {
        // Waited for, as all that is asked of the worker: a VMM that asks for this all the time
        // fills no queue.
        let _ = self.switch.announce(PortSlot(key.0));
    }

    fn state(&self, key: PortKey, state: PortState) {
        let state = match state {
            // A VMM without a running driver moves no frame: for users that is a guest that is not
            // there.
            PortState::Disconnected | PortState::Connected => NicState::Down,
            PortState::Up => NicState::Up,
            PortState::Broken(why) => NicState::Broken(why),
        };
        self.states.leave(key.0, state);
    }
}

fn queue(key: PortKey, pair: u16) -> QueueId {
    let slot = PortSlot(key.0);
    QueueId { slot, pair }
}
