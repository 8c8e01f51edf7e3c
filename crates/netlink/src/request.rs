//! Single questions to the kernel: where would a packet go, who is that neighbour. Answers are the
//! kernel's own, by its rules and tables of this moment; for anything asked often there is the
//! mirror.

use crate::decode;
use crate::dump::{DUMPS_MAX, Dump};
use crate::error::Error;
use crate::message::{Message, Request, messages, u32_at};
use crate::model::{Family, Hop, Neighbour, RouteKind};
use crate::socket::Socket;
use crate::uapi::*;
use ipnet::IpNet;
use std::io;
use std::net::IpAddr;
use std::time::Duration;
use tokio::sync::Mutex;
use wire::Mac;

/// The kernel answers within the system call that asks; this is for a socket that lost the answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// A socket to ask with, of the namespace of the thread that made it. May be shared.
#[derive(Debug)]
pub struct Requests {
    asking: Mutex<Asking>,
}

#[derive(Debug)]
struct Asking {
    socket: Socket,
    sequence: u32,
}

/// A packet that might be sent.
#[derive(Clone, Copy, Debug)]
pub struct Query {
    /// The destination.
    pub dst: IpAddr,
    /// Its source address, where that is decided already.
    pub src: Option<IpAddr>,
    /// The interface it must leave by, an index.
    pub oif: Option<u32>,
    /// The interface it came in by: asks how it would be forwarded, which needs `src` too.
    pub iif: Option<u32>,
    /// Its mark.
    pub mark: Option<u32>,
    /// Protocol, source and destination port, for rules that ask for them.
    pub ports: Option<(u8, u16, u16)>,
}

impl Query {
    /// Something of this host's own to `dst`.
    pub fn to(dst: IpAddr) -> Self {
        Query {
            dst,
            src: None,
            oif: None,
            iif: None,
            mark: None,
            ports: None,
        }
    }
}

/// What the kernel would do with a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolution {
    /// Unicast, or local; errors where the route says so are [`Error::Unreachable`].
    pub kind: RouteKind,
    /// The table that had it.
    pub table: u32,
    /// The route's prefix.
    pub prefix: IpNet,
    /// All next hops with their weights. A hop without gateway is the destination itself.
    pub hops: Vec<Hop>,
    /// The source address that the kernel would give it.
    pub source: Option<IpAddr>,
    /// The largest packet, where the route says so; else the interface's. Never what the kernel has
    /// learnt of the path: it takes the word of any ICMP error that quotes a packet of this host,
    /// sent or not.
    pub mtu: Option<u32>,
}

impl Requests {
    /// A socket of the calling thread's namespace.
    pub fn new() -> Result<Self, Error> {
        let asking = Asking {
            socket: Socket::new()?,
            sequence: 1,
        };
        Ok(Self {
            asking: Mutex::new(asking),
        })
    }

    /// Where a packet would go. Fails with [`Error::Unreachable`] when nowhere.
    pub async fn resolve(&self, query: &Query) -> Result<Resolution, Error> {
        let ask = async |flags: u32| {
            let answer = self
                .ask("look up a route", |sequence| query.request(flags, sequence))
                .await;
            answer.map_err(|error| match error {
                Error::Refused { source, .. } => Error::Unreachable {
                    dst: query.dst,
                    source,
                },
                other => other,
            })
        };
        let read = |bytes: &[u8]| {
            let message = messages(bytes).next()?;
            decode::route_as_told(&message)
        };
        // The table's entry has all next hops, and the MTU as it was set; only the packet's own
        // route has its source.
        let entry = ask(RTM_F_FIB_MATCH).await?;
        let packet = ask(0).await?;
        let malformed = Error::Malformed("look up a route");
        let (Some((key, entry)), Some((_, packet))) = (read(&entry), read(&packet)) else {
            return Err(malformed);
        };
        if let Some(errno) = refusal(entry.kind) {
            return Err(Error::Unreachable {
                dst: query.dst,
                source: errno.into(),
            });
        }
        Ok(Resolution {
            kind: entry.kind,
            table: key.table,
            prefix: key.dst,
            hops: entry.hops,
            source: packet.preferred_source.or(entry.preferred_source),
            mtu: entry.mtu,
        })
    }

