//! API v1 in JSON: one request becomes one of gRPC, goes through the services as it would from a
//! socket, and its answer becomes JSON.

use api::json::V1Method;
use http_body_util::{BodyExt, Full};
use hyper::body::{Buf, Bytes};
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::service::Routes;
use tonic::{Code, Status};

use crate::v1::bounds::Guest;

/// Messages of a stream that are given at most.
const STREAMED_MAX: usize = 2000;
/// A message's prefix: whether it is compressed, and its length (gRPC over HTTP/2,
/// Length-Prefixed-Message).
const PREFIX: usize = 5;

/// Calls the method of `path`, `/SERVICE/METHOD`, with a request in JSON; its answer, or what it
/// was refused with. Of a method that lists by a stream the answer is `{"list": […], "more": …}`,
/// with at most [`STREAMED_MAX`] of them. Streams that do not end are not to be had here.
pub async fn call(
    mut services: Routes,
    path: &str,
    request: &[u8],
    guest: Guest,
) -> Result<Vec<u8>, Status> {
    let unknown = || Status::unimplemented(format!("there is no method {}", path.escape_debug()));
    let method = V1Method::of(path).ok_or_else(unknown)?;
    let (asks, answers) = method.streams();
    if asks || answers && !method.name().starts_with("List") {
        let why = format!("{} is a stream: use gRPC", method.name());
        return Err(Status::unimplemented(why));
    }
    let message = method.request(request).map_err(Status::invalid_argument)?;
    let mut body = vec![0; PREFIX];
    let length =
        u32::try_from(message.len()).map_err(|_| Status::resource_exhausted("too long"))?;
    body[1..].copy_from_slice(&length.to_be_bytes());
    body.extend(message);
    let mut request = http::Request::post(path)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Body::new(Full::new(Bytes::from(body))))
        .map_err(|e| Status::internal(e.to_string()))?;
    request.extensions_mut().insert(guest);
    let Ok(answer) = services.call(request).await;
    let (head, body) = answer.into_parts();
    if let Some(status) = Status::from_header_map(&head.headers)
        && status.code() != Code::Ok
    {
        return Err(status);
    }
    match answers {
        true => list(&method, body).await,
        false => one(&method, body).await,
    }
}

async fn one(method: &V1Method, body: Body) -> Result<Vec<u8>, Status> {
    let collected = body.collect().await?;
    ended(collected.trailers())?;
    let mut bytes = collected.to_bytes();
    let message = next(&mut bytes).ok_or_else(|| Status::internal("there is no answer"))?;
    let mut json = Vec::new();
    let written = method.write_answer(&message, &mut json);
    written.map_err(Status::internal)?;
    Ok(json)
}

async fn list(method: &V1Method, mut body: Body) -> Result<Vec<u8>, Status> {
    let (mut json, mut count) = (br#"{"list":["#.to_vec(), 0);
    let mut bytes = Bytes::new();
    let more = 'more: loop {
        while let Some(message) = next(&mut bytes) {
            if count == STREAMED_MAX {
                // The stream ends with its body.
                break 'more true;
            }
            if count > 0 {
                json.push(b',');
            }
            let written = method.write_answer(&message, &mut json);
            written.map_err(Status::internal)?;
            count += 1;
        }
        let Some(frame) = body.frame().await.transpose()? else {
            break false;
        };
        match frame.into_data() {
            Ok(data) => bytes = [bytes, data].concat().into(),
            Err(frame) => ended(frame.trailers_ref())?,
        }
    };
    json.extend(format!("],\"more\":{more}}}").into_bytes());
    Ok(json)
}

/// How it ended, by its trailers.
fn ended(trailers: Option<&http::HeaderMap>) -> Result<(), Status> {
    match trailers.and_then(Status::from_header_map) {
        Some(status) if status.code() != Code::Ok => Err(status),
        _ => Ok(()),
    }
}

/// Takes a message off the front, if it is there whole. None is compressed: nobody asked for it.
fn next(bytes: &mut Bytes) -> Option<Bytes> {
    let length = bytes.get(1..PREFIX)?.try_into().ok()?;
    let length = u32::from_be_bytes(length) as usize;
    if bytes.len() - PREFIX < length {
        return None;
    }
    bytes.advance(PREFIX);
    Some(bytes.split_to(length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_taken_off_when_they_are_whole() {
        let mut bytes = Bytes::from_static(b"\0\0\0\0\x02ab\0\0\0\0\0\0\0\0\0\x01");
        assert_eq!(next(&mut bytes).unwrap(), &b"ab"[..]);
        assert_eq!(next(&mut bytes).unwrap(), &b""[..]);
        assert_eq!(next(&mut bytes), None);
        assert_eq!(bytes.len(), PREFIX, "the rest is kept for what follows");
        assert_eq!(next(&mut Bytes::from_static(b"\0\0\0")), None);
    }
}
