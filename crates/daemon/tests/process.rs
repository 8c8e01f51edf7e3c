//! The daemon as a process: how it starts, refuses to, and ends without leaving anything.

mod common;

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use api::v1;
use common::{Daemon, PATIENCE, boot, files, run, to_create};
use rustix::process::Signal;
use testkit::netns::Namespace;
use testkit::wait_for;

/// From the signal to the end.
const STOP_MAX: Duration = Duration::from_secs(1);

#[test]
fn help_and_version() {
    let help = run(&["--help"]);
    let text = String::from_utf8(help.stdout).unwrap();
    assert!(help.status.success());
    for option in [
        "-i,",
        "-s,",
        "-c,",
        "-e,",
        "-l,",
        "-u,",
        "-m,",
        "-t,",
        "-k,",
        "--no-syslog",
        "--no-offload",
        "--dpdk-args",
        "--dpdk-port",
        "--dpdk-help",
        "-V",
    ] {
        assert!(text.contains(option), "{option} in:\n{text}");
    }
    let dpdk = run(&["--dpdk-help"]);
    let text = String::from_utf8(dpdk.stdout).unwrap();
    assert!(dpdk.status.success());
    assert!(text.contains("eth_pcapN,iface=IF"), "{text}");
    let version = String::from_utf8(run(&["-V"]).stdout).unwrap();
    assert_eq!(
        version,
        format!("butterflyd {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn settings_that_are_wrong_end_with_2_and_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let ini = dir.path().join("b.ini");
    std::fs::write(&ini, "[general]\nsocket-dri = /tmp\n").unwrap();
    let ini = ini.to_str().unwrap();
    for (args, sentence) in [
        (
            vec!["-c", ini],
            format!("{ini}: there is no key [general] socket-dri"),
        ),
        (
            vec!["-c", "/nonexistent"],
            "/nonexistent cannot be read".into(),
        ),
        (
            vec!["--dpdk-args", "--vdev=net_memif0"],
            "--vdev=net_memif0: only a device over an interface".into(),
        ),
        (vec!["-l", "loud"], "log level 'loud' is not".into()),
        (vec!["--frobnicate"], "--frobnicate".into()),
    ] {
        let output = run(&args);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {errors}");
        assert!(errors.contains(&sentence), "{args:?}: {errors}");
    }
}

#[test]
fn what_cannot_be_served_ends_with_1_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().to_str().unwrap();
    let refused = |args: &[&str], sentence: &str| {
        let output = run(&[&["--no-syslog", "-s", dir][..], args].concat());
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(errors.trim_end().lines().count(), 1, "said once: {errors}");
        assert_eq!(output.status.code(), Some(1), "{args:?}: {errors}");
        assert!(errors.contains(sentence), "{args:?}: {errors}");
        assert_eq!(files(Path::new(dir)), Vec::<String>::new());
    };
    let api = format!("unix:{dir}/v1.sock");
    refused(
        &["--api", &api, "-e", "tcp://0.0.0.0:0"],
        "or say --insecure-api (insecure-api = true under [security]",
    );
    refused(&["--api", &api, "-e", "tcp://*:0"], "or say --insecure-api");
    refused(
        &["--api", &api, "-e", "tcp://127.0.0.1:0"],
        "the users of this host among them: give a key with -k",
    );
    refused(
        &["--api", &api, "-e", "udp://127.0.0.1:1"],
        "is not tcp://ADDRESS:PORT",
    );
    refused(
        &["-e", "none", "--api", "tcp:127.0.0.1:0"],
        "give --tls-cert, --tls-key and --tls-ca",
    );
    refused(
        &["-e", "none", "--api", "http://localhost"],
        "not unix:PATH",
    );
    refused(&["-e", "none", "--api", &api, "-u", "1000"], "core 1000");
    refused(
        &["-e", "none", "--api", &api, "--api-group", "no-such-group"],
        "there is no such group",
    );
}

#[test]
fn a_second_instance_names_the_first() {
    let first = Daemon::start(&[]);
    let other = tempfile::tempdir().unwrap();
    let api = format!("unix:{}", first.path("v1.sock").display());
    // Whether its NICs' sockets are to be in the same folder or in another one.
    for dir in [first.dir.path(), other.path()] {
        let second = run(&["--no-syslog", "-s", dir.to_str().unwrap(), "--api", &api]);
        assert_eq!(second.status.code(), Some(1));
        let errors = String::from_utf8(second.stderr).unwrap();
        let sentence = format!(
            "cannot listen on {}: process {} does already",
            first.path("v1.sock").display(),
            first.pid()
        );
        assert!(errors.contains(&sentence), "{errors}");
    }
    let output = run(&[
        "--no-syslog",
        "-s",
        other.path().to_str().unwrap(),
        "--api",
        "none",
        "-e",
        &first.v0,
    ]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(
        errors.contains(&format!("process {} does already", first.pid())),
        "{errors}"
    );
}

/// What a killed daemon has left goes, behind all that a guest may wait for.
fn removes_one(daemon: &Daemon) {
    let removed = wait_for("what was left to be removed", PATIENCE, || {
        let said = daemon.log().contains("removed 1 sockets of NICs");
        Ok(said.then_some(()))
    });
    removed.unwrap_or_else(|e| panic!("{e}: {}", daemon.log()));
}

#[tokio::test]
async fn two_daemons_share_a_folder_of_sockets() {
    let first = Daemon::start(&[]);
    let put = |id: &str| v1::PutNicRequest {
        nic: Some(v1::Nic {
            id: id.into(),
            mac: format!("52:54:00:00:00:0{id}"),
            vni: 1,
            ..Default::default()
        }),
        create_only: false,
    };
    first.v1().await.put_nic(put("a")).await.unwrap();
    let folder = first.dir.path().to_str().unwrap();
    let second = Daemon::start(&["-s", folder]);
    let mut client = second.v1().await;
    let path = client.put_nic(put("b")).await.unwrap().into_inner().path;
    assert_eq!(path, format!("{folder}/qemu-vhost-b"));
    // The first one's socket is still its own.
    let refused = client.put_nic(put("a")).await.unwrap_err();
    assert!(refused.message().contains("qemu-vhost-a"), "{refused}");
    boot(&first, "a");
    drop(second);
    assert_eq!(
        first.files(),
        ["qemu-vhost-a", "qemu-vhost-b", "v0.sock", "v1.sock"]
    );
    // What the second one left, killed, goes with the next start; what the first one has stays.
    let third = Daemon::start(&["-s", folder]);
    removes_one(&third);
    assert_eq!(first.files(), ["qemu-vhost-a", "v0.sock", "v1.sock"]);
    boot(&first, "a");
}

#[test]
fn a_second_daemon_on_an_uplink_names_the_first() {
    let namespace = Namespace::new().unwrap();
    namespace
        .ok(
            "ip link add eth0 type veth peer name far0 && ip link set eth0 up && \
             ip link set far0 up",
        )
        .unwrap();
    namespace.ok("ip addr add 192.168.0.1/24 dev eth0").unwrap();
    let first = namespace
        .inside(|| Daemon::start(&["-i", "192.168.0.1"]))
        .unwrap();
    for uplink in [["-i", "192.168.0.1"], ["--uplink", "eth0"]] {
        is_refused(&namespace, uplink, "eth0", &first);
    }
}

/// A daemon with this uplink is told that it is another one's.
fn is_refused(namespace: &Namespace, uplink: [&str; 2], name: &str, first: &Daemon) {
    let dir = tempfile::tempdir().unwrap();
    let api = format!("unix:{}", dir.path().join("v1.sock").display());
    let folder = dir.path().to_str().unwrap();
    let line = [&["--no-syslog", "-s", folder, "--api", &api], &uplink[..]].concat();
    let second = namespace.inside(|| run(&line)).unwrap();
    let errors = String::from_utf8(second.stderr).unwrap();
    assert_eq!(second.status.code(), Some(1), "{errors}");
    let pid = first.pid();
    let sentence = format!("the uplink {name} is that of process {pid} already");
    assert!(errors.contains(&sentence), "{errors}");
}

/// As one that is there at the start.
#[test]
fn an_uplink_that_comes_later_is_no_other_daemon_s_either() {
    let namespace = Namespace::new().unwrap();
    let first = namespace
        .inside(|| Daemon::start(&["-i", "192.168.0.1", "--uplink", "late0"]))
        .unwrap();
    namespace
        .ok(
            "ip link add late0 type veth peer name far0 && ip addr add 192.168.0.1/24 dev late0 \
             && ip link set late0 up && ip link set far0 up",
        )
        .unwrap();
    wait_for("the daemon to have it for itself", PATIENCE, || {
        let names = namespace.ok("cat /proc/net/unix")?;
        Ok(names.contains("butterflyd/uplink/late0").then_some(()))
    })
    .unwrap_or_else(|e| panic!("{e}: {}", first.log()));
    is_refused(&namespace, ["--uplink", "late0"], "late0", &first);
}

#[tokio::test]
async fn sigterm_and_sigint_leave_nothing() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut daemon = Daemon::start(&[]);
        let mut client = daemon.v0().await;
        for id in ["a", "b"] {
            let mac = if id == "a" {
                "52:54:00:00:00:01"
            } else {
                "52:54:00:00:00:02"
            };
            client
                .ask_text(&format!(
                    "messages {{ revision: 0 message_0 {{ request {{ nic_add {{ id: '{id}' mac: \
                     '{mac}' vni: 1 }} }} }} }}"
                ))
                .await;
        }
        // An open stream must not keep the daemon.
        let mut v1 = daemon.v1().await;
        let mut events = v1
            .watch(v1::WatchRequest { snapshot: true })
            .await
            .unwrap()
            .into_inner();
        events.message().await.unwrap().unwrap();
        assert_eq!(
            daemon.files(),
            ["qemu-vhost-a", "qemu-vhost-b", "v0.sock", "v1.sock"]
        );
        daemon.signal(signal);
        daemon.wait_for("STOPPING=1");
        let (status, took) = daemon.wait();
        assert!(status.success(), "{status}; log:\n{}", daemon.log());
        assert!(took < STOP_MAX, "{took:?}");
        assert_eq!(daemon.files(), Vec::<String>::new());
        assert!(daemon.log().contains("is ready"), "{}", daemon.log());
    }
}

