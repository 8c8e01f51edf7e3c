//! Mirrors to collectors: copies of NICs' frames in VXLAN or ERSPAN, sent by the host's own routes.
//!
//! Workers put frames into one bounded queue for all mirrors of the host ([`io::trace::capture`]);
//! one thread takes them out, cuts those of many segments, completes checksums, and sends. Where it
//! or the network is too slow frames are lost to the collector, and counted by NIC; no worker
//! waits. It begins with the first mirror.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use control::model::{self, Direction, MirrorKind, Nic};
use io::trace::capture::{Capture, Caught, Queue, Tap, Wanted};
use io::trace::{self};
use socket2::{Domain, Protocol, Socket, Type};
use wire::checksum;
use wire::erspan;
use wire::offload::{Gso, Offload};
use wire::parse;
use wire::segment::{self, Segments};
use wire::vxlan;

/// IP's number for GRE.
const GRE: u8 = 47;

/// All mirrors of this host.
#[derive(Default)]
pub struct Mirrors(Option<Running>);

struct Running {
    queue: Queue,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    /// By the number that their frames come with.
    targets: BTreeMap<u32, Arc<Target>>,
    last: u32,
}

/// Where one NIC's copies go.
struct Target {
    /// Gone with the mirror.
    capture: Weak<Capture>,
    nic: String,
    to: SocketAddr,
    how: How,
    snap_len: usize,
    /// Its own, so that it waits in nobody's buffer.
    socket: Socket,
    failing: AtomicBool,
}

enum How {
    Vxlan { header: [u8; vxlan::VXLAN_LEN] },
    Erspan { session: u16, sequence: AtomicU32 },
}

impl Mirrors {
    /// Begins to send what the tap is offered, until that is dropped. The error is a sentence.
    pub fn begin(&mut self, nic: &Nic, mirror: &model::Mirror) -> Result<Tap, String> {
        let running = self.running()?;
        let mut shared = lock(&running.shared);
        shared
            .targets
            .retain(|_, target| target.capture.strong_count() > 0);
        let (port, how) = match mirror.kind {
            MirrorKind::Vxlan { port, vni } => {
                let header = vxlan::header(vni.unwrap_or(nic.vni));
                (port, How::Vxlan { header })
            }
            MirrorKind::Erspan { session } => {
                let sequence = AtomicU32::new(0);
                (0, How::Erspan { session, sequence })
            }
        };
        let socket = how.socket(mirror.address.is_ipv6());
        let socket = socket.map_err(|e| {
            let (address, headers) = (mirror.address, how.name());
            format!("a socket for copies to {address} by {headers} cannot be opened: {e}")
        })?;
        let capture = Capture::into_queue(
            &running.queue,
            Wanted {
                filter: None,
                // What is cut is cut behind its segmentation.
                snap_len: usize::MAX,
                direction: mirror.direction.map(|direction| match direction {
                    Direction::Ingress => trace::Direction::Inbound,
                    Direction::Egress => trace::Direction::Outbound,
                }),
                dropped_only: false,
                received_only: true,
            },
        );
        shared.last = shared.last.wrapping_add(1);
        let source = shared.last;
        let target = Target {
            capture: Arc::downgrade(&capture),
            nic: nic.id.to_string(),
            to: SocketAddr::new(mirror.address, port),
            how,
            snap_len: mirror.snap_len.unwrap_or(model::SNAP_MAX) as usize,
            socket,
            failing: AtomicBool::new(false),
        };
        shared.targets.insert(source, Arc::new(target));
        Ok(Tap { capture, source })
    }

    fn running(&mut self) -> Result<&Running, String> {
        if self.0.is_none() {
            let (queue, frames) = Queue::new();
            let shared = Arc::default();
            let of_thread = (queue.clone(), Arc::clone(&shared));
            std::thread::Builder::new()
                .name("mirrors".to_owned())
                .stack_size(256 << 10)
                .spawn(move || run(&of_thread.0, &frames, &of_thread.1))
                .map_err(|e| format!("the mirrors' thread cannot be started: {e}"))?;
            self.0 = Some(Running { queue, shared });
        }
        self.0.as_ref().ok_or_else(String::new)
    }
}

