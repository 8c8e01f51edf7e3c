//! A frame made by hand, of which a packet socket says what it is: truly or not.

use crate::{Outcome, number};
use socket2::{Domain, Socket, Type};
use std::fs;
use std::os::fd::AsFd;

/// Sends the bytes of a frame by a device, as one of the Ethernet type `kind`; both in hexadecimal.
pub fn send(device: &str, kind: &str, bytes: &str) -> Outcome {
    let hex = |text: &str| {
        u16::from_str_radix(text, 16).map_err(|_| format!("{text:?} is not hexadecimal"))
    };
    let pairs = bytes.as_bytes().chunks(2);
    let frame: Result<Vec<u8>, String> = pairs
        .map(|pair| hex(&String::from_utf8_lossy(pair)).map(|byte| byte as u8))
        .collect();
    let index = fs::read_to_string(format!("/sys/class/net/{device}/ifindex"))
        .map_err(|e| format!("{device}: {e}"))?;
    let socket = Socket::new(Domain::PACKET, Type::RAW, None)
        .map_err(|e| format!("cannot open a packet socket: {e}"))?;
    sys::packet_socket::bind(socket.as_fd(), number(index.trim(), "index")?, hex(kind)?)
        .map_err(|e| format!("cannot bind it to {device}: {e}"))?;
    let sent = socket.send(&frame?);
    sent.map_err(|e| format!("cannot send by {device}: {e}"))?;
    Ok("frames=1".to_owned())
}
