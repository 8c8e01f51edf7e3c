//! What a service is known by: address, protocol, port. Keys that exist are valid.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU16;

use crate::error::Error;

/// A protocol that is balanced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// RFC 9293.
    Tcp,
    /// RFC 768.
    Udp,
    /// RFC 9260.
    Sctp,
}

impl Protocol {
    /// Its number in IP headers.
    pub const fn number(self) -> u8 {
        match self {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
            Protocol::Sctp => 132,
        }
    }

    /// The protocol of that number, if it is one that is balanced.
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            6 => Some(Protocol::Tcp),
            17 => Some(Protocol::Udp),
            132 => Some(Protocol::Sctp),
            _ => None,
        }
    }
}

impl Protocol {
    /// Its name, lower case.
    pub const fn name(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Sctp => "sctp",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Protocol {
    type Err = Error;

    fn from_str(word: &str) -> Result<Self, Error> {
        match word {
            "tcp" => Ok(Protocol::Tcp),
            "udp" => Ok(Protocol::Udp),
            "sctp" => Ok(Protocol::Sctp),
            _ => Err(Error::Protocol {
                word: word.to_owned(),
            }),
        }
    }
}

/// What a service is known by: an address that clients speak to, a protocol, and a port or all
/// ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceKey {
    vip: IpAddr,
    protocol: Protocol,
    port: Option<NonZeroU16>,
}

impl ServiceKey {
    /// `port` is `None` for all ports of the address that have no service of their own.
    ///
    /// # Errors
    /// The address is no host's: unspecified, loopback, multicast, broadcast, or an IPv4 address in
    /// IPv6 clothes.
    pub fn new(vip: IpAddr, protocol: Protocol, port: Option<NonZeroU16>) -> Result<Self, Error> {
        check_host("a service", vip)?;
        Ok(ServiceKey {
            vip,
            protocol,
            port,
        })
    }

    /// The address.
    pub fn vip(&self) -> IpAddr {
        self.vip
    }

    /// The protocol.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// The port; `None`: all.
    pub fn port(&self) -> Option<NonZeroU16> {
        self.port
    }
}

/// `192.0.2.1:80/tcp`; of all ports `192.0.2.1:*/tcp`, or `192.0.2.1:all/tcp` with `{:#}`, as
/// commands take it.
impl fmt::Display for ServiceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ServiceKey {
            vip,
            protocol,
            port,
        } = self;
        match vip {
            IpAddr::V4(vip) => write!(f, "{vip}:")?,
            IpAddr::V6(vip) => write!(f, "[{vip}]:")?,
        }
        match port {
            Some(port) => write!(f, "{port}/{protocol}"),
            None if f.alternate() => write!(f, "all/{protocol}"),
            None => write!(f, "*/{protocol}"),
        }
    }
}

/// Whether an address can be that of a single machine other than this one (RFC 1122, section
/// 3.2.1.3).
pub fn is_of_one_host(address: IpAddr) -> bool {
    let no_host = address.is_unspecified() || address.is_multicast() || address.is_loopback();
    !no_host && address != Ipv4Addr::BROADCAST
}

/// Whether a single machine can have an address that is to be that of `what`.
pub(crate) fn check_host(what: &'static str, address: IpAddr) -> Result<(), Error> {
    let mapped = matches!(address, IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some());
    if mapped || !is_of_one_host(address) {
        return Err(Error::NoHost { what, address });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::Server;

    #[test]
    fn addresses_that_are_no_hosts_are_refused() {
        for bad in [
            "0.0.0.0",
            "127.0.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "ff02::1",
            "::ffff:1.2.3.4",
        ] {
            let address: IpAddr = bad.parse().expect("an address");
            let error = Server::new(address).expect_err(bad);
            assert!(error.to_string().contains(bad), "{error}");
            assert!(
                ServiceKey::new(address, Protocol::Tcp, None).is_err(),
                "{bad}"
            );
        }
    }

    #[test]
    fn a_service_reads_as_people_write_it() {
        let key = |vip: &str, port| {
            ServiceKey::new(
                vip.parse().expect("an address"),
                Protocol::Udp,
                NonZeroU16::new(port),
            )
            .expect("a host")
            .to_string()
        };
        assert_eq!(key("192.0.2.1", 53), "192.0.2.1:53/udp");
        assert_eq!(key("2001:db8::1", 53), "[2001:db8::1]:53/udp");
        assert_eq!(key("2001:db8::1", 0), "[2001:db8::1]:*/udp");
        let all = ServiceKey::new([192, 0, 2, 1].into(), Protocol::Tcp, None);
        assert_eq!(format!("{:#}", all.expect("a host")), "192.0.2.1:all/tcp");
    }
}
