//! Making one check of one server: nothing, or the sentence that says why it failed.
//!
//! Libraries speak the protocols: hyper HTTP, rustls TLS, hickory DNS. A check that misreads an
//! answer takes a server away from everybody, and theirs have met every server there is.

mod command;
mod dns;
mod http;
mod path;
mod tls;

use std::time::Duration;

pub use dns::answer as dns_answer;
pub use http::ask as ask_http;
pub use path::{Direct, Path};

use crate::check::{Kind, Subject};
use crate::programs::Programs;

/// Makes a check within `timeout`. Of programs it runs those of `programs` alone.
pub async fn run(
    kind: &Kind,
    subject: &Subject,
    path: impl Path,
    timeout: Duration,
    programs: &Programs,
) -> Result<(), String> {
    let check = async {
        match kind {
            Kind::Tcp => tcp(path).await,
            Kind::Http(http) => http.probe(subject, path).await,
            Kind::Dns(dns) => dns.probe(path).await,
            Kind::Command(command) => command.probe(subject, path, programs).await,
        }
    };
    match tokio::time::timeout(timeout, check).await {
        Ok(outcome) => outcome,
        Err(_) => Err(format!("no answer within {} ms", timeout.as_millis())),
    }
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
