//! How many pairs of queues a NIC uses, as `ethtool -L NIC combined N` sets it: ethtool's netlink
//! family, of which this speaks the two messages that are needed (Linux:
//! include/uapi/linux/ethtool_netlink.h, genetlink.h, netlink.h).

use crate::{Outcome, number};
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{Read, Write};

const AF_NETLINK: i32 = 16;
const NETLINK_GENERIC: i32 = 16;
/// NLM_F_REQUEST and NLM_F_ACK.
const FLAGS: u16 = 1 | 4;
const NLMSG_ERROR: u16 = 2;
/// Bytes of a netlink header and of a generic one behind it.
const HEADERS: usize = 16 + 4;

const CONTROL_FAMILY: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;

const CHANNELS_SET: u8 = 18;
const CHANNELS_HEADER: u16 = 1;
const CHANNELS_COMBINED_COUNT: u16 = 9;
const HEADER_DEV_NAME: u16 = 2;
const NESTED: u16 = 1 << 15;

/// Sets the number of pairs that `nic` uses.
pub fn set(nic: &str, pairs: &str) -> Outcome {
    let count: u32 = number(pairs, "number of queue pairs")?;
    let socket = Socket::new(
        Domain::from(AF_NETLINK),
        Type::RAW,
        Some(Protocol::from(NETLINK_GENERIC)),
    )
    .map_err(|e| format!("cannot open a netlink socket: {e}"))?;
    let reply = ask(
        &socket,
        CONTROL_FAMILY,
        GET_FAMILY,
        &attribute(FAMILY_NAME, b"ethtool\0"),
    )?;
    let family =
        find(&reply, FAMILY_ID).and_then(|id| Some(u16::from_ne_bytes(id.try_into().ok()?)));
    let family = family.ok_or("this kernel has no netlink family for ethtool")?;
    let name = attribute(HEADER_DEV_NAME, format!("{nic}\0").as_bytes());
    let mut attributes = attribute(CHANNELS_HEADER | NESTED, &name);
    attributes.extend(attribute(CHANNELS_COMBINED_COUNT, &count.to_ne_bytes()));
    ask(&socket, family, CHANNELS_SET, &attributes)?;
    Ok(format!("{nic} uses {count} pairs of queues"))
}

/// Sends a request; gives the attributes of the reply, if there is one besides the acknowledgement.
fn ask(
    mut socket: &Socket,
    family: u16,
    command: u8,
    attributes: &[u8],
) -> Result<Vec<u8>, String> {
    let mut message = Vec::new();
    message.extend(((HEADERS + attributes.len()) as u32).to_ne_bytes());
    message.extend(family.to_ne_bytes());
    message.extend(FLAGS.to_ne_bytes());
    message.extend([0; 8]); // sequence, port: the kernel's business is with one of us
    message.extend([command, 1, 0, 0]);
    message.extend(attributes);
    let fail = |e: std::io::Error| format!("netlink: {e}");
    socket.write_all(&message).map_err(fail)?;
    let mut reply = Vec::new();
    loop {
        let mut bytes = vec![0; 65536];
        let len = socket.read(&mut bytes).map_err(fail)?;
        let mut rest = &bytes[..len];
        while let Some((kind, body, later)) = next(rest) {
            if kind != NLMSG_ERROR {
                reply = body.get(4..).unwrap_or_default().to_vec();
            } else {
                let code = body.get(..4).and_then(|code| code.try_into().ok());
                return match code.map(i32::from_ne_bytes) {
                    Some(0) => Ok(reply),
                    Some(code) => Err(fail(std::io::Error::from_raw_os_error(-code))),
                    None => Err("netlink: an answer without a code".to_owned()),
                };
            }
            rest = later;
        }
    }
}

/// The first message of `bytes`: its type, what is behind its header, and the bytes behind it.
fn next(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let len = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let later = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    Some((kind, bytes.get(16..len)?, later))
}

fn attribute(kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = ((4 + payload.len()) as u16).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(payload);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// The payload of the first attribute of this type.
fn find(mut attributes: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let len = usize::from(u16::from_ne_bytes(attributes.get(..2)?.try_into().ok()?));
        let found = u16::from_ne_bytes(attributes.get(2..4)?.try_into().ok()?);
        if found == kind {
            return attributes.get(4..len);
        }
        attributes = attributes.get(len.next_multiple_of(4).max(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::{attribute, find, next};

    #[test]
    fn attributes_are_padded_and_found() {
        let mut bytes = attribute(2, b"ethtool\0");
        bytes.extend(attribute(1, &21u16.to_ne_bytes()));
        assert_eq!(bytes.len(), 12 + 8);
        assert_eq!(find(&bytes, 1), Some(&21u16.to_ne_bytes()[..]));
        assert_eq!(find(&bytes, 3), None);
        assert_eq!(find(&[1, 0, 9, 0, 1, 0, 9, 0], 3), None);
        assert!(next(&[40, 0, 0, 0, 2, 0]).is_none());
    }
}
