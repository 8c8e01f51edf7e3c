//! `butterfly bench forward`: over cables that it makes, and between interfaces that are named,
//! through this host and through another. It leaves nothing behind, and takes nothing but its own
//! frames.

use serde_json::Value;
use testkit::netns::Namespace;
use testkit::{PATIENCE, process, wait_for};

const OWN: &str = env!("CARGO_BIN_EXE_butterfly");

/// The address of `in`.
const GATEWAY: &str = "02:00:00:00:00:01";

/// A host that forwards from `in` to `out`, whose cables end at `source` and `sink`, here too.
fn host() -> Namespace {
    let host = Namespace::new().expect("a namespace");
    let setup = format!(
        "set -e
        ip link add in address {GATEWAY} type veth peer name source
        ip link add out type veth peer name sink address 02:00:00:00:00:02
        for name in in out source sink; do ethtool -K $name gro on; done
        for name in in out source sink; do ip link set $name up; done
        ip addr add 198.18.0.1/24 dev in; ip addr add 198.18.1.1/24 dev out
        ip neigh replace 198.18.1.2 lladdr 02:00:00:00:00:02 dev out
        ip route add 198.19.0.0/16 via 198.18.1.2
        sysctl -qw net.ipv4.ip_forward=1"
    );
    host.ok(&setup).expect("a router");
    host
}

fn table(said: &str) -> Value {
    serde_json::from_str(said).unwrap_or_else(|e| panic!("{said}: {e}"))
}

fn number(of: &Value, path: &str) -> f64 {
    let value = of.pointer(path).and_then(Value::as_f64);
    value.unwrap_or_else(|| panic!("no {path} in {of}"))
}

#[test]
fn a_table_is_made_without_interfaces_of_one_s_own() {
    let links = || process::run(&["ip", "-o", "link"]).expect("ip");
    let before = links();
    let bench = |more: &[&str]| {
        let words = [OWN, "bench", "forward", "--seconds", "1"];
        process::run(&[&words[..], more].concat()).unwrap_or_else(|e| panic!("{e}"))
    };
    let said = table(&bench(&["--json", "--sizes", "64,1518"]));
    let rows = said["rows"].as_array().expect("rows");
    let sizes: Vec<_> = rows.iter().map(|row| row["size"].as_u64()).collect();
    assert_eq!(sizes, [Some(64), Some(1518)]);
    for row in rows {
        for who in ["kernel", "butterfly"] {
            let frames = number(row, &format!("/{who}/frames_per_second"));
            let offered = number(row, &format!("/{who}/offered/0"));
            assert!(frames > 1000.0 && frames <= offered * 1.01, "{row}");
            let bits = frames * number(row, "/size") * 8.0 / 1e9;
            let said = number(row, &format!("/{who}/gbit_per_second"));
            assert!((bits - said).abs() < 1e-9, "{row}");
        }
        // While the router had them it forwarded, and not the kernel.
        let share = number(row, "/by_router");
        assert!((0.99..1.01).contains(&share), "{row}");
        assert!(number(row, "/ratio") > 0.0, "{row}");
    }
    assert_eq!(said["places"][0], "in: native XDP", "{said}");
    let text = bench(&["--sizes", "128", "--mode", "tc"]);
    for part in [
        "in: at tc ingress",
        "SIZE  KERNEL/s",
        " RATIO",
        "hat limits",
    ] {
        assert!(text.contains(part), "no '{part}' in {text}");
    }
    assert_eq!(links(), before, "the cables are gone");
}

#[test]
fn it_measures_between_interfaces_that_are_named() {
    let host = host();
    let named = "bench forward --source source --sink sink";
    let through = format!("{OWN} {named} --through in,out --mode tc --json --sizes 64");
    let said = host.ok(&format!("{through} --seconds 1"));
    let row = table(&said.expect("a measurement"))["rows"][0].clone();
    assert!(number(&row, "/kernel/frames_per_second") > 1000.0, "{row}");
    let share = number(&row, "/by_router");
    assert!((0.99..1.01).contains(&share), "{row}");
    // What forwards may be another host, whose address is all that is known.
    let said = host.ok(&format!(
        "{OWN} {named} --mac {GATEWAY} --seconds 1 --sizes 64"
    ));
    let said = said.expect("a measurement");
    assert!(said.contains("SIZE  FORWARDED/s"), "{said}");
    // Killed, it leaves no program behind, and the host forwards as before.
    let mut killed = host
        .start("killed", &format!("{through} --seconds 60"))
        .expect("butterfly");
    let programs = || host.ok("ip -o link show source; ip -o link show sink");
    wait_for("its programs", PATIENCE, || {
        Ok((programs()?.matches("xdp").count() >= 2).then_some(()))
    })
    .expect("it begins");
    killed.kill();
    assert!(!programs().expect("ip").contains("xdp"));
}

#[test]
fn what_keeps_it_from_measuring_it_says() {
    let host = host();
    let said = |words: &str| {
        let text = host.ok(&format!("{OWN} bench forward {words} 2>&1; true"));
        text.expect("a shell")
    };
    let named = "--source source --sink sink";
    for (words, part) in [
        (
            "--source source --sink nothing0 --through in,out".to_owned(),
            "interface nothing0: there is no such interface",
        ),
        (named.to_owned(), "who forwards? --through IN,OUT"),
        (
            format!("{named} --through in"),
            "--through in: two interfaces",
        ),
        (
            format!("{named} --mac 02:00:00:00:00:01 --mode tc"),
            "--mode is of this host's router",
        ),
        ("--sizes 63".to_owned(), "63 is not in 64..=1518"),
        ("--destinations 3".to_owned(), "3: it is no power of two"),
        (
            "--to 198.19.0.0/30 --destinations 4".to_owned(),
            "198.19.0.0/30: it has no 4 addresses",
        ),
        (
            format!("{named} --through in,out --to 203.0.113.0/24 --destinations 16"),
            "the kernel forwards nothing from source to sink: is there a route to 203.0.113.0/24",
        ),
    ] {
        let text = said(&words);
        assert!(text.contains(part), "{words}: no '{part}' in {text}");
    }
    host.ok("ethtool -K in gro off").expect("ethtool");
    let text = said(&format!("{named} --mac {GATEWAY}"));
    assert!(text.contains("source sends no frames of XDP"), "{text}");
}
