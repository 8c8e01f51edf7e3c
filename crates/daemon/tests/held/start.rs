//! What guests send while the daemon starts.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::*;

/// NICs that cannot be made, by whose ids they come behind the two that can.
const OTHERS: u32 = 400;
/// Addresses of each of those, so that each attempt to make it takes a while.
const ADDRESSES: u32 = 100;
/// The first frames come within a few milliseconds, where they may: what takes so long in between
/// is seen.
const LONG_ENOUGH: Duration = Duration::from_millis(50);
const NOT_MADE: &str = "this stays stored, and is not made";
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

/// When the first line of a log was written that has these words: its time of the day (RFC 3339).
fn written(log: &str, words: &str) -> Duration {
    let line = log.lines().find(|line| line.contains(words));
    let line = line.unwrap_or_else(|| panic!("no line says '{words}': {log}"));
    let (_, time) = line.split_once('T').expect("a date before the time");
    let (time, _) = time.split_once('Z').expect("a time of UTC");
    let fields: Vec<f64> = time
        .split(':')
        .map(|field| field.parse().unwrap())
        .collect();
    Duration::from_secs_f64(fields[0] * 3600.0 + fields[1] * 60.0 + fields[2])
}

/// How long the two NICs were there, and not all that can be made. What is stored is made in its
/// order: what comes first of that which cannot be made is said when all before it is there.
fn amid(log: &str) -> Duration {
    const DAY: Duration = Duration::from_secs(24 * 3600);
    let (from, to) = (written(log, NOT_MADE), written(log, ALL_THERE));
    match to.checked_sub(from) {
        Some(between) => between,
        // At midnight.
        None => to + DAY - from,
    }
}

/// A rule for what may pass, and a great many NICs with sockets in this folder.
async fn declare_more(pair: &Pair, folder: &Path) {
    let mut client = pair.daemon().v1().await;
    let config = within(client.get_config(v1::GetConfigRequest {})).await;
    let mut config = config.unwrap().into_inner();
    config.groups[0].rules.push(rule_of_what_passes());
    let first = u32::from(Ipv4Addr::new(10, 20, 0, 0));
    config.nics.extend((0..OTHERS).map(|number| {
        let addresses = (0..ADDRESSES).map(|one| first + number * ADDRESSES + one);
        // In their order as text, too, and behind 'l' and 'r'.
        let id = format!("s{number:03}");
        v1::Nic {
            mac: format!("52:54:00:08:{:02x}:{:02x}", number >> 8, number & 0xff),
            vni: 8,
            addresses: addresses.map(|ip| Ipv4Addr::from(ip).to_string()).collect(),
            path: folder.join(&id).to_str().unwrap().to_owned(),
            id,
            ..Default::default()
        }
    }));
    let request = v1::ApplyRequest {
        config: Some(config),
        dry_run: false,
    };
    within(client.apply(request)).await.unwrap();
}

/// Where something that is stored cannot be made, the rest is made piece by piece: here two NICs
/// are there long before the last attempt at the others behind them. What they send meanwhile
/// waits: nothing passes before all that can be made is there, and nothing at any time that the
/// rules refuse.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_passes_before_all_that_is_stored_is_there() {
    let Some(mut pair) = Pair::new(false).await else {
        return;
    };
    let folder = pair.store.path().join("sockets");
    std::fs::create_dir(&folder).unwrap();
    declare_more(&pair, &folder).await;
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
    // Now there is no place for their sockets.
    std::fs::remove_dir_all(&folder).unwrap();
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
    let said = said.unwrap();
    assert!(said.contains(ALL_THERE), "frames passed before: {said}");
    let amid = amid(&said);
    println!("{} ms between the NICs and all", amid.as_millis());
    assert!(amid >= LONG_ENOUGH, "only {amid:?}: that proves nothing");
    let refused = forbidden.recv(&mut [0; 64]);
    assert!(refused.is_err(), "what is forbidden came");
}
