//! The gate that every request passes: who asks is compared with what the request takes, and what
//! it changes, or that it was refused, goes into the audit log.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use control::{Author, Changed};
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt, BodyStream, StreamBody};
use tokio_stream::Stream;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;
use tonic::{Code, Request, Status};

use super::change_rate::ChangeRate;
use super::needs::{self, Need};
use super::peer::Peer;
use super::permitted::Refusal;
use super::policy::{Reach, Reaches, Role};
use super::standing::Standing;
use super::{Access, Rights};
use crate::app::Unsettled;
use crate::audit::{ARGUMENTS_MAX, Audit, Record};
use crate::metrics::Requests;
use crate::upgrade::Changes;
use crate::v1::bounds::Guest;
use crate::v1::budget::Held;
use crate::v1::tls::Authority;

/// What a client is told that came by an authority of before.
pub const STALE: &str = "the authority of clients' certificates was changed: connect again";

/// What every request passes. Cheap to clone.
#[derive(Clone)]
pub struct Gate {
    access: Option<Access>,
    audit: Audit,
    requests: Requests,
    changes: Changes,
    change_rate: ChangeRate,
}

/// Who was let in, for one request. Cheap to clone.
#[derive(Clone)]
pub struct Caller {
    pub(super) reach: Reach,
    pub(super) shown: Arc<str>,
    ours: bool,
    pub(super) record: Option<Arc<Record>>,
    /// Memory that the request holds.
    memory: Option<Arc<Mutex<Held>>>,
    /// By what it was let in; `None`: for good.
    standing: Option<Arc<Standing>>,
    /// What the request changes.
    unsettled: Option<Arc<Unsettled>>,
    change_rate: ChangeRate,
}

impl Caller {
    /// Whose changes the controller is to say they are.
    pub fn author(&self) -> Author {
        Author::Client(self.shown.clone())
    }

    /// This caller without its record and what is its request's: for what goes on after the
    /// request was answered.
    pub fn unrecorded(mut self) -> Caller {
        (self.record, self.memory, self.unsettled) = (None, None, None);
        self
    }

    /// Who carries out its request is to have this as long as that takes.
    pub fn will_change(&mut self, unsettled: Arc<Unsettled>) {
        self.unsettled = Some(unsettled);
    }

    /// What its request changes.
    pub fn unsettled(&self) -> Option<Arc<Unsettled>> {
        self.unsettled.clone()
    }

    /// With memory that its request holds, also where the client goes away before it is carried
    /// out.
    pub fn hold(&mut self, memory: Arc<Mutex<Held>>) {
        self.memory = Some(memory);
    }

    /// Memory that its request holds.
    pub fn memory(&self) -> Option<Arc<Mutex<Held>>> {
        self.memory.clone()
    }

    /// Holds so many bytes more for its request; an error where there is no room for them.
    pub fn hold_more(&self, bytes: usize) -> Result<(), Status> {
        self.memory.as_ref().map_or(Ok(()), |memory| {
            let mut held = memory.lock().unwrap_or_else(PoisonError::into_inner);
            held.add(bytes)
        })
    }

    /// Whether it may still what it was let in for, now that nobody else has the controller.
    ///
    /// # Errors
    /// What it may do was changed since, or the authority that it came by; or it has changed too
    /// much of late.
    pub fn look_again(&self) -> Result<(), Refusal> {
        if let Some(standing) = &self.standing {
            standing.look_again(&self.reach)?;
        }
        match self.record.is_some() && self.has_part() {
            true => self.change_rate.admit(&self.shown, Instant::now()),
            false => Ok(()),
        }
    }

    /// An operation of the controller has changed something for it.
    pub fn changed(&self, changed: &Changed) {
        self.count_change();
        if let Some(record) = &self.record {
            record.changed(changed);
        }
    }

    /// Frames are caught for it from now on: that is recorded, and counts as a change, since the
    /// connections that the kernel forwards are judged anew.
    pub fn captures(&self) {
        self.count_change();
        self.takes_effect();
    }

    fn count_change(&self) {
        if self.has_part() {
            self.change_rate.changed(&self.shown, Instant::now());
        }
    }

    /// Who it is, as in the log: the same for all requests of one user or certificate.
    pub fn who(&self) -> &Arc<str> {
        &self.shown
    }

    /// Root, or the daemon's own user.
    pub fn is_ours(&self) -> bool {
        self.ours
    }

    /// It may see or change a part alone, and is one of many: neither root nor the daemon's own
    /// user.
    pub fn has_part(&self) -> bool {
        self.reach != Reach::Whole && !self.ours
    }

    /// Somebody who sees all.
    #[cfg(test)]
    pub fn seeing(peer: &Peer) -> Caller {
        Caller {
            reach: Reach::Whole,
            shown: peer.shown().into(),
            ours: peer.is_ours(),
            record: None,
            memory: None,
            standing: None,
            unsettled: None,
            change_rate: ChangeRate::default(),
        }
    }

