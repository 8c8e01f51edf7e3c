//! Another program takes the daemon's place under load, or fails to in every way there is.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;

use io::vhost::request::{SET_VRING_CALL, SET_VRING_KICK};
use rustix::event::EventfdFlags;
use testkit::other_program::{self, UNTIL_PORTS, UNTIL_STORE};
use testkit::vhost_frontend::message;

use super::*;

/// The next daemon of the same program; the time in which no frame moved, by its own word.
pub async fn upgrade(daemon: &mut Daemon, program: &str) -> Result<Duration, tonic::Status> {
    let mut client = daemon.v1().await;
    let request = v1::UpgradeRequest {
        program: program.into(),
    };
    let done = within(client.upgrade(request)).await?.into_inner();
    if program.is_empty() {
        assert_eq!(done.version, api::VERSION);
    }
    assert_ne!(done.pid, daemon.pid());
    daemon.upgraded(done.pid);
    // systemd has another process to look after.
    daemon.wait_for(&format!("MAINPID={}", done.pid));
    Ok(Duration::from_micros(done.pause_us))
}

pub fn milliseconds(times: &mut [Duration]) -> String {
    times.sort();
    let at = |part: usize| times[(times.len() - 1) * part / 100].as_secs_f64() * 1e3;
    format!("{:.1} ms (median), {:.1} ms at the most", at(50), at(100))
}

impl Pair {
    /// Sends from left to right for as long as this is kept: a client, and its server.
    pub fn load(&self) -> [Process; 2] {
        let server = self.server();
        let load = format!("iperf3 -t 120 -c {RIGHT}");
        [self.left.start("load", &load).unwrap(), server]
    }

    /// Waits until some more has passed.
    pub fn passes(&self, what: &str) {
        let bytes = || self.right.counter("rx_bytes");
        let start = bytes().unwrap();
        wait_for(what, PATIENCE, || {
            Ok((bytes()? > start + 10_000_000).then_some(()))
        })
        .unwrap();
    }
}

/// What is known of connections, by their ports: state, frames and age.
type Known = BTreeMap<(u32, u32), (String, u64, u64)>;

/// Another program takes over under traffic, and all connections go on, with their counters; the
/// time in which no frame moved, by its own word.
pub async fn keeps_connections(pair: &mut Pair, before: &mut Known, program: &str) -> Duration {
    pair.passes("traffic before");
    let daemon = pair.daemon.as_mut().unwrap();
    let pause = upgrade(daemon, program).await;
    let pause = pause.unwrap_or_else(|why| panic!("{why}: {}", pair.daemon().log()));
    pair.passes(&format!("traffic after it: {}", pair.daemon().log()));
    let after = connections(pair).await;
    for (ports, (state, frames, age)) in &*before {
        let now = after.get(ports);
        let now = now.unwrap_or_else(|| panic!("{ports:?} is not in {after:?}"));
        assert_eq!(state, &now.0);
        assert!(now.1 >= *frames && now.2 >= *age, "{now:?}");
    }
    *before = after;
    pause
}

/// Ten times in a row under iperf3 and ping: devices, connections, their states and counters go on,
/// and so does what a client has declared in between.
#[tokio::test(flavor = "multi_thread")]
async fn connections_go_on_when_another_program_takes_over() {
    let Some(mut pair) = Pair::new(false).await else {
        return;
    };
    let seen = pair.seen();
    let _load = pair.load();
    pair.passes("traffic");
    let keeper = pair.keeper();
    let mut before = connections(&pair).await;
    assert!(before.len() >= 2, "{before:?}");
    let (mut gaps, mut pauses) = (Vec::new(), Vec::new());
    for turn in 0..10 {
        let ping = format!("ping -D -i 0.002 -w 2 {RIGHT}");
        let mut ping = pair.left.start("ping", &ping).unwrap();
        pauses.push(keeps_connections(&mut pair, &mut before, "").await);
        ping.wait(Duration::from_secs(30)).unwrap();
        gaps.push(Duration::from_secs_f64(longest_gap(&ping.log())));
        // What is declared is this one's to change, and the next one's to know.
        let mut client = pair.daemon().v1().await;
        let group = v1::Group {
            id: format!("of-turn-{turn}"),
            ..Default::default()
        };
        let put = v1::PutGroupRequest { group: Some(group) };
        within(client.put_group(put)).await.unwrap();
    }
    println!(
        "upgraded ten times: without an answer {}; no frame moved for {}",
        milliseconds(&mut gaps),
        milliseconds(&mut pauses)
    );
    assert_eq!(pair.seen(), seen);
    assert_eq!(pair.keeper(), keeper, "the keeper is left alone");
    // The last one is a daemon as any other: it is killed, and what was declared is there.
    let daemon = pair.daemon.take().unwrap();
    let args = pair.args();
    let log = daemon.log();
    assert!(!log.contains("ERROR"), "{log}");
    pair.daemon = Some(daemon.killed_and_started_again(&args));
    assert_eq!(pair.seen(), seen);
    let mut client = pair.daemon().v1().await;
    let groups = within(client.list_groups(v1::ListGroupsRequest {})).await;
    assert_eq!(groups.unwrap().into_inner().groups.len(), 11);
    let after = connections(&pair).await;
    assert!(before.keys().all(|ports| after.contains_key(ports)));
    // What a group allows no more does not go on.
    allow_nothing(&mut client).await;
    drop(client);
    upgrade(pair.daemon.as_mut().unwrap(), "").await.unwrap();
    nothing_arrives(&pair);
}

