//! API v1's connection: gRPC over a unix socket, or over TCP with mutual TLS. [`super::v1`] has the
//! operations.

use std::error::Error as _;
use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::v1::balancer_client::BalancerClient;
use api::v1::butterfly_client::ButterflyClient;
use api::v1::router_client::RouterClient;
use prost::Message;
use tonic::metadata::MetadataValue;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint as Address, Identity};
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::json;
use crate::options::Global;
use crate::output::say;

/// The largest answer taken: a configuration of a whole host fits many times.
const ANSWER_MAX_BYTES: usize = 1 << 30;

/// The connection, and what every request says on it.
pub type Pipe = InterceptedService<Channel, More>;

/// Says of a request that another one follows: it need not be durable before its answer.
#[derive(Clone, Default)]
pub struct More(Arc<AtomicBool>);

impl Interceptor for More {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if self.0.load(Ordering::Relaxed) {
            let soon = MetadataValue::from_static("soon");
            request.metadata_mut().insert("butterfly-durable", soon);
        }
        Ok(request)
    }
}

/// A gRPC connection.
pub struct V1 {
    grpc: ButterflyClient<Pipe>,
    balancer: BalancerClient<Pipe>,
    router: RouterClient<Pipe>,
    health: HealthClient<Pipe>,
    endpoint: Endpoint,
    more: More,
    timeout: Duration,
    /// For the answer to a change.
    change_timeout: Duration,
    verbose: bool,
}

impl V1 {
    /// Connects within the timeout.
    pub async fn connect(endpoint: Endpoint, options: &Global) -> Result<V1, Error> {
        let address = match &endpoint {
            Endpoint::Tls(authority) => tls_address(authority, options)?,
            other => address(&other.to_string())?,
        };
        let timeout = options.timeout();
        let unreachable = |why: String| {
            Error::Unreachable(format!("cannot reach butterflyd at {endpoint}: {why}"))
        };
        let channel = match tokio::time::timeout(timeout, address.connect()).await {
            Ok(Ok(channel)) => channel,
            Ok(Err(error)) => return Err(unreachable(cause(&error))),
            Err(_) => {
                return Err(unreachable(format!(
                    "no connection within {} ms",
                    timeout.as_millis()
                )));
            }
        };
        let more = More::default();
        let channel = InterceptedService::new(channel, more.clone());
        let balancer =
            BalancerClient::new(channel.clone()).max_decoding_message_size(ANSWER_MAX_BYTES);
        let router = RouterClient::new(channel.clone()).max_decoding_message_size(ANSWER_MAX_BYTES);
        let health = HealthClient::new(channel.clone());
        let grpc = ButterflyClient::new(channel).max_decoding_message_size(ANSWER_MAX_BYTES);
        Ok(V1 {
            grpc,
            balancer,
            router,
            health,
            endpoint,
            more,
            timeout,
            change_timeout: options.change_timeout(),
            verbose: options.verbose,
        })
    }

    /// Whether another command of the chain follows: the last one waits until all that the chain
    /// has changed is durable.
    pub fn goes_on(&self, more: bool) {
        self.more.0.store(more, Ordering::Relaxed);
    }

    /// One call: within the timeout, printed when asked, its failure told in a sentence.
    pub async fn call<Q: Message + Debug + Clone, A>(
        &mut self,
        name: &str,
        request: Q,
        method: impl AsyncFnOnce(&mut ButterflyClient<Pipe>, Q) -> Result<Response<A>, Status>,
    ) -> Result<A, Error> {
        let mut grpc = self.grpc.clone();
        self.timed(name, &request.clone(), method(&mut grpc, request))
            .await
    }

