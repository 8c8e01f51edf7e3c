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

use std::time::{Duration, Instant};

pub use dns::answer as dns_answer;
pub use http::ask as ask_http;
pub use path::{Direct, Fault, Path, Transport};
pub use question::{Asks, Here, NotMade, Question, Socket, ask};

use crate::check::{Kind, Subject};
use crate::programs::Programs;
use command::Obstacles;

/// What checks are made with.
#[derive(Clone, Debug)]
pub struct Means<A> {
    /// The programs that may be run.
    pub programs: Programs,
    /// Who asks servers, and parses what they answer.
    pub asks: A,
}

/// A check that was made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Made {
    /// Nothing when all is well, or the sentence that says why it failed.
    pub outcome: Result<(), String>,
    /// The server's time: without what it waited for this host.
    pub took: Duration,
}

/// Makes a check within `timeout`, once this host can. `clock` tells the time.
///
/// # Errors
/// It could not be made, for reasons that are not the server's.
pub async fn run(
    kind: &Kind,
    subject: &Subject,
    path: impl Path,
    timeout: Duration,
    means: &Means<impl Asks>,
    clock: fn() -> Instant,
) -> Result<Made, NotMade> {
    let is_asked = matches!(kind, Kind::Http(_) | Kind::Dns(_));
    if is_asked {
        means.asks.prepare().await?;
    }
    let turn = path.turn(kind.transport(subject)).await?;
    let way = path.clone();
    let obstacles = Obstacles::default();
    let check = async {
        match kind {
            Kind::Tcp => Ok(connect(&path, turn).await?.map(drop)),
            Kind::Http(http) => {
                let question = Question::Http(http.clone());
                asked(question, subject, path, turn, means).await
            }
            Kind::Dns(dns) => {
                let question = Question::Dns(dns.clone());
                asked(question, subject, path, turn, means).await
            }
            Kind::Command(command) => {
                let programs = &means.programs;
                command
                    .probe(subject, path, turn, programs, &obstacles)
                    .await
            }
        }
    };
    let began = clock();
    let outcome = match tokio::time::timeout(timeout, check).await {
        Ok(outcome) => outcome?,
        Err(_) => {
            if is_asked && !means.asks.is_well().await {
                return Err(NotMade("who asks does not answer".into()));
            }
            Err(format!("no answer within {} ms", timeout.as_millis()))
        }
    };
    let took = clock().saturating_duration_since(began);
    // What a program came to that could not reach the server says nothing of that; nor does what
    // has failed on a way that was none.
    if outcome.is_err()
        && let Some(why) = obstacles.seen().or_else(|| way.hindrance())
    {
        return Err(why);
    }
    Ok(Made { outcome, took })
}

impl Kind {
    /// What its first socket is.
    fn transport(&self, subject: &Subject) -> Transport {
        let udp = match self {
            Kind::Tcp | Kind::Http(_) => false,
            Kind::Dns(dns) => !dns.tcp,
            Kind::Command(_) => subject.protocol == "udp",
        };
        if udp { Transport::Udp } else { Transport::Tcp }
    }
}

/// Connects, and has the question asked. The way stays open for as long as that takes.
async fn asked<P: Path>(
    question: Question,
    subject: &Subject,
    path: P,
    turn: P::Turn,
    means: &Means<impl Asks>,
) -> Result<Result<(), String>, NotMade> {
    let connected = match question.is_for_udp() {
        false => connect(&path, turn)
            .await?
            .map(|(stream, hold)| (Socket::Tcp(stream), hold)),
        true => told(path.udp(turn).await, "no DNS answer")?
            .map(|(socket, hold)| (Socket::Udp(socket), hold)),
    };
    let (server, _hold) = match connected {
        Ok(connected) => connected,
        Err(why) => return Ok(Err(why)),
    };
    means.asks.ask(question, subject.service, server).await
}

/// A TCP connection that is reset when it is dropped: a check leaves no TIME_WAIT behind, neither
/// here, where its port is needed again, nor on the server.
async fn connect<P: Path>(
    path: &P,
    turn: P::Turn,
) -> Result<Result<(tokio::net::TcpStream, P::Hold), String>, NotMade> {
    let connected = told(path.tcp(turn).await, "no TCP connection")?;
    // Where it cannot be set the connection ends as others do.
    Ok(connected.inspect(|(stream, _)| {
        let _ = socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO));
    }))
}

/// A socket, or a sentence about the server that it is not had from.
fn told<T>(socket: Result<T, Fault>, what: &str) -> Result<Result<T, String>, NotMade> {
    match socket {
        Ok(socket) => Ok(Ok(socket)),
        Err(Fault::Server(error)) => Ok(Err(format!("{what}: {}", reason(&error)))),
        Err(Fault::Host(why)) => Err(why),
    }
}

/// An error of the operating system without its number.
fn reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    match text.rfind(" (os error ") {
        Some(at) => text[..at].to_lowercase(),
        None => text,
    }
}