/// Something has taken the name of a stored NIC's device while no daemon ran. It is not made, and
/// is no reason to refuse another program, which takes it as it is; it is made when it can be.
#[tokio::test(flavor = "multi_thread")]
async fn what_could_not_be_made_goes_along_as_it_is() {
    let Some(mut pair) = Pair::new(false).await else {
        return;
    };
    let host = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let done = Command::new(words[0]).args(&words[1..]).status().unwrap();
        assert!(done.success(), "{line}");
    };
    let third = v1::Nic {
        id: "third".into(),
        mac: mac(3),
        vni: 7,
        kind: v1::NicKind::Tap.into(),
        path: pair.device(3),
        ..Default::default()
    };
    let name = third.path.clone();
    let put = v1::PutNicRequest {
        nic: Some(third),
        create_only: false,
    };
    within(pair.daemon().v1().await.put_nic(put)).await.unwrap();
    let seen = pair.seen();
    let (dir, v0) = pair.daemon.take().unwrap().killed();
    host(&format!("ip link del {name}"));
    host(&format!("ip link add {name} type bridge"));
    pair.daemon = Some(Daemon::start_in(dir, v0, &pair.args()));
    let not_made = "this stays stored, and is not made";
    assert!(pair.daemon().log().contains(not_made));
    assert_eq!(pair.seen(), seen, "others stay in their containers");
    for turn in 1..3 {
        let done = upgrade(pair.daemon.as_mut().unwrap(), "").await;
        done.unwrap_or_else(|why| panic!("{why}: {}", pair.daemon().log()));
        let said = format!("{not_made}, as in the daemon before: Nic 'third'");
        let log = pair.daemon().log();
        assert_eq!(log.matches(&said).count(), turn, "{log}");
        assert_eq!(ids(&pair).await, ["l", "r"]);
    }
    assert_eq!(pair.seen(), seen);
    host(&format!("ip link del {name}"));
    pair.kill();
    assert_eq!(ids(&pair).await, ["l", "r", "third"]);
}

/// Somebody has deleted the interfaces of two NICs under a running daemon, and others have their
/// names by now: they are broken, and no reason to refuse another program, in which they are broken
/// as well. All others lose nothing. They are healed when the names are free.
#[tokio::test(flavor = "multi_thread")]
async fn what_has_lost_its_interface_goes_along_broken() {
    let Some(mut pair) = Pair::new(false).await else {
        return;
    };
    let container = Namespace::new().unwrap();
    let host = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let done = Command::new(words[0]).args(&words[1..]).status().unwrap();
        assert!(done.success(), "{line}");
    };
    let lost = [(3, "tap"), (4, "veth")].map(|(last, id)| v1::Nic {
        id: id.into(),
        mac: mac(last),
        vni: 8,
        kind: match id {
            "tap" => v1::NicKind::Tap.into(),
            _ => v1::NicKind::Veth.into(),
        },
        veth: (id == "veth").then(|| v1::Veth {
            netns: container.pid().to_string(),
            ..Default::default()
        }),
        path: pair.device(last),
        ..Default::default()
    });
    let put = |nic: &v1::Nic| v1::PutNicRequest {
        nic: Some(nic.clone()),
        create_only: false,
    };
    let mut client = pair.daemon().v1().await;
    for nic in &lost {
        within(client.put_nic(put(nic))).await.unwrap();
    }
    drop(client);
    let seen = pair.seen();
    let _load = pair.load();
    pair.passes("traffic");
    let mut before = connections(&pair).await;
    for v1::Nic { path, .. } in &lost {
        host(&format!("ip link del {path}"));
        host(&format!("ip link add {path} type bridge"));
    }
    for nic in &lost {
        until(&pair, &nic.id, v1::PortState::Broken).await;
    }
    for turn in 0..2 {
        keeps_connections(&mut pair, &mut before, "").await;
        for v1::Nic { id, path, .. } in &lost {
            let why = until(&pair, id, v1::PortState::Broken).await;
            let named = format!("'{path}' cannot be made: an interface of that name exists");
            assert!(why.contains(&named), "{turn}: {id}: {why}");
        }
        assert_eq!(pair.seen(), seen);
    }
    // The same NIC once more.
    let mut client = pair.daemon().v1().await;
    for nic in &lost {
        within(client.put_nic(put(nic))).await.unwrap();
        until(&pair, &nic.id, v1::PortState::Broken).await;
        host(&format!("ip link del {}", nic.path));
        within(client.put_nic(put(nic))).await.unwrap();
        assert_eq!(until(&pair, &nic.id, v1::PortState::Up).await, "");
    }
    container.ok("ip link show dev eth0").unwrap();
    drop(client);
    // They are as any others from then on.
    let index = |name: &str| std::fs::read_to_string(format!("/sys/class/net/{name}/ifindex"));
    let made = lost.each_ref().map(|nic| index(&nic.path).unwrap());
    keeps_connections(&mut pair, &mut before, "").await;
    pair.kill();
    for (nic, made) in lost.iter().zip(made) {
        assert_eq!(index(&nic.path).unwrap(), made, "{}", nic.id);
        until(&pair, &nic.id, v1::PortState::Up).await;
    }
    assert_eq!(pair.seen(), seen);
}

