//! Containers of two hosts whose uplinks are joined by packet sockets: what they send each other
//! the kernels forward both ways.

use std::time::Duration;

use api::v1;
use butterfly_tests::api::Api;
use butterfly_tests::hosts::{Family, Host, Hosts, answers, mac, serve, tool};
use butterfly_tests::lab::check;
use testkit::netns::Namespace;
use testkit::{PATIENCE, Result, wait_for};

use super::on;

const OPTIONS: [&str; 8] = [
    "--uplink-mode",
    "packet",
    // Over IPv6 there are checksums else, which are the workers'.
    "--vxlan-checksum",
    "off",
    "--store",
    "{dir}/store",
    "--keeper",
    "{dir}/keeper",
];

/// A container of the network 42, as guests have their addresses.
fn container(host: &Host, name: &str, last: u8) -> Result<Namespace> {
    let namespace = Namespace::new()?;
    // Of rules that let everything pass there are no connections.
    for rule in ["tcp --port 80", "tcp --port 5201", "icmp"] {
        let line = format!("sg rule add web --ip-proto {rule}");
        host.daemon.cli(&line)?;
    }
    host.daemon.cli(&format!(
        "nic add --id {name} --mac {} --vni 42 --ip 10.1.0.{last}/24 fd01::{last}/64 --sg web \
         --type veth --path bf-{name} --netns {}",
        mac(last),
        namespace.pid()
    ))?;
    Ok(namespace)
}

fn uplink(host: &Host) -> Result<v1::Uplink> {
    let all = Api::connect(&host.daemon)?.uplinks()?;
    all.into_iter().next().ok_or_else(|| "no uplink".to_owned())
}

/// Frames that the kernel has forwarded from the host's container, and given to it.
fn by_kernel(host: &Host, name: &str) -> Result<[u64; 2]> {
    let sent = host.daemon.stat(name, "egress_kernel_frames")?;
    Ok([sent, uplink(host)?.received_kernel_frames])
}

/// A stream is the kernel's on both hosts and in both directions, and so again after an upgrade
/// and a kill; a rule that goes ends it at once.
pub fn containers_talk_by_the_kernel_both_ways() -> Result<()> {
    for family in [Family::V4, Family::V6] {
        let mut hosts = Hosts::start(family, &OPTIONS)?;
        let done = both_ways(&mut hosts);
        on(&hosts, || done.map_err(|e| format!("{family:?}: {e}")))?;
    }
    Ok(())
}

fn both_ways(hosts: &mut Hosts) -> Result<()> {
    let a = container(&hosts.left, "a", 1)?;
    let b = container(&hosts.right, "b", 2)?;
    let _server = serve(&b, "tcp-serve 80")?;
    answers(&a, "10.1.0.2")?;
    streams(hosts, &a)?;
    hosts.right.daemon.upgrade()?;
    streams(hosts, &a)?;
    hosts.right.daemon.kill_and_restart()?;
    streams(hosts, &a)?;
    let _iperf = b.start("iperf3", "iperf3 -s")?;
    wait_for("iperf3 to listen", PATIENCE, || {
        Ok(b.ok("ss -ltn")?.contains(":5201").then_some(()))
    })?;
    let _stream = a.start("stream", "iperf3 -c 10.1.0.2 -t 60")?;
    let before = by_kernel(&hosts.right, "b")?;
    wait_for("a stream by the kernel", PATIENCE, || {
        let now = by_kernel(&hosts.right, "b")?;
        Ok((now[0] > before[0] + 1000 && now[1] > before[1] + 1000).then_some(()))
    })?;
    let rule = "sg rule del web --ip-proto tcp --port 5201";
    hosts.right.daemon.cli(rule)?;
    // What the kernel has counted until then is told half a second later at the most.
    std::thread::sleep(Duration::from_millis(700));
    let counts = || -> Result<([u64; 2], u64)> {
        let came = hosts.right.daemon.stat("b", "ingress_frames")?;
        Ok((by_kernel(&hosts.right, "b")?, came))
    };
    let (cut, came) = counts()?;
    std::thread::sleep(Duration::from_millis(700));
    let (after, come) = counts()?;
    // Neighbours still ask for each other.
    check(
        after == cut && come <= came + 5,
        &format!(
            "without its rule nothing comes any more: {cut:?}, {came} frames, and {after:?}, {come}"
        ),
    )
}

/// Several MB each way, most of them by the kernel.
fn streams(hosts: &Hosts, a: &Namespace) -> Result<()> {
    let count = || Ok([by_kernel(&hosts.left, "a")?, by_kernel(&hosts.right, "b")?].concat());
    let before: Result<Vec<u64>> = count();
    let before = before?;
    wait_for("streams by the kernel", PATIENCE, || {
        a.ok(&tool("tcp-get 10.1.0.2 80 5000000 20"))?;
        a.ok(&tool("tcp-get fd01::2 80 5000000 20"))?;
        let now: Result<Vec<u64>> = count();
        let enough = now?.iter().zip(&before).all(|(now, then)| *now > then + 20);
        Ok(enough.then_some(()))
    })
}
