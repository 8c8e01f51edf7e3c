//! What is broken is healed by declaring again what is declared; and interfaces go side by side,
//! while others are served.

mod common;

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use api::v1::butterfly_client::ButterflyClient;
use api::v1::{self, ApplyRequest, ListNicsRequest, PortState};
use common::{Daemon, boot, within};
use rustix::fs::FallocateFlags;
use rustix::process::Signal;
use testkit::process;
use testkit::ring_driver::Shape;
use testkit::ring_driver::queue::Queue;
use tonic::transport::Channel;
use wire::offload::Offload;

/// So many TAP devices took 45 s when they went one after the other; they are to go within 3 s,
/// and to end with the daemon within 2 s, while other requests take less than 50 ms: `make
/// soak-devices` holds them to that, on a quiet machine.
const MANY: u32 = 2000;
/// Where others have the machine all of it takes longer: compared is with what one device takes
/// alone here, just before, which waits for the kernel and hardly for a core. One after the other
/// would be as many times that and more, and is to be clearly missed. (With a core for itself, in a
/// debug build, all go in 1 s, and one in 23 ms; with fifteen others at two cores in 7 s.)
const BETTER_BY: u32 = 3;
/// Nineteen of twenty other requests are answered within this: four times what is asked for.
const OTHERS_WITHIN: Duration = Duration::from_millis(200);
/// Behind this something hangs.
const HANGS: Duration = Duration::from_secs(60);

fn nic(id: String, number: u32, kind: v1::NicKind) -> v1::Nic {
    let [_, _, high, low] = number.to_be_bytes();
    v1::Nic {
        id,
        mac: format!("52:54:00:00:{high:02x}:{low:02x}"),
        // Each alone in its network: all of them here, with this host's stack at each, would talk
        // to each other without an end.
        vni: 42 + number,
        kind: kind.into(),
        ..Default::default()
    }
}

async fn apply(
    client: &mut ButterflyClient<Channel>,
    nics: Vec<v1::Nic>,
    dry_run: bool,
) -> v1::ApplyResponse {
    let config = v1::Config {
        nics,
        ..Default::default()
    };
    let request = ApplyRequest {
        config: Some(config),
        dry_run,
    };
    client.apply(request).await.unwrap().into_inner()
}

/// State and detail of the first NIC.
async fn state(client: &mut ButterflyClient<Channel>) -> (PortState, String) {
    let nics = within(client.list_nics(ListNicsRequest {})).await.unwrap();
    let nic = nics.into_inner().nics.remove(0);
    (nic.state(), nic.detail)
}