/// Waits until a NIC is so; what is said of that.
async fn until(pair: &Pair, id: &str, state: v1::PortState) -> String {
    let deadline = Instant::now() + PATIENCE;
    let mut client = pair.daemon().v1().await;
    loop {
        let nics = within(client.list_nics(v1::ListNicsRequest {})).await;
        let mut nics = nics.unwrap().into_inner().nics.into_iter();
        let is_it = |status: &v1::NicStatus| status.nic.as_ref().is_some_and(|nic| nic.id == id);
        let status = nics.find(is_it).unwrap_or_else(|| panic!("no NIC {id}"));
        if status.state() == state {
            return status.detail;
        }
        let log = pair.daemon().log();
        assert!(Instant::now() < deadline, "still {status:?}: {log}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn ids(pair: &Pair) -> Vec<String> {
    let mut client = pair.daemon().v1().await;
    let nics = within(client.list_nics(v1::ListNicsRequest {})).await;
    let nics = nics.unwrap().into_inner().nics.into_iter();
    nics.map(|status| status.nic.unwrap().id).collect()
}

impl Guests {
    /// Another program takes over while frames are sent; how long none came.
    pub fn upgraded(&mut self, program: &str) -> (Duration, Duration) {
        let pause = std::sync::Arc::new(std::sync::Mutex::new(Duration::ZERO));
        let (told, program) = (pause.clone(), program.to_owned());
        let gap = self.replaced(move |mut daemon, _| {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            let done = runtime.block_on(upgrade(&mut daemon, &program));
            *told.lock().unwrap() = done.unwrap_or_else(|why| panic!("{why}: {}", daemon.log()));
            daemon
        });
        let pause = *pause.lock().unwrap();
        (gap, pause)
    }
}

/// Ten times in a row under a stream of frames: VMMs do not notice, rings of either kind go on, no
/// frame is lost or comes twice, and none that the rules forbid.
#[tokio::test(flavor = "multi_thread")]
async fn vmms_keep_their_connections_when_another_program_takes_over() {
    let several = &["--workers", "2"][..];
    for (kind, features, options) in [
        ("split", 0, &[][..]),
        ("packed", RING_PACKED, &[]),
        ("in order", IN_ORDER, &[]),
        ("split, from worker to worker", 0, several),
        ("packed, from worker to worker", RING_PACKED, several),
    ] {
        let mut guests = Guests::with(common::FEATURES | features, options).await;
        guests.flow(100, "frames before");
        let done = (0..10).map(|_| guests.upgraded(""));
        let (mut gaps, mut pauses): (Vec<_>, Vec<_>) = done.unzip();
        let (lost, twice) = guests.ended_whole(kind);
        println!(
            "{kind}: upgraded ten times: without a frame {}; none moved for {}; of {} frames \
             {lost} lost and {twice} twice",
            milliseconds(&mut gaps),
            milliseconds(&mut pauses),
            guests.sent
        );
        assert_eq!((lost, twice), (0, 0), "{kind}");
    }
}

/// A message for which a VMM is hung up on.
fn of_no_version() -> Vec<u8> {
    message(GET_FEATURES, 3, &[])
}

/// Which of what is held of sessions is the newest is noted by a daemon, too, that has taken
/// another's place when there was no session.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_that_begin_behind_an_upgrade_are_marked() {
    let mut guests = Guests::new(common::FEATURES).await;
    for vmm in &mut guests.vmms {
        vmm.send_bytes(&of_no_version(), &[]).unwrap();
        assert!(vmm.wait_closed().unwrap());
    }
    let daemon = guests.daemon.as_mut().unwrap();
    upgrade(daemon, "").await.unwrap();
    let path = daemon.path("qemu-vhost-a");
    let mut vmm = Frontend::connect(&path).unwrap();
    vmm.negotiate(common::FEATURES | PROTOCOL_FEATURES).unwrap();
    let keepers = keepers_of(&guests.store.path().join("keeper"));
    let keeper = keepers.first().unwrap();
    wait_for(
        "the keeper to have what sessions are noted in",
        PATIENCE,
        || {
            let files = std::fs::read_dir(format!("/proc/{keeper}/fd")).unwrap();
            let mut links = files
                .flatten()
                .filter_map(|file| std::fs::read_link(file.path()).ok());
            Ok(links
                .any(|link| link.to_string_lossy().contains("butterfly-sessions"))
                .then_some(()))
        },
    )
    .unwrap();
}

/// What VMMs say while the other program is prepared, and has their sessions already, is not lost:
/// one says something more, one goes, and one comes, into whose place another NIC's had been.
#[tokio::test(flavor = "multi_thread")]
async fn what_vmms_say_while_another_program_prepares_is_heard() {
    for (kind, features) in [("split", 0), ("packed", RING_PACKED)] {
        let mut guests = Guests::new(common::FEATURES | features).await;
        let daemon = guests.daemon.as_ref().unwrap();
        for (id, last) in [("c", 3), ("d", 4)] {
            let put = v1::PutNicRequest {
                nic: Some(nic(id, last)),
                create_only: true,
            };
            within(daemon.v1().await.put_nic(put)).await.unwrap();
        }
        let [path_c, path_d] = ["c", "d"].map(|id| daemon.path(&format!("qemu-vhost-{id}")));
        let mut c = Frontend::connect(&path_c).unwrap();
        c.negotiate(common::FEATURES | PROTOCOL_FEATURES).unwrap();
        guests.flow(100, "frames before");
        let folder = guests.store.path().to_owned();
        let held_up = other_program::held_up(env!("CARGO_BIN_EXE_butterflyd"), &folder);
        let program = other_program::write(&folder, "held-up", &held_up).unwrap();
        let daemon = guests.daemon.take().unwrap();
        let upgrade = std::thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            let mut daemon = daemon;
            let done = runtime.block_on(upgrade(&mut daemon, &program));
            done.unwrap_or_else(|why| panic!("{why}: {}", daemon.log()));
            daemon
        });
        while !folder.join("prepared").exists() {
            assert!(!upgrade.is_finished());
            guests.turn();
        }
        // It is hung up on, and sees that at once, though another program has its connection too.
        c.send_bytes(&message(GET_FEATURES, 7, &[])[..], &[])
            .unwrap();
        assert!(c.wait_closed().unwrap());
        drop(c);
        let call = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let call = call.unwrap();
        guests.vmms[1]
            .ring_fd(SET_VRING_CALL, 0, call.as_fd())
            .unwrap();
        guests.vmms[1].get(GET_FEATURES).unwrap();
        let mut d = Frontend::connect(&path_d).unwrap();
        d.negotiate(common::FEATURES | PROTOCOL_FEATURES).unwrap();
        std::fs::write(folder.join("go"), "").unwrap();
        while !upgrade.is_finished() {
            guests.turn();
        }
        guests.daemon = Some(upgrade.join().unwrap());
        // What was given back may not have been said: a guest is called in any case.
        assert_eq!(rustix::io::read(&call, &mut [0; 8]), Ok(8), "{kind}");
        guests.flow(100, "frames after");
        d.get(GET_FEATURES).unwrap();
        let mut c = Frontend::connect(&path_c).unwrap();
        c.get(GET_FEATURES).unwrap();
        // And all of it is held as before.
        guests.upgraded("");
        for vmm in [&mut c, &mut d] {
            vmm.get(GET_FEATURES).unwrap();
        }
        // The keeper is told behind the answer; a kill between the two ends the session.
        guests.flow(100, "frames behind a question");
        guests.killed();
        guests.flow(100, "frames behind a kill");
        for vmm in [&mut c, &mut d] {
            vmm.get(GET_FEATURES).unwrap();
        }
        let (lost, _) = guests.ended_whole(kind);
        assert_eq!(lost, 0, "{kind}");
        let log = guests.daemon.as_ref().unwrap().log();
        println!("{log}");
        assert!(!log.contains("out of date"), "{log}");
    }
}

