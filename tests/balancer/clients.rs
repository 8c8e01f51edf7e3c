//! Clients that know who has answered them: flows of datagrams, and addresses from which
//! connections are made, each with the server that it had first.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use testkit::netns::Namespace;
use testkit::{PATIENCE, Result};

use crate::stage::Server;

/// How often a thread that waits looks whether it is to end.
const LOOK: Duration = Duration::from_millis(50);

/// Servers that answer each datagram with their name, until this is dropped.
pub struct Namers {
    end: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Namers {
    /// On an address that all of them have.
    pub fn start(servers: &[Server], at: SocketAddr) -> Result<Self> {
        let end = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for server in servers {
            let failed = |e: std::io::Error| format!("{} at {at}: {e}", server.name);
            let socket = server.host.inside(|| UdpSocket::bind(at))?;
            let socket = socket.map_err(failed)?;
            socket.set_read_timeout(Some(LOOK)).map_err(failed)?;
            let (end, name) = (end.clone(), server.name.clone());
            threads.push(std::thread::spawn(move || {
                while !end.load(Ordering::Relaxed) {
                    if let Ok((_, from)) = socket.recv_from(&mut [0; 64]) {
                        let _ = socket.send_to(name.as_bytes(), from);
                    }
                }
            }));
        }
        Ok(Self { end, threads })
    }
}

impl Drop for Namers {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Flows of datagrams, a socket each.
pub struct Flows(Vec<(UdpSocket, String)>);

impl Flows {
    /// So many of a client, each with its first answer.
    pub fn open(client: &Namespace, to: SocketAddr, count: usize) -> Result<Self> {
        let socket = || -> std::io::Result<UdpSocket> {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            socket.connect(to)?;
            socket.set_read_timeout(Some(PATIENCE))?;
            Ok(socket)
        };
        let sockets = client.inside(|| (0..count).map(|_| socket()).collect::<Vec<_>>())?;
        let open = sockets.into_iter().map(|socket| {
            let socket = socket.map_err(|e| format!("a flow to {to}: {e}"))?;
            let name = answer(&socket)?;
            Ok((socket, name))
        });
        open.collect::<Result<_>>().map(Self)
    }

    /// Asks again in each; the answer has to come, and from the same server.
    pub fn ask_all(&self) -> Result<()> {
        self.0
            .iter()
            .try_for_each(|(socket, server)| is_same(&of(socket), server, &answer(socket)?))
    }

    /// How many are to this server.
    pub fn to(&self, name: &str) -> usize {
        self.0.iter().filter(|(_, server)| server == name).count()
    }

    /// Forgets those to a server that is gone.
    pub fn give_up(&mut self, name: &str) {
        self.0.retain(|(_, server)| server != name);
    }
}

/// What a flow is called.
fn of(socket: &UdpSocket) -> String {
    let port = socket.local_addr().map_or(0, |address| address.port());
    format!("the flow of port {port}")
}

fn answer(socket: &UdpSocket) -> Result<String> {
    let mut name = [0; 64];
    let asked = socket.send(b"who?").and_then(|_| socket.recv(&mut name));
    let len = asked.map_err(|e| format!("{}: {e}", of(socket)))?;
    Ok(String::from_utf8_lossy(&name[..len]).into_owned())
}

/// Addresses of a client, of which each asks by another connection each time.
pub struct Addresses<'a> {
    client: &'a Namespace,
    to: SocketAddr,
    known: Vec<(Ipv4Addr, String)>,
}

impl<'a> Addresses<'a> {
    /// Gives the client these addresses, and has each ask for the first time.
    pub fn new(
        client: &'a Namespace,
        to: SocketAddr,
        addresses: impl Iterator<Item = Ipv4Addr>,
    ) -> Result<Self> {
        let addresses: Vec<Ipv4Addr> = addresses.collect();
        let add = addresses
            .iter()
            .map(|address| format!("ip addr add {address}/24 dev eth0; "));
        client.ok(&add.collect::<String>())?;
        let ask = || {
            addresses
                .iter()
                .map(|from| Ok((*from, ask_from(*from, to)?)))
        };
        let known = client.inside(|| ask().collect::<Result<_>>())??;
        Ok(Self { client, to, known })
    }

    /// Each asks again; the answer has to come, and from the same server.
    pub fn ask_all(&self) -> Result<()> {
        let ask = |(from, server): &(Ipv4Addr, String)| {
            is_same(&from.to_string(), server, &ask_from(*from, self.to)?)
        };
        self.client.inside(|| self.known.iter().try_for_each(ask))?
    }

    /// How many have this server.
    pub fn to(&self, name: &str) -> usize {
        self.known.iter().filter(|(_, had)| had == name).count()
    }

    /// Forgets those of a server that is gone.
    pub fn give_up(&mut self, name: &str) {
        self.known.retain(|(_, server)| server != name);
    }
}

fn is_same(client: &str, had: &str, now: &str) -> Result<()> {
    match had == now {
        true => Ok(()),
        false => Err(format!("{client}, whose server was {had}, has {now}")),
    }
}

/// The name of the server that answers a new connection from this address; of the namespace that
/// the thread is in.
fn ask_from(from: Ipv4Addr, to: SocketAddr) -> Result<String> {
    let asked = || -> std::io::Result<String> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.bind(&SocketAddr::from((from, 0)).into())?;
        socket.connect_timeout(&to.into(), PATIENCE)?;
        let mut stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"GET / HTTP/1.1\r\nhost: vip\r\n\r\n")?;
        // Servers end a connection when its client does.
        stream.shutdown(std::net::Shutdown::Write)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let answer = asked().map_err(|e| format!("a connection from {from}: {e}"))?;
    let body = answer.split("\r\n\r\n").nth(1).unwrap_or_default();
    Ok(body.to_owned())
}