    /// Whether the daemon says that it works (grpc.health.v1). Daemons without that service work
    /// when they answer.
    pub async fn is_serving(&mut self) -> Result<bool, Error> {
        let request = HealthCheckRequest::default();
        let answer = tokio::time::timeout(self.timeout, self.health.check(request)).await;
        match answer {
            Ok(Ok(answer)) => Ok(answer.into_inner().status() == ServingStatus::Serving),
            Ok(Err(status)) if status.code() == Code::Unimplemented => Ok(true),
            Ok(Err(status)) => Err(Error::Unreachable(format!(
                "butterflyd at {} does not say how it is: {}",
                self.endpoint,
                status.message()
            ))),
            Err(_) => Err(Error::Unreachable(format!(
                "butterflyd at {} has not answered within {} ms",
                self.endpoint,
                self.timeout.as_millis()
            ))),
        }
    }

    /// [`V1::call`] and [`V1::ask`] of the service `Balancer`.
    pub async fn call_balancer<Q: Message + Debug + Clone, A>(
        &mut self,
        name: &str,
        request: Q,
        method: impl AsyncFnOnce(&mut BalancerClient<Pipe>, Q) -> Result<Response<A>, Status>,
    ) -> Result<A, Error> {
        let mut balancer = self.balancer.clone();
        self.timed(name, &request.clone(), method(&mut balancer, request))
            .await
    }

    /// See [`V1::call_balancer`].
    pub async fn ask_balancer<Q: Message + Debug + Clone, A: Message + Debug>(
        &mut self,
        name: &str,
        request: Q,
        method: impl AsyncFnOnce(&mut BalancerClient<Pipe>, Q) -> Result<Response<A>, Status>,
    ) -> Result<A, Error> {
        let answer = self.call_balancer(name, request, method).await?;
        self.told(name, &answer);
        Ok(answer)
    }

    /// [`V1::call`] and [`V1::ask`] of the service `Router`.
    pub async fn call_router<Q: Message + Debug + Clone, A>(
        &mut self,
        name: &str,
        request: Q,
        method: impl AsyncFnOnce(&mut RouterClient<Pipe>, Q) -> Result<Response<A>, Status>,
    ) -> Result<A, Error> {
        let mut router = self.router.clone();
        self.timed(name, &request.clone(), method(&mut router, request))
            .await
    }

    /// See [`V1::call_router`].
    pub async fn ask_router<Q: Message + Debug + Clone, A: Message + Debug>(
        &mut self,
        name: &str,
        request: Q,
        method: impl AsyncFnOnce(&mut RouterClient<Pipe>, Q) -> Result<Response<A>, Status>,
    ) -> Result<A, Error> {
        let answer = self.call_router(name, request, method).await?;
        self.told(name, &answer);
        Ok(answer)
    }

    async fn timed<Q: Message + Debug, A>(
        &self,
        name: &str,
        request: &Q,
        call: impl Future<Output = Result<Response<A>, Status>>,
    ) -> Result<A, Error> {
        if self.verbose {
            say(&format!("> {name} {}\n", json::line(request)));
        }
        let timeout = match changes(name) {
            true => self.change_timeout,
            false => self.timeout,
        };
        let answer = tokio::time::timeout(timeout, call).await;
        let late = || {
            let ms = timeout.as_millis();
            Error::Unreachable(format!(
                "butterflyd at {} gave no answer to {name} within {ms} ms",
                self.endpoint
            ))
        };
        let answer = answer
            .map_err(|_| late())?
            .map_err(|status| self.failure(status))?;
        Ok(answer.into_inner())
    }

    fn told<A: Message + Debug>(&self, name: &str, answer: &A) {
        if self.verbose {
            say(&format!("< {name} {}\n", json::line(answer)));
        }
    }

    /// [`V1::call`] for a single answer, which is printed too.
    pub async fn ask<Q: Message + Debug + Clone, A: Message + Debug>(
        &mut self,
        name: &str,
        request: Q,
        method: impl AsyncFnOnce(&mut ButterflyClient<Pipe>, Q) -> Result<Response<A>, Status>,
    ) -> Result<A, Error> {
        let answer = self.call(name, request, method).await?;
        self.told(name, &answer);
        Ok(answer)
    }

    /// The next message of a stream, however long it takes; none: the daemon ended it.
    pub async fn next<A>(&self, stream: &mut Streaming<A>) -> Result<Option<A>, Error> {
        stream
            .message()
            .await
            .map_err(|status| self.failure(status))
    }

