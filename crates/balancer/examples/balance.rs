//! The library alone: one service, balanced until Ctrl-C, its counters every second. No daemon, and
//! no compiler either: the BPF program is inside. Needs root, or CAP_BPF, CAP_NET_ADMIN and
//! CAP_PERFMON.
//!
//!     cargo run -p butterfly-balancer --example balance -- \
//!         eth0 192.168.101.1:80 10.1.2.10 10.1.2.11
//!
//! `tests/balancer/library.rs` runs it among real kernels.

use std::error::Error;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use butterfly_balancer::{
    Balancer, Follower, Options, Protocol, Server, Service, ServiceKey, Services,
};

/// Balances until Ctrl-C.
#[tokio::main(flavor = "current_thread")]
pub async fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [interface, vip, servers @ ..] = words.as_slice() else {
        return Err("usage: balance INTERFACE VIP:PORT SERVER...".into());
    };

    // What is wanted. Values that exist are valid: a multicast VIP, say, is refused here.
    let vip: SocketAddr = vip.parse()?;
    let key = ServiceKey::new(vip.ip(), Protocol::Tcp, NonZeroU16::new(vip.port()))?;
    let mut service = Service::new(key);
    for server in servers {
        service.set(Server::new(server.parse()?)?);
    }
    let services: Services = [service].into_iter().collect();

    // The program in the kernel, and who tells it how servers are reached. Every change of services
    // is one `apply`.
    let balancer = Mutex::new(Balancer::new(&Options::default())?);
    let follower = Follower::start().await?;
    follower.apply(&balancer, services).await?;
    let lock = || balancer.lock().unwrap_or_else(PoisonError::into_inner);
    let mode = follower.attach(&mut lock(), interface, None)?;
    println!("balancing {key} on {interface} ({mode})");

    let print = async {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            for ((_, server), counters) in lock().counters()?.servers {
                println!(
                    "{server}: {} flows, {} packets",
                    counters.flows, counters.packets
                );
            }
        }
    };
    // Dropped at the end, the balancer gives its interface back to the kernel.
    tokio::select! {
        ended = follower.run(&balancer) => Ok(ended?),
        failed = print => failed,
        stop = tokio::signal::ctrl_c() => Ok(stop?),
    }
}
