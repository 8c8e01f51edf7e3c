//! What a daemon has left is not as it was, or not as it was last: it is forgotten, and counted.

use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use keeper::Keeper;
use sys::huge::PAGE;

use super::*;

/// Guests of a daemon whose metrics are told.
struct Told {
    guests: Guests,
    socket: String,
    _folder: tempfile::TempDir,
}

impl Told {
    async fn new() -> Told {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("metrics").to_str().unwrap().to_owned();
        let endpoint = format!("unix:{socket}");
        let mut guests = Guests::with(common::FEATURES, &["--metrics", &endpoint]).await;
        guests.flow(100, "frames before");
        Told {
            guests,
            socket,
            _folder: folder,
        }
    }

    fn keeper(&self) -> u32 {
        let keepers = keepers_of(&self.guests.store.path().join("keeper"));
        assert_eq!(keepers.len(), 1, "one keeper");
        keepers[0]
    }

    /// The daemon is killed, something is done, and the next one is started.
    fn killed_and(&mut self, damage: impl FnOnce(&Told)) {
        let (dir, v0) = self.guests.daemon.take().unwrap().killed();
        damage(self);
        let args: Vec<&str> = self.guests.args.iter().map(String::as_str).collect();
        self.guests.daemon = Some(Daemon::start_in(dir, v0, &args));
    }

    /// How much is forgotten of something.
    fn forgotten(&self, what: &str) -> u64 {
        let told = Command::new("curl")
            .args(["-sS", "--max-time", "10", "--unix-socket", &self.socket])
            .arg("http://localhost/metrics")
            .output()
            .unwrap();
        let page = String::from_utf8(told.stdout).unwrap();
        let series = format!("butterfly_left_forgotten_total{{what=\"{what}\"}} ");
        let line = page.lines().find_map(|line| line.strip_prefix(&series));
        line.unwrap_or_else(|| panic!("no {series} in {page}"))
            .parse()
            .unwrap()
    }

    /// What the status says is forgotten, and that it is what the metrics say.
    async fn forgotten_by_status(&self) -> Vec<(String, u64)> {
        let request = v1::GetStatusRequest { brief: true };
        let daemon = self.guests.daemon.as_ref().unwrap();
        let status = within(daemon.v1().await.get_status(request)).await;
        let all = status.unwrap().into_inner().forgotten;
        for one in &all {
            assert_eq!(one.count, self.forgotten(&one.what), "{one:?}");
            assert!(!one.meaning.is_empty(), "{one:?}");
        }
        all.into_iter().map(|one| (one.what, one.count)).collect()
    }
}