    /// The stream's next message, which has to come within the timeout.
    pub async fn next_in_time<A>(&self, stream: &mut Streaming<A>) -> Result<Option<A>, Error> {
        let late = |_| {
            let ms = self.timeout.as_millis();
            Error::Unreachable(format!(
                "butterflyd at {} sent nothing more for {ms} ms",
                self.endpoint
            ))
        };
        tokio::time::timeout(self.timeout, self.next(stream))
            .await
            .map_err(late)?
    }

    /// How long all parts of an answer may take together, and what it means when they take longer.
    pub fn patience(&self) -> (Duration, Error) {
        let ms = self.timeout.as_millis();
        let late = format!(
            "butterflyd at {} has not answered whole within {ms} ms",
            self.endpoint
        );
        (self.timeout, Error::Unreachable(late))
    }

    /// What a status means to a script: the daemon's own refusal, or no daemon.
    fn failure(&self, status: Status) -> Error {
        let gone = matches!(
            status.code(),
            Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled
        );
        // A connection that breaks during a call surfaces as one of these codes, with the reason as
        // its source.
        if gone || status.source().is_some() {
            let why = match status.source() {
                Some(source) => cause(source),
                None => status.message().to_owned(),
            };
            return Error::Unreachable(format!("lost butterflyd at {}: {why}", self.endpoint));
        }
        match status.message() {
            "" => Error::Refused(format!(
                "butterflyd refused: {}",
                status.code().description()
            )),
            message => Error::Refused(message.into()),
        }
    }
}

/// Whether the method makes something else of what is there, which takes as long as that is large.
fn changes(method: &str) -> bool {
    const VERBS: [&str; 10] = [
        "Add",
        "Apply",
        "Delete",
        "Import",
        "Put",
        "Reattach",
        "Rollback",
        "SetBindings",
        "Update",
        "Upgrade",
    ];
    VERBS.iter().any(|verb| method.starts_with(verb))
}

fn address(uri: &str) -> Result<Address, Error> {
    Address::from_shared(uri.to_owned())
        .map_err(|error| Error::Usage(format!("endpoint {uri:?}: {}", cause(&error))))
}

/// Both ends show a certificate: three files, all of them needed.
fn tls_address(authority: &str, options: &Global) -> Result<Address, Error> {
    let read = |name: &str, path: &Option<PathBuf>| match path {
        None => Err(Error::Usage(format!(
            "https://{authority} asks for certificates of both ends: {name} is missing"
        ))),
        Some(path) => std::fs::read(path).map_err(|error| {
            Error::Usage(format!("{name}: cannot read {}: {error}", path.display()))
        }),
    };
    let certificate = read("--tls-cert", &options.tls_cert)?;
    let key = read("--tls-key", &options.tls_key)?;
    let authority_certificate = read("--tls-ca", &options.tls_ca)?;
    let tls = ClientTlsConfig::new()
        .identity(Identity::from_pem(certificate, key))
        .ca_certificate(Certificate::from_pem(authority_certificate));
    address(&format!("https://{authority}"))?
        .tls_config(tls)
        .map_err(|error| {
            Error::Usage(format!(
                "--tls-cert, --tls-key or --tls-ca is not usable: {}",
                cause(&error)
            ))
        })
}

/// The innermost reason: the outer ones only say "transport error".
fn cause(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

#[cfg(test)]
mod tests {
    use prost_reflect::DescriptorPool;

    use super::*;

    #[test]
    fn all_that_changes_the_daemon_is_waited_for() {
        let short = [
            "Capture",
            "Diff",
            "Export",
            "Get",
            "List",
            "Reload",
            "SetLogLevel",
            "Shutdown",
            "Trace",
            "Watch",
        ];
        let pool = DescriptorPool::decode(api::v1::DESCRIPTORS).unwrap();
        for service in pool.services() {
            for method in service.methods() {
                let name = method.name();
                let is_short = short.iter().any(|verb| name.starts_with(verb));
                assert_ne!(changes(name), is_short, "{name}");
            }
        }
    }
}
