//! A keeper and the daemons that come and go: what is held is a pipe's end, whose other end says
//! whether it is still open anywhere.

use std::io::{ErrorKind, PipeReader, Read, pipe};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use butterfly_keeper::{Error, Keeper, bind, serve};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

struct Fixture(tempfile::TempDir);

impl Fixture {
    fn new() -> Fixture {
        Fixture(tempfile::tempdir().unwrap())
    }

    fn socket(&self) -> PathBuf {
        self.0.path().join("keeper.sock")
    }

    /// One that ends when a daemon has left nothing.
    fn start(&self) -> JoinHandle<()> {
        let listener = bind(&self.socket()).unwrap();
        std::thread::spawn(move || serve(&listener, true).unwrap())
    }

    fn daemon(&self) -> Keeper {
        Keeper::connect(&self.socket()).unwrap()
    }
}

fn held() -> (PipeReader, OwnedFd) {
    let (reader, writer) = pipe().unwrap();
    rustix::io::ioctl_fionbio(&reader, true).unwrap();
    (reader, writer.into())
}

/// Whether its other end is open somewhere.
fn is_open(mut reader: &PipeReader) -> bool {
    match reader.read(&mut [0]) {
        Ok(0) => false,
        Err(e) if e.kind() == ErrorKind::WouldBlock => true,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_held_outlives_daemons_until_it_is_released() {
    let fixture = Fixture::new();
    let keeper = fixture.start();
    let (reader, fd) = held();
    let daemon = fixture.daemon();
    daemon.hold("tap:a", b"a note", &[fd.as_fd()]).unwrap();
    drop(fd);
    drop(daemon);
    assert!(is_open(&reader));

    // One that dies while it takes over takes nothing away.
    let daemon = fixture.daemon();
    drop(daemon.take("tap:a").unwrap().unwrap());
    drop(daemon);
    assert!(is_open(&reader));

    let daemon = fixture.daemon();
    assert!(daemon.take("tap:b").unwrap().is_none());
    let taken = daemon.take("tap:a").unwrap().unwrap();
    assert_eq!(taken.note, b"a note");
    assert!(daemon.take("tap:a").unwrap().is_none(), "given out twice");
    daemon.release("tap:a").unwrap();
    assert!(is_open(&reader), "the taker has it");
    drop(taken);
    assert!(!is_open(&reader));
    drop(daemon);
    keeper.join().unwrap();
}

#[test]
fn what_nobody_takes_up_is_released_and_a_name_holds_one() {
    let fixture = Fixture::new();
    let keeper = fixture.start();
    let daemon = fixture.daemon();
    let ((first, one), (second, other)) = (held(), held());
    daemon.hold("a", b"", &[one.as_fd()]).unwrap();
    daemon.hold("b", b"", &[other.as_fd()]).unwrap();
    drop((one, other));
    let (third, fd) = held();
    daemon.hold("b", b"", &[fd.as_fd()]).unwrap();
    drop(fd);
    assert_eq!((is_open(&second), is_open(&third)), (false, true));
    drop(daemon);
    let daemon = fixture.daemon();
    let taken = daemon.take("a").unwrap();
    assert_eq!(daemon.release_left().unwrap(), ["b"]);
    assert_eq!((is_open(&first), is_open(&third)), (true, false));
    assert_eq!(daemon.release_left().unwrap(), Vec::<String>::new());
    daemon.release("a").unwrap();
    drop((taken, daemon));
    keeper.join().unwrap();
}

#[test]
fn one_daemon_at_a_time_and_one_keeper() {
    let fixture = Fixture::new();
    let keeper = fixture.start();
    let first = fixture.daemon();
    let refused = Keeper::connect(&fixture.socket()).map(drop).unwrap_err();
    assert!(matches!(refused, Error::InUse(_)), "{refused}");
    let error = bind(&fixture.socket()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    drop(first);
    keeper.join().unwrap();
}

/// Whoever has lost its place to another one takes away nothing of its.
#[test]
fn a_keeper_that_ends_leaves_the_socket_of_another_one() {
    let fixture = Fixture::new();
    let first = bind(&fixture.socket()).unwrap();
    std::fs::remove_file(fixture.socket()).unwrap();
    let second = bind(&fixture.socket()).unwrap();
    first.remove_file();
    assert!(fixture.socket().exists(), "it is the second one's");
    second.remove_file();
    assert!(!fixture.socket().exists(), "its own it takes away");
}

/// What was taken up before somebody began anew stays whose it is.
#[test]
fn what_was_taken_up_since_is_put_back() {
    let fixture = Fixture::new();
    let keeper = fixture.start();
    let (one, two) = (held(), held());
    let daemon = fixture.daemon();
    daemon.hold("one", b"", &[one.1.as_fd()]).unwrap();
    daemon.hold("two", b"", &[two.1.as_fd()]).unwrap();
    drop(daemon);
    let daemon = fixture.daemon();
    daemon.begin();
    assert!(daemon.take("one").unwrap().is_some());
    daemon.begin();
    assert!(daemon.take("two").unwrap().is_some());
    daemon.put_back(|_| true);
    assert!(daemon.take("one").unwrap().is_none(), "it was taken before");
    assert!(
        daemon.take("two").unwrap().is_some(),
        "there is another taker"
    );
    daemon.end();
    daemon.put_back(|_| true);
    assert!(daemon.take("two").unwrap().is_none(), "it is over");
    for name in ["one", "two"] {
        daemon.release(name).unwrap();
    }
    drop(daemon);
    keeper.join().unwrap();
}

/// The daemon has a descriptor of each itself, and gives them to the next keeper.
#[test]
fn a_keeper_that_dies_is_given_all_again() {
    let fixture = Fixture::new();
    // This one is killed: a process of its own would be; here its connection ends.
    let listener = bind(&fixture.socket()).unwrap();
    let (reader, fd) = held();
    let killed = std::thread::spawn(move || {
        let client = rustix::net::accept(&listener).unwrap();
        let mut bytes = [0; 64];
        let mut answer = || {
            rustix::net::recv(&client, &mut bytes, rustix::net::RecvFlags::empty()).unwrap();
            rustix::net::send(&client, &[4, 0], SendFlags::empty()).unwrap();
        };
        answer();
        answer();
    });
    let daemon = fixture.daemon();
    daemon.hold("a", b"of before", &[fd.as_fd()]).unwrap();
    drop(fd);
    killed.join().unwrap();
    assert!(daemon.watch(Duration::from_secs(10)), "nobody is there");
    let refused = daemon.mend().unwrap_err();
    assert!(matches!(refused, Error::Gone { .. }), "{refused}");
    // What comes meanwhile is given to the next one, too.
    let (other, fd) = held();
    daemon.hold("b", b"", &[fd.as_fd()]).unwrap_err();
    drop(fd);
    let keeper = fixture.start();
    daemon.mend().unwrap();
    assert!(!daemon.watch(Duration::ZERO));
    drop(daemon);
    assert_eq!((is_open(&reader), is_open(&other)), (true, true));
    let daemon = fixture.daemon();
    assert_eq!(daemon.take("a").unwrap().unwrap().note, b"of before");
    daemon.release("a").unwrap();
    daemon.release("b").unwrap();
    drop(daemon);
    keeper.join().unwrap();
}

/// Bytes that are no message are refused, and what is held stays.
#[test]
fn a_client_that_talks_nonsense_loses_nothing() {
    let fixture = Fixture::new();
    let keeper = fixture.start();
    let daemon = fixture.daemon();
    let (reader, fd) = held();
    daemon.hold("a", b"", &[fd.as_fd()]).unwrap();
    drop((fd, daemon));
    let socket = client(&fixture.socket());
    let name_too_long = [&[1, 255][..], &[b'a'; 20]].concat();
    let note_too_long = [&[1, 1, b'a'][..], &[0; 2000]].concat();
    let nonsense: [&[u8]; 8] = [
        &[0],
        &[0, 0],
        &[9, 0],
        &[5, 1, b'a'],
        &[1, 1, b'a'],
        &[1, 1, 0xff],
        &name_too_long,
        &note_too_long,
    ];
    for bytes in nonsense {
        rustix::net::send(&socket, bytes, SendFlags::empty()).unwrap();
        let mut answer = [0; 128];
        let flags = rustix::net::RecvFlags::empty();
        let (_, len) = rustix::net::recv(&socket, &mut answer, flags).unwrap();
        assert_eq!(answer[0], 6, "{bytes:?} is not refused");
        assert!(len > 2, "{bytes:?}: no word why");
    }
    drop(socket);
    assert!(is_open(&reader));
    let daemon = fixture.daemon();
    daemon.release_left().unwrap();
    drop(daemon);
    keeper.join().unwrap();
}

/// One that connects, and neither speaks nor goes.
#[test]
fn a_client_that_says_nothing_keeps_no_daemon_waiting() {
    let fixture = Fixture::new();
    let keeper = fixture.start();
    let silent = client(&fixture.socket());
    let daemon = fixture.daemon();
    let (reader, fd) = held();
    daemon.hold("a", b"", &[fd.as_fd()]).unwrap();
    drop(fd);
    assert!(is_open(&reader));
    // The daemon may be silent for longer than who has said nothing at all.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    daemon.release("a").unwrap();
    assert!(!is_open(&reader));
    drop((silent, daemon));
    keeper.join().unwrap();
}

fn client(path: &Path) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let socket = socket.unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    socket
}