/// Addresses are withdrawn by a program that may take its time.
#[test]
fn systemd_is_asked_for_the_time_that_withdrawals_may_take() {
    let mut daemon = Daemon::start(&["--balance-hook", "/bin/true"]);
    daemon.signal(Signal::TERM);
    daemon.wait_for("STOPPING=1");
    daemon.wait_for("EXTEND_TIMEOUT_USEC=50000000");
    let (status, _) = daemon.wait();
    assert!(status.success(), "{status}; log:\n{}", daemon.log());
}

/// v0-contract.md 48.
#[tokio::test]
async fn sighup_ends_nothing_and_app_quit_answers_and_stops() {
    let mut daemon = Daemon::start(&[]);
    daemon.signal(Signal::HUP);
    let mut client = daemon.v0().await;
    let answer = client
        .ask_text("messages { revision: 0 message_0 { request { app_quit: true } } }")
        .await;
    assert!(answer.contains("status: true"), "{answer}");
    let (status, took) = daemon.wait();
    assert!(status.success() && took < STOP_MAX, "{status} {took:?}");
    assert_eq!(daemon.files(), Vec::<String>::new());
}

#[tokio::test]
async fn v1_shutdown_answers_and_stops() {
    let mut daemon = Daemon::start(&["-e", "none"]);
    daemon
        .v1()
        .await
        .shutdown(v1::ShutdownRequest {})
        .await
        .unwrap();
    let (status, took) = daemon.wait();
    assert!(status.success() && took < STOP_MAX, "{status} {took:?}");
}

