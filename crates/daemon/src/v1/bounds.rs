//! What v1 clients can take of the daemon: connections by [`ClientPlaces`], and memory for requests
//! that are in work and for answers that are not read, of all clients together.
//!
//! tonic bounds the bytes of one message, and a [`Weigher`] what it takes once it is decoded; here
//! is what many of them may add up to, both counted, the bytes as soon as their number is known. A
//! request may have a little of memory for nothing; what is above that comes out of a [`Budget`],
//! as it does for a [`Reply`].

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http_body::Body as _;
use http_body_util::{BodyStream, StreamBody};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Semaphore;
use tokio::time::Sleep;
use tokio_stream::Stream;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;
use tonic::transport::server::Connected;

use super::budget::{Budget, Held};
use super::reply::Reply;
use super::service::refused;
use super::tls::Authority;
use super::weigh::Weigher;
use crate::access::needs::{self, Need};
use crate::access::{Caller, Peer, Reach};
use crate::app::{App, Changing, Operations};
use crate::places::ClientPlace;

/// Bytes that a request may take without a permit.
const SMALL: usize = 64 << 10;
/// Bytes that all requests together may take at one time, as they come and decoded: one of the
/// largest, and many others.
pub(super) const BYTES_AT_ONCE: usize = 1280 << 20;
/// Of these, tenths that one client's may take: of one who may change all, so that the largest has
/// room; and of another one.
const TENTHS: usize = 9;
const TENTHS_OF_PART: usize = 3;
/// Bytes that an answer may take without a permit, and that all together may take that their
/// clients have not read; the half of it may be one client's.
const REPLY_SMALL: usize = 64 << 10;
pub(super) const REPLIES_AT_ONCE: usize = 1280 << 20;
/// Tenths of it that one client's answers may take.
pub const REPLY_TENTHS: usize = 5;
/// Requests that wait for the disk at one time. One sync is for all that was changed before it.
pub const SETTLING_AT_ONCE: usize = 128;
/// How long a request may take to arrive as a whole.
const PATIENCE: Duration = Duration::from_secs(60);
/// The header by which a client says that its request may be answered before it is durable, since
/// another one follows that it waits for.
pub const DURABLE: &str = "butterfly-durable";
const SOON: &str = "soon";

/// Memory for requests in work.
pub fn requests() -> Budget {
    Budget::of("requests that are in work", BYTES_AT_ONCE, SMALL)
}

/// Memory for answers that are not read yet.
pub fn replies() -> Budget {
    Budget::of(
        "answers that are not read yet",
        REPLIES_AT_ONCE,
        REPLY_SMALL,
    )
}

/// A request's body that is counted as it comes, and before anything of it is decoded.
struct Metered {
    body: BodyStream<Body>,
    weigher: Option<Weigher>,
    held: Arc<Mutex<Held>>,
    deadline: Pin<Box<Sleep>>,
}

impl Metered {
    fn count(&mut self, bytes: &[u8]) -> Result<(), Status> {
        let taken = match &mut self.weigher {
            Some(weigher) => weigher.add(bytes)?,
            None => bytes.len(),
        };
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.add(taken)
    }
}

impl Stream for Metered {
    type Item = <BodyStream<Body> as Stream>::Item;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match Pin::new(&mut self.body).poll_next(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                let counted = self.count(frame.data_ref().map_or(&[][..], |data| data));
                Poll::Ready(Some(counted.map(|()| frame)))
            }
            Poll::Pending if self.deadline.as_mut().poll(cx).is_ready() => {
                let why = format!("the request was not there after {} s", PATIENCE.as_secs());
                Poll::Ready(Some(Err(Status::deadline_exceeded(why))))
            }
            other => other,
        }
    }
}

/// A service whose requests are bounded.
#[derive(Clone)]
pub struct Bounded<S> {
    service: S,
    budget: Budget,
    replies: Budget,
    operations: Arc<Operations>,
    settling: Arc<Semaphore>,
}

impl<S> Bounded<S> {
    pub fn new(service: S, budget: Budget, app: &App) -> Bounded<S> {
        Bounded {
            service,
            budget,
            replies: app.replies.clone(),
            operations: app.operations.clone(),
            settling: app.settling.clone(),
        }
    }
}

impl<S: NamedService> NamedService for Bounded<S> {
    const NAME: &'static str = S::NAME;
}

type Answered = Result<http::Response<Body>, Infallible>;

