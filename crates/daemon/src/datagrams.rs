//! Datagrams to one collector.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// A way to one collector, made when it is needed, and anew after an error: the one before may be
/// of a network that is gone.
pub struct Datagrams {
    to: SocketAddr,
    /// With the address that the collector sees.
    socket: Option<(UdpSocket, IpAddr)>,
    is_failing: bool,
}

/// What is known of datagrams when one has been sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// No refusal has come.
    Fine,
    /// Nobody took one before, as ICMP says. This one may be taken.
    OneBeforeRefused,
}

/// A collector's address as an option has it. Errors: a sentence that names the option.
pub fn collector(option: &str, text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| format!("{option} '{text}': it is ADDRESS:PORT, as 192.0.2.9:4739"))
}

impl Datagrams {
    pub fn new(to: SocketAddr) -> Datagrams {
        Datagrams {
            to,
            socket: None,
            is_failing: false,
        }
    }

    /// The address that the collector knows this host by; `what` cannot be sent without.
    pub fn source(&mut self, what: &str) -> io::Result<IpAddr> {
        let source = self.socket().map(|(_, source)| *source);
        source.inspect_err(|error| self.fails(what, error))
    }

    /// Sends one; `what` is in it. The log tells when the first is lost, and when the next arrives.
    pub fn send(&mut self, bytes: &[u8], what: &str) -> io::Result<Sent> {
        self.send_behind(None, bytes, what)
    }

    /// As [`send`](Self::send). After a refusal `first` goes before it: who has begun to listen
    /// since then knows nothing of what was sent before.
    pub fn send_behind(
        &mut self,
        first: Option<&[u8]>,
        bytes: &[u8],
        what: &str,
    ) -> io::Result<Sent> {
        let socket = self.socket();
        let sent = socket.and_then(|(socket, _)| send(socket, first, bytes));
        let to = self.to;
        match &sent {
            Ok(Sent::Fine) => {
                if std::mem::take(&mut self.is_failing) {
                    tracing::info!("{what} are sent to the collector {to} again");
                }
            }
            Ok(Sent::OneBeforeRefused) => {
                self.fails(what, &ErrorKind::ConnectionRefused.into());
            }
            Err(error) => {
                self.socket = None;
                self.fails(what, error);
            }
        }
        sent
    }

    fn fails(&mut self, what: &str, error: &io::Error) {
        if !std::mem::replace(&mut self.is_failing, true) {
            tracing::warn!(
                "{what} cannot be sent to the collector {}: {error}",
                self.to
            );
        }
    }

    fn socket(&mut self) -> io::Result<&(UdpSocket, IpAddr)> {
        let socket = match self.socket.take() {
            Some(socket) => socket,
            None => open(self.to)?,
        };
        Ok(self.socket.insert(socket))
    }
}

fn open(to: SocketAddr) -> io::Result<(UdpSocket, IpAddr)> {
    let any: IpAddr = match to.is_ipv6() {
        false => Ipv4Addr::UNSPECIFIED.into(),
        true => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.set_nonblocking(true)?;
    socket.connect(to)?;
    let source = socket.local_addr()?.ip();
    Ok((socket, source))
}

/// A refusal that the kernel reports is of a datagram before, and it has not sent this one: it is
/// sent again.
fn send(socket: &UdpSocket, first: Option<&[u8]>, bytes: &[u8]) -> io::Result<Sent> {
    let is_refusal = |error: &io::Error| error.kind() == ErrorKind::ConnectionRefused;
    match socket.send(bytes) {
        Err(error) if is_refusal(&error) => {
            for bytes in first.into_iter().chain([bytes]) {
                match socket.send(bytes) {
                    // Of the one before again, where the answer has come at once.
                    Err(error) if is_refusal(&error) => socket.send(bytes)?,
                    sent => sent?,
                };
            }
            Ok(Sent::OneBeforeRefused)
        }
        sent => sent.map(|_| Sent::Fine),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_after_a_refusal_arrives() {
        let listener = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        drop(listener);
        let mut datagrams = Datagrams::new(to);
        assert_eq!(datagrams.send(b"lost", "words").unwrap(), Sent::Fine);
        let listener = UdpSocket::bind(to).unwrap();
        let sent = datagrams.send(b"taken", "words").unwrap();
        assert_eq!(sent, Sent::OneBeforeRefused);
        let mut bytes = [0; 16];
        let len = listener.recv(&mut bytes).unwrap();
        assert_eq!(&bytes[..len], b"taken");
        assert_eq!(datagrams.send(b"taken", "words").unwrap(), Sent::Fine);
        assert_eq!(datagrams.source("words").unwrap(), Ipv4Addr::LOCALHOST);
    }

    #[test]
    fn a_collector_is_an_address_and_a_port() {
        for bad in ["", "192.0.2.9", "collector:6343", "192.0.2.9:0x1"] {
            let error = collector("--sflow", bad).unwrap_err();
            assert!(error.contains("--sflow") && error.contains("ADDRESS:PORT"));
        }
    }
}