#[tokio::test]
async fn a_crash_leaves_nothing_in_the_way() {
    let mut first = Daemon::start(&[]);
    let nic = "messages { revision: 0 message_0 { request { \
               nic_add { id: 'a' mac: '52:54:00:00:00:01' vni: 1 } } } }";
    first.v0().await.ask_text(nic).await;
    // The next one over what is left, at once: the first may still be dying.
    first.signal(Signal::KILL);
    assert_eq!(first.files(), ["qemu-vhost-a", "v0.sock", "v1.sock"]);
    let (dir, v0) = (
        std::mem::replace(&mut first.dir, tempfile::tempdir().unwrap()),
        first.v0.clone(),
    );
    std::fs::remove_file(dir.path().join("notify")).unwrap();
    let second = Daemon::start_in(dir, v0, &[]);
    removes_one(&second);
    assert_eq!(second.files(), ["v0.sock", "v1.sock"]);
    first.wait();
}

#[tokio::test]
async fn the_original_s_command_line_starts() {
    let args = "-c1 -n1 --socket-mem 64 --vdev=eth_pcap0,iface=eth0";
    // It takes the interface that is named: one of a namespace, not this machine's.
    let namespace = Namespace::new().unwrap();
    namespace
        .ok(
            "ip link add eth0 type veth peer name far0 && ip link set eth0 up && \
             ip link set far0 up",
        )
        .unwrap();
    namespace.ok("ip addr add 192.168.0.1/24 dev eth0").unwrap();
    let words = [
        "-i",
        "192.168.0.1",
        "--dpdk-args",
        args,
        "-t",
        "-m",
        "max",
        "--no-offload",
    ];
    let daemon = namespace.inside(|| Daemon::start(&words)).unwrap();
    let status = daemon
        .v1()
        .await
        .get_status(v1::GetStatusRequest::default())
        .await
        .unwrap()
        .into_inner();
    assert!(
        status.uplink.starts_with("eth0: AF_XDP, native XDP"),
        "{}",
        status.uplink
    );
    assert_eq!(status.workers[0].core, Some(0));
    let log = daemon.log();
    assert!(
        log.contains("--socket-mem 64 has no effect: no hugepages are needed"),
        "{log}"
    );
    assert!(log.contains("uplink 'eth0' is joined"), "{log}");
}

