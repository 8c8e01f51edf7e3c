//! A guest to start: its NICs, what their drivers are offered, and QEMU's command line for it.

use crate::image::Image;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where the other end of a NIC is.
#[derive(Clone, Debug)]
pub enum Wire {
    /// The vhost-user socket of a switch, which listens. QEMU connects, and again when the switch was away.
    VhostUser(PathBuf),
    /// The same the other way round: QEMU listens, and goes on without the switch once it was there. QEMU waits for it
    /// before the guest boots.
    VhostUserServer(PathBuf),
    /// A socket that another QEMU listens on: two guests joined without any switch.
    Connect(PathBuf),
    /// A socket that this QEMU listens on.
    Listen(PathBuf),
}

/// A NIC, and what its driver is offered. Start from [`Nic::new`], which offers everything.
#[derive(Clone, Debug)]
pub struct Nic {
    /// Where the other end is.
    pub wire: Wire,
    /// Its Ethernet address.
    pub mac: String,
    /// VIRTIO_NET_F_CSUM and GUEST_CSUM. Without it there is no segmentation offload either.
    pub checksum: bool,
    /// VIRTIO_NET_F_HOST_TSO4, HOST_TSO6, GUEST_TSO4, GUEST_TSO6.
    pub segmentation: bool,
    /// VIRTIO_NET_F_MRG_RXBUF.
    pub mergeable: bool,
    /// VIRTIO_RING_F_EVENT_IDX.
    pub event_index: bool,
    /// VIRTIO_RING_F_INDIRECT_DESC.
    pub indirect: bool,
    /// VIRTIO_F_RING_PACKED, which QEMU offers only when told to.
    pub packed: bool,
    /// VIRTIO_NET_F_GUEST_ANNOUNCE: the guest says where it is when QEMU tells it to. Without it the switch is told to.
    pub announce: bool,
    /// VIRTIO_NET_F_MTU: the MTU that QEMU tells the guest and the switch.
    pub mtu: Option<u16>,
    /// Pairs of queues; more than one turns VIRTIO_NET_F_MQ on.
    pub queue_pairs: u16,
}

impl Nic {
    /// A NIC that is offered every feature of split rings, with one pair of queues.
    pub fn new(wire: Wire, mac: &str) -> Self {
        Self {
            wire,
            mac: mac.to_owned(),
            checksum: true,
            segmentation: true,
            mergeable: true,
            event_index: true,
            indirect: true,
            packed: false,
            announce: true,
            mtu: None,
            queue_pairs: 1,
        }
    }

    /// A NIC that is offered nothing that can be refused.
    pub fn plain(wire: Wire, mac: &str) -> Self {
        let everything = Self::new(wire, mac);
        Self {
            checksum: false,
            segmentation: false,
            mergeable: false,
            event_index: false,
            indirect: false,
            ..everything
        }
    }

