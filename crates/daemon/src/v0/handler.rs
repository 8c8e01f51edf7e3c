//! What the daemon does with a request of the v0 API: `Messages` in, `Messages` out, one for one.
//! Their envelope and encryption are the [reader's](super::envelope); what is asked for is carried
//! out in [`requests`](super::requests), and answered and recorded when it is on disk.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use api::strict;
use api::v0::proto::error::ErrorCode;
use api::v0::{Message, MessageV0, Messages, REPLY_MAX};
use prost::Message as _;

use super::envelope::{failure, respond, unreadable};
use super::requests::{self, Frame};
use crate::access::{Caller, Gate, Peer};
use crate::app::{Changing, Operations};

/// Changes that wait for the disk together: their records are in memory meanwhile.
const TOGETHER_MAX: usize = 256;
/// For how long they do, and one request more: they are in force, and a kill leaves no record of
/// them.
const TOGETHER_FOR: Duration = Duration::from_millis(100);

/// Answers requests. Cheap to clone.
#[derive(Clone)]
pub struct Handler {
    operations: Arc<Operations>,
    gate: Gate,
}

/// What is answered.
pub struct Answer {
    /// `Messages`.
    pub bytes: Vec<u8>,
    /// The daemon is to stop when the reply is out.
    pub quit: bool,
}

impl Handler {
    /// For clients, who may do what the gate lets them.
    pub fn new(gate: Gate, operations: Arc<Operations>) -> Handler {
        Handler { operations, gate }
    }

    /// The answer to a client's request, `Messages` without encryption. Waits for the workers. What
    /// is only asked is not looked for any more once it is said that the client has gone.
    pub fn answer(&self, peer: &Peer, request: &[u8], client_gone: &AtomicBool) -> Answer {
        match strict::decode_request(request) {
            // The reader has decoded it, and says nothing else.
            Err(malformed) => Answer {
                bytes: unreadable(&malformed),
                quit: false,
            },
            Ok(messages) => {
                let frame = Frame::new(client_gone);
                let (messages, quit) = self.answer_messages(peer, frame, messages.messages);
                Answer {
                    bytes: messages.encode_to_vec(),
                    quit,
                }
            }
        }
    }

    /// Whether all that a client may do is for a part of the networks.
    pub fn has_part(&self, peer: &Peer) -> bool {
        self.gate.has_part(peer)
    }

    /// Records an attempt of who has not the key.
    pub fn turn_away(&self, peer: &Peer, why: &str) {
        self.gate.turned_away("v0", peer, "connect", why);
    }

    /// One for one, in order.
    fn answer_messages(
        &self,
        peer: &Peer,
        mut frame: Frame,
        requests: Vec<Message>,
    ) -> (Messages, bool) {
        if requests.is_empty() {
            let rejected = Messages {
                messages: vec![failure(ErrorCode::Rejected)],
                encrypted: None,
            };
            return (rejected, false);
        }
        let mut together = Together::begin(&self.operations, 0);
        let mut quit = false;
        let mut reply = Reply::for_requests(requests.len());
        for request in requests {
            let (answer, last) = match reply.is_full() {
                false => self.answer_message(peer, &mut frame, request, &mut together.changed_by),
                true => (not_answered(request), false),
            };
            quit |= last;
            reply.push(answer);
            if together.is_full(Instant::now()) {
                together.settle(&mut reply.messages);
                together = Together::begin(&self.operations, reply.messages.len());
            }
        }
        together.settle(&mut reply.messages);
        let messages = Messages {
            messages: reply.messages,
            encrypted: None,
        };
        (messages, quit)
    }

    /// Puts whose change it was into `changed_by`.
    fn answer_message(
        &self,
        peer: &Peer,
        frame: &mut Frame,
        message: Message,
        changed_by: &mut Vec<Caller>,
    ) -> (Message, bool) {
        let Some(message_0) = message.message_0 else {
            return (failure(ErrorCode::VersionNotManaged), false);
        };
        let message_id = message_0.message_id;
        match message_0.request {
            Some(request) => {
                let outcome =
                    requests::carry_out(&self.operations, &self.gate, peer, frame, request);
                changed_by.extend(outcome.changed_by);
                (respond(outcome.response, message_id), outcome.quit)
            }
            None => {
                let echo = message_id.map(|id| MessageV0 {
                    message_id: Some(id),
                    ..Default::default()
                });
                (
                    Message {
                        message_0: echo,
                        ..failure(ErrorCode::EmptyRequest)
                    },
                    false,
                )
            }
        }
    }
}

/// The answers to a frame.
struct Reply {
    messages: Vec<Message>,
    /// Bytes of all answers that were made, also of one that was too long to be sent: it has cost
    /// as much.
    made: usize,
}

impl Reply {
    fn for_requests(count: usize) -> Reply {
        Reply {
            messages: Vec::with_capacity(count),
            made: 0,
        }
    }

    /// No further request is to be carried out.
    fn is_full(&self) -> bool {
        self.made >= REPLY_MAX
    }

    fn push(&mut self, answer: Message) {
        let length = answer.encoded_len();
        self.made += length;
        self.messages.push(match length > REPLY_MAX {
            true => too_long(answer, length),
            false => answer,
        });
    }
}

/// Requests of a frame that wait for the disk together. What is recorded of them is written behind
/// that: they may be undone.
struct Together<'a> {
    changing: Changing<'a>,
    /// When the first of them began.
    begun: Instant,
    /// Where their answers begin.
    first: usize,
    changed_by: Vec<Caller>,
}

impl<'a> Together<'a> {
    fn begin(operations: &'a Arc<Operations>, first: usize) -> Together<'a> {
        Together {
            changing: operations.changing(),
            begun: Instant::now(),
            first,
            changed_by: Vec::new(),
        }
    }

    /// No more are to wait.
    fn is_full(&self, now: Instant) -> bool {
        match self.changed_by.len() {
            0 => false,
            TOGETHER_MAX.. => true,
            _ => now.saturating_duration_since(self.begun) >= TOGETHER_FOR,
        }
    }

    /// Returns when what they have changed outlives the process, or is undone; their answers are
    /// among these.
    fn settle(self, messages: &mut [Message]) {
        let Err(why) = self.changing.settle() else {
            return;
        };
        let why = why.to_string();
        let answers = messages[self.first..].iter_mut();
        for answered in answers.filter_map(|one| one.message_0.as_mut()) {
            answered.response = Some(requests::refused(why.clone()));
        }
        self.changed_by
            .iter()
            .for_each(|caller| caller.undone(&why));
    }
}

/// A request that comes behind a reply that is full.
fn not_answered(request: Message) -> Message {
    let why = format!(
        "not carried out: the answers before it are over {REPLY_MAX} bytes, send it in another \
         frame"
    );
    let message_id = request.message_0.and_then(|message| message.message_id);
    respond(requests::refused(why), message_id)
}

/// An answer alone is over the maximum.
fn too_long(answer: Message, length: usize) -> Message {
    let why =
        format!("the answer has {length} bytes, the most is {REPLY_MAX}: ask for one by its id");
    let message_id = answer.message_0.and_then(|message| message.message_id);
    respond(requests::refused(why), message_id)
}

#[cfg(test)]
mod tests;