/// What changes without a message is seen all the same where anybody on the wire has the kernel's
/// neighbours change all the time.
#[tokio::test]
async fn an_uplink_s_queues_are_followed_while_neighbours_change() {
    let namespace = Namespace::new().unwrap();
    let of_two = "numrxqueues 2 numtxqueues 2";
    namespace
        .ok(&format!(
            "ip link add eth0 {of_two} type veth peer name far0 {of_two} && \
             ethtool -L eth0 rx 1 tx 1 && ethtool -L far0 rx 1 tx 1 && \
             ip link set eth0 up && ip link set far0 up && ip addr add 192.168.0.1/24 dev eth0"
        ))
        .unwrap();
    let daemon = namespace
        .inside(|| Daemon::start(&["-i", "192.168.0.1"]))
        .unwrap();
    assert!(daemon.log().contains("1 queue(s)"), "{}", daemon.log());
    namespace.ok("ethtool -L eth0 rx 2 tx 1").unwrap();
    let mut changes = 0u8;
    wait_for("the second queue to be seen", PATIENCE, || {
        changes = changes.wrapping_add(1);
        namespace.ok(&format!(
            "ip neigh replace 192.168.0.9 lladdr 02:00:00:00:00:{changes:02x} dev eth0 nud stale"
        ))?;
        let seen = daemon.log().contains("it has 2 queue(s) now and not 1");
        Ok(seen.then_some(()))
    })
    .unwrap();
}

