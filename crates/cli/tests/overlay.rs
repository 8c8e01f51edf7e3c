//! Who is where, against the real daemon: hosts, networks and bindings as a person sees and changes
//! them.

mod common;

use common::butterfly;
use common::daemon::Daemon;

#[test]
fn a_network_of_two_hosts_is_told_and_seen() {
    let daemon = Daemon::start();
    assert_eq!(daemon.ok("network list"), "");
    daemon.ok("nic add --id a --mac 52:54:00:12:34:01 --vni 42 --ip 42.0.0.1");
    assert_eq!(
        daemon.ok("network list"),
        "VNI  LEARNING  FLOOD                 FROM     NICS  HOSTS  BINDINGS\n\
         \x2042  on        multicast 230.0.0.42  anybody     1      0         0\n"
    );
    // One that is not known is in no network: it is not made to leave one, and all are heard still.
    daemon.ok("host del 192.168.0.2 --vni 42");
    assert_eq!(daemon.ok("host list"), "");
    assert!(
        daemon
            .ok("network show 42")
            .contains("from:      anybody (by default)\n")
    );
    daemon.ok("host add 192.168.0.2 --vni 42 --name rack-2 + host add 192.168.0.3 --every-vni");
    daemon.ok(
        "binding add --vni 42 --mac 52:54:00:12:34:02 --ip 42.0.0.2 fd00::2 --host 192.168.0.2",
    );
    assert_eq!(
        daemon.ok("host list"),
        "ADDRESS      NAME    BINDINGS  VNIS\n\
         192.168.0.2  rack-2         1  42\n\
         192.168.0.3  -              0  every\n"
    );
    assert_eq!(
        daemon.ok("host show 192.168.0.2"),
        "address:  192.168.0.2\nname:     rack-2\nbindings: 1\nvnis:     42\n"
    );
    let unknown = butterfly(&daemon.v1, "host show FD00:0::1");
    assert_eq!(
        (unknown.code, unknown.stderr.as_str()),
        (1, "butterfly: host fd00::1 is not known\n")
    );
    assert_eq!(
        daemon.ok("network show 42"),
        "vni:       42\n\
         learning:  off (by default)\n\
         flood:     head-end (by default)\n\
         from:      hosts (by default)\n\
         dhcp:      nobody\n\
         routers:   nobody\n\
         nics:      1\n\
         bindings:  1\n\
         host:      192.168.0.2\n\
         host:      192.168.0.3\n"
    );
    let table = "VNI  MAC                HOST         IP\n 42  52:54:00:12:34:02  192.168.0.2  \
                 42.0.0.2 fd00::2\n";
    assert_eq!(daemon.ok("binding list"), table);
    assert_eq!(daemon.ok("binding show --vni 42 52:54:00:12:34:02"), table);
    daemon.ok(
        "network set 42 --learning on --flood off --from anybody --dhcp-server 192.168.0.3 \
         192.168.0.2 --router fd00::3",
    );
    let shown = daemon.ok("network show 42");
    assert!(
        shown.contains(
            "learning:  on (as said)\nflood:     off (as said)\nfrom:      anybody (as said)\n\
             dhcp:      192.168.0.2 192.168.0.3\nrouters:   fd00::3\n"
        ),
        "{shown}"
    );
    let refused = butterfly(&daemon.v1, "network set 42 --router 230.0.0.1");
    assert!(
        refused
            .stderr
            .contains("VNI 42: address '230.0.0.1' is not the address of one host"),
        "{refused:?}"
    );
    // Nobody is heard in a network of which nothing is known, as long as any host is.
    daemon.ok("nic add --id b --mac 52:54:00:12:34:09 --vni 43");
    assert!(
        daemon
            .ok("network show 43")
            .contains("from:      hosts (by default)\n")
    );
    daemon.ok("nic del b");

    let refused = butterfly(&daemon.v1, "host del 192.168.0.2");
    assert_eq!(
        (refused.code, refused.stderr.as_str()),
        (
            1,
            "butterfly: host '192.168.0.2' has 1 bindings: delete them with it, or first\n"
        )
    );
    daemon.ok("host del 192.168.0.2 --bindings + host del 192.168.0.3 + network set 42");
    assert_eq!(
        (daemon.ok("host list"), daemon.ok("binding list")),
        Default::default()
    );
    let status = daemon.ok("status");
    assert!(
        status.contains("1 networks, 0 other hosts, 0 bindings"),
        "{status}"
    );
}

