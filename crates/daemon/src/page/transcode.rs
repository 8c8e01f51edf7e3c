//! API v1 in JSON: one request becomes one of gRPC, goes through the services as it would from a
//! socket, and its answer becomes JSON. What takes long is done on a thread, in its caller's turn,
//! and what is made is held in the budget of all answers.

use std::io::{self, Write};

use api::json::V1Method;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::service::Routes;
use tonic::{Code, Status};

use crate::access::Caller;
use crate::access::needs::{self, Need};
use crate::v1::bounds::{Guest, REPLY_TENTHS};
use crate::v1::budget::{Budget, Held};
use crate::v1::turns::{Length, Turns};

/// Messages of a stream that are given at most.
const STREAMED_MAX: usize = 2000;
/// A message's prefix: whether it is compressed, and its length (gRPC over HTTP/2,
/// Length-Prefixed-Message).
const PREFIX: usize = 5;
/// Bytes that a byte of a request may take while it is read: a message of one short field becomes a
/// node of a tree with room for eleven.
const READ: usize = 96;
/// Bytes that a byte of an answer may take besides the JSON: itself, and where its messages are.
const WRITTEN: usize = 2;

/// A method that can be asked here.
pub struct Method {
    path: String,
    kind: V1Method,
    /// What it takes.
    pub need: Need,
}

impl Method {
    /// The method of `path`, `/SERVICE/METHOD`. Streams that do not end are not to be had here.
    pub fn of(path: &str) -> Result<Method, Status> {
        let known = V1Method::of(path).zip(needs::of_path(path));
        let (kind, need) = known.ok_or_else(|| {
            Status::unimplemented(format!("there is no method {}", path.escape_debug()))
        })?;
        let (asks, answers) = kind.streams();
        if asks || answers && !kind.name().starts_with("List") {
            let why = format!("{} is a stream: use gRPC", kind.name());
            return Err(Status::unimplemented(why));
        }
        Ok(Method {
            path: path.to_owned(),
            kind,
            need,
        })
    }
}

/// What asks the services. Cheap to clone.
#[derive(Clone)]
pub struct Transcoder {
    services: Routes,
    turns: Turns,
    replies: Budget,
}

impl Transcoder {
    pub fn new(services: Routes, turns: Turns, replies: Budget) -> Transcoder {
        Transcoder {
            services,
            turns,
            replies,
        }
    }

    /// Calls a method with a request in JSON, for who may ask it; its answer, or what it was
    /// refused with. Of a method that lists by a stream the answer is
    /// `{"list": […], "more": …}`, with at most [`STREAMED_MAX`] of them.
    pub async fn call(
        &self,
        method: Method,
        request: Bytes,
        guest: Guest,
        caller: &Caller,
    ) -> Result<(Vec<u8>, Held), Status> {
        let Method { path, kind, .. } = method;
        let (mut held, asked) = (self.begin(caller), kind.clone());
        let read = move || {
            held.add(request.len() * READ)?;
            framed(&asked.request(&request).map_err(Status::invalid_argument)?)
        };
        let body = Body::new(Full::new(
            self.turns.run(caller, Length::Short, read).await?,
        ));
        let mut request = http::Request::post(path)
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(body)
            .map_err(|e| Status::internal(e.to_string()))?;
        request.extensions_mut().insert(guest);
        let Ok(answer) = self.services.clone().call(request).await;
        let (head, body) = answer.into_parts();
        if let Some(status) = Status::from_header_map(&head.headers)
            && status.code() != Code::Ok
        {
            return Err(status);
        }
        let (_, is_list) = kind.streams();
        let most = if is_list { STREAMED_MAX } else { 1 };
        let (messages, more, held) = collected(body, most, self.begin(caller)).await?;
        let written = move || match is_list {
            true => list(&kind, &messages, more, held),
            false => one(&kind, &messages, held),
        };
        self.turns.run(caller, Length::Short, written).await
    }

    fn begin(&self, caller: &Caller) -> Held {
        self.replies.begin(Some(caller), REPLY_TENTHS)
    }
}

/// A message behind its prefix.
fn framed(message: &[u8]) -> Result<Bytes, Status> {
    let mut framed = vec![0; PREFIX];
    let length =
        u32::try_from(message.len()).map_err(|_| Status::resource_exhausted("too long"))?;
    framed[1..].copy_from_slice(&length.to_be_bytes());
    framed.extend_from_slice(message);
    Ok(framed.into())
}

/// The messages of an answer behind their prefixes, at most so many, whether there are more, and
/// what is held for them.
async fn collected(
    mut body: Body,
    most: usize,
    mut held: Held,
) -> Result<(Vec<u8>, bool, Held), Status> {
    let (mut bytes, mut whole, mut count) = (Vec::new(), 0, 0);
    while let Some(frame) = body.frame().await.transpose()? {
        match frame.into_data() {
            Ok(data) => {
                held.add(data.len() * WRITTEN)?;
                bytes.extend_from_slice(&data);
            }
            Err(frame) => ended(frame.trailers_ref())?,
        }
        while let Some(message) = next(&bytes[whole..]) {
            if count == most {
                // The stream ends with its body.
                bytes.truncate(whole);
                return Ok((bytes, true, held));
            }
            (whole, count) = (whole + PREFIX + message.len(), count + 1);
        }
        // Frames may be there one after the other without an end; others have this thread too.
        tokio::task::coop::consume_budget().await;
    }
    Ok((bytes, false, held))
}

fn one(kind: &V1Method, messages: &[u8], held: Held) -> Result<(Vec<u8>, Held), Status> {
    let message = next(messages).ok_or_else(|| Status::internal("there is no answer"))?;
    let mut json = Counted::new(held);
    json.message(kind, message)?;
    Ok((json.text, json.held))
}