impl<S> Service<http::Request<Body>> for Bounded<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Answered> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        let asking = Asking::begin(&request);
        let caller = request.extensions().get::<Caller>();
        let changes = needs::of_path(request.uri().path()).is_some_and(Need::is_change);
        let tenths = match caller.is_some_and(|caller| *caller.reach() == Reach::Whole) && changes {
            true => TENTHS,
            false => TENTHS_OF_PART,
        };
        let held = Arc::new(Mutex::new(self.budget.begin(caller, tenths)));
        let reply = self.replies.begin(caller, REPLY_TENTHS);
        let unsettled = self.operations.unsettled();
        if let Some(caller) = request.extensions_mut().get_mut::<Caller>() {
            caller.hold(held.clone());
            caller.will_change(unsettled.clone());
        }
        let metered = Metered {
            body: BodyStream::new(Body::empty()),
            weigher: Weigher::of_method(request.uri().path()),
            held: held.clone(),
            deadline: Box::pin(tokio::time::sleep(PATIENCE)),
        };
        let request = request.map(|body| {
            Body::new(StreamBody::new(Metered {
                body: BodyStream::new(body),
                ..metered
            }))
        });
        let soon = request
            .headers()
            .get(DURABLE)
            .is_some_and(|when| when == SOON);
        let answer = self.service.call(request);
        let (operations, settling) = (self.operations.clone(), self.settling.clone());
        Box::pin(async move {
            let changing = operations.changing_of(unsettled);
            let mut answer = answer.await?;
            drop(held);
            if soon {
                changing.settle_soon();
            } else if let Err(why) = settle(changing, &settling).await {
                return Ok(refused(why).into_http());
            }
            let made_of = answer.extensions_mut().remove::<Arc<Held>>();
            let (head, body) = answer.into_parts();
            // A refusal: it has no body, and is to have none.
            if body.is_end_stream() {
                return Ok(http::Response::from_parts(head, body));
            }
            // A stream goes on for as long as its body does.
            Ok(match Reply::begin(body, reply, made_of, asking).await {
                Ok(reply) => http::Response::from_parts(head, Body::new(reply)),
                Err(status) => status.into_http(),
            })
        })
    }
}

/// Returns when what a request has changed outlives the process. It takes a thread meanwhile; who
/// waits for a place among [`SETTLING_AT_ONCE`] takes none.
async fn settle(changing: Changing<'_>, settling: &Semaphore) -> Result<(), control::Error> {
    let place = settling.acquire().await;
    let settled = tokio::task::block_in_place(|| changing.settle());
    drop(place);
    settled
}

/// A client that is being answered.
pub struct Asking(Option<Arc<ClientPlace>>);

impl Asking {
    fn begin<B>(request: &http::Request<B>) -> Asking {
        let guest = request.extensions().get::<Guest>();
        let place = guest.map(|guest| guest.place.clone());
        if let Some(place) = &place {
            place.begin();
        }
        Asking(place)
    }

    /// One whose place this is; none where it has lost it.
    pub fn of(place: Arc<ClientPlace>) -> Option<Asking> {
        place.begin().then(|| Asking(Some(place)))
    }

    pub(super) fn place(&self) -> Option<Arc<ClientPlace>> {
        self.0.clone()
    }

    #[cfg(test)]
    pub(super) fn nobody() -> Asking {
        Asking(None)
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        if let Some(place) = &self.0 {
            place.end();
        }
    }
}

/// The client that a request is from.
#[derive(Clone)]
pub struct Guest {
    place: Arc<ClientPlace>,
    pub peer: Peer,
    /// Over mutual TLS.
    authority: Option<Authority>,
}

impl Guest {
    pub fn new(place: Arc<ClientPlace>, peer: Peer, authority: Option<Authority>) -> Guest {
        Guest {
            place,
            peer,
            authority,
        }
    }

    /// Its certificate is by an authority that is not that of clients any more.
    pub fn is_stale(&self) -> bool {
        self.authority.as_ref().is_some_and(Authority::is_stale)
    }

    /// By which it came.
    pub fn authority(&self) -> Option<&Authority> {
        self.authority.as_ref()
    }
}

/// A connection that is known to be somebody's.
pub struct Identified<S> {
    stream: S,
    guest: Guest,
}

impl<S> Identified<S> {
    pub fn new(
        stream: S,
        place: Arc<ClientPlace>,
        peer: Peer,
        authority: Option<Authority>,
    ) -> Identified<S> {
        let guest = Guest::new(place, peer, authority);
        Identified { stream, guest }
    }
}

impl<S> Connected for Identified<S> {
    type ConnectInfo = Guest;

