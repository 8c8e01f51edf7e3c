//! Uplinks on veths: the peer behind the wire is the kernel of another namespace, with its own
//! vxlan device.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use testkit::PATIENCE;

use butterfly_uplink::{
    JoinError, JoinRequest, Joined, Mode, Program, join, join_packet, join_xdp, leave,
};
use io::frame::Batch;
use io::packet_socket::Packets;
use io::port::Port;
use io::xsk::Link;
use testkit::netns::Namespace;
use wire::offload::{Gso, Offload};
use wire::vxlan::{Ends, Outer, UdpChecksum, parse};
use wire::{Mac, Vni, build};
use xdp::Interfaces;

const PORT: u16 = 4789;
const VNI: u32 = 42;
const OUR_MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
const THEIR_MAC: Mac = Mac([2, 0, 0, 0, 0, 2]);
const GUEST_MAC: Mac = Mac([2, 0, 0, 0, 9, 1]);
const PEER_MAC: Mac = Mac([2, 0, 0, 0, 9, 2]);

/// Our namespace with `eth0`, and the kernel's at its other end with `eth0` and a vxlan device
/// `vx0` at 10.9.0.2.
struct Hosts {
    ours: Namespace,
    theirs: Namespace,
    mtu: u32,
    queues: u32,
}

impl Hosts {
    fn new(mtu: u32, queues: u32) -> Hosts {
        let (ours, theirs) = (Namespace::new().unwrap(), Namespace::new().unwrap());
        let number = format!("numrxqueues {queues} numtxqueues {queues}");
        let commands = [
            format!(
                "ip link add eth0 {number} mtu {mtu} address {OUR_MAC} type veth peer name peer0 \
                 {number} mtu {mtu} address {THEIR_MAC}"
            ),
            format!("ip link set peer0 netns {} name eth0", theirs.pid()),
            "ip addr add 192.0.2.1/24 dev eth0 && ip link set eth0 up".to_owned(),
        ];
        for command in commands {
            ours.ok(&command).unwrap();
        }
        let inner = mtu - 50;
        for command in [
            "ip addr add 192.0.2.2/24 dev eth0 && ip link set eth0 up".to_owned(),
            format!(
                "ip link add vx0 mtu {inner} address {PEER_MAC} type vxlan id {VNI} dstport {PORT} \
                 local 192.0.2.2 remote 192.0.2.1"
            ),
            "ip addr add 10.9.0.2/24 dev vx0 && ip link set vx0 up".to_owned(),
        ] {
            theirs.ok(&command).unwrap();
        }
        Hosts {
            ours,
            theirs,
            mtu,
            queues,
        }
    }

    fn request(&self, mode: Option<xdp::Mode>) -> JoinRequest {
        JoinRequest {
            name: "eth0".to_owned(),
            ifindex: self.ours.ifindex("eth0").unwrap(),
            number: 0,
            queues: self.queues,
            link: Arc::new(Link::new(self.mtu, true)),
            frames: 256,
            mode,
            busy_poll: false,
            is_virtual: true,
            packets: Packets::All,
        }
    }
}

/// What answers for 10.9.0.1 behind our end of the tunnel: ARP and echo.
struct Guest {
    joined: Joined,
    ports: Vec<Port>,
    interfaces: Interfaces,
    program: Program,
    ifindex: u32,
    /// Frames taken from each queue.
    taken: Vec<u64>,
}

impl Guest {
    fn join(request: &JoinRequest) -> Guest {
        Guest::new(request, join_xdp)
    }

    fn new(
        request: &JoinRequest,
        join: impl FnOnce(&Program, &mut Interfaces, &JoinRequest) -> Result<Joined, JoinError>,
    ) -> Guest {
        let program = Program::load(PORT, None).unwrap();
        program
            .set_endpoints(&[(IpAddr::from([192, 0, 2, 1]), 0)])
            .unwrap();
        let mut interfaces = Interfaces::new();
        let mut joined = join(&program, &mut interfaces, request).unwrap();
        let ports: Vec<Port> = joined.ports.drain(..).map(Port::from).collect();
        Guest {
            taken: vec![0; ports.len()],
            joined,
            ports,
            interfaces,
            program,
            ifindex: request.ifindex,
        }
    }

