//! A NIC of a guest: where its other end is, what its driver is offered, and QEMU's options for it.

use super::taps;
use crate::netns::Namespace;
use std::path::{Path, PathBuf};

/// Where the other end of a NIC is.
#[derive(Clone, Debug)]
pub enum Wire {
    /// The vhost-user socket of a switch, which listens. QEMU connects, and again when the switch
    /// was away.
    VhostUser(PathBuf),
    /// A vhost-user socket that QEMU listens on and the switch connects to. QEMU goes on without
    /// the switch once it was there. QEMU waits for it before the guest boots.
    VhostUserServer(PathBuf),
    /// A socket that another QEMU listens on: two guests joined without any switch.
    Connect(PathBuf),
    /// A socket that this QEMU listens on.
    Listen(PathBuf),
    /// A TAP device in a namespace: the guest is on a cable with what the kernel of this machine
    /// has there. See [`Wire::tap`].
    Tap {
        /// The process that holds the namespace.
        namespace: u32,
        /// The name of the device there.
        device: String,
    },
    /// A TAP device of this namespace that is there already: QEMU opens it by its name.
    HostTap(String),
}

impl Wire {
    /// A TAP device of this name in a namespace, where it is up once the guest has been started and
    /// gone when the guest is. It has no address and belongs to no bridge; both are the caller's to
    /// give.
    pub fn tap(namespace: &Namespace, device: &str) -> Self {
        Self::Tap {
            namespace: namespace.pid(),
            device: device.to_owned(),
        }
    }
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
    /// VIRTIO_NET_F_GUEST_ANNOUNCE: the guest says where it is when QEMU tells it to. Without it
    /// the switch is told to.
    pub announce: bool,
    /// VIRTIO_NET_F_MTU: the MTU that QEMU tells the guest and the switch.
    pub mtu: Option<u16>,
    /// Pairs of queues; more than one turns VIRTIO_NET_F_MQ on.
    pub queue_pairs: u16,
    /// It is VMware's and not virtio: none of the features above is its. The guest loads `vmxnet3`.
    pub vmware: bool,
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
            vmware: false,
        }
    }

    /// This NIC as VMware's model of one (vmxnet3): Linux 6.1 has no native XDP for it, and it
    /// takes VLAN tags out of frames.
    pub fn of_vmware(self) -> Self {
        Self {
            vmware: true,
            ..self
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

    /// QEMU's options for it. `index` is its place among the machine's NICs.
    pub(super) fn arguments(&self, index: usize, accelerator: &str) -> Vec<String> {
        let on = |value: bool| if value { "on" } else { "off" };
        let vhost_user = |path: &Path, end: &str| {
            let pairs = self.queue_pairs;
            (
                format!(
                    "vhost-user,id=net{index},chardev=vhost{index},vhostforce=on,queues={pairs}"
                ),
                Some(format!(
                    "socket,id=vhost{index},path={},{end}",
                    path.display()
                )),
            )
        };
        let (netdev, chardev) = match &self.wire {
            Wire::VhostUser(path) => vhost_user(path, "reconnect=1"),
            Wire::VhostUserServer(path) => vhost_user(path, "server=on,wait=off"),
            Wire::Connect(path) => (stream(index, "off", path), None),
            Wire::Listen(path) => (stream(index, "on", path), None),
            Wire::Tap { .. } | Wire::HostTap(_) => {
                let device = match &self.wire {
                    Wire::HostTap(device) => device.clone(),
                    _ => taps::made_as(index),
                };
                let queues = self.queue_pairs;
                (
                    format!(
                        "tap,id=net{index},ifname={device},script=no,downscript=no,queues={queues}"
                    ),
                    None,
                )
            }
        };
        if self.vmware {
            let device = format!("vmxnet3,netdev=net{index},mac={},romfile=", self.mac);
            return options(chardev, netdev, device);
        }
        let (checksum, segmentation) = (on(self.checksum), on(self.checksum && self.segmentation));
        let mut device = format!(
            "virtio-net-pci,netdev=net{index},mac={},romfile=,mrg_rxbuf={},\
             csum={checksum},guest_csum={checksum},event_idx={},indirect_desc={},packed={},\
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
        // QEMU 7.2 without KVM crashes when a vhost device starts with MSI-X
        // (msix_set_vector_notifiers takes vectors for KVM's): the guest then gets one interrupt
        // line for all.
        let vectors = if accelerator == "kvm" {
            2 * self.queue_pairs + 2
        } else {
            0
        };
        device += &format!(",vectors={vectors}");
        options(chardev, netdev, device)
    }
}

fn options(chardev: Option<String>, netdev: String, device: String) -> Vec<String> {
    let all = [
        ("-chardev", chardev),
        ("-netdev", Some(netdev)),
        ("-device", Some(device)),
    ];
    let given = all
        .into_iter()
        .filter_map(|(option, value)| Some([option.to_owned(), value?]));
    given.flatten().collect()
}

fn stream(index: usize, server: &str, path: &Path) -> String {
    format!(
        "stream,id=net{index},server={server},addr.type=unix,addr.path={}",
        path.display()
    )
}
