//! What NICs attach to: vhost-user sockets, TAP devices, bench ports and trace files, made for the
//! controller and handed to the workers.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use control::model::{BenchKind, Nic, NicKind, VhostMode};
use control::{AttachError, Attachments, NicState, OpenRequest};
use dataplane::{PortSlot, QueueId, Switch};
use io::bench::{BenchMode, BenchPort};
use io::port::Port;
use io::tap::{TapOptions, TapPort};
use io::trace::Trace;
use io::vhost::{MAX_PAIRS, NicOptions, PortKey, PortSink, PortState, Server};

use crate::bench_report;
use crate::states::PortStates;
use crate::unix_socket::NicSockets;

/// The largest MTU the kernel gives a TAP device: 65535 with the Ethernet header
/// (tun_net_initialize).
const TAP_MTU_MAX: u16 = u16::MAX - 14;

/// The daemon's side of every attachment. Dropping it, and what [`vhost`](Self::vhost) gave, closes
/// all sockets.
pub struct HostAttachments {
    vhost: Arc<Server>,
    switch: Arc<Switch>,
    states: PortStates,
    trace_dir: PathBuf,
    sockets: NicSockets,
}

impl HostAttachments {
    /// Starts the vhost-user server. Packet traces are written beneath `trace_dir` alone.
    pub fn start(
        switch: Arc<Switch>,
        states: PortStates,
        trace_dir: PathBuf,
        sockets: NicSockets,
    ) -> Result<HostAttachments, String> {
        let sink = Arc::new(Sink {
            switch: switch.clone(),
            states: states.clone(),
        });
        let vhost = Server::start(sink)
            .map_err(|e| format!("the vhost-user server cannot be started: {e}"))?;
        Ok(HostAttachments {
            vhost: Arc::new(vhost),
            switch,
            states,
            trace_dir,
            sockets,
        })
    }

    /// The vhost-user server, for whoever wants to look at its sessions.
    pub fn vhost(&self) -> Arc<Server> {
        self.vhost.clone()
    }

    /// Ports that are up for as long as they are there.
    fn attach(&self, slot: PortSlot, port: Port) -> Result<(), AttachError> {
        self.switch
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
            .switch
            .detach(request.slot.into())
            .map_err(|e| refuse(&e))?
        else {
            return Ok(());
        };
        let done = match &mut port {
            Port::Tap(tap) => tap.reconfigure(request.nic.mac, Some(request.mtu.min(TAP_MTU_MAX))),
            _ => Ok(()),
        };
        // Back in any case: a device that keeps its old values works on.
        self.switch
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
                let opened = match nic.vhost_mode {
                    VhostMode::Server => {
                        self.vhost
                            .listen_as(key, path, self.sockets.0, options(request))
                    }
                    VhostMode::Client => self.vhost.connect(key, path, options(request)),
                };
                opened.map_err(|e| AttachError(e.to_string()))
            }
            NicKind::Tap => {
                let options = TapOptions {
                    name: request.path.to_owned(),
                    mac: nic.mac,
                    mtu: Some(request.mtu.min(TAP_MTU_MAX)),
                    offloads: request.offloads,
                };
                let tap = TapPort::open(&options).map_err(|e| AttachError(e.to_string()))?;
                self.attach(request.slot, Port::Tap(tap))
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
            NicKind::Tap | NicKind::Bench(_) => drop(self.switch.detach(slot.into())),
        }
        self.states.forget(&slot.0);
    }

    fn reopen(&mut self, request: &OpenRequest<'_>) -> Result<(), AttachError> {
        tracing::info!("NIC '{}' was broken, and is attached anew", request.nic.id);
        self.close(request.nic, request.slot);
        self.open(request)
    }

    fn reconfigure(&mut self, request: &OpenRequest<'_>) {
        let done = match &request.nic.kind {
            // A guest's driver reads what it is offered once, when it starts: this is for the next
            // session.
            NicKind::VhostUser => {
                self.vhost.change(PortKey(request.slot.0), options(request));
                Ok(())
            }
            NicKind::Tap => self.reconfigure_tap(request),
            NicKind::Bench(kind) => {
                bench_port(request.nic, kind).and_then(|port| self.attach(request.slot, port))
            }
        };
        if let Err(e) = done {
            tracing::warn!("NIC '{}' keeps its old values: {e}", request.nic.id);
        }
    }

    fn trace(&mut self, nic: &Nic, path: &str) -> Result<Option<Trace>, AttachError> {
        let trace = Trace::open(&self.trace_dir, Path::new(path), nic.id.as_str());
        trace
            .map(Some)
            .map_err(|e| AttachError(format!("packet trace {path}: {e}")))
    }
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

fn options(request: &OpenRequest<'_>) -> NicOptions {
    NicOptions {
        name: request.nic.id.to_string(),
        mac: request.nic.mac,
        mtu: Some(request.mtu),
        offloads: request.offloads,
        link_up: !request.nic.link_down,
        pairs: MAX_PAIRS,
    }
}

/// The vhost-user server's way to the workers.
struct Sink {
    switch: Arc<Switch>,
    states: PortStates,
}

impl PortSink for Sink {
    fn attach(&self, key: PortKey, pair: u16, port: Port) {
        // A worker that is gone takes no port: the daemon is stopping.
        let _ = self.switch.attach(queue(key, pair), port);
    }

    fn detach(&self, key: PortKey, pair: u16) -> Option<Port> {
        self.switch.detach(queue(key, pair)).ok().flatten()
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
