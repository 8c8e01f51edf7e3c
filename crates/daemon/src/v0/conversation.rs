//! The reader's part of a conversation with a client of the v0 API: ZMTP and the envelope. Requests
//! go to the daemon one by one, and each has its answer before the next is read.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::UnixStream;

use super::envelope::{Envelope, Opened};
use super::handler::REPLY_MAX;
use super::zmtp::{Connection, Room, SMALL, ZmtpError};
use crate::reader::words::{Kind, body, head, send};

/// What the daemon has to say is bounded by the daemon: a reply, and one message more.
const ANSWER_MAX: usize = 2 * REPLY_MAX;

/// Speaks with a client until it has hung up, or the daemon has.
pub async fn converse<S>(client: S, mut daemon: UnixStream, envelope: Envelope, room: Room)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    if let Err(e) = speak(client, &mut daemon, &envelope, room).await {
        // Where it is the daemon that has gone nobody hears it.
        let _ = match e {
            ZmtpError::NotSealed => {
                let why = "it is not sealed with the key";
                send(&mut daemon, Kind::Refused, why.as_bytes()).await
            }
            e => send(&mut daemon, Kind::Failed, e.to_string().as_bytes()).await,
        };
    }
}

async fn speak<S>(
    client: S,
    daemon: &mut UnixStream,
    envelope: &Envelope,
    room: Room,
) -> Result<(), ZmtpError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let key = envelope.key().cloned();
    let mut byte = [0];
    let greeting = Connection::greet(client, room, key);
    let mut connection = tokio::select! {
        greeted = greeting => greeted?,
        _ = daemon.read(&mut byte) => return Ok(()),
    };
    loop {
        let request = tokio::select! {
            request = connection.receive() => request?,
            // It says nothing while nothing is asked: it has given the place to somebody else.
            _ = daemon.read(&mut byte) => return Ok(()),
        };
        let Some(mut request) = request else {
            return Ok(());
        };
        // One frame is a request; anything else is no `Messages`, and is answered so.
        let frames = std::mem::take(&mut request.body);
        let opened = match frames.as_slice() {
            [frame] => envelope.open(frame),
            _ => envelope.open(&[0xff]),
        };
        drop(frames);
        let is_large = request.room.is_some();
        let reply = match opened {
            Opened::Request(clear) => {
                send(daemon, Kind::Request, &clear).await?;
                drop(clear);
                match ask(daemon).await? {
                    Some(answer) => envelope.seal(answer),
                    None => envelope.internal_error(),
                }
            }
            Opened::Answered(reply) => reply,
            Opened::Refused(reply, why) => {
                send(daemon, Kind::Refused, why.as_bytes()).await?;
                reply
            }
        };
        connection.reply(&request, &reply).await?;
        let is_large = is_large || reply.len() > SMALL;
        drop((request, reply));
        if is_large {
            // What it took goes back to the system, and does not stay for the next large one.
            sys::trim_memory();
        }
        send(daemon, Kind::Sent, &[]).await?;
    }
}

/// The daemon's answer; `None` when it failed by a defect of ours.
async fn ask(daemon: &mut UnixStream) -> io::Result<Option<Vec<u8>>> {
    let (kind, len) = head(daemon).await?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let answer = body(daemon, len, ANSWER_MAX).await?;
    Ok((kind == Kind::Answer).then_some(answer))
}
