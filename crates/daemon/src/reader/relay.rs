//! A client that comes over TLS: the handshake and the records are the reader's, the clear bytes
//! the daemon's.

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::Reader;
use super::words::{Kind, SENTENCE_MAX, Word, receive, send, sentence};
use crate::access::peer::certificate_names;
use crate::places::ClientPlace;
use crate::v1::bounds::Guarded;

/// For a handshake to be over.
const PATIENCE: Duration = Duration::from_secs(20);
/// Bytes that are passed on at once.
const PIECE: usize = 16 << 10;
/// How long what the daemon said last is offered to a client that takes nothing.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// What is spoken within TLS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// gRPC.
    Http2,
    /// Metrics and the page.
    Http1,
}

impl Protocol {
    /// Its name in the handshake (RFC 7301).
    fn name(self) -> &'static [u8] {
        match self {
            Protocol::Http2 => b"h2",
            Protocol::Http1 => b"http/1.1",
        }
    }
}

/// A client with a certificate.
pub struct Secured {
    /// What it says and is told, in the clear.
    pub stream: Guarded<UnixStream>,
    /// Whose the certificate is.
    pub names: Vec<String>,
}

/// Why somebody who came is no client.
#[derive(Debug, thiserror::Error)]
pub enum NoClient {
    /// It shows no certificate of the authority, or speaks no TLS: a sentence.
    #[error("{0}")]
    TurnedAway(String),
    /// It has gone, takes too long or loses its place; or there is no reader.
    #[error("{0}")]
    Gone(#[from] io::Error),
}

/// Has a reader make the handshake with a client that has a place.
pub async fn secure(
    reader: &Reader,
    client: TcpStream,
    place: ClientPlace,
    protocol: Protocol,
) -> Result<Secured, NoClient> {
    let secured = async {
        let client = OwnedFd::from(client.into_std()?);
        let stream = reader.hand(Word::Tls, protocol.name(), client).await?;
        let mut stream = Guarded::new(stream, place);
        match receive(&mut stream, SENTENCE_MAX).await? {
            Some((Kind::Names, names)) => Ok(Secured {
                stream,
                names: serde_json::from_slice(&names).map_err(io::Error::from)?,
            }),
            Some((_, why)) => Err(NoClient::TurnedAway(sentence(&why))),
            None => Err(io::Error::from(ErrorKind::UnexpectedEof).into()),
        }
    };
    timeout(PATIENCE, secured).await.map_err(io::Error::from)?
}

/// In the reader: makes the handshake, and passes on what is said until one side has hung up.
pub async fn relay(client: TcpStream, mut daemon: UnixStream, config: Arc<ServerConfig>) {
    let mut byte = [0];
    let handshake = tokio::select! {
        done = handshake(client, config) => done,
        // It took too long, or the client's place is somebody else's.
        _ = daemon.read(&mut byte) => return,
    };
    let (client, names) = match handshake {
        Ok(done) => done,
        Err(e) => {
            if is_refused(&e) {
                let _ = send(&mut daemon, Kind::Failed, e.to_string().as_bytes()).await;
            }
            return;
        }
    };
    let names = serde_json::to_vec(&names).unwrap_or_default();
    if send(&mut daemon, Kind::Names, &names).await.is_ok() {
        pass_on(client, daemon).await;
    }
}

/// A client was turned away by this error. Who connects and says nothing is a probe, and who sends
/// an alert has refused us: both have gone.
fn is_refused(why: &io::Error) -> bool {
    match why.get_ref().and_then(|inner| inner.downcast_ref()) {
        Some(rustls::Error::AlertReceived(_)) => false,
        _ => matches!(why.kind(), ErrorKind::InvalidData | ErrorKind::Other),
    }
}

async fn handshake(
    client: TcpStream,
    config: Arc<ServerConfig>,
) -> io::Result<(TlsStream<TcpStream>, Vec<String>)> {
    let client = TlsAcceptor::from(config).accept(client).await?;
    let (_, session) = client.get_ref();
    let certificate = session.peer_certificates().and_then(<[_]>::first);
    // The verifier asks for one; without it there is no session.
    let certificate =
        certificate.ok_or_else(|| io::Error::other("the client has shown no certificate"))?;
    let names = certificate_names(certificate);
    Ok((client, names))
}

/// Both ways, until the daemon has hung up or something fails. A client that says nothing more may
/// still be told something.
async fn pass_on(client: impl AsyncRead + AsyncWrite + Unpin, mut daemon: UnixStream) {
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_daemon, mut to_daemon) = daemon.split();
    let up = async {
        let mut piece = vec![0; PIECE];
        loop {
            let len = from_client.read(&mut piece).await?;
            let told = match len {
                0 => to_daemon.shutdown().await,
                _ => to_daemon.write_all(&piece[..len]).await,
            };
            // What the daemon said before it hung up is still to be passed on.
            if len == 0 || told.is_err() {
                return std::future::pending::<io::Result<()>>().await;
            }
        }
    };
    let down = async {
        let mut piece = vec![0; PIECE];
        loop {
            let len = from_daemon.read(&mut piece).await?;
            let told = async {
                match len {
                    0 => to_client.shutdown().await,
                    _ => {
                        to_client.write_all(&piece[..len]).await?;
                        to_client.flush().await
                    }
                }
            };
            tokio::select! {
                told = told => told?,
                // What it has not taken by now it does not want; others need its place.
                () = hung_up(from_daemon.as_ref()) => return Ok(()),
            }
            if len == 0 {
                return Ok(());
            }
        }
    };
    let _: io::Result<()> = tokio::select! {
        ended = up => ended,
        ended = down => ended,
    };
}

