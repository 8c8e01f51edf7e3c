//! Target `page`: what browsers, and whatever else connects, say to the page.
//!
//! Promises: all that comes back is answers of HTTP, none of which says that the daemon is at
//! fault; who has not the token is told nothing but the page's files; and each file comes with what
//! keeps other sites' pages out.
//!
//! Input: the bytes of one connection. The token is [`TOKEN`]; no method is served behind it.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The page's.
pub const TOKEN: &str = "0123456789abcdef";
/// More is taken for one that never stops.
const ANSWERS_MAX: usize = 64 << 20;

/// Answers requests.
pub fn page(data: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    let runtime = runtime.expect("a runtime without threads");
    let mut said = Vec::new();
    runtime.block_on(async {
        let (near, far) = tokio::io::duplex(1 << 16);
        let served = tokio::spawn(daemon::decoders::page(far, TOKEN));
        let (mut answers, mut requests) = tokio::io::split(near);
        let asking = async {
            // Whoever hears enough hangs up.
            let _ = requests.write_all(data).await;
            let _ = requests.shutdown().await;
        };
        let hearing = async {
            let _ = (&mut answers)
                .take(ANSWERS_MAX as u64)
                .read_to_end(&mut said)
                .await;
        };
        tokio::join!(asking, hearing);
        let served = served.await.expect("a server that does not panic");
        served.expect("the token is one");
    });
    assert!(said.len() < ANSWERS_MAX, "answers without an end");
    let has_token = contains(data, TOKEN.as_bytes());
    let mut rest = &said[..];
    while !rest.is_empty() {
        let answer = Answer::take(&mut rest);
        assert_ne!(answer.status, 500, "the daemon is at fault");
        if answer.status != 200 {
            continue;
        }
        let policy = answer.field("content-security-policy").unwrap_or_default();
        assert!(policy.starts_with("default-src 'none'"), "{}", answer.head);
        let kind = answer.field("content-type").unwrap_or_default();
        assert!(
            has_token || kind != "application/json",
            "who has no token is told {}",
            answer.head
        );
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// One answer (RFC 9112).
struct Answer<'a> {
    status: u16,
    head: &'a str,
}

impl<'a> Answer<'a> {
    /// Takes one off the front, with its body.
    fn take(rest: &mut &'a [u8]) -> Answer<'a> {
        let text = *rest;
        let end = text.windows(4).position(|window| window == b"\r\n\r\n");
        let (head, body) = text.split_at(end.expect("an answer has an end") + 4);
        let head = std::str::from_utf8(head).expect("a head in ASCII");
        let status = head
            .strip_prefix("HTTP/1.1 ")
            .or_else(|| head.strip_prefix("HTTP/1.0 "));
        let status = status.and_then(|line| line.get(..3)?.parse().ok());
        let answer = Answer {
            status: status.unwrap_or_else(|| panic!("no answer: {head}")),
            head,
        };
        let length = answer.field("content-length").unwrap_or("0");
        let length: usize = length.parse().expect("a length");
        // HEAD has the length, and no body.
        let has_none = body.is_empty() || body.starts_with(b"HTTP/1.");
        *rest = &body[if has_none { 0 } else { length }..];
        answer
    }

    fn field(&self, name: &str) -> Option<&'a str> {
        let fields = self.head.lines().filter_map(|line| line.split_once(": "));
        let mut fields = fields.filter(|(field, _)| field.eq_ignore_ascii_case(name));
        Some(fields.next()?.1)
    }
}