    /// A user of this host, who sees all.
    #[cfg(test)]
    pub fn of_user(uid: u32) -> Caller {
        let super::Who::Local(user) = super::Who::local(uid, 9) else {
            unreachable!("a local user is one")
        };
        Caller::seeing(&Peer::local(user))
    }

    /// The same with a part of it.
    #[cfg(test)]
    pub fn of_part(self, reach: Reach) -> Caller {
        Caller { reach, ..self }
    }

    /// What the caller may see or change.
    pub fn reach(&self) -> &Reach {
        &self.reach
    }

    /// How the request ended.
    pub fn ended(&self, result: &str, why: &str) {
        if let Some(record) = &self.record {
            record.ended(result, why);
        }
    }

    /// From here on the request may have an effect, whatever comes of it: see
    /// [`Record::takes_effect`].
    pub fn takes_effect(&self) {
        if let Some(record) = &self.record {
            record.takes_effect();
        }
    }

    /// What the request has come to, where that is no change of what is declared.
    pub fn detail(&self, detail: String) {
        if let Some(record) = &self.record {
            record.detail(detail);
        }
    }

    /// What the request has changed is undone since.
    pub fn undone(&self, why: &str) {
        if let Some(record) = &self.record {
            record.undone(why);
        }
    }

    /// What was asked for.
    pub fn asked(&self, arguments: impl FnOnce() -> Option<serde_json::Value>, bytes: usize) {
        if let Some(record) = &self.record {
            let arguments = (bytes <= ARGUMENTS_MAX).then(arguments).flatten();
            record.arguments(arguments, bytes);
        }
    }
}

impl Gate {
    /// Lets in whom `access` says.
    pub fn new(access: Access, audit: Audit) -> Gate {
        Gate::of(Some(access), audit)
    }

    /// Lets everybody in, for whoever drives decoders without sockets, and keeps no record but in
    /// the log.
    pub fn open() -> Gate {
        Gate::of(None, Audit::none())
    }

    /// Lets everybody in where nothing says whom.
    pub(crate) fn of(access: Option<Access>, audit: Audit) -> Gate {
        Gate {
            access,
            audit,
            requests: Requests::default(),
            changes: Changes::default(),
            change_rate: ChangeRate::default(),
        }
    }

    /// Whether all that somebody may do, if anything, is for a part of the networks.
    pub fn has_part(&self, peer: &Peer) -> bool {
        let reaches = self.rights(peer).reaches();
        !peer.is_ours() && !reaches.contains(&Reaches::Whole)
    }

    /// Whether changes are taken now.
    pub fn changes(&self) -> &Changes {
        &self.changes
    }

    /// What was asked, counted.
    pub fn requests(&self) -> &Requests {
        &self.requests
    }

    fn rights(&self, peer: &Peer) -> Rights {
        match &self.access {
            Some(access) => access.rights(&peer.who),
            None => Rights::all(),
        }
    }

    /// Lets a request in. The error is a sentence for the client; it is in the audit log already.
    pub fn admit(&self, api: &'static str, peer: &Peer, need: Need) -> Result<Caller, String> {
        let mut caller = self.allow(api, peer, None, need)?;
        if need.is_change() {
            caller.record = Some(self.audit.begin(api, peer, need.request));
        }
        Ok(caller)
    }

    /// Lets a request of v1 in, before anything of it is read. What it is refused with is in the
    /// audit log already, and counted; who carries it out has a change recorded.
    pub fn let_in(&self, guest: Option<&Guest>, need: Need) -> Result<Caller, Status> {
        let began = Instant::now();
        let peer = guest.map_or_else(Peer::unknown, |guest| guest.peer.clone());
        if guest.is_some_and(Guest::is_stale) {
            self.turned_away("v1", &peer, need.request, STALE);
            return Err(Status::unauthenticated(STALE));
        }
        let authority = guest.and_then(Guest::authority).cloned();
        self.allow("v1", &peer, authority, need).map_err(|why| {
            let refused = code(Code::PermissionDenied);
            self.requests.answered("v1", need.request, began, refused);
            Status::permission_denied(why)
        })
    }

