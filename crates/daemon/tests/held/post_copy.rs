//! A guest that runs here while its memory is still elsewhere (post-copy migration). The VMM is
//! this test, and its guest stands still until all is there; `tests/migration.rs` has QEMU's.

use std::time::{Duration, Instant};

use api::v1;
use io::post_copy::helper;
use io::vhost::features::{INDIRECT_DESC, PROTOCOL_FEATURES};
use io::vhost::request::{GET_FEATURES, POSTCOPY_LISTEN, SET_VRING_ENABLE};
use rustix::process::{Pid, Signal, kill_process};
use testkit::elsewhere::Elsewhere;
use testkit::ring_driver::{Guest, GuestOptions, Shape};
use testkit::vhost_frontend::Frontend;
use testkit::wait_for;
use wire::build;
use wire::offload::Offload;

use crate::common::{Daemon, FEATURES, PATIENCE, within};
use crate::{ALLOWED, Guests, IN_ORDER, RING_PACKED, mac, nic};

/// What the guest had in its rings when it was moved.
const SENT: usize = 20;

/// Frames to it while its memory comes.
const RECEIVED: usize = 400;

/// The guest that is moved here: NIC `c`, beside those of [`Guests`].
struct Moved {
    vmm: Frontend,
    guest: Guest,
    elsewhere: Elsewhere,
}

/// A frame between the last octets of two guests' addresses.
fn frame(from: u32, to: u32, number: usize) -> Vec<u8> {
    let ip = |last: u32| std::net::Ipv4Addr::new(10, 7, 0, last as u8);
    let mut payload = vec![number as u8; 1400];
    payload[..8].copy_from_slice(&(number as u64).to_be_bytes());
    build::frame(mac(from).parse().unwrap(), mac(to).parse().unwrap())
        .ip(ip(from), ip(to))
        .udp(40_000, ALLOWED)
        .payload(&payload)
        .build()
}

impl Moved {
    /// Its rings run as soon as what they consist of has come. It has sent some frames to `b`.
    async fn new(daemon: &Daemon, features: u64, shape: &Shape) -> Moved {
        let mut guest = Guest::new(GuestOptions {
            features,
            receive_shape: match features & INDIRECT_DESC {
                0 => Shape::cut(&[2048]),
                _ => Shape::cut(&[1024, 1024]).indirect(0),
            },
            ..GuestOptions::default()
        });
        for number in 0..SENT {
            assert!(guest.send(&frame(3, 2, number), Offload::default(), shape));
        }
        guest.transmitq.publish();
        let mut vmm = vmm_of(daemon, "c", 3, features).await;
        let watcher = vmm.advise().unwrap();
        vmm.call(POSTCOPY_LISTEN, &[], &[]).unwrap();
        let mut elsewhere = Elsewhere::of(&guest, watcher).unwrap();
        elsewhere.base = vmm.set_arriving_memory(&guest).unwrap();
        vmm.watched().unwrap();
        for (index, queue) in [&guest.receiveq, &guest.transmitq].into_iter().enumerate() {
            vmm.start_ring(index as u32, queue, 0).unwrap();
            vmm.ring(SET_VRING_ENABLE, index as u32, 1).unwrap();
        }
        assert_eq!(elsewhere.there().unwrap(), 0, "pages were made");
        Moved {
            vmm,
            guest,
            elsewhere,
        }
    }

    /// The rest of its memory comes, and it goes on; gives the numbers of the frames that it got.
    fn is_here(&mut self) -> Vec<u64> {
        self.elsewhere.put_all().unwrap();
        self.vmm.end_post_copy().unwrap();
        assert_eq!(
            self.elsewhere.there().unwrap(),
            self.elsewhere.pages(),
            "all is there, and no more"
        );
        self.taken()
    }

