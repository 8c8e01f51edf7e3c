//! OVS-DPDK from the distribution, in a network namespace of its own so that its devices are seen by nobody.
//!
//! Its ports connect to the guests' sockets (`dpdkvhostuserclient`): ports that listen (`dpdkvhostuser`) never offer
//! checksum or segmentation offload, whatever `userspace-tso-enable` says, so that a guest could not send 64 KiB.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::process::{PeerError, Process, run, wait_for};
use super::{GUEST_MACS, Listens, Running};

const VSWITCHD: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

/// What it does with a frame.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Pipeline {
    /// Learns MACs, looks at nothing else.
    Normal,
    /// Connection tracking, both guests in one zone.
    OneZone,
    /// Connection tracking, out through the sender's zone and in through the receiver's.
    ZonePerGuest,
}

/// `large`: with segmentation offload, which OVS warns is slower for small frames.
pub fn start(dir: &Path, core: usize, large: bool, pipeline: Pipeline) -> Result<Running, PeerError> {
    let path = |name: &str| dir.join(name).display().to_string();
    let database = format!("unix:{}", path("db.sock"));
    run(at_home(Command::new("ovsdb-tool"), dir).args(["create", &path("conf.db"), SCHEMA]))?;
    let db_log = dir.join("ovsdb.log");
    let mut command = at_home(Process::command("ovsdb-server"), dir);
    command.arg(path("conf.db")).args([
        format!("--remote=p{database}"),
        format!("--unixctl={}", path("ovsdb.ctl")),
        format!("--pidfile={}", path("ovsdb.pid")),
    ]);
    let db = Process::start(&mut command, &db_log)?;
    wait_for(&[&dir.join("db.sock")], &db_log)?;
    let vsctl = |args: &str| {
        let mut command = at_home(Command::new("ovs-vsctl"), dir);
        command.args([&format!("--db={database}"), "--timeout=20", "--no-wait"]);
        run(command.args(args.split_whitespace()))
    };
    let mask = format!("0x{:x}", 1u64 << core);
    vsctl("init")?;
    run(at_home(Command::new("ovs-vsctl"), dir)
        .args([
            &format!("--db={database}"),
            "--no-wait",
            "set",
            "Open_vSwitch",
            ".",
        ])
        .args([
            "other_config:dpdk-init=true",
            &format!("other_config:pmd-cpu-mask={mask}"),
            &format!("other_config:dpdk-lcore-mask={mask}"),
            "other_config:dpdk-socket-mem=512",
            &format!("other_config:userspace-tso-enable={large}"),
            "other_config:dpdk-extra=--no-pci --in-memory --file-prefix=butterfly-bench-ovs",
        ]))?;
    let log = dir.join("vswitchd.log");
    let mut command = at_home(Process::command("unshare"), dir);
    command.args(["--net", VSWITCHD, &database]);
    command
        .arg(format!("--unixctl={}", path("vs.ctl")))
        .arg(format!("--pidfile={}", path("vs.pid")));
    let switch = Process::start(&mut command, &log)?;
    vsctl("add-br br0 -- set bridge br0 datapath_type=netdev")?;
    let sockets = [dir.join("p0"), dir.join("p1")];
    for (index, socket) in sockets.iter().enumerate() {
        let socket = socket.display();
        vsctl(&format!(
            "add-port br0 p{index} -- set Interface p{index} type=dpdkvhostuserclient \
             options:vhost-server-path={socket} ofport_request={}",
            index + 1
        ))?;
    }
    wait_for(&[&dir.join("br0.mgmt")], &log)?;
    wait_for_ports(dir, &database)?;
    if pipeline != Pipeline::Normal {
        let flows = dir.join("flows");
        std::fs::write(&flows, ct_pipeline(pipeline))
            .map_err(|error| PeerError(format!("flows: {error}")))?;
        let management = format!("unix:{}", path("br0.mgmt"));
        run(at_home(Command::new("ovs-ofctl"), dir).args([
            "-O",
            "OpenFlow13",
            "add-flows",
            &management,
            &path("flows"),
        ]))?;
    }
    let own = dir.to_owned();
    Ok(Running {
        sockets,
        listens: Listens::Vmm,
        forget: (pipeline != Pipeline::Normal)
            .then(|| -> Box<dyn Fn() -> Result<(), PeerError>> { Box::new(move || flush(&own)) }),
        processes: vec![switch, db],
    })
}