impl How {
    fn name(&self) -> &'static str {
        match self {
            How::Vxlan { .. } => "VXLAN",
            How::Erspan { .. } => "ERSPAN",
        }
    }

    /// One that never waits.
    fn socket(&self, is_v6: bool) -> std::io::Result<Socket> {
        let domain = if is_v6 { Domain::IPV6 } else { Domain::IPV4 };
        let gre = Some(Protocol::from(i32::from(GRE)));
        let socket = match self {
            How::Vxlan { .. } => Socket::new(domain, Type::DGRAM, None)?,
            How::Erspan { .. } => Socket::new(domain, Type::RAW, gre)?,
        };
        socket.set_nonblocking(true)?;
        // A raw socket gets all GRE of the host: that is not read.
        socket.set_recv_buffer_size(0)?;
        Ok(socket)
    }

    /// Whether these bytes, behind the header of IP, are a copy of this mirror's.
    fn begins(&self, transport: &[u8], port: u16) -> bool {
        match self {
            How::Vxlan { header } => {
                transport.get(2..4) == Some(&port.to_be_bytes()[..])
                    && transport.get(8..16) == Some(&header[..])
            }
            How::Erspan { session, .. } => erspan::session(transport) == Some(*session),
        }
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends when there is neither a mirror nor anybody who could begin one.
fn run(queue: &Queue, frames: &Receiver<Caught>, shared: &Mutex<Shared>) {
    // The queue that is held here is for its counts; who sends are the captures.
    let mut room = Vec::with_capacity(1 << 16);
    while let Ok(caught) = frames.recv() {
        let target = lock(shared).targets.get(&caught.source).cloned();
        let capture = target.as_ref().and_then(|target| target.capture.upgrade());
        match (target, capture) {
            (Some(target), Some(capture)) => {
                capture.taken(&caught);
                target.send(caught, &capture, &mut room);
            }
            _ => queue.taken(&caught),
        }
    }
}

impl Target {
    fn send(&self, caught: Caught, capture: &Capture, room: &mut Vec<u8>) {
        if self.is_own(&caught.bytes) {
            return;
        }
        let is_egress = caught.direction == trace::Direction::Outbound;
        let mut failed = None;
        each_packet(caught.bytes, &caught.offload, |packet| {
            room.clear();
            let cut = &packet[..packet.len().min(self.snap_len)];
            match &self.how {
                How::Vxlan { header } => room.extend_from_slice(header),
                How::Erspan { session, sequence } => {
                    let sequence = sequence.fetch_add(1, Ordering::Relaxed);
                    let is_cut = cut.len() < packet.len();
                    let header = erspan::header(*session, sequence, is_cut, is_egress.into());
                    room.extend_from_slice(&header);
                }
            }
            room.extend_from_slice(cut);
            if let Err(error) = self.socket.send_to(room, &self.to.into()) {
                failed = Some(error);
            }
        });
        let to = self.to.ip();
        match failed {
            Some(error) => {
                capture.lose();
                if !self.failing.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        "copies of NIC '{}' cannot be sent to {to}: {error}",
                        self.nic
                    );
                }
            }
            None if self.failing.swap(false, Ordering::Relaxed) => {
                tracing::info!("copies of NIC '{}' are sent to {to} again", self.nic);
            }
            None => {}
        }
    }

    /// A copy on its way to this very collector, by a NIC that is mirrored to it: a copy of that
    /// would be one again. What only goes to the same address is copied.
    fn is_own(&self, frame: &[u8]) -> bool {
        let head = &frame[..frame.len().min(segment::HEADER_MAX)];
        let packet = parse::parse(head, frame.len());
        let Some(ip) = packet.as_ref().ok().and_then(|packet| packet.ip()) else {
            return false;
        };
        let dst: IpAddr = ip.dst();
        let protocol = match self.how {
            How::Vxlan { .. } => parse::protocol::UDP,
            How::Erspan { .. } => GRE,
        };
        dst == self.to.ip()
            && ip.protocol == protocol
            && head
                .get(usize::from(ip.l4)..)
                .is_some_and(|transport| self.how.begins(transport, self.to.port()))
    }
}

