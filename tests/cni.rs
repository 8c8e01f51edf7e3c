//! `butterfly-cni` as a runtime calls it: by the project's own cnitool where it is installed
//! (`tools/setup.sh`), and directly.

use butterfly_tests::hosts::{Family, Hosts};
use butterfly_tests::lab::check;
use butterfly_tests::{Daemon, program, trials};
use libtest_mimic::{Arguments, Failed, Trial};
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use testkit::netns::Namespace;
use testkit::{PATIENCE, Result, process, wait_for};

/// Containers that come and go in one run. `BUTTERFLY_CNI_ROUNDS` says another number; with
/// `BUTTERFLY_CNI_P99_MS` (`make soak-cni`) 99 in 100 have to take less than that.
const ROUNDS: usize = 100;

type Body = fn() -> Result<()>;

fn main() {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let trials: [(&str, Body); 18] = trials![
        a_pod_is_added_checked_and_deleted,
        what_somebody_changed_in_the_container_is_told,
        a_second_interface_and_what_was_there_before,
        groups_and_network_by_arguments,
        what_fails_leaves_nothing,
        a_second_add_of_another_address_takes_no_lease,
        a_lease_stays_as_long_as_its_nic_may,
        what_no_container_uses_is_collected,
        what_could_not_be_made_is_collected_too,
        what_other_plugins_gave_is_collected,
        a_plugin_for_addresses_that_fails_is_told_to_take_back,
        what_cannot_be_collected_keeps_nothing_else_and_is_found_again,
        nothing_that_is_lost_sends_while_another_plugin_hangs,
        by_cnitool_and_host_local,
        other_plugins_set_up_its_interface,
        behind_a_plugin_that_made_the_interface,
        pods_on_two_hosts_under_groups,
        many_come_and_go_and_leave_nothing,
    ];
    let trials = trials.map(|(name, body)| Trial::test(name, move || body().map_err(Failed::from)));
    libtest_mimic::run(&arguments, trials.into()).exit();
}

/// A daemon, and a folder for leases.
struct Host {
    daemon: Daemon,
    dir: tempfile::TempDir,
}

/// Pods may ping each other.
const PODS: &str = "sg add pods + sg rule add pods --ip-proto icmp --sg-members pods";

/// The configuration of the network `pods`: addresses from these ranges, leases in `dir`.
fn network(daemon: &Daemon, dir: &Path, name: &str, version: &str, ranges: &Value) -> Value {
    json!({
        "cniVersion": version, "name": name, "type": "butterfly-cni",
        "socket": daemon.endpoint(), "vni": 42, "groups": ["pods"], "mtu": 1400,
        "ipam": {
            "type": "butterfly",
            "dataDir": dir,
            "ranges": ranges,
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
        },
    })
}

impl Host {
    fn new() -> Result<Host> {
        let daemon = Daemon::start(&[])?;
        daemon.cli(PODS)?;
        let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
        Ok(Host { daemon, dir })
    }

    /// A network of ours with our own addresses.
    fn network(&self, name: &str, version: &str) -> Value {
        let ranges = json!([[{"subnet": "10.4.0.0/16"}], [{"subnet": "fd04::/64"}]]);
        network(&self.daemon, self.dir.path(), name, version, &ranges)
    }

    fn nics(&self) -> Result<Vec<String>> {
        Ok(self
            .daemon
            .cli("nic list")?
            .split_whitespace()
            .map(str::to_owned)
            .collect())
    }

