//! Opening a TAP device: the ioctls of `/dev/net/tun` and of network interfaces.
//!
//! Safe code would not do: the kernel's network ioctls take a `struct ifreq`, a union.

use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use rustix::net::{AddressFamily, SocketType};
use rustix::thread::LinkNameSpaceType;
use wire::Mac;
use wire::virtio_net::HDR_LEN_MRG;

const CONTROL: &str = "/dev/net/tun";

/// What a TAP device is to be like.
#[derive(Clone, Debug)]
pub struct TapOptions {
    /// The interface's name: 1 to 15 bytes, none of them `/`, `:`, `%`, a space or a control
    /// character.
    pub name: String,
    /// The interface's MAC address. The namespace that uses the interface is the guest, so this is
    /// the NIC's.
    pub mac: Mac,
    /// The interface's MTU; the kernel's default (1500) without.
    pub mtu: Option<u16>,
    /// Frames may leave their checksum and segmentation undone in both directions.
    pub offloads: bool,
}

/// Why a TAP device is not there. Each message names the interface.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// The name cannot be an interface's.
    #[error(
        "TAP interface name '{0}' is not 1 to 15 bytes without '/', ':', '%', spaces and control \
         characters"
    )]
    Name(String),
    /// A descriptor that was kept is of no interface any more: it was removed.
    #[error("TAP interface '{0}' was removed")]
    Removed(String),
    /// A descriptor that was kept is of something else than what [`TapPort::open`] makes.
    ///
    /// [`TapPort::open`]: super::TapPort::open
    #[error("TAP interface '{name}': {what}")]
    NotOurs {
        /// The interface that was expected.
        name: String,
        /// What there is instead.
        what: String,
    },
    /// An interface of that name exists already.
    #[error("TAP interface '{0}' cannot be made: an interface of that name exists")]
    Exists(String),
    /// The kernel refused a step.
    #[error("TAP interface '{name}': {step}: {error}")]
    Step {
        /// The interface.
        name: String,
        /// What was being done.
        step: &'static str,
        /// What the kernel said.
        error: io::Error,
    },
}

/// An open device.
pub(super) struct Device {
    pub fd: OwnedFd,
    /// The kernel knows UDP segmentation on TAP devices (Linux 6.2).
    pub uso: bool,
}

/// The kernel's end of devices that are to be made or opened, for the one of this name.
fn open_control(name: &str) -> Result<File, TapError> {
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(CONTROL);
    opened.map_err(|error| TapError::Step {
        name: name.to_owned(),
        step: "opening /dev/net/tun",
        error,
    })
}

/// Makes the interface, sets it up as the options say and, if that is wanted, brings it up.
///
/// It is not persistent: it goes when its last descriptor is closed, wherever it was moved. It is
/// *up* in the namespace where it was made, so that it works at once when it stays there; moving it
/// to another namespace takes it down (the kernel does), and whoever moves it sets it up there.
/// While it stays here, this host's own stack is the guest: router advertisements are not taken
/// from it.
pub(super) fn open(options: &TapOptions, up: bool) -> Result<Device, TapError> {
    let name = options.name.as_str();
    if !is_valid_name(name) {
        return Err(TapError::Name(name.to_owned()));
    }
    let step = |step: &'static str| {
        move |error: io::Error| TapError::Step {
            name: name.to_owned(),
            step,
            error,
        }
    };
    let file = open_control(name)?;
    create(&file, name).map_err(|error| match error.raw_os_error() {
        Some(libc::EBUSY | libc::EEXIST) => TapError::Exists(name.to_owned()),
        _ => step("TUNSETIFF")(error),
    })?;
    let uso = settle(&file, options).map_err(|(what, error)| step(what)(error))?;

    let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)
        .map_err(|error| step("opening a socket")(error.into()))?;
    set_mac(&socket, name, options.mac).map_err(step("setting its MAC address"))?;
    if let Some(mtu) = options.mtu {
        set_mtu(&socket, name, mtu).map_err(step("setting its MTU"))?;
    }
    refuse_router_advertisements(name);
    if up {
        set_up(&socket, name).map_err(step("setting it up"))?;
    }
    Ok(Device {
        fd: file.into(),
        uso,
    })
}

/// A TAP device that a VMM opens by its name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MachineTap {
    /// The interface's name, as [`TapOptions::name`].
    pub name: String,
    /// The user who may open it, beside those who have CAP_NET_ADMIN.
    pub uid: Option<u32>,
    /// Whose group may. With a user, both have to be the opener's. With neither nobody else may.
    pub gid: Option<u32>,
    /// It has several queues, of which a VMM opens one after the other, and has to say so.
    pub multi_queue: bool,
}

