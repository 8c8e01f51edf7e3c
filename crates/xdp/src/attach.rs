//! A program on an interface: in XDP, native where the driver does it, generic where not, or at tc
//! ingress.

use std::os::fd::BorrowedFd;

use libbpf_rs::{ProgramHandle, Xdp, XdpFlags};
use rustix::net::{AddressFamily, SocketType, netdevice};
use sys::bpf::{Link, TcSide, XdpMode};
use sys::handed::Handed;

pub use model::Mode;

use crate::error::Error;
use crate::filter::Filter;
use crate::occupants::{self, Occupant};
use crate::program::Program;

/// A program that is attached. Dropped, or with the process, it is gone from the interface.
#[derive(Debug)]
pub struct Attachment {
    link: Held,
    ifindex: u32,
    mode: Mode,
    why_generic: Option<String>,
    /// The program there is that of the process before.
    waits: bool,
}

/// What a program is attached by.
#[derive(Debug)]
enum Held {
    Link(Link),
    Filter(Box<Filter>),
}

/// Attaches a program at tc ingress by a filter, as on kernels before Linux 6.6; [`attach`] chooses
/// that by itself where it must.
///
/// # Errors
/// As [`attach`].
pub fn attach_by_filter(program: &Program, ifindex: u32) -> Result<Attachment, Error> {
    is_free(ifindex)?;
    let held = Held::Filter(Box::new(Filter::new(program.tc()?.fd()?, ifindex)?));
    Ok(Attachment::new(held, ifindex, Mode::Tc, None))
}

/// Attaches a program at tc ingress of an interface of our own making, by a filter that stays when
/// this process ends, and with it the program and its maps: for as long as the interface is there,
/// or until the next process calls this and puts its program in the place.
///
/// # Errors
/// The interface does not exist, or the kernel takes no filter (it lacks `clsact` or `bpf`).
pub fn attach_to_stay(program: &Program, ifindex: u32) -> Result<(), Error> {
    crate::filter::stay(program.tc()?.fd()?, ifindex)
}

/// Attaches a program at the near end of a netkit pair, to look at what the far end sends while it
/// sends it, as [`attach_to_stay`] does at tc ingress. `ifindex` is the near end's, as the packet's
/// device is to the program.
///
/// # Errors
/// The interface does not exist, or is no near end of such a pair.
pub fn attach_at_sender_to_stay(program: &Program, ifindex: u32) -> Result<(), Error> {
    let put = sys::bpf::put_at_netkit(program.tc()?.fd()?, ifindex);
    put.map_err(|source| refused(ifindex, Mode::Tc, source))
}

/// Whether there is any program where [`attach_at_sender_to_stay`] has put one.
///
/// # Errors
/// As there.
pub fn is_at_sender(ifindex: u32) -> Result<bool, Error> {
    let there = sys::bpf::is_at_netkit(ifindex);
    there.map_err(|source| refused(ifindex, Mode::Tc, source))
}

/// Attaches a program, an XDP one in the given mode or, without one, in native mode and where that
/// is refused in generic mode. [`Mode::Tc`] attaches what the program is at tc ingress.
///
/// # Errors
/// The interface has a program of somebody else, or at tc ingress somebody else's filter; it does
/// not exist (in the caller's network namespace), or refuses.
pub fn attach(program: &Program, ifindex: u32, mode: Option<Mode>) -> Result<Attachment, Error> {
    let program = match mode {
        Some(Mode::Tc) => program.tc()?,
        _ => program.xdp()?,
    };
    attach_fd(program.fd()?, ifindex, mode)
}

