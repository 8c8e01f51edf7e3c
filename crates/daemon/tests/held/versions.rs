//! From this program to the last release's and back, again and again: under the same loads as
//! upgrades to the same program. `make test-upgrade` builds that one, and says where it is.

use super::upgrade::{keeps_connections, milliseconds};
use super::*;

/// How often to the other program and back.
const TURNS: usize = 3;

/// The last release's program, and this one.
fn programs() -> [String; 2] {
    let last = std::env::var("BUTTERFLY_LAST_RELEASE");
    let last = last.expect("BUTTERFLY_LAST_RELEASE is to name a program: see `make test-upgrade`");
    [last, env!("CARGO_BIN_EXE_butterflyd").to_owned()]
}

/// TAP devices, connections, their states and counters; and what is declared.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the last release's program: make test-upgrade"]
async fn connections_go_on_over_the_last_release_and_back() {
    let Some(mut pair) = Pair::new(false).await else {
        return;
    };
    let seen = pair.seen();
    let _load = pair.load();
    let (keeper, programs) = (pair.keeper(), programs());
    pair.passes("traffic");
    let mut before = connections(&pair).await;
    assert!(before.len() >= 2, "{before:?}");
    for _ in 0..TURNS {
        for program in &programs {
            keeps_connections(&mut pair, &mut before, program).await;
            assert_eq!(pair.daemon().program(), *program);
        }
    }
    assert_eq!(pair.seen(), seen);
    assert_eq!(pair.keeper(), keeper, "the keeper is left alone");
    let log = pair.daemon().log();
    assert!(!log.contains("ERROR"), "{log}");
    // Behind one that is killed it depends on the layout of its memory.
    keeps_connections(&mut pair, &mut before, &programs[0]).await;
    let daemon = pair.daemon.take().unwrap();
    pair.daemon = Some(daemon.killed_and_started_again(&pair.args()));
    let (after, log) = (connections(&pair).await, pair.daemon().log());
    let go_on = before.keys().all(|ports| after.contains_key(ports));
    assert!(go_on || log.contains("its layout is number"), "{log}");
}

/// VMMs' sessions, and each frame once.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the last release's program: make test-upgrade"]
async fn vmms_keep_their_connections_over_the_last_release_and_back() {
    for (kind, features) in [("split", 0), ("packed", RING_PACKED)] {
        let mut guests = Guests::new(common::FEATURES | features).await;
        guests.flow(100, "frames before");
        let (mut gaps, programs) = (Vec::new(), programs());
        for _ in 0..TURNS {
            for program in &programs {
                gaps.push(guests.upgraded(program).0);
                let running = guests.daemon.as_ref().map(Daemon::program);
                assert_eq!(running.as_ref(), Some(program), "{kind}");
            }
        }
        println!("{kind}: without a frame {}", milliseconds(&mut gaps));
        assert_eq!(guests.ended_whole(kind), (0, 0), "{kind}");
    }
}
