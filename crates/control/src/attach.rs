//! What the controller is handed from outside: settings, and two traits for the world. The daemon
//! implements [`Attachments`] over vhost-user sockets, TAP interfaces and trace files and
//! [`DataPlane`] over its workers; tests implement both over memory.

use crate::error::Error;
use crate::event::NicState;
use crate::limits;
use crate::model::{Mirror, Nic, NicKind};
use dataplane::counters::{PortCounters, RuleCounters};
use dataplane::flow::FlowInfo;
use dataplane::snapshot::{PortSlot, PortUid, RuleSlot, Snapshot};
use dataplane::{FlowCursor, StateMemory, Switch, WorkerGone};
use io::trace::Trace;
use io::trace::capture::Tap;
use std::sync::Arc;

/// What the daemon was started with.
#[derive(Clone, Debug)]
pub struct HostSettings {
    /// Where vhost-user sockets are, absolute.
    pub socket_dir: String,
    /// The MTU of NICs that say none.
    pub default_mtu: u16,
    /// Checksum and segmentation offloads are offered to guests.
    pub offloads: bool,
    /// Beneath which packet traces are written, absolute (the daemon's `--trace-dir`).
    pub trace_dir: String,
    /// `packet_trace` of v0 NICs that say nothing; read by the v0 decoder, not here.
    pub trace_default: bool,
    /// The daemon's process id: part of default trace paths.
    pub pid: u32,
    /// Flows that one NIC may have in the table at a time.
    pub flow_share: u32,
    /// This host reaches others: networks get what is behind them. Without, they end here.
    pub overlay: bool,
    /// Hosts reach each other over IPv6: which multicast group a VNI makes.
    pub underlay_ipv6: bool,
    /// When the daemon started, Unix seconds.
    pub started_unix_secs: u64,
}

impl Default for HostSettings {
    /// `/run/butterfly`, MTU 1500, offloads on, traces off and in `/tmp`, 65,536 flows a NIC.
    fn default() -> HostSettings {
        HostSettings {
            socket_dir: "/run/butterfly".to_owned(),
            default_mtu: 1500,
            offloads: true,
            trace_dir: "/tmp".to_owned(),
            trace_default: false,
            pid: 0,
            flow_share: 65_536,
            overlay: false,
            underlay_ipv6: false,
            started_unix_secs: 0,
        }
    }
}

impl HostSettings {
    /// Where a NIC is attached: its path, or the default of its kind. Empty for a bench NIC.
    pub fn path(&self, nic: &Nic) -> String {
        match (&nic.path, &nic.kind) {
            (_, NicKind::Bench(_)) => String::new(),
            (Some(path), _) => path.clone(),
            (None, NicKind::VhostUser) => format!("{}/qemu-vhost-{}", self.socket_dir, nic.id),
            (None, NicKind::Tap | NicKind::Veth(_) | NicKind::VmTap(_)) => {
                interface_name(nic.id.as_str())
            }
        }
    }

    /// Where a NIC's packets are written when they are, absolute: its path, or the default, beneath
    /// the folder of traces.
    pub fn trace_path(&self, nic: &Nic) -> String {
        let dir = self.trace_dir.trim_end_matches('/');
        match &nic.packet_trace_path {
            Some(path) if path.starts_with('/') => path.clone(),
            Some(path) => format!("{dir}/{path}"),
            None => format!("{dir}/butterfly-{}-{}.pcap", self.pid, nic.id),
        }
    }

    /// Fails when a NIC is traced to a file that is not beneath the folder of traces. Links are the
    /// opener's to refuse.
    fn trace_beneath(&self, nic: &Nic) -> Result<(), Error> {
        let path = self.trace_path(nic);
        let dir = self.trace_dir.trim_end_matches('/');
        let inside = path
            .strip_prefix(dir)
            .and_then(|rest| rest.strip_prefix('/'));
        let sound = |inside: &str| {
            inside
                .split('/')
                .all(|part| !matches!(part, "" | "." | ".."))
        };
        if !nic.packet_trace || inside.is_some_and(sound) {
            return Ok(());
        }
        let why = format!(
            "is not a file beneath {dir}, the folder of traces (trace-dir in the settings, \
             --trace-dir)"
        );
        Err(Error::value(&nic.owner(), "packet trace path", &path, &why))
    }

