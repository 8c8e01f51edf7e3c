//! A program on an interface: native where the driver does it, generic where not.

use std::fmt;
use std::os::fd::BorrowedFd;

use io::bpf::{XdpLink, XdpMode};
use libbpf_rs::{ProgramHandle, Xdp, XdpFlags};
use rustix::net::{AddressFamily, SocketType, netdevice};

use crate::error::Error;

/// How a program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// In the driver, before the kernel has made anything of a packet.
    Native,
    /// Behind the driver, for drivers that know nothing of XDP: slower, and every packet costs an skb.
    Generic,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Native => "native",
            Mode::Generic => "generic",
        })
    }
}

/// A program that is attached. Dropped, or with the process, it is gone from the interface.
#[derive(Debug)]
pub struct Attachment {
    link: XdpLink,
    ifindex: u32,
    mode: Mode,
    why_generic: Option<String>,
}

/// Attaches a program, in the given mode or, without one, in native mode and where that is refused in generic mode.
///
/// # Errors
/// The interface has a program of somebody else, does not exist (in the caller's network namespace), or refuses.
pub fn attach(program: BorrowedFd<'_>, ifindex: u32, mode: Option<Mode>) -> Result<Attachment, Error> {
    if !exists(ifindex) {
        return Err(Error::NoInterface { ifindex });
    }
    let first = mode.unwrap_or(Mode::Native);
    let refused = match link(program, ifindex, first) {
        Ok(link) => return Ok(Attachment::new(link, ifindex, first, None)),
        Err(refused) => refused,
    };
    let why = match &refused {
        Error::Attach { source, .. } if mode.is_none() => source.to_string(),
        _ => return Err(refused),
    };
    let link = link(program, ifindex, Mode::Generic)?;
    Ok(Attachment::new(link, ifindex, Mode::Generic, Some(why)))
}

impl Attachment {
    fn new(link: XdpLink, ifindex: u32, mode: Mode, why_generic: Option<String>) -> Self {
        Attachment {
            link,
            ifindex,
            mode,
            why_generic,
        }
    }

    /// The interface.
    pub fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// The mode in force.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// What the driver said to native mode, where generic mode was the second choice.
    pub fn why_generic(&self) -> Option<&str> {
        self.why_generic.as_deref()
    }

    /// Puts another program in this one's place; no packet passes between them without one.
    ///
    /// # Errors
    /// The driver refuses, or the interface is gone.
    pub fn replace(&mut self, program: BorrowedFd<'_>) -> Result<(), Error> {
        self.link.replace(program).map_err(|source| Error::Attach {
            ifindex: self.ifindex,
            mode: self.mode,
            source,
        })
    }
}

const EBUSY: i32 = 16;
const EEXIST: i32 = 17;

/// The kernel says EINVAL of an interface that is not there, as it does of much else.
fn exists(ifindex: u32) -> bool {
    let Ok(socket) = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None) else {
        return true;
    };
    netdevice::index_to_name_inlined(&socket, ifindex).is_ok()
}

fn link(program: BorrowedFd<'_>, ifindex: u32, mode: Mode) -> Result<XdpLink, Error> {
    let asked = match mode {
        Mode::Native => XdpMode::Native,
        Mode::Generic => XdpMode::Generic,
    };
    XdpLink::new(program, ifindex, asked).map_err(|source| {
        let taken = matches!(source.raw_os_error(), Some(EBUSY | EEXIST));
        match taken.then(|| occupant(program, ifindex)).flatten() {
            Some((id, name)) => Error::Occupied { ifindex, name, id },
            None => Error::Attach {
                ifindex,
                mode,
                source,
            },
        }
    })
}

/// Whose program is on the interface.
fn occupant(program: BorrowedFd<'_>, ifindex: u32) -> Option<(u32, String)> {
    let index = i32::try_from(ifindex).ok()?;
    let id = Xdp::new(program).query_id(index, XdpFlags::NONE).ok()?;
    let name = ProgramHandle::from_prog_id(id)
        .map(|handle| handle.name().to_string_lossy().into_owned())
        .unwrap_or_else(|_| "?".to_owned());
    (id != 0).then_some((id, name))
}
