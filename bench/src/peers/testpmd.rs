//! DPDK's testpmd: two `net_vhost` devices and the io loop, which looks at nothing. Two copies a
//! frame, from guest memory to a packet buffer and on to the other guest: the floor of every DPDK
//! switch.

use std::path::Path;

use super::process::{PeerError, Process, wait_for};
use super::{Listens, Running};

/// `large`: offer segmentation offload, which costs small frames a little; `buffers`: in packet
/// buffers that hold a frame of 64 KiB in one piece (65,535 bytes are the most that DPDK can say)
/// in place of 31.
pub fn start(dir: &Path, core: usize, large: bool, buffers: bool) -> Result<Running, PeerError> {
    let sockets = [dir.join("a.sock"), dir.join("b.sock")];
    let log = dir.join("testpmd.log");
    let mut command = Process::command("dpdk-testpmd");
    // Two lcores, as testpmd demands: one for its prompt, asleep, one for the loop; both on our
    // core.
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
        // Without the old meaning of its offload flags the device computes every checksum itself,
        // and forgets the segment size.
        let offload = if large {
            "tso=1,legacy-ol-flags=1"
        } else {
            "tso=0"
        };
        let device = format!(
            "net_vhost{index},iface={},queues=1,{offload}",
            socket.display()
        );
        command.args(["--vdev", &device]);
    }
    command.args([
        "--",
        "-i",
        "--forward-mode=io",
        "--auto-start",
        "--nb-cores=1",
    ]);
    if buffers {
        command.args(["--mbuf-size=65535", "--total-num-mbufs=4096"]);
    }
    let process = Process::start(&mut command, &log)?;
    wait_for(&[&sockets[0], &sockets[1]], &log)?;
    Ok(Running {
        sockets: sockets.to_vec(),
        listens: Listens::Switch,
        forget: None,
        processes: vec![process],
    })
}