    fn taken(&mut self) -> Vec<u64> {
        let frames = self.guest.receive();
        let number = |frame: &[u8]| {
            let number = u64::from_be_bytes(frame[42..50].try_into().unwrap());
            assert_eq!(frame, super::post_copy::frame(2, 3, number as usize));
            number
        };
        frames.iter().map(|frame| number(&frame.frame)).collect()
    }
}

/// What `b` got of the moved guest, in addition to `got`.
fn came_to(to: &mut Guest, got: &mut Vec<u64>) {
    for received in to.receive() {
        let number = u64::from_be_bytes(received.frame[42..50].try_into().unwrap());
        assert_eq!(received.frame, frame(3, 2, number as usize));
        got.push(number);
    }
}

/// Who may watch the memory of a process may write it: that of the process that waits for pages is
/// the guest's, and what it may do is nothing. So also where the daemon is not root, whose own user
/// it then has.
#[tokio::test(flavor = "multi_thread")]
async fn who_waits_has_nothing_but_the_guest() {
    let mut daemons = vec![Daemon::start(&[])];
    if rustix::process::geteuid().is_root() {
        daemons.push(Daemon::start_as_nobody(&[]));
    }
    for daemon in daemons {
        let mut moved = Moved::new(&daemon, FEATURES, &Shape::whole()).await;
        let helper = helpers(&daemon)[0];
        let read = |name: &str| std::fs::read_to_string(format!("/proc/{helper}/{name}")).unwrap();
        let status = read("status");
        for none in ["CapPrm", "CapEff", "CapInh", "CapAmb"] {
            let line = format!("{none}:\t0000000000000000\n");
            assert!(status.contains(&line), "{status}");
        }
        assert!(status.contains("NoNewPrivs:\t1\n"), "{status}");
        // What it may call: `io::post_copy::calls`. All threads have that.
        for task in std::fs::read_dir(format!("/proc/{helper}/task")).unwrap() {
            let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
            assert!(status.contains("Seccomp:\t2\n"), "{status}");
        }
        if rustix::process::geteuid().is_root() {
            let nobody = sys::confine::NOBODY;
            let line = format!("Uid:\t{nobody}\t{nobody}\t{nobody}\t{nobody}\n");
            assert!(status.contains(&line), "{status}");
            // Others of its user cannot look into it.
            let owner = std::fs::metadata(format!("/proc/{helper}/mem")).unwrap();
            assert_eq!(std::os::unix::fs::MetadataExt::uid(&owner), 0);
        }
        // Its end of the line, what it waits with, and standard output and error.
        let files = std::fs::read_dir(format!("/proc/{helper}/fd")).unwrap();
        let files = files.map(|file| std::fs::read_link(file.unwrap().path()).unwrap());
        let files: Vec<_> = files.collect();
        assert_eq!(files.len(), 4, "{files:?}");
        let maps = read("maps");
        let shared = maps.lines().filter(|line| line.contains(" rw-s ")).count();
        assert_eq!(shared, 1, "{maps}");
        // And it does what it is there for.
        let until = Instant::now() + PATIENCE;
        while moved.elsewhere.put_so_far() < 4 {
            assert!(Instant::now() < until, "log:\n{}", daemon.log());
            moved.elsewhere.bring(Duration::from_millis(1)).unwrap();
        }
        moved.is_here();
        no_helper_is_left(&daemon);
    }
}

/// Processes of the daemon's that wait for pages.
fn helpers(daemon: &Daemon) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let parent = format!("PPid:\t{}\n", daemon.pid());
    let is_one = |entry: std::fs::DirEntry| {
        let read = |name| std::fs::read_to_string(entry.path().join(name)).unwrap_or_default();
        let is_one = read("cmdline").contains(helper::ARGUMENT) && read("status").contains(&parent);
        entry.file_name().to_str()?.parse().ok().filter(|_| is_one)
    };
    processes.filter_map(is_one).collect()
}

