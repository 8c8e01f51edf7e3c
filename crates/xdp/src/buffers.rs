//! Which interfaces have packets that are buffers of the kernel's from the start, and not frames of
//! a wire.

use sys::ethtool;

/// What makes an interface one whose packets are the kernel's own buffers: with checksums that are
/// only begun, segments not cut yet, VLAN tags beside the frame. `kind` is the kernel's word for
/// what it is (IFLA_INFO_KIND), none for hardware; `name` is that in the caller's network
/// namespace. `None`: its packets come as frames.
///
/// A virtio device is one of these as long as its other side may leave checksums begun
/// (VIRTIO_NET_F_GUEST_CSUM), which it does for the host's own packets and other guests'.
pub fn of_buffers(name: &str, kind: Option<&str>) -> Option<String> {
    match kind {
        // A bond is what its ports are, a VLAN what it lies on, a DSA port a switch's socket.
        Some("bond" | "vlan" | "dsa") => None,
        Some(kind) => Some(kind.to_owned()),
        None => {
            let driver = ethtool::driver(name)?;
            let begun =
                driver == "virtio_net" && ethtool::vouches_for_checksums(name) == Some(true);
            begun.then_some(driver)
        }
    }
}
