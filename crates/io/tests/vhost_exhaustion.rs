//! A process without a descriptor left. Alone in its binary: the limit is the whole process's.

mod switch;

use std::fs::File;
use std::sync::Arc;
use std::time::Instant;

use butterfly_io::vhost::features::{MRG_RXBUF, VERSION_1};
use butterfly_io::vhost::request::GET_FEATURES;
use butterfly_io::vhost::{PortKey, Server};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use switch::{PATIENCE, Switch, nic};
use testkit::vhost_frontend::Frontend;

#[test]
fn without_descriptors_a_vmm_waits_and_the_server_does_not_spin() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let server = Server::start(Arc::new(Switch::default())).unwrap();
    server.listen(PortKey(1), &path, nic("nic-1")).unwrap();

    let before = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(64),
            ..before
        },
    )
    .unwrap();
    let mut taken: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok())
        .take(100)
        .collect();
    assert!(taken.len() < 64, "the limit is not in force");
    taken.pop();
    let mut vmm = Frontend::connect(&path).unwrap(); // with the last one
    vmm.send(GET_FEATURES, &[], &[]).unwrap();

    let (start, busy) = (Instant::now(), clock_gettime(ClockId::ProcessCPUTime));
    std::thread::sleep(std::time::Duration::from_millis(300));
    let now = clock_gettime(ClockId::ProcessCPUTime);
    let busy_ms = (now.tv_sec - busy.tv_sec) * 1000 + (now.tv_nsec - busy.tv_nsec) / 1_000_000;
    assert!(
        busy_ms < 100,
        "{busy_ms} ms of CPU in {:?}",
        start.elapsed()
    );

    setrlimit(Resource::Nofile, before).unwrap();
    drop(taken);
    let offered = u64::from_ne_bytes(vmm.reply(GET_FEATURES).unwrap());
    assert_eq!(offered & (VERSION_1 | MRG_RXBUF), VERSION_1 | MRG_RXBUF);
    assert!(start.elapsed() < PATIENCE);
}