/// A command that keeps everything OVS writes below `dir`.
fn at_home(mut command: Command, dir: &Path) -> Command {
    for variable in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
        command.env(variable, dir);
    }
    command
}

/// Waits until both ports have their numbers: they are made by another thread than the bridge.
fn wait_for_ports(dir: &Path, database: &str) -> Result<(), PeerError> {
    let mut command = at_home(Command::new("ovs-vsctl"), dir);
    command.args([&format!("--db={database}"), "--timeout=20", "wait-until"]);
    run(command.args([
        "Interface",
        "p0",
        "ofport=1",
        "--",
        "wait-until",
        "Interface",
        "p1",
        "ofport=2",
    ]))
    .map(drop)
}

/// Its limit is 3,000,000 connections, and a zone per guest counts each twice.
fn flush(dir: &Path) -> Result<(), PeerError> {
    let control: PathBuf = dir.join("vs.ctl");
    let mut command = at_home(Command::new("ovs-appctl"), dir);
    run(command.arg("-t").arg(control).arg("dpctl/flush-conntrack")).map(drop)
}

/// Security groups as a pipeline: established connections pass, new ones when one of 100 ingress rules allows them, of
/// which the last two allow the benchmark's traffic.
fn ct_pipeline(pipeline: Pipeline) -> String {
    let mut flows = String::from("table=0,priority=0,actions=drop\ntable=0,priority=50,arp,actions=NORMAL\n");
    for (port, mac) in [(1, GUEST_MACS[0]), (2, GUEST_MACS[1])] {
        let out = 3 - port;
        // The zone of the ingress rules, and how a frame gets there.
        let (zone, first) = match pipeline {
            Pipeline::ZonePerGuest => (out, format!("ct(table=1,zone={port})")),
            _ => (1, "ct(table=2,zone=1)".to_owned()),
        };
        flows += &format!(
            "table=0,priority=100,ip,in_port={port},dl_src={mac},actions={first}\n\
             table=2,priority=100,ip,in_port={port},ct_state=+trk+est,actions=output:{out}\n"
        );
        if pipeline == Pipeline::ZonePerGuest {
            flows += &format!(
                "table=1,priority=100,ip,in_port={port},ct_state=+trk+new,actions=ct(commit,zone={port}),ct(table=2,zone={zone})\n\
                 table=1,priority=100,ip,in_port={port},ct_state=+trk+est,actions=ct(table=2,zone={zone})\n"
            );
        }
        let new = format!("in_port={port},ct_state=+trk+new");
        let allow = format!("actions=ct(commit,zone={zone}),output:{out}\n");
        for rule in 2..crate::RULES {
            flows += &format!(
                "table=2,priority=90,tcp,{new},tp_dst={},{allow}",
                crate::FIRST_RULE_PORT + rule
            );
        }
        let mask = !(crate::TRAFFIC_PORTS - 1);
        for protocol in ["tcp", "udp"] {
            flows += &format!(
                "table=2,priority=90,{protocol},{new},tp_dst={:#x}/{mask:#x},{allow}",
                crate::TRAFFIC_PORT
            );
        }
    }
    flows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pipelines_have_the_rules_that_ours_has() {
        for (pipeline, zones) in [(Pipeline::OneZone, 1), (Pipeline::ZonePerGuest, 2)] {
            let flows = ct_pipeline(pipeline);
            let rules = flows.lines().filter(|line| line.contains("tp_dst")).count();
            assert_eq!(rules, 2 * usize::from(crate::RULES));
            assert_eq!(flows.contains("zone=2"), zones == 2);
        }
    }
}
