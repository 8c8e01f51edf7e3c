//! TAP devices in namespaces of their own; the kernel's stack is the guest. Skipped where they
//! cannot be made.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use wire::Mac;

use super::*;
use crate::port::Port;
use crate::xsk::Link;
use sys::poll::Poller;

const PATIENCE: Duration = Duration::from_secs(20);

type Job = Box<dyn FnOnce() + Send>;

/// A network namespace: a thread that lives in it and runs what it is given.
struct Namespace {
    jobs: mpsc::Sender<Job>,
    tid: i32,
    _thread: JoinHandle<()>,
}

impl Namespace {
    /// `None`, having said why, where namespaces or TAP devices cannot be had.
    fn new() -> Option<Namespace> {
        if let Err(error) = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/net/tun")
        {
            eprintln!("skipped: /dev/net/tun: {error}");
            return None;
        }
        let (jobs, queue) = mpsc::channel::<Job>();
        let (ready, made) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            // SAFETY: a network namespace has no bearing on memory or on descriptors.
            let unshared =
                unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) };
            ready
                .send(unshared.map(|()| rustix::thread::gettid().as_raw_nonzero().get()))
                .unwrap();
            queue.into_iter().for_each(|job| job());
        });
        match made.recv().unwrap() {
            Ok(tid) => Some(Namespace {
                jobs,
                tid,
                _thread: thread,
            }),
            Err(error) => {
                eprintln!("skipped: no network namespace: {error}");
                None
            }
        }
    }

    /// Starts `job` in the namespace.
    fn start<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> mpsc::Receiver<T> {
        let (done, result) = mpsc::channel();
        let run = move || drop(done.send(job()));
        self.jobs.send(Box::new(run)).unwrap();
        result
    }

    fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        self.start(job)
            .recv_timeout(PATIENCE)
            .expect("the job in the namespace ends")
    }

    fn ip(&self, arguments: &str) {
        let arguments = arguments.to_owned();
        let output = self.run(move || {
            Command::new("ip")
                .args(arguments.split(' '))
                .output()
                .unwrap()
        });
        assert!(output.status.success(), "{output:?}");
    }

    fn open(&self, options: TapOptions) -> Result<TapPort, TapError> {
        self.run(move || TapPort::open(&options))
    }
}

fn options(name: &str, last: u8, offloads: bool) -> TapOptions {
    TapOptions {
        name: name.to_owned(),
        mac: Mac([2, 0, 0, 0, 0, last]),
        mtu: Some(1400),
        offloads,
    }
}

/// Carries frames between two ports until `done` has something; gives it and the longest frame
/// seen.
fn carry<T>(ports: &mut [Port; 2], done: &mpsc::Receiver<T>) -> (T, usize) {
    let mut poller = Poller::new().unwrap();
    for (token, port) in ports.iter().enumerate() {
        poller.add(port.kick_fd().unwrap(), token as u64).unwrap();
    }
    let mut batch = Batch::new();
    let mut longest = 0;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let _ready = poller.wait(Some(Duration::from_millis(5))).unwrap().count();
        for (from, to) in [(0, 1), (1, 0)] {
            ports[from].receive(&mut batch).unwrap();
            for index in 0..batch.len() {
                longest = longest.max(batch.frames()[index].len());
                // A full or a down receiver loses the frame, as a switch does.
                let _ = ports[to].transmit(&batch, index);
            }
            ports[to].flush().unwrap();
            ports[from].complete(&mut batch);
        }
        match done.try_recv() {
            Ok(result) => return (result, longest),
            Err(_) => assert!(
                Instant::now() < deadline,
                "nothing more happened: {:?}",
                ports.each_ref().map(Port::info)
            ),
        }
    }
}