/// The original's command lines, from its samples and tests, each in a namespace with two
/// interfaces: which uplinks are joined, and what is logged.
#[tokio::test]
async fn the_original_s_default_sample_and_tests_start() {
    let default = "-c1 -n1 --socket-mem 64 --no-shconf --huge-unlink";
    let ring = format!("{default} --vdev=eth_ring0");
    let tests = "-c1 -n1 --no-huge -m 1024 --no-pci --file-prefix=host --vdev=eth_ring0";
    let several =
        "--no-huge --vdev=eth_ring0 --vdev=eth_pcap0,iface=eth0 --vdev=net_af_packet0,iface=eth1";
    let bond = "--vdev=net_pcap0,iface=eth0 --vdev=net_pcap1,iface=eth1 \
                --vdev net_bonding0,mode=4,slave=net_pcap0,slave=net_pcap1";
    for (args, port, joined, line) in [
        (default, "0", "eth0", "--dpdk-port 0 has no effect"),
        (&ring, "0", "", "--huge-unlink has no effect"),
        (tests, "0", "", "--file-prefix host has no effect"),
        (tests, "3", "eth0", "--dpdk-port 3 has no effect"),
        (several, "2", "eth1", "eth_pcap0 is not used: one device is"),
        (several, "1", "eth0", "--dpdk-port 2 takes this one"),
        (bond, "2", "eth0 eth1", "no LACP is spoken"),
    ] {
        let namespace = Namespace::new().unwrap();
        for name in ["0", "1"] {
            let both = format!("ip link set eth{name} up && ip link set far{name} up");
            let made = format!("ip link add eth{name} type veth peer name far{name} && {both}");
            namespace.ok(&made).unwrap();
        }
        namespace.ok("ip addr add 192.168.0.1/24 dev eth0").unwrap();
        let words = [
            "-i",
            "192.168.0.1",
            "-t",
            "-m",
            "max",
            "--dpdk-args",
            args,
            "--dpdk-port",
            port,
        ];
        let daemon = namespace.inside(|| Daemon::start_tcp(&words)).unwrap();
        let status = daemon
            .v1()
            .await
            .get_status(v1::GetStatusRequest::default())
            .await;
        let uplink = status.unwrap().into_inner().uplink;
        let names: Vec<&str> = uplink
            .split("; ")
            .filter_map(|uplink| Some(uplink.split_once(": AF_XDP")?.0))
            .collect();
        assert_eq!(names.join(" "), joined, "{args} {port}: {uplink}");
        let log = daemon.log();
        assert!(log.contains(line), "{args} {port}: {log}");
        assert_eq!(
            log.matches("is open in clear text on tcp://127.0.0.1")
                .count(),
            1,
            "{log}"
        );
    }
}

#[tokio::test]
async fn the_original_s_ini_starts_with_one_word_more() {
    let dir = tempfile::tempdir().unwrap();
    let sockets = dir.path().join("sockets");
    std::fs::create_dir(&sockets).unwrap();
    let port = common::free_port();
    let text = format!(
        "[general]\nlog-level = info\nip = 127.0.0.1\nendpoint = tcp://0.0.0.0:{port}\n\
         socket-dir = {}\n\
         graph-core-id = 0\ndpdk-args = -c1 -n1 --socket-mem 64 --no-shconf --huge-unlink\n\
         nic-mtu = max\ndpdk-port = 0\n[security]\nencryption_key_path =\n",
        sockets.display()
    );
    let ini = dir.path().join("butterflyd.ini");
    let line = ["--no-syslog", "-c", ini.to_str().unwrap(), "--api", "none"];
    std::fs::write(&ini, &text).unwrap();
    let refused = run(&line);
    let errors = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{errors}");
    assert!(
        errors.contains("insecure-api = true under [security]"),
        "{errors}"
    );

    std::fs::write(&ini, text.clone() + "insecure-api = true\n").unwrap();
    let v0 = format!("tcp://127.0.0.1:{port}");
    let words = ["-c", ini.to_str().unwrap(), "-l", "debug"];
    // The command line wins, and the log says over what.
    let daemon = Daemon::start_in(dir, v0.clone(), &words);
    let list = "messages { revision: 0 message_0 { request { nic_list: true } } }";
    assert!(
        daemon
            .v0()
            .await
            .ask_text(list)
            .await
            .contains("status: true")
    );
    let log = daemon.log();
    let said = format!(
        "-e {v0} of the command line counts, not endpoint = tcp://0.0.0.0:{port} of {}",
        words[1]
    );
    assert!(log.contains(&said), "{log}");
    assert!(log.contains("-l debug of the command line counts"), "{log}");
}

