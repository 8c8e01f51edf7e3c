//! A program of the operator's. It is told the names of things by its environment, and given an
//! address on loopback behind which the server is: a relay, since the program's own sockets know
//! nothing of paths. It runs as nobody, within limits, and all that it has started ends with the
//! check. Everybody on this host can reach the relay, and it hears the program's user alone.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::io::Errno;
use rustix::process::{Pid, Signal};
use sys::socket_owner::{Protocol, SocketOwners};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream, UdpSocket};

use super::{NotMade, Path, Transport, reason, told};
use crate::check::{Command, Subject};
use crate::programs::{self, LIMITS, Programs};

/// The largest UDP payload.
const DATAGRAM_MAX: usize = 65_535;
/// How many bytes of the program's output are read for the sentence.
const SAID_MAX: u64 = 400;
/// Connections of a program at a time: each has one of the sockets that all checks share.
const CONNECTIONS_MAX: usize = 16;

/// What has kept a program's sockets from the server, and is not the server's.
#[derive(Clone, Default)]
pub(super) struct Obstacles {
    /// Connections that wait for their turn.
    waiting: Arc<AtomicUsize>,
    failed: Arc<OnceLock<NotMade>>,
}

impl Obstacles {
    pub(super) fn seen(&self) -> Option<NotMade> {
        let waits = self.waiting.load(Ordering::Relaxed) > 0;
        let waits = waits.then(|| NotMade("a connection of its program has no turn yet".into()));
        self.failed.get().cloned().or(waits)
    }

    async fn turn<P: Path>(&self, path: &P) -> Result<P::Turn, NotMade> {
        // One that ends meanwhile is counted still.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let turn = path.turn(Transport::Tcp).await;
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        turn
    }
}

impl Command {
    pub(super) async fn probe<P: Path>(
        &self,
        subject: &Subject,
        path: P,
        turn: P::Turn,
        programs: &Programs,
        obstacles: &Obstacles,
    ) -> Result<Result<(), String>, NotMade> {
        // Asked each time: the folder may have changed since the check was declared.
        let file = match programs.program(self) {
            Ok(file) => file,
            Err(e) => return Ok(Err(format!("{} {}", e.value, e.why))),
        };
        let Some((program, arguments)) = self.0.split_first() else {
            return Ok(Err("there is no program to run".into()));
        };
        let relay = match subject.protocol {
            "udp" => relay_udp(path, turn).await?,
            _ => Ok(relay_tcp(path, turn, obstacles.clone()).await?),
        };
        let (address, relaying) = match relay {
            Ok((address, task)) => (address, Relay(task)),
            Err(why) => return Ok(Err(why)),
        };
        let mut command = tokio::process::Command::new(file);
        sys::confine::confine(command.as_std_mut(), LIMITS);
        command
            .args(arguments)
            .current_dir("/")
            // What the daemon was started with is not for it.
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("BUTTERFLY_VIP", subject.service.ip().to_string())
            .env("BUTTERFLY_PORT", subject.service.port().to_string())
            .env("BUTTERFLY_PROTOCOL", subject.protocol)
            .env("BUTTERFLY_SERVER", subject.server.to_string())
            .env("BUTTERFLY_CHECK_ADDRESS", address.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // One that runs out of time is dropped, and must not go on.
            .kill_on_drop(true);
        let mut child = match programs::start(command) {
            Ok(child) => child,
            Err(e) => {
                let why = format!("{program} cannot be run: {}", reason(&e));
                return match is_shortage(&e) {
                    true => Err(NotMade(why)),
                    false => Ok(Err(why)),
                };
            }
        };
        let group = Group(child.id());
        let mut said = Vec::new();
        if let Some(stderr) = child.stderr.take() {
            // What it says beyond that is not waited for: it would block on a full pipe, and run
            // out of time.
            let _ = stderr.take(SAID_MAX).read_to_end(&mut said).await;
        }
        let status = child.wait().await;
        drop((group, relaying));
        Ok(match status {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => {
                let said = String::from_utf8_lossy(&said);
                // It is shown in terminals.
                let line = said.lines().next().unwrap_or_default().escape_debug();
                Err(format!("{program} ended with {status} {line}")
                    .trim_end()
                    .to_owned())
            }
            Err(e) => Err(format!("{program}: {}", reason(&e))),
        })
    }
}

/// This host has no descriptor, process or memory left.
fn is_shortage(error: &io::Error) -> bool {
    let shortages = [Errno::MFILE, Errno::NFILE, Errno::AGAIN, Errno::NOMEM];
    Errno::from_io_error(error).is_some_and(|errno| shortages.contains(&errno))
}

/// The program and all that it has started, unless it has left its process group: ended with the
/// check.
struct Group(Option<u32>);

impl Drop for Group {
    fn drop(&mut self) {
        let leader = self.0.and_then(|pid| Pid::from_raw(pid.cast_signed()));
        if let Some(leader) = leader {
            // Fails where nobody is left.
            let _ = rustix::process::kill_process_group(leader, Signal::KILL);
        }
    }
}

/// A task that ends with the check.
struct Relay(tokio::task::JoinHandle<()>);

impl Drop for Relay {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Where a program finds its server, and who moves the bytes.
type Relayed = (SocketAddr, tokio::task::JoinHandle<()>);

fn no_relay(error: io::Error) -> NotMade {
    NotMade(format!("no relay on loopback: {}", reason(&error)))
}

/// Whom a relay hears.
struct Heard {
    protocol: Protocol,
    /// The relay's own address.
    here: SocketAddr,
    /// `None`: the kernel does not tell, and everybody is heard.
    owners: Option<SocketOwners>,
}

impl Heard {
    fn at(protocol: Protocol, here: SocketAddr) -> io::Result<Heard> {
        let anybody = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
        // Whose the relay itself is, it knows if anything.
        let tried = SocketOwners::new().and_then(|owners| {
            let own = owners.of(protocol, here, anybody)?;
            Ok(own.map(|_| owners))
        });
        Ok(Heard {
            protocol,
            here,
            owners: unless_it_never_tells(tried)?,
        })
    }

