//! Golden requests and answers of the v0 API, through ZeroMQ, against the real daemon: each file in
//! `golden/` is a session with a fresh daemon. What follows `>>>` is sent, and the whole answer
//! must be what follows `<<<`.
//!
//! Text is a `Messages` in text format; `>>> hex` sends bytes as they are, and `<<< bare` expects a
//! `Message` that is in no `Messages`. `$DIR` is the daemon's socket directory, `$PID` its process.

mod common;

use common::{Daemon, V0};
use prost::Message as _;

#[tokio::test]
async fn golden_sessions_over_ipc_and_tcp() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");
    let mut files: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(files.len() >= 6, "the golden files are there");
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let name = file.file_name().unwrap().to_str().unwrap();
        for daemon in [Daemon::start(&[]), Daemon::start_tcp(&[])] {
            let mut client = daemon.v0().await;
            let text = text
                .replace("$DIR", daemon.dir.path().to_str().unwrap())
                .replace("$PID", &daemon.pid().to_string());
            let exchanges = exchanges(&text);
            assert!(!exchanges.is_empty(), "{name} has exchanges");
            for exchange in exchanges {
                exchange.check(name, &mut client).await;
            }
        }
    }
}

struct Exchange<'a> {
    line: usize,
    /// Behind `>>>` and `<<<` on their lines.
    send_kind: &'a str,
    send: String,
    expect_kind: &'a str,
    expect: String,
}

impl Exchange<'_> {
    async fn check(&self, name: &str, client: &mut V0) {
        let request = match self.send_kind {
            "" => api::text_format::parse(&self.send)
                .unwrap_or_else(|e| panic!("{name}:{}: {e}", self.line))
                .encode_to_vec(),
            "hex" => hex(&self.send),
            other => panic!("{name}:{}: what is {other}?", self.line),
        };
        let reply = client.ask(request).await;
        let (answer, expected) = match self.expect_kind {
            "" => {
                let expected = api::text_format::parse(&self.expect);
                let expected =
                    expected.unwrap_or_else(|e| panic!("{name}:{}: the answer: {e}", self.line));
                let answer = api::strict::decode_reply(&reply, api::strict::MESSAGES_MAX)
                    .expect("an answer is a Messages with every required field");
                (
                    api::text_format::print(&answer),
                    api::text_format::print(&expected),
                )
            }
            "bare" => {
                let answer = api::v0::Message::decode(reply.as_slice()).unwrap();
                (
                    api::text_format::print_message(&answer),
                    self.expect.clone(),
                )
            }
            other => panic!("{name}:{}: what is {other}?", self.line),
        };
        assert_eq!(
            answer, expected,
            "\n{name}:{}\nanswer:\n{answer}\nexpected:\n{expected}",
            self.line
        );
    }
}

fn exchanges(text: &str) -> Vec<Exchange<'_>> {
    let mut exchanges: Vec<Exchange> = Vec::new();
    let mut answering = false;
    for (index, line) in text.lines().enumerate() {
        if let Some(kind) = line.strip_prefix(">>>") {
            let (send_kind, line) = (kind.trim(), index + 1);
            exchanges.push(Exchange {
                line,
                send_kind,
                send: String::new(),
                expect_kind: "",
                expect: String::new(),
            });
            answering = false;
        } else if let (Some(kind), Some(last)) = (line.strip_prefix("<<<"), exchanges.last_mut()) {
            last.expect_kind = kind.trim();
            answering = true;
        } else if let (false, Some(last)) = (
            line.is_empty() || line.starts_with('#'),
            exchanges.last_mut(),
        ) {
            let part = if answering {
                &mut last.expect
            } else {
                &mut last.send
            };
            part.push_str(line);
            part.push('\n');
        }
    }
    exchanges
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}
