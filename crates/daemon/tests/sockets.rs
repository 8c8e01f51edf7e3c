//! Whose the vhost-user sockets of NICs are: their owner, group and mode, and who may connect.

mod common;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use api::v1;
use api::v1::butterfly_client::ButterflyClient;
use common::{Daemon, end_keepers, within};
use rustix::process::Signal;
use testkit::over::Over;
use tokio::runtime::Handle;
use tonic::Code;
use tonic::transport::Channel;

const NOBODY: u32 = sys::confine::NOBODY;
/// Of users and groups that nobody has.
const OTHER: u32 = 4711;

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: giving files to others takes root");
    }
    root
}

fn nic(id: &str, last: u32) -> v1::Nic {
    v1::Nic {
        id: id.into(),
        mac: format!("52:54:00:00:00:{last:02x}"),
        vni: 7,
        ..Default::default()
    }
}

/// A NIC whose socket is to be theirs.
fn of(id: &str, [owner, group, mode]: [&str; 3]) -> v1::Nic {
    v1::Nic {
        socket_owner: owner.into(),
        socket_group: group.into(),
        socket_mode: mode.into(),
        ..nic(id, id.len() as u32)
    }
}

async fn put(client: &mut ButterflyClient<Channel>, nic: v1::Nic) -> Result<(), tonic::Status> {
    let request = v1::PutNicRequest {
        nic: Some(nic),
        ..Default::default()
    };
    within(client.put_nic(request)).await.map(drop)
}

async fn update(
    client: &mut ButterflyClient<Channel>,
    id: &str,
    [owner, group, mode]: [Option<&str>; 3],
) -> Result<(), tonic::Status> {
    let request = v1::UpdateNicRequest {
        id: id.into(),
        socket_owner: owner.map(Into::into),
        socket_group: group.map(Into::into),
        socket_mode: mode.map(Into::into),
        ..Default::default()
    };
    within(client.update_nic(request)).await.map(drop)
}

async fn shown(client: &mut ButterflyClient<Channel>, id: &str) -> [String; 3] {
    let request = v1::GetNicRequest { id: id.into() };
    let nic = within(client.get_nic(request)).await.unwrap();
    let nic = nic.into_inner().nic.unwrap();
    [nic.socket_owner, nic.socket_group, nic.socket_mode]
}

/// Owner, group and mode of a NIC's socket.
fn file(daemon: &Daemon, id: &str) -> (u32, u32, u32) {
    let path = daemon.path(&format!("qemu-vhost-{id}"));
    let file = std::fs::symlink_metadata(path).unwrap();
    (file.uid(), file.gid(), file.mode() & 0o7777)
}

/// What connect(2) says to a process of this user and group.
fn connects(path: &Path, uid: u32, gid: u32) -> String {
    let script = "
import socket, sys
try:
    socket.socket(socket.AF_UNIX).connect(sys.argv[1])
    print('yes')
except OSError as error:
    print(error.strerror)
";
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-c", script]).arg(path).current_dir("/");
    let said = python.uid(uid).gid(gid).output().unwrap();
    String::from_utf8(said.stdout).unwrap().trim().to_owned()
}

/// A folder with the socket of a keeper, which outlives daemons and is not to outlive the test.
struct KeeperDir(tempfile::TempDir);

impl Drop for KeeperDir {
    fn drop(&mut self) {
        end_keepers(self.0.path());
    }
}