/// Writes into memory that a keeper holds.
fn write(keeper: u32, memory: &str, at: u64, bytes: &[u8]) {
    let held = std::fs::read_dir(format!("/proc/{keeper}/fd")).unwrap();
    let is = |path: &Path| {
        let link = std::fs::read_link(path).unwrap_or_default();
        link.to_string_lossy()
            .starts_with(&format!("/memfd:{memory}"))
    };
    let paths = held.map(|one| one.unwrap().path());
    let found = paths.filter(|path| is(path)).collect::<Vec<_>>();
    assert_eq!(found.len(), 1, "one memory of {memory}");
    let file = std::fs::File::options().write(true).open(&found[0]);
    file.unwrap().write_all_at(bytes, at).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_of_what_was_left_is_forgotten_and_counted() {
    let mut told = Told::new().await;
    told.killed_and(|_| ());
    for what in [
        "connection",
        "counter",
        "mac",
        "session",
        "old_session",
        "memory",
    ] {
        assert_eq!(told.forgotten(what), 0, "{what}");
    }
    assert_eq!(told.forgotten_by_status().await, []);
    let all_are_there = |told: &Told| {
        wait_for(
            "the daemon to have its own memory of connections",
            PATIENCE,
            || {
                let held = std::fs::read_dir(format!("/proc/{}/fd", told.keeper())).unwrap();
                let links = held.filter_map(|one| std::fs::read_link(one.unwrap().path()).ok());
                let is =
                    |link: &std::path::PathBuf| link.to_string_lossy().contains("butterfly-flows");
                Ok((links.filter(is).count() == 1).then_some(()))
            },
        )
        .unwrap();
    };
    all_are_there(&told);
    told.killed_and(|told| {
        let keeper = told.keeper();
        // The first entries; what the first NIC had counted before; a number of regions.
        write(keeper, "butterfly-flows", 4 * PAGE as u64, &[0xff; 4096]);
        write(keeper, "butterfly-state", PAGE as u64 + 24, &[0x7f; 8]);
        let keeper = Keeper::connect(&told.guests.store.path().join("keeper")).unwrap();
        let keeper::Held { mut note, fds } = keeper.take("vhost:a").unwrap().unwrap();
        note[24 + 8 * 6 + 1] = 1;
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        keeper.hold("vhost:a", &note, &fds).unwrap();
    });
    wait_for("connections to be counted", PATIENCE, || {
        Ok((told.forgotten("connection") > 0).then_some(()))
    })
    .unwrap();
    assert_eq!(told.forgotten("counter"), 1);
    assert_eq!(told.forgotten("session"), 1);
    assert_eq!(told.forgotten("old_session"), 0);
    assert_eq!(told.forgotten("memory"), 0);
    let said = told.forgotten_by_status().await;
    let what: Vec<&str> = said.iter().map(|(what, _)| what.as_str()).collect();
    assert_eq!(what, ["connection", "counter", "session"]);
    let log = told.guests.daemon.as_ref().unwrap().log();
    assert!(
        log.contains("has more regions or rings than there can be"),
        "{log}"
    );
    // Of others all goes on.
    assert!(told.guests.vmms[0].get(GET_FEATURES).is_err());
    assert!(told.guests.vmms[1].get(GET_FEATURES).is_ok());
    // The thread that makes one more socket has had the keeper hold b's session again by then.
    let put = v1::PutNicRequest {
        nic: Some(nic("c", 3)),
        create_only: true,
    };
    let daemon = told.guests.daemon.as_ref().unwrap();
    within(daemon.v1().await.put_nic(put)).await.unwrap();
    all_are_there(&told);
    told.killed_and(|told| {
        let keeper = told.keeper();
        write(keeper, "butterfly-flows", 0, b"nonsense");
        write(keeper, "butterfly-state", 0, b"nonsense");
        write(keeper, "butterfly-sessions", 0, b"nonsense");
    });
    assert_eq!(told.forgotten("memory"), 3);
    assert_eq!(
        told.forgotten("old_session"),
        1,
        "nobody says that b's is not"
    );
}

/// Of what is stored one NIC cannot be made, behind others that are: the daemon makes them once
/// more without it, and their VMMs do not notice.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_made_takes_no_session_along() {
    let mut told = Told::new().await;
    let put = v1::PutNicRequest {
        nic: Some(v1::Nic {
            id: "third".into(),
            mac: mac(3),
            vni: 8,
            kind: v1::NicKind::Tap.into(),
            path: "bfheldvm".into(),
            ..Default::default()
        }),
        create_only: false,
    };
    let daemon = told.guests.daemon.as_ref().unwrap();
    within(daemon.v1().await.put_nic(put)).await.unwrap();
    let ip = |words: &[&str]| {
        let done = Command::new("ip").args(words).status().unwrap();
        assert!(done.success(), "{words:?}");
    };
    told.killed_and(|_| {
        ip(&["link", "del", "bfheldvm"]);
        ip(&["link", "add", "bfheldvm", "type", "bridge"]);
    });
    let log = told.guests.daemon.as_ref().unwrap().log();
    assert!(log.contains("this stays stored, and is not made"), "{log}");
    told.guests
        .flow(100, "frames behind a start that was not whole");
    told.killed_and(|_| ip(&["link", "del", "bfheldvm"]));
    told.guests.flow(100, "frames behind one that was");
    assert_eq!(told.forgotten("session") + told.forgotten("old_session"), 0);
    assert_eq!(told.guests.ended_whole("not all made").1, 0);
}