    /// The largest packet of a NIC.
    pub fn mtu(&self, nic: &Nic) -> u16 {
        nic.mtu.unwrap_or(self.default_mtu)
    }

    /// Drops paths that say the default, so that a dump that is read back is the same; refuses
    /// impossible ones.
    pub(crate) fn normalised(&self, mut nic: Nic) -> Result<Nic, Error> {
        let default = self.path(&Nic {
            path: None,
            ..nic.clone()
        });
        let says_more = |path: &String| !path.is_empty() && *path != default;
        nic.path = nic.path.filter(says_more);
        let default = self.trace_path(&Nic {
            packet_trace_path: None,
            ..nic.clone()
        });
        let says_more = |path: &String| !path.is_empty() && *path != default;
        nic.packet_trace_path = nic.packet_trace_path.filter(says_more);
        self.trace_beneath(&nic)?;
        let path = self.path(&nic);
        let why = match nic.kind {
            NicKind::VhostUser if path.len() > limits::SOCKET_PATH => {
                Some("is longer than a Unix socket's path can be, 107 bytes")
            }
            NicKind::VhostUser if !path.starts_with('/') || path.contains('\0') => {
                Some("is not an absolute path")
            }
            NicKind::Tap | NicKind::Veth(_) | NicKind::VmTap(_) if !is_interface_name(&path) => {
                Some("is not the name of a network interface")
            }
            _ => None,
        };
        match why {
            Some(why) => Err(Error::value(&nic.owner(), "path", &path, why)),
            None => nic.normalised(),
        }
    }
}

/// Interface names as Linux takes them (`dev_valid_name`), and without `%`, which asks the kernel
/// for a number.
pub(crate) fn is_interface_name(name: &str) -> bool {
    (1..=limits::INTERFACE_NAME).contains(&name.len())
        && name != "."
        && name != ".."
        && name
            .bytes()
            .all(|b| b.is_ascii_graphic() && !matches!(b, b'/' | b':' | b'%'))
}

/// The id where that can be an interface's name, else `bf-` and 12 digits made of it (FNV-1a).
fn interface_name(id: &str) -> String {
    if is_interface_name(id) {
        return id.to_owned();
    }
    let hash = id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("bf-{:012x}", hash & 0xffff_ffff_ffff)
}

/// How a NIC is declared at the moment at which its attachment is made, changed or tried again.
/// What it says of things that are others' by now, as a process by its number, is meant as of then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Declared {
    /// It was declared before, by whomever: a start, a change that goes back, or a request that
    /// does not say all of the NIC or whose author has not the whole host.
    Before,
    /// In a document, by somebody who has the whole host. What is in another's hands keeps the NIC
    /// broken, and the document's other parts are made.
    InDocument,
    /// Alone, by somebody who has the whole host, and who is refused what cannot be made.
    Alone,
}

/// One attachment to make or to change.
#[derive(Clone, Copy, Debug)]
pub struct OpenRequest<'a> {
    /// The NIC as it will be.
    pub nic: &'a Nic,
    /// How it is declared.
    pub declared: Declared,
    /// Its port's slot: what the worker knows it by, and the key of its vhost-user listener.
    pub slot: PortSlot,
    /// Where ([`HostSettings::path`]).
    pub path: &'a str,
    /// The MTU to offer.
    pub mtu: u16,
    /// Whether to offer offloads.
    pub offloads: bool,
}

/// Why a socket, interface or file could not be made: a sentence with the operating system's
/// reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct AttachError(pub String);

/// What goes on when the operation that has begun it is over: to be waited for by whoever has asked
/// for the operation, once others have the controller again.
pub struct Ending(Box<dyn FnOnce() + Send>);

impl Ending {
    /// `wait` returns when it is over.
    pub fn new(wait: impl FnOnce() + Send + 'static) -> Ending {
        Ending(Box::new(wait))
    }

    /// Returns when it is over.
    pub fn wait(self) {
        (self.0)();
    }
}