#[tokio::test]
async fn a_socket_is_whose_its_nic_says_whenever_it_is_made() {
    if !is_root() {
        return;
    }
    let dir = KeeperDir(tempfile::tempdir().unwrap());
    let at = |name: &str| dir.0.path().join(name).to_str().unwrap().to_owned();
    let (store, keeper) = (at("state"), at("keeper"));
    let options = [
        "--store",
        &store,
        "--keeper",
        &keeper,
        "--vhost-group",
        "4712",
    ];
    let daemon = Daemon::start(&options);
    // Who comes to the folder is not the question here.
    std::fs::set_permissions(daemon.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let mut client = daemon.v1().await;
    put(&mut client, nic("plain", 0x11)).await.unwrap();
    put(&mut client, of("vm", ["nobody", "4711", ""]))
        .await
        .unwrap();
    put(&mut client, of("mode", ["", "", "0600"]))
        .await
        .unwrap();
    let expected = |daemon: &Daemon| {
        assert_eq!(file(daemon, "plain"), (0, 4712, 0o660));
        assert_eq!(file(daemon, "vm"), (NOBODY, OTHER, 0o660));
        assert_eq!(file(daemon, "mode"), (0, 4712, 0o600));
        let vm = daemon.path("qemu-vhost-vm");
        assert_eq!(connects(&vm, NOBODY, NOBODY), "yes");
        assert_eq!(connects(&vm, OTHER, OTHER), "yes");
        assert_eq!(connects(&vm, 4712, 4712), "Permission denied");
        let mode = daemon.path("qemu-vhost-mode");
        assert_eq!(connects(&mode, 4712, 4712), "Permission denied");
    };
    expected(&daemon);
    let whose = ["nobody", "4711", ""].map(str::to_owned);
    assert_eq!(shown(&mut client, "vm").await, whose);
    assert_eq!(shown(&mut client, "mode").await[2], "600");

    // After a kill, a stop, and in the hands of the next program.
    let mut daemon = daemon.killed_and_started_again(&options);
    expected(&daemon);
    daemon.signal(Signal::TERM);
    daemon.wait();
    let (dir, v0) = daemon.ended();
    let mut daemon = Daemon::start_in(dir, v0, &options);
    expected(&daemon);
    let mut client = daemon.v1().await;
    let next = within(client.upgrade(v1::UpgradeRequest::default())).await;
    daemon.upgraded(next.unwrap().into_inner().pid);
    expected(&daemon);

    // Of a NIC that is there it changes in place, also there.
    let mut client = daemon.v1().await;
    let _vmm = std::os::unix::net::UnixStream::connect(daemon.path("qemu-vhost-vm")).unwrap();
    let group = [Some(""), Some("4713"), Some("620")];
    update(&mut client, "vm", group).await.unwrap();
    assert_eq!(file(&daemon, "vm"), (0, 4713, 0o620));
    update(&mut client, "vm", [None, Some(""), Some("")])
        .await
        .unwrap();
    assert_eq!(file(&daemon, "vm"), (0, 4712, 0o660));
    update(&mut client, "vm", [None, None, Some("666")])
        .await
        .unwrap();
    assert_eq!(connects(&daemon.path("qemu-vhost-vm"), OTHER, OTHER), "yes");
    let log = daemon.log();
    let warned = "NIC 'vm': socket mode '666': every user of this host may connect to it";
    assert!(log.contains(warned), "{log}");
}

#[tokio::test]
async fn what_cannot_be_given_is_refused_and_nothing_changes() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(&[]);
    let mut client = daemon.v1().await;
    put(&mut client, of("vm", ["nobody", "4711", "640"]))
        .await
        .unwrap();
    let client_mode = v1::Nic {
        vhost_mode: v1::VhostMode::Client.into(),
        ..of("new", ["nobody", "", ""])
    };
    let tap = v1::Nic {
        kind: v1::NicKind::Tap.into(),
        ..of("new", ["", "", "660"])
    };
    for (nic, code, why) in [
        (
            of("new", ["no-such-user", "", ""]),
            Code::FailedPrecondition,
            "NIC 'new': socket owner 'no-such-user': there is no such user",
        ),
        (
            of("new", ["", "no-such-group", ""]),
            Code::FailedPrecondition,
            "NIC 'new': socket group 'no-such-group': there is no such group",
        ),
        (
            // No change, to chown(2).
            of("new", ["4294967295", "", ""]),
            Code::FailedPrecondition,
            "NIC 'new': socket owner '4294967295': there is no such user",
        ),
        (
            of("vm", ["no-such-user", "", ""]),
            Code::FailedPrecondition,
            "NIC 'vm': socket owner 'no-such-user': there is no such user",
        ),
        (
            of("vm", ["", "", "1777"]),
            Code::InvalidArgument,
            "NIC 'vm': socket mode '1777' are no permissions: three octal digits, as 660",
        ),
        (
            client_mode,
            Code::InvalidArgument,
            "NIC 'new': socket owner 'nobody' is for a socket that the daemon makes: this one is \
             its VMM's (vhost mode client), which says itself whose it is",
        ),
        (
            tap,
            Code::InvalidArgument,
            "NIC 'new': socket mode '660' goes with a vhost-user NIC alone",
        ),
    ] {
        let refused = put(&mut client, nic).await.unwrap_err();
        assert_eq!((refused.code(), refused.message()), (code, why));
    }
    assert_eq!(file(&daemon, "vm"), (NOBODY, OTHER, 0o640));
    assert_eq!(shown(&mut client, "vm").await, ["nobody", "4711", "640"]);
    assert!(!daemon.path("qemu-vhost-new").exists());
}