/// 2 MB by TCP from one namespace to another, through two TAP ports with or without offloads.
fn download(offloads: [bool; 2]) -> Option<usize> {
    const BYTES: usize = 2_000_000;
    let byte = |at: usize| (at * 31 + at / 256) as u8;
    let spaces = [Namespace::new()?, Namespace::new()?];
    let mut ports = Vec::new();
    for (at, space) in spaces.iter().enumerate() {
        let port = space
            .open(options("tap0", at as u8 + 1, offloads[at]))
            .unwrap();
        ports.push(Port::from(port));
        space.ip(&format!("addr add 10.9.0.{}/24 dev tap0", at + 1));
    }
    let mut ports: [Port; 2] = ports.try_into().unwrap();
    let listener = spaces[0].run(|| TcpListener::bind("10.9.0.1:7").unwrap());
    let _serving = spaces[0].start(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let data: Vec<u8> = (0..BYTES).map(byte).collect();
        stream.write_all(&data).unwrap();
    });
    let downloaded = spaces[1].start(move || {
        let mut stream =
            TcpStream::connect_timeout(&"10.9.0.1:7".parse().unwrap(), PATIENCE).unwrap();
        let mut data = Vec::new();
        stream.read_to_end(&mut data).unwrap();
        data
    });
    let (data, longest) = carry(&mut ports, &downloaded);
    assert_eq!(data.len(), BYTES);
    assert!(
        (0..BYTES).all(|at| data[at] == byte(at)),
        "the bytes are those that were sent"
    );
    Some(longest)
}

#[test]
fn tcp_passes_in_large_frames_between_two_namespaces() {
    let Some(longest) = download([true, true]) else {
        return;
    };
    assert!(
        longest > 10_000,
        "no large frame passed: the longest had {longest} bytes"
    );
}

#[test]
fn without_offloads_frames_are_whole_and_no_longer_than_the_mtu() {
    let Some(longest) = download([false, false]) else {
        return;
    };
    assert_eq!(longest, 1414);
}

#[test]
fn large_frames_are_cut_for_a_port_without_offloads() {
    let Some(longest) = download([true, false]) else {
        return;
    };
    assert!(
        longest > 10_000,
        "no large frame was sent: the longest had {longest} bytes"
    );
}

#[test]
fn the_interface_is_as_asked_for_and_goes_with_the_port() {
    let Some(space) = Namespace::new() else {
        return;
    };
    let port = space.open(options("tap0", 7, true)).unwrap();
    let show = || {
        space.run(|| {
            Command::new("ip")
                .args(["link", "show"])
                .output()
                .unwrap()
                .stdout
        })
    };
    let shown = String::from_utf8(show()).unwrap();
    for part in ["tap0", "mtu 1400", "02:00:00:00:00:07", ",UP"] {
        assert!(shown.contains(part), "{part} is missing: {shown}");
    }
    let taken = space.open(options("tap0", 8, true)).unwrap_err();
    assert_eq!(
        taken.to_string(),
        "TAP interface 'tap0' cannot be made: an interface of that name exists"
    );
    assert!(matches!(
        space.open(options("no/name", 8, true)),
        Err(TapError::Name(_))
    ));
    let group = TapOptions {
        mac: Mac([1, 0, 0, 0, 0, 1]),
        ..options("tap1", 0, true)
    };
    assert!(
        matches!(space.open(group), Err(TapError::Step { .. })),
        "a group address is no interface's"
    );

    drop(port);
    let shown = String::from_utf8(show()).unwrap();
    assert!(
        !shown.contains("tap0") && !shown.contains("tap1"),
        "{shown}"
    );
}

#[test]
fn another_mac_and_mtu_reach_the_interface_wherever_it_is() {
    let (Some(host), Some(container)) = (Namespace::new(), Namespace::new()) else {
        return;
    };
    let mut port = host.open(options("tap0", 7, true)).unwrap();
    let shown = |space: &Namespace| {
        let show = || {
            Command::new("ip")
                .args(["link", "show"])
                .output()
                .unwrap()
                .stdout
        };
        String::from_utf8(space.run(show)).unwrap()
    };
    port.reconfigure(Mac([2, 0, 0, 0, 0, 8]), Some(1300))
        .unwrap();
    let here = shown(&host);
    assert!(
        here.contains("mtu 1300") && here.contains("02:00:00:00:00:08"),
        "{here}"
    );
    assert_eq!(port.mtu(), Some(1300));

    host.ip(&format!("link set tap0 netns {}", container.tid));
    container.ip("link set tap0 name eth0");
    container.ip("link set eth0 up");
    port.reconfigure(Mac([2, 0, 0, 0, 0, 9]), Some(1200))
        .unwrap();
    let there = shown(&container);
    for part in ["eth0", "mtu 1200", "02:00:00:00:00:09", ",UP"] {
        assert!(there.contains(part), "{part} is missing: {there}");
    }
    let refused = port.reconfigure(Mac([1, 0, 0, 0, 0, 1]), None).unwrap_err();
    assert!(matches!(refused, TapError::Step { .. }), "{refused}");
}