/// A TAP device for a VMM that this process has open, down, and that root alone may open beside it.
/// Dropped, a new one goes, unless somebody else has opened it before it was closed to them.
#[derive(Debug)]
pub struct HeldTap {
    file: File,
    name: String,
    wanted: MachineTap,
}

impl HeldTap {
    /// One that is there, and open to nobody; or a new one. That has a name that nobody can foresee
    /// until it is handed over: a new device is anybody's until it is told whose it is, and who
    /// knows its name can ask for it without end. Needs CAP_NET_ADMIN.
    ///
    /// # Errors
    /// [`TapError::Exists`]: somebody has it open, or it has another number of queues.
    pub fn open(wanted: &MachineTap, is_there: bool) -> Result<Self, TapError> {
        let shown = wanted.name.as_str();
        if !is_valid_name(shown) {
            return Err(TapError::Name(shown.to_owned()));
        }
        let step = |step: &'static str| {
            move |error: io::Error| TapError::Step {
                name: shown.to_owned(),
                step,
                error,
            }
        };
        let name = match is_there {
            true => shown.to_owned(),
            // With twelve digits it is as long as a name can be.
            false => format!("tap{:012x}", RandomState::new().hash_one(shown) >> 16),
        };
        let file = open_control(shown)?;
        let queues = match wanted.multi_queue {
            true => libc::IFF_MULTI_QUEUE,
            false => 0,
        };
        let mut request = request(&name);
        let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | queues;
        request.ifr_ifru.ifru_flags = flags as libc::c_short;
        ioctl(&file, libc::TUNSETIFF, &mut request).map_err(|error| {
            match error.raw_os_error() {
                Some(libc::EBUSY | libc::EINVAL) => TapError::Exists(shown.to_owned()),
                _ => step("TUNSETIFF")(error),
            }
        })?;
        // A user cannot be taken back: where a group alone may open it, root's may until then.
        let (number, what) = match (wanted.uid, wanted.gid) {
            (None, Some(_)) => (libc::TUNSETGROUP, "TUNSETGROUP"),
            _ => (libc::TUNSETOWNER, "TUNSETOWNER"),
        };
        set_value(&file, number, 0).map_err(step(what))?;
        Ok(HeldTap {
            file,
            name,
            wanted: wanted.clone(),
        })
    }

    /// What it is called now.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Gives it its name and its owner, and has it stay.
    ///
    /// # Errors
    /// [`TapError::Exists`]: the name is another interface's.
    pub fn hand_over(self) -> Result<(), TapError> {
        let name = self.wanted.name.as_str();
        let step = |step: &'static str| {
            move |error: io::Error| TapError::Step {
                name: name.to_owned(),
                step,
                error,
            }
        };
        if self.name != name {
            rename(&self.name, name).map_err(|error| match error.raw_os_error() {
                Some(libc::EEXIST) => TapError::Exists(name.to_owned()),
                _ => step("naming it")(error),
            })?;
        }
        refuse_router_advertisements(name);
        // The group first: with a user both have to be the opener's.
        for (number, id, what) in [
            (libc::TUNSETGROUP, self.wanted.gid, "TUNSETGROUP"),
            (libc::TUNSETOWNER, self.wanted.uid, "TUNSETOWNER"),
        ] {
            if let Some(id) = id {
                set_value(&self.file, number, id).map_err(step(what))?;
            }
        }
        set_value(&self.file, libc::TUNSETPERSIST, 1).map_err(step("TUNSETPERSIST"))
    }
}

/// Takes up a device that [`open`] has made in another process, wherever it was moved and whatever
/// it was renamed to since: addresses, routes and whether it is set up are its user's. What is set
/// again is how frames are passed here.
pub(super) fn adopt(fd: OwnedFd, options: &TapOptions) -> Result<Device, TapError> {
    let name = options.name.as_str();
    let step = |step: &'static str| {
        move |error: io::Error| TapError::Step {
            name: name.to_owned(),
            step,
            error,
        }
    };
    let file = File::from(fd);
    let mut current = request(name);
    ioctl(&file, libc::TUNGETIFF, &mut current).map_err(|e| match e.raw_os_error() {
        Some(libc::EBADFD) => TapError::Removed(name.to_owned()),
        Some(libc::ENOTTY | libc::EINVAL) => TapError::NotOurs {
            name: name.to_owned(),
            what: "what was kept is no TAP device".to_owned(),
        },
        _ => step("TUNGETIFF")(e),
    })?;
    // SAFETY: TUNGETIFF has filled `ifru_flags`, which any bits are valid for anyway.
    let flags = libc::c_int::from(unsafe { current.ifr_ifru.ifru_flags });
    let ours = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    if flags & (ours | libc::IFF_TUN) != ours {
        return Err(TapError::NotOurs {
            name: name.to_owned(),
            what: format!("what was kept has the flags {flags:#x}"),
        });
    }
    let uso = settle(&file, options).map_err(|(what, error)| step(what)(error))?;
    Ok(Device {
        fd: file.into(),
        uso,
    })
}

