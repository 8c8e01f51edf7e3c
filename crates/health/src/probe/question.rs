//! What a server is asked on a connection that is there, and who asks: that may be a process that
//! can do nothing else.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use tokio::net::{TcpStream, UdpSocket};

use crate::check::{Dns, Http};

/// What is asked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Question {
    /// For a page.
    Http(Http),
    /// For a name.
    Dns(Dns),
}

/// A connection with a server.
#[derive(Debug)]
pub enum Socket {
    /// A stream.
    Tcp(TcpStream),
    /// Datagrams, to the server alone.
    Udp(UdpSocket),
}

/// Why nothing is known of a server: a sentence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotMade(pub String);

/// Asks servers.
pub trait Asks: Clone + Send + Sync + 'static {
    /// Returns when it can ask: a server's time begins behind that.
    ///
    /// # Errors
    /// It cannot.
    fn prepare(&self) -> impl Future<Output = Result<(), NotMade>> + Send;

    /// Asks; gives nothing when all is well, or the sentence that says why not. `service` is the
    /// address that the server is reached through.
    ///
    /// # Errors
    /// Whoever asks could not: the server has nothing to do with it.
    fn ask(
        &self,
        question: Question,
        service: SocketAddr,
        server: Socket,
    ) -> impl Future<Output = Result<Result<(), String>, NotMade>> + Send;

    /// Whether it was the server that did not answer in time, and not whoever asks.
    fn is_well(&self) -> impl Future<Output = bool> + Send;
}

/// Asks in this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Here;

impl Asks for Here {
    async fn prepare(&self) -> Result<(), NotMade> {
        Ok(())
    }

    async fn ask(
        &self,
        question: Question,
        service: SocketAddr,
        server: Socket,
    ) -> Result<Result<(), String>, NotMade> {
        Ok(ask(&question, service, server).await)
    }

    async fn is_well(&self) -> bool {
        true
    }
}

/// Asks a server in this process, however long that takes.
///
/// # Errors
/// The server is not well, or the socket is not of the question's kind: a sentence.
pub async fn ask(question: &Question, service: SocketAddr, server: Socket) -> Result<(), String> {
    match (question, server) {
        (Question::Http(http), Socket::Tcp(stream)) => http.probe(service, stream).await,
        (Question::Dns(dns), Socket::Tcp(stream)) => dns.over_tcp(stream).await,
        (Question::Dns(dns), Socket::Udp(socket)) => dns.over_udp(socket).await,
        (Question::Http(_), Socket::Udp(_)) => Err("HTTP is not asked over UDP".into()),
    }
}

impl Question {
    /// It is asked by datagrams.
    pub fn is_for_udp(&self) -> bool {
        matches!(self, Question::Dns(dns) if !dns.tcp)
    }
}
