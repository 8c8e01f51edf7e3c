//! The daemon as a process: how it starts, refuses to, and ends without leaving anything.

mod common;

use std::path::Path;
use std::time::Duration;

use api::v1;
use common::{Daemon, files, run};
use rustix::process::Signal;
use testkit::netns::Namespace;

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
        "-V",
    ] {
        assert!(text.contains(option), "{option} in:\n{text}");
    }
    let version = String::from_utf8(run(&["-V"]).stdout).unwrap();
    assert_eq!(version, format!("butterflyd {}\n", env!("CARGO_PKG_VERSION")));
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
        (vec!["-c", "/nonexistent"], "/nonexistent cannot be read".into()),
        (
            vec!["--dpdk-args", "-a 0000:01:00.0"],
            "--vdev=eth_af_packet0,iface=NAME".into(),
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
        "give a key with -k, or say --insecure-api",
    );
    refused(
        &["--api", &api, "-e", "tcp://*:0"],
        "give a key with -k, or say --insecure-api",
    );
    refused(
        &["--api", &api, "-e", "udp://127.0.0.1:1"],
        "is not tcp://ADDRESS:PORT",
    );
    refused(
        &["-e", "none", "--api", "tcp:127.0.0.1:0"],
        "give --tls-cert, --tls-key and --tls-ca",
    );
    refused(&["-e", "none", "--api", "http://localhost"], "not unix:PATH");
    refused(&["-e", "none", "--api", &api, "-u", "1000"], "core 1000");
    refused(
        &["-e", "none", "--api", &api, "--api-group", "no-such-group"],
        "there is no such group",
    );
}

#[test]
fn a_second_instance_names_the_first() {
    let first = Daemon::start(&[]);
    let dir = first.dir.path().to_str().unwrap();
    let second = run(&["--no-syslog", "-s", dir, "-e", "none", "--api", "none"]);
    assert_eq!(second.status.code(), Some(1));
    let errors = String::from_utf8(second.stderr).unwrap();
    let sentence = format!(
        "process {} runs on the socket directory {dir} already",
        first.pid()
    );
    assert!(errors.contains(&sentence), "{errors}");

    // Another directory, the same API socket.
    let other = tempfile::tempdir().unwrap();
    let api = format!("unix:{}", first.path("v1.sock").display());
    let third = run(&[
        "--no-syslog",
        "-s",
        other.path().to_str().unwrap(),
        "-e",
        "none",
        "--api",
        &api,
    ]);
    assert!(
        String::from_utf8(third.stderr)
            .unwrap()
            .contains("another process does")
    );
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
                    "messages {{ revision: 0 message_0 {{ request {{ nic_add {{ id: '{id}' mac: '{mac}' vni: 1 }} }} }} }}"
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
            [
                "butterflyd.lock",
                "qemu-vhost-a",
                "qemu-vhost-b",
                "v0.sock",
                "v1.sock"
            ]
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

#[tokio::test]
async fn sighup_is_ignored_and_app_quit_answers_and_stops() {
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
    daemon.v1().await.shutdown(v1::ShutdownRequest {}).await.unwrap();
    let (status, took) = daemon.wait();
    assert!(status.success() && took < STOP_MAX, "{status} {took:?}");
}

#[test]
fn a_crash_leaves_nothing_in_the_way() {
    let mut first = Daemon::start(&[]);
    first.signal(Signal::KILL);
    first.wait();
    assert_eq!(first.files(), ["butterflyd.lock", "v0.sock", "v1.sock"]);
    // The next one over what is left.
    let (dir, v0) = (
        std::mem::replace(&mut first.dir, tempfile::tempdir().unwrap()),
        first.v0.clone(),
    );
    std::fs::remove_file(dir.path().join("notify")).unwrap();
    let second = Daemon::start_in(dir, v0, &[]);
    assert_eq!(second.files(), ["butterflyd.lock", "v0.sock", "v1.sock"]);
}

#[tokio::test]
async fn the_original_s_command_line_starts() {
    let args = "-c1 -n1 --socket-mem 64 --vdev=eth_pcap0,iface=eth0";
    // It takes the interface that is named: one of a namespace, not this machine's.
    let namespace = Namespace::new().unwrap();
    namespace
        .ok("ip link add eth0 type veth peer name far0 && ip link set eth0 up && ip link set far0 up")
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
        .get_status(v1::GetStatusRequest {})
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
    let put = v1::PutNicRequest { nic: Some(nic) };
    assert_eq!(client.put_nic(put.clone()).await.unwrap().into_inner().path, name);
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