async fn until_broken(client: &mut ButterflyClient<Channel>) -> String {
    let deadline = Instant::now() + common::PATIENCE;
    loop {
        match state(client).await {
            (PortState::Broken, why) => return why,
            other => assert!(Instant::now() < deadline, "still {other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn tun_is_there() -> bool {
    let there = std::path::Path::new("/dev/net/tun").exists();
    if !there {
        eprintln!("skipped: there is no /dev/net/tun");
    }
    there
}

/// Interfaces of this namespace whose name begins so.
fn devices(prefix: &str) -> usize {
    let names = std::fs::read_dir("/sys/class/net").unwrap();
    let names = names.map(|entry| entry.unwrap().file_name());
    names
        .filter(|name| name.to_string_lossy().starts_with(prefix))
        .count()
}

#[tokio::test(flavor = "multi_thread")]
async fn many_interfaces_go_side_by_side_while_others_are_served() {
    if !tun_is_there() {
        return;
    }
    let mut daemon = Daemon::start(&[]);
    let mut client = daemon.v1().await;
    let prefix = format!("m{}x", std::process::id() % 10_000);
    let all = || {
        let one = |n: u32| nic(format!("{prefix}{n}"), n, v1::NicKind::Tap);
        (0..MANY).map(one).collect::<Vec<_>>()
    };
    let mut alone = Vec::new();
    for _ in 0..5 {
        apply(&mut client, all().into_iter().take(1).collect(), false).await;
        let begun = Instant::now();
        apply(&mut client, vec![], false).await;
        alone.push(begun.elapsed());
    }
    alone.sort();
    let many_within = (alone[2] * MANY / BETTER_BY).min(HANGS);
    apply(&mut client, all(), false).await;
    assert_eq!(devices(&prefix), MANY as usize);

    let mut other = daemon.v1().await;
    let over = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let is_over = over.clone();
    let asking = tokio::spawn(async move {
        let mut took = Vec::new();
        while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
            let begun = Instant::now();
            other.list_nics(ListNicsRequest {}).await.unwrap();
            took.push(begun.elapsed());
            // Asking without a pause takes the core that the removal needs.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        took.sort();
        took
    });
    let begun = Instant::now();
    apply(&mut client, vec![], false).await;
    let took = begun.elapsed();
    assert_eq!(devices(&prefix), 0, "the client has waited for all");
    over.store(true, std::sync::atomic::Ordering::Relaxed);
    let others = asking.await.unwrap();
    let (most, longest) = (others[others.len() * 19 / 20], others[others.len() - 1]);
    eprintln!(
        "{MANY} devices went in {took:?}, one alone in {:?}; of {} other requests all but a \
         twentieth took at most {most:?}, the longest {longest:?}",
        alone[2],
        others.len()
    );
    assert!(
        took < many_within,
        "they took {took:?}, not {many_within:?}"
    );
    assert!(most < OTHERS_WITHIN, "others took {most:?}");
    // It was as long as the removal.
    assert!(
        longest < took / 2 + OTHERS_WITHIN,
        "one took {longest:?} of {took:?}"
    );

    // A name that has just gone is free, and a daemon that ends takes all with it.
    apply(&mut client, all(), false).await;
    let begun = Instant::now();
    daemon.signal(Signal::TERM);
    daemon.wait_within(HANGS);
    let took = begun.elapsed();
    eprintln!("it ended with them in {took:?}");
    assert!(took < many_within, "it took {took:?}, not {many_within:?}");
    assert_eq!(devices(&prefix), 0);
}

#[tokio::test]
async fn a_removed_tap_device_is_made_again_by_the_same_document() {
    if !tun_is_there() {
        return;
    }
    let daemon = Daemon::start(&[]);
    let mut client = daemon.v1().await;
    let name = format!("h{}", std::process::id());
    let document = || vec![nic(name.clone(), 1, v1::NicKind::Tap)];
    apply(&mut client, document(), false).await;
    assert!(
        apply(&mut client, document(), false)
            .await
            .healed
            .is_empty()
    );

    process::run(&["ip", "link", "del", "dev", &name]).unwrap();
    let why = until_broken(&mut client).await;
    assert!(why.contains("was removed"), "{why}");
    let planned = apply(&mut client, document(), true).await;
    assert_eq!(planned.changes, []);
    assert_eq!(
        planned.healed,
        [v1::Healed {
            nic: name.clone(),
            was: why.clone(),
            state: PortState::Broken.into(),
            detail: why.clone(),
        }]
    );
    assert_eq!(devices(&name), 0, "a dry run makes nothing");
    // One that would be deleted is not healed.
    assert!(apply(&mut client, vec![], true).await.healed.is_empty());

    // Somebody else has the name: that is said, and changes nothing.
    process::run(&["ip", "tuntap", "add", &name, "mode", "tap"]).unwrap();
    let healed = apply(&mut client, document(), false).await.healed;
    assert_eq!(healed[0].state(), PortState::Broken);
    let taken = "an interface of that name exists";
    assert!(healed[0].detail.contains(taken), "{healed:?}");
    assert_eq!(state(&mut client).await.0, PortState::Broken);
    process::run(&["ip", "link", "del", "dev", &name]).unwrap();

    let applied = apply(&mut client, document(), false).await;
    assert_eq!(applied.changes, []);
    assert_eq!(applied.healed[0].state(), PortState::Up, "{applied:?}");
    assert_eq!(state(&mut client).await, (PortState::Up, String::new()));
    assert_eq!(devices(&name), 1);
    assert!(
        apply(&mut client, document(), false)
            .await
            .healed
            .is_empty()
    );
}

#[tokio::test]
async fn rings_that_were_stopped_go_on_when_the_guest_has_mended_them() {
    let daemon = Daemon::start(&[]);
    let mut client = daemon.v1().await;
    let document = || vec![nic("liar".into(), 1, v1::NicKind::VhostUser)];
    apply(&mut client, document(), false).await;
    let (_vmm, mut guest) = boot(&daemon, "liar");
    // More chains than the ring has entries.
    guest.transmitq.write_available_index(30_000);
    guest.transmitq.notify();
    let why = until_broken(&mut client).await;
    // Its guest goes on lying.
    let healed = apply(&mut client, document(), false).await.healed;
    assert_eq!(healed.len(), 1);
    assert_eq!(
        (healed[0].was.as_str(), healed[0].state()),
        (&*why, PortState::Broken)
    );
    assert_eq!(until_broken(&mut client).await, why);
    guest.transmitq.write_available_index(0);
    let healed = apply(&mut client, document(), false).await.healed;
    assert_eq!(
        (healed[0].was.as_str(), healed[0].state()),
        (&*why, PortState::Up)
    );
    assert_eq!(state(&mut client).await, (PortState::Up, String::new()));
    // What it sends is taken.
    assert!(guest.send(&[0xff; 60], Offload::default(), &Shape::whole()));
    guest.transmitq.publish();
    guest.transmitq.notify();
    let deadline = Instant::now() + common::PATIENCE;
    while guest.reclaim() == 0 {
        assert!(Instant::now() < deadline, "nothing is taken from its ring");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// An emulator that shares memory which its guest has not used: the first who touches a page is
/// charged for it.
#[tokio::test]
async fn pages_that_a_guest_has_not_are_made_for_the_daemon_unless_it_refuses() {
    for options in [&["--guest-memory-populated"][..], &[]] {
        let daemon = Daemon::start(options);
        let mut client = daemon.v1().await;
        let one = |id: &str, number| v1::Nic {
            vni: 1,
            bypass_filtering: true,
            ..nic(id.into(), number, v1::NicKind::VhostUser)
        };
        let nics = vec![one("empty", 1), one("full", 2)];
        apply(&mut client, nics, false).await;
        let (_vmm, empty) = boot(&daemon, "empty");
        let (_other, mut full) = boot(&daemon, "full");
        // Its rings are there, its buffers are not.
        let rings = [&empty.receiveq, &empty.transmitq];
        let rings = rings.map(|ring| ring.desc_at + Queue::bytes(ring.size));
        let buffers = rings.into_iter().max().unwrap().next_multiple_of(4096) as u64;
        let file = File::from(empty.regions().remove(0).fd);
        let more = file.metadata().unwrap().len() - buffers;
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, hole, buffers, more).unwrap();
        let blocks = || file.metadata().unwrap().blocks();
        let before = blocks();

        let mut frame = [0xff; 60];
        frame[6..14].copy_from_slice(b"\x52\x54\0\0\0\x02\x88\xb5");
        assert!(full.send(&frame, Offload::default(), &Shape::whole()));
        full.transmitq.publish();
        full.transmitq.notify();
        if options.is_empty() {
            let deadline = Instant::now() + common::PATIENCE;
            while blocks() == before {
                assert!(Instant::now() < deadline, "no frame comes");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            assert_eq!(state(&mut client).await, (PortState::Up, String::new()));
            continue;
        }
        let why = until_broken(&mut client).await;
        let said = "has no page where one was used (--guest-memory-populated)";
        assert!(why.contains(said), "{why}");
        assert_eq!(blocks(), before, "pages were made");
        let nics = client.list_nics(ListNicsRequest {}).await.unwrap();
        let states = nics
            .into_inner()
            .nics
            .iter()
            .map(v1::NicStatus::state)
            .collect::<Vec<_>>();
        assert_eq!(states, [PortState::Broken, PortState::Up]);
    }
}
