//! The v0 API's end of a ZeroMQ connection: a server of REQ clients. The bytes are
//! [`api::zmtp`]'s.
//!
//! This port faces clients before any key was checked. A message has a stated maximum, takes memory
//! as its bytes arrive, and must be complete in a stated time. Each client has its own connection
//! and its own turn: one that is stuck waits alone. Large messages share a [`Room`] that holds few
//! of them; small ones need none, and are not kept waiting by large ones.
//!
//! A message is the envelope, which a reply repeats (nothing for REQ, routing frames for DEALER),
//! an empty frame, and the request.

use std::io;
use std::time::Duration;

use api::encrypted::{BEGINNING, Key, begins_sealed};
use api::zmtp::{
    Allowance, COMMAND, Frame, MORE, PIECE, READY_MAX, WireError, greeting, pong, push_frame,
    read_greeting, read_head, read_some, ready, socket_type,
};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::time::{Instant, timeout, timeout_at};

use super::few::{Few, Taken};

/// The largest message, all frames together, in bytes: some 200,000 rules.
pub const MESSAGE_MAX: usize = 16 << 20;
/// What a message takes, requests and replies alike, without asking for room: a few hundred rules.
pub const SMALL: usize = 64 << 10;
/// For the greetings, for the rest of a message that has begun, for room, and for a reply to be
/// taken.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// Messages larger than [`SMALL`] at one time, of all clients.
const LARGE_AT_ONCE: usize = 4;
/// How long a large message that has its room may take to begin to come as fast as this, bytes a
/// second: who holds room is not slow on purpose.
const GRACE: Duration = Duration::from_secs(3);
const LARGE_RATE: u64 = 512 << 10;

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub enum ZmtpError {
    #[error("{0}")]
    Wire(#[from] WireError),
    #[error("it took more than {} s", PATIENCE.as_secs())]
    Slow,
    #[error("others' large messages have taken all room for {} s", PATIENCE.as_secs())]
    NoRoom,
    #[error("a large message was not sealed with the key")]
    NotSealed,
}

impl From<io::Error> for ZmtpError {
    fn from(error: io::Error) -> ZmtpError {
        WireError::Io(error).into()
    }
}

/// Room for large messages, shared by all clients. Cheap to clone.
#[derive(Clone)]
pub struct Room(Few);

impl Default for Room {
    fn default() -> Room {
        Room(Few::new(LARGE_AT_ONCE))
    }
}

impl Room {
    /// The same for one client of a user, as [`Few::of`].
    pub fn of(&self, user: Option<&str>) -> Room {
        Room(self.0.of(user))
    }

    /// Room for one large message, given back when this is dropped.
    pub async fn take(&self) -> Result<Taken, ZmtpError> {
        let taken = timeout(PATIENCE, self.0.take()).await;
        taken.map_err(|_| ZmtpError::NoRoom)
    }
}

/// What a message may still take, and how long.
struct Budget {
    allowance: Allowance,
    deadline: Instant,
    /// The room that it has, once it has turned out to be large.
    room: Option<Taken>,
    /// What has come since then, and by when more has to.
    since: Instant,
    come: u64,
}

impl Budget {
    fn new(most: usize) -> Budget {
        Budget {
            allowance: Allowance::new(most),
            deadline: Instant::now() + PATIENCE,
            room: None,
            since: Instant::now(),
            come: 0,
        }
    }

    fn large(&self) -> bool {
        self.allowance.taken() > SMALL
    }

    /// By when the next byte has to be there.
    fn next(&self) -> Instant {
        match &self.room {
            None => self.deadline,
            Some(_) => self.deadline.min(due(self.since, self.come)),
        }
    }
}

/// By when there has to be more of a large message, of which so many bytes have come or gone.
fn due(since: Instant, bytes: u64) -> Instant {
    since + GRACE + Duration::from_millis(bytes * 1000 / LARGE_RATE)
}

/// A client behind its greeting.
pub struct Connection<S> {
    stream: BufReader<S>,
    room: Room,
    /// With a key, a large message has to begin as one that was sealed with it before it gets room.
    key: Option<Key>,
}

/// One request.
#[derive(Debug)]
pub struct Request {
    /// Routing frames and the empty one, for the reply.
    envelope: Vec<Vec<u8>>,
    /// The frames behind: one for a client that keeps to the protocol.
    pub body: Vec<Vec<u8>>,
    /// What a large one takes, until it is dropped.
    pub room: Option<Taken>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// Greets a client that has just connected.
    pub async fn greet(
        stream: S,
        room: Room,
        key: Option<Key>,
    ) -> Result<Connection<S>, ZmtpError> {
        let mut connection = Connection {
            stream: BufReader::new(stream),
            room,
            key,
        };
        timeout(PATIENCE, connection.handshake())
            .await
            .map_err(|_| ZmtpError::Slow)??;
        Ok(connection)
    }

    async fn handshake(&mut self) -> Result<(), ZmtpError> {
        self.write(&greeting()).await?;
        read_greeting(&mut self.stream).await?;
        self.write(&ready("REP")).await?;
        let mut budget = Budget::new(READY_MAX);
        let frame = self.frame(&mut budget).await?;
        match socket_type(&frame)? {
            b"REQ" | b"DEALER" => Ok(()),
            _ => Err(WireError::SocketType("REQ or DEALER").into()),
        }
    }

    /// The next request; `None` when the client has gone.
    pub async fn receive(&mut self) -> Result<Option<Request>, ZmtpError> {
        loop {
            if self.stream.fill_buf().await?.is_empty() {
                return Ok(None);
            }
            let mut budget = Budget::new(MESSAGE_MAX);
            let mut message = self.message(&mut budget).await?;
            if let Some(delimiter) = message.iter().position(Vec::is_empty) {
                let body = message.split_off(delimiter + 1);
                return Ok(Some(Request {
                    envelope: message,
                    body,
                    room: budget.room,
                }));
            }
            // Not a single frame: a command. Frames without the empty one: nobody to answer to, as
            // REP does.
        }
    }

    /// Returns when the client has gone, unless something that it has sent is still to be received.
    pub async fn gone(&mut self) {
        if let Ok(rest) = self.stream.fill_buf().await
            && !rest.is_empty()
        {
            std::future::pending().await
        }
    }

    /// The frames of one message; none for a command, which is answered here.
    async fn message(&mut self, budget: &mut Budget) -> Result<Vec<Vec<u8>>, ZmtpError> {
        let mut frames = Vec::new();
        loop {
            let frame = self.frame(budget).await?;
            if frame.flags & COMMAND != 0 {
                if frame.flags & MORE != 0 || !frames.is_empty() {
                    return Err(WireError::Frame.into());
                }
                if let Some(pong) = pong(&frame.body) {
                    self.write(&pong).await?;
                }
                return Ok(frames);
            }
            frames.push(frame.body);
            if frame.flags & MORE == 0 {
                return Ok(frames);
            }
        }
    }

    async fn frame(&mut self, budget: &mut Budget) -> Result<Frame, ZmtpError> {
        let head = timeout_at(budget.deadline, read_head(&mut self.stream)).await;
        let (flags, length) = head.map_err(|_| ZmtpError::Slow)??;
        budget.allowance.charge(length)?;
        // Grows as bytes come: a length alone reserves nothing.
        let mut body = Vec::new();
        if budget.room.is_none() && budget.large() {
            self.read(&mut body, length.min(BEGINNING as u64), budget)
                .await?;
            if let Some(key) = &self.key
                && !begins_sealed(key, &body)
            {
                return Err(ZmtpError::NotSealed);
            }
            budget.room = Some(self.room.take().await?);
            budget.since = Instant::now();
            budget.deadline = budget.since + PATIENCE;
        }
        self.read(&mut body, length, budget).await?;
        match body.len() as u64 == length {
            true => Ok(Frame { flags, body }),
            false => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
        }
    }

    /// Reads until there are so many bytes, or the stream ends.
    async fn read(
        &mut self,
        body: &mut Vec<u8>,
        length: u64,
        budget: &mut Budget,
    ) -> Result<(), ZmtpError> {
        while (body.len() as u64) < length {
            let some = read_some(&mut self.stream, body, length);
            let read = timeout_at(budget.next(), some).await;
            match read.map_err(|_| ZmtpError::Slow)?? {
                0 => return Ok(()),
                bytes => budget.come += bytes as u64,
            }
        }
        Ok(())
    }

    /// Answers a request.
    pub async fn reply(&mut self, request: &Request, body: &[u8]) -> Result<(), ZmtpError> {
        let mut bytes = Vec::with_capacity(body.len() + 64);
        for frame in &request.envelope {
            push_frame(&mut bytes, MORE, frame);
        }
        push_frame(&mut bytes, 0, body);
        self.write(&bytes).await
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), ZmtpError> {
        let since = Instant::now();
        let mut written = 0;
        for piece in bytes.chunks(PIECE as usize) {
            let mut deadline = since + PATIENCE;
            if bytes.len() > SMALL {
                deadline = deadline.min(due(since, written));
            }
            let sent = timeout_at(deadline, self.stream.write_all(piece)).await;
            sent.map_err(|_| ZmtpError::Slow)??;
            written += piece.len() as u64;
        }
        let flushed = timeout_at(since + PATIENCE, self.stream.flush()).await;
        Ok(flushed.map_err(|_| ZmtpError::Slow)??)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, DuplexStream, duplex};

    /// Of a client that speaks ZMTP 3.0.
    fn greeting() -> Vec<u8> {
        let mut bytes = vec![0; 64];
        (bytes[0], bytes[9], bytes[10], bytes[11]) = (0xff, 0x7f, 3, 0);
        bytes[12..16].copy_from_slice(b"NULL");
        bytes
    }

    /// Its READY, with the one property that it has to have.
    fn ready(socket: &[u8]) -> Vec<u8> {
        let mut body = b"\x05READY\x0bSocket-Type".to_vec();
        body.extend_from_slice(&(socket.len() as u32).to_be_bytes());
        body.extend_from_slice(socket);
        let mut bytes = Vec::new();
        push_frame(&mut bytes, COMMAND, &body);
        bytes
    }

    /// A server that has been sent these bytes, and the client's end.
    async fn after(bytes: &[u8]) -> (Result<Connection<DuplexStream>, ZmtpError>, DuplexStream) {
        let (mut client, server) = duplex(1 << 16);
        client.write_all(bytes).await.unwrap();
        (
            Connection::greet(server, Room::default(), None).await,
            client,
        )
    }

    async fn connected() -> (Connection<DuplexStream>, DuplexStream) {
        let (server, mut client) = after(&[greeting(), ready(b"REQ")].concat()).await;
        let mut hello = [0; 64];
        client.read_exact(&mut hello).await.unwrap();
        let mut expected = greeting();
        expected[11] = 1;
        assert_eq!(hello[..], expected);
        let mut frame = [0; 2 + 41];
        client.read_exact(&mut frame[..2]).await.unwrap();
        let length = usize::from(frame[1]);
        client.read_exact(&mut frame[2..2 + length]).await.unwrap();
        assert_eq!(
            &frame[..2 + length],
            b"\x04\x26\x05READY\x0bSocket-Type\0\0\0\x03REP\x08Identity\0\0\0\0"
        );
        (server.unwrap(), client)
    }

    /// v0-contract.md 2.
    #[tokio::test]
    async fn a_request_and_its_reply() {
        let (mut server, mut client) = connected().await;
        client.write_all(b"\x01\x00\x00\x05hello").await.unwrap();
        let request = server.receive().await.unwrap().unwrap();
        assert_eq!(request.envelope, [b""]);
        assert_eq!(request.body, [b"hello"]);
        assert!(request.room.is_none(), "a small one needs none");
        server.reply(&request, &[7; 300]).await.unwrap();
        let mut reply = vec![0; 2 + 9 + 300];
        client.read_exact(&mut reply).await.unwrap();
        assert_eq!(
            reply,
            [&b"\x01\x00\x02\0\0\0\0\0\0\x01\x2c"[..], &[7; 300]].concat()
        );
        drop(client);
        assert!(server.receive().await.unwrap().is_none());
    }

    /// v0-contract.md 1.
    #[tokio::test]
    async fn a_dealer_s_envelope_comes_back_and_its_frames_are_kept_apart() {
        let (mut server, mut client) = connected().await;
        client
            .write_all(b"\x01\x02id\x01\x00\x01\x01a\x00\x01b")
            .await
            .unwrap();
        let request = server.receive().await.unwrap().unwrap();
        assert_eq!(request.body, [b"a".to_vec(), b"b".to_vec()]);
        server.reply(&request, b"x").await.unwrap();
        let mut reply = [0; 9];
        client.read_exact(&mut reply).await.unwrap();
        assert_eq!(&reply, b"\x01\x02id\x01\x00\x00\x01x");
    }

    #[tokio::test]
    async fn a_ping_is_answered_and_what_has_no_delimiter_is_not() {
        let (mut server, mut client) = connected().await;
        client
            .write_all(b"\x04\x09\x04PING\0\x0aab\x00\x03odd\x01\x00\x00\x01q")
            .await
            .unwrap();
        assert_eq!(
            server.receive().await.unwrap().unwrap().body,
            [b"q".to_vec()]
        );
        let mut pong = [0; 9];
        client.read_exact(&mut pong).await.unwrap();
        assert_eq!(&pong, b"\x04\x07\x04PONGab");
    }

    /// v0-contract.md 4.
    #[tokio::test]
    async fn hostile_bytes_end_the_connection() {
        let (refused, _) = after(b"GET / HTTP/1.1\r\nHost: butterfly\r\n\r\n").await;
        assert!(matches!(refused, Err(ZmtpError::Wire(WireError::Greeting))));
        let mut old = greeting();
        old[10] = 1;
        assert!(matches!(
            after(&old).await.0,
            Err(ZmtpError::Wire(WireError::Greeting))
        ));
        let mut curve = greeting();
        curve[12..17].copy_from_slice(b"CURVE");
        assert!(matches!(
            after(&curve).await.0,
            Err(ZmtpError::Wire(WireError::Greeting))
        ));
        let publisher = [greeting(), ready(b"PUB")].concat();
        assert!(matches!(
            after(&publisher).await.0,
            Err(ZmtpError::Wire(WireError::SocketType(_)))
        ));
        let cut = [greeting(), b"\x04\x0c\x05READY\x0bSocke".to_vec()].concat();
        assert!(matches!(
            after(&cut).await.0,
            Err(ZmtpError::Wire(WireError::SocketType(_)))
        ));

        for (bytes, large) in [
            (&b"\x02\x00\x00\x01\x00\x00\x00\x00\x00"[..], true), // a terabyte
            (b"\x02\xff\xff\xff\xff\xff\xff\xff\xff", true),
            (b"\xf8\x00", false),         // reserved flags
            (b"\x01\x00\x04\x00", false), // a command inside a message
            (b"\x05\x00", false),         // a command that says more follows
        ] {
            let (mut server, mut client) = connected().await;
            client.write_all(bytes).await.unwrap();
            let error = server.receive().await.unwrap_err();
            assert_eq!(
                matches!(error, ZmtpError::Wire(WireError::TooLarge(_))),
                large,
                "{error}"
            );
            assert_eq!(
                matches!(error, ZmtpError::Wire(WireError::Frame)),
                !large,
                "{error}"
            );
        }
    }

    #[tokio::test]
    async fn frames_without_end_are_bounded() {
        let (mut server, client) = connected().await;
        let (_, mut write) = tokio::io::split(client);
        let flood =
            tokio::spawn(
                async move { while write.write_all(&[MORE, 0].repeat(512)).await.is_ok() {} },
            );
        assert!(matches!(
            server.receive().await,
            Err(ZmtpError::Wire(WireError::TooLarge(_)))
        ));
        drop(server);
        flood.await.unwrap();
    }

    /// A request of so many bytes.
    fn large(bytes: usize) -> Vec<u8> {
        let mut message = vec![MORE, 0];
        push_frame(&mut message, 0, &vec![7; bytes]);
        message
    }

    #[tokio::test(start_paused = true)]
    async fn large_messages_wait_for_room_and_small_ones_do_not() {
        let (mut first, mut client) = connected().await;
        let room = first.room.clone();
        let sending = tokio::spawn(async move {
            client.write_all(&large(SMALL + 1)).await.unwrap();
            client
        });
        let request = first.receive().await.unwrap().unwrap();
        assert!(request.room.is_some());
        let mut others = Vec::new();
        for _ in 1..LARGE_AT_ONCE {
            others.push(room.take().await.unwrap());
        }
        // All room is taken: a large one gives up after a while, a small one is received at once.
        let mut client = sending.await.unwrap();
        client.write_all(b"\x01\x00\x00\x05small").await.unwrap();
        assert_eq!(first.receive().await.unwrap().unwrap().body, [b"small"]);
        client.write_all(&large(SMALL)[..2000]).await.unwrap();
        assert!(matches!(first.receive().await, Err(ZmtpError::NoRoom)));
        drop(request);
        assert!(room.take().await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn many_frames_are_a_large_message_too() {
        let (mut server, mut client) = connected().await;
        let room = server.room.clone();
        let mut permits = Vec::new();
        for _ in 0..LARGE_AT_ONCE {
            permits.push(room.take().await.unwrap());
        }
        let frames = [MORE, 200]
            .iter()
            .copied()
            .chain([7; 200])
            .collect::<Vec<u8>>();
        let flood = tokio::spawn(async move {
            client.write_all(&[MORE, 0]).await.unwrap();
            while client.write_all(&frames).await.is_ok() {}
        });
        assert!(matches!(server.receive().await, Err(ZmtpError::NoRoom)));
        drop(server);
        flood.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_stops_in_the_middle_is_not_waited_for() {
        let (mut server, mut client) = connected().await;
        client.write_all(b"\x01\x00\x00\x05hel").await.unwrap();
        assert!(matches!(server.receive().await, Err(ZmtpError::Slow)));
        assert!(matches!(
            after(&greeting()[..20]).await.0,
            Err(ZmtpError::Slow)
        ));
    }

    /// Without the key nobody holds any of the room, however many try.
    /// v0-contract.md 25.
    #[tokio::test(start_paused = true)]
    async fn who_has_not_the_key_gets_no_room_for_a_large_message() {
        let (mut server, mut client) = connected().await;
        server.key = Some(Key::from([7; 32]));
        let room = server.room.clone();
        client.write_all(&large(SMALL + 1)[..2000]).await.unwrap();
        let start = Instant::now();
        assert!(matches!(server.receive().await, Err(ZmtpError::NotSealed)));
        assert!(start.elapsed() < GRACE);
        assert_eq!(room.0.free(), LARGE_AT_ONCE);
    }

    /// v0-contract.md 5.
    #[tokio::test(start_paused = true)]
    async fn who_has_room_keeps_it_only_while_bytes_come() {
        let (mut server, mut client) = connected().await;
        let message = large(1 << 20);
        let dripping = tokio::spawn(async move {
            for byte in message.chunks(1000) {
                if client.write_all(byte).await.is_err() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        let start = Instant::now();
        assert!(matches!(server.receive().await, Err(ZmtpError::Slow)));
        assert!(start.elapsed() < GRACE * 2, "{:?}", start.elapsed());
        drop(server);
        dripping.await.unwrap();
    }
    /// v0-contract.md 5.
    #[tokio::test(start_paused = true)]
    async fn a_large_reply_that_is_hardly_read_is_not_held_for_long() {
        let (mut server, mut client) = connected().await;
        client.write_all(b"\x01\x00\x00\x01q").await.unwrap();
        let request = server.receive().await.unwrap().unwrap();
        let dripping = tokio::spawn(async move {
            let mut some = [0; 1000];
            while client.read(&mut some).await.is_ok_and(|read| read > 0) {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        let start = Instant::now();
        let sent = server.reply(&request, &[7; 1 << 20]).await;
        assert!(matches!(sent, Err(ZmtpError::Slow)), "{sent:?}");
        assert!(start.elapsed() < GRACE * 2, "{:?}", start.elapsed());
        dripping.abort();
    }
}