    /// What the kernel knows of a neighbour; `None` if nothing.
    pub async fn neighbour(&self, ifindex: u32, ip: IpAddr) -> Result<Option<Neighbour>, Error> {
        let action = "look up a neighbour";
        let request = |sequence| {
            Request::new(RTM_GETNEIGH, 0, sequence, &ndmsg(ifindex, ip, 0))
                .with_ip(NDA_DST, ip)
                .finish()
        };
        match self.ask(action, request).await {
            Ok(answer) => {
                let found = messages(&answer)
                    .next()
                    .and_then(|message| decode::neighbour(&message));
                found.map(Some).ok_or(Error::Malformed(action))
            }
            Err(Error::Refused { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Asks the kernel to find out a neighbour's address, as if there were a packet for it: an
    /// entry is made if there is none, and a stale one is confirmed. The mirror tells when it is
    /// answered, or failed. Needs CAP_NET_ADMIN.
    pub async fn probe(&self, ifindex: u32, ip: IpAddr) -> Result<(), Error> {
        let request = |sequence| {
            Request::new(
                RTM_NEWNEIGH,
                NLM_F_CREATE | NLM_F_ACK,
                sequence,
                &ndmsg(ifindex, ip, NTF_USE),
            )
            .with_ip(NDA_DST, ip)
            .finish()
        };
        self.ask("resolve a neighbour", request).await.map(drop)
    }

    /// Asks for all that there is of a kind, and hands over each message of the answer: some of
    /// them twice where the kernel has to be asked again.
    pub(crate) async fn dump(
        &self,
        action: &'static str,
        kind: u16,
        fixed: &[u8],
        mut each: impl FnMut(&Message),
    ) -> Result<(), Error> {
        let mut asking = self.asking.lock().await;
        let mut tries = 0;
        loop {
            tries += 1;
            match asking.dump(action, kind, fixed, &mut each).await {
                Err(Error::Interrupted(_)) if tries < DUMPS_MAX => {}
                done => return done,
            }
        }
    }

    /// Behind which of its ports a bridge has seen a MAC. `None`: behind none, or it is the
    /// bridge's own. Of a bridge that filters VLANs: in the untagged one.
    pub async fn bridge_port(&self, bridge: u32, mac: Mac) -> Result<Option<u32>, Error> {
        let action = "ask a bridge";
        let request = |sequence| {
            let mut body = [0; 12];
            body[0] = AF_BRIDGE;
            Request::new(RTM_GETNEIGH, 0, sequence, &body)
                .with(NDA_LLADDR, &mac.0)
                .with(NDA_MASTER, &bridge.to_ne_bytes())
                .finish()
        };
        match self.ask(action, request).await {
            Ok(answer) => {
                let port = messages(&answer)
                    .next()
                    .and_then(|message| u32_at(message.body, 4));
                let port = port.ok_or(Error::Malformed(action))?;
                // What a bridge has of its own it gives with its own index.
                Ok((port != bridge).then_some(port))
            }
            Err(Error::Refused { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Sends one request and gives the one message that answers it.
    pub(crate) async fn ask(
        &self,
        action: &'static str,
        request: impl FnOnce(u32) -> Vec<u8>,
    ) -> Result<Vec<u8>, Error> {
        let mut asking = self.asking.lock().await;
        let sequence = asking.send(request)?;
        let answer = async {
            loop {
                let datagram = asking.socket.receive().await?;
                if messages(datagram)
                    .next()
                    .is_some_and(|message| message.sequence == sequence)
                {
                    return io::Result::Ok(datagram.to_vec());
                }
            }
        };
        let answer = patiently(answer).await?;
        let error = messages(&answer)
            .next()
            .and_then(|message: Message| message.error());
        match error {
            Some(error) if error != 0 => Err(Error::Refused {
                action,
                source: io::Error::from_raw_os_error(error),
            }),
            _ => Ok(answer),
        }
    }
}

impl Asking {
    /// Sends a request under the next number, and gives the number that its answers have.
    fn send(&mut self, request: impl FnOnce(u32) -> Vec<u8>) -> Result<u32, Error> {
        self.sequence = self.sequence.wrapping_add(1);
        self.socket.send(&request(self.sequence)).map_err(failed)?;
        Ok(self.sequence)
    }

    async fn dump(
        &mut self,
        action: &'static str,
        kind: u16,
        fixed: &[u8],
        each: &mut impl FnMut(&Message),
    ) -> Result<(), Error> {
        let request = |sequence| Request::new(kind, NLM_F_DUMP, sequence, fixed).finish();
        let mut dump = Dump::new(action, self.send(request)?);
        loop {
            let datagram = patiently(self.socket.receive()).await?;
            if let Some(done) = dump.read(datagram, each) {
                return done;
            }
        }
    }
}

/// What the socket gives, within the time that the kernel has.
async fn patiently<T>(work: impl Future<Output = io::Result<T>>) -> Result<T, Error> {
    let done = tokio::time::timeout(PATIENCE, work).await;
    done.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        .map_err(failed)
}

fn failed(source: io::Error) -> Error {
    Error::Socket {
        action: "use",
        source,
    }
}

impl Query {
    fn request(&self, flags: u32, sequence: u32) -> Vec<u8> {
        let bits = |ip: IpAddr| if ip.is_ipv4() { 32 } else { 128 };
        let mut body = [0u8; 12];
        body[0] = Family::of(self.dst).code();
        body[1] = bits(self.dst);
        body[2] = self.src.map_or(0, bits);
        body[8..].copy_from_slice(&flags.to_ne_bytes());
        let mut request = Request::new(RTM_GETROUTE, 0, sequence, &body).with_ip(RTA_DST, self.dst);
        if let Some(src) = self.src {
            request = request.with_ip(RTA_SRC, src);
        }
        for (kind, number) in [
            (RTA_OIF, self.oif),
            (RTA_IIF, self.iif),
            (RTA_MARK, self.mark),
        ] {
            if let Some(number) = number {
                request = request.with(kind, &number.to_ne_bytes());
            }
        }
        if let Some((protocol, source, destination)) = self.ports {
            request = request
                .with(RTA_IP_PROTO, &[protocol])
                .with(RTA_SPORT, &source.to_be_bytes())
                .with(RTA_DPORT, &destination.to_be_bytes());
        }
        request.finish()
    }
}

/// What a route of that kind makes of a packet, if it is an error.
fn refusal(kind: RouteKind) -> Option<rustix::io::Errno> {
    match kind {
        RouteKind::Blackhole => Some(rustix::io::Errno::INVAL),
        RouteKind::Unreachable => Some(rustix::io::Errno::HOSTUNREACH),
        RouteKind::Prohibit => Some(rustix::io::Errno::ACCESS),
        _ => None,
    }
}

/// struct ndmsg.
fn ndmsg(ifindex: u32, ip: IpAddr, flags: u8) -> [u8; 12] {
    let mut body = [0; 12];
    body[0] = Family::of(ip).code();
    body[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    body[10] = flags;
    body
}
