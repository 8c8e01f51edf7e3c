//! What of bpf(2) has no safe face in a library: a program on an interface by a bpf_link, in XDP in
//! a chosen mode or at tc ingress, one at a netkit pair that stays, and objects of any kind by a
//! name.
//!
//! libbpf's own call for XDP chooses the mode itself, and its netlink way leaves the program there
//! when the process dies; the binding has no call for tc's. Used by the crate `xdp`, which loads
//! the programs.

use std::ffi::CString;
use std::io::Error;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Where a program runs (XDP_FLAGS_DRV_MODE and XDP_FLAGS_SKB_MODE of linux/if_link.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver.
    Native,
    /// Behind the driver.
    Generic,
}

/// A program on an interface; closing it takes the program away.
#[derive(Debug)]
pub struct Link(OwnedFd);

impl Link {
    /// Attaches an XDP program to an interface of the caller's network namespace (BPF_LINK_CREATE,
    /// since Linux 5.9).
    ///
    /// # Errors
    /// EBUSY or EEXIST: there is a program; ENODEV: no such interface; EOPNOTSUPP, EINVAL and
    /// others: the driver refuses.
    pub fn xdp(program: BorrowedFd<'_>, ifindex: u32, mode: XdpMode) -> Result<Self, Error> {
        let flags = match mode {
            XdpMode::Native => FLAG_NATIVE,
            XdpMode::Generic => FLAG_GENERIC,
        };
        Self::create(program, ifindex, ATTACH_XDP, flags)
    }

    /// Attaches a program to tc ingress of an interface of the caller's network namespace, behind
    /// those that are there (tcx, since Linux 6.6).
    ///
    /// # Errors
    /// EINVAL: an older kernel; ENODEV: no such interface; ERANGE: 64 programs are there.
    pub fn tc_ingress(program: BorrowedFd<'_>, ifindex: u32) -> Result<Self, Error> {
        Self::create(program, ifindex, ATTACH_TCX_INGRESS, 0)
    }

    /// The link that another process has made and hands over.
    pub fn handed(link: OwnedFd) -> Self {
        Link(link)
    }

    /// The interface that the program is on; 0: it has gone. `None`: the kernel does not say
    /// (before Linux 5.10).
    pub fn ifindex(&self) -> Option<u32> {
        let path = format!("/proc/self/fdinfo/{}", self.0.as_raw_fd());
        let info = std::fs::read_to_string(path).ok()?;
        let mut lines = info.lines();
        lines.find_map(|line| line.strip_prefix("ifindex:")?.trim().parse().ok())
    }

    /// For another process: the program is there until both have closed it.
    pub fn try_clone(&self) -> Result<OwnedFd, Error> {
        self.0.try_clone()
    }

