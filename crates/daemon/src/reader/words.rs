//! What daemon and reader say to each other.
//!
//! Over the reader's standard input, a socket of packets, the daemon says [`Word`]s, each a byte
//! with a note behind it and descriptors beside it; nothing is answered there. Over the pair of
//! sockets that belongs to a connection both say *frames*: a byte that says what it is, a length in
//! four bytes, big endian, and so many bytes.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{RecvFlags, SendFlags};
use sys::fd_message;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Said by the daemon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Word {
    /// A stream on which one byte is to be said when each thread has come to it: who says none
    /// hangs.
    Beat = 1,
    /// The key of v0; the note has its 32 bytes.
    Key = 2,
    /// Three files of PEM: the certificate with its chain, its key, the authority of clients. What
    /// was said before is in force no more.
    Certificates = 3,
    /// A TCP connection that is to come over TLS, and the daemon's end. The note is the protocol
    /// within (RFC 7301).
    Tls = 4,
    /// A TCP connection of a client of v0, and the daemon's end.
    V0Tcp = 5,
    /// One over a unix socket; the note says of which user, where there may be several.
    V0Ipc = 6,
    /// A connection with a server that is checked, by a stream or by datagrams, and the daemon's
    /// end, which says what is to be asked ([`checks`](super::checks)).
    CheckTcp = 7,
    CheckUdp = 8,
}

impl Word {
    /// Connections behind it go by it.
    pub fn is_setting(self) -> bool {
        matches!(self, Word::Key | Word::Certificates)
    }

    const ALL: [Word; 8] = [
        Word::Beat,
        Word::Key,
        Word::Certificates,
        Word::Tls,
        Word::V0Tcp,
        Word::V0Ipc,
        Word::CheckTcp,
        Word::CheckUdp,
    ];
}

/// Bytes of a note at the most: a key, a protocol, a user's name.
const NOTE_MAX: usize = 256;
/// Descriptors that come with a word at the most.
const DESCRIPTORS_MAX: usize = 3;

/// Says a word.
///
/// # Errors
/// The reader has gone; or it leaves no room, where the socket does not wait.
pub fn say(
    socket: impl AsFd,
    word: Word,
    note: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let word = [word as u8];
    let parts = [IoSlice::new(&word), IoSlice::new(note)];
    fd_message::send(socket, &parts, descriptors, SendFlags::empty())?;
    Ok(())
}

/// A word with what came along.
#[derive(Debug)]
pub struct Heard {
    pub word: Word,
    pub note: Vec<u8>,
    /// None, where this process may not have as many open.
    pub descriptors: Vec<OwnedFd>,
}

/// The next word; `None`: the daemon has gone.
///
/// # Errors
/// What came is none.
pub fn hear(socket: impl AsFd) -> io::Result<Option<Heard>> {
    let mut bytes = [0; 1 + NOTE_MAX];
    let none = RecvFlags::empty();
    let received = fd_message::receive(socket, &mut bytes, DESCRIPTORS_MAX, none)?;
    let Some((word, note)) = bytes[..received.len].split_first() else {
        return Ok(None);
    };
    let word = Word::ALL.into_iter().find(|known| *known as u8 == *word);
    let mut descriptors = received.fds;
    if received.fds_lost {
        descriptors.clear();
    }
    Ok(Some(Heard {
        word: word.ok_or(io::ErrorKind::InvalidData)?,
        note: note.to_owned(),
        descriptors,
    }))
}

/// What a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// The reader: the names of a client's certificate, a JSON array. The clear bytes come behind
    /// it, both ways, in no frames.
    Names = 1,
    /// The reader: a sentence, why there is nothing more.
    Failed = 2,
    /// The reader: a request of v0, `Messages`, without encryption.
    Request = 3,
    /// The daemon: its answer, `Messages`.
    Answer = 4,
    /// The daemon: a request failed by a defect of ours.
    Broken = 5,
    /// The reader: the client has the answer.
    Sent = 6,
    /// The reader: a client has not the key; a sentence says what it did.
    Refused = 7,
    /// The reader: all is well.
    Well = 8,
    /// The daemon: what a server is to be asked.
    Question = 9,
}

impl Kind {
    const ALL: [Kind; 9] = [
        Kind::Names,
        Kind::Failed,
        Kind::Request,
        Kind::Answer,
        Kind::Broken,
        Kind::Sent,
        Kind::Refused,
        Kind::Well,
        Kind::Question,
    ];
}

/// Bytes of a sentence, and of a certificate's names, that are taken.
pub const SENTENCE_MAX: usize = 64 << 10;

