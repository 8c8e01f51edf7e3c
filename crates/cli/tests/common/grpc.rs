//! A v1 daemon that writes down what it is asked and answers from a table, or what a test gives it:
//! any method of any service, by the descriptors.

use std::convert::Infallible;
use std::iter;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll};

use api::v1;
use prost::Message;
use prost::bytes::{Buf, BufMut};
use prost_reflect::{DescriptorPool, DynamicMessage};
use tokio::net::UnixListener;
use tokio_stream::Iter;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::{Grpc, NamedService, ServerStreamingService};
use tonic::{Request, Response, Status};

/// The daemon; it ends with the test's process.
pub struct GrpcStub {
    pub endpoint: String,
    requests: Receiver<String>,
}

impl GrpcStub {
    /// Listens on `<dir>/v1.sock`.
    pub fn start(dir: &Path) -> GrpcStub {
        GrpcStub::start_with(dir, |_| None)
    }

    /// The same; what methods answer is told first by this, a stream's messages or the one.
    pub fn start_with(
        dir: &Path,
        own: impl Fn(&str) -> Option<Messages> + Send + Sync + 'static,
    ) -> GrpcStub {
        let path = dir.join("v1.sock");
        let endpoint = format!("unix:{}", path.display());
        let (ready, bound) = channel();
        let (log, requests) = channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async move {
                let listener = UnixListenerStream::new(UnixListener::bind(path).unwrap());
                ready.send(()).unwrap();
                let own: Arc<Own> = Arc::new(own);
                let served = tonic::transport::Server::builder()
                    .add_service(Stub::<BUTTERFLY>::new(&log, &own))
                    .add_service(Stub::<BALANCER>::new(&log, &own))
                    .add_service(Stub::<ROUTER>::new(&log, &own));
                served.serve_with_incoming(listener).await.unwrap();
            });
        });
        bound.recv().expect("the stub listens");
        GrpcStub { endpoint, requests }
    }

    /// The requests since the last call: the method, then the request on a line of text format.
    pub fn requests(&self) -> Vec<String> {
        self.requests.try_iter().collect()
    }
}

/// A NIC in the group `old`; a group `old` without rules; refusals for what is called `refused`; of
/// what is called `unknown0` the word of a daemon that does not know the method.
fn answer(method: &str, request: &str) -> Result<Vec<u8>, Status> {
    if request.contains("refused") {
        return Err(Status::not_found("there is no NIC \"refused\""));
    }
    if request.contains("unknown0") {
        let why = format!("there is no method /butterfly.v1.Balancer/{method}");
        return Err(Status::unimplemented(why));
    }
    let nic = v1::Nic {
        id: "vnic_1".into(),
        mac: "52:54:00:12:34:01".into(),
        vni: 42,
        security_groups: vec!["old".into()],
        timeouts: Some(v1::Timeouts {
            tcp_established_secs: 600,
            udp_secs: 40,
            udp_stream_secs: 120,
        }),
        ..Default::default()
    };
    let path = "/run/butterfly/qemu-vhost-vnic_1".to_owned();
    let status = v1::NicStatus {
        nic: Some(nic),
        path,
        state: v1::PortState::Up.into(),
        ..Default::default()
    };
    let group = v1::Group {
        id: "old".into(),
        ..Default::default()
    };
    let service = v1::ServiceStatus {
        service: Some(v1::Service {
            key: Some(v1::ServiceKey {
                vip: "192.0.2.1".into(),
                protocol: 6,
                port: 80,
                all_ports: false,
            }),
            check: Some(v1::HealthCheck {
                interval_ms: 2000,
                fall: 3,
                kind: Some(v1::health_check::Kind::Http(v1::HttpCheck {
                    path: "/old".into(),
                    ..Default::default()
                })),
                ..Default::default()
            }),
            servers: vec![v1::Server {
                address: "10.0.0.1".into(),
                ..Default::default()
            }],
            ..Default::default()
        }),
        ..Default::default()
    };
    Ok(match method {
        "GetService" => service.encode_to_vec(),
        "ListServices" => v1::ListServicesResponse {
            services: vec![service],
        }
        .encode_to_vec(),
        "GetNic" | "PutNic" | "UpdateNic" => status.encode_to_vec(),
        "ListNics" => v1::ListNicsResponse {
            nics: vec![status],
            unmade: vec![],
        }
        .encode_to_vec(),
        "GetGroup" => group.encode_to_vec(),
        "ListGroups" => v1::ListGroupsResponse {
            groups: vec![group],
        }
        .encode_to_vec(),
        "ImportNic" => v1::ImportNicResponse { flows: 7 }.encode_to_vec(),
        "ExportNic" => v1::ExportNicResponse {
            state: b"connections".to_vec(),
        }
        .encode_to_vec(),
        // An empty message: every field at its default.
        _ => Vec::new(),
    })
}

