//! The namespace helper: a process that enters a container's network namespace and sets up the
//! interface there, and that makes a namespace for the sockets of health checks. It has
//! CAP_SYS_ADMIN, which both take, and CAP_NET_ADMIN, and no other capability; it reads nobody's
//! bytes but the daemon's, and touches no frame.
//!
//! The daemon speaks to it over pairs of sockets, one message a request and one an answer; each who
//! asks has a pair of its own ([`Asker`]). A namespace comes as an open descriptor, so that nothing
//! is reached which the daemon could not open itself, and the helper keeps none. When nobody has
//! the first socket any more, neither the daemon nor the one that has taken its place, the helper
//! ends.

mod serve;

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ipnet::IpNet;
use netlink::change::WantedRoute;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair, sockopt,
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
    /// Its index there, where that is known: it is that one then, and has to have the name.
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

/// Why something is not as it was asked for: a sentence.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Failure {
    /// There is no answer: it may be so or not.
    #[error("{0}")]
    Silent(String),
    /// The kernel refused it, or what it is about is not there.
    #[error("{0}")]
    Refused(String),
}

impl Route {
    fn wanted(&self) -> Result<WantedRoute, String> {
        let (network, prefix) = self.to;
        let to = IpNet::new(network, prefix);
        Ok(WantedRoute {
            to: to.map_err(|_| format!("{network}/{prefix} is no network"))?,
            via: self.via,
            onlink: self.onlink,
            mtu: None,
        })
    }
}

impl Inside {
    fn mac(&self) -> Mac {
        Mac(self.mac)
    }
}

/// A request to the helper, beside which a namespace comes where one is meant. What the answer
/// brings comes beside it.
#[derive(Debug, Serialize, Deserialize)]
enum Request {
    /// Makes the interface so.
    SetUp(Inside),
    /// Brings another socket to ask by.
    Another,
    /// Brings a new namespace.
    Make,
    /// See [`Asker::send_all_by`].
    SendAllBy { interface: String, mtu: u16 },
    /// Brings a socket, see [`Asker::bound_socket`].
    Bind {
        kind: SocketKind,
        interface: String,
        source: SocketAddr,
    },
}

/// What a socket speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SocketKind {
    /// TCP.
    Stream,
    /// UDP.
    Datagram,
}

/// The process, as the daemon has it; clones are of the same one. It is started when it is first
/// needed, or ahead by [`NamespaceHelper::start`], and ends when the last of them is dropped.
#[derive(Clone, Debug)]
pub struct NamespaceHelper(Arc<Mutex<Process>>);

