//! ZeroMQ on the wire (ZMTP 3.1: RFC 37/ZMTP) under the NULL mechanism, as far as REQ and REP need
//! it.
//!
//! The framing is ours because at either end there may be a stranger: no key was checked yet when a
//! client speaks to the daemon, and an unprivileged port is of whoever has bound it first. The
//! `zeromq` crate (0.7) reserves whatever length a frame claims: one that claims 2^48 bytes was
//! tried, and aborted the process. Here a message has a stated maximum and takes memory as its
//! bytes arrive. How long it may take is up to the caller.
//!
//! [`Req`] is the end that asks. The other one is the daemon's (`daemon/src/v0/zmtp.rs`).

mod req;

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

pub use req::Req;

/// Of a frame's flags: another one of its message follows.
pub const MORE: u8 = 1;
/// Of a frame's flags: its length has eight bytes.
const LONG: u8 = 2;
/// Of a frame's flags: it is a command, no part of a message.
pub const COMMAND: u8 = 4;

/// Bytes that are read at once.
pub const PIECE: u64 = 64 << 10;
/// The largest READY.
pub const READY_MAX: usize = 4096;
/// What a frame takes of its message's maximum beside its bytes, so that empty ones are bounded
/// too.
const FRAME_COST: usize = 64;
const GREETING: usize = 64;

/// Why bytes are no message.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The connection broke.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Another protocol, or another mechanism.
    #[error("it does not speak ZMTP 3 with the NULL mechanism")]
    Greeting,
    /// Another kind of socket than those that it names.
    #[error("its socket is not {0}")]
    SocketType(&'static str),
    /// A frame where none of its kind may be.
    #[error("a frame breaks the protocol")]
    Frame,
    /// The maximum, in bytes.
    #[error("a message is larger than {0} bytes")]
    TooLarge(usize),
}

/// A frame that has come whole.
#[derive(Debug)]
pub struct Frame {
    /// [`MORE`] and [`COMMAND`].
    pub flags: u8,
    /// What is in it.
    pub body: Vec<u8>,
}

/// What a message may still take of its maximum.
#[derive(Debug)]
pub struct Allowance {
    most: usize,
    left: usize,
}

impl Allowance {
    /// For a message of so many bytes at the most, all frames together.
    pub fn new(most: usize) -> Allowance {
        Allowance { most, left: most }
    }

    /// Takes what a frame of this length costs.
    pub fn charge(&mut self, length: u64) -> Result<(), WireError> {
        let cost = usize::try_from(length)
            .ok()
            .and_then(|length| length.checked_add(FRAME_COST));
        self.left = cost
            .and_then(|cost| self.left.checked_sub(cost))
            .ok_or(WireError::TooLarge(self.most))?;
        Ok(())
    }

    /// What frames have cost so far.
    pub fn taken(&self) -> usize {
        self.most - self.left
    }
}

/// What each end says first: signature, version, mechanism, as-server, filler (RFC 37, "The
/// Greeting").
pub fn greeting() -> [u8; GREETING] {
    let mut bytes = [0; GREETING];
    (bytes[0], bytes[9], bytes[10], bytes[11]) = (0xff, 0x7f, 3, 1);
    bytes[12..16].copy_from_slice(b"NULL");
    bytes
}

/// Reads the other end's greeting. Of another protocol no more than a signature is waited for.
pub async fn read_greeting(stream: &mut (impl AsyncRead + Unpin)) -> Result<(), WireError> {
    let mut theirs = [0; GREETING];
    stream.read_exact(&mut theirs[..10]).await?;
    if theirs[0] != 0xff || theirs[9] & 1 == 0 {
        return Err(WireError::Greeting);
    }
    stream.read_exact(&mut theirs[10..]).await?;
    match theirs[10] >= 3 && theirs[12..32] == greeting()[12..32] {
        true => Ok(()),
        false => Err(WireError::Greeting),
    }
}

/// The frame that each end says behind its greeting: what kind of socket it is.
pub fn ready(socket_type: &str) -> Vec<u8> {
    let mut body = b"\x05READY".to_vec();
    for (name, value) in [("Socket-Type", socket_type), ("Identity", "")] {
        body.push(name.len() as u8);
        body.extend_from_slice(name.as_bytes());
        body.extend_from_slice(&(value.len() as u32).to_be_bytes());
        body.extend_from_slice(value.as_bytes());
    }
    let mut bytes = Vec::new();
    push_frame(&mut bytes, COMMAND, &body);
    bytes
}

/// What kind of socket the other end is, by its READY; empty when that does not say.
pub fn socket_type(ready: &Frame) -> Result<&[u8], WireError> {
    let properties = ready
        .body
        .strip_prefix(b"\x05READY")
        .filter(|_| ready.flags & COMMAND != 0);
    let properties = properties.ok_or(WireError::Frame)?;
    Ok(property(properties, b"Socket-Type").unwrap_or_default())
}

/// A property of a READY command: name and value, each behind its length.
fn property<'a>(mut rest: &'a [u8], wanted: &[u8]) -> Option<&'a [u8]> {
    loop {
        let (&length, tail) = rest.split_first()?;
        let (name, tail) = tail.split_at_checked(usize::from(length))?;
        let (length, tail) = tail.split_first_chunk::<4>()?;
        let (value, tail) = tail.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        if name.eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        rest = tail;
    }
}

/// What a command is answered with: a PING (RFC 37, "Connection Heartbeating") with its context,
/// others with nothing.
pub fn pong(command: &[u8]) -> Option<Vec<u8>> {
    const TTL: usize = 2;
    const CONTEXT_MAX: usize = 16;
    let context = command.strip_prefix(b"\x04PING")?.get(TTL..)?;
    let mut body = b"\x04PONG".to_vec();
    body.extend_from_slice(&context[..context.len().min(CONTEXT_MAX)]);
    let mut bytes = Vec::new();
    push_frame(&mut bytes, COMMAND, &body);
    Some(bytes)
}

/// Writes a frame.
pub fn push_frame(out: &mut Vec<u8>, flags: u8, body: &[u8]) {
    match u8::try_from(body.len()) {
        Ok(length) => out.extend_from_slice(&[flags, length]),
        Err(_) => {
            out.push(flags | LONG);
            out.extend_from_slice(&(body.len() as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(body);
}

/// Flags and length of the next frame.
pub async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> Result<(u8, u64), WireError> {
    let flags = stream.read_u8().await?;
    if flags & !(MORE | LONG | COMMAND) != 0 {
        return Err(WireError::Frame);
    }
    let length = match flags & LONG {
        0 => u64::from(stream.read_u8().await?),
        _ => stream.read_u64().await?,
    };
    Ok((flags & !LONG, length))
}

/// Reads some more of a frame of this length; how many bytes have come, none at the stream's end. A
/// length alone reserves nothing.
pub async fn read_some(
    stream: &mut (impl AsyncRead + Unpin),
    body: &mut Vec<u8>,
    length: u64,
) -> io::Result<usize> {
    let rest = length.saturating_sub(body.len() as u64).min(PIECE);
    stream.take(rest).read_buf(body).await
}