/// The keeper stands still while a VMM goes on, and hears again when the daemon is gone: the next
/// one does not go on with what that session once was, and does with another one.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_the_keeper_has_missed_is_not_gone_on_with() {
    let mut told = Told::new().await;
    let keeper = told.keeper();
    let signal = |signal| {
        let keeper = Pid::from_raw(keeper as i32).unwrap();
        kill_process(keeper, signal).unwrap();
    };
    // As long as it hears, all go on.
    told.guests.vmms[0].get(GET_FEATURES).unwrap();
    // The keeper is told behind the answer; a kill between the two ends the session.
    told.guests.flow(100, "frames behind a question");
    told.killed_and(|_| ());
    told.guests.flow(100, "frames behind a kill");
    signal(Signal::STOP);
    wait_for("the keeper to stand still", PATIENCE, || {
        let status = std::fs::read_to_string(format!("/proc/{keeper}/status")).unwrap();
        Ok(status.contains("State:\tT").then_some(()))
    })
    .unwrap();
    // The first is on its way to the keeper when that is given up, the next is not.
    for given_up in 1..=2 {
        let features = common::FEATURES | PROTOCOL_FEATURES;
        told.guests.vmms[0].set(SET_FEATURES, features).unwrap();
        told.guests.vmms[0].get(GET_FEATURES).unwrap();
        wait_for("the keeper to be given up", PATIENCE, || {
            let log = told.guests.daemon.as_ref().unwrap().log();
            let said = log.matches("its VMM's connection goes with this daemon");
            Ok((said.count() >= given_up).then_some(()))
        })
        .unwrap();
    }
    told.guests
        .flow(100, "frames while the keeper stands still");
    told.killed_and(|_| signal(Signal::CONT));
    let log = told.guests.daemon.as_ref().unwrap().log();
    assert!(log.contains("is out of date"), "{log}");
    let gone_on = log.matches("session of the process before goes on");
    assert_eq!(gone_on.count(), 1, "{log}");
    assert_eq!(told.forgotten("old_session"), 1);
    assert!(told.guests.vmms[0].get(GET_FEATURES).is_err());
    assert!(told.guests.vmms[1].get(GET_FEATURES).is_ok());
    common::boot(told.guests.daemon.as_ref().unwrap(), "a");
}

/// A daemon is killed while a VMM sends its guest elsewhere: that VMM connects anew, with a log of
/// written pages that it has from then on, and nothing is written that is not noted; others notice
/// nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_is_killed_while_a_vmm_moves_its_guest() {
    let mut guests = Guests::new(common::FEATURES).await;
    guests.flow(100, "frames before");
    let features = common::FEATURES | PROTOCOL_FEATURES | LOG_ALL;
    guests.vmms[1].take_everything().unwrap();
    log_of(&mut guests.vmms[1]);
    guests.vmms[1].set(SET_FEATURES, features).unwrap();
    guests.flow(100, "frames while it moves");
    guests.killed();
    assert!(guests.vmms[1].get(GET_FEATURES).is_err(), "it has ended");
    assert!(guests.vmms[0].get(GET_FEATURES).is_ok());
    // What is sent meanwhile is lost, and nothing of it comes.
    guests.receive();
    let before = guests.came.len();
    (0..50).for_each(|_| guests.turn());
    assert_eq!(guests.came.len(), before);
    let path = guests.daemon.as_ref().unwrap().path("qemu-vhost-b");
    let mut vmm = Frontend::connect(&path).unwrap();
    vmm.negotiate(features).unwrap();
    vmm.take_everything().unwrap();
    let log = log_of(&mut vmm);
    // QEMU goes on where the guest has seen that its rings are.
    let bases = [&guests.to.receiveq, &guests.to.transmitq].map(|queue| queue.used_index());
    vmm.start(&guests.to, bases).unwrap();
    guests.vmms[1] = vmm;
    guests.flow(100, "frames when it has connected anew");
    assert!(is_noted(&log), "what was written is noted");
    // It is called off, and is a session as any other.
    let features = common::FEATURES | PROTOCOL_FEATURES;
    guests.vmms[1].set(SET_FEATURES, features).unwrap();
    // The daemon has read it, and the keeper is told while frames flow.
    guests.vmms[1].get(GET_FEATURES).unwrap();
    guests.flow(100, "frames when it was called off");
    guests.killed();
    guests.flow(100, "frames behind another kill");
    assert_eq!(guests.ended_whole("killed amid a move").1, 0);
}