/// How frames are passed between the device and us; whether it knows UDP segmentation.
fn settle(file: &File, options: &TapOptions) -> Result<bool, (&'static str, io::Error)> {
    set_int(file, libc::TUNSETVNETHDRSZ, HDR_LEN_MRG as libc::c_int)
        .map_err(|e| ("TUNSETVNETHDRSZ", e))?;
    set_int(file, libc::TUNSETVNETLE, 1).map_err(|e| ("TUNSETVNETLE", e))?;
    set_offloads(file, options.offloads).map_err(|e| ("TUNSETOFFLOAD", e))
}

/// Sets MAC and MTU of a device that is open. The descriptor takes the MAC in any namespace; the
/// MTU is set by a socket of the namespace where the interface is now, made by a thread that goes
/// there.
pub(super) fn reconfigure(
    fd: &OwnedFd,
    name: &str,
    mac: Mac,
    mtu: Option<u16>,
) -> Result<(), TapError> {
    let step = |step: &'static str| {
        move |error: io::Error| TapError::Step {
            name: name.to_owned(),
            step,
            error,
        }
    };
    set_mac(fd, name, mac).map_err(step("setting its MAC address"))?;
    let Some(mtu) = mtu else { return Ok(()) };
    let set = || {
        let mut current = request(name);
        ioctl(fd, libc::TUNGETIFF, &mut current)?;
        let socket = socket_beside(fd)?;
        current.ifr_ifru.ifru_mtu = mtu.into();
        ioctl(&socket, libc::SIOCSIFMTU, &mut current)
    };
    set().map_err(step("setting its MTU"))
}

/// The index of a device that is in this thread's network namespace; `None`: it is in another.
pub(super) fn index_here(fd: &OwnedFd) -> io::Result<Option<u32>> {
    let place = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
    let there = place(rustix::fs::fstat(namespace(fd)?)?);
    if there != place(rustix::fs::stat("/proc/thread-self/ns/net")?) {
        return Ok(None);
    }
    let mut current = request("");
    ioctl(fd, libc::TUNGETIFF, &mut current)?;
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    ioctl(&socket, libc::SIOCGIFINDEX, &mut current)?;
    // SAFETY: SIOCGIFINDEX has filled `ifru_ifindex`, which any bits are valid for anyway.
    Ok(u32::try_from(unsafe { current.ifr_ifru.ifru_ifindex }).ok())
}

/// The network namespace where the device is.
fn namespace(fd: &OwnedFd) -> io::Result<OwnedFd> {
    // SAFETY: TUNGETDEVNETNS takes no argument.
    let namespace = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNGETDEVNETNS, 0) };
    check(namespace)?;
    // SAFETY: the call has just made this descriptor, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(namespace) })
}

/// A socket in the network namespace where the device is.
fn socket_beside(fd: &OwnedFd) -> io::Result<OwnedFd> {
    let namespace = namespace(fd)?;
    let thread = std::thread::Builder::new().name("tap".to_owned());
    let there = thread.spawn(move || {
        // This thread alone, which ends at once.
        rustix::thread::move_into_link_name_space(
            namespace.as_fd(),
            Some(LinkNameSpaceType::Network),
        )?;
        Ok(rustix::net::socket(
            AddressFamily::INET,
            SocketType::DGRAM,
            None,
        )?)
    })?;
    there
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("the thread in its namespace panicked")))
}

fn is_valid_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_graphic() && !b"/:%".contains(&byte);
    (1..libc::IFNAMSIZ).contains(&name.len())
        && name.bytes().all(allowed)
        && name != "."
        && name != ".."
}

fn create(file: &File, name: &str) -> io::Result<()> {
    // Not in libc: refuse an interface that exists, instead of joining it.
    const IFF_TUN_EXCL: libc::c_int = 0x8000;
    let mut request = request(name);
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | IFF_TUN_EXCL;
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    ioctl(file, libc::TUNSETIFF, &mut request)
}

