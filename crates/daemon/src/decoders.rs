//! What stands between somebody's bytes and the daemon, for whoever drives that without sockets and
//! files: no thread, and no clock of its own.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use api::encrypted::Key;
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::service::Routes;

use crate::access::{Gate, Named, Peer, Who, policy_of};
use crate::http::{Origin, converse};
use crate::page::{self, Token, history::History, server::Page, transcode::Transcoder};
use crate::v0::envelope::{Envelope, Opened};
use crate::v0::handler::Handler;
use crate::v0::zmtp::{Connection, Room, ZmtpError};
use crate::v1::bounds::replies;
use crate::v1::turns::{Count, Turns};

pub use crate::access::Reaches;
pub use crate::app::Operations;
pub use crate::logging::LogControl;
pub use crate::stored::{load_packed, pack};
pub use crate::v0::handler::Answer;
pub use crate::v1::convert::config;
pub use crate::v1::declaring::carry_out as carry_out_v1;

/// Who asks, by whom a file of `--access` may grant something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asker {
    /// A user of this host, and a group that it is in.
    User(u32, u32),
    /// Who has a certificate with this name.
    Certificate(String),
    /// Who reached v0 over TCP.
    V0Tcp,
    /// Who has the page's token.
    PageToken,
    /// Nobody knows who.
    Unknown,
}

/// What a file of `--access` with this text gives everybody who asks: the reach of `view`,
/// `operate` and `admin`. This host has the users `alice` (1000) and `bob` (1001), and the group
/// `ops` (2000).
pub fn granted(text: &str, askers: &[Asker]) -> Result<Vec<[Reaches; 3]>, String> {
    let policy = policy_of(text, &TOWN)?;
    let all = askers.iter().map(|asker| {
        let who = match asker {
            Asker::User(uid, gid) => Who::local(*uid, *gid),
            Asker::Certificate(name) => Who::Certificate {
                names: vec![name.clone()],
            },
            Asker::V0Tcp => Who::V0Tcp,
            Asker::PageToken => Who::PageToken,
            Asker::Unknown => Who::Unknown,
        };
        policy.rights(&who).reaches()
    });
    Ok(all.collect())
}

const TOWN: Named = Named {
    user: |name| {
        Ok(match name {
            "alice" => Some(1000),
            "bob" => Some(1001),
            _ => None,
        })
    },
    group: |name| Ok((name == "ops").then_some(2000)),
};

/// Answers to a browser on a connection that is there, over loopback in clear text; the page's
/// token is `token`. Behind it no method is served: what comes so far has been read, let in and
/// understood, which takes a thread of the runtime's.
pub async fn page<S>(stream: S, token: &str) -> Result<(), String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let token = Token::of(token)?;
    const ONE: Count = Count { each: 1, all: 1 };
    let services = Transcoder::new(Routes::default(), Turns::new(ONE, ONE), replies());
    let page = Page::new(services, History::default(), Gate::open(), Some(token));
    let origin = Origin::Clear(([127, 0, 0, 1], 1).into());
    converse(page::server::SERVED, page, replies(), stream, origin).await;
    Ok(())
}

/// The v0 API from frame to frame: what the reader and the daemon make of a request together.
/// Everybody may do everything. Cheap to clone.
#[derive(Clone)]
pub struct V0 {
    envelope: Envelope,
    handler: Handler,
}

impl V0 {
    /// With a key, clear text is refused; without one, encrypted text is.
    pub fn new(operations: Arc<Operations>, key: Option<Key>) -> V0 {
        V0 {
            envelope: Envelope::new(key),
            handler: Handler::new(Gate::open(), operations),
        }
    }

    /// The reply to a request frame of nobody in particular. Waits for the workers.
    pub fn answer(&self, frame: &[u8]) -> Answer {
        match self.envelope.open(frame) {
            Opened::Request(request) => {
                let stays = AtomicBool::new(false);
                let answer = self.handler.answer(&Peer::unknown(), &request, &stays);
                Answer {
                    bytes: self.envelope.seal(answer.bytes),
                    ..answer
                }
            }
            Opened::Answered(bytes) | Opened::Refused(bytes, _) => Answer { bytes, quit: false },
        }
    }
}

/// Has a conversation of the v0 API on a connection that is there, with a key or without: each
/// request, by its frames, is answered with what `answer` makes of it. Returns when the client has
/// hung up, or why it is hung up on.
pub async fn zmtp<S>(
    stream: S,
    key: Option<Key>,
    mut answer: impl FnMut(Vec<Vec<u8>>) -> Vec<u8>,
) -> Result<(), String>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let conversation = async {
        let mut connection = Connection::greet(stream, Room::default(), key).await?;
        while let Some(mut request) = connection.receive().await? {
            let frames = std::mem::take(&mut request.body);
            connection.reply(&request, &answer(frames)).await?;
        }
        Ok(())
    };
    conversation.await.map_err(|why: ZmtpError| why.to_string())
}
