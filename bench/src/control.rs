//! How long the control plane takes: one request at 1,000 NICs, and a rule in force for all of
//! them; behind it what `changes.rs` measures at 16,000 without a daemon, and `devices.rs` with
//! 2,000 TAP devices.
//!
//! A daemon with 1,000 vhost-user NICs in ten networks and one security group with all of them in
//! it. Requests are timed one at a time, from the client's side, over gRPC on a unix socket and
//! over ZeroMQ. An answer to a change comes when the workers use it, so its time is the time until
//! it is in force everywhere.

use std::path::Path;
use std::time::{Duration, Instant};

use api::v0::{self, message_v0};
use api::v1;
use api::v1::butterfly_client::ButterflyClient;
use prost::Message;
use tonic::transport::Channel;
use zeromq::{ReqSocket, Socket, SocketRecv, SocketSend};

use crate::changes;
use crate::devices;
use crate::durable;
use crate::peers::{self, PeerError};
use crate::report::{Ratios, Samples};

const NICS: usize = 1000;
pub const GROUP: &str = "everybody";

/// Runs it and prints the table.
pub fn run(rounds: usize) -> Result<Ratios, PeerError> {
    let runtime =
        tokio::runtime::Runtime::new().map_err(|error| PeerError(format!("tokio: {error}")))?;
    let dir =
        tempfile::tempdir().map_err(|error| PeerError(format!("temporary directory: {error}")))?;
    let daemon = peers::butterfly::daemon(dir.path(), None)?;
    let ratios = runtime.block_on(measure(dir.path(), rounds));
    drop(daemon);
    let mut ratios = ratios?;
    changes::add_to(&mut ratios)?;
    ratios.extend(runtime.block_on(durable::measure(rounds))?);
    runtime.block_on(devices::add_to(&mut ratios))?;
    Ok(ratios)
}

async fn measure(dir: &Path, rounds: usize) -> Result<Ratios, PeerError> {
    let fail = |error: tonic::Status| PeerError(error.to_string());
    let address = format!("unix:{}", dir.join("api.sock").display());
    let mut grpc = ButterflyClient::connect(address)
        .await
        .map_err(|error| PeerError(error.to_string()))?;
    let start = Instant::now();
    for number in 0..NICS {
        grpc.put_nic(v1::PutNicRequest {
            nic: Some(nic(number)),
            create_only: false,
        })
        .await
        .map_err(fail)?;
    }
    println!(
        "{NICS} NICs added in {:.0} ms",
        start.elapsed().as_secs_f64() * 1e3
    );

    let mut zmq = ReqSocket::new();
    let endpoint = format!("ipc://{}", dir.join("v0.sock").display());
    zmq.connect(&endpoint)
        .await
        .map_err(|error| PeerError(format!("{endpoint}: {error}")))?;

    let names = [
        "v1 get NIC",
        "v1 rule in force",
        "v0 NIC details",
        "v0 rule in force",
    ];
    let mut samples: [Samples; 4] = Default::default();
    for round in 0..rounds {
        samples[0].push(get_nic(&mut grpc, round % NICS).await.map_err(fail)?);
        samples[1].push(add_rule(&mut grpc, round).await.map_err(fail)?);
        samples[2].push(v0_request(&mut zmq, details(round % NICS)).await?);
        samples[3].push(v0_request(&mut zmq, v0_rule(round)).await?);
    }
    println!(
        "{:<20} {:>8} {:>8} {:>8}   microseconds, {rounds} requests each",
        "", "p50", "p99", "max"
    );
    let mut ratios = Ratios::default();
    for (name, samples) in names.iter().zip(&samples) {
        let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| samples.quantile(share) * 1e6);
        println!("{name:<20} {p50:>8.0} {p99:>8.0} {max:>8.0}");
        ratios.push(
            format!("{}_p50_us", name.replace(' ', "_").to_lowercase()),
            p50,
        );
    }
    Ok(ratios)
}

pub fn nic(number: usize) -> v1::Nic {
    v1::Nic {
        id: format!("nic{number}"),
        mac: format!("52:54:00:01:{:02x}:{:02x}", number / 256, number % 256),
        vni: (number % 10) as u32,
        addresses: vec![format!("10.1.{}.{}", number / 250, number % 250 + 1)],
        security_groups: vec![GROUP.to_owned()],
        ..Default::default()
    }
}

async fn get_nic(grpc: &mut ButterflyClient<Channel>, number: usize) -> Result<f64, tonic::Status> {
    let start = Instant::now();
    grpc.get_nic(v1::GetNicRequest {
        id: format!("nic{number}"),
    })
    .await?;
    Ok(start.elapsed().as_secs_f64())
}

pub async fn add_rule(
    grpc: &mut ButterflyClient<Channel>,
    round: usize,
) -> Result<f64, tonic::Status> {
    let port = 1 + round as u32 % 60_000;
    let rule = v1::Rule {
        direction: v1::Direction::Ingress.into(),
        protocol: Some(6),
        r#match: Some(v1::rule::Match::Ports(v1::PortRange {
            start: port,
            end: port,
        })),
        peer: Some(v1::rule::Peer::Group(GROUP.to_owned())),
    };
    let start = Instant::now();
    grpc.add_rule(v1::RuleRequest {
        group: GROUP.to_owned(),
        rule: Some(rule),
        brief: true,
    })
    .await?;
    Ok(start.elapsed().as_secs_f64())
}

fn details(number: usize) -> message_v0::Request {
    message_v0::Request {
        nic_details: Some(format!("nic{number}")),
        ..Default::default()
    }
}

fn v0_rule(round: usize) -> message_v0::Request {
    let port = Some(1 + round as u32 % 60_000);
    let rule = message_v0::Rule {
        direction: message_v0::rule::Direction::Inbound.into(),
        protocol: 17,
        port_start: port,
        port_end: port,
        cidr: None,
        security_group: Some(GROUP.to_owned()),
    };
    let add = message_v0::SgRuleAddReq {
        sg_id: GROUP.to_owned(),
        rule,
    };
    message_v0::Request {
        sg_rule_add: Some(add),
        ..Default::default()
    }
}

async fn v0_request(zmq: &mut ReqSocket, request: message_v0::Request) -> Result<f64, PeerError> {
    let lost = |error: zeromq::ZmqError| PeerError(format!("v0: {error}"));
    let message = v0::Message {
        revision: 0,
        message_0: Some(v0::MessageV0 {
            request: Some(request),
            ..Default::default()
        }),
        ..Default::default()
    };
    let bytes = v0::Messages {
        messages: vec![message],
        encrypted: None,
    }
    .encode_to_vec();
    let start = Instant::now();
    zmq.send(bytes.into()).await.map_err(lost)?;
    let answer = tokio::time::timeout(Duration::from_secs(5), zmq.recv()).await;
    let taken = start.elapsed().as_secs_f64();
    let bytes = answer
        .map_err(|_| PeerError("v0: no answer in 5 s".into()))?
        .map_err(lost)?;
    let answer = v0::Messages::decode(bytes.into_vec().concat().as_slice());
    let answer = answer.map_err(|error| PeerError(format!("v0: {error}")))?;
    let response = answer
        .messages
        .first()
        .and_then(|message| message.message_0.as_ref()?.response.as_ref());
    match response.map(|response| &response.status) {
        Some(status) if status.status => Ok(taken),
        other => Err(PeerError(format!("v0: refused: {other:?}"))),
    }
}