    /// Serves all queues until `done`.
    fn serve(&mut self, done: &AtomicBool) {
        let mut batch = Batch::new();
        let mut answers = Batch::new();
        while !done.load(Ordering::Relaxed) {
            for (port, taken) in self.ports.iter_mut().zip(&mut self.taken) {
                *taken += port.receive(&mut batch).unwrap() as u64;
                for index in 0..batch.len() {
                    let frame = batch.to_bytes(index);
                    let outer = parse(&frame, frame.len(), PORT).unwrap();
                    assert_eq!(
                        (outer.src, outer.vni.id()),
                        (IpAddr::from([192, 0, 2, 2]), VNI)
                    );
                    if let Some(answer) = answer(&frame[usize::from(outer.inner)..]) {
                        answers.push_bytes(&answer, Offload::default()).unwrap();
                        port.transmit_outer(&answers, 0, &headers()).unwrap();
                        answers.clear();
                    }
                }
                port.flush().unwrap();
                port.complete(&mut batch);
            }
        }
    }
}

fn headers() -> Outer {
    let ends = Ends::V4(Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2));
    let mut outer = Outer::new(
        (OUR_MAC, THEIR_MAC),
        None,
        ends,
        64,
        PORT,
        UdpChecksum::Full,
    );
    outer.set_flow(Vni::new(VNI).unwrap(), 55_555, 0);
    outer
}

/// ARP and echo, as a kernel at 10.9.0.1 would.
fn answer(frame: &[u8]) -> Option<Vec<u8>> {
    let us = [10, 9, 0, 1];
    match frame.get(12..14)? {
        [8, 6] if frame[21] == 1 && frame[38..42] == us => {
            let mut reply = frame[..42].to_vec();
            reply[..6].copy_from_slice(&frame[6..12]);
            reply[6..12].copy_from_slice(&GUEST_MAC.0);
            reply[21] = 2;
            reply[22..28].copy_from_slice(&GUEST_MAC.0);
            reply[28..32].copy_from_slice(&us);
            reply[32..42].copy_from_slice(&frame[22..32]);
            Some(reply)
        }
        [8, 0] if frame[23] == 1 && frame[34] == 8 && frame[30..34] == us => {
            let mut reply = frame.to_vec();
            reply[..6].copy_from_slice(&frame[6..12]);
            reply[6..12].copy_from_slice(&frame[..6]);
            reply[26..30].copy_from_slice(&frame[30..34]);
            reply[30..34].copy_from_slice(&frame[26..30]);
            reply[34] = 0;
            let old = u16::from_be_bytes([frame[36], frame[37]]);
            reply[36..38]
                .copy_from_slice(&wire::checksum::update_u16(old, 0x0800, 0).to_be_bytes());
            Some(reply)
        }
        _ => None,
    }
}

/// Runs `story` while the guest serves, and gives the guest back.
fn while_serving(
    hosts: &Hosts,
    mode: Option<xdp::Mode>,
    join: impl FnOnce(&Program, &mut Interfaces, &JoinRequest) -> Result<Joined, JoinError> + Send,
    story: impl FnOnce() + Send,
) -> Guest {
    let request = hosts.request(mode);
    let (ready, done) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            let serve = || {
                let mut guest = Guest::new(&request, join);
                ready.store(true, Ordering::Relaxed);
                guest.serve(&done);
                guest
            };
            hosts.ours.inside(serve).unwrap()
        });
        let deadline = Instant::now() + Duration::from_secs(10);
        while !ready.load(Ordering::Relaxed) && !server.is_finished() {
            assert!(Instant::now() < deadline, "the guest did not start");
            std::thread::yield_now();
        }
        let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(story));
        done.store(true, Ordering::Relaxed);
        let guest = server.join().unwrap();
        told.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        guest
    })
}