#[test]
fn a_port_lives_on_in_another_namespace_and_says_once_when_it_is_removed() {
    let (Some(host), Some(container)) = (Namespace::new(), Namespace::new()) else {
        return;
    };
    let mut port = host.open(options("tap0", 1, true)).unwrap();
    host.ip(&format!("link set tap0 netns {}", container.tid));

    let mut batch = Batch::new();
    let mut broadcast = vec![0xff; 6];
    broadcast.resize(60, 0x11);
    let index = batch.push_bytes(&broadcast, Offload::default()).unwrap();
    assert_eq!(
        port.transmit(&batch, index),
        Err(TransmitError::Down),
        "moving took it down"
    );
    container.ip("link set tap0 up");
    container.ip("addr add 10.9.0.2/24 dev tap0");
    assert_eq!(port.transmit(&batch, index), Ok(()));
    batch.clear();
    container.run(|| {
        UdpSocket::bind("10.9.0.2:0")
            .unwrap()
            .send_to(b"x", "10.9.0.255:9")
            .unwrap_err()
    });
    container.run(|| {
        UdpSocket::bind("10.9.0.2:0")
            .unwrap()
            .send_to(b"x", "10.9.0.1:9")
            .unwrap()
    });
    let asks_who_has = |frame: &crate::frame::Frame| frame.head()[12..14] == [8, 6];
    while !batch.frames().iter().any(asks_who_has) {
        batch.clear();
        let mut poller = Poller::new().unwrap();
        poller.add(port.kick_fd().unwrap(), 0).unwrap();
        assert_eq!(
            poller.wait(Some(PATIENCE)).unwrap().count(),
            1,
            "the kernel asks by ARP"
        );
        port.receive(&mut batch).unwrap();
    }
    batch.clear();

    let mut poller = Poller::new().unwrap();
    poller.add(port.kick_fd().unwrap(), 0).unwrap();
    container.ip("link del tap0");
    assert_eq!(
        poller.wait(Some(PATIENCE)).unwrap().count(),
        1,
        "its end is reported"
    );
    let said = port.receive(&mut batch).unwrap_err();
    assert_eq!(
        said,
        PortError::Broken {
            what: "TAP interface 'tap0' was removed".to_owned()
        }
    );
    assert_eq!(port.receive(&mut batch), Ok(0));
    assert!(port.descriptor().is_none() && !port.is_up());
    poller.remove(port.kick_fd().unwrap()).unwrap();
    assert_eq!(
        poller.wait(Some(Duration::ZERO)).unwrap().count(),
        0,
        "and not for ever"
    );
    let index = batch.push_bytes(&broadcast, Offload::default()).unwrap();
    assert_eq!(port.transmit(&batch, index), Err(TransmitError::Down));
}

/// Who floods an uplink with what is not for it takes the worker's time all the same.
#[test]
fn frames_that_an_uplink_leaves_out_are_counted() {
    const SENT: usize = 10;
    let Some(space) = Namespace::new() else {
        return;
    };
    let open = || {
        let link = Arc::new(Link::new(1400, true));
        TapUplink::open(
            &options("tap0", 7, false),
            link,
            Arc::new(|_: &[u8]| Received::Else),
        )
    };
    let (mut port, _voice) = space.run(open).unwrap();
    space.ip("address add 10.9.0.1/24 dev tap0");
    space.ip("neighbour add 10.9.0.2 lladdr 02:00:00:00:00:09 dev tap0");
    space.run(|| {
        let socket = UdpSocket::bind("10.9.0.1:0").unwrap();
        for _ in 0..SENT {
            socket.send_to(&[1; 100], "10.9.0.2:9").unwrap();
        }
    });
    let (mut batch, mut others) = (Batch::new(), 0);
    let deadline = Instant::now() + PATIENCE;
    // The kernel may have sent some of its own besides.
    while others < SENT {
        assert!(Instant::now() < deadline, "{others} were counted");
        assert_eq!(port.receive(&mut batch), Ok(0));
        others += batch.others();
        batch.clear();
    }
}