/// Returns when the daemon has hung up for a while; looked at only while a client keeps it waiting,
/// since nothing wakes who waits for something else.
async fn hung_up(daemon: &UnixStream) {
    let mut has_hung_up = false;
    loop {
        tokio::time::sleep(LAST_WORDS).await;
        if has_hung_up {
            return;
        }
        let mut polled = [PollFd::new(daemon, PollFlags::empty())];
        let now = Timespec::default();
        has_hung_up =
            poll(&mut polled, Some(&now)).is_ok() && polled[0].revents().contains(PollFlags::HUP);
    }
}

#[cfg(test)]
mod tests {
    use rustls::version::{TLS12, TLS13};
    use tokio::io::duplex;
    use tokio::net::TcpListener;
    use tokio::time::Instant;
    use tokio_rustls::TlsConnector;

    use super::*;
    use crate::v1::tls::tests::{NAME, pair};

    /// Two ends of a connection over TCP.
    async fn connected() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connecting = TcpStream::connect(listener.local_addr().unwrap());
        let (near, far) = tokio::join!(connecting, listener.accept());
        (near.unwrap(), far.unwrap().0)
    }

    #[tokio::test]
    async fn a_client_that_refuses_us_was_not_turned_away() {
        for version in [&TLS13, &TLS12] {
            let ((server, _), (_, another)) = (pair(version), pair(version));
            let (near, far) = connected().await;
            let (mut daemon, reader) = UnixStream::pair().unwrap();
            let relaying = tokio::spawn(relay(far, reader, server.clone()));
            let connecting = TlsConnector::from(another).connect(NAME.try_into().unwrap(), near);
            connecting.await.unwrap_err();
            relaying.await.unwrap();
            assert!(receive(&mut daemon, SENTENCE_MAX).await.unwrap().is_none());

            let (mut near, far) = connected().await;
            let (mut daemon, reader) = UnixStream::pair().unwrap();
            let relaying = tokio::spawn(relay(far, reader, server));
            near.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
            relaying.await.unwrap();
            let (kind, why) = receive(&mut daemon, SENTENCE_MAX).await.unwrap().unwrap();
            assert_eq!(kind, Kind::Failed, "{}", sentence(&why));
        }
    }

    /// The client's end, and the daemon's, of what is passed on.
    fn between() -> (
        tokio::io::DuplexStream,
        UnixStream,
        tokio::task::JoinHandle<()>,
    ) {
        let (client, its) = duplex(64);
        let (daemon, reader) = UnixStream::pair().unwrap();
        let passing = tokio::spawn(pass_on(its, reader));
        (client, daemon, passing)
    }

    #[tokio::test]
    async fn what_is_said_goes_both_ways_until_the_daemon_hangs_up() {
        let (mut client, mut daemon, passing) = between();
        let long = [7; 1000];
        let mut heard = vec![0; long.len()];
        client.write_all(b"ping").await.unwrap();
        daemon.read_exact(&mut heard[..4]).await.unwrap();
        assert_eq!(&heard[..4], b"ping");
        // Who says nothing more is still told something.
        client.shutdown().await.unwrap();
        assert_eq!(daemon.read(&mut heard).await.unwrap(), 0);
        daemon.write_all(&long).await.unwrap();
        client.read_exact(&mut heard).await.unwrap();
        assert_eq!(heard, long);
        drop(daemon);
        assert_eq!(client.read(&mut heard).await.unwrap(), 0);
        passing.await.unwrap();
    }

    /// Its place is somebody else's by then.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_let_go_when_the_daemon_has_hung_up() {
        let (client, mut daemon, passing) = between();
        daemon.write_all(&[7; 1000]).await.unwrap();
        tokio::time::sleep(10 * LAST_WORDS).await;
        assert!(!passing.is_finished(), "the daemon may wait for it");
        drop(daemon);
        let since = Instant::now();
        passing.await.unwrap();
        assert!(since.elapsed() <= 2 * LAST_WORDS, "{:?}", since.elapsed());
        drop(client);
    }
}
