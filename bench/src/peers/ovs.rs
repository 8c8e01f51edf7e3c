//! OVS-DPDK from the distribution, in a network namespace of its own so that its devices are seen by nobody.

use std::path::Path;
use std::process::Command;

use super::process::{PeerError, Process, run, wait_for};
use super::{GUEST_MACS, Running};

const VSWITCHD: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

pub fn start(dir: &Path, core: usize, stateful: bool) -> Result<Running, PeerError> {
    let path = |name: &str| dir.join(name).display().to_string();
    let at_home = |program: &str| {
        let mut command = Command::new(program);
        for variable in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
            command.env(variable, dir);
        }
        command
    };
    let database = format!("unix:{}", path("db.sock"));
    run(at_home("ovsdb-tool").args(["create", &path("conf.db"), SCHEMA]))?;
    let db_log = dir.join("ovsdb.log");
    let db = Process::start(
        at_home("ovsdb-server").arg(path("conf.db")).args([
            format!("--remote=p{database}"),
            format!("--unixctl={}", path("ovsdb.ctl")),
            format!("--pidfile={}", path("ovsdb.pid")),
        ]),
        &db_log,
    )?;
    wait_for(&[&dir.join("db.sock")], &db_log)?;
    let vsctl = |wait: &str, args: &[&str]| {
        run(at_home("ovs-vsctl")
            .args([&format!("--db={database}"), "--timeout=20", wait])
            .args(args))
    };
    let mask = format!("0x{:x}", 1u64 << core);
    vsctl("--no-wait", &["init"])?;
    vsctl(
        "--no-wait",
        &[
            "set",
            "Open_vSwitch",
            ".",
            "other_config:dpdk-init=true",
            &format!("other_config:pmd-cpu-mask={mask}"),
            &format!("other_config:dpdk-lcore-mask={mask}"),
            "other_config:dpdk-socket-mem=512",
            "other_config:userspace-tso-enable=true",
            "other_config:dpdk-extra=--no-pci --in-memory --file-prefix=butterfly-bench-ovs",
        ],
    )?;
    let log = dir.join("vswitchd.log");
    let mut command = at_home("unshare");
    command.args(["--net", VSWITCHD, &database]);
    command
        .arg(format!("--unixctl={}", path("vs.ctl")))
        .arg(format!("--pidfile={}", path("vs.pid")));
    let switch = Process::start(&mut command, &log)?;
    vsctl(
        "--no-wait",
        &[
            "add-br",
            "br0",
            "--",
            "set",
            "bridge",
            "br0",
            "datapath_type=netdev",
        ],
    )?;
    for port in ["p0", "p1"] {
        vsctl(
            "--no-wait",
            &[
                "add-port",
                "br0",
                port,
                "--",
                "set",
                "Interface",
                port,
                "type=dpdkvhostuser",
            ],
        )?;
    }
    let sockets = [dir.join("p0"), dir.join("p1")];
    wait_for(&[&sockets[0], &sockets[1]], &log)?;
    if stateful {
        let flows = dir.join("flows");
        std::fs::write(&flows, ct_pipeline()).map_err(|error| PeerError(format!("flows: {error}")))?;
        let management = format!("unix:{}", path("br0.mgmt"));
        run(at_home("ovs-ofctl").args(["-O", "OpenFlow13", "add-flows", &management, &path("flows")]))?;
    }
    Ok(Running {
        sockets,
        _processes: vec![switch, db],
    })
}

/// Security groups as a pipeline: a zone per guest, out through the sender's, in through the receiver's,
/// and 100 ingress rules of which the last one allows the benchmark's traffic.
fn ct_pipeline() -> String {
    let mut flows = String::from("table=0,priority=0,actions=drop\n");
    flows += "table=0,priority=50,arp,actions=NORMAL\n";
    for (port, mac) in [(1, GUEST_MACS[0]), (2, GUEST_MACS[1])] {
        let out = if port == 1 { 2 } else { 1 };
        flows += &format!(
            "table=0,priority=100,ip,in_port={port},dl_src={mac},actions=ct(table=1,zone={port})\n\
             table=1,priority=100,ip,in_port={port},ct_state=+trk+new,actions=ct(commit,zone={port}),ct(table=2,zone={out})\n\
             table=1,priority=100,ip,in_port={port},ct_state=+trk+est,actions=ct(table=2,zone={out})\n\
             table=2,priority=100,ip,in_port={port},ct_state=+trk+est,actions=output:{out}\n"
        );
        let new = format!("in_port={port},ct_state=+trk+new");
        let allow = format!("actions=ct(commit,zone={out}),output:{out}\n");
        for rule in 1..crate::RULES {
            flows += &format!(
                "table=2,priority=90,tcp,{new},tp_dst={},{allow}",
                crate::FIRST_RULE_PORT + rule
            );
        }
        let mask = !(crate::TRAFFIC_PORTS - 1);
        flows += &format!(
            "table=2,priority=90,udp,{new},tp_dst={:#x}/{mask:#x},{allow}",
            crate::TRAFFIC_PORT
        );
    }
    flows
}
