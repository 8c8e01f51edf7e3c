//! DNS over UDP and TCP (RFC 1035): one query, and the code of its answer.

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::serialize::binary::{BinDecodable, BinEncodable};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

use super::reason;
use crate::check::Dns;

/// What a server may send over UDP without EDNS, and some: RFC 1035, section 4.2.1.
const DATAGRAM_MAX: usize = 4096;

/// A message's header (RFC 1035, section 4.1.1): all of it, and what is read of it here.
const HEADER_LEN: usize = 12;
const ID: std::ops::Range<usize> = 0..2;
const FLAGS: usize = 2;
const RESPONSE: u8 = 0x80;
const QUESTIONS: std::ops::Range<usize> = 4..6;

impl Dns {
    fn query(&self) -> Result<Vec<u8>, String> {
        let mut query = Message::query();
        query.metadata.recursion_desired = true;
        let question = self
            .question()
            .map_err(|e| format!("{} {}", e.value, e.why))?;
        query.add_query(question);
        query
            .to_bytes()
            .map_err(|e| format!("the query cannot be made: {e}"))
    }

    /// Anybody can send a datagram to the check's port that seems to come from the server: what is
    /// not the answer to the query is passed over, until the check's time is up.
    pub(super) async fn over_udp(&self, socket: UdpSocket) -> Result<(), String> {
        let query = self.query()?;
        socket.send(&query).await.map_err(failed)?;
        let mut answer = vec![0; DATAGRAM_MAX];
        loop {
            let len = socket.recv(&mut answer).await.map_err(failed)?;
            if answers(&query, &answer[..len]) {
                return self::answer(&query, &answer[..len]);
            }
        }
    }

    /// Each message behind its length in two bytes (section 4.2.2).
    pub(super) async fn over_tcp(&self, mut stream: TcpStream) -> Result<(), String> {
        let query = self.query()?;
        let len = u16::try_from(query.len()).map_err(|_| "the query is too long".to_owned())?;
        let mut framed = len.to_be_bytes().to_vec();
        framed.extend_from_slice(&query);
        stream.write_all(&framed).await.map_err(failed)?;
        let mut answer = vec![0; usize::from(stream.read_u16().await.map_err(failed)?)];
        stream.read_exact(&mut answer).await.map_err(failed)?;
        self::answer(&query, &answer)
    }
}

fn failed(error: std::io::Error) -> String {
    format!("no DNS answer: {}", reason(&error))
}

/// What an answer to this query says of the server: one that is there says yes or that there is no
/// such name; one that refuses or fails is not well, and why is a sentence.
pub fn answer(query: &[u8], answer: &[u8]) -> Result<(), String> {
    if !answers(query, answer) {
        return Err("the answer is that to another query".into());
    }
    let answer =
        Message::from_bytes(answer).map_err(|e| format!("the answer is no DNS message: {e}"))?;
    match answer.metadata.response_code {
        ResponseCode::NoError | ResponseCode::NXDomain => Ok(()),
        code => Err(format!("DNS answer {}: {code}", u16::from(code))),
    }
}

/// Whether a message is a response with the id and the question of this query (RFC 5452, section
/// 9.1). A server that cannot read the question may leave it out.
fn answers(query: &[u8], message: &[u8]) -> bool {
    let (Some((asked, question)), Some((header, rest))) = (
        query.split_at_checked(HEADER_LEN),
        message.split_at_checked(HEADER_LEN),
    ) else {
        return false;
    };
    let asks_the_same = header[QUESTIONS] == asked[QUESTIONS]
        && rest
            .get(..question.len())
            .is_some_and(|its| its.eq_ignore_ascii_case(question));
    header[ID] == asked[ID]
        && header[FLAGS] & RESPONSE != 0
        && (header[QUESTIONS] == [0, 0] || asks_the_same)
}