/// Says which frames we take with work left undone; the kernel tells the interface's user. True
/// when UDP segmentation is among them.
fn set_offloads(file: &File, offloads: bool) -> io::Result<bool> {
    if !offloads {
        set_value(file, libc::TUNSETOFFLOAD, 0)?;
        return Ok(false);
    }
    let tcp = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
    if set_value(
        file,
        libc::TUNSETOFFLOAD,
        tcp | libc::TUN_F_USO4 | libc::TUN_F_USO6,
    )
    .is_ok()
    {
        return Ok(true);
    }
    set_value(file, libc::TUNSETOFFLOAD, tcp)?;
    Ok(false)
}

fn set_mac(socket: &OwnedFd, name: &str, mac: Mac) -> io::Result<()> {
    let mut request = request(name);
    let mut data = [0 as libc::c_char; 14];
    for (to, from) in data.iter_mut().zip(mac.0) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_hwaddr = libc::sockaddr {
        sa_family: libc::ARPHRD_ETHER,
        sa_data: data,
    };
    ioctl(socket, libc::SIOCSIFHWADDR, &mut request)
}

fn set_mtu(socket: &OwnedFd, name: &str, mtu: u16) -> io::Result<()> {
    let mut request = request(name);
    request.ifr_ifru.ifru_mtu = mtu.into();
    ioctl(socket, libc::SIOCSIFMTU, &mut request)
}

/// Gives an interface that is down another name.
fn rename(from: &str, to: &str) -> io::Result<()> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    let mut renaming = request(from);
    renaming.ifr_ifru.ifru_newname = request(to).ifr_name;
    ioctl(&socket, libc::SIOCSIFNAME, &mut renaming)
}

fn set_up(socket: &OwnedFd, name: &str) -> io::Result<()> {
    let mut request = request(name);
    ioctl(socket, libc::SIOCGIFFLAGS, &mut request)?;
    // SAFETY: SIOCGIFFLAGS has filled `ifru_flags`, which any bits are valid for anyway.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    request.ifr_ifru.ifru_flags = flags | libc::IFF_UP as libc::c_short;
    ioctl(socket, libc::SIOCSIFFLAGS, &mut request)
}

/// A guest of the same network is not to set routes of this host. No IPv6 here: nothing to refuse.
/// No message of netlink says it (Linux' inet6_set_link_af() takes the token, and how addresses are
/// made); the shipped systemd unit leaves these settings to be written.
fn refuse_router_advertisements(name: &str) {
    let path = format!("/proc/sys/net/ipv6/conf/{name}/accept_ra");
    if let Err(e) = std::fs::write(&path, "0")
        && e.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(
            "{path} cannot be set to 0 ({e}): until the interface is moved, this host may take \
             routes from a machine of its network that may send router advertisements"
        );
    }
}

/// An `ifreq` that names the interface, everything else zero.
fn request(name: &str) -> libc::ifreq {
    // SAFETY: all of an ifreq, unions included, is integers, arrays of them and a pointer: zero is
    // valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // One byte less than the array: the name ends with a zero (see `is_valid_name`).
    for (to, from) in request.ifr_name[..libc::IFNAMSIZ - 1]
        .iter_mut()
        .zip(name.bytes())
    {
        *to = from as libc::c_char;
    }
    request
}

fn ioctl(fd: &impl AsRawFd, number: libc::Ioctl, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: the numbers that this is called with read and write one `struct ifreq`, which
    // `request` is.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), number, std::ptr::from_mut(request)) })
}

fn set_int(file: &File, number: libc::Ioctl, value: libc::c_int) -> io::Result<()> {
    // SAFETY: the numbers that this is called with read one int.
    check(unsafe { libc::ioctl(file.as_fd().as_raw_fd(), number, &raw const value) })
}

fn set_value(file: &File, number: libc::Ioctl, value: libc::c_uint) -> io::Result<()> {
    // SAFETY: the numbers that this is called with take their argument by value.
    check(unsafe { libc::ioctl(file.as_fd().as_raw_fd(), number, libc::c_ulong::from(value)) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_the_kernel_takes_literally() {
        for good in ["a", "tap0", "nic-1.2_x", "fifteen-bytes-x"] {
            assert!(is_valid_name(good), "{good}");
        }
        for bad in [
            "",
            "sixteen-bytes-xx",
            "a/b",
            "a b",
            "tap%d",
            "eth0:1",
            ".",
            "..",
            "tab\t",
            "n\0",
            "grün",
        ] {
            assert!(!is_valid_name(bad), "{bad:?}");
        }
    }
}
