//! An answer on its way. HTTP/2 takes a frame from it as soon as its client has room for one byte,
//! and keeps what the client does not read: so what is large is given out in pieces, and is held
//! in the budget of all answers until its last piece is. Who leaves such an answer unread for a
//! stated time is disconnected. Answers of the page and of metrics, over HTTP/1, are given out so
//! too.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use http_body::{Body as _, Frame, SizeHint};
use hyper::body::{Buf, Bytes};
use tokio::time::Instant;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::HeaderMap;

use super::bounds::Asking;
use super::budget::Held;
use crate::places::ClientPlace;

/// The largest piece.
const PIECE: usize = 64 << 10;
/// How long a large answer may be left unread.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The body of an answer.
pub struct Reply {
    body: Body,
    /// The first frame, if it was there at once.
    first: Option<Polled>,
    /// What is still to be given out of a large frame.
    rest: Bytes,
    held: Held,
    /// What the answer is made of, where that is large itself.
    _made_of: Option<Arc<Held>>,
    /// Since when a piece has been on its way.
    sent: Arc<Mutex<Option<Instant>>>,
    is_watched: bool,
    asking: Asking,
}

type Polled = Option<Result<Frame<Bytes>, Status>>;

impl Reply {
    /// What of the answer is there already is made, and counted. The error: there is no room.
    pub async fn begin(
        body: Body,
        held: Held,
        made_of: Option<Arc<Held>>,
        asking: Asking,
    ) -> Result<Reply, Status> {
        let is_large = made_of.as_ref().is_some_and(|made_of| !made_of.is_small());
        let mut reply = Reply {
            body,
            first: None,
            rest: Bytes::new(),
            held,
            _made_of: made_of,
            sent: Arc::default(),
            is_watched: false,
            asking,
        };
        let first = std::future::poll_fn(|cx| match Pin::new(&mut reply.body).poll_frame(cx) {
            Poll::Ready(frame) => Poll::Ready(Some(frame)),
            Poll::Pending => Poll::Ready(None),
        });
        if let Some(frame) = first.await {
            let bytes = frame.as_ref().and_then(|frame| frame.as_ref().ok());
            let bytes = bytes.and_then(Frame::data_ref).map_or(0, Bytes::len);
            reply.held.set(bytes)?;
            reply.first = Some(frame);
        }
        if is_large || !reply.held.is_small() {
            reply.watch();
        }
        Ok(reply)
    }

    /// From now on the client is to read it.
    fn watch(&mut self) {
        if !self.is_watched
            && let Some(place) = self.asking.place()
        {
            self.set_sent(Some(Instant::now()));
            drop(tokio::spawn(watch(Arc::downgrade(&self.sent), place)));
            self.is_watched = true;
        }
    }

    fn set_sent(&self, at: Option<Instant>) {
        *self.sent.lock().unwrap_or_else(PoisonError::into_inner) = at;
    }

    fn next(&mut self, cx: &mut Context<'_>) -> Poll<Polled> {
        if self.rest.is_empty() {
            let frame = match self.first.take() {
                Some(frame) => frame,
                None => std::task::ready!(Pin::new(&mut self.body).poll_frame(cx)),
            };
            match frame.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) if data.len() > PIECE => {
                    if let Err(status) = self.held.set(data.len()) {
                        return Poll::Ready(Some(ended(status)));
                    }
                    self.rest = data;
                    self.watch();
                }
                Some(Ok(Ok(data))) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Some(Ok(Err(other))) => return Poll::Ready(Some(Ok(other))),
                Some(Err(status)) => return Poll::Ready(Some(Err(status))),
                None => return Poll::Ready(None),
            }
        }
        // A copy: a part of it would keep all of it.
        let piece = Bytes::copy_from_slice(&self.rest[..self.rest.len().min(PIECE)]);
        self.rest.advance(piece.len());
        if self.rest.is_empty() {
            self.rest = Bytes::new();
            // Less than before is never refused.
            let _ = self.held.set(0);
        }
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }
}

/// The stream's end, with a status.
fn ended(status: Status) -> Result<Frame<Bytes>, Status> {
    let mut trailers = HeaderMap::new();
    status.add_header(&mut trailers)?;
    Ok(Frame::trailers(trailers))
}

impl http_body::Body for Reply {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Polled> {
        let next = self.next(cx);
        // While it waits for what is to come, nothing is left unread.
        self.set_sent(next.is_ready().then(Instant::now));
        next
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

/// Disconnects a client that has not taken the next piece in time.
async fn watch(sent: Weak<Mutex<Option<Instant>>>, place: Arc<ClientPlace>) {
    loop {
        let at = match sent.upgrade() {
            Some(sent) => *sent.lock().unwrap_or_else(PoisonError::into_inner),
            None => return,
        };
        let until = at.unwrap_or_else(Instant::now) + PATIENCE;
        if until <= Instant::now() {
            tracing::warn!(
                "a client is disconnected: it has left a large answer unread for {} s",
                PATIENCE.as_secs()
            );
            place.displace();
            return;
        }
        tokio::time::sleep_until(until).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::places::ClientPlaces;
    use crate::v1::budget::Budget;
    use http_body_util::{BodyExt, Full};

    fn answer(bytes: usize) -> Body {
        Body::new(Full::new(Bytes::from(vec![7; bytes])).map_err(|never| match never {}))
    }

    async fn begin(budget: &Budget, bytes: usize, asking: Asking) -> Result<Reply, Status> {
        Reply::begin(answer(bytes), budget.begin(None, 10), None, asking).await
    }

    #[tokio::test]
    async fn a_large_answer_is_whole_and_held_until_its_last_piece() {
        let budget = Budget::of("answers", 4 << 20, PIECE);
        let mut reply = begin(&budget, 3 << 20, Asking::nobody()).await.unwrap();
        let refused = begin(&budget, 3 << 20, Asking::nobody()).await;
        assert_eq!(
            refused.err().unwrap().code(),
            tonic::Code::ResourceExhausted
        );
        let (mut taken, mut pieces) = (0, 0);
        while taken < 3 << 20 {
            assert!(begin(&budget, 3 << 20, Asking::nobody()).await.is_err());
            let piece = reply.frame().await.unwrap().unwrap().into_data().unwrap();
            assert!(piece.len() <= PIECE && piece.iter().all(|byte| *byte == 7));
            (taken, pieces) = (taken + piece.len(), pieces + 1);
        }
        assert_eq!((taken, pieces), (3 << 20, 48));
        assert!(begin(&budget, 3 << 20, Asking::nobody()).await.is_ok());
        assert!(reply.frame().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn who_leaves_it_unread_loses_its_connection_and_who_reads_slowly_does_not() {
        let places = ClientPlaces::new("test", 4);
        let budget = Budget::of("answers", 16 << 20, PIECE);
        let mut clients = Vec::new();
        for _ in 0..2 {
            let place = Arc::new(places.take().unwrap());
            let asking = Asking::of(place.clone()).unwrap();
            clients.push((begin(&budget, 1 << 20, asking).await.unwrap(), place));
        }
        let lost = |place: &ClientPlace| {
            let displaced = place.displaced();
            async {
                tokio::time::timeout(Duration::ZERO, displaced)
                    .await
                    .is_ok()
            }
        };
        for _ in 0..3 {
            clients[0].0.frame().await.unwrap().unwrap();
            tokio::time::sleep(PATIENCE - Duration::from_secs(1)).await;
        }
        assert!(!lost(&clients[0].1).await, "slow, and it reads");
        assert!(lost(&clients[1].1).await);
    }
}
