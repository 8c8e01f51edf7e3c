//! API v0's connection: a ZeroMQ REQ socket, one frame out, one frame back. [`super::envelope`]
//! says what is in a frame, [`super::v0`] has the operations.
//!
//! Who answers need not be a daemon: the port is of whoever has bound it.

use std::time::Duration;

use api::encrypted::Key;
use api::text_format;
use api::v0::message_v0::{Request, Response};
use api::v0::{Message, Messages, WHOLE_REPLY_MAX};
use api::zmtp::{Req, WireError};
use prost::Message as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use super::envelope::{self, OpenError, message_error, refusal};
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::options::Global;
use crate::output::say;
use crate::translate::{Untranslatable, requests};

/// Requests in one frame, and their bytes, when there are many to send. A daemon takes more
/// (docs/v0-contract.md).
const FRAME_MESSAGES: usize = 1000;
const FRAME_BYTES: usize = 4 << 20;

/// Bytes of an answer at most: the longest reply, and what encrypts it and frames it.
const ANSWER_MAX: usize = WHOLE_REPLY_MAX + 4096;

/// A ZeroMQ connection.
pub struct V0 {
    /// None behind a question without an answer: the next question connects anew.
    socket: Option<Req<Box<dyn Transport>>>,
    key: Option<Key>,
    endpoint: Endpoint,
    timeout: Duration,
    /// For the answer to a change.
    change_timeout: Duration,
    verbose: bool,
}

/// TCP or a unix socket.
trait Transport: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> Transport for T {}

impl V0 {
    /// Connects within the timeout.
    pub async fn connect(endpoint: Endpoint, options: &Global) -> Result<V0, Error> {
        let key = options
            .key
            .as_deref()
            .map(Key::load)
            .transpose()
            .map_err(|error| Error::Usage(error.to_string()))?;
        let mut v0 = V0 {
            socket: None,
            key,
            endpoint,
            timeout: options.timeout(),
            change_timeout: options.change_timeout(),
            verbose: options.verbose,
        };
        v0.socket = Some(v0.open().await?);
        Ok(v0)
    }

    async fn open(&self) -> Result<Req<Box<dyn Transport>>, Error> {
        let name = self.endpoint.to_string();
        let unreachable =
            |why: String| Error::Unreachable(format!("cannot reach butterflyd at {name}: {why}"));
        let greeted = timeout(self.timeout, async {
            Req::greet(transport(&name).await?, ANSWER_MAX).await
        });
        let ms = self.timeout.as_millis();
        greeted
            .await
            .map_err(|_| unreachable(format!("no connection within {ms} ms")))?
            .map_err(|error| unreachable(error.to_string()))
    }

    /// The error for what this API cannot do.
    pub fn needs_v1(&self, what: &str) -> Error {
        Error::needs_v1(what, &self.endpoint.to_string())
    }

    /// Sends messages in as many frames as their number and length ask for, gives back the answers:
    /// one for each.
    pub async fn exchange_all(&mut self, requests: Messages) -> Result<Messages, Error> {
        let (mut answers, mut frame, mut length) = (Messages::default(), Messages::default(), 0);
        for message in requests.messages {
            let own = message.encoded_len();
            if !frame.messages.is_empty()
                && (frame.messages.len() == FRAME_MESSAGES || length + own > FRAME_BYTES)
            {
                let full = std::mem::take(&mut frame);
                answers.messages.extend(self.exchange(full).await?.messages);
                length = 0;
            }
            length += own;
            frame.messages.push(message);
        }
        answers
            .messages
            .extend(self.exchange(frame).await?.messages);
        Ok(answers)
    }

