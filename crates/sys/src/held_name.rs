//! A name that one process of a network namespace holds: a listening socket in the namespace of
//! abstract names (unix(7)), which belongs to a network namespace as interfaces do, and goes with
//! its process, whatever ends it.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, geteuid, pidfd_open};

use crate::socket_owner::SocketOwners;

/// Those that ask who holds a name are never accepted: so many may ask.
const BACKLOG: i32 = 4096;
const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);
/// CAP_NET_ADMIN among a process's capabilities, as proc_pid_status(5) has them.
const NET_ADMIN: u64 = 1 << 12;

/// A name that is ours until this is dropped.
#[derive(Debug)]
pub struct HeldName {
    socket: OwnedFd,
}

/// Who listens on a unix socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Its process.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// It may set up this host's network as it likes.
    pub may_change_network: bool,
}

impl HeldName {
    /// Takes a name of at most 107 bytes.
    ///
    /// # Errors
    /// `EADDRINUSE`: somebody has it. Any user may bind any name: [`holder`] says who it is.
    pub fn take(name: &str) -> Result<HeldName, Errno> {
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?;
        rustix::net::bind(&socket, &address)?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(HeldName { socket })
    }

    /// A name that another process has taken and hands over: from now on this one is its holder.
    /// The name is there until both have dropped it.
    pub fn handed(socket: OwnedFd) -> Result<HeldName, Errno> {
        // Who listens last is whom others find there.
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(HeldName { socket })
    }

    /// For another process that is to hold the name.
    pub fn try_clone(&self) -> std::io::Result<OwnedFd> {
        self.socket.try_clone()
    }
}

/// Who holds a name; `None`: nobody does, or whoever has it does not answer.
pub fn holder(name: &str) -> Option<Peer> {
    listener(&SocketAddrUnix::new_abstract_name(name.as_bytes()).ok()?)
}

/// The user whose socket has a name, as the kernel has noted it when that was made: also where so
/// many ask for its [`holder`] that nobody is told.
pub fn owner(name: &str) -> Option<u32> {
    let owners = SocketOwners::new().ok()?;
    owners.of_name(name.as_bytes()).ok().flatten()
}

/// Who listens at this address; `None` where nobody does, or too many wait to be asked. Does not
/// wait.
pub fn listener(address: &SocketAddrUnix) -> Option<Peer> {
    let probe = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None);
    let probe = probe.ok()?;
    rustix::net::connect(&probe, address).ok()?;
    let peer = rustix::net::sockopt::socket_peercred(&probe).ok()?;
    let (pid, uid) = (peer.pid, peer.uid.as_raw());
    let process = process(&probe, pid);
    Some(Peer {
        pid: pid.as_raw_nonzero().get(),
        uid,
        may_change_network: process.is_some_and(|process| may_change_network(&process, pid, uid)),
    })
}

impl Peer {
    /// It is root, our own user, or one who may change the network, as a daemon does: others only
    /// pretend.
    pub fn is_trusted(self) -> bool {
        is_ours(self.uid) || self.may_change_network
    }
}

/// It is root, or our own user.
pub fn is_ours(uid: u32) -> bool {
    uid == 0 || uid == geteuid().as_raw()
}

/// The process that listens, which a descriptor stands for also when another one has its number. A
/// kernel before 6.5 does not say it: then it is who has the number now.
fn process(socket: &OwnedFd, pid: Pid) -> Option<OwnedFd> {
    let mut process: libc::c_int = -1;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes an int, for which there is room, and its length.
    let failed = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERPIDFD,
            (&raw mut process).cast(),
            &raw mut len,
        )
    };
    if failed == 0 {
        // SAFETY: it was made by this call, and is nobody else's.
        return Some(unsafe { OwnedFd::from_raw_fd(process) });
    }
    match Errno::from_io_error(&std::io::Error::last_os_error()) {
        Some(Errno::NOPROTOOPT) => pidfd_open(pid, PidfdFlags::empty()).ok(),
        _ => None,
    }
}

/// Whether a process of this user has CAP_NET_ADMIN in effect, and not in a user namespace of its
/// own, which anybody can make: such a namespace has another map of users.
fn may_change_network(process: &OwnedFd, pid: Pid, uid: u32) -> bool {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{file}"));
    let of = |file: &str| read(&format!("{}/{file}", pid.as_raw_nonzero()));
    let (Ok(status), Ok(map), Ok(own)) = (of("status"), of("uid_map"), read("self/uid_map")) else {
        return false;
    };
    // What was read was this process's: it has its number still.
    map == own && effective(&status) == Some((uid, true)) && !has_ended(process)
}