    /// Whether somebody may ask for something; a refusal is in the audit log.
    fn allow(
        &self,
        api: &'static str,
        peer: &Peer,
        authority: Option<Authority>,
        need: Need,
    ) -> Result<Caller, String> {
        let generation = self.generation();
        let rights = self.rights(peer);
        let reach = rights.reach(need.role);
        let why = match &reach {
            Reach::Nothing => {
                let has = match rights.role() {
                    None => "none".to_owned(),
                    Some(role) => role.to_string(),
                };
                format!(
                    "{} takes the role {}, and {} has {has}",
                    need.request,
                    need.role,
                    peer.shown()
                )
            }
            Reach::Parts(_) if !need.by_part => format!(
                "{} is for the whole host, and {} has the role {} for a part of its networks",
                need.request,
                peer.shown(),
                need.role
            ),
            _ => {
                let standing = Standing {
                    access: self.access.clone(),
                    peer: peer.clone(),
                    role: need.role,
                    generation,
                    authority,
                };
                return Ok(Caller {
                    reach,
                    shown: peer.shown().into(),
                    ours: peer.is_ours(),
                    record: None,
                    memory: None,
                    standing: Some(Arc::new(standing)),
                    unsettled: None,
                    change_rate: self.change_rate.clone(),
                });
            }
        };
        self.audit.refused(api, peer, need.request, &why);
        Err(why)
    }

    /// An attempt that did not come as far as a request.
    pub fn turned_away(&self, api: &'static str, peer: &Peer, what: &str, why: &str) {
        self.audit.refused(api, peer, what, why);
    }

    /// Whether somebody may see something still as when that began.
    fn still(&self, peer: &Peer, role: Role, reach: &Reach) -> bool {
        self.rights(peer).reach(role).seen() == reach.seen()
    }

    fn generation(&self) -> u64 {
        self.access.as_ref().map_or(0, Access::generation)
    }
}

/// Who a request of v1 was let in for, and what it says.
pub fn taken<T>(request: Request<T>) -> Result<(Caller, T), Status> {
    let (_, mut extensions, message) = request.into_parts();
    let caller = extensions.remove::<Caller>();
    // The layer below puts it there: without it, nobody has looked at who asks.
    let caller = caller.ok_or_else(|| Status::permission_denied("nobody let this request in"))?;
    Ok((caller, message))
}

/// A service of v1 behind the gate.
#[derive(Clone)]
pub struct Admitted<S> {
    service: S,
    gate: Gate,
}

impl<S> Admitted<S> {
    pub fn new(service: S, gate: Gate) -> Admitted<S> {
        Admitted { service, gate }
    }
}

impl<S: NamedService> NamedService for Admitted<S> {
    const NAME: &'static str = S::NAME;
}

type Answered = Result<http::Response<Body>, Infallible>;
type Answering = Pin<Box<dyn Future<Output = Answered> + Send>>;

impl<S> Service<http::Request<Body>> for Admitted<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answering;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Answering {
        let path = request.uri().path().to_owned();
        let Some(need) = needs::of_path(&path) else {
            let why = format!("there is no method {}", path.escape_debug());
            return answer(Status::unimplemented(why));
        };
        let guest = request.extensions().get::<Guest>();
        let peer = guest.map_or_else(Peer::unknown, |guest| guest.peer.clone());
        let authority = guest.and_then(Guest::authority).cloned();
        let (began, requests) = (Instant::now(), self.gate.requests.clone());
        // What is said in force when the request began: a reload between the two is noticed.
        let generation = self.gate.generation();
        let mut caller = match self.gate.let_in(guest, need) {
            Ok(caller) => caller,
            Err(status) => return answer(status),
        };
        if need.is_change() {
            caller.record = Some(self.gate.audit.begin("v1", &peer, need.request));
        }
        request.extensions_mut().insert(caller.clone());
        let watched = Watched {
            gate: self.gate.clone(),
            peer,
            authority,
            role: need.role,
            reach: caller.reach.clone(),
            generation,
        };
        if !need.is_change() {
            let answer = self.service.call(request);
            return Box::pin(async move {
                let answer = answer.await?;
                requests.answered("v1", need.request, began, result(&answer));
                Ok(answer.map(|body| watched.body(body)))
            });
        }
        let recorded = Arc::new(Mutex::new(RecordedBody::default()));
        let recording = recorded.clone();
        let request = request.map(|body| {
            Body::new(body.map_frame(move |frame| {
                if let Some(data) = frame.data_ref() {
                    let mut recorded = recording.lock().unwrap_or_else(PoisonError::into_inner);
                    recorded.add(data);
                }
                frame
            }))
        });
        let (answer, changes) = (self.service.call(request), self.gate.changes.clone());
        let asking = Asking {
            caller,
            path,
            recorded,
        };
        Box::pin(async move {
            let caller = &asking.caller;
            // Who asks for an upgrade has that answer himself what comes of it.
            let answer = match changes.wait().await {
                Err(why) if need.request != needs::UPGRADE => Status::unavailable(why).into_http(),
                _ => answer.await?,
            };
            requests.answered("v1", need.request, began, result(&answer));
            match Status::from_header_map(answer.headers()) {
                Some(status) if status.code() != Code::Ok => {
                    caller.ended(&code(status.code()), status.message());
                }
                _ => caller.ended("ok", ""),
            }
            // What was done is told, whatever one may do by then.
            match need.gives_frames() {
                true => Ok(answer.map(|body| watched.body(body))),
                false => Ok(answer),
            }
        })
    }
}

