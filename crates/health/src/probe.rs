//! Making one check of one server: nothing, or the sentence that says why it failed.
//!
//! Libraries speak the protocols: hyper HTTP, rustls TLS, hickory DNS. A check that misreads an
//! answer takes a server away from everybody, and theirs have met every server there is.

mod command;
mod dns;
mod http;
mod path;
mod question;
mod tls;

use std::time::Duration;

pub use dns::answer as dns_answer;
pub use http::ask as ask_http;
pub use path::{Direct, Path};
pub use question::{Asks, Here, NotMade, Question, Socket, ask};

use crate::check::{Kind, Subject};
use crate::programs::Programs;

/// What checks are made with.
#[derive(Clone, Debug)]
pub struct Means<A> {
    /// The programs that may be run.
    pub programs: Programs,
    /// Who asks servers, and parses what they answer.
    pub asks: A,
}

/// Makes a check within `timeout`; gives nothing when all is well, or the sentence that says why it
/// failed.
///
/// # Errors
/// It could not be made, for reasons that are not the server's.
pub async fn run(
    kind: &Kind,
    subject: &Subject,
    path: impl Path,
    timeout: Duration,
    means: &Means<impl Asks>,
) -> Result<Result<(), String>, NotMade> {
    let is_asked = matches!(kind, Kind::Http(_) | Kind::Dns(_));
    if is_asked {
        means.asks.prepare().await?;
    }
    let check = async {
        match kind {
            Kind::Tcp => Ok(tcp(path).await),
            Kind::Http(http) => asked(Question::Http(http.clone()), subject, path, means).await,
            Kind::Dns(dns) => asked(Question::Dns(dns.clone()), subject, path, means).await,
            Kind::Command(command) => Ok(command.probe(subject, path, &means.programs).await),
        }
    };
    if let Ok(outcome) = tokio::time::timeout(timeout, check).await {
        return outcome;
    }
    if is_asked && !means.asks.is_well().await {
        return Err(NotMade("who asks does not answer".into()));
    }
    Ok(Err(format!("no answer within {} ms", timeout.as_millis())))
}

/// Connects, and has the question asked. The way stays open for as long as that takes.
async fn asked<P: Path>(
    question: Question,
    subject: &Subject,
    path: P,
    means: &Means<impl Asks>,
) -> Result<Result<(), String>, NotMade> {
    let connected = match question.is_for_udp() {
        false => connect(&path)
            .await
            .map(|(stream, hold)| (Socket::Tcp(stream), hold)),
        true => path
            .udp()
            .await
            .map(|(socket, hold)| (Socket::Udp(socket), hold))
            .map_err(|e| format!("no DNS answer: {}", reason(&e))),
    };
    let (server, _hold) = match connected {
        Ok(connected) => connected,
        Err(why) => return Ok(Err(why)),
    };
    means.asks.ask(question, subject.service, server).await
}

async fn tcp(path: impl Path) -> Result<(), String> {
    connect(&path).await.map(drop)
}

/// A TCP connection that is reset when it is dropped: a check leaves no TIME_WAIT behind, neither
/// here, where its port is needed again, nor on the server.
async fn connect<P: Path>(path: &P) -> Result<(tokio::net::TcpStream, P::Hold), String> {
    let (stream, hold) = path
        .tcp()
        .await
        .map_err(|e| format!("no TCP connection: {}", reason(&e)))?;
    // Where it cannot be set the connection ends as others do.
    let _ = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
    Ok((stream, hold))
}

/// An error of the operating system without its number.
fn reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    match text.rfind(" (os error ") {
        Some(at) => text[..at].to_lowercase(),
        None => text,
    }
}