#[derive(Debug)]
struct Process {
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
        NamespaceHelper::of(program, None)
    }

    /// One that goes on with the process of a daemon which gives way to this one, by its socket.
    pub fn handed(program: PathBuf, socket: OwnedFd) -> NamespaceHelper {
        let running = Running {
            child: None,
            socket: Some(socket),
        };
        NamespaceHelper::of(program, Some(running))
    }

    fn of(program: PathBuf, running: Option<Running>) -> NamespaceHelper {
        NamespaceHelper(Arc::new(Mutex::new(Process { program, running })))
    }

    /// Another descriptor of the first socket to the process, if one runs, for a daemon that takes
    /// this one's place.
    pub fn descriptor(&self) -> Option<io::Result<OwnedFd>> {
        let process = self.lock();
        let socket = process.running.as_ref()?.socket.as_ref()?;
        Some(socket.try_clone())
    }

    /// Starts the process now, while the caller has the capabilities that it needs.
    ///
    /// # Errors
    /// A sentence.
    pub fn start(&self) -> Result<(), String> {
        self.lock().start().map(drop)
    }

    /// One who asks it.
    pub fn asker(&self) -> Asker {
        Asker {
            helper: self.clone(),
            socket: None,
        }
    }

    fn another_socket(&self) -> Result<OwnedFd, String> {
        let mut process = self.lock();
        let first = process.start()?;
        let failed = |e: io::Error| format!("the namespace helper: {e}");
        match ask(first, None, &Request::Another) {
            Ok((Ok(()), Some(socket))) => Ok(socket),
            // It is of a daemon of before, that knows of one asker alone.
            Ok(_) => first.try_clone().map_err(failed),
            Err(e) => {
                // One that takes long is there still, and what it answers then is what the next one
                // asks for: nothing else is asked by this socket.
                if e.kind() != io::ErrorKind::WouldBlock {
                    process.running = None;
                    tracing::error!(
                        "the namespace helper has ended ({e}): the next one cannot enter network \
                         namespaces if the daemon has given up CAP_SYS_ADMIN, as the packaged \
                         service has; containers' interfaces are made again after a restart of the \
                         daemon"
                    );
                }
                Err(silent(&e))
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Process> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Process {
    /// Its first socket.
    fn start(&mut self) -> Result<&OwnedFd, String> {
        let running = match self.running.take() {
            Some(running) => running,
            None => Running::start(&self.program)
                .map_err(|e| format!("the namespace helper cannot be started: {e}"))?,
        };
        let running = self.running.insert(running);
        let gone = || "the namespace helper has ended".to_owned();
        running.socket.as_ref().ok_or_else(gone)
    }
}

/// One who asks the helper, by a socket of its own. Each request takes 10 s at the most.
#[derive(Debug)]
pub struct Asker {
    helper: NamespaceHelper,
    /// `None`: nothing has been asked yet, or there was no answer.
    socket: Option<OwnedFd>,
}

impl Asker {
    /// Makes the interface in a namespace as `inside` says.
    ///
    /// # Errors
    /// See [`Failure`]; what was done before it stays.
    pub fn set_up(&mut self, namespace: &Namespace, inside: &Inside) -> Result<(), Failure> {
        let request = Request::SetUp(inside.clone());
        self.ask(Some(namespace.fd().as_fd()), &request).map(drop)
    }

    /// A new network namespace, which goes when its last descriptor and socket do.
    ///
    /// # Errors
    /// A sentence of what the kernel refused.
    pub fn make_namespace(&mut self) -> Result<OwnedFd, String> {
        self.ask_for_descriptor(None, &Request::Make)
    }

    /// Sets up an interface of a namespace as the one by which everything goes out, whole and with
    /// its checksums, in packets of `mtu` at the most, and with no neighbour being sought. It takes
    /// frames that another interface's XDP program sends it.
    ///
    /// # Errors
    /// A sentence of what the kernel refused; what was done before it stays.
    pub fn send_all_by(
        &mut self,
        namespace: BorrowedFd<'_>,
        interface: &str,
        mtu: u16,
    ) -> Result<(), String> {
        let interface = interface.to_owned();
        let request = Request::SendAllBy { interface, mtu };
        let done = self.ask(Some(namespace), &request);
        done.map(drop).map_err(|e| e.to_string())
    }

    /// A socket of a namespace that does not block, bound to `source`, whose address is one of the
    /// interface's from then on.
    ///
    /// # Errors
    /// A sentence of what the kernel refused.
    pub fn bound_socket(
        &mut self,
        namespace: BorrowedFd<'_>,
        interface: &str,
        kind: SocketKind,
        source: SocketAddr,
    ) -> Result<OwnedFd, String> {
        let request = Request::Bind {
            kind,
            interface: interface.to_owned(),
            source,
        };
        self.ask_for_descriptor(Some(namespace), &request)
    }

    fn ask_for_descriptor(
        &mut self,
        namespace: Option<BorrowedFd<'_>>,
        request: &Request,
    ) -> Result<OwnedFd, String> {
        let brought = self.ask(namespace, request);
        let brought = brought.map_err(|e| e.to_string())?;
        brought.ok_or_else(|| "the namespace helper's answer lacks a descriptor".to_owned())
    }

    fn ask(
        &mut self,
        namespace: Option<BorrowedFd<'_>>,
        request: &Request,
    ) -> Result<Option<OwnedFd>, Failure> {
        // What comes late would be taken for the next request's answer: then the socket goes.
        let socket = match self.socket.take() {
            Some(socket) => socket,
            None => self.helper.another_socket().map_err(Failure::Silent)?,
        };
        let answer = ask(&socket, namespace, request);
        let (answer, brought) = answer.map_err(|e| Failure::Silent(silent(&e)))?;
        self.socket = Some(socket);
        answer.map(|()| brought).map_err(Failure::Refused)
    }
}

fn silent(error: &io::Error) -> String {
    format!("the namespace helper does not answer: {error}")
}

/// Asks, and waits for the answer and for what it brings.
fn ask(
    socket: &OwnedFd,
    namespace: Option<BorrowedFd<'_>>,
    request: &Request,
) -> io::Result<(Result<(), String>, Option<OwnedFd>)> {
    sockopt::set_socket_timeout(socket, sockopt::Timeout::Recv, Some(PATIENCE))?;
    let bytes = serde_json::to_vec(request)?;
    let fds: Vec<_> = namespace.into_iter().collect();
    fd_message::send(socket, &[IoSlice::new(&bytes)], &fds, SendFlags::empty())?;
    let mut answer = vec![0; MESSAGE_MAX];
    let received = fd_message::receive(socket, &mut answer, 1, RecvFlags::empty())?;
    if received.len == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let said = serde_json::from_slice(&answer[..received.len])?;
    Ok((said, received.fds.into_iter().next()))
}

impl Running {
    fn start(program: &PathBuf) -> io::Result<Running> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// Nobody can start another one who has given up what it needs.
    #[test]
    fn a_helper_that_takes_long_stays_and_one_that_has_ended_does_not() {
        let flags = SocketFlags::CLOEXEC;
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let (ours, theirs) = pair.unwrap();
        let helper = NamespaceHelper::handed("/nowhere".into(), ours);
        let (go_on, wait) = mpsc::channel::<()>();
        let serving = std::thread::spawn(move || {
            let hear = || {
                let mut request = vec![0; MESSAGE_MAX];
                let heard = fd_message::receive(&theirs, &mut request, 1, RecvFlags::empty());
                request.truncate(heard.unwrap().len);
                let request = serde_json::from_slice(&request).unwrap();
                assert!(matches!(request, Request::Another));
            };
            let answer = || {
                let said = serde_json::to_vec(&Ok::<(), String>(())).unwrap();
                let brought = [theirs.as_fd()];
                let said = [IoSlice::new(&said)];
                fd_message::send(&theirs, &said, &brought, SendFlags::empty()).unwrap();
            };
            hear();
            wait.recv().unwrap();
            answer();
            hear();
        });
        let silent = helper.another_socket().unwrap_err();
        assert!(silent.contains("does not answer"), "{silent}");
        assert!(helper.descriptor().is_some(), "it is still the helper");
        go_on.send(()).unwrap();
        helper.another_socket().unwrap();
        serving.join().unwrap();
        let gone = helper.another_socket().unwrap_err();
        assert!(gone.contains("does not answer"), "{gone}");
        assert!(helper.descriptor().is_none());
    }
}