/// Echo of all sizes through the tunnel, and beside it.
fn ping_all(hosts: &Hosts) {
    let largest = hosts.mtu - 50 - 28;
    for size in [0, 56, 213, 214, 215, 1000, largest] {
        let ping = format!("ping -c 3 -i 0.01 -w 5 -M do -s {size} 10.9.0.1");
        hosts.theirs.ok(&ping).unwrap();
        hosts.theirs.ok("ping -c 3 -i 0.01 -w 5 192.0.2.1").unwrap();
    }
}

/// The kernel's vxlan and ours understand each other, and the kernel's own traffic on the same
/// interface goes on.
fn ping(mode: Option<xdp::Mode>, mtu: u32, queues: u32) -> Guest {
    let hosts = Hosts::new(mtu, queues);
    let guest = while_serving(&hosts, mode, join_xdp, || ping_all(&hosts));
    assert!(
        guest.taken.iter().sum::<u64>() >= 3 * 7,
        "{:?}",
        guest.taken
    );
    guest
}

#[test]
fn native_mode_speaks_with_the_kernel_s_vxlan() {
    let guest = ping(None, 1500, 1);
    assert_eq!(guest.joined.mode.to_string(), "AF_XDP, native XDP, copy");
    let lost = guest.joined.sockets[0].statistics().unwrap();
    assert_eq!(lost, Default::default(), "nothing was lost");
    let counted = guest.program.counters().unwrap();
    assert_eq!(
        (counted.no_socket, counted.elsewhere, counted.fragments),
        (0, 0, 0)
    );
}

#[test]
fn generic_mode_speaks_with_the_kernel_s_vxlan() {
    let guest = ping(Some(xdp::Mode::Generic), 1500, 1);
    assert_eq!(guest.joined.mode.to_string(), "AF_XDP, generic XDP, copy");
}

#[test]
fn jumbo_frames_pass_in_several_buffers() {
    let guest = ping(None, 9000, 1);
    let Mode::Xdp { sockets, .. } = &guest.joined.mode else {
        panic!("{}", guest.joined.mode);
    };
    assert!(sockets.multi_buffer);
    assert!(guest.joined.mtu_max >= 9000);
}

#[test]
fn every_queue_has_its_socket() {
    let hosts = Hosts::new(1500, 2);
    let guest = while_serving(&hosts, None, join_xdp, || {
        // The kernel sends on the queue that the flow's hash says: many flows meet both.
        hosts
            .theirs
            .ok("for i in $(seq 40); do ping -c 1 -w 5 10.9.0.1; done")
            .unwrap();
        hosts
            .theirs
            .inside(|| {
                let socket = UdpSocket::bind("10.9.0.2:0").unwrap();
                for port in 1000..1200 {
                    socket.send_to(b"hello", ("10.9.0.1", port)).unwrap();
                }
            })
            .unwrap();
        hosts.theirs.ok("ping -c 1 -w 5 10.9.0.1").unwrap();
    });
    assert_eq!(guest.taken.len(), 2);
    assert!(
        guest.taken.iter().all(|taken| *taken > 0),
        "{:?}",
        guest.taken
    );
}