/// Where guests are attached.
pub trait Attachments: Send {
    /// Makes the socket, interface or bench and lets the worker have its port under `slot`. May be
    /// called before the snapshot that knows the slot is in force; the port is then idle until it
    /// is. What only somebody else's hands keep from being made, as a container's root's, is an
    /// error for a NIC that is [declared alone](Declared::Alone); any other is open, and broken.
    fn open(&mut self, request: &OpenRequest<'_>) -> Result<(), AttachError>;

    /// The NIC's socket is from now on whom the NIC says ([`Nic::socket`]); who is connected stays.
    /// Called before the change is in force, and to undo that. What is refused has changed nothing.
    /// Does nothing by default.
    fn give_socket(&mut self, request: &OpenRequest<'_>) -> Result<(), AttachError> {
        let _ = request;
        Ok(())
    }

    /// Ends what `open` made for these NICs: workers give the ports back, sockets go, and the slots
    /// may be others' when this returns. What takes the kernel long, the removal of an interface,
    /// may go on: [`Attachments::ending`]. Called when no snapshot in force knows the slots any
    /// more, or to undo `open` when a later step failed.
    fn close(&mut self, gone: &[(Arc<Nic>, PortSlot)]);

    /// What goes on of all that was closed since this was last asked. `None`: nothing does.
    fn ending(&mut self) -> Option<Ending> {
        None
    }

    /// The NIC keeps its attachment, and its MAC, its MTU, its link or (bench and veth only) its
    /// addresses changed, or where a veth leads to. What a guest that is connected learns of it is
    /// the implementation's matter; a guest that connects later sees the new values. Called when
    /// the change is in force in the data plane. Does nothing by default.
    fn reconfigure(&mut self, request: &OpenRequest<'_>) {
        let _ = request;
    }

    /// How the attachments of these NICs are now, in their order, where that is known without
    /// waiting for a guest: what is broken is tried again first. `None`: it is not known. Does
    /// nothing by default.
    fn heal(&mut self, requests: &[OpenRequest<'_>]) -> Vec<Option<NicState>> {
        vec![None; requests.len()]
    }

    /// Starts a packet trace of the NIC in the file `path`. `None` when this implementation writes
    /// none.
    fn trace(&mut self, nic: &Nic, path: &str) -> Result<Option<Trace>, AttachError>;

    /// Begins to send copies of the NIC's frames to a collector: of those that the tap is offered,
    /// until nobody has it any more. `None`, the default, when this implementation sends none.
    fn mirror(&mut self, nic: &Nic, mirror: &Mirror) -> Result<Option<Tap>, AttachError> {
        let _ = (nic, mirror);
        Ok(None)
    }
}

/// Why the data plane did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DataPlaneError(pub String);

/// The workers, all of them as one.
pub trait DataPlane: Send + Sync {
    /// Hands a snapshot to every worker and returns when all use it. An error means that a worker
    /// has ended: others may use this snapshot, and every later one is refused before it is handed
    /// to anybody.
    fn publish(&self, snapshot: Arc<Snapshot>) -> Result<(), DataPlaneError>;
    /// Tells a NIC's network where it is, for its guest: by a RARP request of its MAC (RFC 903).
    /// Of a NIC that no guest is connected to nothing is told. Does nothing by default.
    fn announce(&self, slot: PortSlot) {
        let _ = slot;
    }
    /// What the port's slot has counted since the daemon started, all workers added up.
    fn port_counters(&self, slot: PortSlot) -> PortCounters;
    /// What the rule's slot has counted since the daemon started, all workers added up.
    fn rule_counters(&self, slot: RuleSlot) -> RuleCounters;
    /// Where whose counters are is noted for the process that comes after this one, if it is.
    fn state_memory(&self) -> Option<&StateMemory> {
        None
    }
    /// The tracked connections, of one NIC or of all.
    fn flows(&self, port: Option<PortUid>) -> Result<Vec<FlowInfo>, DataPlaneError>;
    /// Some of them, about `most` at the most, and where the next ones begin; `None`: there are no
    /// more.
    fn flows_page(
        &self,
        port: Option<PortUid>,
        from: FlowCursor,
        most: usize,
    ) -> Result<(Vec<FlowInfo>, Option<FlowCursor>), DataPlaneError> {
        let _ = (from, most);
        Ok((self.flows(port)?, None))
    }
    /// Adds connections to the table; gives back how many were taken.
    fn import_flows(&self, flows: Vec<FlowInfo>) -> Result<usize, DataPlaneError>;
    /// Takes connections out of the table; gives back how many were there.
    fn remove_flows(&self, flows: &[FlowInfo]) -> Result<usize, DataPlaneError>;
}

impl DataPlane for Switch {
    fn publish(&self, snapshot: Arc<Snapshot>) -> Result<(), DataPlaneError> {
        Switch::publish(self, snapshot).map_err(gone)
    }

    fn announce(&self, slot: PortSlot) {
        if self.has_queue_of(slot) {
            // Without workers there is nobody to be told.
            let _ = Switch::announce(self, slot);
        }
    }

    fn port_counters(&self, slot: PortSlot) -> PortCounters {
        Switch::port_counters(self, slot)
    }

    fn rule_counters(&self, slot: RuleSlot) -> RuleCounters {
        Switch::rule_counters(self, slot)
    }

    fn state_memory(&self) -> Option<&StateMemory> {
        Switch::state_memory(self)
    }

    fn flows(&self, port: Option<PortUid>) -> Result<Vec<FlowInfo>, DataPlaneError> {
        Switch::flows(self, port).map_err(gone)
    }

    fn flows_page(
        &self,
        port: Option<PortUid>,
        from: FlowCursor,
        most: usize,
    ) -> Result<(Vec<FlowInfo>, Option<FlowCursor>), DataPlaneError> {
        Switch::flows_page(self, port, from, most).map_err(gone)
    }

    fn import_flows(&self, flows: Vec<FlowInfo>) -> Result<usize, DataPlaneError> {
        Switch::import_flows(self, flows).map_err(gone)
    }

    fn remove_flows(&self, flows: &[FlowInfo]) -> Result<usize, DataPlaneError> {
        Switch::remove_flows(self, flows).map_err(gone)
    }
}

fn gone(e: WorkerGone) -> DataPlaneError {
    DataPlaneError(e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::NicId;

    fn nic(id: &str, kind: NicKind) -> Nic {
        let mac = "52:54:00:12:34:01".parse().unwrap();
        Nic {
            kind,
            ..Nic::new(NicId::new(id).unwrap(), mac, wire::Vni::new(1).unwrap())
        }
    }

    #[test]
    fn default_paths_are_the_contracts() {
        let settings = HostSettings {
            pid: 42,
            ..HostSettings::default()
        };
        let vhost = nic("vnic_1", NicKind::VhostUser);
        assert_eq!(settings.path(&vhost), "/run/butterfly/qemu-vhost-vnic_1");
        assert_eq!(settings.trace_path(&vhost), "/tmp/butterfly-42-vnic_1.pcap");
        let said = Nic {
            path: Some("/run/butterfly/qemu-vhost-vnic_1".to_owned()),
            packet_trace_path: Some("/tmp/butterfly-42-vnic_1.pcap".to_owned()),
            ..vhost.clone()
        };
        assert_eq!(settings.normalised(said).unwrap(), vhost);
    }

    #[test]
    fn paths_that_cannot_be_are_refused() {
        let settings = HostSettings::default();
        let long = nic(&"x".repeat(128), NicKind::VhostUser);
        assert!(
            settings
                .normalised(long)
                .unwrap_err()
                .to_string()
                .contains("107 bytes")
        );
        let relative = Nic {
            path: Some("a/b".to_owned()),
            ..nic("a", NicKind::VhostUser)
        };
        assert!(settings.normalised(relative).is_err());
        let tap = |path: &str| Nic {
            path: Some(path.to_owned()),
            ..nic("a", NicKind::Tap)
        };
        assert!(settings.normalised(tap("tap0")).is_ok());
        for bad in ["a/b", "tap%d", "0123456789abcdef", "a b", ".."] {
            assert!(settings.normalised(tap(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_tap_is_named_after_its_id_where_that_is_a_name() {
        let settings = HostSettings::default();
        assert_eq!(settings.path(&nic("vnic_1", NicKind::Tap)), "vnic_1");
        let long = settings.path(&nic("a-much-longer-nic-id", NicKind::Tap));
        assert!(
            long.starts_with("bf-") && is_interface_name(&long),
            "{long}"
        );
    }
}