    /// Whether the socket there is of the program's user.
    fn is(&self, there: SocketAddr) -> bool {
        self.owners.as_ref().is_none_or(|owners| {
            let owner = owners.of(self.protocol, there, self.here);
            matches!(owner, Ok(Some(user)) if user == sys::confine::user())
        })
    }
}

/// `None` where the kernel cannot be asked at all: it knows no such questions, or a policy forbids
/// them. Any other error may be over with the next check.
fn unless_it_never_tells<T>(tried: io::Result<Option<T>>) -> io::Result<Option<T>> {
    let never = [
        Errno::PERM,
        Errno::ACCESS,
        Errno::OPNOTSUPP,
        Errno::PROTONOSUPPORT,
        Errno::AFNOSUPPORT,
    ];
    match tried {
        Err(e) if Errno::from_io_error(&e).is_some_and(|errno| never.contains(&errno)) => Ok(None),
        tried => tried,
    }
}

/// The first connection has its turn.
async fn relay_tcp<P: Path>(
    path: P,
    turn: P::Turn,
    obstacles: Obstacles,
) -> Result<Relayed, NotMade> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
    let listener = listener.map_err(no_relay)?;
    let address = listener.local_addr().map_err(no_relay)?;
    let heard = Heard::at(Protocol::Tcp, address).map_err(no_relay)?;
    let task = tokio::spawn(async move {
        // The connections end with the listener: each is a future of this task.
        let mut running = tokio::task::JoinSet::new();
        let mut first = Some(turn);
        while let Ok((near, from)) = listener.accept().await {
            if !heard.is(from) {
                continue;
            }
            if running.len() >= CONNECTIONS_MAX {
                obstacles.waiting.fetch_add(1, Ordering::Relaxed);
                running.join_next().await;
                obstacles.waiting.fetch_sub(1, Ordering::Relaxed);
            }
            let (path, obstacles, turn) = (path.clone(), obstacles.clone(), first.take());
            running.spawn(async move {
                if let Err(why) = relay_stream(near, &path, turn, &obstacles).await {
                    let _ = obstacles.failed.set(why);
                }
            });
        }
    });
    Ok((address, task))
}

/// A server that refuses is seen by the program as a connection that ends at once.
async fn relay_stream<P: Path>(
    mut near: TcpStream,
    path: &P,
    turn: Option<P::Turn>,
    obstacles: &Obstacles,
) -> Result<(), NotMade> {
    let turn = match turn {
        Some(turn) => turn,
        None => obstacles.turn(path).await?,
    };
    if let Ok((far, _hold)) = super::connect(path, turn).await? {
        // Dropped before what keeps the way open.
        let mut far = far;
        let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
    }
    Ok(())
}

/// For one client, which a check is: answers go to the socket of the program that spoke last.
async fn relay_udp<P: Path>(path: P, turn: P::Turn) -> Result<Result<Relayed, String>, NotMade> {
    let near = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await;
    let near = near.map_err(no_relay)?;
    let address = near.local_addr().map_err(no_relay)?;
    let heard = Heard::at(Protocol::Udp, address).map_err(no_relay)?;
    let (far, hold) = match told(path.udp(turn).await, "no relay on loopback")? {
        Ok(made) => made,
        Err(why) => return Ok(Err(why)),
    };
    let task = tokio::spawn(async move {
        let _hold = hold;
        let (mut query, mut answer) = (vec![0; DATAGRAM_MAX], vec![0; DATAGRAM_MAX]);
        let mut client = None;
        loop {
            tokio::select! {
                came = near.recv_from(&mut query) => {
                    let Ok((len, from)) = came else { return };
                    if !heard.is(from) {
                        continue;
                    }
                    client = Some(from);
                    let _ = far.send(&query[..len]).await;
                }
                // An ICMP error is an answer that the program does not get.
                came = far.recv(&mut answer) => {
                    if let (Ok(len), Some(client)) = (came, client) {
                        let _ = near.send_to(&answer[..len], client).await;
                    }
                }
            }
        }
    });
    Ok(Ok((address, task)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The attack: a stranger has the kernel run short of what a question needs.
    #[test]
    fn a_question_that_fails_lets_nobody_in() {
        for errno in [Errno::NOBUFS, Errno::NOMEM, Errno::MFILE, Errno::AGAIN] {
            let tried = unless_it_never_tells::<()>(Err(errno.into()));
            assert_eq!(
                tried.unwrap_err().raw_os_error(),
                Some(errno.raw_os_error())
            );
        }
        let unread = unless_it_never_tells::<()>(Err(io::ErrorKind::InvalidData.into()));
        assert!(unread.is_err());
        for errno in [Errno::ACCESS, Errno::PERM, Errno::PROTONOSUPPORT] {
            let tried = unless_it_never_tells::<()>(Err(errno.into()));
            assert_eq!(tried.unwrap(), None, "{errno}: there is nobody to ask");
        }
        assert_eq!(unless_it_never_tells(Ok(Some(()))).unwrap(), Some(()));
    }
}