    fn create(
        program: BorrowedFd<'_>,
        ifindex: u32,
        attach_type: u32,
        flags: u32,
    ) -> Result<Self, Error> {
        let attributes = LinkCreate {
            program: program.as_raw_fd() as u32,
            target_ifindex: ifindex,
            attach_type,
            flags,
            rest: [0; 6],
        };
        let fd = bpf(LINK_CREATE, &attributes)?;
        // SAFETY: the kernel has just made this descriptor for us.
        Ok(Link(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Puts another program in the place of the one that is there (BPF_LINK_UPDATE).
    ///
    /// # Errors
    /// ENOLINK: the interface is gone; others: the driver refuses.
    pub fn replace(&self, program: BorrowedFd<'_>) -> Result<(), Error> {
        let attributes = LinkUpdate {
            link: self.0.as_raw_fd() as u32,
            program: program.as_raw_fd() as u32,
            flags: 0,
            old_program: 0,
        };
        bpf(LINK_UPDATE, &attributes).map(|_| ())
    }
}

/// A side of an interface's tc.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TcSide {
    /// What comes in.
    Ingress,
    /// What goes out.
    Egress,
}

/// The ids of the programs at tc of an interface of the caller's network namespace, in order
/// (BPF_PROG_QUERY); none on a kernel without tcx (before Linux 6.6). Filters of qdiscs are not
/// among them.
///
/// # Errors
/// ENODEV: no such interface; EPERM: the caller lacks CAP_NET_ADMIN.
pub fn tc_programs(ifindex: u32, side: TcSide) -> Result<Vec<u32>, Error> {
    let attach_type = match side {
        TcSide::Ingress => ATTACH_TCX_INGRESS,
        TcSide::Egress => ATTACH_TCX_EGRESS,
    };
    match programs(ifindex, attach_type) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(Vec::new()),
        other => other.map(|(ids, _)| ids),
    }
}

/// Has a program look at all that the far end of a netkit pair sends, while it is being sent, in
/// the place of any that did. The pair's primary end is the one that is named, in the caller's
/// network namespace. It stays when the process ends, for as long as the pair is there
/// (BPF_PROG_ATTACH, since Linux 6.7).
///
/// # Errors
/// EINVAL: a kernel without netkit; ENODEV: no such interface; ENXIO: it is no netkit; EACCES: it
/// is the far end; ESTALE: others put programs there all the time.
pub fn put_at_netkit(program: BorrowedFd<'_>, ifindex: u32) -> Result<(), Error> {
    let ours = Attach {
        target_ifindex: ifindex,
        program: program.as_raw_fd() as u32,
        attach_type: ATTACH_NETKIT_PEER,
        flags: BEFORE,
        rest: [0; 2],
        revision: 0,
    };
    let put = || bpf(PROG_ATTACH, &ours);
    match put() {
        // It is there, but perhaps behind another one.
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
            if netkit_programs(ifindex)?.0.len() > 1 {
                bpf(PROG_DETACH, &Attach { flags: 0, ..ours })?;
                put()?;
            }
        }
        other => drop(other?),
    }
    // From now on it alone runs: it hands nothing on. To be put in the place of another it would
    // have to be given that one's descriptor, which takes CAP_SYS_ADMIN.
    for _ in 0..2 * PROGRAMS {
        let (there, revision) = netkit_programs(ifindex)?;
        if there.len() <= 1 {
            return Ok(());
        }
        let last = Attach {
            program: 0,
            flags: AFTER,
            revision,
            ..ours
        };
        match bpf(PROG_DETACH, &last) {
            // Somebody else was faster.
            Err(error) if error.raw_os_error() == Some(libc::ESTALE) => (),
            other => drop(other?),
        }
    }
    Err(Error::from_raw_os_error(libc::ESTALE))
}

/// Whether any program looks at what the far end of a netkit pair sends.
///
/// # Errors
/// As [`put_at_netkit`].
pub fn is_at_netkit(ifindex: u32) -> Result<bool, Error> {
    Ok(!netkit_programs(ifindex)?.0.is_empty())
}

fn netkit_programs(ifindex: u32) -> Result<(Vec<u32>, u64), Error> {
    programs(ifindex, ATTACH_NETKIT_PEER)
}

/// The ids of the programs at a point of an interface, in order, and the revision of that list.
fn programs(ifindex: u32, attach_type: u32) -> Result<(Vec<u32>, u64), Error> {
    let mut ids = [0u32; PROGRAMS];
    let mut attributes = Query {
        target_ifindex: ifindex,
        attach_type,
        flags: [0; 2],
        program_ids: ids.as_mut_ptr() as u64,
        count: PROGRAMS as u32,
        rest: [0; 7],
        revision: [0; 2],
    };
    // SAFETY: the kernel reads and writes `Query`, and at its only pointer `count` numbers at the
    // most, which `ids` has room for. Both outlive the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            PROG_QUERY,
            std::ptr::from_mut(&mut attributes),
            size_of::<Query>(),
        )
    };
    if result != 0 {
        return Err(Error::last_os_error());
    }
    let ids = ids.into_iter().take(attributes.count as usize).collect();
    let revision = bytemuck::cast(attributes.revision);
    Ok((ids, revision))
}

