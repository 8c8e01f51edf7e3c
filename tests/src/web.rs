//! HTTP as small as it can be: servers that say their name, and clients that keep many connections
//! and ask again on each.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use testkit::netns::Namespace;
use testkit::process::Process;
use testkit::{PATIENCE, Result, wait_for};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

/// A server in a process of its own, which has its own limit of open files; it and all its
/// connections end when it is dropped.
#[derive(Debug)]
pub struct Web {
    _process: Process,
}

/// Says to this very program that it is a server: its port and its name.
const ROLE: &str = "BUTTERFLY_TEST_WEB";

impl Web {
    /// Listens in a namespace, on all its addresses, and answers every request with `name`. The
    /// program's main has to call [`serve_if_asked`] first.
    pub fn serve(host: &Namespace, port: u16, name: &str) -> Result<Self> {
        let own = std::env::current_exe().map_err(|e| format!("this program's path: {e}"))?;
        let command = format!("env {ROLE}={port}:{name} {}", own.display());
        let process = host.start(&format!("web-{name}-{port}"), &command)?;
        wait_for("a web server to listen", PATIENCE, || {
            Ok(process.log().contains("listening").then_some(()))
        })
        .map_err(|e| format!("{e}\n{}", process.log()))?;
        Ok(Self { _process: process })
    }
}

/// Serves for ever if this process was started by [`Web::serve`].
pub fn serve_if_asked() -> Result<()> {
    let Ok(role) = std::env::var(ROLE) else {
        return Ok(());
    };
    many_descriptors()?;
    let fail = |e: std::io::Error| format!("a web server: {e}");
    let (port, name) = role.split_once(':').ok_or("the role is PORT:NAME")?;
    let answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{name}",
        name.len()
    );
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(fail)?;
    runtime.block_on(async {
        // Of both families.
        let socket = tokio::net::TcpSocket::new_v6().map_err(fail)?;
        socket.set_reuseaddr(true).map_err(fail)?;
        let address = format!("[::]:{port}")
            .parse()
            .map_err(|e| format!("{role}: {e}"))?;
        socket.bind(address).map_err(fail)?;
        // What std asks for is less than comes in one moment.
        let listener = socket.listen(4096).map_err(fail)?;
        println!("listening");
        loop {
            let (stream, _) = listener.accept().await.map_err(fail)?;
            tokio::spawn(converse(stream, answer.clone()));
        }
    })
}

/// A request ends with an empty line; clients send one when they have the answer to the last.
async fn converse(mut stream: TcpStream, answer: String) {
    let mut request = Vec::new();
    while stream.read_buf(&mut request).await.is_ok_and(|len| len > 0) {
        if request.ends_with(b"\r\n\r\n") {
            request.clear();
            if stream.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
        }
    }
}

/// Connections of a client, each with the name of the server that it is to.
#[derive(Debug)]
pub struct Connections {
    runtime: Runtime,
    open: Vec<(TcpStream, String)>,
}

