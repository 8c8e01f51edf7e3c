//! Layer-2 names: MAC addresses and virtual network identifiers. Valid by construction.

use std::fmt;
use std::str::FromStr;

/// A 48-bit IEEE 802 MAC address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// `ff:ff:ff:ff:ff:ff`.
    pub const BROADCAST: Mac = Mac([0xff; 6]);

    /// True for group addresses (multicast and broadcast): the lowest bit of the first octet.
    pub fn is_multicast(self) -> bool {
        self.0[0] & 1 == 1
    }

    /// Where packets to a multicast group go on Ethernet (RFC 1112 section 6.4, RFC 2464 section
    /// 7).
    pub fn of_group(group: std::net::IpAddr) -> Mac {
        match group {
            std::net::IpAddr::V4(ip) => {
                let [_, b, c, d] = ip.octets();
                Mac([0x01, 0x00, 0x5e, b & 0x7f, c, d])
            }
            std::net::IpAddr::V6(ip) => {
                let [.., a, b, c, d] = ip.octets();
                Mac([0x33, 0x33, a, b, c, d])
            }
        }
    }

    /// The IPv6 link-local address that SLAAC derives from this MAC (RFC 4291 appendix A, modified
    /// EUI-64).
    pub fn link_local(self) -> std::net::Ipv6Addr {
        let m = self.0;
        std::net::Ipv6Addr::from([
            0xfe,
            0x80,
            0,
            0,
            0,
            0,
            0,
            0,
            m[0] ^ 2,
            m[1],
            m[2],
            0xff,
            0xfe,
            m[3],
            m[4],
            m[5],
        ])
    }

    /// The MAC that an address is the [link-local](Self::link_local) one of; `None` for all others.
    pub fn of_link_local(address: std::net::Ipv6Addr) -> Option<Mac> {
        let [.., a, b, c, _, _, d, e, f] = address.octets();
        let mac = Mac([a ^ 2, b, c, d, e, f]);
        (mac.link_local() == address).then_some(mac)
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let m = self.0;
        write!(
            f,
            "{:02x}:{:02x}:{:02x}:{:02x}:{:02x}:{:02x}",
            m[0], m[1], m[2], m[3], m[4], m[5]
        )
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Mac {
    type Err = AddrError;

    /// Six hexadecimal pairs separated by colons, 17 characters, either case.
    fn from_str(text: &str) -> Result<Self, AddrError> {
        let bad = || AddrError::Mac(text.to_owned());
        let mut mac = [0u8; 6];
        let mut parts = text.split(':');
        for octet in &mut mac {
            let part = parts.next().ok_or_else(bad)?;
            if part.len() != 2 || !part.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(bad());
            }
            *octet = u8::from_str_radix(part, 16).map_err(|_| bad())?;
        }
        if parts.next().is_some() {
            return Err(bad());
        }
        Ok(Mac(mac))
    }
}

/// A 24-bit virtual network identifier (RFC 7348 section 5).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vni(u32);

impl Vni {
    /// The largest identifier, 2^24 - 1.
    pub const MAX: u32 = (1 << 24) - 1;

    /// Fails with [`AddrError::Vni`] above [`Vni::MAX`].
    pub fn new(id: u32) -> Result<Self, AddrError> {
        if id > Self::MAX {
            Err(AddrError::Vni(id))
        } else {
            Ok(Vni(id))
        }
    }

    /// The identifier as a number.
    pub fn id(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Vni {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Vni {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "vni {}", self.0)
    }
}

/// Why a text or a number is not the address it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddrError {
    /// The text is not a MAC address.
    Mac(String),
    /// The number does not fit in 24 bits.
    Vni(u32),
}

impl fmt::Display for AddrError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AddrError::Mac(text) => {
                write!(
                    f,
                    "MAC address '{text}' is not six hexadecimal pairs separated by colons"
                )
            }
            AddrError::Vni(id) => write!(f, "VNI {id} is above the largest, {}", Vni::MAX),
        }
    }
}

impl std::error::Error for AddrError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_text_round_trips_and_refuses_what_is_not_one() {
        let mac: Mac = "52:54:00:12:34:AB".parse().unwrap();
        assert_eq!(mac.to_string(), "52:54:00:12:34:ab");
        for bad in [
            "",
            "52:54:00:12:34",
            "52:54:00:12:34:ab:cd",
            "5254.0012.34ab",
            "+2:54:00:12:34:ab",
            "52:54:00:12:34:g0",
        ] {
            assert_eq!(bad.parse::<Mac>(), Err(AddrError::Mac(bad.to_owned())));
        }
    }

    #[test]
    fn link_local_is_modified_eui_64() {
        let mac: Mac = "52:54:00:12:34:01".parse().unwrap();
        assert_eq!(mac.link_local().to_string(), "fe80::5054:ff:fe12:3401");
        assert_eq!(Mac::of_link_local(mac.link_local()), Some(mac));
        for other in [
            "fe80::1",
            "fe80:0:0:1:5054:ff:fe12:3401",
            "::5054:ff:fe12:3401",
        ] {
            assert_eq!(Mac::of_link_local(other.parse().unwrap()), None);
        }
    }

    #[test]
    fn vni_has_24_bits() {
        assert_eq!(Vni::new(0xff_ffff).unwrap().id(), 0xff_ffff);
        assert_eq!(Vni::new(1 << 24), Err(AddrError::Vni(1 << 24)));
    }
}
