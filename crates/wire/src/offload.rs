//! What a sender left undone in a frame: the checksum to complete and the segments to cut.
//!
//! The semantics are those of `struct virtio_net_hdr` (virtio 1.2, section 5.1.6); vhost-user and
//! TAP ports both speak it, and the switch carries it from port to port so that nothing is computed
//! that the receiver takes as it is.

/// How a large frame is to be cut into packets (virtio 1.2, section 5.1.6: `gso_type`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Gso {
    /// The frame is one packet.
    #[default]
    None,
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP over IPv4 or IPv6, each segment a datagram of its own (UDP_L4).
    Udp,
}

/// The offload fields that travel with a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offload {
    /// Where the checksum is to be completed: sum from `start` to the end of the frame, stored at
    /// `start + offset`, which holds the pseudo-header's sum. Offsets in bytes from the Ethernet
    /// header.
    pub checksum: Option<PartialChecksum>,
    /// The sender (or a device) has checked the checksum already (VIRTIO_NET_HDR_F_DATA_VALID).
    pub data_valid: bool,
    /// What kind of segments the frame stands for.
    pub gso: Gso,
    /// Payload bytes of each segment; 0 without `gso`.
    pub gso_size: u16,
    /// The TCP flow uses ECN: only the first segment carries CWR (VIRTIO_NET_HDR_GSO_ECN).
    pub ecn: bool,
}

/// Where a partial checksum starts and where it is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PartialChecksum {
    /// First byte summed, from the Ethernet header.
    pub start: u16,
    /// Where the result goes, from `start`.
    pub offset: u16,
}
