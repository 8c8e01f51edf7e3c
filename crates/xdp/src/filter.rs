//! tc ingress where the kernel has no bpf_link for it (before Linux 6.6): a filter of the qdisc
//! `clsact`.
//!
//! A filter outlives its process. What is attached is therefore not the program but one that does
//! nothing but hand on, whose chain holds the program: the kernel empties a chain that no process
//! has open any more, whatever ended it, and every packet is the kernel's again. What is left then
//! is a filter without effect, which the next process replaces, and the qdisc. One that still has
//! its process is never replaced, which is known by a [name](HeldName) that the process holds:
//! whether a chain is empty only CAP_SYS_ADMIN may see.

use std::os::fd::{AsRawFd, BorrowedFd};

use libbpf_rs::{MapCore, MapFlags, TC_INGRESS, TcHook};
use rustix::io::Errno;
use sys::held_name::{self, HeldName};

use crate::error::Error;
use crate::objects;
use crate::program::{CHAIN, Program};
use crate::table::failed;

/// The filter's point among others': the first. Its number among those of one point is ours to
/// choose.
pub(crate) const PRIORITY: u32 = 1;
pub(crate) const HANDLE: u32 = 0xbf;
/// What its program is called (bpf/pass.bpf.c).
pub(crate) const ENTRY: &str = "pass";

/// A filter that runs a program. Dropped, it is gone; the qdisc stays, which without filters does
/// nothing.
#[derive(Debug)]
pub(crate) struct Filter {
    ifindex: u32,
    entry: Program,
    /// None: somebody who may not attach filters pretends to have it.
    _name: Option<HeldName>,
}

/// What the process of a filter holds.
fn name(ifindex: u32) -> String {
    format!("butterfly/tc/{ifindex}")
}

/// Whether the process of a filter of ours is there still.
pub(crate) fn has_its_process(ifindex: u32) -> bool {
    held_name::holder(&name(ifindex)).is_some_and(held_name::Peer::is_trusted)
}

impl Filter {
    pub(crate) fn new(program: BorrowedFd<'_>, ifindex: u32) -> Result<Self, Error> {
        let entry = Program::load("entry", objects::tc::PASS, |_| Ok(()))?;
        hand_on(&entry, program)?;
        let name = match HeldName::take(&name(ifindex)) {
            Ok(name) => Some(name),
            Err(Errno::ADDRINUSE) => None,
            Err(source) => {
                return Err(Error::Attach {
                    ifindex,
                    mode: crate::Mode::Tc,
                    source: source.into(),
                });
            }
        };
        let filter = Filter {
            ifindex,
            entry,
            _name: name,
        };
        put(&mut filter.hook()?, ifindex)?;
        Ok(filter)
    }

    /// Where it is.
    fn hook(&self) -> Result<TcHook, Error> {
        Ok(hook(self.entry.fd()?, self.ifindex))
    }

    pub(crate) fn replace(&self, program: BorrowedFd<'_>) -> Result<(), Error> {
        hand_on(&self.entry, program)
    }
}

/// A filter that is the program itself, and stays.
pub(crate) fn stay(program: BorrowedFd<'_>, ifindex: u32) -> Result<(), Error> {
    put(&mut hook(program, ifindex), ifindex)
}

fn hook(program: BorrowedFd<'_>, ifindex: u32) -> TcHook {
    let mut hook = TcHook::new(program);
    hook.ifindex(i32::try_from(ifindex).unwrap_or_default())
        .attach_point(TC_INGRESS)
        .replace(true)
        .handle(HANDLE)
        .priority(PRIORITY);
    hook
}

fn put(hook: &mut TcHook, ifindex: u32) -> Result<(), Error> {
    let refused = |source: libbpf_rs::Error| Error::Attach {
        ifindex,
        mode: crate::Mode::Tc,
        source: std::io::Error::other(source.to_string()),
    };
    // The qdisc may be there already.
    hook.create().map_err(refused)?;
    hook.attach().map(drop).map_err(refused)
}

impl Drop for Filter {
    fn drop(&mut self) {
        // An interface that is gone has no filters either.
        let _ = self.hook().map(|mut hook| hook.detach());
    }
}

fn hand_on(entry: &Program, program: BorrowedFd<'_>) -> Result<(), Error> {
    let chain = entry.map(CHAIN)?;
    let fd = program.as_raw_fd().to_ne_bytes();
    let done = chain.update(&0u32.to_ne_bytes(), &fd, MapFlags::ANY);
    done.map_err(|source| failed(&chain, source))
}