/// They are ended, and not waited for.
fn no_helper_is_left(daemon: &Daemon) {
    let until = Instant::now() + PATIENCE;
    while !helpers(daemon).is_empty() {
        assert!(Instant::now() < until, "{:?} are left", helpers(daemon));
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn numbers(count: usize) -> Vec<u64> {
    (0..count as u64).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_is_served_by_what_has_come_of_it() {
    let kinds = [
        ("split", 0, Shape::whole()),
        ("in pieces", 0, Shape::cut(&[100, 700, 642])),
        (
            "indirect",
            INDIRECT_DESC,
            Shape::cut(&[100, 1342]).indirect(0),
        ),
        ("packed", RING_PACKED, Shape::whole()),
        (
            "packed, indirect",
            RING_PACKED | IN_ORDER | INDIRECT_DESC,
            Shape::cut(&[100, 1342]).indirect(0),
        ),
    ];
    for (kind, more, shape) in kinds {
        let features = FEATURES & !INDIRECT_DESC | more;
        let mut guests = Guests::new(FEATURES).await;
        let daemon = guests.daemon.as_ref().unwrap();
        let mut moved = Moved::new(daemon, features, &shape).await;
        assert_eq!(helpers(daemon).len(), 1, "{kind}");

        let (mut got, until) = (Vec::new(), Instant::now() + PATIENCE);
        while got.len() < SENT {
            assert!(
                Instant::now() < until,
                "{kind}: {got:?} came, of {} pages\n{}",
                moved.elsewhere.put_so_far(),
                guests.daemon.as_ref().unwrap().log()
            );
            moved.elsewhere.bring(Duration::from_millis(1)).unwrap();
            came_to(&mut guests.to, &mut got);
        }
        assert_eq!(got, numbers(SENT), "{kind}: in their order, and whole");

        let mut sent = 0;
        let until = Instant::now() + PATIENCE;
        while sent < RECEIVED && Instant::now() < until {
            if guests
                .to
                .send(&frame(2, 3, sent), Offload::default(), &Shape::whole())
            {
                sent += 1;
            }
            guests.to.transmitq.publish();
            guests.to.reclaim();
            while moved.elsewhere.bring(Duration::from_micros(200)).unwrap() {}
        }
        let (put, there) = (moved.elsewhere.put_so_far(), moved.elsewhere.there());
        assert_eq!(there.unwrap(), put, "{kind}: pages were made");
        assert!(
            put < moved.elsewhere.pages() / 2,
            "{kind}: {put} pages came"
        );

        // Its ring had 256 chains: what found none, and what waited for a page, is lost.
        let taken = moved.is_here();
        assert!(taken.is_sorted(), "{kind}: {taken:?}");
        assert!((100..=256).contains(&taken.len()), "{kind}: {taken:?}");
        let daemon = guests.daemon.as_ref().unwrap();
        no_helper_is_left(daemon);

        // Like any other from now on.
        moved.guest.reclaim();
        got.clear();
        for number in 0..SENT {
            let (ours, theirs) = (frame(3, 2, number), frame(2, 3, number));
            assert!(moved.guest.send(&ours, Offload::default(), &shape));
            assert!(guests.to.send(&theirs, Offload::default(), &Shape::whole()));
        }
        moved.guest.transmitq.publish();
        guests.to.transmitq.publish();
        let (mut taken, until) = (Vec::new(), Instant::now() + PATIENCE);
        while got.len() < SENT || taken.len() < SENT {
            assert!(Instant::now() < until, "{kind}: {got:?}, {taken:?}");
            came_to(&mut guests.to, &mut got);
            taken.extend(moved.taken());
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!((got, taken), (numbers(SENT), numbers(SENT)), "{kind}");
    }
}

/// A VMM that never brings a page has its own guest wait, and nobody else.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_waits_for_anothers_memory() {
    let mut guests = Guests::new(FEATURES).await;
    guests.flow(100, "frames before");
    let moved = Moved::new(guests.daemon.as_ref().unwrap(), FEATURES, &Shape::whole()).await;
    let mut moved = moved;
    guests.flow(1000, "frames beside one whose rings are elsewhere");
    // The rings come, and nothing that they name.
    while moved.elsewhere.bring(Duration::from_millis(50)).unwrap() {
        let rings = moved.elsewhere.put_so_far() < 8;
        if !rings {
            break;
        }
    }
    guests.gap = Duration::ZERO;
    guests.flow(1000, "frames beside one whose buffers are elsewhere");
    assert!(guests.gap < Duration::from_secs(1), "{:?}", guests.gap);
    let daemon = guests.daemon.as_mut().unwrap();
    let refused = super::upgrade::upgrade(daemon, "").await.unwrap_err();
    let why = "the session of NIC 'c' cannot be handed over now";
    assert!(refused.message().contains(why), "{refused}");
    let delete = v1::DeleteNicRequest { id: "c".into() };
    let begun = Instant::now();
    within(daemon.v1().await.delete_nic(delete)).await.unwrap();
    assert!(
        begun.elapsed() < Duration::from_secs(1),
        "{:?}",
        begun.elapsed()
    );
    assert!(moved.vmm.wait_closed().unwrap());
    no_helper_is_left(daemon);
    let put = moved.elsewhere.put_so_far();
    assert_eq!(moved.elsewhere.there().unwrap(), put, "pages were made");
    guests.flow(100, "frames behind it");
}

/// Makes a NIC, and connects a VMM to it that takes all that it is offered.
async fn vmm_of(daemon: &Daemon, id: &str, last: u32, features: u64) -> Frontend {
    let put = v1::PutNicRequest {
        nic: Some(nic(id, last)),
        create_only: true,
    };
    within(daemon.v1().await.put_nic(put)).await.unwrap();
    connected(daemon, id, features)
}

fn connected(daemon: &Daemon, id: &str, features: u64) -> Frontend {
    let mut vmm = Frontend::connect(&daemon.path(&format!("qemu-vhost-{id}"))).unwrap();
    vmm.negotiate(features | PROTOCOL_FEATURES).unwrap();
    vmm.take_everything().unwrap();
    vmm
}

/// A VMM has power over who waits for its pages, and may have it stand still. It waits for that
/// itself, and nobody else does.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_waits_for_anothers_helper() {
    let mut guests = Guests::new(FEATURES).await;
    let daemon = guests.daemon.as_ref().unwrap();
    let mut still = Vec::new();
    for (id, last) in [("c", 3), ("d", 4), ("e", 5)] {
        let guest = Guest::new(GuestOptions {
            features: FEATURES,
            ..GuestOptions::default()
        });
        let mut vmm = vmm_of(daemon, id, last, FEATURES).await;
        let watcher = vmm.advise().unwrap();
        vmm.call(POSTCOPY_LISTEN, &[], &[]).unwrap();
        still.push((vmm, guest, watcher));
    }
    let helpers = helpers(daemon);
    assert_eq!(helpers.len(), 3);
    let signal = |signal| {
        for helper in &helpers {
            // One may have been ended by the daemon.
            let _ = kill_process(Pid::from_raw(*helper as i32).unwrap(), signal);
        }
    };
    signal(Signal::STOP);
    wait_for("the helpers to stand still", PATIENCE, || {
        let stands = |helper: &u32| {
            let status = std::fs::read_to_string(format!("/proc/{helper}/status")).unwrap();
            status.contains("State:\tT")
        };
        Ok(helpers.iter().all(stands).then_some(()))
    })
    .unwrap();
    for (vmm, guest, _) in &mut still {
        vmm.say_arriving_memory(guest).unwrap();
    }
    guests.flow(10, "frames beside those whose helpers stand still");
    guests.gap = Duration::ZERO;
    guests.flow(100, "more of them");
    assert!(guests.gap < Duration::from_secs(1), "{:?}", guests.gap);
    // The thread that serves all VMMs answers another, and ends one of those that wait.
    guests.vmms[0].get(GET_FEATURES).unwrap();
    let daemon = guests.daemon.as_ref().unwrap();
    let delete = v1::DeleteNicRequest { id: "e".into() };
    within(daemon.v1().await.delete_nic(delete)).await.unwrap();
    let (mut ended, _, _) = still.pop().unwrap();
    assert!(ended.wait_closed().unwrap());
    // None of the others was given up meanwhile: they are answered when their helpers go on.
    signal(Signal::CONT);
    for (vmm, guest, _) in &mut still {
        vmm.arriving_memory(guest).unwrap();
        vmm.watched().unwrap();
        vmm.end_post_copy().unwrap();
    }
    no_helper_is_left(daemon);
}

/// Each is a process that is started: a VMM that has one after the other started is refused.
#[tokio::test(flavor = "multi_thread")]
async fn helpers_are_not_started_in_a_loop() {
    let daemon = Daemon::start(&[]);
    let begun = Instant::now();
    let mut vmm = vmm_of(&daemon, "c", 3, FEATURES).await;
    let mut started = 0;
    while started < 100 && vmm.advise().is_ok() {
        started += 1;
        vmm.end_post_copy().unwrap();
    }
    assert!(vmm.wait_closed().unwrap());
    // Another connection is no way around.
    started += u64::from(connected(&daemon, "c", FEATURES).advise().is_ok());
    let most = 8 + begun.elapsed().as_secs() / 10;
    assert!((8..=most).contains(&started), "{started} were started");
    wait_for("the log to say so", PATIENCE, || {
        let why = "processes that wait for pages are started too often";
        Ok(daemon.log().contains(why).then_some(()))
    })
    .unwrap();
    // Nobody else has less for it.
    vmm_of(&daemon, "d", 4, FEATURES).await.advise().unwrap();
}

/// A daemon that is killed meanwhile: the next one asks for nothing, and touches nothing that has
/// not come.
#[tokio::test(flavor = "multi_thread")]
async fn a_kill_makes_no_page() {
    for features in [FEATURES, FEATURES | RING_PACKED] {
        let mut guests = Guests::new(features).await;
        let daemon = guests.daemon.as_ref().unwrap();
        let mut moved = Moved::new(daemon, features, &Shape::whole()).await;
        // The rings, and some of the buffers.
        let (mut got, until) = (Vec::new(), Instant::now() + PATIENCE);
        while got.len() < SENT / 2 {
            assert!(Instant::now() < until, "{got:?} came");
            moved.elsewhere.bring(Duration::from_millis(1)).unwrap();
            came_to(&mut guests.to, &mut got);
        }
        guests.killed();
        let put = moved.elsewhere.put_so_far();
        assert_eq!(moved.elsewhere.there().unwrap(), put, "pages were made");
        let until = Instant::now() + PATIENCE;
        let mut page = 0;
        while !got.contains(&(SENT as u64 - 1)) {
            let log = || guests.daemon.as_ref().unwrap().log();
            assert!(Instant::now() < until, "{got:?} came\n{}", log());
            if page < moved.elsewhere.pages() {
                moved.elsewhere.put(page).unwrap();
                page += 1;
            }
            came_to(&mut guests.to, &mut got);
            std::thread::sleep(Duration::from_micros(500));
        }
        got.sort_unstable();
        got.dedup();
        assert_eq!(got, numbers(SENT));
        // It is the same connection.
        moved.vmm.get(GET_FEATURES).unwrap();
        assert_eq!(moved.is_here(), [0; 0]);
        let theirs = frame(2, 3, 7);
        assert!(guests.to.send(&theirs, Offload::default(), &Shape::whole()));
        guests.to.transmitq.publish();
        let until = Instant::now() + PATIENCE;
        while moved.taken() != [7] {
            assert!(Instant::now() < until, "nothing comes to it");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