/// Whatever becomes of the other program before the commit, the daemon goes on unharmed, says why,
/// and the next attempt can succeed.
#[tokio::test(flavor = "multi_thread")]
async fn the_daemon_goes_on_when_the_other_program_cannot() {
    // Of two workers, so that each frame goes from one to the other.
    let mut guests = Guests::with(common::FEATURES | RING_PACKED, &["--workers", "2"]).await;
    guests.flow(100, "frames before");
    let pid = guests.daemon.as_ref().unwrap().pid();
    let by_file = format!(
        "{UNTIL_STORE}; say(OPENED, 'flows=file'); wait(PORTS)\nsay(NO, ','.join(sorted(n for n in \
         names if 'conn' in n or 'vhost:' in n)))"
    );
    // One that asks for VMMs' sessions while this daemon serves them.
    let early = |steps: &str| other_program::text(&steps.replace("HELLO", "HELLO, 'early'"));
    let daemon = env!("CARGO_BIN_EXE_butterflyd");
    let other_number = format!(
        "#!/usr/bin/env python3
import os, socket, subprocess, sys
s = socket.socket(fileno=0)
m = s.recv(1 << 15)
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
p = subprocess.Popen(['{daemon}'] + sys.argv[1:], stdin=theirs)
theirs.close()
ours.sendall(m[:2] + b'77')
s.sendall(ours.recv(1 << 15))
p.wait()
"
    );
    // What the settings would be where they were changed since.
    let elsewhere = |option: &str| {
        format!(
            "#!/usr/bin/env python3
import os, sys
args = sys.argv[1:]
args[args.index('{option}') + 1] += '-of-another'
os.execv('{daemon}', ['{daemon}'] + args)
"
        )
    };
    let cases = [
        ("missing", None, "cannot be executed"),
        (
            "no-program",
            Some("not a program at all".to_owned()),
            "cannot be executed",
        ),
        ("ends", Some("#!/bin/sh\nexit 3\n".into()), "exit status: 3"),
        (
            "is-killed",
            Some("#!/bin/sh\nkill -9 $$\n".into()),
            "signal: 9",
        ),
        (
            "says-no",
            Some(other_program::text("wait(OFFER); say(NO, 'I am not able')")),
            "I am not able",
        ),
        (
            "babbles",
            Some(other_program::text("say(TAKEN)")),
            "was not asked for",
        ),
        (
            "ends-amid-items",
            Some(other_program::text("wait(OFFER); say(HELLO); wait(ITEM)")),
            "exit status: 0",
        ),
        (
            "ends-prepared",
            Some(other_program::text(UNTIL_STORE)),
            "exit status: 0",
        ),
        (
            "hangs-with-ports",
            Some(other_program::text(&format!(
                "{UNTIL_PORTS}; time.sleep(60)"
            ))),
            "within 5 s",
        ),
        (
            "ends-with-ports",
            Some(other_program::text(UNTIL_PORTS)),
            "exit status: 0",
        ),
        (
            "has-sessions-and-hangs",
            Some(early(&format!("{UNTIL_PORTS}; time.sleep(60)"))),
            "within 5 s",
        ),
        (
            "has-sessions-and-says-them",
            Some(early(&format!(
                "{UNTIL_PORTS}; say(NO, ','.join(sorted(n for n in names if 'vhost:' in n)))"
            ))),
            "early vhost:a,early vhost:b",
        ),
        (
            "reads-no-memory",
            Some(other_program::text(&by_file)),
            "connections,held vhost:a,held vhost:b",
        ),
        (
            "speaks-otherwise",
            Some(other_number),
            "number 77, and knows number 5",
        ),
        (
            "has-another-store",
            Some(elsewhere("--store")),
            "state-of-another, and the daemon before has",
        ),
        (
            "has-another-keeper",
            Some(elsewhere("--keeper")),
            "keeper-of-another, and the daemon before has",
        ),
        (
            "has-another-folder",
            Some(elsewhere("-s")),
            "-of-another, and the daemon before has",
        ),
    ];
    for (name, text, said) in cases {
        let path = match &text {
            Some(text) => other_program::write(guests.store.path(), name, text).unwrap(),
            None => format!("/nonexistent/{name}"),
        };
        let daemon = guests.daemon.take().unwrap();
        let attempt = std::thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            let mut daemon = daemon;
            let refused = runtime.block_on(upgrade(&mut daemon, &path)).unwrap_err();
            (daemon, refused)
        });
        while !attempt.is_finished() {
            guests.turn();
        }
        let (daemon, refused) = attempt.join().unwrap();
        assert_eq!(refused.code(), tonic::Code::FailedPrecondition, "{name}");
        assert!(refused.message().contains(said), "{name}: {refused}");
        assert!(daemon.log().contains(said), "{name}: {}", daemon.log());
        assert_eq!(daemon.pid(), pid);
        // It changes what it is told to, durably.
        let mut client = daemon.v1().await;
        let group = v1::Group {
            id: name.into(),
            ..Default::default()
        };
        let put = v1::PutGroupRequest { group: Some(group) };
        within(client.put_group(put)).await.unwrap();
        guests.daemon = Some(daemon);
        guests.flow(200, name);
    }
    // Others may write to it.
    let path = other_program::write(guests.store.path(), "others", "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o777)).unwrap();
    let daemon = guests.daemon.as_mut().unwrap();
    let refused = upgrade(daemon, &path).await.unwrap_err();
    assert!(
        refused.message().contains("nobody else may write"),
        "{refused}"
    );
    // Others may put another one in its place, also behind a link that they cannot change.
    let folder = guests.store.path().join("open");
    std::fs::create_dir(&folder).unwrap();
    let program = other_program::write(&folder, "program", "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o777)).unwrap();
    let link = guests.store.path().join("link");
    std::os::unix::fs::symlink(&program, &link).unwrap();
    for path in [program.as_str(), link.to_str().unwrap()] {
        let refused = upgrade(daemon, path).await.unwrap_err();
        let why = format!("is not run: {} can be written by others", folder.display());
        assert!(refused.message().contains(&why), "{refused}");
    }
    let refused = upgrade(daemon, "butterflyd").await.unwrap_err();
    assert!(refused.message().contains("no absolute path"), "{refused}");
    guests.upgraded("");
    let mut client = guests.daemon.as_ref().unwrap().v1().await;
    let groups = within(client.list_groups(v1::ListGroupsRequest {})).await;
    assert_eq!(groups.unwrap().into_inner().groups.len(), 18);
    while guests.from.transmitq.outstanding() > 0 {
        guests.turn();
    }
    guests.receive();
    let twice = guests.came.values().filter(|times| **times > 1).count();
    assert_eq!((guests.sent as usize - guests.came.len(), twice), (0, 0));
}

/// A VMM whose session cannot be held keeps the daemon, which says so; one that stops amid a
/// message is hung up on. Neither harms others.
#[tokio::test(flavor = "multi_thread")]
async fn a_vmm_that_cannot_go_along_keeps_the_daemon_or_is_hung_up_on() {
    let mut guests = Guests::new(common::FEATURES).await;
    guests.flow(100, "frames before");
    let daemon = guests.daemon.as_mut().unwrap();
    let put = v1::PutNicRequest {
        nic: Some(nic("c", 3)),
        create_only: true,
    };
    within(daemon.v1().await.put_nic(put)).await.unwrap();
    let path = daemon.path("qemu-vhost-c");
    let features = common::FEATURES | PROTOCOL_FEATURES;
    let mut vmm = Frontend::connect(&path).unwrap();
    vmm.negotiate(features).unwrap();
    let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    for ring in 0..128 {
        for request in [SET_VRING_KICK, SET_VRING_CALL] {
            vmm.ring_fd(request, ring, bell.as_fd()).unwrap();
        }
    }
    let pid = daemon.pid();
    let refused = upgrade(daemon, "").await.unwrap_err();
    let why = "the session of NIC 'c' cannot be handed over: the keeper does not hold it";
    assert!(refused.message().contains(why), "{refused}");
    assert_eq!(daemon.pid(), pid);
    vmm.get(GET_FEATURES).unwrap();
    guests.flow(100, "frames behind the refusal");
    drop(vmm);
    let mut vmm = Frontend::connect(&path).unwrap();
    vmm.get(GET_FEATURES).unwrap();
    let half = &message(GET_FEATURES, 1, &[])[..7];
    vmm.send_bytes(half, &[]).unwrap();
    guests.upgraded("");
    assert!(vmm.wait_closed().unwrap());
    guests.flow(100, "frames behind the upgrade");
    let mut vmm = Frontend::connect(&path).unwrap();
    vmm.negotiate(features).unwrap();
    assert_eq!(guests.ended_whole("beside one that is hung up on"), (0, 0));
}

/// A worker hangs before it is asked for its ports: nobody waits for it without a bound.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_hangs_in_an_upgrade_is_named_and_ends_the_daemon() {
    // Longer than it takes to come as far as that, also on a busy machine.
    let mut guests = Guests::with(common::FEATURES, &["--hang-secs", "20"]).await;
    let mut daemon = guests.daemon.take().unwrap();
    let mut client = daemon.v1().await;
    let _hang = common::hang(daemon.pid(), &["worker0", "120"]);
    let request = v1::UpgradeRequest::default();
    let asked = tokio::spawn(async move { client.upgrade(request).await });
    let (status, _) = daemon.wait_within(3 * PATIENCE);
    let log = daemon.log();
    assert!(!status.success(), "{log}");
    let (before, behind) = log
        .split_once("worker 0 has not moved")
        .unwrap_or_else(|| panic!("it is not named: {log}"));
    let amid = "upgrade: the workers are to stand still";
    assert!(
        before.contains(amid),
        "it was ended before it was asked: {log}"
    );
    assert!(!behind.contains("has taken over"), "{log}");
    asked.await.unwrap().unwrap_err();
}