    fn connect_info(&self) -> Guest {
        self.guest.clone()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Identified<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Identified<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A connection with its place; it breaks off when somebody else gets that.
pub struct Guarded<S> {
    stream: S,
    place: Arc<ClientPlace>,
    /// `None` when it has lost it.
    displaced: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl<S> Guarded<S> {
    pub fn new(stream: S, place: ClientPlace) -> Guarded<S> {
        Guarded {
            stream,
            displaced: Some(Box::pin(place.displaced())),
            place: Arc::new(place),
        }
    }

    pub fn place(&self) -> Arc<ClientPlace> {
        self.place.clone()
    }

    /// An error once its place is somebody else's.
    fn poll_displaced(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let displaced = self.displaced.as_mut();
        if displaced.is_none_or(|displaced| displaced.as_mut().poll(cx).is_ready()) {
            self.displaced = None;
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        Ok(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_displaced(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        // Over HTTP/1 nothing is read while an answer is not, if there is a part of the next
        // request already.
        self.poll_displaced(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::sync::mpsc::{Receiver, Sender};

    use control::model::Group;
    use control::{Author, Controller, HostSettings};
    use http_body::Frame;
    use http_body_util::{BodyExt, Full};
    use tokio_stream::StreamExt;
    use tonic::codegen::Bytes;

    use super::super::server::REQUEST_MAX;
    use super::super::turns::{Count, Length, Turns};
    use super::*;
    use crate::logging::LogControl;
    use crate::nowhere::{Disk, Nowhere};
    use crate::stored::Stored;
    use crate::upgrade::Changes;

    /// A body of which so much comes, and nothing more.
    fn metered(begun: &[u8], weigher: Option<Weigher>, budget: &Budget) -> Metered {
        let begun = (!begun.is_empty()).then(|| Ok(Frame::data(Bytes::copy_from_slice(begun))));
        let endless = tokio_stream::pending::<<BodyStream<Body> as Stream>::Item>();
        let body = tokio_stream::iter(begun).chain(endless);
        Metered {
            body: BodyStream::new(Body::new(StreamBody::new(body))),
            weigher,
            held: Arc::new(Mutex::new(budget.begin(None, TENTHS))),
            deadline: Box::pin(tokio::time::sleep(PATIENCE)),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_come_is_not_waited_for() {
        let mut metered = metered(&[], None, &requests());
        let start = tokio::time::Instant::now();
        let error = metered.next().await.unwrap().unwrap_err();
        assert_eq!(error.code(), tonic::Code::DeadlineExceeded);
        assert!(start.elapsed() >= PATIENCE);
    }

    /// tonic makes room for all of it behind the header alone.
    #[tokio::test]
    async fn what_a_request_says_it_has_is_held_before_it_comes() {
        let budget = requests();
        let begin = |len: usize| {
            let header = [&[0][..], &u32::try_from(len).unwrap().to_be_bytes()].concat();
            let weigher = Weigher::of_method("/butterfly.v1.Butterfly/GetStatus");
            assert!(weigher.is_some());
            metered(&header, weigher, &budget)
        };
        let mut begun = Vec::new();
        for _ in 0..BYTES_AT_ONCE / REQUEST_MAX {
            let mut one = begin(REQUEST_MAX);
            one.next().await.unwrap().unwrap();
            begun.push(one);
        }
        let refused = begin(REQUEST_MAX).next().await.unwrap().unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        // A little is for nothing, and what is too long is refused by tonic, which says so.
        begin(SMALL / 2).next().await.unwrap().unwrap();
        begin(REQUEST_MAX + 1).next().await.unwrap().unwrap();
        begun.pop();
        begin(REQUEST_MAX).next().await.unwrap().unwrap();
    }

    #[test]
    fn what_is_decoded_later_is_held_with_the_request() {
        let budget = requests();
        let mut caller = Caller::seeing(&Peer::unknown());
        caller.hold_more(BYTES_AT_ONCE * 2).unwrap();
        caller.hold(Arc::new(Mutex::new(budget.begin(None, TENTHS))));
        caller.hold_more(BYTES_AT_ONCE).unwrap();
        let refused = caller.clone().hold_more(2 * SMALL).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        drop(caller);
        budget.begin(None, TENTHS).add(BYTES_AT_ONCE).unwrap();
    }

    /// Takes a request as a whole, and carries it out on a thread until it is told to end.
    #[derive(Clone)]
    struct Slow {
        end: Arc<Mutex<Option<Receiver<()>>>>,
        turns: Turns,
        operations: Arc<Operations>,
    }

    impl Service<http::Request<Body>> for Slow {
        type Response = http::Response<Body>;
        type Error = Infallible;
        type Future = Pin<Box<dyn Future<Output = Answered> + Send>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: http::Request<Body>) -> Self::Future {
            let end = self.end.lock().unwrap().take().unwrap();
            let caller = request.extensions().get::<Caller>().unwrap().clone();
            let (turns, operations) = (self.turns.clone(), self.operations.clone());
            let author = caller.author();
            Box::pin(async move {
                request.into_body().collect().await.unwrap();
                let operation = move || {
                    end.recv().unwrap();
                    let group = Group::new("late".parse().unwrap());
                    let mut control = operations.control_by(author);
                    control.put_group(group).unwrap();
                    Ok(())
                };
                turns.run(&caller, Length::Short, operation).await.unwrap();
                Ok(http::Response::new(Body::empty()))
            })
        }
    }

    /// With that service, and how to have its operation end.
    fn slow(operations: Operations) -> (Bounded<Slow>, Sender<()>) {
        let (tell, end) = std::sync::mpsc::channel();
        let operations = Arc::new(operations);
        let count = Count { each: 1, all: 1 };
        let service = Slow {
            end: Arc::new(Mutex::new(Some(end))),
            turns: Turns::new(count, count),
            operations: operations.clone(),
        };
        let bounded = Bounded {
            service,
            budget: requests(),
            replies: replies(),
            operations,
            settling: Arc::new(Semaphore::new(SETTLING_AT_ONCE)),
        };
        (bounded, tell)
    }

    fn request(bytes: usize) -> http::Request<Body> {
        let body = Full::new(Bytes::from(vec![0; bytes]));
        let mut request = http::Request::new(Body::new(body));
        request
            .extensions_mut()
            .insert(Caller::seeing(&Peer::unknown()));
        request
    }

    async fn comes(what: impl Fn() -> bool) {
        let wait = async {
            while !what() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.unwrap();
    }

    #[tokio::test]
    async fn a_request_holds_its_memory_for_as_long_as_it_is_carried_out() {
        let controller = controller();
        let operations = Operations::new(controller, LogControl::detached(), || 0);
        let (mut bounded, tell) = slow(operations);
        let budget = bounded.budget.clone();
        let all_is_free = || budget.begin(None, 10).add(BYTES_AT_ONCE).is_ok();
        let answer = bounded.call(request(1 << 20));
        // Its client goes away once it is being carried out.
        let gone = tokio::time::timeout(Duration::from_millis(200), answer).await;
        assert!(gone.is_err() && !all_is_free());
        tell.send(()).unwrap();
        comes(all_is_free).await;
    }

    fn controller() -> Controller {
        Controller::new(
            HostSettings::default(),
            Box::new(Nowhere),
            Arc::new(Nowhere),
        )
    }

    /// With a store that has one group, and of whose next syncs so many fail.
    fn stored(failing: u32) -> (Operations, Arc<Stored>) {
        let disk = Disk::default();
        let stored = Stored::over(disk.store(), Changes::default());
        let controller = controller().with_journal(stored.journal());
        let operations = Operations::new(controller, LogControl::detached(), || 0);
        let operations = operations.with_store(Some(stored.clone()));
        let before = stored.last();
        let group = Group::new("first".parse().unwrap());
        let author = Author::Client("somebody".into());
        operations.control_by(author).put_group(group).unwrap();
        stored.settle(before, &operations).unwrap();
        disk.failing.store(failing, Ordering::Relaxed);
        (operations, stored)
    }

    /// The client goes away before the change is made, and a kill comes some time after it.
    #[tokio::test]
    async fn a_change_whose_client_has_gone_is_synced() {
        let (operations, stored) = stored(0);
        let (mut bounded, tell) = slow(operations);
        let before = stored.last();
        let answer = bounded.call(request(1));
        let gone = tokio::time::timeout(Duration::from_millis(200), answer).await;
        assert!(gone.is_err() && stored.last() == before);
        tell.send(()).unwrap();
        comes(|| stored.last() != before && stored.is_all_durable()).await;
        assert_eq!(bounded.operations.control().group_ids().len(), 2);
    }

    /// Should its sync fail, it is undone, as that of a client that waits.
    #[tokio::test]
    async fn a_change_whose_client_has_gone_is_undone_where_it_cannot_be_kept() {
        let (operations, stored) = stored(1);
        let (mut bounded, tell) = slow(operations);
        let before = stored.last();
        let answer = bounded.call(request(1));
        let gone = tokio::time::timeout(Duration::from_millis(200), answer).await;
        assert!(gone.is_err());
        tell.send(()).unwrap();
        let operations = bounded.operations.clone();
        comes(|| stored.last() != before && operations.control().group_ids().len() == 1).await;
    }
}
