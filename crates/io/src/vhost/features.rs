//! Feature bits: what is offered to a guest (virtio) and to its VMM (vhost-user).
//!
//! The numbers are those of virtio 1.2 (sections 5.1.3 and 6) and of QEMU's vhost-user
//! specification.

use crate::vhost::nic_options::NicOptions;

macro_rules! bits {
    ($($(#[$doc:meta])* $name:ident = $bit:literal;)*) => {
        $($(#[$doc])* pub const $name: u64 = 1 << $bit;)*
        /// All of them by name.
        pub const NAMES: &[(&str, u64)] = &[$((stringify!($name), $name)),*];
    };
}

bits! {
    /// The device takes frames with a partial checksum.
    CSUM = 0;
    /// The driver takes frames with a partial checksum.
    GUEST_CSUM = 1;
    /// The device tells the driver its MTU.
    MTU = 3;
    /// The device tells the driver its MAC address.
    MAC = 5;
    /// The driver takes TCP/IPv4 frames to be segmented.
    GUEST_TSO4 = 7;
    /// The driver takes TCP/IPv6 frames to be segmented.
    GUEST_TSO6 = 8;
    /// The driver takes frames to be segmented whose flow uses ECN.
    GUEST_ECN = 9;
    /// The device takes TCP/IPv4 frames to be segmented.
    HOST_TSO4 = 11;
    /// The device takes TCP/IPv6 frames to be segmented.
    HOST_TSO6 = 12;
    /// The device takes frames to be segmented whose flow uses ECN.
    HOST_ECN = 13;
    /// A received frame may take several buffers of the driver.
    MRG_RXBUF = 15;
    /// The device tells the driver whether its link is up.
    STATUS = 16;
    /// There is a control queue. It is the VMM's own: QEMU, virtio-user and cloud-hypervisor answer
    /// it themselves and never hand it over. Offered all the same: cloud-hypervisor gives its guest
    /// nothing but what is offered, and without this no [`MQ`] nor [`GUEST_ANNOUNCE`] (virtio 1.2,
    /// section 5.1.3.1). A VMM that hands it over behind the last pair is told that there is no
    /// such ring, and loses its connection: a guest that waits for an answer would wait for ever.
    CTRL_VQ = 17;
    /// The driver can announce itself to the network. With it a VMM has a guest that was moved here
    /// do so, with all of its addresses, and does not ask for it here (SEND_RARP).
    GUEST_ANNOUNCE = 21;
    /// Several queue pairs.
    MQ = 22;
    /// Not a feature of the device, and never a guest's: while its VMM moves it to another host,
    /// what is written into its memory is noted ([`protocol::LOG_SHMFD`]).
    LOG_ALL = 26;
    /// Not a feature of the device: the VMM and this side negotiate [`protocol`] features, and
    /// rings begin disabled.
    PROTOCOL_FEATURES = 30;
    /// Descriptors may refer to a table of descriptors.
    INDIRECT_DESC = 28;
    /// Notifications are asked for by index.
    EVENT_IDX = 29;
    /// The device is not a legacy one.
    VERSION_1 = 32;
    /// Rings are packed ones.
    RING_PACKED = 34;
    /// Buffers are used in the order in which they were made available.
    IN_ORDER = 35;
    /// The driver takes UDP/IPv4 frames to be segmented.
    GUEST_USO4 = 54;
    /// The driver takes UDP/IPv6 frames to be segmented.
    GUEST_USO6 = 55;
    /// The device takes UDP frames to be segmented.
    HOST_USO = 56;
}

/// The names of the bits that are set, from bit 0 up; `bit N` for one that has none here.
pub fn names(features: u64) -> Vec<String> {
    names_in(NAMES, features)
}

fn names_in(table: &[(&str, u64)], features: u64) -> Vec<String> {
    let set = (0..64).filter(|bit| features & (1 << bit) != 0);
    let name = |bit: u32| match table.iter().find(|(_, feature)| *feature == 1 << bit) {
        Some((name, _)) => (*name).to_owned(),
        None => format!("bit {bit}"),
    };
    set.map(name).collect()
}

/// Features of the vhost-user protocol.
pub mod protocol {
    bits! {
        /// Several queue pairs, and the number of them can be asked for.
        MQ = 0;
        /// The VMM hands over where pages that are written are to be noted: see `dirty_log.rs`.
        LOG_SHMFD = 1;
        /// The VMM asks for a guest to be announced to the network.
        RARP = 2;
        /// Requests can be acknowledged.
        REPLY_ACK = 3;
        /// The VMM tells the MTU.
        NET_MTU = 4;
        /// This side can ask the VMM: see `channel.rs`.
        BACKEND_REQ = 5;
        /// The VMM may move a guest here whose memory is still elsewhere: see `post_copy`.
        PAGEFAULT = 8;
        /// The VMM reads the device's configuration space here.
        CONFIG = 9;
        /// The device can be reset.
        RESET_DEVICE = 13;
        /// Regions of the guest's memory come and go one by one.
        CONFIGURE_MEM_SLOTS = 15;
        /// The VMM tells and asks the device's status.
        STATUS = 16;
    }

    /// The names of the bits that are set, as [`super::names`] has them.
    pub fn names(features: u64) -> Vec<String> {
        super::names_in(NAMES, features)
    }

    /// What is offered to every VMM.
    pub const OFFERED: u64 = MQ
        | LOG_SHMFD
        | RARP
        | REPLY_ACK
        | NET_MTU
        | BACKEND_REQ
        | CONFIG
        | RESET_DEVICE
        | CONFIGURE_MEM_SLOTS
        | STATUS;

    /// What is offered to the VMM of this NIC.
    pub fn offered(nic: &super::NicOptions) -> u64 {
        let pages = nic.page_helper.is_some() && sys::userfault::Userfault::can_wait();
        OFFERED | if pages { PAGEFAULT } else { 0 }
    }
}

const ALWAYS: u64 = VERSION_1
    | MAC
    | STATUS
    | CTRL_VQ
    | GUEST_ANNOUNCE
    | LOG_ALL
    | MRG_RXBUF
    | INDIRECT_DESC
    | EVENT_IDX
    | PROTOCOL_FEATURES
    | RING_PACKED
    | IN_ORDER;

/// Everything that saves a guest computing checksums or cutting segments.
pub const OFFLOADS: u64 = CSUM
    | GUEST_CSUM
    | HOST_TSO4
    | HOST_TSO6
    | HOST_ECN
    | HOST_USO
    | GUEST_TSO4
    | GUEST_TSO6
    | GUEST_ECN
    | GUEST_USO4
    | GUEST_USO6;

/// What is offered to a guest. Without `offloads` every frame is complete in both directions.
pub fn offered(nic: &NicOptions) -> u64 {
    let when = |wanted: bool, bits: u64| if wanted { bits } else { 0 };
    ALWAYS | when(nic.offloads, OFFLOADS) | when(nic.mtu.is_some(), MTU) | when(nic.pairs() > 1, MQ)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_named_from_the_lowest_bit_up() {
        assert_eq!(names(0), [""; 0]);
        assert_eq!(
            protocol::names(protocol::REPLY_ACK | 1 << 6),
            ["REPLY_ACK", "bit 6"]
        );
        assert_eq!(
            names(1 << 63 | VERSION_1 | MRG_RXBUF | CSUM),
            ["CSUM", "MRG_RXBUF", "VERSION_1", "bit 63"]
        );
    }
}
