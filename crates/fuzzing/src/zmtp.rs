//! Target `zmtp`: what reaches the v0 API's port before any key was looked at, and what reaches who
//! asks there.
//!
//! Promises: a conversation ends when its client has hung up, and means the same in whatever pieces
//! its bytes come; a request's frames are what the client has said, whole and in order; each has
//! one answer, in frames that parse; and what is received takes no more memory than twice what has
//! come of it. So it is with the answer to a client's question.
//!
//! Input: a byte (odd: without the greeting of a good other end before the rest; with 2: the daemon
//! has a key), the length of pieces, and what the client, or the server, says.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use api::encrypted::Key;
use api::zmtp::{Req, WireError};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::input::Input;

/// Of flags of a frame: another one follows, its length has eight bytes, it is a command.
const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;
/// Bytes of a greeting.
const GREETING: usize = 64;
/// What a server asks its socket for at once.
const PIECE: usize = 64 << 10;
/// The longest answer that who asks takes, with its frames.
const ANSWER_MAX: usize = 1 << 20;

/// What a connection has come to.
#[derive(PartialEq, Eq, Debug)]
struct Heard {
    /// Frames of each.
    requests: Vec<Vec<Vec<u8>>>,
    said: Vec<u8>,
    end: Result<(), String>,
}

/// Holds a conversation.
pub fn zmtp(data: &[u8]) {
    let mut input = Input::new(data);
    let (kind, piece) = (input.u8(), usize::from(input.u8()).max(1));
    let said = input.take(data.len());
    let behind_greeting = |greeting: Vec<u8>| match kind & 1 {
        0 => [&greeting, said].concat(),
        _ => said.to_vec(),
    };
    let key = (kind & 2 != 0).then(|| Key::from([7; 32]));
    serves(&behind_greeting(greeting()), piece, key);
    asks(&behind_greeting(server_greeting()), piece);
}

/// What a daemon makes of what a client says.
fn serves(bytes: &[u8], piece: usize, key: Option<Key>) {
    let heard = converse(bytes, bytes.len(), key.clone());
    assert_eq!(converse(bytes, piece, key), heard, "in pieces of {piece}");
    let mut rest = bytes;
    for frame in heard.requests.iter().flatten() {
        rest = behind(rest, frame).expect("a frame that the client has said");
    }
    let (replies, commands) = messages(&heard.said);
    let expected: Vec<_> = heard.requests.iter().map(|frames| answer(frames)).collect();
    assert_eq!(replies, expected);
    for (number, command) in commands.iter().enumerate() {
        let name: &[u8] = match number {
            0 => b"\x05READY",
            _ => b"\x04PONG",
        };
        assert!(command.starts_with(name), "{command:?}");
    }
}

/// A client that asks (REQ): its greeting and its READY (RFC 37).
pub fn greeting() -> Vec<u8> {
    let mut bytes = vec![0; GREETING];
    (bytes[0], bytes[9], bytes[10]) = (0xff, 0x7f, 3);
    bytes[12..16].copy_from_slice(b"NULL");
    bytes.extend(b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03REQ");
    bytes
}

/// A server that answers (REP).
fn server_greeting() -> Vec<u8> {
    [&api::zmtp::greeting()[..], &api::zmtp::ready("REP")].concat()
}

/// What a client takes for the answer to its question.
fn asks(bytes: &[u8], piece: usize) {
    let answer = ask(bytes, bytes.len());
    assert_eq!(ask(bytes, piece), answer, "in pieces of {piece}");
    if let Ok(answer) = answer {
        assert!(answer.len() <= ANSWER_MAX, "{} bytes", answer.len());
        behind(bytes, &answer).expect("an answer that the server has said");
    }
}

fn ask(bytes: &[u8], piece: usize) -> Result<Vec<u8>, String> {
    let server = Talker::new(bytes, piece);
    let answer = runtime().block_on(async {
        let mut req = Req::greet(server, ANSWER_MAX).await?;
        req.ask(b"question").await
    });
    let answer = answer.map_err(|why: WireError| why.to_string())?;
    assert!(answer.capacity() <= 2 * answer.len() + 64, "more than came");
    Ok(answer)
}

fn runtime() -> tokio::runtime::Runtime {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    runtime.expect("a runtime without threads")
}

fn converse(bytes: &[u8], piece: usize, key: Option<Key>) -> Heard {
    let mut client = Talker::new(bytes, piece);
    let mut requests = Vec::new();
    let asked = |frames: Vec<Vec<u8>>| {
        for frame in &frames {
            assert!(frame.capacity() <= 2 * frame.len() + 64, "more than came");
        }
        let answer = answer(&frames);
        requests.push(frames);
        answer
    };
    let end = runtime().block_on(daemon::decoders::zmtp(&mut client, key, asked));
    Heard {
        requests,
        said: client.heard,
        end,
    }
}

fn answer(request: &[Vec<u8>]) -> Vec<u8> {
    request.concat()
}

/// What the client says behind this frame, which has its length before it.
fn behind<'a>(said: &'a [u8], frame: &[u8]) -> Option<&'a [u8]> {
    let long = [&(frame.len() as u64).to_be_bytes()[..], frame].concat();
    let whole = match u8::try_from(frame.len()) {
        // Short, or of the same length in eight bytes.
        Ok(_) => &long[7..],
        Err(_) => &long[..],
    };
    let at = said.windows(whole.len()).position(|part| part == whole)?;
    Some(&said[at + whole.len()..])
}

/// The last frame of each message that the server has said, and its commands.
fn messages(said: &[u8]) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let (mut replies, mut commands) = (Vec::new(), Vec::new());
    let mut rest = said.get(GREETING..).expect("a greeting first");
    while !rest.is_empty() {
        let flags = take(&mut rest, 1)[0];
        let length = match flags & LONG {
            0 => take(&mut rest, 1)[0].into(),
            _ => u64::from_be_bytes(take(&mut rest, 8).try_into().expect("eight bytes")),
        };
        let frame = take(&mut rest, length as usize).to_vec();
        match flags & !LONG {
            COMMAND => commands.push(frame),
            MORE => assert!(!rest.is_empty(), "more does not follow"),
            0 => replies.push(frame),
            _ => panic!("flags {flags:#x}"),
        }
    }
    (replies, commands)
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (taken, left) = rest.split_at_checked(len).expect("a whole frame");
    *rest = left;
    taken
}

/// Says its bytes in pieces, and hangs up.
struct Talker<'a> {
    left: &'a [u8],
    piece: usize,
    /// How often it was read from when it had hung up.
    ends: usize,
    /// What it was told.
    heard: Vec<u8>,
}

impl<'a> Talker<'a> {
    fn new(left: &'a [u8], piece: usize) -> Talker<'a> {
        Talker {
            left,
            piece,
            ends: 0,
            heard: Vec::new(),
        }
    }
}

impl AsyncRead for Talker<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        assert!(into.remaining() <= PIECE, "room for {}", into.remaining());
        self.ends += usize::from(self.left.is_empty());
        assert!(self.ends <= 2, "it does not end");
        let len = self.piece.min(into.remaining()).min(self.left.len());
        let (said, rest) = self.left.split_at(len);
        into.put_slice(said);
        self.left = rest;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Talker<'_> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.heard.extend(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
