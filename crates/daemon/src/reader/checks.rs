//! A server that is checked: its answer is the reader's, and whether it is well the daemon's.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use health::probe::{Asks, NotMade, Question, ask};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;

pub use health::probe::Socket;

use super::Reader;
use super::words::{Kind, SENTENCE_MAX, Word, receive, send, sentence};

/// Bytes of a question at the most: its parts are the administrator's, and as long as they like.
const QUESTION_MAX: usize = 16 << 20;

/// A question, in JSON.
#[derive(Serialize, Deserialize)]
struct Asked {
    question: Question,
    service: SocketAddr,
}

/// Has a reader ask.
#[derive(Clone)]
pub struct Apart(pub Arc<Reader>);

impl Asks for Apart {
    async fn ask(
        &self,
        question: Question,
        service: SocketAddr,
        server: Socket,
    ) -> Result<Result<(), String>, NotMade> {
        let said = async {
            let (word, server): (Word, OwnedFd) = match server {
                Socket::Tcp(stream) => (Word::CheckTcp, stream.into_std()?.into()),
                Socket::Udp(socket) => (Word::CheckUdp, socket.into_std()?.into()),
            };
            let question = serde_json::to_vec(&Asked { question, service })?;
            let mut reader = self.0.hand(word, &[], server).await?;
            send(&mut reader, Kind::Question, &question).await?;
            let said = receive(&mut reader, SENTENCE_MAX).await?;
            said.ok_or_else(|| io::Error::other("the reader of health answers has ended"))
        };
        match said.await {
            Ok((Kind::Well, _)) => Ok(Ok(())),
            Ok((_, why)) => Ok(Err(sentence(&why))),
            Err(e) => Err(NotMade(e.to_string())),
        }
    }

    async fn prepare(&self) -> Result<(), NotMade> {
        let prepared = self.0.prepare().await;
        prepared.map_err(|e| NotMade(e.to_string()))
    }

    async fn is_well(&self) -> bool {
        self.0.moves().await
    }
}

/// In the reader: asks a server, and says what came of it, unless the check's time is up before.
pub async fn check(server: Socket, mut daemon: UnixStream) {
    let Ok(Some((Kind::Question, asked))) = receive(&mut daemon, QUESTION_MAX).await else {
        return;
    };
    let Ok(Asked { question, service }) = serde_json::from_slice(&asked) else {
        return;
    };
    let mut byte = [0];
    let said = tokio::select! {
        answered = ask(&question, service, server) => answered,
        _ = daemon.read(&mut byte) => return,
    };
    let _ = match said {
        Ok(()) => send(&mut daemon, Kind::Well, &[]).await,
        Err(why) => send(&mut daemon, Kind::Failed, why.as_bytes()).await,
    };
}