fn answer(status: Status) -> Answering {
    Box::pin(async { Ok(status.into_http()) })
}

/// How a request ended: "ok", or the code of the refusal.
fn result(answer: &http::Response<Body>) -> String {
    match Status::from_header_map(answer.headers()) {
        Some(status) if status.code() != Code::Ok => code(status.code()),
        _ => "ok".to_owned(),
    }
}

/// A code as gRPC spells it: `INVALID_ARGUMENT`.
fn code(code: Code) -> String {
    let mut text = String::new();
    for letter in format!("{code:?}").chars() {
        if letter.is_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.extend(letter.to_uppercase());
    }
    text
}

/// Of a request's message: a byte that says whether it is compressed, which none is, and its
/// length.
const PREFIX: usize = 5;

/// A request's body as it passes, as far as it is recorded.
#[derive(Default)]
struct RecordedBody {
    first: Vec<u8>,
    bytes: usize,
}

impl RecordedBody {
    fn add(&mut self, data: &[u8]) {
        self.bytes += data.len();
        let room = (PREFIX + ARGUMENTS_MAX).saturating_sub(self.first.len());
        self.first.extend_from_slice(&data[..data.len().min(room)]);
    }

    fn message(&self) -> &[u8] {
        self.first.get(PREFIX..).unwrap_or_default()
    }
}

/// A change that is asked for. What was asked is recorded when it is over, also where its client
/// went away before.
struct Asking {
    caller: Caller,
    path: String,
    recorded: Arc<Mutex<RecordedBody>>,
}

impl Drop for Asking {
    fn drop(&mut self) {
        let recorded = self.recorded.lock();
        let recorded = recorded.unwrap_or_else(PoisonError::into_inner);
        self.caller.asked(
            || api::json::of_v1_request(&self.path, recorded.message()),
            recorded.bytes.saturating_sub(PREFIX),
        );
    }
}

/// A stream ends when who reads it may not see any more what it saw when it began.
struct Watched {
    gate: Gate,
    peer: Peer,
    /// Over mutual TLS.
    authority: Option<Authority>,
    role: Role,
    reach: Reach,
    generation: u64,
}

impl Watched {
    fn revoked(&mut self) -> Option<Status> {
        if self.authority.as_ref().is_some_and(Authority::is_stale) {
            return Some(Status::unauthenticated(STALE));
        }
        let now = self.gate.generation();
        if now == self.generation {
            return None;
        }
        self.generation = now;
        let still = self.gate.still(&self.peer, self.role, &self.reach);
        let why = "what this client may see was changed: ask again";
        (!still).then(|| Status::permission_denied(why))
    }

    fn body(self, body: Body) -> Body {
        // A refusal has no body, and must say so: gRPC's status is then in the header, which has to
        // be the end of the stream (grpc-go takes no other).
        if body.is_end_stream() {
            return body;
        }
        Body::new(StreamBody::new(Guarding {
            watched: Some(self),
            body: BodyStream::new(body),
        }))
    }
}

struct Guarding {
    /// `None` once it has ended.
    watched: Option<Watched>,
    body: BodyStream<Body>,
}

impl Stream for Guarding {
    type Item = <BodyStream<Body> as Stream>::Item;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        let Some(watched) = &mut this.watched else {
            return Poll::Ready(None);
        };
        let frame = std::task::ready!(Pin::new(&mut this.body).poll_next(cx));
        if frame.is_some()
            && let Some(revoked) = watched.revoked()
        {
            this.watched = None;
            let mut trailers = http::HeaderMap::new();
            return match revoked.add_header(&mut trailers) {
                Ok(()) => Poll::Ready(Some(Ok(Frame::trailers(trailers)))),
                Err(status) => Poll::Ready(Some(Err(status))),
            };
        }
        Poll::Ready(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_spelt_as_grpc_does() {
        assert_eq!(code(Code::InvalidArgument), "INVALID_ARGUMENT");
        assert_eq!(code(Code::Internal), "INTERNAL");
    }

    #[test]
    fn a_request_nobody_let_in_is_refused() {
        assert_eq!(
            taken(Request::new(())).err().map(|status| status.code()),
            Some(Code::PermissionDenied)
        );
    }

    #[test]
    fn what_is_heard_is_bounded() {
        let mut recorded = RecordedBody::default();
        for _ in 0..100 {
            recorded.add(&[7; 4096]);
        }
        assert_eq!(recorded.message().len(), ARGUMENTS_MAX);
        assert_eq!(recorded.bytes, 409_600);
    }
}