/// Returns when no run of any XDP program that had begun before the call still goes on
/// (MEMBARRIER_CMD_GLOBAL, which waits for an RCU grace period; programs run within one).
pub fn wait_for_programs() {
    // SAFETY: a system call that takes three numbers and touches no memory of ours.
    let done = unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_GLOBAL, 0, 0) };
    if done != 0 {
        // Refused by kernels that leave processors without ticks (nohz_full). A program runs for
        // microseconds.
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// Gives a map, a program or a link a name in a BPF file system: it is there for as long as the
/// name is (BPF_OBJ_PIN).
///
/// # Errors
/// EPERM: the folder is of no BPF file system; EEXIST, ENOENT, ENAMETOOLONG: as of files.
pub fn pin(object: BorrowedFd<'_>, path: &Path) -> Result<(), Error> {
    on_path(OBJ_PIN, path, object.as_raw_fd() as u32).map(|_| ())
}

/// What is [pinned](pin) there (BPF_OBJ_GET).
///
/// # Errors
/// ENOENT: nothing is; EACCES: it is no BPF object, or not ours to have.
pub fn pinned(path: &Path) -> Result<OwnedFd, Error> {
    let fd = on_path(OBJ_GET, path, 0)?;
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn on_path(command: libc::c_long, path: &Path, fd: u32) -> Result<i32, Error> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let attributes = OnPath {
        path: path.as_ptr() as u64,
        fd,
        file_flags: 0,
    };
    // SAFETY: the kernel reads `OnPath`, and at its only pointer a string that ends. Both outlive
    // the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_ref(&attributes),
            size_of::<OnPath>(),
        )
    };
    if result < 0 {
        return Err(Error::last_os_error());
    }
    Ok(result as i32)
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

// linux/bpf.h and linux/if_link.h.
const OBJ_PIN: libc::c_long = 6;
const OBJ_GET: libc::c_long = 7;
const LINK_CREATE: libc::c_long = 28;
const LINK_UPDATE: libc::c_long = 29;
const ATTACH_XDP: u32 = 37;
const ATTACH_TCX_INGRESS: u32 = 46;
const ATTACH_TCX_EGRESS: u32 = 47;
const ATTACH_NETKIT_PEER: u32 = 55;
const PROG_ATTACH: libc::c_long = 8;
const PROG_DETACH: libc::c_long = 9;
const PROG_QUERY: libc::c_long = 16;
const BEFORE: u32 = 1 << 3;
const AFTER: u32 = 1 << 4;
/// BPF_MPROG_MAX of linux/bpf_mprog.h.
const PROGRAMS: usize = 64;
const FLAG_GENERIC: u32 = 1 << 1;
const FLAG_NATIVE: u32 = 1 << 2;

/// `union bpf_attr`, the part for BPF_LINK_CREATE.
#[repr(C)]
struct LinkCreate {
    program: u32,
    target_ifindex: u32,
    attach_type: u32,
    flags: u32,
    rest: [u64; 6],
}

/// `union bpf_attr`, the part for BPF_LINK_UPDATE.
#[repr(C)]
struct LinkUpdate {
    link: u32,
    program: u32,
    flags: u32,
    old_program: u32,
}

/// `union bpf_attr`, the part for BPF_PROG_ATTACH and BPF_PROG_DETACH.
#[repr(C)]
#[derive(Clone, Copy)]
struct Attach {
    target_ifindex: u32,
    program: u32,
    attach_type: u32,
    flags: u32,
    rest: [u32; 2],
    /// That the list of programs has to have; 0: any.
    revision: u64,
}

/// `union bpf_attr`, the part for BPF_PROG_QUERY.
#[repr(C)]
struct Query {
    target_ifindex: u32,
    attach_type: u32,
    flags: [u32; 2],
    program_ids: u64,
    count: u32,
    rest: [u32; 7],
    /// One number of 64 bits.
    revision: [u32; 2],
}

/// `union bpf_attr`, the part for BPF_OBJ_PIN and BPF_OBJ_GET.
#[repr(C)]
struct OnPath {
    path: u64,
    fd: u32,
    file_flags: u32,
}

/// A part of `union bpf_attr` without pointers: the kernel reads it, and nothing else of ours.
trait Attributes {}
impl Attributes for LinkCreate {}
impl Attributes for LinkUpdate {}
impl Attributes for Attach {}

fn bpf<A: Attributes>(command: libc::c_long, attributes: &A) -> Result<i32, Error> {
    // SAFETY: the kernel reads `size_of::<A>()` bytes, which `attributes` has; they hold no pointer
    // (`Attributes`), so that it touches no other memory of ours.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_ref(attributes),
            size_of::<A>(),
        )
    };
    if result < 0 {
        return Err(Error::last_os_error());
    }
    Ok(result as i32)
}
