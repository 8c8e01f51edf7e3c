//! DNS over UDP and TCP (RFC 1035): one query, and the code of its answer.

use hickory_proto::op::{Message, MessageType, ResponseCode};
use hickory_proto::serialize::binary::{BinDecodable, BinEncodable};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Path, connect, reason};
use crate::check::Dns;

/// What a server may send over UDP without EDNS, and some: RFC 1035, section 4.2.1.
const DATAGRAM_MAX: usize = 4096;

impl Dns {
    pub(super) async fn probe(&self, path: impl Path) -> Result<(), String> {
        let mut query = Message::query();
        query.metadata.recursion_desired = true;
        let question = self
            .question()
            .map_err(|e| format!("{} {}", e.value, e.why))?;
        query.add_query(question);
        let bytes = query
            .to_bytes()
            .map_err(|e| format!("the query cannot be made: {e}"))?;
        let answer = match self.tcp {
            true => over_tcp(&bytes, path).await?,
            false => over_udp(&bytes, path).await?,
        };
        self::answer(query.metadata.id, &answer)
    }
}

/// What an answer to the query of this number says of the server: one that is there says yes or
/// that there is no such name; one that refuses or fails is not well, and why is a sentence.
pub fn answer(query: u16, answer: &[u8]) -> Result<(), String> {
    let answer =
        Message::from_bytes(answer).map_err(|e| format!("the answer is no DNS message: {e}"))?;
    if answer.metadata.message_type != MessageType::Response || answer.metadata.id != query {
        return Err("the answer is that to another query".into());
    }
    match answer.metadata.response_code {
        ResponseCode::NoError | ResponseCode::NXDomain => Ok(()),
        code => Err(format!("DNS answer {}: {code}", u16::from(code))),
    }
}

async fn over_udp(query: &[u8], path: impl Path) -> Result<Vec<u8>, String> {
    let failed = |e: std::io::Error| format!("no DNS answer: {}", reason(&e));
    let (socket, _hold) = path.udp().await.map_err(failed)?;
    socket.send(query).await.map_err(failed)?;
    let mut answer = vec![0; DATAGRAM_MAX];
    let len = socket.recv(&mut answer).await.map_err(failed)?;
    answer.truncate(len);
    Ok(answer)
}

/// Each message behind its length in two bytes (section 4.2.2).
async fn over_tcp(query: &[u8], path: impl Path) -> Result<Vec<u8>, String> {
    let failed = |e: std::io::Error| format!("no DNS answer: {}", reason(&e));
    let (stream, _hold) = connect(&path).await?;
    // Declared after what keeps the way open, and so dropped before it.
    let mut stream = stream;
    let len = u16::try_from(query.len()).map_err(|_| "the query is too long".to_owned())?;
    let mut framed = len.to_be_bytes().to_vec();
    framed.extend_from_slice(query);
    stream.write_all(&framed).await.map_err(failed)?;
    let mut answer = vec![0; usize::from(stream.read_u16().await.map_err(failed)?)];
    stream.read_exact(&mut answer).await.map_err(failed)?;
    Ok(answer)
}