/// The effective user of a process, and whether it has CAP_NET_ADMIN in effect, by its status
/// (proc_pid_status(5)).
fn effective(status: &str) -> Option<(u32, bool)> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let uid = field("Uid:")?.split_whitespace().nth(1)?.parse().ok()?;
    let capabilities = u64::from_str_radix(field("CapEff:")?.trim(), 16).ok()?;
    Some((uid, capabilities & NET_ADMIN != 0))
}

fn has_ended(process: &OwnedFd) -> bool {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&now)) != Ok(0)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use super::*;

    /// Who holds a name: a program that is started by these words, if it can be.
    fn held_by(words: &str, name: &str) -> Option<Peer> {
        let script = format!(
            "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.bind('\\0{name}')\n\
             s.listen()\nprint('it has it', flush=True)\nsys.stdin.read()"
        );
        let mut words = words.split(' ');
        let mut child = Command::new(words.next().unwrap())
            .args(words)
            .args(["python3", "-c", &script])
            // One that anybody may run.
            .env("PATH", "/usr/bin:/bin")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut said).unwrap();
        let peer = (!said.is_empty()).then(|| holder(name).unwrap());
        if let Some(peer) = &peer {
            assert_eq!(peer.pid, child.id() as i32);
        }
        drop(child.stdin.take());
        child.wait().unwrap();
        peer
    }

    /// A daemon of another user that may change the network is believed, and an ordinary user is
    /// not, whatever it may do in a user namespace of its own.
    #[test]
    fn who_may_change_the_network_is_trusted() {
        if !geteuid().is_root() {
            println!("skipped: who is not root starts nothing as another user");
            return;
        }
        let name = format!("butterfly/test/other/{}", std::process::id());
        let nobody = "setpriv --reuid 65534 --regid 65534 --clear-groups";
        let admin = format!("{nobody} --inh-caps +net_admin --ambient-caps +net_admin");
        let peer = held_by(&admin, &name).expect("it starts");
        assert_eq!(peer.uid, 65_534);
        assert!(peer.is_trusted());
        let other = format!("{nobody} --inh-caps +net_raw --ambient-caps +net_raw");
        for words in [nobody, &other] {
            let peer = held_by(words, &name).expect("it starts");
            assert_eq!((peer.uid, peer.is_trusted()), (65_534, false), "{words}");
        }
        match held_by(&format!("{nobody} unshare -U -r"), &name) {
            Some(peer) => assert!(!peer.is_trusted(), "{peer:?}"),
            None => println!("skipped: an ordinary user makes no user namespace here"),
        }
    }

    /// A process that has ended says nothing any more, whoever has its number.
    #[test]
    fn who_has_ended_is_not_asked() {
        let mut child = Command::new("true").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let process = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        child.wait().unwrap();
        assert!(has_ended(&process));
        // By its number it is another one, which has all that is asked for.
        let (own, uid) = (rustix::process::getpid(), geteuid().as_raw());
        assert!(!may_change_network(&process, own, uid));
        let status = "Name:\tx\nUid:\t1\t2\t3\t4\nCapEff:\t0000000000001000\n";
        assert_eq!(effective(status), Some((2, true)));
        assert_eq!(
            effective(&status.replace("1000\n", "2000\n")),
            Some((2, false))
        );
        assert_eq!(effective("Uid:\t1\n"), None);
    }

    #[test]
    fn one_has_it_and_is_known() {
        let name = format!("butterfly/test/{}", std::process::id());
        assert_eq!((holder(&name), owner(&name)), (None, None));
        let held = HeldName::take(&name).unwrap();
        assert_eq!(HeldName::take(&name).unwrap_err(), Errno::ADDRINUSE);
        let us = holder(&name).unwrap();
        assert_eq!(us.pid, std::process::id() as i32);
        assert!(us.is_trusted());
        assert_eq!(owner(&name), Some(us.uid));
        assert_eq!(owner(&name[..name.len() - 1]), None);
        drop(held);
        assert_eq!((holder(&name), owner(&name)), (None, None));
        HeldName::take(&name).unwrap();
    }
}