#[tokio::test]
async fn a_tap_comes_and_goes_with_its_nic_and_with_the_daemon() {
    if std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/net/tun")
        .is_err()
    {
        eprintln!("skipped: /dev/net/tun cannot be opened");
        return;
    }
    // The largest MTU of packets is more than a TAP device takes: it then has its own largest.
    let mut daemon = Daemon::start(&["-m", "max"]);
    let name = format!("bft{}", daemon.pid());
    let device = Path::new("/sys/class/net").join(&name);
    let mut client = daemon.v1().await;
    let nic = v1::Nic {
        id: "tap".into(),
        mac: "52:54:00:00:00:03".into(),
        vni: 1,
        kind: v1::NicKind::Tap.into(),
        path: name.clone(),
        ..Default::default()
    };
    let put = v1::PutNicRequest {
        nic: Some(nic),
        create_only: false,
    };
    assert_eq!(
        client.put_nic(put.clone()).await.unwrap().into_inner().path,
        name
    );
    assert!(device.exists());
    // The device stays, and follows what is declared.
    let has = |file: &str| {
        std::fs::read_to_string(device.join(file))
            .unwrap()
            .trim()
            .to_owned()
    };
    let index = has("ifindex");
    let mut other = put.clone();
    let nic = other.nic.as_mut().unwrap();
    (nic.mac, nic.mtu) = ("52:54:00:00:00:04".into(), 1400);
    client.put_nic(other).await.unwrap();
    assert_eq!(
        [has("address"), has("mtu"), has("ifindex")],
        ["52:54:00:00:00:04".into(), "1400".to_owned(), index]
    );
    client
        .delete_nic(v1::DeleteNicRequest { id: "tap".into() })
        .await
        .unwrap();
    assert!(!device.exists());
    client.put_nic(put).await.unwrap();
    assert!(device.exists());
    daemon.signal(Signal::TERM);
    daemon.wait();
    assert!(!device.exists());
}

/// A thread that is stopped, by ptrace, as one that hangs.
#[test]
fn a_thread_that_hangs_is_named_and_ends_the_daemon() {
    for (thread, named) in [
        ("worker0", "worker 0 has not moved"),
        ("vhost-user", "the vhost-user thread has not moved"),
    ] {
        let mut daemon = Daemon::start(&["--hang-secs", "2"]);
        let status = daemon.hangs(thread);
        let log = daemon.log();
        assert!(!status.success(), "{thread}: {log}");
        assert!(log.contains(named), "{thread}: {log}");
    }
}

/// One of the API's that is about to take a connection.
#[test]
fn a_thread_of_the_api_that_hangs_is_named_and_ends_the_daemon() {
    let mut daemon = Daemon::start(&["--hang-secs", "2"]);
    let _hang = daemon.will_hang("api", "accept4");
    let _client = UnixStream::connect(daemon.path("v1.sock")).unwrap();
    let (status, _) = daemon.wait();
    let log = daemon.log();
    assert!(!status.success(), "{log}");
    let named = |index| log.contains(&format!("API thread {index} has not moved for"));
    assert!(named(0) || named(1), "{log}");
}

/// The one that is about to hear that there is an interface.
#[test]
fn a_thread_that_follows_the_kernel_and_hangs_is_named_and_ends_the_daemon() {
    let namespace = Namespace::new().unwrap();
    let line = ["-i", "192.168.0.1", "--uplink", "late0", "--hang-secs", "2"];
    let mut daemon = namespace.inside(|| Daemon::start(&line)).unwrap();
    let _hang = daemon.will_hang("netlink", "recvfrom");
    let late = "ip link add late0 type veth peer name far0";
    namespace.ok(late).unwrap();
    let (status, _) = daemon.wait();
    let log = daemon.log();
    assert!(!status.success(), "{log}");
    assert!(log.contains("netlink thread 0 has not moved for"), "{log}");
}

/// One that makes a NIC's socket, and keeps all others waiting, for thirty times as long as another
/// thread may.
#[tokio::test(flavor = "multi_thread")]
async fn an_operation_that_hangs_is_named_and_ends_the_daemon() {
    let mut daemon = Daemon::start(&["--hang-secs", "2"]);
    let mut client = daemon.v1().await;
    let _hang = daemon.will_hang("api", "bind");
    let asked = tokio::spawn(async move { client.put_nic(to_create("vm1")).await });
    let (status, took) = daemon.wait_within(4 * PATIENCE);
    let log = daemon.log();
    assert!(!status.success(), "{log}");
    assert!(
        log.contains("an operation of the API has not moved"),
        "{log}"
    );
    assert!(!log.contains("thread"), "nothing else hangs: {log}");
    assert!(took > PATIENCE, "{took:?}");
    asked.await.unwrap().unwrap_err();
}
