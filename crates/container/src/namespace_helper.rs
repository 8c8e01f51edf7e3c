//! The namespace helper: a process that enters a container's network namespace and sets up the
//! interface there. It has CAP_SYS_ADMIN, which entering takes, and CAP_NET_ADMIN, and no other
//! capability; it reads nobody's bytes but the daemon's, and touches no frame.
//!
//! The daemon speaks to it over a pair of sockets, one message a request and one an answer; the
//! namespace comes as an open descriptor, so that nothing is reached which the daemon could not
//! open itself. When the daemon is gone, the socket is closed and the helper ends.

mod serve;

use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ipnet::IpNet;
use netlink::change::WantedRoute;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, socketpair, sockopt,
};
use serde::{Deserialize, Serialize};
use sys::fd_message;
use wire::Mac;

use crate::namespace::Namespace;

pub use serve::serve;

/// The first argument that makes the daemon's program this helper. Also of programs to come: one
/// that runs starts whatever is at its path by then.
pub const ARGUMENT: &str = "--keep-namespaces";
/// Bytes of a request or an answer at the most: 256 addresses and as many routes are less.
const MESSAGE_MAX: usize = 128 << 10;
/// How long one request may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// What an interface in a container is to be like.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Inside {
    /// Its name there.
    pub name: String,
    /// Its index there, if it has to be that one.
    pub index: Option<u32>,
    /// Its MAC address.
    pub mac: [u8; 6],
    /// Its MTU.
    pub mtu: u16,
    /// Its addresses, each with the length of its prefix. Others that it has stay.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Routes by it.
    pub routes: Vec<Route>,
    /// Addresses that are to go.
    pub addresses_gone: Vec<(IpAddr, u8)>,
    /// Routes that are to go.
    pub routes_gone: Vec<Route>,
}

/// A route by the container's interface.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Route {
    /// The destinations: the network, and the length of its prefix.
    pub to: (IpAddr, u8),
    /// The next hop; `None`: they are on the link.
    pub via: Option<IpAddr>,
    /// The next hop is in no network of the interface.
    pub onlink: bool,
}

impl Route {
    fn wanted(&self) -> Result<WantedRoute, String> {
        let (network, prefix) = self.to;
        let to = IpNet::new(network, prefix);
        Ok(WantedRoute {
            to: to.map_err(|_| format!("{network}/{prefix} is no network"))?,
            via: self.via,
            onlink: self.onlink,
        })
    }
}

impl Inside {
    fn mac(&self) -> Mac {
        Mac(self.mac)
    }
}

/// A request to the helper.
#[derive(Debug, Serialize, Deserialize)]
enum Request {
    /// Makes the interface so.
    SetUp(Inside),
}

/// The daemon's side. The process is started when it is first needed, or ahead by
/// [`NamespaceHelper::start`]; it ends when this is dropped.
#[derive(Debug)]
pub struct NamespaceHelper {
    program: PathBuf,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    /// `None`: another process has started it.
    child: Option<Child>,
    socket: Option<OwnedFd>,
}

impl NamespaceHelper {
    /// One that runs this program with [`ARGUMENT`].
    pub fn new(program: PathBuf) -> NamespaceHelper {
        NamespaceHelper {
            program,
            running: None,
        }
    }

    /// One that goes on with the process of a daemon which gives way to this one, by its socket.
    pub fn handed(program: PathBuf, socket: OwnedFd) -> NamespaceHelper {
        let running = Running {
            child: None,
            socket: Some(socket),
        };
        NamespaceHelper {
            program,
            running: Some(running),
        }
    }

    /// Another descriptor of the socket to the process, if one runs: for one asker at a time.
    pub fn descriptor(&self) -> Option<io::Result<OwnedFd>> {
        let socket = self.running.as_ref()?.socket.as_ref()?;
        Some(socket.try_clone())
    }

    /// Starts the process now, while the caller has the capabilities that it needs.
    ///
    /// # Errors
    /// A sentence.
    pub fn start(&mut self) -> Result<(), String> {
        if self.running.is_none() {
            let started = Running::start(&self.program);
            let started =
                started.map_err(|e| format!("the namespace helper cannot be started: {e}"))?;
            self.running = Some(started);
        }
        Ok(())
    }

    /// Makes the interface in a namespace as `inside` says.
    ///
    /// # Errors
    /// A sentence of what the kernel refused; what was done before it stays.
    pub fn set_up(&mut self, namespace: &Namespace, inside: &Inside) -> Result<(), String> {
        self.ask(namespace, &Request::SetUp(inside.clone()))
    }

    fn ask(&mut self, namespace: &Namespace, request: &Request) -> Result<(), String> {
        self.start()?;
        let Some(running) = &mut self.running else {
            return Ok(());
        };
        match running.ask(namespace, request) {
            Ok(answer) => answer,
            Err(e) => {
                // What comes late would be taken for the next request's answer.
                self.running = None;
                Err(format!("the namespace helper does not answer: {e}"))
            }
        }
    }
}

impl Running {
    fn start(program: &PathBuf) -> io::Result<Running> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        sockopt::set_socket_timeout(&ours, sockopt::Timeout::Recv, Some(PATIENCE))?;
        let mut command = Command::new(program);
        command
            .arg(ARGUMENT)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            // Of its own, so that a terminal's signals end the daemon first.
            .process_group(0);
        Ok(Running {
            child: Some(command.spawn()?),
            socket: Some(ours),
        })
    }

    fn ask(&mut self, namespace: &Namespace, request: &Request) -> io::Result<Result<(), String>> {
        let Some(socket) = &self.socket else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let bytes = serde_json::to_vec(request)?;
        let (parts, fds) = ([IoSlice::new(&bytes)], [namespace.fd().as_fd()]);
        fd_message::send(socket, &parts, &fds, SendFlags::empty())?;
        let mut answer = vec![0; MESSAGE_MAX];
        let (len, _) = recv(socket, &mut answer[..], RecvFlags::empty())?;
        if len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_slice(&answer[..len])?)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It ends when the socket is closed.
        self.socket = None;
        if let Some(child) = &mut self.child {
            let _ = child.wait();
        }
    }
}