    fn leases(&self, network: &str) -> Result<usize> {
        let file = self.dir.path().join(network).join("leases.json");
        let text = std::fs::read_to_string(&file).unwrap_or_else(|_| r#"{"leases":{}}"#.into());
        let list: Value = serde_json::from_str(&text).map_err(|e| e.to_string())?;
        Ok(list["leases"].as_object().map_or(0, serde_json::Map::len))
    }
}

/// One call; the answer, or the error as JSON.
fn call(
    command: &str,
    container: &str,
    netns: &str,
    ifname: &str,
    more: &[(&str, &str)],
    config: &Value,
) -> std::result::Result<Value, Value> {
    let mut program = Command::new(program("butterfly-cni"));
    program.env_clear();
    for (name, value) in [
        ("CNI_COMMAND", command),
        ("CNI_CONTAINERID", container),
        ("CNI_NETNS", netns),
        ("CNI_IFNAME", ifname),
        ("CNI_PATH", ""),
    ] {
        program.env(name, value);
    }
    program.envs(more.iter().copied());
    let failed = |e: std::io::Error| json!({ "msg": e.to_string() });
    let child = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = child.map_err(failed)?;
    if let Some(mut input) = child.stdin.take() {
        let _ = input.write_all(config.to_string().as_bytes());
    }
    let output = child.wait_with_output().map_err(failed)?;
    let answer = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    if output.status.success() {
        Ok(answer)
    } else {
        Err(answer)
    }
}

fn netns(of: &Namespace) -> String {
    format!("/proc/{}/ns/net", of.pid())
}

fn with_previous(config: &Value, previous: &Value) -> Value {
    let mut config = config.clone();
    config["prevResult"] = previous.clone();
    config
}

fn told(answer: std::result::Result<Value, Value>) -> Result<Value> {
    answer.map_err(|error| error.to_string())
}

/// It is refused, for this reason.
fn refused(why: &str, answer: std::result::Result<Value, Value>) -> Result<()> {
    let error = answer.err().unwrap_or_default();
    let message = error["msg"].as_str().unwrap_or_default();
    check(
        message.contains(why),
        &format!("it is refused with '{why}': {error}"),
    )
}

fn a_pod_is_added_checked_and_deleted() -> Result<()> {
    let host = Host::new()?;
    for version in ["0.1.0", "0.4.0", "1.0.0", "1.1.0"] {
        let config = host.network("pods", version);
        let (one, two) = (Namespace::new()?, Namespace::new()?);
        let add = |name: &str, of: &Namespace| call("ADD", name, &netns(of), "eth0", &[], &config);
        let (first, second) = (told(add("one", &one))?, told(add("two", &two))?);
        assert_eq!(first["cniVersion"], version);
        let address = |answer: &Value| {
            let text = match version {
                "0.1.0" => &answer["ip4"]["ip"],
                _ => &answer["ips"][0]["address"],
            };
            text.as_str()
                .unwrap_or_default()
                .split('/')
                .next()
                .unwrap_or_default()
                .to_owned()
        };
        one.ok(&format!("ping -q -c 1 -W 2 {}", address(&second)))?;
        check(
            one.ok("ip route")?
                .contains("default via 10.4.0.1 dev eth0"),
            "the default route",
        )?;
        check(
            one.ok("ip -6 route")?.contains("default via fd04::1"),
            "that of IPv6",
        )?;
        check(
            one.ok("ip link show dev eth0")?.contains("mtu 1400"),
            "the MTU",
        )?;
        // Twice is no error, and the same.
        assert_eq!(told(add("one", &one))?, first);
        if version != "0.1.0" {
            let again = with_previous(&config, &first);
            told(call("CHECK", "one", &netns(&one), "eth0", &[], &again))?;
            one.ok(&format!("ip addr del {}/16 dev eth0", address(&first)))?;
            refused(
                "has not the address",
                call("CHECK", "one", &netns(&one), "eth0", &[], &again),
            )?;
        }
        told(call("DEL", "one", &netns(&one), "eth0", &[], &config))?;
        check(!one.succeeds("ip link show dev eth0")?, "it is gone")?;
        // Its namespace may be gone, and it may be deleted already.
        drop(two);
        told(call("DEL", "two", "", "eth0", &[], &config))?;
        told(call("DEL", "two", "", "eth0", &[], &config))?;
        assert_eq!((host.nics()?.len(), host.leases("pods")?), (0, 0));
    }
    let versions = told(call(
        "VERSION",
        "",
        "",
        "",
        &[],
        &json!({"cniVersion": "1.0.0"}),
    ))?;
    assert_eq!(
        versions["supportedVersions"].as_array().map(Vec::len),
        Some(7)
    );
    told(call(
        "STATUS",
        "",
        "",
        "",
        &[],
        &host.network("pods", "1.1.0"),
    ))
    .map(drop)
}

/// CHECK fails by each thing that somebody has changed in the container, and passes again when it
/// is as before.
fn what_somebody_changed_in_the_container_is_told() -> Result<()> {
    let host = Host::new()?;
    for version in ["0.4.0", "1.1.0"] {
        let (pod, stranger) = (Namespace::new()?, Namespace::new()?);
        let mut config = host.network("pods", version);
        config["ipam"]["routes"] = json!([
            {"dst": "0.0.0.0/0"}, {"dst": "::/0"},
            {"dst": "10.9.0.0/16", "gw": "10.4.0.7"},
        ]);
        let arguments = [("CNI_ARGS", "IP=10.4.0.9,fd04::9")];
        let added = told(call(
            "ADD",
            "pod",
            &netns(&pod),
            "eth0",
            &arguments,
            &config,
        ))?;
        let check_of = |previous: &Value, netns: &str| {
            let config = with_previous(&config, previous);
            call("CHECK", "pod", netns, "eth0", &[], &config)
        };
        let as_added = || check_of(&added, &netns(&pod));
        told(as_added())?;
        for (change, back, why) in [
            (
                "ip route del default",
                "ip route add default via 10.4.0.1",
                "no route to 0.0.0.0/0",
            ),
            (
                "ip route replace default via 10.4.0.3",
                "ip route replace default via 10.4.0.1",
                "no route to 0.0.0.0/0 via 10.4.0.1",
            ),
            (
                "ip -6 route del default",
                "ip -6 route add default via fd04::1 dev eth0",
                "no route to ::/0",
            ),
            (
                "ip route del 10.9.0.0/16",
                "ip route add 10.9.0.0/16 via 10.4.0.7",
                "no route to 10.9.0.0/16 via 10.4.0.7",
            ),
            (
                "ip route replace blackhole 10.9.0.0/16",
                "ip route replace 10.9.0.0/16 via 10.4.0.7",
                "no route to 10.9.0.0/16 via 10.4.0.7",
            ),
            (
                "ip link set eth0 mtu 1300",
                "ip link set eth0 mtu 1400",
                "has the MTU 1300, not 1400",
            ),
            (
                "ip -6 addr del fd04::9/64 dev eth0",
                "ip -6 addr add fd04::9/64 dev eth0 nodad",
                "has not the address fd04::9",
            ),
            (
                "ip addr add 10.4.0.9/24 dev eth0 && ip addr del 10.4.0.9/16 dev eth0",
                "ip addr add 10.4.0.9/16 dev eth0 && ip addr del 10.4.0.9/24 dev eth0 && \
                 ip route replace default via 10.4.0.1 && \
                 ip route replace 10.9.0.0/16 via 10.4.0.7",
                "has 10.4.0.9/24, not 10.4.0.9/16",
            ),
        ] {
            let within = |line: &str| pod.ok(line);
            within(change)?;
            refused(why, as_added()).map_err(|e| format!("{change}: {e}"))?;
            within(back)?;
            told(as_added()).map_err(|e| format!("{back}: {e}"))?;
        }
        // What ADD is said to have answered is of this interface, and of this sandbox.
        refused(
            "no interface eth0 in a sandbox",
            check_of(&json!({"cniVersion": version}), &netns(&pod)),
        )?;
        refused(
            &format!("CNI_NETNS is {}", netns(&stranger)),
            check_of(&added, &netns(&stranger)),
        )?;
        let mut none = added.clone();
        none["ips"] = json!([]);
        refused("prevResult has not 10.4.0.9", check_of(&none, &netns(&pod)))?;
        // Another path to the same namespace is the same one.
        let other = format!("/proc/{0}/task/{0}/ns/net", pod.pid());
        told(check_of(&added, &other))?;
        told(call("DEL", "pod", &netns(&pod), "eth0", &[], &config))?;
    }
    Ok(())
}

fn a_second_interface_and_what_was_there_before() -> Result<()> {
    let host = Host::new()?;
    let pod = Namespace::new()?;
    let (first, mut second) = (host.network("one", "1.1.0"), host.network("two", "1.1.0"));
    second["vni"] = 43.into();
    second["ipam"]["routes"] = json!([]);
    second["ipam"]["ranges"] = json!([[{"subnet": "10.5.0.0/24"}]]);
    let before = told(call("ADD", "pod", &netns(&pod), "eth0", &[], &first))?;
    let second = with_previous(&second, &before);
    let both = told(call("ADD", "pod", &netns(&pod), "net1", &[], &second))?;
    assert_eq!(both["interfaces"].as_array().map(Vec::len), Some(4));
    let ips = both["ips"].as_array().cloned().unwrap_or_default();
    assert_eq!(ips.last().map(|ip| ip["interface"].clone()), Some(json!(3)));
    check(
        pod.ok("ip addr show dev net1")?.contains("10.5.0.2/24"),
        "the second's address",
    )?;
    let checked = with_previous(&second, &both);
    told(call("CHECK", "pod", &netns(&pod), "net1", &[], &checked))?;
    told(call("DEL", "pod", &netns(&pod), "net1", &[], &second))?;
    check(
        pod.succeeds("ip link show dev eth0")?,
        "the first one stays",
    )?;
    told(call("DEL", "pod", &netns(&pod), "eth0", &[], &first)).map(drop)
}

fn groups_and_network_by_arguments() -> Result<()> {
    let host = Host::new()?;
    let pod = Namespace::new()?;
    let config = host.network("pods", "1.1.0");
    let arguments = "IgnoreUnknown=1;K8S_POD_NAME=a;BUTTERFLY_VNI=7;BUTTERFLY_GROUPS=web,ssh;\
                     IP=10.4.9.9;MAC=02:11:22:33:44:55";
    let arguments = [("CNI_ARGS", arguments)];
    told(call(
        "ADD",
        "pod",
        &netns(&pod),
        "eth0",
        &arguments,
        &config,
    ))?;
    let nic = host.daemon.json("nic details pods:pod:eth0")?[0]["nic"].clone();
    assert_eq!(
        (&nic["vni"], &nic["mac"]),
        (&json!(7), &json!("02:11:22:33:44:55"))
    );
    assert_eq!(nic["security_groups"], json!(["web", "ssh"]), "{nic}");
    check(
        pod.ok("ip addr show dev eth0")?.contains("10.4.9.9/16"),
        "the address asked for",
    )?;
    told(call("DEL", "pod", &netns(&pod), "eth0", &[], &config))?;
    let mut config = config;
    config["args"] = json!({"butterfly": {"vni": 8, "groups": ["db"]}});
    told(call("ADD", "pod", &netns(&pod), "eth0", &[], &config))?;
    let nic = host.daemon.json("nic details pods:pod:eth0")?[0]["nic"].clone();
    assert_eq!(
        (&nic["vni"], &nic["security_groups"]),
        (&json!(8), &json!(["db"]))
    );
    told(call("DEL", "pod", &netns(&pod), "eth0", &[], &config)).map(drop)
}

fn what_fails_leaves_nothing() -> Result<()> {
    let host = Host::new()?;
    let pod = Namespace::new()?;
    pod.ok("ip link add taken type veth peer name other")?;
    let config = host.network("pods", "1.1.0");
    let mut none = config.clone();
    none["vni"] = Value::Null;
    let mut away = config.clone();
    away["socket"] = "unix:/nonexistent/api.sock".into();
    for (config, netns, ifname, code) in [
        (&config, netns(&pod), "taken", 100),
        (&config, "/run/netns/bf-not-there".into(), "eth0", 100),
        (&none, netns(&pod), "eth0", 7),
        (&away, netns(&pod), "eth0", 11),
    ] {
        let error = call("ADD", "pod", &netns, ifname, &[], config)
            .err()
            .unwrap_or_default();
        assert_eq!(error["code"], code, "{error}");
        assert_eq!(
            (host.nics()?.len(), host.leases("pods")?),
            (0, 0),
            "{error}"
        );
    }
    let error = call("STATUS", "", "", "", &[], &away)
        .err()
        .unwrap_or_default();
    assert_eq!(error["code"], 50, "{error}");
    let error = call("FROB", "", "", "", &[], &config)
        .err()
        .unwrap_or_default();
    assert_eq!(error["code"], 4, "{error}");
    Ok(())
}

/// A second ADD that asks for another address is refused, and leaves NIC and leases as they are.
fn a_second_add_of_another_address_takes_no_lease() -> Result<()> {
    let host = Host::new()?;
    let pod = Namespace::new()?;
    let config = host.network("pods", "1.1.0");
    let add = |ip: &str| {
        let arguments = [("CNI_ARGS", ip)];
        call("ADD", "pod", &netns(&pod), "eth0", &arguments, &config)
    };
    let first = told(add("IP=10.4.0.9,fd04::9"))?;
    refused("butterflyd refuses", add("IP=10.4.0.10,fd04::10"))?;
    assert_eq!(host.leases("pods")?, 2, "those of the first one");
    assert_eq!(told(add("IP=10.4.0.9,fd04::9"))?, first);
    told(call(
        "CHECK",
        "pod",
        &netns(&pod),
        "eth0",
        &[],
        &with_previous(&config, &first),
    ))?;
    // What it did not get somebody else gets.
    let other = Namespace::new()?;
    let arguments = [("CNI_ARGS", "IP=10.4.0.10")];
    told(call(
        "ADD",
        "other",
        &netns(&other),
        "eth0",
        &arguments,
        &config,
    ))
    .map(drop)
}

/// The daemon is killed between the addresses and the NIC: nobody knows whether there is one that
/// sends from them, so they are given back by DEL alone, when it is answered.
fn a_lease_stays_as_long_as_its_nic_may() -> Result<()> {
    let mut host = Host::new()?;
    let pod = Namespace::new()?;
    let mut config = host.network("pods", "1.1.0");
    config["ipam"] = json!({"type": "killing"});
    let calls = host.dir.path().join("calls");
    let script = format!(
        "#!/bin/sh\necho $CNI_COMMAND >> {}\n[ $CNI_COMMAND = ADD ] || exit 0\nkill -9 {}\n\
         echo '{{\"cniVersion\": \"1.1.0\", \"ips\": [{{\"address\": \"10.4.0.2/16\"}}]}}'\n",
        calls.display(),
        host.daemon.pid(),
    );
    write_program(&host.dir.path().join("killing"), &script)?;
    let path = host.dir.path().display().to_string();
    let path = [("CNI_PATH", path.as_str())];
    let calls = || std::fs::read_to_string(&calls).map_err(|e| e.to_string());
    for command in ["ADD", "DEL"] {
        let error = call(command, "pod", &netns(&pod), "eth0", &path, &config);
        assert_eq!(error.err().unwrap_or_default()["code"], 11, "{command}");
        assert_eq!(calls()?, "ADD\n", "{command}");
    }
    host.daemon.kill_and_restart()?;
    config["socket"] = host.daemon.endpoint().into();
    told(call("DEL", "pod", &netns(&pod), "eth0", &path, &config))?;
    assert_eq!(calls()?, "ADD\nDEL\n");
    Ok(())
}

/// What a lost container had of the plugin for addresses is given back by its DEL, since host-local
/// does nothing by a GC in any version; GC is passed on to those that know it (from 1.1.0 on).
fn what_other_plugins_gave_is_collected() -> Result<()> {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/cni");
    let debians = Path::new("/usr/lib/cni");
    for (version, folder, passed) in [("1.1.0", ours.as_path(), "GC \n"), ("1.0.0", debians, "")] {
        let real = folder.join("host-local");
        if !real.is_file() {
            eprintln!("skipped: no {} (tools/setup.sh)", real.display());
            continue;
        }
        let host = Host::new()?;
        let dir = host.dir.path();
        let script = format!(
            "#!/bin/sh\necho $CNI_COMMAND \"$CNI_CONTAINERID\" >> {}/calls\nexec {}\n",
            dir.display(),
            real.display(),
        );
        write_program(&dir.join("host-local"), &script)?;
        let path = dir.display().to_string();
        let path = [("CNI_PATH", path.as_str())];
        let (one, two) = (Namespace::new()?, Namespace::new()?);
        let config = with_host_local(&host, version);
        for (name, pod) in [("one", &one), ("two", &two)] {
            told(call("ADD", name, &netns(pod), "eth0", &path, &config))?;
        }
        let is_leased = |ip: &str| dir.join("pods").join(ip).is_file();
        assert_eq!(["10.6.0.2", "10.6.0.3"].map(is_leased), [true, true]);
        let mut gc = config.clone();
        gc["cni.dev/valid-attachments"] = json!([{"containerID": "one", "ifname": "eth0"}]);
        told(call("GC", "", "", "", &path, &gc))?;
        assert_eq!(host.nics()?, ["pods:one:eth0"]);
        assert_eq!(["10.6.0.2", "10.6.0.3"].map(is_leased), [true, false]);
        let calls = std::fs::read_to_string(dir.join("calls")).map_err(|e| e.to_string())?;
        assert_eq!(calls, format!("ADD one\nADD two\nDEL two\n{passed}"));
    }
    Ok(())
}

/// Of a container that does not run yet; what one sends from that runs stays its own.
fn a_plugin_for_addresses_that_fails_is_told_to_take_back() -> Result<()> {
    let host = Host::new()?;
    let pod = Namespace::new()?;
    let mut config = host.network("pods", "1.1.0");
    config["ipam"] = json!({"type": "moody"});
    let dir = host.dir.path().display();
    let script = format!(
        "#!/bin/sh\necho $CNI_COMMAND >> {dir}/calls\n[ $CNI_COMMAND = ADD ] || exit 0\n\
         [ -e {dir}/fails ] && echo '{{\"code\": 142, \"msg\": \"no\"}}' && exit 1\n\
         [ -e {dir}/babbles ] && echo '{{\"ips\": [{{\"address\": \"here\"}}]}}' && exit 0\n\
         echo '{{\"cniVersion\": \"1.1.0\", \"ips\": [{{\"address\": \"10.4.0.2/16\"}}]}}'\n",
    );
    write_program(&host.dir.path().join("moody"), &script)?;
    let path = dir.to_string();
    let path = [("CNI_PATH", path.as_str())];
    let calls = || {
        let file = host.dir.path().join("calls");
        let calls = std::fs::read_to_string(&file).map_err(|e| e.to_string())?;
        std::fs::remove_file(&file).map_err(|e| e.to_string())?;
        Ok::<_, String>(calls)
    };
    let add = || call("ADD", "pod", &netns(&pod), "eth0", &path, &config);
    let moods = ["fails", "babbles"].map(|mood| host.dir.path().join(mood));
    for mood in &moods {
        std::fs::write(mood, "").map_err(|e| e.to_string())?;
        check(add().is_err(), "it fails")?;
        assert_eq!(calls()?, "ADD\nDEL\n", "{}", mood.display());
        assert_eq!(host.nics()?.len(), 0);
        std::fs::remove_file(mood).map_err(|e| e.to_string())?;
    }
    told(add())?;
    assert_eq!(calls()?, "ADD\n");
    for mood in &moods {
        std::fs::write(mood, "").map_err(|e| e.to_string())?;
        check(add().is_err(), "it fails")?;
        assert_eq!(calls()?, "ADD\n", "{}", mood.display());
        pod.ok("ip addr show dev eth0 | grep 10.4.0.2/16")?;
        std::fs::remove_file(mood).map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// A plugin for addresses cannot take back what one of three lost containers had.
fn what_cannot_be_collected_keeps_nothing_else_and_is_found_again() -> Result<()> {
    let host = Host::new()?;
    let mut config = host.network("pods", "1.1.0");
    config["ipam"] = json!({"type": "stuck"});
    let dir = host.dir.path().display();
    let script = format!(
        "#!/bin/sh\necho $CNI_COMMAND $CNI_CONTAINERID >> {dir}/calls\n\
         [ $CNI_COMMAND$CNI_CONTAINERID = DELb ] && [ -e {dir}/fails ] && exit 1\n\
         case $CNI_CONTAINERID in a) n=2;; b) n=3;; *) n=4;; esac\n\
         [ $CNI_COMMAND = ADD ] || exit 0\n\
         echo '{{\"cniVersion\": \"1.1.0\", \"ips\": [{{\"address\": \"10.4.0.'$n'/16\"}}]}}'\n",
    );
    write_program(&host.dir.path().join("stuck"), &script)?;
    let path = dir.to_string();
    let path = [("CNI_PATH", path.as_str())];
    let pods = [Namespace::new()?, Namespace::new()?, Namespace::new()?];
    for (name, pod) in ["a", "b", "c"].into_iter().zip(&pods) {
        told(call("ADD", name, &netns(pod), "eth0", &path, &config))?;
    }
    let calls = host.dir.path().join("calls");
    let collect = || -> Result<_> {
        std::fs::write(&calls, "").map_err(|e| e.to_string())?;
        let mut gc = config.clone();
        // What a runtime in Go says that has none.
        gc["cni.dev/valid-attachments"] = Value::Null;
        let answer = call("GC", "", "", "", &path, &gc);
        let calls = std::fs::read_to_string(&calls).map_err(|e| e.to_string())?;
        Ok((answer, calls))
    };
    let fails = host.dir.path().join("fails");
    std::fs::write(&fails, "").map_err(|e| e.to_string())?;
    for expected in ["DEL a\nDEL b\nDEL c\nGC\n", "DEL b\nGC\n"] {
        let (answer, calls) = collect()?;
        refused("stuck ended with", answer)?;
        assert_eq!(calls, expected);
        assert_eq!(host.nics()?, ["pods:b:eth0"]);
        check(
            pods[1].ok("ip link show dev eth0")?.contains("NO-CARRIER"),
            "nothing passes by it",
        )?;
    }
    std::fs::remove_file(&fails).map_err(|e| e.to_string())?;
    let (answer, calls) = collect()?;
    told(answer)?;
    assert_eq!(calls, "DEL b\nGC\n");
    assert_eq!(host.nics()?.len(), 0);
    Ok(())
}

/// A plugin for addresses hangs over the first one of three lost containers.
fn nothing_that_is_lost_sends_while_another_plugin_hangs() -> Result<()> {
    let host = Host::new()?;
    let mut config = host.network("pods", "1.1.0");
    config["ipam"] = json!({"type": "hanging"});
    let [asked, goes_on] = ["asked", "goes-on"].map(|name| host.dir.path().join(name));
    let script = format!(
        "#!/bin/sh\ncase $CNI_CONTAINERID in a) n=2;; b) n=3;; *) n=4;; esac\n\
         [ $CNI_COMMAND = DEL ] && : > {} && while [ ! -e {} ]; do /bin/sleep 0.1; done\n\
         [ $CNI_COMMAND = ADD ] || exit 0\n\
         echo '{{\"cniVersion\": \"1.1.0\", \"ips\": [{{\"address\": \"10.4.0.'$n'/16\"}}]}}'\n",
        asked.display(),
        goes_on.display(),
    );
    write_program(&host.dir.path().join("hanging"), &script)?;
    let path = host.dir.path().display().to_string();
    let path = [("CNI_PATH", path.as_str())];
    let pods = [Namespace::new()?, Namespace::new()?, Namespace::new()?];
    for (name, pod) in ["a", "b", "c"].into_iter().zip(&pods) {
        told(call("ADD", name, &netns(pod), "eth0", &path, &config))?;
    }
    config["cni.dev/valid-attachments"] = json!([]);
    let are_silent = || {
        wait_for("the plugin to be asked", PATIENCE, || {
            Ok(asked.exists().then_some(()))
        })?;
        pods.iter().try_for_each(|pod| {
            wait_for("a NIC by which nothing passes", PATIENCE, || {
                let shown = pod.ok("ip link show dev eth0")?;
                Ok(shown.contains("NO-CARRIER").then_some(()))
            })
        })
    };
    let (silent, collected) = std::thread::scope(|scope| {
        let collects = scope.spawn(|| call("GC", "", "", "", &path, &config));
        let silent = are_silent();
        let goes_on = std::fs::write(&goes_on, "").map_err(|e| e.to_string());
        (silent.and(goes_on), collects.join())
    });
    silent?;
    told(collected.map_err(|_| "the thread of GC panicked")?)?;
    assert_eq!(host.nics()?.len(), 0);
    Ok(())
}

fn write_program(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(|e| e.to_string())?;
    process::run(&["chmod", "+x", &path.display().to_string()]).map(drop)
}

fn what_no_container_uses_is_collected() -> Result<()> {
    let host = Host::new()?;
    let (one, two) = (Namespace::new()?, Namespace::new()?);
    let (config, other) = (
        host.network("pods", "1.1.0"),
        host.network("pods2", "1.1.0"),
    );
    told(call("ADD", "one", &netns(&one), "eth0", &[], &config))?;
    told(call("ADD", "two", &netns(&two), "eth0", &[], &config))?;
    let mut elsewhere = other.clone();
    elsewhere["vni"] = 43.into();
    told(call("ADD", "two", &netns(&two), "net1", &[], &elsewhere))?;
    // Somebody calls a NIC as a container's would be, which it is not.
    host.daemon
        .cli("nic add --id pods:nobody:eth0 --mac 52:54:00:00:00:77 --vni 42")?;
    let mut gc = config.clone();
    gc["cni.dev/valid-attachments"] = json!([{"containerID": "one", "ifname": "eth0"}]);
    told(call("GC", "", "", "", &[], &gc))?;
    let stay = ["pods2:two:net1", "pods:nobody:eth0", "pods:one:eth0"];
    assert_eq!(host.nics()?, stay);
    assert_eq!(host.leases("pods")?, 2, "one's two addresses");
    check(
        one.succeeds("ip link show dev eth0")?,
        "the one in use stays",
    )
}

/// A NIC that is stored and was not made would have its addresses again when the daemon starts,
/// which others have by then.
fn what_could_not_be_made_is_collected_too() -> Result<()> {
    let options = ["--store", "{dir}/store", "--trace-dir", "{dir}"];
    let daemon = Daemon::start(&options)?;
    daemon.cli(PODS)?;
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    let mut host = Host { daemon, dir };
    let (one, two) = (Namespace::new()?, Namespace::new()?);
    let config = host.network("pods", "1.1.0");
    told(call("ADD", "one", &netns(&one), "eth0", &[], &config))?;
    told(call("ADD", "two", &netns(&two), "eth0", &[], &config))?;
    let trace = host.daemon.dir().join("two.pcap");
    host.daemon.cli(&format!(
        "nic update pods:two:eth0 --packet-trace true --trace-path {}",
        trace.display()
    ))?;
    host.daemon.kill()?;
    std::fs::write(&trace, "no trace of ours").map_err(|e| e.to_string())?;
    host.daemon.restart()?;
    assert_eq!(host.nics()?, ["pods:one:eth0"]);
    let unmade = || host.daemon.json("nic list --unmade");
    assert_eq!(unmade()?, json!(["pods:two:eth0"]));
    let mut gc = config.clone();
    gc["cni.dev/valid-attachments"] = json!([{"containerID": "one", "ifname": "eth0"}]);
    told(call("GC", "", "", "", &[], &gc))?;
    assert_eq!(unmade()?, json!([]));
    assert_eq!(host.leases("pods")?, 2, "one's two addresses");
    std::fs::remove_file(&trace).map_err(|e| e.to_string())?;
    host.daemon.kill_and_restart()?;
    assert_eq!(host.nics()?, ["pods:one:eth0"], "it does not come back");
    Ok(())
}

/// What the specification's own tool is called with.
struct Cnitool {
    line: String,
    netns: String,
}

impl Cnitool {
    /// Of a list of plugins, which is written to the host's folder; `None`: it says what is not
    /// installed here.
    fn of(
        host: &Host,
        pod: &Namespace,
        plugins: &[Value],
        others: &[&str],
    ) -> Result<Option<Self>> {
        let folders = [
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/cni"),
            "/usr/lib/cni".into(),
            Path::new(&program("butterfly-cni")).with_file_name(""),
        ];
        let tool = folders[0].join("cnitool");
        let is_there = |name: &&str| folders.iter().any(|folder| folder.join(name).is_file());
        let missing = others.iter().copied().find(|name| !is_there(name));
        let missing = if tool.is_file() {
            missing
        } else {
            Some("cnitool")
        };
        if let Some(missing) = missing {
            eprintln!(
                "skipped: there is no {missing} in target/cni or /usr/lib/cni (tools/setup.sh)"
            );
            return Ok(None);
        }
        let version = &plugins[0]["cniVersion"];
        let list = json!({"cniVersion": version, "name": "pods", "plugins": plugins});
        let file = host.dir.path().join("10-pods.conflist");
        std::fs::write(file, list.to_string()).map_err(|e| e.to_string())?;
        let path = folders.map(|folder| folder.display().to_string()).join(":");
        let conf = host.dir.path().display();
        let line = format!("NETCONFPATH={conf} CNI_PATH={path} {}", tool.display());
        let netns = netns(pod);
        Ok(Some(Cnitool { line, netns }))
    }

    fn does(&self, verb: &str) -> Result<String> {
        let line = format!("{} {verb} pods {}", self.line, self.netns);
        process::run(&["sh", "-c", &line])
    }

    fn adds(&self) -> Result<Value> {
        serde_json::from_str(&self.does("add")?).map_err(|e| e.to_string())
    }
}

/// cnitool, and host-local for the addresses: the real ones.
fn by_cnitool_and_host_local() -> Result<()> {
    let host = Host::new()?;
    let pod = Namespace::new()?;
    let plugin = with_host_local(&host, "1.1.0");
    let Some(cnitool) = Cnitool::of(&host, &pod, &[plugin], &["host-local"])? else {
        return Ok(());
    };
    let added = cnitool.adds()?;
    assert_eq!(added["ips"][0]["address"], "10.6.0.2/24", "{added}");
    check(
        pod.ok("ip route")?
            .contains("default via 10.6.0.1 dev eth0"),
        "its route",
    )?;
    cnitool.does("check")?;
    cnitool.does("status")?;
    cnitool.does("del")?;
    check(!pod.succeeds("ip link show dev eth0")?, "it is gone")?;
    assert_eq!(host.nics()?.len(), 0);
    Ok(())
}

fn with_host_local(host: &Host, version: &str) -> Value {
    let mut plugin = host.network("pods", version);
    plugin["ipam"] = json!({
        "type": "host-local", "dataDir": host.dir.path(),
        "ranges": [[{"subnet": "10.6.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}],
    });
    plugin
}

/// As the first of a list: what it answers goes to the plugins behind it, which set up its
/// interface.
fn other_plugins_set_up_its_interface() -> Result<()> {
    let host = Host::new()?;
    let pod = Namespace::new()?;
    let plugins = [
        host.network("pods", "1.0.0"),
        json!({"type": "tuning", "sysctl": {"net.ipv4.conf.eth0.log_martians": "1"}}),
        json!({"type": "bandwidth", "ingressRate": 8_000_000, "ingressBurst": 800_000}),
    ];
    let Some(cnitool) = Cnitool::of(&host, &pod, &plugins, &["tuning", "bandwidth"])? else {
        return Ok(());
    };
    let added = cnitool.adds()?;
    let interfaces = added["interfaces"].as_array().cloned().unwrap_or_default();
    assert_eq!(interfaces[1]["name"], "eth0", "{added}");
    let ours = interfaces[0]["name"].as_str().unwrap_or_default();
    let martians = "cat /proc/sys/net/ipv4/conf/eth0/log_martians";
    assert_eq!(pod.ok(martians)?.trim(), "1");
    let shaped = || process::run(&["tc", "qdisc", "show", "dev", ours]);
    check(shaped()?.contains("rate 8Mbit"), &shaped()?)?;
    cnitool.does("check")?;
    // Each of the three looks at what is its own.
    for (change, back) in [
        ("ip route del default", "ip route add default via 10.4.0.1"),
        (
            "sysctl -qw net.ipv4.conf.eth0.log_martians=0",
            "sysctl -qw net.ipv4.conf.eth0.log_martians=1",
        ),
    ] {
        pod.ok(change)?;
        check(cnitool.does("check").is_err(), change)?;
        pod.ok(back)?;
        cnitool.does("check").map_err(|e| format!("{back}: {e}"))?;
    }
    cnitool.does("del")?;
    check(!pod.succeeds("ip link show dev eth0")?, "it is gone")?;
    assert_eq!((host.nics()?.len(), host.leases("pods")?), (0, 0));
    Ok(())
}

/// Behind a plugin that has made an interface of this name it takes nothing and says why; what that
/// plugin has made stays.
fn behind_a_plugin_that_made_the_interface() -> Result<()> {
    let host = Host::new()?;
    let pod = Namespace::new()?;
    let range = json!([[{"subnet": "10.7.0.0/24"}]]);
    let ipam = json!({"type": "host-local", "dataDir": host.dir.path(), "ranges": range});
    let plugins = [
        json!({"cniVersion": "1.0.0", "type": "bridge", "bridge": "bf-other", "ipam": ipam}),
        host.network("pods", "1.0.0"),
    ];
    let Some(cnitool) = Cnitool::of(&host, &pod, &plugins, &["bridge", "host-local"])? else {
        return Ok(());
    };
    let error = cnitool.does("add").err().unwrap_or_default();
    check(
        error.contains("eth0 is the interface of a plugin before"),
        &error,
    )?;
    assert_eq!((host.nics()?.len(), host.leases("pods")?), (0, 0));
    check(
        pod.ok("ip addr show dev eth0")?.contains("10.7.0.2"),
        "the bridge's",
    )?;
    cnitool.does("del")?;
    check(
        !pod.succeeds("ip link show dev eth0")?,
        "the bridge's is gone",
    )?;
    process::run(&["ip", "link", "del", "bf-other"]).map(drop)
}

/// Each host has a part of the network's addresses; what is a pod of the other's its group is told.
fn pods_on_two_hosts_under_groups() -> Result<()> {
    let hosts = Hosts::start(Family::V4, &[])?;
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    let pods = [Namespace::new()?, Namespace::new()?];
    let (mut addresses, mut networks) = (Vec::new(), Vec::new());
    for (n, (host, pod)) in [&hosts.left, &hosts.right]
        .into_iter()
        .zip(&pods)
        .enumerate()
    {
        host.daemon.cli(PODS)?;
        let part = 128 * n;
        let ranges = json!([[{
            "subnet": "10.4.0.0/24", "rangeStart": format!("10.4.0.{}", part + 2),
            "rangeEnd": format!("10.4.0.{}", part + 100),
        }]]);
        let leases = dir.path().join(n.to_string());
        let config = network(&host.daemon, &leases, "pods", "1.1.0", &ranges);
        let added = told(call(
            "ADD",
            &format!("pod{n}"),
            &netns(pod),
            "eth0",
            &[],
            &config,
        ))?;
        let address = added["ips"][0]["address"].as_str().unwrap_or_default();
        addresses.push(address.trim_end_matches("/24").to_owned());
        networks.push(config);
    }
    let [left, right] = &pods;
    let ping = |from: &Namespace, to: &str| from.succeeds(&format!("ping -q -c 1 -W 1 {to}"));
    check(
        !ping(left, &addresses[1])?,
        "who is not known to be a member is not let in",
    )?;
    for (host, other) in [(&hosts.left, &addresses[1]), (&hosts.right, &addresses[0])] {
        host.daemon.cli(&format!("sg member add pods {other}"))?;
    }
    for (from, to) in [(left, &addresses[1]), (right, &addresses[0])] {
        wait_for("pods to talk", PATIENCE, || {
            Ok(ping(from, to)?.then_some(()))
        })
        .map_err(|e| format!("{e}\n{}", hosts.dump()))?;
    }
    let _server = right.start("httpd", "busybox httpd -f -p 80 -h /etc")?;
    wait_for("a server", PATIENCE, || {
        Ok(right
            .succeeds("busybox nc -w 1 127.0.0.1 80 -e true")?
            .then_some(()))
    })?;
    check(
        !left.succeeds(&format!("busybox nc -w 2 {} 80 -e true", addresses[1]))?,
        "what no rule allows does not come from another host either",
    )?;
    for (n, host) in [&hosts.left, &hosts.right].into_iter().enumerate() {
        told(call(
            "DEL",
            &format!("pod{n}"),
            &netns(&pods[n]),
            "eth0",
            &[],
            &networks[n],
        ))?;
        check(
            host.daemon.cli("nic list")?.trim().is_empty(),
            "nothing is left",
        )?;
    }
    Ok(())
}

/// Each container has a namespace that is used again, as one by one they come and go.
fn many_come_and_go_and_leave_nothing() -> Result<()> {
    let rounds = number("BUTTERFLY_CNI_ROUNDS")?.unwrap_or(ROUNDS);
    let at_most = number("BUTTERFLY_CNI_P99_MS")?;
    let host = Host::new()?;
    let pods: Vec<Namespace> = (0..10).map(|_| Namespace::new()).collect::<Result<_>>()?;
    let links = || process::run(&["ip", "-o", "link"]).map(|text| text.lines().count());
    let before = links()?;
    let config = host.network("pods", "1.1.0");
    let (mut adds, mut dels) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let name = format!("pod{round}");
        let pod = netns(&pods[round % pods.len()]);
        let timed = |command: &str, of: &str, times: &mut Vec<Duration>| {
            let began = Instant::now();
            let done = told(call(command, of, &pod, "eth0", &[], &config));
            times.push(began.elapsed());
            done.map(drop)
        };
        if round >= pods.len() {
            timed("DEL", &format!("pod{}", round - pods.len()), &mut dels)?;
        }
        timed("ADD", &name, &mut adds)?;
    }
    for round in rounds.saturating_sub(pods.len())..rounds {
        let pod = netns(&pods[round % pods.len()]);
        told(call(
            "DEL",
            &format!("pod{round}"),
            &pod,
            "eth0",
            &[],
            &config,
        ))?;
    }
    let mut told = format!("cni_rounds={rounds}");
    let mut slow = Vec::new();
    for (what, times) in [("add", &mut adds), ("del", &mut dels)] {
        times.sort();
        for percent in [50, 99] {
            let time = times.get(times.len() * percent / 100).or(times.last());
            let micros = time.copied().unwrap_or_default().as_micros();
            told += &format!(" {what}_p{percent}_us={micros}");
            let limit = at_most.filter(|limit| percent == 99 && micros >= 1000 * *limit as u128);
            slow.extend(limit.map(|limit| format!("{what} took {micros} us, {limit} ms or more")));
        }
    }
    println!("{told}");
    assert_eq!((host.nics()?.len(), host.leases("pods")?), (0, 0));
    wait_for("the interfaces to be gone", PATIENCE, || {
        Ok((links()? == before).then_some(()))
    })?;
    check(
        slow.is_empty(),
        &format!("99 in 100 take less time: {}", slow.join(", ")),
    )
}

/// A number that the environment says.
fn number(name: &str) -> Result<Option<usize>> {
    let Ok(text) = std::env::var(name) else {
        return Ok(None);
    };
    let number = text.parse().map(Some);
    number.map_err(|_| format!("{name}={text} is no number"))
}