/// A daemon that is not root.
fn of_nobody(options: &str) -> Daemon {
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(dir.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let v0 = format!("ipc://{}", dir.path().join("v0.sock").display());
    Daemon::start_as(Daemon::of_nobody(options), dir, v0, &[])
}

#[tokio::test]
async fn a_daemon_gives_no_more_than_its_user_may() {
    if !is_root() {
        return;
    }
    let mut daemon = of_nobody("");
    let mut client = daemon.v1().await;
    let refused = put(&mut client, of("a", ["root", "", ""])).await;
    assert_eq!(
        refused.unwrap_err().message(),
        "NIC 'a': socket owner 'root': giving files away needs CAP_CHOWN, which the daemon's unit \
         can have (docs/install.md); a group needs none that its user is in"
    );
    let refused = put(&mut client, of("a", ["", "daemon", ""])).await;
    assert_eq!(
        refused.unwrap_err().message(),
        "NIC 'a': socket group 'daemon': the daemon's user is not in this group, which giving it \
         sockets needs: SupplementaryGroups=daemon in the unit, or usermod -aG daemon"
    );
    put(&mut client, of("a", ["nobody", "nogroup", "600"]))
        .await
        .unwrap();
    assert_eq!(file(&daemon, "a"), (NOBODY, NOBODY, 0o600));
    daemon.signal(Signal::TERM);
    daemon.wait();
}

#[tokio::test(flavor = "multi_thread")]
async fn cap_chown_alone_is_enough_also_after_a_kill() {
    if !is_root() {
        return;
    }
    let options = "--inh-caps +chown --ambient-caps +chown";
    let daemon = of_nobody(options);
    for given in [["4711", "4712", "640"], ["4711", "", ""]] {
        let mut client = daemon.v1().await;
        put(&mut client, of("a", given)).await.unwrap();
        put(&mut client, of("bb", ["", "4712", ""])).await.unwrap();
    }
    assert_eq!(file(&daemon, "a").0, OTHER);
    let mut client = daemon.v1().await;
    put(&mut client, of("a", ["4713", "4712", "604"]))
        .await
        .unwrap();
    assert_eq!(file(&daemon, "a"), (4713, 4712, 0o604));
    // What it cannot open any more stays no other's when it is killed.
    let (dir, v0) = daemon.killed();
    assert!(dir.path().join("qemu-vhost-a").exists());
    let daemon = Daemon::start_as(Daemon::of_nobody(options), dir, v0, &[]);
    let mut client = daemon.v1().await;
    put(&mut client, of("a", ["4713", "4712", "604"]))
        .await
        .unwrap();
    assert_eq!(file(&daemon, "a"), (4713, 4712, 0o604));
    // One that is listened on stays whose it is.
    let socket = daemon.path("qemu-vhost-a").to_str().unwrap().to_owned();
    let taken = v1::Nic {
        path: socket.clone(),
        ..of("taken", ["", "", ""])
    };
    let other = of_nobody(options);
    let mut client = other.v1().await;
    let over = AtomicBool::new(false);
    let why = format!("NIC 'taken': socket '{socket}': another process listens on it");
    let (refused, owners) = std::thread::scope(|scope| {
        // And at no moment somebody else's: whoever it is for may connect all the while.
        let watching = scope.spawn(|| {
            let mut owners = std::collections::BTreeSet::new();
            while !over.load(Ordering::Relaxed) {
                owners.insert(file(&daemon, "a").0);
            }
            owners
        });
        let end = Over(&over);
        let mut refused = Vec::new();
        for _ in 0..20 {
            let asking = put(&mut client, taken.clone());
            refused.push(tokio::task::block_in_place(|| {
                Handle::current().block_on(asking)
            }));
        }
        drop(end);
        (refused, watching.join().unwrap())
    });
    for refused in refused {
        assert_eq!(refused.unwrap_err().message(), why);
    }
    assert_eq!(owners, [4713].into());
    assert_eq!(file(&daemon, "a"), (4713, 4712, 0o604));
}

/// Where others write too, what lies at a socket's path may be somebody else's by the time it is
/// given away; who may not ask the socket itself gives nothing then.
#[tokio::test]
async fn in_a_folder_of_others_too_nothing_is_given_that_may_not_be_ours() {
    if !is_root() {
        return;
    }
    let daemon = of_nobody("--inh-caps +chown --ambient-caps +chown");
    let shared = tempfile::tempdir().unwrap();
    let mode = |mode| {
        std::fs::set_permissions(shared.path(), PermissionsExt::from_mode(mode)).unwrap();
    };
    mode(0o777);
    let path = shared.path().join("a").to_str().unwrap().to_owned();
    let there = v1::Nic {
        path: path.clone(),
        ..of("a", ["4711", "", ""])
    };
    let mut client = daemon.v1().await;
    let refused = put(&mut client, there.clone()).await.unwrap_err();
    assert_eq!(
        refused.message(),
        format!(
            "NIC 'a': socket '{path}': others may put another file in its place, so that it is \
             given to nobody: it takes CAP_NET_ADMIN, or a folder that only the daemon's user and \
             root write to"
        )
    );
    assert!(!Path::new(&path).exists());
    // As in /tmp: what is ours is not taken away by others.
    mode(0o1777);
    put(&mut client, there).await.unwrap();
    assert_eq!(std::fs::symlink_metadata(&path).unwrap().uid(), OTHER);
}

/// Of a killed daemon, in a folder where nobody else makes sockets, also those go that it gave
/// away; those that somebody listens on stay, and so does in a folder of others what is not our
/// user's.
#[tokio::test]
async fn sockets_that_were_given_away_go_after_a_kill() {
    if !is_root() {
        return;
    }
    let options = "--inh-caps +chown --ambient-caps +chown";
    let given = |path: &Path| {
        std::os::unix::fs::chown(path, Some(OTHER), Some(OTHER)).unwrap();
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).unwrap();
    };
    for (mode, goes) in [(0o755, true), (0o1777, false)] {
        let daemon = of_nobody(options);
        let mut client = daemon.v1().await;
        put(&mut client, of("a", ["4711", "", ""])).await.unwrap();
        put(&mut client, nic("own", 0x21)).await.unwrap();
        let (dir, v0) = daemon.killed();
        let alive = dir.path().join("qemu-vhost-alive");
        let _alive = std::os::unix::net::UnixListener::bind(&alive).unwrap();
        given(&alive);
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(mode)).unwrap();
        let daemon = Daemon::start_as(Daemon::of_nobody(options), dir, v0, &[]);
        let removed = format!("removed {} sockets of NICs", 1 + usize::from(goes));
        wait_until(|| daemon.log().contains(&removed)).await;
        let exists = |name: &str| daemon.path(name).exists();
        assert!(!exists("qemu-vhost-own"));
        assert_eq!(exists("qemu-vhost-a"), !goes, "{mode:o}");
        assert!(exists("qemu-vhost-alive"), "{mode:o}");
    }
}

