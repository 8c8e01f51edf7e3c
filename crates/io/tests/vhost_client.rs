//! The vhost-user server in client mode: the VMM listens, is reached, goes, and is reached again.

mod lab;
mod switch;

use std::io::{ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use butterfly_io::vhost::features::PROTOCOL_FEATURES;
use butterfly_io::vhost::request::GET_FEATURES;
use butterfly_io::vhost::{NicOptions, PortKey, PortState, ServerError};
use lab::{A, B, FEATURES, Lab, guest};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use switch::{PATIENCE, nic};
use testkit::vhost_frontend::Frontend;

/// "At once": far below the seconds between attempts that no watch has asked for, far above a
/// loaded machine's delays.
const AT_ONCE: Duration = Duration::from_millis(500);

/// A VMM that begins to listen, however its predecessor ended.
fn listen(path: &Path) -> UnixListener {
    let _ = std::fs::remove_file(path);
    UnixListener::bind(path).unwrap()
}

/// The connection that is made within `AT_ONCE`.
fn at_once(listener: &UnixListener) -> Frontend {
    let since = Instant::now();
    let vmm = Frontend::accept(listener).unwrap();
    let waited = since.elapsed();
    assert!(waited < AT_ONCE, "connected only after {waited:?}");
    vmm
}

#[test]
fn a_vmm_that_returns_is_reached_at_once_and_frames_pass_again() {
    let lab = Lab::new();
    let (path_a, path_b) = (lab.path("a"), lab.path("b"));
    let listener_a = listen(&path_a);
    lab.dial(A, &path_a); // listens already
    lab.dial(B, &path_b); // not yet
    let (mut a, mut b) = (guest(), guest());
    let _vmm_a = lab.start(A, Frontend::accept(&listener_a).unwrap(), &a);
    for round in 0..4u8 {
        let listener_b = listen(&path_b);
        let vmm_b = lab.start(B, Frontend::accept(&listener_b).unwrap(), &b);
        lab.one_frame(&mut a, &mut b, round);
        // A crash leaves the socket's file, an orderly end does not.
        drop((vmm_b, listener_b));
        if round % 2 == 0 {
            std::fs::remove_file(&path_b).unwrap();
        }
        lab.switch.wait_for(B, &PortState::Disconnected);
        b = guest();
    }
}

#[test]
fn a_vmm_that_appears_after_a_long_wait_is_reached_at_once() {
    let lab = Lab::new();
    let path = lab.path("vmm");
    lab.dial(A, &path);
    // Past the first attempts: the next would be a good second away.
    std::thread::sleep(Duration::from_millis(1100));
    let listener = listen(&path);
    drop(at_once(&listener));
    // A socket that is moved into its place, as some VMMs do.
    drop(listener);
    std::fs::remove_file(&path).unwrap();
    std::thread::sleep(Duration::from_millis(1100));
    let listener = listen(&lab.path("temporary"));
    std::fs::rename(lab.path("temporary"), &path).unwrap();
    at_once(&listener);
}

fn link(up: bool) -> NicOptions {
    NicOptions {
        link_up: up,
        ..nic("nic-1")
    }
}

#[test]
fn a_vmm_that_cannot_be_told_of_the_link_is_hung_up_on_while_it_is_down() {
    let lab = Lab::new();
    let path = lab.path("vmm");
    let listener = listen(&path);
    lab.dial(A, &path);
    let a = guest();
    let mut vmm = lab.start(A, Frontend::accept(&listener).unwrap(), &a);
    lab.server().change(A, link(false));
    assert!(vmm.wait_closed().unwrap());
    assert_eq!(lab.switch.state_of(A), Some(PortState::Disconnected));
    // Past the first attempts that would follow the end of a connection.
    std::thread::sleep(Duration::from_millis(100));
    listener.set_nonblocking(true).unwrap();
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    listener.set_nonblocking(false).unwrap();
    lab.server().change(A, link(true));
    let vmm = lab.start(A, at_once(&listener), &a);

    // A VMM that begins anew may wait for us: it is served, link or no link, and not hung up on for
    // old news.
    lab.server().change(A, link(false));
    drop((vmm, listener));
    let listener = listen(&path);
    let mut vmm = lab.start(A, at_once(&listener), &a);
    lab.server().change(A, link(false));
    vmm.get(GET_FEATURES).unwrap();
    lab.server().change(A, link(true));
    vmm.get(GET_FEATURES).unwrap();

    // Who can be told is told.
    vmm.take_everything().unwrap();
    let mut channel = vmm.channel().unwrap();
    lab.server().change(A, link(false));
    channel.read_exact(&mut [0; 12]).unwrap();
    assert_eq!(vmm.config(6, 2).unwrap(), [0, 0]);
}

#[test]
fn a_directory_may_come_go_and_be_moved() {
    let lab = Lab::new();
    let folder = lab.path("vm");
    let path = folder.join("socket");
    lab.dial(A, &path);
    for round in 0..2 {
        std::fs::create_dir(&folder).unwrap();
        let listener = listen(&path);
        drop(Frontend::accept(&listener).unwrap());
        if round == 0 {
            std::fs::remove_dir_all(&folder).unwrap();
        } else {
            std::fs::rename(&folder, lab.path("old")).unwrap();
            std::fs::create_dir(&folder).unwrap();
            let listener = listen(&path);
            Frontend::accept(&listener).unwrap();
        }
    }
}

#[test]
fn a_vmm_that_hangs_up_is_reached_again_but_does_not_make_the_thread_spin() {
    let lab = Lab::new();
    let path = lab.path("vmm");
    let listener = listen(&path);
    lab.dial(A, &path);
    listener.set_nonblocking(true).unwrap();
    let (since, mut count) = (Instant::now(), 0);
    while since.elapsed() < Duration::from_secs(1) {
        match listener.accept() {
            Ok(_) => count += 1,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!((3..15).contains(&count), "{count} connections in a second");
}

#[test]
fn a_vmm_that_breaks_the_protocol_is_left_alone_for_a_moment() {
    let lab = Lab::new();
    let path = lab.path("vmm");
    let listener = listen(&path);
    lab.dial(A, &path);
    let mut vmm = Frontend::accept(&listener).unwrap();
    vmm.send_bytes(&[0xff; 12], &[]).unwrap();
    let since = Instant::now();
    let mut again = Frontend::accept(&listener).unwrap();
    assert!(
        since.elapsed() >= Duration::from_millis(90),
        "{:?}",
        since.elapsed()
    );
    again.negotiate(FEATURES | PROTOCOL_FEATURES).unwrap();
}

#[test]
fn what_is_at_the_path_is_neither_made_nor_removed() {
    let lab = Lab::new();
    for (key, content) in [(A, "a file"), (B, "")] {
        let path = lab.path(&format!("file-{}", key.0));
        std::fs::write(&path, content).unwrap();
        lab.dial(key, &path);
        assert_eq!(lab.server().nics().len(), 1);
        assert!(lab.server().close(key));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
    }
    let path = lab.path("absent");
    lab.dial(A, &path);
    assert!(lab.server().close(A));
    assert!(!path.exists());
    let listener = listen(&path);
    lab.dial(A, &path);
    let mut vmm = Frontend::accept(&listener).unwrap();
    vmm.negotiate(FEATURES | PROTOCOL_FEATURES).unwrap();
    assert!(lab.server().close(A));
    assert!(path.exists(), "the VMM's own");
    assert!(!lab.server().close(A));
}

#[test]
fn a_path_or_key_that_cannot_be_is_refused() {
    let lab = Lab::new();
    let long = lab.path(&"x".repeat(108));
    let refused = lab.server().connect(A, &long, nic("a")).unwrap_err();
    assert!(matches!(refused, ServerError::Path { .. }), "{refused}");
    lab.dial(A, &lab.path("vmm"));
    let refused = lab
        .server()
        .connect(A, &lab.path("other"), nic("a"))
        .unwrap_err();
    assert!(matches!(refused, ServerError::KeyInUse { .. }), "{refused}");
    let refused = lab
        .server()
        .listen(A, &lab.path("other"), nic("a"))
        .unwrap_err();
    assert!(matches!(refused, ServerError::KeyInUse { .. }), "{refused}");
}

/// Listens with room for few who wait to be accepted.
fn short_queue(path: &Path) -> OwnedFd {
    let socket = stream();
    rustix::net::bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    rustix::net::listen(&socket, 1).unwrap();
    rustix::fs::fcntl_setfl(&socket, rustix::fs::OFlags::empty()).unwrap();
    socket
}

fn stream() -> OwnedFd {
    rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::NONBLOCK,
        None,
    )
    .unwrap()
}

#[test]
fn nobody_answers_and_a_full_backlog_does_not_stop_the_others() {
    let lab = Lab::new();
    let path = lab.path("deaf");
    let listener = UnixListener::from(short_queue(&path));
    // Whoever connects to a socket that nobody accepts from fills its queue.
    let mut waiting: Vec<UnixStream> = Vec::new();
    let address = SocketAddrUnix::new(&path).unwrap();
    let full = loop {
        assert!(waiting.len() < 100, "the queue was not filled");
        let socket = stream();
        if let Err(error) = rustix::net::connect(&socket, &address) {
            break error;
        }
        waiting.push(socket.into());
    };
    assert_eq!(full, rustix::io::Errno::AGAIN);
    lab.dial(A, &path);
    let other = lab.path("other");
    let other_listener = listen(&other);
    lab.dial(B, &other);
    let mut vmm = at_once(&other_listener);
    vmm.negotiate(FEATURES | PROTOCOL_FEATURES).unwrap();
    // There is room again: in its turn, the first is connected too.
    drop(waiting);
    let since = Instant::now();
    loop {
        let mut peer = listener.accept().unwrap().0;
        peer.set_read_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        // Ours waits to be spoken to, the others have gone.
        if peer
            .read(&mut [0])
            .is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
        {
            break;
        }
        assert!(
            since.elapsed() < PATIENCE,
            "not connected after {:?}",
            since.elapsed()
        );
    }
}

/// What is measured is a process, which the other tests of this file share: it is started again for
/// this test alone.
#[test]
fn waiting_costs_nothing() {
    const ALONE: &str = "BUTTERFLY_WAITS_ALONE";
    if std::env::var_os(ALONE).is_none() {
        // Its output is descriptors of ours.
        let _alone = lab::alone();
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "waiting_costs_nothing", "--nocapture"])
            .env(ALONE, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && said.contains("1 passed"),
            "{said}"
        );
        return;
    }
    let lab = Lab::new();
    for key in 0..100 {
        lab.dial(PortKey(key), &lab.path(&format!("vmm-{key}")));
    }
    std::thread::sleep(Duration::from_secs(1)); // the first attempts
    let before = used();
    std::thread::sleep(Duration::from_secs(2));
    let share = (used() - before).as_secs_f64() / 2.0;
    assert!(
        share < 0.005,
        "a hundred absent VMMs take {:.2} % of a core",
        share * 100.0
    );
}

/// Processor time of this process so far.
fn used() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}