#[test]
fn a_large_frame_arrives_as_the_datagrams_it_stands_for() {
    let hosts = Hosts::new(1500, 1);
    let request = hosts.request(None);
    let receiver = hosts
        .theirs
        .inside(|| UdpSocket::bind("10.9.0.2:9000").unwrap())
        .unwrap();
    receiver
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    let payload: Vec<u8> = (0..10_000u32).map(|i| (i * 7) as u8).collect();
    let frame = build::frame(GUEST_MAC, PEER_MAC)
        .ip([10, 9, 0, 1], [10, 9, 0, 2])
        .udp(1234, 9000)
        .payload(&payload)
        .partial_checksum()
        .build();
    let send = || {
        let mut guest = Guest::join(&request);
        let mut batch = Batch::new();
        let offload = Offload {
            gso: Gso::Udp,
            gso_size: 1200,
            checksum: Some(wire::offload::PartialChecksum {
                start: 34,
                offset: 6,
            }),
            ..Offload::default()
        };
        batch.push_bytes(&frame, offload).unwrap();
        let port = &mut guest.ports[0];
        port.transmit_outer(&batch, 0, &headers()).unwrap();
        port.flush().unwrap();
        guest
    };
    let mut guest = hosts.ours.inside(send).unwrap();
    let mut buffer = [0; 2000];
    for expected in payload.chunks(1200) {
        let (len, from) = receiver.recv_from(&mut buffer).unwrap();
        assert_eq!(
            (&buffer[..len], from.to_string().as_str()),
            (expected, "10.9.0.1:1234")
        );
    }
    leave(&guest.program, &mut guest.interfaces, guest.ifindex);
    let is_gone = || Ok((!hosts.ours.ok("ip link show eth0")?.contains("xdp")).then_some(()));
    testkit::wait_for("the interface to be the kernel's again", PATIENCE, is_gone).unwrap();
}

#[test]
fn a_packet_socket_does_the_same() {
    for mtu in [1500, 9000] {
        let hosts = Hosts::new(mtu, 1);
        let join = |_: &Program, _: &mut Interfaces, request: &JoinRequest| {
            Ok(join_packet(request, PORT, "it was asked for".to_owned()).unwrap())
        };
        // Or the kernel says that nobody listens.
        let reserved = hosts
            .ours
            .inside(|| UdpSocket::bind(("192.0.2.1", PORT)).unwrap())
            .unwrap();
        let guest = while_serving(&hosts, None, join, || {
            ping_all(&hosts);
            assert!(!hosts.ours.ok("ip link show eth0").unwrap().contains("xdp"));
        });
        drop(reserved);
        let mode = &guest.joined.mode;
        assert_eq!(
            (mode.to_string().as_str(), mode.why()),
            ("packet socket", "it was asked for")
        );
    }
}

#[test]
fn where_xdp_is_refused_a_packet_socket_takes_over_and_says_why() {
    let hosts = Hosts::new(1500, 1);
    let request = hosts.request(None);
    let told = hosts.ours.inside(|| {
        // Somebody else's program is there already.
        let theirs = xdp::Program::load("pass", xdp::objects::PASS, |_| Ok(())).unwrap();
        let _attached = xdp::attach(&theirs, request.ifindex, None).unwrap();
        let guest = Guest::new(&request, |program, interfaces, request| {
            join(program, interfaces, request, PORT)
        });
        (
            guest.joined.mode.to_string(),
            guest.joined.mode.why().to_owned(),
        )
    });
    let (mode, why) = told.unwrap();
    assert_eq!(mode, "packet socket");
    assert!(why.contains("pass"), "it names the other program: {why}");
}

#[test]
fn the_kernel_s_traffic_is_untouched_while_the_tunnel_is_full() {
    let hosts = Hosts::new(1500, 1);
    let server = hosts.ours.start("iperf3", "iperf3 -s").unwrap();
    let listens = || Ok(hosts.ours.ok("ss -ltn")?.contains(":5201").then_some(()));
    testkit::wait_for("iperf3 to listen", PATIENCE, listens).unwrap();
    let guest = while_serving(&hosts, None, join_xdp, || {
        let flood = hosts
            .theirs
            .start("flood", "ping -f -q -w 60 -s 1000 10.9.0.1")
            .unwrap();
        let echoes = || {
            let count = hosts
                .theirs
                .ok("ip -s link show vx0 | awk '/RX:/ { getline; print $2 }'")?;
            count
                .trim()
                .parse::<u64>()
                .map_err(|e| format!("{count}: {e}"))
        };
        let more_than = |count| move || Ok((echoes()? > count).then_some(()));
        testkit::wait_for("a flood", PATIENCE, more_than(100)).unwrap();
        hosts
            .theirs
            .ok("iperf3 -c 192.0.2.1 -n 50M --connect-timeout 5000")
            .unwrap();
        let so_far = echoes().unwrap();
        testkit::wait_for("the flood to go on", PATIENCE, more_than(so_far)).unwrap();
        drop(flood);
    });
    drop(server);
    assert!(
        guest.taken[0] > 100,
        "the tunnel was in use: {:?}",
        guest.taken
    );
}

