//! Netlink messages as bytes: reading a datagram's messages and a message's attributes, writing a
//! request.
//!
//! All lengths are checked here; whoever gets a [`Message`] or an attribute may rely on them.
//! Numbers are in the host's order unless said (netlink(7)).

use crate::uapi;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const HEADER: usize = 16;
/// NLA_F_NESTED and NLA_F_NET_BYTEORDER, which are no part of the kind.
const KIND_MASK: u16 = 0x3fff;

/// One message: what follows its header, and the header's fields that matter.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    pub kind: u16,
    pub flags: u16,
    pub sequence: u32,
    pub body: &'a [u8],
}

/// The messages of a datagram, up to the first that does not fit.
pub fn messages(mut datagram: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let len = u32_at(datagram, 0)? as usize;
        let message = Message {
            kind: u16_at(datagram, 4)?,
            flags: u16_at(datagram, 6)?,
            sequence: u32_at(datagram, 8)?,
            body: datagram.get(HEADER..len)?,
        };
        datagram = datagram.get(aligned(len)..).unwrap_or_default();
        Some(message)
    })
}

impl<'a> Message<'a> {
    /// The attributes that follow a fixed part of `fixed` bytes.
    pub fn attributes(&self, fixed: usize) -> impl Iterator<Item = Attribute<'a>> + use<'a> {
        attributes(self.body.get(aligned(fixed)..).unwrap_or_default())
    }

    /// The error of an NLMSG_ERROR message, positive; zero is an acknowledgement.
    pub fn error(&self) -> Option<i32> {
        (self.kind == uapi::NLMSG_ERROR)
            .then(|| u32_at(self.body, 0))
            .flatten()
            .map(|code| (code as i32).wrapping_neg())
    }

    /// How a dump has ended, if this is its end: NLMSG_DONE, whose code is below zero where the
    /// kernel could not go on, or NLMSG_ERROR.
    pub fn end_of_dump(&self) -> Option<io::Result<()>> {
        let ends = [uapi::NLMSG_DONE, uapi::NLMSG_ERROR].contains(&self.kind);
        let code = ends.then(|| u32_at(self.body, 0).map_or(0, |code| code as i32))?;
        Some(match code {
            ..0 => Err(io::Error::from_raw_os_error(code.wrapping_neg())),
            _ => Ok(()),
        })
    }
}

/// One attribute: a kind and a value.
#[derive(Clone, Copy, Debug)]
pub struct Attribute<'a> {
    pub kind: u16,
    pub value: &'a [u8],
}

/// The attributes of a run of them, up to the first that does not fit.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = Attribute<'_>> {
    std::iter::from_fn(move || {
        let len = usize::from(u16_at(bytes, 0)?);
        let attribute = Attribute {
            kind: u16_at(bytes, 2)? & KIND_MASK,
            value: bytes.get(4..len)?,
        };
        bytes = bytes.get(aligned(len)..).unwrap_or_default();
        Some(attribute)
    })
}

impl<'a> Attribute<'a> {
    /// The attributes inside it.
    pub fn nested(&self) -> impl Iterator<Item = Attribute<'a>> + use<'a> {
        attributes(self.value)
    }

    pub fn u32(&self) -> Option<u32> {
        u32_at(self.value, 0)
    }

    /// In network order, as netfilter's numbers are.
    pub fn u32_be(&self) -> Option<u32> {
        u32_at(self.value, 0).map(u32::from_be)
    }

    pub fn u16(&self) -> Option<u16> {
        u16_at(self.value, 0)
    }

    /// In network order, as port numbers and EtherTypes are.
    pub fn u16_be(&self) -> Option<u16> {
        u16_at(self.value, 0).map(u16::from_be)
    }

    /// A string that ends with a zero byte, or with the attribute.
    pub fn text(&self) -> String {
        let end = self
            .value
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(self.value.len());
        String::from_utf8_lossy(&self.value[..end]).into_owned()
    }

    /// An address, of the family that its length says.
    pub fn ip(&self) -> Option<IpAddr> {
        address(self.value)
    }
}

/// An IPv4 or IPv6 address, told apart by the length.
pub fn address(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(four) = <[u8; 4]>::try_from(bytes) {
        return Some(IpAddr::V4(Ipv4Addr::from(four)));
    }
    <[u8; 16]>::try_from(bytes)
        .ok()
        .map(|all| IpAddr::V6(Ipv6Addr::from(all)))
}

pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let field = bytes.get(at..at + 4)?;
    field.try_into().ok().map(u32::from_ne_bytes)
}

pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let field = bytes.get(at..at + 2)?;
    field.try_into().ok().map(u16::from_ne_bytes)
}

/// Messages and attributes start at multiples of four.
fn aligned(len: usize) -> usize {
    (len + 3) & !3
}

/// A request being written.
#[derive(Debug)]
pub struct Request {
    bytes: Vec<u8>,
}

impl Request {
    /// A message of a kind with its fixed part.
    pub fn new(kind: u16, flags: u16, sequence: u32, fixed: &[u8]) -> Self {
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(flags | uapi::NLM_F_REQUEST).to_ne_bytes());
        bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        bytes.extend_from_slice(fixed);
        bytes.resize(aligned(bytes.len()), 0);
        Self { bytes }
    }

    /// One more attribute.
    pub fn with(mut self, kind: u16, value: &[u8]) -> Self {
        // Values here are numbers and addresses.
        let len = value.len() as u16 + 4;
        self.bytes.extend_from_slice(&len.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value);
        self.bytes.resize(aligned(self.bytes.len()), 0);
        self
    }

    /// One more attribute that is an address.
    pub fn with_ip(self, kind: u16, ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(ip) => self.with(kind, &ip.octets()),
            IpAddr::V6(ip) => self.with(kind, &ip.octets()),
        }
    }

    /// The whole message, its length filled in.
    pub fn finish(mut self) -> Vec<u8> {
        let len = self.bytes.len() as u32;
        self.bytes[..4].copy_from_slice(&len.to_ne_bytes());
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let bytes = Request::new(uapi::RTM_GETROUTE, uapi::NLM_F_ACK, 7, &[2, 32, 0])
            .with_ip(uapi::RTA_DST, "192.0.2.1".parse().expect("an address"))
            .with(uapi::RTA_IP_PROTO, &[17])
            .finish();
        let all: Vec<_> = messages(&bytes).collect();
        assert_eq!(all.len(), 1);
        assert_eq!(
            (all[0].kind, all[0].flags, all[0].sequence),
            (uapi::RTM_GETROUTE, 5, 7)
        );
        let attributes: Vec<_> = all[0]
            .attributes(3)
            .map(|a| (a.kind, a.value.to_vec()))
            .collect();
        assert_eq!(
            attributes,
            [
                (uapi::RTA_DST, vec![192, 0, 2, 1]),
                (uapi::RTA_IP_PROTO, vec![17])
            ]
        );
    }

    #[test]
    fn a_length_that_lies_ends_the_reading() {
        let mut bytes = Request::new(uapi::RTM_GETLINK, 0, 1, &[0; 16])
            .with(1, &[1, 2, 3])
            .finish();
        let whole = bytes.clone();
        for len in [0u32, 15, 4000] {
            bytes[..4].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(messages(&bytes).count(), 0, "length {len}");
        }
        for cut in 0..whole.len() {
            assert_eq!(messages(&whole[..cut]).count(), 0, "cut at {cut}");
        }
        assert_eq!(attributes(&[3, 0, 1, 0]).count(), 0);
        assert_eq!(attributes(&[9, 0, 1, 0, 5]).count(), 0);
    }
}