async fn wait_until(is_so: impl Fn() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        Ok::<_, ()>(())
    };
    within(waiting).await.unwrap();
}

/// A directory of users that does not answer (nsswitch.conf(5)) is waited for by who names one of
/// its users, and by nobody else.
#[tokio::test]
async fn a_user_that_is_looked_up_for_long_keeps_nobody_else_waiting() {
    if !is_root() {
        return;
    }
    let lib = tempfile::tempdir().unwrap();
    let at = |name: &str| lib.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(at("slow.c"), SLOW).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o", &at("slow.so"), &at("slow.c")]);
    assert!(cc.status().unwrap().success());
    let mut command = common::butterflyd();
    command.env("LD_PRELOAD", at("slow.so"));
    command
        .env("ASKED", at("asked"))
        .env("ANSWER", at("answer"));
    let (dir, v0) = common::folder();
    let daemon = Daemon::start_as(command, dir, v0, &[]);
    put(&mut daemon.v1().await, of("bb", ["4711", "", ""]))
        .await
        .unwrap();

    let config = |nics: Vec<v1::Nic>| v1::ApplyRequest {
        config: Some(v1::Config {
            nics,
            ..Default::default()
        }),
        ..Default::default()
    };
    let slow = ["slow-user", "", ""];
    for step in ["put", "update", "apply"] {
        let mut client = daemon.v1().await;
        let asking = tokio::spawn(async move {
            match step {
                "put" => put(&mut client, of("a", slow)).await,
                "update" => update(&mut client, "bb", [Some("slow-user"), None, None]).await,
                _ => {
                    let nics = vec![of("a", slow), of("bb", slow)];
                    within(client.apply(config(nics))).await.map(drop)
                }
            }
        });
        wait_until(|| Path::new(&at("asked")).exists()).await;
        let mut other = daemon.v1().await;
        let soon = std::time::Duration::from_secs(2);
        let meanwhile = put(&mut other, nic("c", 0x33));
        let meanwhile = tokio::time::timeout(soon, meanwhile).await;
        meanwhile
            .unwrap_or_else(|_| panic!("{step}: waits for the user"))
            .unwrap();
        assert!(!asking.is_finished(), "{step}");
        std::fs::write(at("answer"), "").unwrap();
        asking.await.unwrap().unwrap();
        assert_eq!(
            file(&daemon, if step == "put" { "a" } else { "bb" }).0,
            4714
        );
        let request = v1::DeleteNicRequest { id: "c".into() };
        within(other.delete_nic(request)).await.unwrap();
        for done in ["asked", "answer"] {
            let _ = std::fs::remove_file(at(done));
        }
        update(&mut other, "bb", [Some("4711"), None, None])
            .await
            .unwrap();
    }
}

/// Says who `slow-user` is when it is told to.
const SLOW: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int getpwnam_r(const char *name, struct passwd *pwd, char *buf, size_t len, struct passwd **out) {
    int (*real)(const char *, struct passwd *, char *, size_t, struct passwd **) =
        dlsym(RTLD_NEXT, "getpwnam_r");
    if (strcmp(name, "slow-user") != 0)
        return real(name, pwd, buf, len, out);
    close(open(getenv("ASKED"), O_CREAT | O_WRONLY, 0600));
    while (access(getenv("ANSWER"), F_OK) != 0)
        usleep(1000);
    int error = real("nobody", pwd, buf, len, out);
    if (*out)
        pwd->pw_uid = 4714;
    return error;
}
"#;
