//! The end that asks: a REQ socket on one connection.

use std::io;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};

use super::{
    Allowance, COMMAND, Frame, MORE, READY_MAX, WireError, greeting, pong, push_frame,
    read_greeting, read_head, read_some, ready, socket_type,
};

/// A connection to a server behind its greeting. Where a question has no whole answer it is of no
/// more use: the next answer could be to that question.
pub struct Req<S> {
    stream: BufReader<S>,
    answer_max: usize,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Req<S> {
    /// Greets a server; an answer of more bytes than `answer_max` is refused.
    pub async fn greet(stream: S, answer_max: usize) -> Result<Req<S>, WireError> {
        let stream = BufReader::new(stream);
        let mut req = Req { stream, answer_max };
        req.write(&greeting()).await?;
        read_greeting(&mut req.stream).await?;
        req.write(&ready("REQ")).await?;
        let frame = req.frame(&mut Allowance::new(READY_MAX)).await?;
        match socket_type(&frame)? {
            b"REP" | b"ROUTER" => Ok(req),
            _ => Err(WireError::SocketType("REP or ROUTER")),
        }
    }

    /// Sends a question once, and returns its answer.
    pub async fn ask(&mut self, question: &[u8]) -> Result<Vec<u8>, WireError> {
        let mut bytes = Vec::with_capacity(question.len() + 16);
        push_frame(&mut bytes, MORE, &[]);
        push_frame(&mut bytes, 0, question);
        self.write(&bytes).await?;
        drop(bytes);
        loop {
            let mut allowance = Allowance::new(self.answer_max);
            let frame = self.frame(&mut allowance).await?;
            match frame.flags {
                COMMAND => {
                    if let Some(pong) = pong(&frame.body) {
                        self.write(&pong).await?;
                    }
                }
                // The envelope, which is as empty as that of the question.
                MORE if frame.body.is_empty() => {
                    let answer = self.frame(&mut allowance).await?;
                    return match answer.flags {
                        0 => Ok(answer.body),
                        _ => Err(WireError::Frame),
                    };
                }
                _ => return Err(WireError::Frame),
            }
        }
    }

    async fn frame(&mut self, allowance: &mut Allowance) -> Result<Frame, WireError> {
        let (flags, length) = read_head(&mut self.stream).await?;
        allowance.charge(length)?;
        let mut body = Vec::new();
        while (body.len() as u64) < length {
            if read_some(&mut self.stream, &mut body, length).await? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
        }
        Ok(Frame { flags, body })
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await?;
        self.stream.flush().await
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, DuplexStream, duplex};

    use super::*;

    const ANSWER_MAX: usize = 1000;

    /// A client that has been said these bytes, and the server's end.
    async fn greeted(said: &[u8]) -> (Result<Req<DuplexStream>, WireError>, DuplexStream) {
        let (client, mut server) = duplex(1 << 16);
        server.write_all(said).await.unwrap();
        (Req::greet(client, ANSWER_MAX).await, server)
    }

    /// What a question comes to of which the server says this. Then it hangs up.
    async fn asked(said: &[u8]) -> Result<Vec<u8>, WireError> {
        let (client, mut server) = greeted(&[&greeting()[..], &ready("REP")].concat()).await;
        server.write_all(said).await.unwrap();
        let mut heard = Vec::new();
        let hang_up = async {
            let hello = greeting().len() + ready("REQ").len();
            heard.resize(hello + 2 + 2 + 1, 0);
            server.read_exact(&mut heard).await.unwrap();
            drop(server);
        };
        let mut client = client.unwrap();
        let (answer, ()) = tokio::join!(client.ask(b"q"), hang_up);
        let expected = [&greeting()[..], &ready("REQ"), b"\x01\x00\x00\x01q"].concat();
        assert_eq!(heard, expected);
        answer
    }

    #[tokio::test]
    async fn a_question_has_one_answer_and_a_ping_is_none() {
        let said = b"\x04\x09\x04PING\0\x0aab\x01\x00\x00\x05hello";
        assert_eq!(asked(said).await.unwrap(), b"hello");
    }

    #[tokio::test]
    async fn a_length_that_is_claimed_takes_no_memory() {
        let claim = b"\xff\xff\xff\xff\xff\xff\xff\xff";
        let ready = [&greeting()[..], b"\x06", claim].concat();
        let (refused, _) = greeted(&ready).await;
        assert!(matches!(refused, Err(WireError::TooLarge(READY_MAX))));
        for head in [&b"\x02"[..], b"\x01\x00\x02", b"\x06"] {
            let refused = asked(&[head, claim].concat()).await;
            assert!(matches!(refused, Err(WireError::TooLarge(ANSWER_MAX))));
        }
        let most = ANSWER_MAX as u64;
        let refused = asked(&[&b"\x01\x00\x02"[..], &most.to_be_bytes()].concat()).await;
        assert!(matches!(refused, Err(WireError::TooLarge(ANSWER_MAX))));
    }

    #[tokio::test]
    async fn hostile_bytes_are_no_answer() {
        for said in [
            &b"\x00\x01x"[..],     // no envelope
            b"\x01\x01a\x00\x01x", // another one's
            b"\x01\x00\x01\x01x",  // more than an answer
            b"\x01\x00\x04\x01x",  // a command inside a message
            b"\x05\x00",           // a command that says more follows
            b"\xf8\x00",           // reserved flags
        ] {
            let refused = asked(said).await;
            assert!(matches!(refused, Err(WireError::Frame)), "{said:?}");
        }
        for said in [&b""[..], b"\x01\x00\x00\x05hel"] {
            let ended = asked(said).await;
            assert!(matches!(ended, Err(WireError::Io(_))), "{said:?}");
        }
        let (refused, _) = greeted(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        assert!(matches!(refused, Err(WireError::Greeting)));
        let (refused, _) = greeted(&[&greeting()[..], &ready("PUB")].concat()).await;
        assert!(matches!(refused, Err(WireError::SocketType(_))));
    }
}