/// The settings were changed, and name an interface that cannot be balanced on: known only behind
/// the point at which the daemon before could go on. All else goes on, and the log says why.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_begin_behind_an_upgrade_does_not_end_the_rest() {
    let settings = tempfile::NamedTempFile::new().unwrap();
    let path = settings.path().to_str().unwrap();
    let mut guests = Guests::with(common::FEATURES, &["-c", path]).await;
    guests.flow(100, "frames before");
    let wrong = "[general]\nbalance-interfaces = lo\n";
    std::fs::write(settings.path(), wrong).unwrap();
    guests.upgraded("");
    let log = guests.daemon.as_ref().unwrap().log();
    assert!(
        log.contains("ERROR --balance-interface: interface lo"),
        "{log}"
    );
    assert_eq!(
        guests.ended_whole("beside an interface that cannot be taken"),
        (0, 0)
    );
}

/// A change that comes meanwhile waits, and is made by whoever is the daemon then, or is refused
/// with a sentence; what was answered is there.
#[tokio::test(flavor = "multi_thread")]
async fn changes_wait_and_none_that_was_answered_is_lost() {
    let mut guests = Guests::new(common::FEATURES).await;
    let marker = guests.store.path().join("has-objects");
    let slow = other_program::text(&format!(
        "wait(OFFER); say(HELLO); wait(ALL); open('{}', 'w'); time.sleep(1); say(NO, 'not now')",
        marker.display()
    ));
    let slow = other_program::write(guests.store.path(), "slow", &slow).unwrap();
    let daemon = guests.daemon.as_mut().unwrap();
    let mut client = daemon.v1().await;
    let put = |id: &str| v1::PutGroupRequest {
        group: Some(v1::Group {
            id: id.into(),
            ..Default::default()
        }),
    };
    let mut other = daemon.v1().await;
    let changing = async {
        // The other program has the objects.
        while !marker.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let start = Instant::now();
        within(other.put_group(put("waits"))).await.unwrap();
        start.elapsed()
    };
    let request = v1::UpgradeRequest { program: slow };
    let (refused, waited) = tokio::join!(client.upgrade(request), changing);
    assert!(refused.unwrap_err().message().contains("not now"));
    assert!(waited > Duration::from_millis(100), "{waited:?}");
    // Clients that change something all the time, over five upgrades.
    let mut answered = vec!["waits".to_owned()];
    let socket = daemon.path("v1.sock");
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stopped = stop.clone();
    let writer = tokio::spawn(async move {
        let (mut answered, mut refusals) = (Vec::new(), Vec::new());
        let mut number = 0;
        while !stopped.load(Ordering::SeqCst) {
            let at = format!("unix://{}", socket.display());
            let channel = tonic::transport::Endpoint::from_shared(at).unwrap();
            // Somebody listens always; who came to the old one last may be hung up on.
            let mut tries = 0;
            let channel = loop {
                match channel.connect().await {
                    Ok(channel) => break channel,
                    Err(why) => assert!(tries < 3, "{why:?}"),
                }
                tries += 1;
            };
            let mut client = ButterflyClient::new(channel);
            loop {
                number += 1;
                let id = format!("w{number}");
                let request = v1::PutGroupRequest {
                    group: Some(v1::Group {
                        id: id.clone(),
                        ..Default::default()
                    }),
                };
                match client.put_group(request).await {
                    Ok(_) => answered.push(id),
                    Err(why) => {
                        refusals.push(why);
                        break;
                    }
                }
                if stopped.load(Ordering::SeqCst) {
                    break;
                }
            }
        }
        (answered, refusals)
    });
    for _ in 0..5 {
        upgrade(daemon, "").await.unwrap();
    }
    stop.store(true, Ordering::SeqCst);
    let (more, refusals) = writer.await.unwrap();
    println!("{} changes answered, refused: {refusals:?}", more.len());
    // Who came to the old one last may be hung up on: one connection for each upgrade. The client
    // has several words for that, none of which the daemon has sent. All others are told why.
    let is_hung_up = |why: &&tonic::Status| {
        std::error::Error::source(*why).is_some()
            || matches!(why.code(), tonic::Code::Unknown | tonic::Code::Cancelled)
    };
    let (hung_up, refused): (Vec<_>, Vec<_>) = refusals.iter().partition(is_hung_up);
    assert!(hung_up.len() <= 5, "{hung_up:?}");
    let is_told = |why: &&tonic::Status| {
        let why = why.message();
        why.contains("nothing was changed") || why.contains("the change cannot be recorded")
    };
    assert!(refused.iter().all(is_told), "{refused:?}");
    answered.extend(more);
    let mut client = daemon.v1().await;
    let groups = within(client.list_groups(v1::ListGroupsRequest {})).await;
    let groups = groups.unwrap().into_inner().groups;
    let there: Vec<&str> = groups.iter().map(|group| group.id.as_str()).collect();
    for id in &answered {
        assert!(
            there.contains(&id.as_str()),
            "{id} was answered, and is lost"
        );
    }
}