#[test]
fn a_process_that_is_killed_leaves_nothing_behind() {
    let hosts = Hosts::new(1500, 1);
    let exe = std::env::current_exe().unwrap();
    let words = format!(
        "{} --exact --ignored --nocapture hold_for_ever",
        exe.display()
    );
    let mut holder = hosts.ours.start("holder", &words).unwrap();
    let has_program = || {
        Ok(hosts
            .ours
            .ok("ip link show eth0")?
            .contains("xdp")
            .then_some(()))
    };
    testkit::wait_for("the program", PATIENCE, has_program).unwrap();
    holder.kill();
    let is_gone = || Ok(has_program()?.is_none().then_some(()));
    testkit::wait_for("the program to go", PATIENCE, is_gone).unwrap();
    // And the queue is free for the next one.
    let guest = while_serving(&hosts, None, join_xdp, || ping_all(&hosts));
    assert!(guest.taken[0] > 0);
}

#[test]
#[ignore = "the process that another test kills"]
fn hold_for_ever() {
    let request = JoinRequest {
        name: "eth0".to_owned(),
        ifindex: testkit::process::run(&["ip", "-o", "link", "show", "eth0"])
            .unwrap()
            .split(':')
            .next()
            .and_then(|index| index.parse().ok())
            .unwrap(),
        number: 0,
        queues: 1,
        link: Arc::new(Link::new(1500, true)),
        frames: 256,
        mode: None,
        busy_poll: false,
        is_virtual: true,
        packets: Packets::All,
    };
    let _guest = Guest::join(&request);
    std::thread::park_timeout(Duration::from_secs(60));
}

#[test]
fn a_port_that_is_only_looked_at_says_that_its_interface_is_gone() {
    let hosts = Hosts::new(1500, 1);
    let mut guest = hosts
        .ours
        .inside(|| Guest::join(&hosts.request(None)))
        .unwrap();
    let port = &mut guest.ports[0];
    let mut batch = Batch::new();
    // The other host's kernel may have something to say of its own at any time, by IPv6.
    let quiet = || {
        port.receive(&mut batch).unwrap();
        port.complete(&mut batch);
        Ok((!port.arm() && port.look() == Some(false)).then_some(()))
    };
    testkit::wait_for("the port to be quiet", PATIENCE, quiet).unwrap();
    hosts.ours.ok("ip link del eth0").unwrap();
    let told = || {
        for _ in 0..4096 {
            if port.look() == Some(true) {
                let received = port.receive(&mut batch);
                port.complete(&mut batch);
                return Ok(received.err());
            }
        }
        Ok(None)
    };
    let error = testkit::wait_for("the port to notice", PATIENCE, told).unwrap();
    assert!(
        error.to_string().ends_with("the interface is gone"),
        "{error}"
    );
    assert_eq!(port.look(), Some(false), "it is said once");
}

#[test]
fn busy_polling_moves_frames_as_well() {
    let hosts = Hosts::new(1500, 1);
    let join = |program: &Program, interfaces: &mut Interfaces, request: &JoinRequest| {
        join_xdp(
            program,
            interfaces,
            &JoinRequest {
                busy_poll: true,
                ..request.clone()
            },
        )
    };
    while_serving(&hosts, None, join, || ping_all(&hosts));
}