/// Bytes of a frame's head.
const HEAD_LEN: usize = 5;

/// Sends a frame.
pub async fn send(
    stream: &mut (impl AsyncWrite + Unpin),
    kind: Kind,
    bytes: &[u8],
) -> io::Result<()> {
    let len = u32::try_from(bytes.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut head = [kind as u8; HEAD_LEN];
    head[1..].copy_from_slice(&len.to_be_bytes());
    stream.write_all(&head).await?;
    stream.write_all(bytes).await
}

/// What the next frame is and how many bytes it has; `None`: the other end has gone.
///
/// # Errors
/// It is no frame, or the other end has gone amid it.
pub async fn head(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<(Kind, usize)>> {
    let mut head = [0; HEAD_LEN];
    if stream.read(&mut head[..1]).await? == 0 {
        return Ok(None);
    }
    stream.read_exact(&mut head[1..]).await?;
    let [kind, len @ ..] = head;
    let kind = Kind::ALL.into_iter().find(|known| *known as u8 == kind);
    let kind = kind.ok_or(io::ErrorKind::InvalidData)?;
    Ok(Some((kind, u32::from_be_bytes(len) as usize)))
}

/// The bytes of the frame whose head was read. They take memory as they come.
///
/// # Errors
/// There are more than `most`, or the other end has gone amid them.
pub async fn body(
    stream: &mut (impl AsyncRead + Unpin),
    len: usize,
    most: usize,
) -> io::Result<Vec<u8>> {
    if len > most {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = Vec::new();
    stream.take(len as u64).read_to_end(&mut bytes).await?;
    match bytes.len() == len {
        true => Ok(bytes),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// The next frame, of `most` bytes at the most; `None`: the other end has gone.
///
/// # Errors
/// Those of [`head`] and [`body`].
pub async fn receive(
    stream: &mut (impl AsyncRead + Unpin),
    most: usize,
) -> io::Result<Option<(Kind, Vec<u8>)>> {
    match head(stream).await? {
        Some((kind, len)) => Ok(Some((kind, body(stream, len, most).await?))),
        None => Ok(None),
    }
}

/// A sentence of a reader's, for a log: in one line.
pub fn sentence(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.replace(char::is_control, "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn frames_come_as_they_went() {
        let (mut here, mut there) = tokio::io::duplex(64);
        for (kind, bytes) in [(Kind::Request, &b"what"[..]), (Kind::Sent, b"")] {
            send(&mut here, kind, bytes).await.unwrap();
            let (came, len) = head(&mut there).await.unwrap().unwrap();
            assert_eq!(came, kind);
            assert_eq!(body(&mut there, len, 4).await.unwrap(), bytes);
        }
        drop(here);
        assert!(head(&mut there).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn what_is_no_frame_is_an_error() {
        let kind = |result: io::Result<Vec<u8>>| result.unwrap_err().kind();
        let frame = |bytes: &'static [u8], most| async move {
            let mut bytes = bytes;
            let (_, len) = head(&mut bytes).await?.ok_or(io::ErrorKind::NotFound)?;
            body(&mut bytes, len, most).await
        };
        let unknown = frame(b"\x0a\x00\x00\x00\x00", 9).await;
        assert_eq!(kind(unknown), io::ErrorKind::InvalidData);
        let long = frame(b"\x03\xff\xff\xff\xff", 9).await;
        assert_eq!(kind(long), io::ErrorKind::InvalidData);
        let cut = frame(b"\x03\x00\x00\x00\x02a", 9).await;
        assert_eq!(kind(cut), io::ErrorKind::UnexpectedEof);
        let short = frame(b"\x03\x00", 9).await;
        assert_eq!(kind(short), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn words_come_with_their_descriptors() {
        let (here, there) = std::os::unix::net::UnixDatagram::pair().unwrap();
        let own: Vec<BorrowedFd<'_>> = std::iter::repeat_n(here.as_fd(), 4).collect();
        say(&here, Word::Tls, b"h2", &own[..2]).unwrap();
        let heard = hear(&there).unwrap().unwrap();
        assert_eq!((heard.word, &heard.note[..]), (Word::Tls, &b"h2"[..]));
        assert_eq!(heard.descriptors.len(), 2);
        say(&here, Word::Tls, b"", &own).unwrap();
        let heard = hear(&there).unwrap().unwrap();
        assert!(heard.descriptors.is_empty(), "some are lost, and so all");
        here.send(&[99]).unwrap();
        assert_eq!(hear(&there).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