impl Connections {
    /// Opens `count` from a namespace, a hundred at a time, and asks once on each.
    pub fn open(host: &Namespace, to: SocketAddr, count: usize) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| format!("a client: {e}"))?;
        let mut connections = Self {
            runtime,
            open: Vec::with_capacity(count),
        };
        connections.open_more(host, to, count)?;
        Ok(connections)
    }

    /// Opens `count` more.
    pub fn open_more(&mut self, host: &Namespace, to: SocketAddr, count: usize) -> Result<()> {
        let family = match to {
            SocketAddr::V4(_) => rustix::net::AddressFamily::INET,
            SocketAddr::V6(_) => rustix::net::AddressFamily::INET6,
        };
        let goal = self.open.len() + count;
        while self.open.len() < goal {
            let some = (goal - self.open.len()).min(100);
            // Sockets belong to the namespace that they are made in.
            let sockets = host.inside(|| {
                let socket = || {
                    let socket = rustix::net::socket_with(
                        family,
                        rustix::net::SocketType::STREAM,
                        rustix::net::SocketFlags::NONBLOCK | rustix::net::SocketFlags::CLOEXEC,
                        None,
                    )?;
                    Ok(std::net::TcpStream::from(socket))
                };
                (0..some)
                    .map(|_| socket())
                    .collect::<std::io::Result<Vec<_>>>()
            })?;
            let sockets = sockets.map_err(|e| format!("sockets of a client: {e}"))?;
            let connected = self.runtime.block_on(async {
                let tasks = sockets.into_iter().map(|socket| async move {
                    let connect = tokio::net::TcpSocket::from_std_stream(socket).connect(to);
                    let mut stream = timely("connect", connect).await?;
                    let name = ask(&mut stream).await?;
                    Ok::<_, String>((stream, name))
                });
                all(tasks.collect()).await
            })?;
            self.open.extend(connected);
        }
        Ok(())
    }

    /// How many are open.
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// How many are to this server.
    pub fn to(&self, name: &str) -> usize {
        self.open
            .iter()
            .filter(|(_, server)| server == name)
            .count()
    }

    /// Forgets those to a server, as a client does whose server has died.
    pub fn give_up(&mut self, name: &str) {
        self.open.retain(|(_, server)| server != name);
    }

    /// Asks again on each; the answer has to come, and from the same server.
    pub fn ask_all(&mut self) -> Result<()> {
        let open = &mut self.open;
        self.runtime.block_on(async {
            for (stream, server) in open {
                ask_again(stream, server).await?;
            }
            Ok(())
        })
    }

    /// Asks again and again on all at once until `stop`, with pauses of other lengths on each, so
    /// that some packet is sent at any moment; the answers have to come, and from the same servers.
    pub fn ask_until(&mut self, stop: &Arc<AtomicBool>) -> Result<()> {
        let count = self.open.len() as u32;
        let tasks = (0..).zip(self.open.drain(..));
        let tasks = tasks.map(|(index, (mut stream, server))| {
            let (stop, pause) = (Arc::clone(stop), LONGEST_PAUSE * index / count);
            async move {
                while !stop.load(Ordering::Relaxed) {
                    ask_again(&mut stream, &server).await?;
                    tokio::time::sleep(pause).await;
                }
                Ok::<_, String>((stream, server))
            }
        });
        self.open = self
            .runtime
            .block_on(async { all(tasks.collect()).await })?;
        Ok(())
    }
}

/// Of [`Connections::ask_until`].
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What all tasks have given, or the first failure.
async fn all<T: 'static>(mut tasks: JoinSet<Result<T>>) -> Result<Vec<T>> {
    let mut done = Vec::new();
    while let Some(one) = tasks.join_next().await {
        done.push(one.map_err(|e| e.to_string())??);
    }
    Ok(done)
}

/// The answer has to come from this server.
async fn ask_again(stream: &mut TcpStream, server: &str) -> Result<()> {
    match ask(stream).await {
        Ok(name) if name == server => Ok(()),
        Ok(name) => Err(format!("a connection to {server} was answered by {name}")),
        Err(e) => Err(format!("a connection to {server}: {e}")),
    }
}

async fn ask(stream: &mut TcpStream) -> Result<String> {
    timely(
        "send",
        stream.write_all(b"GET / HTTP/1.1\r\nhost: vip\r\n\r\n"),
    )
    .await?;
    let mut answer = Vec::new();
    loop {
        if timely("receive", stream.read_buf(&mut answer)).await? == 0 {
            return Err("the connection was closed".to_owned());
        }
        let text = String::from_utf8_lossy(&answer);
        if let Some((head, body)) = text.split_once("\r\n\r\n")
            && let Some(length) = head
                .rsplit(' ')
                .next()
                .and_then(|length| length.parse::<usize>().ok())
            && body.len() == length
        {
            return Ok(body.to_owned());
        }
    }
}

async fn timely<T>(what: &str, io: impl Future<Output = std::io::Result<T>>) -> Result<T> {
    match tokio::time::timeout(PATIENCE, io).await {
        Ok(done) => done.map_err(|e| format!("{what}: {e}")),
        Err(_) => Err(format!("{what}: nothing within {PATIENCE:?}")),
    }
}

/// Raises the limit of open descriptors as far as this process may.
pub fn many_descriptors() -> Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let most = getrlimit(Resource::Nofile).maximum;
    let raised = Rlimit {
        current: most,
        maximum: most,
    };
    setrlimit(Resource::Nofile, raised).map_err(|e| format!("the limit of open files: {e}"))
}
