//! `butterfly doctor` where something is wrong: each fault is made in a namespace, and named.

mod common;

use std::iter;
use std::path::Path;
use std::process::Command;

use api::v1;
use common::grpc::{GrpcStub, Messages};
use prost::Message;
use serde_json::Value;
use testkit::netns::Namespace;
use testkit::process;

/// What it finds, by JSON, of an interface in the namespace, without a daemon.
fn doctor(host: &Namespace, more: &str) -> (bool, Vec<Value>) {
    doctor_of("unix:/nonexistent/api.sock", host, more)
}

/// The same with the daemon at an endpoint.
fn doctor_of(endpoint: &str, host: &Namespace, more: &str) -> (bool, Vec<Value>) {
    let pid = host.pid().to_string();
    let mut words = vec![
        "nsenter",
        "-t",
        &pid,
        "-n",
        "--",
        env!("CARGO_BIN_EXE_butterfly"),
    ];
    words.extend(["-e", endpoint, "--json", "doctor"]);
    words.extend(more.split_whitespace());
    let output = process::output(&words).expect("butterfly");
    let text = String::from_utf8_lossy(&output.stdout);
    let findings: Value = serde_json::from_str(&text)
        .unwrap_or_else(|e| panic!("{text}{}: {e}", String::from_utf8_lossy(&output.stderr)));
    (
        output.status.success(),
        findings.as_array().expect("a list").clone(),
    )
}

/// A host with `eth0` and `eth1`, the ends of one cable.
fn host() -> Namespace {
    let host = Namespace::new().expect("a namespace");
    let ok = |command: &str| host.ok(command).expect(command);
    ok("ip link add eth0 type veth peer name eth1");
    ok("ip link set eth0 up");
    ok("ip link set eth1 up");
    for name in ["all", "default", "eth0", "eth1"] {
        ok(&format!("sysctl -q -w net.ipv4.conf.{name}.rp_filter=0"));
    }
    host
}

/// Levels and remedies of a check.
fn found<'a>(findings: &'a [Value], check: &str) -> Vec<(&'a str, &'a str, &'a str)> {
    let text = |finding: &'a Value, field: &str| finding[field].as_str().expect("a text");
    let of = findings.iter().filter(|finding| finding["check"] == check);
    of.map(|one| (text(one, "level"), text(one, "what"), text(one, "remedy")))
        .collect()
}

/// One finding of a check, whose sentence and remedy hold these words.
fn names(findings: &[Value], check: &str, level: &str, words: &[&str]) {
    let all = found(findings, check);
    let fits = all.iter().any(|(own, what, remedy)| {
        let whole = format!("{what} {remedy}");
        *own == level && words.iter().all(|word| whole.contains(word))
    });
    assert!(fits, "{check} {level} {words:?}: {findings:#?}");
}

#[test]
fn a_sound_interface_has_no_problem() {
    let host = host();
    let (sound, findings) = doctor(&host, "eth0 --all");
    assert!(sound, "{findings:#?}");
    for check in ["interface", "lro", "foreign_xdp", "rp_filter", "driver"] {
        assert_eq!(
            found(&findings, check).first().map(|one| one.0),
            Some("ok"),
            "{check}"
        );
    }
    names(&findings, "driver", "ok", &["veth", "native XDP"]);
    names(
        &findings,
        "daemon",
        "warning",
        &["/nonexistent/api.sock", "systemctl status"],
    );
}

#[test]
fn a_link_that_is_down_or_without_a_carrier() {
    let host = host();
    host.ok("ip link set eth0 down").expect("down");
    let (sound, findings) = doctor(&host, "eth0 eth1");
    assert!(!sound);
    names(
        &findings,
        "interface",
        "problem",
        &["it is down", "ip link set eth0 up"],
    );
    names(&findings, "interface", "problem", &["no carrier"]);
}

#[test]
fn somebody_else_s_programs() {
    let host = host();
    let dir = tempfile::tempdir().expect("a folder");
    let (source, object) = (dir.path().join("x.c"), dir.path().join("x.o"));
    let text = "__attribute__((section(\"xdp\"), used)) int stranger(void *ctx) { return 2; }\n\
                __attribute__((section(\"tc\"), used)) int guest(void *ctx) { return 0; }\n\
                __attribute__((section(\"license\"), used)) char _license[] = \"GPL\";\n";
    std::fs::write(&source, text).expect("a file");
    let path = |path: &Path| path.to_str().expect("a name").to_owned();
    let (source, object) = (path(&source), path(&object));
    process::run(&[
        "clang", "-O2", "-g", "-target", "bpf", "-c", &source, "-o", &object,
    ])
    .expect("clang");
    host.ok(&format!("ip link set dev eth0 xdp obj {object} sec xdp"))
        .expect("attached");
    host.ok("tc qdisc add dev eth0 clsact").expect("a qdisc");
    host.ok(&format!(
        "tc filter add dev eth0 ingress bpf da obj {object} sec tc"
    ))
    .expect("a filter");
    let (sound, findings) = doctor(&host, "eth0");
    assert!(!sound);
    names(
        &findings,
        "foreign_xdp",
        "problem",
        &["stranger", "ip link set eth0 xdp off"],
    );
    names(
        &findings,
        "foreign_tc",
        "warning",
        &["(program ", "tc ingress", "tc filter show dev eth0"],
    );
}

