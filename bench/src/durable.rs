//! What it costs that a change is durable before it is answered, and how long a start with a whole
//! host in the store takes.
//!
//! The store is on the file system of the temporary folder: TMPDIR chooses the disk. Sockets are in
//! memory, as those below /run: ext4 takes its time where as many were deleted a moment ago.

use std::path::Path;
use std::time::{Duration, Instant};

use api::v1;
use api::v1::butterfly_client::ButterflyClient;
use tonic::Request;
use tonic::transport::Channel;

use crate::control::{GROUP, add_rule, nic};
use crate::peers::{PeerError, butterfly};
use crate::report::{Ratios, Samples};

/// NICs that are added in each way.
const NICS: usize = 1000;
/// Clients that ask at the same time.
const CLIENTS: usize = 16;
/// A whole host.
const HOST_NICS: usize = 16_000;
const HOST_RULES: usize = 10_000;
const RULES_PER_GROUP: usize = 100;
/// For a daemon to answer.
const PATIENCE: Duration = Duration::from_secs(60);

pub type Client = ButterflyClient<Channel>;

/// Runs it and prints it.
pub async fn measure(rounds: usize) -> Result<Ratios, PeerError> {
    let failed = |e: std::io::Error| PeerError(format!("temporary directory: {e}"));
    let on_disk = || tempfile::tempdir().map_err(failed);
    let in_memory = || tempfile::tempdir_in("/dev/shm").map_err(failed);
    let mut ratios = Ratios::default();
    let mut say = |name: &str, what: &str, value: f64| {
        println!("{value:>10.0}  {what}");
        ratios.push(name, value);
    };
    println!("with a store:");
    let (dir, store) = (in_memory()?, on_disk()?);
    let daemon = butterfly::daemon_with_store(dir.path(), store.path())?;
    let mut client = connect(dir.path()).await?;
    let start = Instant::now();
    for number in 0..NICS {
        put(&mut client, number, false).await?;
    }
    let took = millis(start);
    say(
        "store_nics_one_by_one_ms",
        "ms for 1,000 NICs, one by one",
        took,
    );
    let start = Instant::now();
    for number in NICS..2 * NICS {
        put(&mut client, number, number + 1 < 2 * NICS).await?;
    }
    let took = millis(start);
    say("store_nics_chain_ms", "ms for 1,000 NICs joined by +", took);
    let start = Instant::now();
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let mut client = connect(dir.path()).await?;
        clients.push(tokio::spawn(async move {
            for number in (2 * NICS + number..3 * NICS).step_by(CLIENTS) {
                put(&mut client, number, false).await?;
            }
            Ok::<(), PeerError>(())
        }));
    }
    for client in clients {
        client.await.map_err(|e| PeerError(e.to_string()))??;
    }
    let took = millis(start);
    say(
        "store_nics_16_clients_ms",
        "ms for 1,000 NICs by 16 clients",
        took,
    );
    let mut samples = Samples::default();
    for round in 0..rounds {
        samples.push(add_rule(&mut client, round).await.map_err(refused)?);
    }
    let p50 = samples.quantile(0.5) * 1e6;
    say(
        "store_v1_rule_in_force_p50_us",
        "us until a rule is in force and durable, p50",
        p50,
    );
    let start = Instant::now();
    let request = v1::ApplyRequest {
        config: Some(host()),
        dry_run: false,
    };
    client.apply(request).await.map_err(refused)?;
    let took = millis(start);
    say(
        "store_apply_host_ms",
        "ms to apply 16,000 NICs with 10,000 rules",
        took,
    );
    drop(daemon);

    let (dir, empty) = (in_memory()?, on_disk()?);
    let start = Instant::now();
    let daemon = butterfly::daemon_with_store(dir.path(), empty.path())?;
    answered(dir.path()).await?;
    let nothing = millis(start);
    say(
        "store_start_empty_ms",
        "ms from the start to the first answer, nothing stored",
        nothing,
    );
    drop(daemon);
    let dir = in_memory()?;
    let start = Instant::now();
    let daemon = butterfly::daemon_with_store(dir.path(), store.path())?;
    let mut client = answered(dir.path()).await?;
    let whole = millis(start);
    say(
        "store_start_host_ms",
        "ms from the start to the first answer, 16,000 NICs stored",
        whole,
    );
    let there = client.get_status(v1::GetStatusRequest::default()).await;
    let there = there.map_err(refused)?.into_inner();
    if (there.nics, there.rules) != (HOST_NICS as u32, HOST_RULES as u32) {
        let said = format!("{} NICs and {} rules are there", there.nics, there.rules);
        return Err(PeerError(said));
    }
    drop(daemon);
    Ok(ratios)
}

fn host() -> v1::Config {
    let rule = |number: usize| v1::Rule {
        direction: v1::Direction::Ingress.into(),
        protocol: Some(6),
        r#match: Some(v1::rule::Match::Ports(v1::PortRange {
            start: 1 + number as u32,
            end: 1 + number as u32,
        })),
        peer: Some(v1::rule::Peer::Cidr("10.0.0.0/8".into())),
    };
    let groups = HOST_RULES / RULES_PER_GROUP;
    let group = |number: usize| v1::Group {
        id: format!("{GROUP}{number}"),
        rules: (0..RULES_PER_GROUP).map(rule).collect(),
        ..Default::default()
    };
    let nic = |number: usize| v1::Nic {
        security_groups: vec![format!("{GROUP}{}", number % groups)],
        ..nic(number)
    };
    v1::Config {
        nics: (0..HOST_NICS).map(nic).collect(),
        groups: (0..groups).map(group).collect(),
        ..Default::default()
    }
}

async fn put(client: &mut Client, number: usize, more: bool) -> Result<(), PeerError> {
    let nic = Some(nic(number));
    let mut request = Request::new(v1::PutNicRequest {
        nic,
        create_only: false,
    });
    if more {
        let soon = tonic::metadata::MetadataValue::from_static("soon");
        request.metadata_mut().insert("butterfly-durable", soon);
    }
    client.put_nic(request).await.map(drop).map_err(refused)
}

pub async fn connect(dir: &Path) -> Result<Client, PeerError> {
    let address = format!("unix:{}", dir.join("api.sock").display());
    let client = ButterflyClient::connect(address).await;
    client.map_err(|error| PeerError(error.to_string()))
}

/// A client that has had an answer.
async fn answered(dir: &Path) -> Result<Client, PeerError> {
    let mut client = connect(dir).await?;
    let asked = client.get_status(v1::GetStatusRequest::default());
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(answer) => answer.map_err(refused)?,
        Err(_) => return Err(PeerError("no answer in 60 s".into())),
    };
    Ok(client)
}

pub fn refused(status: tonic::Status) -> PeerError {
    PeerError(status.to_string())
}

pub fn millis(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}