    fn arguments(&self, index: usize, accelerator: &str) -> Vec<String> {
        let on = |value: bool| if value { "on" } else { "off" };
        let vhost_user = |path: &Path, end: &str| {
            let pairs = self.queue_pairs;
            (
                format!("vhost-user,id=net{index},chardev=vhost{index},vhostforce=on,queues={pairs}"),
                Some(format!("socket,id=vhost{index},path={},{end}", path.display())),
            )
        };
        let (netdev, chardev) = match &self.wire {
            Wire::VhostUser(path) => vhost_user(path, "reconnect=1"),
            Wire::VhostUserServer(path) => vhost_user(path, "server=on,wait=off"),
            Wire::Connect(path) => (stream(index, "off", path), None),
            Wire::Listen(path) => (stream(index, "on", path), None),
        };
        let (checksum, segmentation) = (on(self.checksum), on(self.checksum && self.segmentation));
        let mut device = format!(
            "virtio-net-pci,netdev=net{index},mac={},romfile=,mrg_rxbuf={},csum={checksum},guest_csum={checksum},\
             event_idx={},indirect_desc={},packed={},\
             guest_announce={},host_mtu={}",
            self.mac,
            on(self.mergeable),
            on(self.event_index),
            on(self.indirect),
            on(self.packed),
            on(self.announce),
            self.mtu.unwrap_or(0),
        );
        for feature in ["gso", "host_tso4", "host_tso6", "guest_tso4", "guest_tso6"] {
            device += &format!(",{feature}={segmentation}");
        }
        if self.queue_pairs > 1 {
            device += ",mq=on";
        }
        // QEMU 7.2 without KVM crashes when a vhost device starts with MSI-X (msix_set_vector_notifiers takes vectors
        // for KVM's): the guest then gets one interrupt line for all.
        let vectors = if accelerator == "kvm" {
            2 * self.queue_pairs + 2
        } else {
            0
        };
        device += &format!(",vectors={vectors}");
        let mut words: Vec<String> = Vec::new();
        for (option, value) in [
            ("-chardev", chardev),
            ("-netdev", Some(netdev)),
            ("-device", Some(device)),
        ] {
            if let Some(value) = value {
                words.extend([option.to_owned(), value]);
            }
        }
        words
    }
}

fn stream(index: usize, server: &str, path: &Path) -> String {
    format!(
        "stream,id=net{index},server={server},addr.type=unix,addr.path={}",
        path.display()
    )
}

/// A guest to start.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Its name, in messages.
    pub name: String,
    /// `eth0`, `eth1`, …
    pub nics: Vec<Nic>,
    /// Processors.
    pub processors: u16,
    /// Memory, shared with the switch.
    pub memory_mib: u32,
    /// Up to where memory can be plugged in while it runs.
    pub memory_max_mib: Option<u32>,
    /// How long it may take until its agent answers.
    pub boot_timeout: Duration,
}

impl Machine {
    /// A small machine without NICs.
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            nics: Vec::new(),
            processors: 1,
            memory_mib: 160,
            memory_max_mib: None,
            boot_timeout: Duration::from_secs(120),
        }
    }

    /// The same with one more NIC.
    pub fn with(mut self, nic: Nic) -> Self {
        self.nics.push(nic);
        self
    }
}

/// QEMU's command line for a machine whose files are in `dir`.
pub(super) fn arguments(image: &Image, machine: &Machine, dir: &Path) -> Vec<String> {
    let memory = format!("{}M", machine.memory_mib);
    let memory_option = match machine.memory_max_mib {
        Some(max) => format!("{memory},slots=8,maxmem={max}M"),
        None => memory.clone(),
    };
    let socket = |id: &str| {
        format!(
            "socket,id={id},path={},server=on,wait=off",
            dir.join(id).display()
        )
    };
    let console = format!(
        "{},logfile={}",
        socket("console"),
        dir.join("console.log").display()
    );
    let mut words: Vec<String> = [
        "qemu-system-x86_64",
        "-name",
        &machine.name,
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        "-machine",
        "pc,memory-backend=mem",
        "-accel",
        &image.accelerator,
        "-cpu",
        "max",
        "-smp",
        &machine.processors.to_string(),
        "-m",
        &memory_option,
        "-object",
        &format!("memory-backend-memfd,id=mem,size={memory},share=on"),
        "-kernel",
        &image.kernel.display().to_string(),
        "-initrd",
        &image.initramfs.display().to_string(),
        "-append",
        "console=ttyS0 quiet panic=-1 no_timer_check mitigations=off random.trust_cpu=on",
        "-chardev",
        &console,
        "-serial",
        "chardev:console",
        "-chardev",
        &socket("agent"),
        "-serial",
        "chardev:agent",
        "-chardev",
        &socket("monitor"),
        "-mon",
        "chardev=monitor,mode=readline",
    ]
    .map(str::to_owned)
    .to_vec();
    words.extend(
        machine
            .nics
            .iter()
            .enumerate()
            .flat_map(|(index, nic)| nic.arguments(index, &image.accelerator)),
    );
    words
}