/// Files are replaced when the next program has read them, and the daemon reads them again: the
/// next one does so too, before anybody can come to it with what was in them before.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_read_again_beside_an_upgrade_is_in_force_behind_it() {
    const BEFORE: &str = "the-token-of-before";
    const ANOTHER: &str = "the-token-of-another";
    let folder = tempfile::tempdir().unwrap();
    let [key, token] = ["key", "token"].map(|name| folder.path().join(name));
    common::private(&key, "QkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkI=\n");
    common::private(&token, BEFORE);
    let port = common::free_port();
    let page = format!("tcp:127.0.0.1:{port}");
    let options = [
        "-k",
        key.to_str().unwrap(),
        "--page",
        &page,
        "--page-token",
        token.to_str().unwrap(),
    ];
    let mut guests = Guests::with(common::FEATURES, &options).await;
    let program = other_program::held_up(common::PROGRAM, folder.path());
    let program = other_program::write(guests.store.path(), "held-up", &program).unwrap();
    let daemon = guests.daemon.as_mut().unwrap();
    let code = |token: &str| {
        let mut page = TcpStream::connect(("127.0.0.1", port)).unwrap();
        page.set_read_timeout(Some(PATIENCE)).unwrap();
        let request = format!(
            "GET /history HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\
             Connection: close\r\n\r\n"
        );
        page.write_all(request.as_bytes()).unwrap();
        let mut line = String::new();
        BufReader::new(page).read_line(&mut line).unwrap();
        line.split(' ').nth(1).unwrap_or_default().to_owned()
    };
    assert_eq!((code(BEFORE), code(ANOTHER)), ("200".into(), "401".into()));
    let mut client = daemon.v1().await;
    let asked = tokio::spawn(async move {
        let request = v1::UpgradeRequest { program };
        within(client.upgrade(request)).await
    });
    wait_for("the next program has read its files", PATIENCE, || {
        Ok(folder.path().join("prepared").exists().then_some(()))
    })
    .unwrap();
    common::private(&key, "Q0NDQ0NDQ0NDQ0NDQ0NDQ0NDQ0NDQ0NDQ0NDQ0NDQ0M=\n");
    common::private(&token, ANOTHER);
    let another = "key: another key, clients have to connect again";
    daemon.signal(Signal::HUP);
    wait_for("the daemon reads another key", PATIENCE, || {
        Ok(daemon.log().contains(another).then_some(()))
    })
    .unwrap();
    wait_for("the daemon reads another token", PATIENCE, || {
        Ok((code(BEFORE) == "401").then_some(()))
    })
    .unwrap();
    assert_eq!(daemon.log().matches(another).count(), 1);
    std::fs::write(folder.path().join("go"), "").unwrap();
    let done = asked.await.unwrap().unwrap().into_inner();
    daemon.upgraded(done.pid);
    assert_eq!((code(BEFORE), code(ANOTHER)), ("401".into(), "200".into()));
    let log = daemon.log();
    assert_eq!(log.matches(another).count(), 2, "{log}");
}