/// Attaches a program that is one for the mode.
pub(crate) fn attach_fd(
    program: BorrowedFd<'_>,
    ifindex: u32,
    mode: Option<Mode>,
) -> Result<Attachment, Error> {
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
    fn new(link: Held, ifindex: u32, mode: Mode, why_generic: Option<String>) -> Self {
        Attachment {
            link,
            ifindex,
            mode,
            why_generic,
            waits: false,
        }
    }

    /// The point of an interface that another process [hands over](Self::hand_over). Its program
    /// stays until this one [takes over](Self::take_over). `None`: it is none such.
    pub(crate) fn handed(ifindex: u32, handed: Handed) -> Option<Attachment> {
        let note = String::from_utf8(handed.note.clone()).ok()?;
        let (mode, why) = note.split_once('\n')?;
        let modes = [Mode::Native, Mode::Generic, Mode::Tc];
        let mode = modes.into_iter().find(|known| known.to_string() == mode)?;
        let [link] = handed.take()?;
        let link = Link::handed(link);
        // The interface may have gone, and another one may have its number.
        if link.ifindex().is_some_and(|its| its != ifindex) {
            return None;
        }
        let link = Held::Link(link);
        let why = Some(why.to_owned()).filter(|why| !why.is_empty());
        Some(Attachment {
            waits: true,
            ..Attachment::new(link, ifindex, mode, why)
        })
    }

    /// The point for another process: the interface has a program until both have dropped it.
    ///
    /// # Errors
    /// A filter's point cannot be had by another; the process is out of descriptors.
    pub(crate) fn hand_over(&self) -> Result<Handed, Error> {
        let Held::Link(link) = &self.link else {
            return Err(Error::OfThisProcess {
                ifindex: self.ifindex,
            });
        };
        let link = link.try_clone().map_err(|source| Error::Attach {
            ifindex: self.ifindex,
            mode: self.mode,
            source,
        })?;
        let why = self.why_generic.as_deref().unwrap_or_default();
        Ok(Handed {
            note: format!("{}\n{why}", self.mode).into_bytes(),
            fds: vec![link],
        })
    }

    /// Puts a program of this process in the place of the one that is there, of whatever process.
    /// An interface that is gone has none.
    ///
    /// # Errors
    /// The driver refuses.
    pub(crate) fn take_over(&mut self, program: BorrowedFd<'_>) -> Result<(), Error> {
        self.waits = false;
        match self.replace(program) {
            Err(_) if !exists(self.ifindex) => Ok(()),
            other => other,
        }
    }

    /// Its program is that of the process before.
    pub(crate) fn waits(&self) -> bool {
        self.waits
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

    /// Puts another program in this one's point; no packet passes between them without one.
    ///
    /// # Errors
    /// The driver refuses, or the interface is gone.
    pub fn replace(&mut self, program: BorrowedFd<'_>) -> Result<(), Error> {
        if self.waits {
            // It is put there with all others.
            return Ok(());
        }
        match &self.link {
            Held::Link(link) => link.replace(program).map_err(|source| Error::Attach {
                ifindex: self.ifindex,
                mode: self.mode,
                source,
            }),
            Held::Filter(filter) => filter.replace(program),
        }
    }
}

const EINVAL: i32 = 22;
const EBUSY: i32 = 16;
const EEXIST: i32 = 17;

/// The kernel says EINVAL of an interface that is not there, as it does of much else.
fn exists(ifindex: u32) -> bool {
    let Ok(socket) = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None) else {
        return true;
    };
    netdevice::index_to_name_inlined(&socket, ifindex).is_ok()
}

fn link(program: BorrowedFd<'_>, ifindex: u32, mode: Mode) -> Result<Held, Error> {
    let made = match mode {
        Mode::Native => Link::xdp(program, ifindex, XdpMode::Native),
        Mode::Generic => Link::xdp(program, ifindex, XdpMode::Generic),
        Mode::Tc => {
            is_free(ifindex)?;
            Link::tc_ingress(program, ifindex)
        }
    };
    let source = match made {
        Ok(link) => return Ok(Held::Link(link)),
        Err(source) => source,
    };
    match (mode, source.raw_os_error()) {
        // A kernel without tcx.
        (Mode::Tc, Some(EINVAL)) => Ok(Held::Filter(Box::new(Filter::new(program, ifindex)?))),
        (Mode::Native | Mode::Generic, Some(EBUSY | EEXIST)) => {
            Err(occupied(program, ifindex, mode, source))
        }
        _ => Err(refused(ifindex, mode, source)),
    }
}

/// Nobody else looks at what comes in at tc. Who does would not see what we forward: filters come
/// behind programs, and a program that is there may keep packets from us as we may from it.
fn is_free(ifindex: u32) -> Result<(), Error> {
    let there = occupants::of(ifindex, TcSide::Ingress);
    let there = there.map_err(|source| refused(ifindex, Mode::Tc, source))?;
    match there.into_iter().next() {
        Some(Occupant { name, id }) => Err(Error::TcOccupied { ifindex, name, id }),
        None => Ok(()),
    }
}

fn refused(ifindex: u32, mode: Mode, source: std::io::Error) -> Error {
    Error::Attach {
        ifindex,
        mode,
        source,
    }
}

fn occupied(program: BorrowedFd<'_>, ifindex: u32, mode: Mode, source: std::io::Error) -> Error {
    match occupant(program, ifindex) {
        Some((id, name)) => Error::Occupied { ifindex, name, id },
        None => refused(ifindex, mode, source),
    }
}

/// The id and name of the program that is on the interface.
fn occupant(program: BorrowedFd<'_>, ifindex: u32) -> Option<(u32, String)> {
    let index = i32::try_from(ifindex).ok()?;
    let id = Xdp::new(program).query_id(index, XdpFlags::NONE).ok()?;
    let name = ProgramHandle::from_prog_id(id)
        .map(|handle| handle.name().to_string_lossy().into_owned())
        .unwrap_or_else(|_| "?".to_owned());
    (id != 0).then_some((id, name))
}