    /// Sends messages in one frame, gives back the answers: one for each.
    pub async fn exchange(&mut self, request: Messages) -> Result<Messages, Error> {
        if self.verbose {
            say(&prefixed('>', &text_format::print(&request)));
        }
        let frame = envelope::seal(&request, self.key.as_ref());
        let wait = match request.messages.iter().any(changes) {
            true => self.change_timeout,
            false => self.timeout,
        };
        let mut socket = match self.socket.take() {
            Some(socket) => socket,
            None => self.open().await?,
        };
        let answer = timeout(wait, socket.ask(&frame)).await;
        let ms = wait.as_millis();
        let late = || {
            Error::Unreachable(format!(
                "butterflyd at {} gave no answer within {ms} ms",
                self.endpoint
            ))
        };
        let answer = answer.map_err(|_| late())?.map_err(|error| match error {
            WireError::Io(error) => {
                Error::Unreachable(format!("lost butterflyd at {}: {error}", self.endpoint))
            }
            error => self.garbled(&error.to_string()),
        })?;
        self.socket = Some(socket);
        let opened = envelope::open(&answer, self.key.as_ref(), request.messages.len());
        let answer = opened.map_err(|error| match error {
            OpenError::Refused(reason) => Error::Refused(reason),
            OpenError::Garbled(what) => self.garbled(&what),
        })?;
        if self.verbose {
            say(&prefixed('<', &text_format::print(&answer)));
        }
        if answer.messages.len() != request.messages.len() {
            let (got, sent) = (answer.messages.len(), request.messages.len());
            let refused = answer.messages.iter().find_map(message_error);
            return Err(refused
                .map(Error::Refused)
                .unwrap_or_else(|| self.garbled(&format!("{got} answers to {sent} requests"))));
        }
        Ok(answer)
    }

    /// One request; a refusal is an error.
    pub async fn call(&mut self, request: Request) -> Result<Response, Error> {
        let answers = self.exchange(requests::envelope(vec![request])).await?;
        let answer = answers
            .messages
            .into_iter()
            .next()
            .ok_or_else(|| self.garbled("no answer"))?;
        if let Some(error) = message_error(&answer) {
            return Err(Error::Refused(error));
        }
        let response = answer.message_0.and_then(|message| message.response);
        let response = response.ok_or_else(|| self.garbled("an answer without a response"))?;
        match refusal(&response) {
            Some(reason) => Err(Error::Refused(reason)),
            None => Ok(response),
        }
    }

    /// The error for an answer that makes no sense.
    pub fn garbled(&self, what: &str) -> Error {
        Error::Unreachable(format!(
            "{} does not speak Butterfly's API v0: {what}",
            self.endpoint
        ))
    }

    /// The error for a message that this API has no words for.
    pub fn untranslatable(&self, what: Untranslatable) -> Error {
        self.needs_v1(&what.0)
    }
}

/// Whether the request makes something else of what is there, which takes as long as that is large.
fn changes(message: &Message) -> bool {
    let request = message
        .message_0
        .as_ref()
        .and_then(|it| it.request.as_ref());
    request.is_some_and(|it| {
        it.nic_add.is_some()
            || it.nic_update.is_some()
            || it.nic_del.is_some()
            || it.sg_add.is_some()
            || it.sg_del.is_some()
            || it.sg_rule_add.is_some()
            || it.sg_rule_del.is_some()
            || it.sg_member_add.is_some()
            || it.sg_member_del.is_some()
    })
}

/// A connection to an endpoint in ZeroMQ's spelling.
async fn transport(endpoint: &str) -> std::io::Result<Box<dyn Transport>> {
    match endpoint.strip_prefix("ipc://") {
        Some(path) => Ok(Box::new(UnixStream::connect(path).await?)),
        None => {
            let stream = TcpStream::connect(endpoint.trim_start_matches("tcp://")).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream))
        }
    }
}

fn prefixed(mark: char, text: &str) -> String {
    text.lines()
        .map(|line| format!("{mark} {line}\n"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_is_told_from_what_lists() {
        let one = |request| requests::envelope(vec![request]).messages.remove(0);
        let list = Request {
            nic_list: Some(true),
            ..Default::default()
        };
        let delete = Request {
            nic_del: Some("vm1".into()),
            ..Default::default()
        };
        assert!(!changes(&one(list)));
        assert!(changes(&one(delete)));
    }
}
