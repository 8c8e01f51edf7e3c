//! A program of the operator's. It is told the names of things by its environment, and given an
//! address on loopback behind which the server is: a relay, since the program's own sockets know
//! nothing of paths. It runs as nobody, within limits, and all that it has started ends with the
//! check.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;
use std::sync::Arc;

use rustix::process::{Pid, Signal};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, UdpSocket};

use super::{Path, reason};
use crate::check::{Command, Subject};
use crate::programs::{self, LIMITS, Programs};

/// The largest UDP payload.
const DATAGRAM_MAX: usize = 65_535;
/// How many bytes of the program's output are read for the sentence.
const SAID_MAX: u64 = 400;

impl Command {
    pub(super) async fn probe(
        &self,
        subject: &Subject,
        path: impl Path,
        programs: &Programs,
    ) -> Result<(), String> {
        // Asked each time: the folder may have changed since the check was declared.
        let file = programs
            .program(self)
            .map_err(|e| format!("{} {}", e.value, e.why))?;
        let relay = |e: std::io::Error| format!("no relay on loopback: {}", reason(&e));
        let Some((program, arguments)) = self.0.split_first() else {
            return Err("there is no program to run".into());
        };
        let udp = subject.protocol == "udp";
        let (address, relaying) = match udp {
            true => relay_udp(path)
                .await
                .map(|(address, task)| (address, Relay(task))),
            false => relay_tcp(path)
                .await
                .map(|(address, task)| (address, Relay(task))),
        }
        .map_err(relay)?;
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
        let mut child = programs::start(command)
            .map_err(|e| format!("{program} cannot be run: {}", reason(&e)))?;
        let group = Group(child.id());
        let mut said = Vec::new();
        if let Some(stderr) = child.stderr.take() {
            // What it says beyond that is not waited for: it would block on a full pipe, and run
            // out of time.
            let _ = stderr.take(SAID_MAX).read_to_end(&mut said).await;
        }
        let status = child.wait().await;
        drop((group, relaying));
        match status {
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
        }
    }
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

async fn relay_tcp(path: impl Path) -> std::io::Result<(SocketAddr, tokio::task::JoinHandle<()>)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    let task = tokio::spawn(async move {
        // The connections end with the listener: each is a future of this task.
        let mut running = tokio::task::JoinSet::new();
        while let Ok((mut near, _)) = listener.accept().await {
            let path = path.clone();
            running.spawn(async move {
                // A server that refuses is seen by the program as a connection that ends at once.
                if let Ok((far, _hold)) = super::connect(&path).await {
                    // Dropped before what keeps the way open.
                    let mut far = far;
                    let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                }
            });
        }
    });
    Ok((address, task))
}

/// For one client, which a check is: answers go to whoever spoke last.
async fn relay_udp(path: impl Path) -> std::io::Result<(SocketAddr, tokio::task::JoinHandle<()>)> {
    let near = Arc::new(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?);
    let address = near.local_addr()?;
    let (far, hold) = path.udp().await?;
    let task = tokio::spawn(async move {
        let _hold = hold;
        let (mut query, mut answer) = (vec![0; DATAGRAM_MAX], vec![0; DATAGRAM_MAX]);
        let mut client = None;
        loop {
            tokio::select! {
                came = near.recv_from(&mut query) => {
                    let Ok((len, from)) = came else { return };
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
    Ok((address, task))
}