#[test]
fn a_whole_set_is_printed_compared_and_set() {
    let daemon = Daemon::start();
    daemon.ok("binding add --vni 42 --mac 52:54:00:12:34:02 --host 192.168.0.2");
    daemon.ok("binding add --vni 43 --mac 52:54:00:12:34:02 --host 192.168.0.2");
    let file = daemon.dir().join("bindings.json");
    let listed = daemon.ok("binding list --json");
    std::fs::write(&file, listed.replace("192.168.0.2", "192.168.0.3")).unwrap();
    let file = file.display();
    let planned = daemon.ok(&format!("binding set {file} --dry-run"));
    assert_eq!(
        planned,
        "+ host 192.168.0.3\n\
         ~ binding 42 52:54:00:12:34:02\n    host: 192.168.0.2 -> 192.168.0.3\n\
         ~ binding 43 52:54:00:12:34:02\n    host: 192.168.0.2 -> 192.168.0.3\n"
    );
    assert_eq!(daemon.ok("binding list --json"), listed);
    let refused = butterfly(&daemon.v1, &format!("binding set {file} --vni 42"));
    assert_eq!(
        (refused.code, refused.stderr.as_str()),
        (
            1,
            "butterfly: binding of 52:54:00:12:34:02: VNI '43' is not 42, whose bindings are to be \
             replaced\n"
        )
    );
    assert_eq!(daemon.ok(&format!("binding set {file}")), planned);
    assert_eq!(daemon.ok(&format!("binding set {file}")), "");
    // The whole configuration has the bindings too; v0's has no words for them.
    let config = daemon.ok("config");
    assert!(
        config.contains("192.168.0.3") && config.contains("bindings"),
        "{config}"
    );
    let dumped = butterfly(&daemon.v1, "dump");
    assert!(
        dumped.stderr.contains("2 bindings: API v0 has none"),
        "{dumped:?}"
    );
}

/// A list of some bindings is set as these, and not as all there are.
#[test]
fn a_set_of_bindings_deletes_no_others_and_not_many() {
    let daemon = Daemon::start();
    let add = |vni: u32, n: u8| {
        let host = if n > 6 { "192.168.0.3" } else { "192.168.0.2" };
        format!("binding add --vni {vni} --mac 52:54:00:12:34:{n:02x} --host {host}")
    };
    let lines = (1..=12).flat_map(|n| [add(42, n), add(43, n)]);
    daemon.ok(&lines.collect::<Vec<_>>().join(" + "));
    let count = || daemon.ok("binding list").lines().skip(1).count();
    let file = daemon.dir().join("bindings.json");
    let set = |text: &str, options: &str| {
        std::fs::write(&file, text).unwrap();
        butterfly(
            &daemon.v1,
            &format!("binding set {} {options}", file.display()),
        )
    };
    let refused = |text: &str, options: &str, why: &str| {
        let before = count();
        let ran = set(text, options);
        let error = ran.stderr.replace(&file.display().to_string(), "FILE");
        assert_eq!((ran.code, error.trim_end()), (2, why), "{text}");
        assert_eq!(count(), before, "{text}");
    };
    let hint = "--dry-run shows what, --prune does it";
    let loss = |deleted: usize, of: usize| {
        format!("butterfly: FILE would delete {deleted} of {of} bindings: {hint}")
    };
    // What was listed of a network is set in that one.
    let listed = daemon.ok("binding list --vni 42 --json");
    assert_eq!(set(&listed, "").stdout, "");
    let mut fewer: serde_json::Value = serde_json::from_str(&listed).unwrap();
    fewer["bindings"].as_array_mut().unwrap().remove(0);
    assert_eq!(
        set(&fewer.to_string(), "").stdout,
        "- binding 42 52:54:00:12:34:01\n"
    );
    assert_eq!(count(), 23);
    // As it was printed before, without the network, it would delete those of the other one.
    fewer.as_object_mut().unwrap().remove("vni");
    refused(&fewer.to_string(), "", &loss(12, 23));
    // A host's bindings are not all of them.
    let of_host = daemon.ok("binding list --vni 42 --host 192.168.0.3 --json");
    let ran = set(&of_host, "");
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(
        ran.stderr.contains("holds no whole set of bindings") && ran.stderr.contains("'endpoint'"),
        "{ran:?}"
    );
    refused("", "", &loss(23, 23));
    refused("{}", "--vni 42", &loss(11, 11));
    assert_eq!(set("", "--dry-run").stdout.lines().count(), 23);
    assert_eq!(count(), 23);
    // Few of an empty one are refused, too, and all that is asked for is done.
    daemon.ok("binding add --vni 44 --mac 52:54:00:12:34:01 --host 192.168.0.2");
    refused("{}", "--vni 44", &loss(1, 1));
    assert_eq!(set("{}", "--vni 44 --yes").code, 0);
    assert_eq!(set(&fewer.to_string(), "--prune").code, 0);
    assert_eq!(count(), 11);
    assert_eq!(set("{}", "--prune").code, 0);
    assert_eq!(count(), 0);
    assert_eq!(set("", "").code, 0, "nothing is left to delete");
}