fn list(
    kind: &V1Method,
    mut messages: &[u8],
    more: bool,
    held: Held,
) -> Result<(Vec<u8>, Held), Status> {
    let mut json = Counted::new(held);
    json.text.extend_from_slice(br#"{"list":["#);
    let mut is_first = true;
    while let Some(message) = next(messages) {
        messages = &messages[PREFIX + message.len()..];
        if !is_first {
            json.text.push(b',');
        }
        json.message(kind, message)?;
        is_first = false;
    }
    json.text
        .extend(format!("],\"more\":{more}}}").into_bytes());
    Ok((json.text, json.held))
}

/// JSON that is held as it becomes longer.
struct Counted {
    text: Vec<u8>,
    held: Held,
    /// There is no room for more.
    refused: Option<Status>,
}

impl Counted {
    fn new(held: Held) -> Counted {
        Counted {
            text: Vec::new(),
            held,
            refused: None,
        }
    }

    fn message(&mut self, kind: &V1Method, message: &[u8]) -> Result<(), Status> {
        let written = kind.write_answer(message, self);
        written.map_err(|why| self.refused.take().unwrap_or_else(|| Status::internal(why)))
    }
}

impl Write for Counted {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        if let Err(refused) = self.held.add(text.len()) {
            let failed = io::Error::other(refused.message().to_owned());
            self.refused = Some(refused);
            return Err(failed);
        }
        self.text.extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// How it ended, by its trailers.
fn ended(trailers: Option<&http::HeaderMap>) -> Result<(), Status> {
    match trailers.and_then(Status::from_header_map) {
        Some(status) if status.code() != Code::Ok => Err(status),
        _ => Ok(()),
    }
}

/// The first message, if it is there whole. None is compressed: nobody asked for it.
fn next(bytes: &[u8]) -> Option<&[u8]> {
    let length = bytes.get(1..PREFIX)?.try_into().ok()?;
    let length = u32::from_be_bytes(length) as usize;
    bytes.get(PREFIX..)?.get(..length)
}

#[cfg(test)]
mod tests {
    use api::v1;
    use prost::Message;

    use super::*;

    #[test]
    fn a_message_is_there_when_it_is_whole() {
        let bytes = b"\0\0\0\0\x02ab\0\0\0\0\0\0\0\0\0\x01";
        assert_eq!(next(bytes), Some(&b"ab"[..]));
        assert_eq!(next(&bytes[PREFIX + 2..]), Some(&b""[..]));
        assert_eq!(next(&bytes[2 * PREFIX + 2..]), None);
        assert_eq!(next(b"\0\0\0"), None);
    }

    fn nics(count: usize) -> Bytes {
        let nic = v1::NicStatus {
            nic: Some(v1::Nic {
                id: "3a9a2c1e-5f3b-4f0e-9f55-0a1b2c3d4e5f".into(),
                ..Default::default()
            }),
            ..Default::default()
        };
        let list = v1::ListNicsResponse {
            nics: vec![nic; count],
            unmade: Vec::new(),
        };
        framed(&list.encode_to_vec()).unwrap()
    }

    #[tokio::test]
    async fn an_answer_is_held_with_its_json_and_refused_where_there_is_no_room() {
        let kind = Method::of("/butterfly.v1.Butterfly/ListNics").unwrap().kind;
        let wire = nics(5000);
        let transcode = async |budget: &Budget| {
            let body = Body::new(Full::new(wire.clone()).map_err(|never| match never {}));
            let (messages, more, held) = collected(body, 1, budget.begin(None, 10)).await?;
            assert_eq!((&messages[..], more), (&wire[..], false));
            one(&kind, &messages, held)
        };
        let budget = Budget::of("answers", 8 << 20, 0);
        let (json, held) = transcode(&budget).await.unwrap();
        let all: serde_json::Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(all["nics"].as_array().unwrap().len(), 5000);
        let taken = (WRITTEN * wire.len() + json.len()).next_multiple_of(64 << 10);
        let free = (8 << 20) - taken;
        assert!(budget.begin(None, 10).add(free + 1).is_err());
        let mut others = budget.begin(None, 10);
        others.add(free).unwrap();
        drop(held);
        // One byte less than it takes.
        others.add(1).unwrap();
        let refused = transcode(&budget).await.err().unwrap();
        assert_eq!(refused.code(), Code::ResourceExhausted);
        others.set(free).unwrap();
        assert!(transcode(&budget).await.is_ok());
        others.set((8 << 20) - wire.len()).unwrap();
        let refused = transcode(&budget).await.err().unwrap();
        assert_eq!(refused.code(), Code::ResourceExhausted);
    }

    #[tokio::test]
    async fn of_a_stream_so_many_are_given_and_whether_there_are_more() {
        let kind = Method::of("/butterfly.v1.Butterfly/ListNetworks")
            .unwrap()
            .kind;
        let budget = Budget::of("answers", 8 << 20, 0);
        let three: Bytes = framed(b"").unwrap().repeat(3).into();
        for (most, expected) in [
            (2, r#"{"list":[{},{}],"more":true}"#),
            (3, r#"{"list":[{},{},{}],"more":false}"#),
        ] {
            let body = Body::new(Full::new(three.clone()).map_err(|never| match never {}));
            let collected = collected(body, most, budget.begin(None, 10)).await;
            let (messages, more, held) = collected.unwrap();
            let (json, _) = list(&kind, &messages, more, held).unwrap();
            assert_eq!(String::from_utf8(json).unwrap(), expected);
        }
    }
}
