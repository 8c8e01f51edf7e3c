//! DPDK's testpmd: two `net_vhost` devices and the io loop, which looks at nothing. Two copies a frame, from
//! guest memory to a packet buffer and on to the other guest: the floor of every DPDK switch.

use std::path::Path;
use std::process::Command;

use super::Running;
use super::process::{PeerError, Process, wait_for};

pub fn start(dir: &Path, core: usize) -> Result<Running, PeerError> {
    let sockets = [dir.join("a.sock"), dir.join("b.sock")];
    let log = dir.join("testpmd.log");
    let mut command = Command::new("dpdk-testpmd");
    // Two lcores, as testpmd demands: one for its prompt, asleep, one for the loop; both on our core.
    command.args([
        "--lcores",
        &format!("0@{core},1@{core}"),
        "--main-lcore",
        "0",
        "--in-memory",
        "--no-pci",
    ]);
    command.args(["-m", "512", "--file-prefix", "butterfly-bench"]);
    for (index, socket) in sockets.iter().enumerate() {
        command.args([
            "--vdev",
            &format!("net_vhost{index},iface={},queues=1,tso=1", socket.display()),
        ]);
    }
    command.args(["--", "-i", "--forward-mode=io", "--auto-start", "--nb-cores=1"]);
    let process = Process::start(&mut command, &log)?;
    wait_for(&[&sockets[0], &sockets[1]], &log)?;
    Ok(Running {
        sockets,
        _processes: vec![process],
    })
}