/// What the daemon tells of NIC `a` (frames and bytes) and `b` (drops), of the one rule (frames,
/// bytes and flows), and where MACs were learnt.
async fn told(daemon: &Daemon) -> ([u64; 3], [u64; 3], Vec<(String, String)>) {
    let mut client = daemon.v1().await;
    let mut stats = Vec::new();
    for id in ["a", "b"] {
        let request = v1::GetNicStatsRequest { id: id.into() };
        stats.push(
            within(client.get_nic_stats(request))
                .await
                .unwrap()
                .into_inner(),
        );
    }
    let request = v1::ListRuleCountersRequest::default();
    let rules = within(client.list_rule_counters(request)).await.unwrap();
    let rule = rules.into_inner().counters.remove(0);
    let request = v1::GetNetworkRequest { vni: 7 };
    let network = within(client.get_network(request)).await.unwrap();
    let learned = network.into_inner().learned.into_iter().map(|one| {
        let place = one.place.map(|place| format!("{place:?}"));
        (one.mac, place.unwrap_or_default())
    });
    (
        [
            stats[0].egress_frames,
            stats[0].egress_bytes,
            stats[1].ingress_drops,
        ],
        [rule.frames, rule.bytes, rule.flows],
        learned.collect(),
    )
}

/// NICs and rules go on counting where the daemon before has ended, and MACs stay learnt, in
/// whatever way it did: to the frame where another program took over, and never fewer where it was
/// killed.
#[tokio::test(flavor = "multi_thread")]
async fn counters_and_learnt_macs_outlive_the_daemon() {
    let mut guests = Guests::new(common::FEATURES).await;
    let mut client = guests.daemon.as_ref().unwrap().v1().await;
    let mut nic = super::nic("a", 1);
    nic.learn_macs = true;
    let request = v1::PutNicRequest {
        nic: Some(nic),
        ..Default::default()
    };
    within(client.put_nic(request)).await.unwrap();
    drop(client);
    // From a machine behind the guest.
    let behind = "52:54:00:07:00:77";
    let mut frame = build::frame(behind.parse().unwrap(), mac(2).parse().unwrap())
        .ip(Ipv4Addr::new(10, 7, 0, 1), Ipv4Addr::new(10, 7, 0, 2))
        .udp(40_000, FORBIDDEN)
        .build();
    frame.resize(60, 0);
    assert!(
        guests
            .from
            .send(&frame, Offload::default(), &Shape::whole())
    );
    guests.flow(100, "frames before");
    guests.ended_whole("before");
    let (mut nic, mut rule, learned) = told(guests.daemon.as_ref().unwrap()).await;
    assert_eq!(nic[0], u64::from(guests.taken_back));
    assert_eq!(rule[0], guests.came.len() as u64);
    assert!(nic[2] > 0 && rule[2] > 0);
    assert_eq!(learned.len(), 1, "{learned:?}");
    assert_eq!(learned[0].0, behind);
    for turn in 0..2 {
        guests.upgraded("");
        assert_eq!(guests.ended_whole("upgraded"), (0, 0));
        let now = told(guests.daemon.as_ref().unwrap()).await;
        assert_eq!(now.0[0], u64::from(guests.taken_back), "upgrade {turn}");
        assert_eq!(now.1[0], guests.came.len() as u64, "upgrade {turn}");
        assert_eq!(now.2, learned, "upgrade {turn}");
        (nic, rule) = (now.0, now.1);
    }
    for turn in 0..4 {
        guests.replaced(move |mut daemon, args| {
            if turn % 2 == 0 {
                return daemon.killed_and_started_again(args);
            }
            daemon.signal(Signal::TERM);
            daemon.wait();
            let (dir, v0) = daemon.ended();
            Daemon::start_in(dir, v0, args)
        });
        guests.ended_whole("killed");
        let now = told(guests.daemon.as_ref().unwrap()).await;
        let before = nic.iter().chain(&rule);
        let after = now.0.iter().chain(&now.1);
        let log = guests.daemon.as_ref().unwrap().log();
        assert!(
            before.zip(after).all(|(before, after)| after >= before),
            "{turn}: {log}"
        );
        assert!(
            now.0[0] > nic[0] && now.1[0] > rule[0],
            "{turn}: {now:?} {log}"
        );
        assert_eq!(now.2, learned, "{turn}: {log}");
        assert!(!log.contains("cannot be"), "{turn}: {log}");
        (nic, rule) = (now.0, now.1);
    }
    // A NIC that is made anew begins anew.
    let mut client = guests.daemon.as_ref().unwrap().v1().await;
    let request = v1::DeleteNicRequest { id: "a".into() };
    within(client.delete_nic(request)).await.unwrap();
    let request = v1::PutNicRequest {
        nic: Some(super::nic("a", 1)),
        ..Default::default()
    };
    within(client.put_nic(request)).await.unwrap();
    drop(client);
    let daemon = guests.daemon.take().unwrap();
    let args: Vec<&str> = guests.args.iter().map(String::as_str).collect();
    let daemon = daemon.killed_and_started_again(&args);
    let now = told(&daemon).await;
    assert_eq!(now.0[..2], [0; 2]);
    assert!(now.0[2] >= nic[2] && now.1 >= rule, "{now:?}");
    guests.daemon = Some(daemon);
}
