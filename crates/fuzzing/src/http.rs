//! Target `http`: what a server answers to a health check by HTTP.
//!
//! Promise: a server is well only by a status that it has sent and that is among those that are
//! well; anything else is a sentence, and none of it is waited for once the server has hung up.
//!
//! Input: a byte (odd: any status of 200 to 399 is well, else 204 alone; with 2: HEAD), and the
//! answer.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use health::Http;
use health::probe::ask_http;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::input::Input;

/// Judges an answer.
pub fn http(data: &[u8]) {
    let mut input = Input::new(data);
    let kind = input.u8();
    let answer = input.take(data.len());
    let any = kind & 1 != 0;
    let check = Http {
        head: kind & 2 != 0,
        statuses: if any { Vec::new() } else { vec![204] },
        ..Http::default()
    };
    let service = ([192, 0, 2, 1], 80).into();
    let server = Server {
        asked: false,
        waits: None,
        answer,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.expect("a runtime without threads");
    match runtime.block_on(ask_http(&check, service, server)) {
        Ok(()) => {
            // RFC 9112, section 4: `HTTP/1.1 204 ...`.
            let says = |line: &[u8]| {
                let status = line
                    .strip_prefix(b"HTTP/1.")
                    .and_then(|rest| rest.get(1..5));
                let digits = status.and_then(|status| std::str::from_utf8(status).ok());
                let status = digits.and_then(|digits| digits.trim().parse::<u16>().ok());
                status.is_some_and(|status| match any {
                    true => (200..400).contains(&status),
                    false => status == 204,
                })
            };
            assert!(
                (0..answer.len()).any(|at| says(&answer[at..])),
                "a server is well that has not said so"
            );
        }
        Err(why) => assert!(!why.is_empty()),
    }
}

/// Says what it has to say once it is asked something, and hangs up.
struct Server<'a> {
    asked: bool,
    waits: Option<Waker>,
    answer: &'a [u8],
}

impl AsyncRead for Server<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.asked {
            self.waits = Some(context.waker().clone());
            return Poll::Pending;
        }
        let answer = self.answer;
        let (now, rest) = answer.split_at(answer.len().min(buffer.remaining()));
        buffer.put_slice(now);
        self.answer = rest;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Server<'_> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.asked = true;
        if let Some(waits) = self.waits.take() {
            waits.wake();
        }
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