/// The packets that a frame stands for on a wire: its segments, checksums complete. One that cannot
/// be cut goes as it is.
fn each_packet(mut frame: Box<[u8]>, offload: &Offload, mut each: impl FnMut(&[u8])) {
    if offload.gso != Gso::None {
        let head = &frame[..frame.len().min(segment::HEADER_MAX)];
        if let Ok(segments) = Segments::new(head, frame.len(), offload) {
            let mut packet = Vec::new();
            for index in 0..segments.count() {
                let payload = &frame[segments.payload(index)];
                let payload_sum = checksum::sum(payload);
                packet.clear();
                packet.resize(segments.header_len(), 0);
                segments.write(index, segment::Checksum::Full { payload_sum }, &mut packet);
                packet.extend_from_slice(payload);
                each(&packet);
            }
            return;
        }
    }
    if let Some(partial) = offload.checksum {
        let start = usize::from(partial.start);
        if let Some(summed) = frame.get_mut(start..) {
            let sum = checksum::finish(checksum::sum(summed)).to_be_bytes();
            let at = usize::from(partial.offset);
            if let Some(field) = summed.get_mut(at..at + 2) {
                field.copy_from_slice(&sum);
            }
        }
    }
    each(&frame);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, UdpSocket};
    use std::time::Duration;

    use wire::build;
    use wire::parse::TcpFlags;
    use wire::{Mac, Vni};

    fn nic() -> Nic {
        let id = control::model::NicId::new("vm1").unwrap();
        Nic::new(id, Mac([2, 0, 0, 0, 0, 1]), Vni::new(7).unwrap())
    }

    fn collector() -> (UdpSocket, u16) {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let port = socket.local_addr().unwrap().port();
        (socket, port)
    }

    fn mirror(port: u16) -> model::Mirror {
        model::Mirror {
            kind: MirrorKind::Vxlan { port, vni: None },
            address: Ipv4Addr::LOCALHOST.into(),
            direction: None,
            snap_len: None,
        }
    }

    fn received(socket: &UdpSocket) -> Vec<u8> {
        let mut bytes = [0; 2048];
        let len = socket.recv(&mut bytes).unwrap();
        bytes[..len].to_vec()
    }

    #[test]
    fn frames_are_sent_cut_and_not_those_that_are_copies() {
        let (socket, port) = collector();
        let mut mirrors = Mirrors::default();
        let wanted = model::Mirror {
            snap_len: Some(50),
            direction: Some(Direction::Egress),
            ..mirror(port)
        };
        let tap = mirrors.begin(&nic(), &wanted).unwrap();
        let (a, b) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
        let frame = |port: u16, payload: &[u8]| {
            let built = build::frame(a, b).ip(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::LOCALHOST);
            built.udp(1000, port).payload(payload).build()
        };
        let offer = |frame: &[u8], direction, dropped| {
            tap.offer_bytes(direction, frame, dropped, 1);
        };
        use trace::Direction::{Inbound, Outbound};
        let header = [8, 0, 0, 0, 0, 0, 7, 0];
        offer(
            &frame(port, &[&header[..], &[7; 100]].concat()),
            Outbound,
            None,
        );
        offer(&frame(53, &[7; 100]), Inbound, None);
        // To the collector, and no copy: nobody hides by that.
        for (port, payload) in [(53, [7; 100]), (port, [7; 100])] {
            let sent = frame(port, &payload);
            offer(&sent, Outbound, Some("no_ingress_rule"));
            let copy = received(&socket);
            assert_eq!(copy[..8], header);
            assert_eq!(copy[8..], sent[..50]);
        }
        assert_eq!(tap.capture.counts(), (3, 0));
    }

    #[test]
    fn a_large_frame_is_sent_as_its_segments() {
        let (a, b) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
        let built = build::frame(a, b)
            .ip(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2))
            .tcp(1, 2, TcpFlags::ACK)
            .payload(&[9; 2500]);
        let whole = built.clone().build();
        let offload = Offload {
            checksum: Some(wire::offload::PartialChecksum {
                start: 34,
                offset: 16,
            }),
            gso: Gso::Tcp4,
            gso_size: 1000,
            ..Offload::default()
        };
        let mut packets = Vec::new();
        each_packet(whole.clone().into(), &offload, |packet| {
            packets.push(packet.to_vec())
        });
        let lens: Vec<_> = packets.iter().map(Vec::len).collect();
        assert_eq!(lens, [1054, 1054, 554]);
        for packet in &packets {
            let (src, dst) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
            let l4 = &packet[34..];
            let pseudo = checksum::pseudo_v4(src, dst, 6, l4.len() as u32);
            let sum = checksum::add(pseudo, checksum::sum(l4));
            assert_eq!(checksum::fold(sum), 0xffff, "a checksum is wrong");
        }
        // One packet whose checksum was left to be completed.
        let begun = built.partial_checksum().build();
        let offload = Offload {
            gso: Gso::None,
            gso_size: 0,
            ..offload
        };
        let mut packets = Vec::new();
        each_packet(begun.into(), &offload, |packet| {
            packets.push(packet.to_vec())
        });
        assert_eq!(packets, [whole]);
    }

    #[test]
    fn what_cannot_be_sent_is_counted_as_lost() {
        let mut mirrors = Mirrors::default();
        let wanted = model::Mirror {
            // Broadcast, which the kernel refuses on this socket.
            address: Ipv4Addr::new(127, 255, 255, 255).into(),
            ..mirror(9)
        };
        let tap = mirrors.begin(&nic(), &wanted).unwrap();
        tap.offer_bytes(trace::Direction::Outbound, &[0; 60], None, 1);
        let until = std::time::Instant::now() + Duration::from_secs(20);
        while tap.capture.counts() != (1, 1) {
            assert!(std::time::Instant::now() < until, "it is not counted");
            std::thread::yield_now();
        }
    }
}