/// Encoded messages, one after the other.
pub type Messages = Box<dyn Iterator<Item = Vec<u8>> + Send>;

/// What a test answers to a method.
type Own = dyn Fn(&str) -> Option<Messages> + Send + Sync;

/// The services, by their place.
const SERVICES: [&str; 3] = [
    "butterfly.v1.Butterfly",
    "butterfly.v1.Balancer",
    "butterfly.v1.Router",
];
const BUTTERFLY: usize = 0;
const BALANCER: usize = 1;
const ROUTER: usize = 2;

/// The stub under the name of one of them.
#[derive(Clone)]
struct Stub<const SERVICE: usize> {
    log: Sender<String>,
    own: Arc<Own>,
}

impl<const SERVICE: usize> Stub<SERVICE> {
    fn new(log: &Sender<String>, own: &Arc<Own>) -> Self {
        Stub {
            log: log.clone(),
            own: own.clone(),
        }
    }
}

impl<const SERVICE: usize> NamedService for Stub<SERVICE> {
    const NAME: &'static str = SERVICES[SERVICE];
}

impl<const SERVICE: usize> Service<http::Request<Body>> for Stub<SERVICE> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let method = request
            .uri()
            .path()
            .rsplit('/')
            .next()
            .unwrap_or_default()
            .to_owned();
        let method = Method {
            name: method,
            log: self.log.clone(),
            own: self.own.clone(),
        };
        Box::pin(async move { Ok(Grpc::new(Raw).server_streaming(method, request).await) })
    }
}

struct Method {
    name: String,
    log: Sender<String>,
    own: Arc<Own>,
}

/// A method with one answer is a stream of one message on the wire.
impl ServerStreamingService<Vec<u8>> for Method {
    type Response = Vec<u8>;
    type ResponseStream = Iter<Box<dyn Iterator<Item = Result<Vec<u8>, Status>> + Send>>;
    type Future = BoxFuture<Response<Self::ResponseStream>, Status>;

    fn call(&mut self, request: Request<Vec<u8>>) -> Self::Future {
        let pool = DescriptorPool::decode(v1::DESCRIPTORS).unwrap();
        let mut methods = pool
            .services()
            .flat_map(|service| service.methods().collect::<Vec<_>>());
        let input = methods
            .find(|method| method.name() == self.name)
            .unwrap()
            .input();
        let message = DynamicMessage::decode(input, request.get_ref().as_slice()).unwrap();
        let text = message.to_text_format();
        let _ = self
            .log
            .send(format!("{} {text}", self.name).trim_end().to_owned());
        let answer: Result<Messages, Status> = match (self.own)(&self.name) {
            Some(messages) => Ok(messages),
            None => answer(&self.name, &text).map(|one| Box::new(iter::once(one)) as Messages),
        };
        let all: Result<Box<dyn Iterator<Item = _> + Send>, Status> =
            answer.map(|messages| Box::new(messages.map(Ok)) as _);
        Box::pin(async move { all.map(|all| Response::new(tokio_stream::iter(all))) })
    }
}

/// Messages as bytes.
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        let mut bytes = vec![0; buffer.remaining()];
        buffer.copy_to_slice(&mut bytes);
        Ok(Some(bytes))
    }
}