/// What the daemon says of itself is told as it is meant.
#[test]
fn a_daemon_that_is_not_well() {
    let broken = |id: &str, kind: v1::NicKind, detail: &str| v1::NicStatus {
        nic: Some(v1::Nic {
            id: id.into(),
            kind: kind.into(),
            ..Default::default()
        }),
        state: v1::PortState::Broken.into(),
        detail: detail.into(),
        ..Default::default()
    };
    let answer = move |method: &str| -> Option<Messages> {
        let message = match method {
            "GetStatus" => v1::Status {
                warnings: vec!["network 7 hears nobody".into()],
                ..Default::default()
            }
            .encode_to_vec(),
            "ListNics" => v1::ListNicsResponse {
                nics: vec![
                    broken("guest", v1::NicKind::VhostUser, "a ring is too long"),
                    broken("container", v1::NicKind::Veth, "there is no namespace"),
                ],
                unmade: vec![],
            }
            .encode_to_vec(),
            "ListRouterInterfaces" => v1::ListRouterInterfacesResponse {
                interfaces: vec![v1::RouterInterface {
                    name: "eth0".into(),
                    mode: v1::XdpMode::Unspecified.into(),
                    why: "another program is there".into(),
                }],
            }
            .encode_to_vec(),
            "ListBalancerInterfaces" => {
                let interface =
                    |name: &str, mode: v1::XdpMode, detail: &str| v1::BalancerInterface {
                        name: name.into(),
                        mode: mode.into(),
                        detail: detail.into(),
                    };
                v1::ListBalancerInterfacesResponse {
                    interfaces: vec![
                        interface("eth0", v1::XdpMode::Native, "what is sent is lost"),
                        interface("eth1", v1::XdpMode::Generic, ""),
                    ],
                }
                .encode_to_vec()
            }
            _ => return None,
        };
        Some(Box::new(iter::once(message)))
    };
    let host = host();
    let dir = tempfile::tempdir().expect("a folder");
    let stub = GrpcStub::start_with(dir.path(), answer);
    let (sound, findings) = doctor_of(&stub.endpoint, &host, "--all");
    assert!(!sound);
    names(&findings, "daemon", "ok", &["it answers"]);
    names(&findings, "warning", "warning", &["network 7 hears nobody"]);
    for words in [
        ["its guest broke the protocol: a ring is too long", "guest"],
        ["it is broken: there is no namespace", "mend"],
    ] {
        names(&findings, "nic_broken", "problem", &words);
    }
    for what in [
        "the router's program is not attached: another program is there",
        "the load balancer's program does not do all that it should: what is sent is lost",
    ] {
        names(&findings, "xdp_mode", "problem", &[what]);
    }
    let behind = found(&findings, "xdp_mode");
    let behind: Vec<_> = behind.iter().filter(|one| one.0 == "warning").collect();
    assert_eq!(behind.len(), 1, "{behind:?}");
    assert!(behind[0].1.ends_with("(veth), not in it"), "{behind:?}");
}

#[test]
fn strict_source_filters() {
    let host = host();
    host.ok("sysctl -q -w net.ipv4.conf.eth0.rp_filter=1")
        .expect("set");
    let (_, findings) = doctor(&host, "eth0");
    names(
        &findings,
        "rp_filter",
        "warning",
        &["strict", "net/ipv4/conf/eth0/rp_filter=2"],
    );
}

/// What is the machine's and cannot be made otherwise is laid over its files.
#[test]
fn a_kernel_a_clock_and_memory_that_are_not_as_they_should_be() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut script = String::new();
    for (name, text, over) in [
        ("release", "4.19.0-26-amd64\n", "/proc/sys/kernel/osrelease"),
        ("jit", "0\n", "/proc/sys/net/core/bpf_jit_enable"),
        (
            "memory",
            "HugePages_Total:       0\nHugePages_Free:        0\n",
            "/proc/meminfo",
        ),
        (
            "clock",
            "hpet\n",
            "/sys/devices/system/clocksource/clocksource0/current_clocksource",
        ),
    ] {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("a file");
        script += &format!(
            "[ ! -e {over} ] || mount --bind {} {over} || exit 99; ",
            path.display()
        );
    }
    script += &format!(
        "exec {} -e unix:/nonexistent/api.sock --json doctor lo",
        env!("CARGO_BIN_EXE_butterfly")
    );
    let mut command = Command::new("unshare");
    let output = command
        .args(["--mount", "sh", "-c", &script])
        .output()
        .expect("unshare");
    let text = String::from_utf8_lossy(&output.stdout);
    let findings: Vec<Value> = serde_json::from_str(&text)
        .unwrap_or_else(|e| panic!("{text}{}: {e}", String::from_utf8_lossy(&output.stderr)));
    assert_eq!(output.status.code(), Some(1));
    names(
        &findings,
        "kernel_version",
        "problem",
        &["4.19.0-26-amd64", "boot a newer kernel"],
    );
    names(&findings, "huge_pages", "note", &["vm.nr_hugepages"]);
    if Path::new("/proc/sys/net/core/bpf_jit_enable").exists() {
        names(
            &findings,
            "bpf_jit",
            "warning",
            &["sysctl -w net.core.bpf_jit_enable=1"],
        );
    }
    let source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    if Path::new(source).exists() {
        names(&findings, "clock", "warning", &["hpet", "clocksource=tsc"]);
    }
}

#[test]
fn an_interface_that_is_not_there_is_a_mistake() {
    let host = host();
    let pid = host.pid().to_string();
    let words = [
        "nsenter",
        "-t",
        &pid,
        "-n",
        env!("CARGO_BIN_EXE_butterfly"),
        "-e",
        "unix:/n",
        "doctor",
        "eth7",
    ];
    let output = process::output(&words).expect("butterfly");
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("there is no interface 'eth7'"), "{said}");
}
