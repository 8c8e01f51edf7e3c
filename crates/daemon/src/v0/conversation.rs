//! The reader's part of a conversation with a client of the v0 API: ZMTP and the envelope. Requests
//! go to the daemon one by one, and each has its answer before the next is read.

use std::io;

use api::v0::WHOLE_REPLY_MAX;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::UnixStream;

use super::envelope::{Envelope, Opened};
use super::zmtp::{Connection, Room, SMALL, ZmtpError};
use crate::reader::words::{Kind, body, head, send};

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
                let answer = tokio::select! {
                    answer = ask(daemon) => answer?,
                    // The daemon sees that nobody waits any more.
                    () = connection.gone() => return Ok(()),
                };
                match answer {
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
    let answer = body(daemon, len, WHOLE_REPLY_MAX).await?;
    Ok((kind == Kind::Answer).then_some(answer))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use api::text_format;
    use prost::Message as _;
    use tokio::io::{AsyncWriteExt, duplex};
    use tokio::time::timeout;

    use super::*;

    /// The daemon is asked, and its client does not wait for the answer.
    #[tokio::test]
    async fn the_daemon_is_told_when_a_client_hangs_up_amid_a_request() {
        let (mut client, server) = duplex(1 << 16);
        let (mut daemon, reader) = UnixStream::pair().unwrap();
        let room = Room::default();
        let talk = tokio::spawn(converse(server, reader, Envelope::new(None), room));
        let mut hello = [0u8; 64];
        (hello[0], hello[9], hello[10]) = (0xff, 0x7f, 3);
        hello[12..16].copy_from_slice(b"NULL");
        let ready = b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03REQ";
        let list = "messages { revision: 6 message_0 { request { sg_list: true } } }";
        let list = text_format::parse(list).unwrap().encode_to_vec();
        let request = [&[1, 0, 0, list.len() as u8][..], &list].concat();
        let said = [&hello[..], ready, &request].concat();
        client.write_all(&said).await.unwrap();
        let (kind, len) = head(&mut daemon).await.unwrap().unwrap();
        assert_eq!(kind, Kind::Request);
        body(&mut daemon, len, WHOLE_REPLY_MAX).await.unwrap();
        drop(client);
        let mut byte = [0];
        let heard = timeout(Duration::from_secs(20), daemon.read(&mut byte)).await;
        assert_eq!(heard.expect("it is told").unwrap(), 0);
        talk.await.unwrap();
    }
}
