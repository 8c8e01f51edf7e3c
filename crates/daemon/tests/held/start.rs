//! What guests send while the daemon starts.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::*;

/// More than are made in a moment. They are stored behind the NICs.
const NETWORKS: u32 = 20_000;
const ALL_THERE: &str = "objects are there again from the store";

/// Sends to both ports, over and over, until it is told to end.
fn flood(socket: UdpSocket, ends: &AtomicBool) {
    while !ends.load(Ordering::Relaxed) {
        for port in [ALLOWED, FORBIDDEN] {
            // There may be no room, while nobody takes anything.
            let _ = socket.send_to(b"flood", (RIGHT, port));
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Waits for a datagram.
fn arrives(socket: &UdpSocket, what: &str) {
    let until = Instant::now() + 3 * PATIENCE;
    while socket.recv(&mut [0; 64]).is_err() {
        assert!(Instant::now() < until, "nothing arrives: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn host(line: &str) {
    let words: Vec<&str> = line.split(' ').collect();
    let done = Command::new(words[0]).args(&words[1..]).status().unwrap();
    assert!(done.success(), "{line}");
}

/// A NIC whose device cannot be made, and a great many networks.
async fn declare_more(pair: &Pair) -> v1::Nic {
    let mut client = pair.daemon().v1().await;
    let config = within(client.get_config(v1::GetConfigRequest {})).await;
    let mut config = config.unwrap().into_inner();
    let third = v1::Nic {
        id: "third".into(),
        mac: mac(3),
        vni: 7,
        kind: v1::NicKind::Tap.into(),
        path: pair.device(3),
        ..Default::default()
    };
    config.nics.push(third.clone());
    config.groups[0].rules.push(v1::Rule {
        direction: v1::Direction::Ingress.into(),
        protocol: Some(17),
        r#match: Some(v1::rule::Match::Ports(v1::PortRange {
            start: ALLOWED.into(),
            end: ALLOWED.into(),
        })),
        ..Default::default()
    });
    config.networks = (1000..1000 + NETWORKS)
        .map(|vni| v1::Network {
            vni,
            learning: Some(true),
            ..Default::default()
        })
        .collect();
    let request = v1::ApplyRequest {
        config: Some(config),
        dry_run: false,
    };
    within(client.apply(request)).await.unwrap();
    third
}

/// Where something that is stored cannot be made, the rest is made piece by piece, and NICs before
/// what is stored behind them. What they send meanwhile waits: nothing passes before all that can
/// be made is there, and nothing at any time that the rules refuse.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_passes_before_all_that_is_stored_is_there() {
    let Some(mut pair) = Pair::new(false).await else {
        return;
    };
    let third = declare_more(&pair).await.path;
    // Nobody is to be asked for it, while there is nobody to answer.
    let known = format!(
        "ip neigh replace {RIGHT} lladdr {} dev eth0 nud permanent",
        mac(2)
    );
    pair.left.ok(&known).unwrap();
    let bind = |namespace: &Namespace, address: &str, port: u16| {
        let socket = namespace.inside(|| UdpSocket::bind((address, port)));
        let socket = socket.unwrap().unwrap();
        socket.set_nonblocking(true).unwrap();
        socket
    };
    let from = bind(&pair.left, LEFT, 0);
    let [allowed, forbidden] = [ALLOWED, FORBIDDEN].map(|port| bind(&pair.right, RIGHT, port));
    let ends = Arc::new(AtomicBool::new(false));
    let flooding = {
        let ends = ends.clone();
        std::thread::spawn(move || flood(from, &ends))
    };
    arrives(&allowed, "before");

    let (dir, v0) = pair.daemon.take().unwrap().killed();
    while allowed.recv(&mut [0; 64]).is_ok() {}
    host(&format!("ip link del {third}"));
    host(&format!("ip link add {third} type bridge"));
    let log = dir.path().join("log");
    std::fs::remove_file(&log).unwrap();
    let first = std::thread::spawn(move || {
        arrives(&allowed, "from a daemon that was started again");
        // What lets it pass was said before, if at all.
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        arrives(&allowed, "behind the first");
        said
    });
    pair.daemon = Some(Daemon::start_in(dir, v0, &pair.args()));
    let said = first.join();
    ends.store(true, Ordering::Relaxed);
    flooding.join().unwrap();
    host(&format!("ip link del {third}"));
    let said = said.unwrap();
    assert!(
        said.contains("this stays stored, and is not made"),
        "{said}"
    );
    assert!(said.contains(ALL_THERE), "frames passed before: {said}");
    let refused = forbidden.recv(&mut [0; 64]);
    assert!(refused.is_err(), "what is forbidden came");
}
