//! Flows that the kernel forwards itself between containers, and between one and another host: the
//! same packets to a daemon that has it do so and to one that does not, and what an attacker would
//! try.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use api::v1;
use butterfly_tests::api::Api;
use butterfly_tests::hosts::{UPLINK, cable};
use butterfly_tests::lab::check;
use butterfly_tests::packet_peer::{PacketPeer, hex};
use butterfly_tests::trials::run_each;
use butterfly_tests::{Daemon, trials};
use testkit::netns::Namespace;
use testkit::process;
use testkit::{PATIENCE, Result, wait_closely, wait_for};
use wire::build::{self, Builder};
use wire::offload::{Gso, Offload, PartialChecksum};
use wire::parse::TcpFlags;
use wire::vxlan::{self, Ends, Outer, UdpChecksum};
use wire::{Mac, Vni, checksum};

fn main() {
    run_each(trials![
        the_same_is_forwarded_counted_and_refused_with_the_kernel_and_without,
        the_same_with_a_full_table,
        the_same_without_a_look_into_the_kernel_s_buffers,
        the_same_under_limits,
        the_same_leaves_for_another_host_over_ipv4,
        the_same_leaves_for_another_host_over_ipv6,
        the_same_comes_from_another_host_over_ipv4,
        the_same_comes_from_another_host_over_ipv6,
        the_same_comes_from_another_host_without_a_look_into_the_kernel_s_buffers,
        what_is_not_as_it_was_judged_comes_from_no_other_host,
        a_machine_that_was_learnt_comes_by_the_kernel_and_is_heard_of,
        a_dscp_is_on_what_the_kernel_sends,
        what_is_known_of_another_host_is_in_force_for_the_next_packet,
        who_borrows_a_known_flow_s_addresses_reaches_nobody,
        a_checksum_that_is_begun_changes_nothing_that_was_judged,
        who_has_been_silent_for_its_time_is_decided_anew,
        a_rule_that_goes_is_in_force_for_the_next_packet,
        a_reset_closes_where_the_connection_is_and_nowhere_else,
        a_nic_that_goes_is_reached_by_nothing_of_before,
        who_watches_sees_every_frame,
        nothing_passes_when_the_daemon_was_killed,
        nothing_passes_while_the_daemon_stands_still,
        a_full_table_costs_speed_alone,
    ])
}

/// The option that has uplinks joined by packet sockets.
const PACKET: &str = "--uplink-mode packet";

/// Frames that a NIC sends at once, each with what is left to do in it.
type Batch = (usize, Vec<(Vec<u8>, Offload)>);

const VNI: u32 = 7;
/// The container with a short MTU.
const SHORT: usize = 3;
const ACK: TcpFlags = TcpFlags::ACK;

fn mac(nic: usize) -> Mac {
    Mac([0x52, 0x54, 0, 0, 2, nic as u8])
}

fn address(nic: usize, v6: bool) -> IpAddr {
    match v6 {
        false => IpAddr::from([10, 2, 0, nic as u8]),
        true => IpAddr::from([0xfd02, 0, 0, 0, 0, 0, 0, nic as u16]),
    }
}

/// The other host of a network, which is the second peer: the machine `c2` is there, and speaks by
/// the wire.
struct Wire {
    /// Of the host's uplink, and of the far end.
    macs: [Mac; 2],
    /// Endpoints: the host's, and the other.
    ends: [IpAddr; 2],
}

impl Wire {
    /// A frame of the machine's as the other host would send it.
    fn wrapped(&self, inner: &[u8], vni: u32) -> Result<Vec<u8>> {
        self.wrapped_by(inner, vni, UdpChecksum::Zero)
    }

    fn wrapped_by(&self, inner: &[u8], vni: u32, sum: UdpChecksum) -> Result<Vec<u8>> {
        let [ours, theirs] = self.macs;
        let ends = Ends::new(self.ends[1], self.ends[0]).ok_or("two families")?;
        let port = vxlan::PORT;
        let mut outer = Outer::new((theirs, ours), None, ends, 64, port, sum);
        let vni = Vni::new(vni).map_err(|e| e.to_string())?;
        outer.set_flow(vni, 50_000, vxlan::ecn::tos_of(inner));
        let mut frame = vec![0; outer.len()];
        outer.write(&mut frame, inner.len(), checksum::sum(inner));
        frame.extend_from_slice(inner);
        Ok(frame)
    }
}

/// It is VXLAN: what the far end's own stack is told or asked is none of ours.
fn is_vxlan(frame: &str) -> bool {
    let at = |byte: usize, len: usize| frame.get(2 * byte..2 * (byte + len)).unwrap_or_default();
    match at(12, 2) {
        "0800" => at(23, 1) == "11" && at(36, 2) == "12b5",
        "86dd" => at(20, 1) == "11" && at(56, 2) == "12b5",
        _ => false,
    }
}

/// A daemon with containers `c1` and further ones, each in its group of the same name.
struct World {
    daemon: Daemon,
    api: RefCell<Api>,
    /// By number, less one.
    peers: Vec<PacketPeer>,
    name: &'static str,
    /// Frames that each container has sent.
    sent: Vec<u64>,
    /// What was counted before the first frame of ours.
    before: BTreeMap<String, u64>,
    /// Containers there are.
    nics: usize,
    wire: Option<Wire>,
    /// The kernel gives frames from there to the container.
    arrives: bool,
    /// The namespace of the daemon, which goes before it.
    host: Option<Namespace>,
}

impl World {
    fn new(name: &'static str, containers: usize, options: &[&str]) -> Result<World> {
        World::of(name, containers, Daemon::start(options)?)
    }

    fn of(name: &'static str, containers: usize, daemon: Daemon) -> Result<World> {
        let mut world = World::empty(name, containers, daemon)?;
        for nic in 1..=containers {
            let namespace = Namespace::new()?;
            world.add(nic, namespace.pid())?;
            world.peers.push(PacketPeer::new(namespace)?);
        }
        world.quiet()
    }

    /// The kernel tells its types to nobody: the program reads nothing of a frame's buffer.
    fn blind() -> Result<World> {
        let daemon = Daemon::start_without_btf(&[])?;
        let world = World::of("b", 3, daemon)?;
        let said = "the kernel's buffers cannot be looked into";
        check(world.daemon.log().contains(said), &world.daemon.log())?;
        Ok(world)
    }

    fn empty(name: &'static str, nics: usize, daemon: Daemon) -> Result<World> {
        Ok(World {
            api: RefCell::new(Api::connect(&daemon)?),
            daemon,
            peers: Vec::new(),
            name,
            sent: vec![0; nics.max(2)],
            before: BTreeMap::new(),
            nics,
            wire: None,
            arrives: false,
            host: None,
        })
    }

    /// What their stacks have said when their interfaces came up is over.
    fn quiet(mut self) -> Result<World> {
        for nic in 1..=self.nics {
            self.sent[nic - 1] = self.settled(nic)?;
        }
        self.arrived()?;
        self.before = self.numbers()?;
        Ok(self)
    }

    /// A container, and a machine whose monitor takes no offloads: `c1` and `c2`.
    fn with_machine() -> Result<World> {
        let host = Namespace::new()?;
        let daemon = Daemon::start_on(Some(host.pid()), &[])?;
        let mut world = World::empty("k", 2, daemon)?;
        let namespace = Namespace::new()?;
        world.add(1, namespace.pid())?;
        world.daemon.cli(&format!(
            "sg add c2 --silent-midstream + nic add --id c2 --mac {} --vni {VNI} --ip {} {} \
             --sg c2 --type vm-tap --path bf-m2 --mtu 1500",
            mac(2),
            address(2, false),
            address(2, true)
        ))?;
        world.peers.push(PacketPeer::new(namespace)?);
        world.peers.push(PacketPeer::by("tap:bf-m2", host)?);
        world.quiet()
    }

    /// One container, and a machine on another host, over IPv4 or IPv6.
    fn far(name: &'static str, v6: bool, options: &[&str]) -> Result<World> {
        World::far_by(name, v6, false, options)
    }

    fn far_by(name: &'static str, v6: bool, blind: bool, options: &[&str]) -> Result<World> {
        let (host, far) = cable(1500)?;
        let macs = [1, 2].map(|n| Mac([2, 0, 0, 0, 0xff, n]));
        for (namespace, mac) in [(&host, macs[0]), (&far, macs[1])] {
            namespace.ok(&format!("ip link set {UPLINK} address {mac}"))?;
        }
        let ends = [1u8, 2].map(|n| match v6 {
            true => IpAddr::from([0xfd0c, 0, 0, 0, 0, 0, 0, n.into()]),
            false => IpAddr::from([192, 0, 2, n]),
        });
        let own = ends[0].to_string();
        let all = [&["-i", own.as_str()][..], options].concat();
        let daemon = match blind {
            false => Daemon::start_on(Some(host.pid()), &all)?,
            true => Daemon::start_on_without_btf(Some(host.pid()), &all)?,
        };
        let mut world = World::empty(name, 1, daemon)?;
        let is_in = |words: &str| options.windows(2).any(|two| two.join(" ") == words);
        world.arrives = is_in(PACKET) && !is_in("--kernel-flows off");
        (world.wire, world.host) = (Some(Wire { macs, ends }), Some(host));
        let namespace = Namespace::new()?;
        world.add(1, namespace.pid())?;
        world.bind(ends[1])?;
        world.peers.push(PacketPeer::new(namespace)?);
        world.peers.push(PacketPeer::by(UPLINK, far)?);
        world.quiet()
    }

    /// Frames that the kernel has given to the container from the wire.
    fn arrived_by_kernel(&self) -> Result<u64> {
        Ok(self.uplink()?.received_kernel_frames)
    }

    /// The machine is at this host.
    fn bind(&self, host: IpAddr) -> Result<()> {
        let line = format!(
            "binding add --vni {VNI} --mac {} --ip {} {} --host {host}",
            mac(2),
            address(2, false),
            address(2, true)
        );
        self.daemon.cli(&line).map(drop)
    }

    fn uplink(&self) -> Result<v1::Uplink> {
        let all = self.api.borrow_mut().uplinks()?;
        all.into_iter().next().ok_or_else(|| "no uplink".to_owned())
    }

    fn add(&self, nic: usize, pid: u32) -> Result<()> {
        // A reset depends on when a NIC has come.
        self.daemon
            .cli(&format!(
                "sg add c{nic} --silent-midstream + \
                 nic add --id c{nic} --mac 52:54:00:00:02:0{nic} --vni {VNI} \
                 --ip {}/24 {}/64 --sg c{nic} --type veth --path bf-{}{nic} --netns {pid} \
                 --mtu {}",
                address(nic, false),
                address(nic, true),
                self.name,
                if nic == SHORT { 1300 } else { 1500 },
            ))
            .map(drop)
    }

    /// Frames of a container's own that nobody here has sent come no more.
    fn settled(&self, nic: usize) -> Result<u64> {
        let mut before = None;
        wait_for("a silent container", PATIENCE, || {
            std::thread::sleep(Duration::from_millis(100));
            let now = self.stats(nic)?.egress_frames;
            let same = before == Some(now);
            before = Some(now);
            Ok(same.then_some(now))
        })
    }

    /// What a NIC has counted, to the last frame.
    fn stats(&self, nic: usize) -> Result<v1::NicStats> {
        let id = format!("c{nic}");
        let all = self.api.borrow_mut().stats()?;
        let own = all.into_iter().find(|stats| stats.id == id);
        own.ok_or_else(|| format!("there is no {id}"))
    }

    fn kernel_frames(&self, nic: usize) -> Result<u64> {
        Ok(self.stats(nic)?.egress_kernel_frames)
    }

    /// Starts `butterfly`, which goes on beside; words are separated by blanks.
    fn start_cli(&self, line: &str) -> Result<process::Process> {
        let (program, endpoint) = (
            butterfly_tests::program("butterfly"),
            self.daemon.endpoint(),
        );
        let words = [program.as_str(), "-e", &endpoint];
        let words: Vec<_> = words.into_iter().chain(line.split(' ')).collect();
        process::Process::start("butterfly", &words, &self.daemon.dir().join("started.log"))
    }

    /// Sends frames of a container, and waits until all of them were counted.
    fn send(&mut self, nic: usize, frames: &[Vec<u8>]) -> Result<()> {
        self.sent[nic - 1] += frames.len() as u64;
        let sent = self.sent[nic - 1];
        if let Some(wire) = &self.wire
            && nic == 2
        {
            let wrapped: Result<Vec<_>> = frames.iter().map(|f| wire.wrapped(f, VNI)).collect();
            self.peers[1].send(&wrapped?)?;
            return wait_closely("frames of the wire to be counted", PATIENCE, || {
                Ok((self.uplink()?.received_frames == sent).then_some(()))
            });
        }
        self.peers[nic - 1].send(frames)?;
        self.counted_to(nic, sent)
    }

    fn counted_to(&self, nic: usize, sent: u64) -> Result<()> {
        wait_closely("frames to be counted", PATIENCE, || {
            Ok((self.stats(nic)?.egress_frames == sent).then_some(()))
        })
    }

    /// Sends frames of a container in which something is left undone; by the wire nothing is.
    fn send_undone(&mut self, nic: usize, frames: &[(Vec<u8>, Offload)]) -> Result<()> {
        if self.wire.is_some() && nic == 2 {
            let frames: Vec<_> = frames.iter().map(|(frame, _)| frame.clone()).collect();
            return self.send(nic, &frames);
        }
        self.sent[nic - 1] += frames.len() as u64;
        self.peers[nic - 1].send_undone(frames)?;
        self.counted_to(nic, self.sent[nic - 1])
    }

    /// A frame in which something is left undone is dropped, and nothing comes of it.
    fn refuses(&mut self, (from, to): (usize, usize), frame: (Vec<u8>, Offload)) -> Result<()> {
        self.arrived()?;
        let before = self.stats(from)?.egress_drops;
        self.send_undone(from, std::slice::from_ref(&frame))?;
        std::thread::sleep(Duration::from_millis(100));
        let came = self.arrived()?.swap_remove(to - 1);
        check(
            came.is_empty(),
            &format!("of {:?} came {came:?}", (hex(&frame.0), frame.1)),
        )?;
        assert_eq!(self.stats(from)?.egress_drops, before + 1);
        Ok(())
    }

    /// A frame in which something is left undone arrives as `wanted`. Whether the kernel forwarded
    /// it.
    fn passes_undone(
        &mut self,
        (from, to): (usize, usize),
        frame: (Vec<u8>, Offload),
        wanted: &[u8],
    ) -> Result<bool> {
        let before = self.kernel_frames(from)?;
        self.send_undone(from, &[frame])?;
        wait_closely("the frame to arrive", PATIENCE, || {
            let came = self.arrived()?.swap_remove(to - 1);
            Ok(came.contains(&hex(wanted)).then_some(()))
        })?;
        Ok(self.kernel_frames(from)? == before + 1)
    }

    /// What has come to each container.
    fn arrived(&mut self) -> Result<Vec<Vec<String>>> {
        let mut all = Vec::new();
        for (index, peer) in self.peers.iter_mut().enumerate() {
            let mut frames = peer.take()?;
            if self.wire.is_some() && index == 1 {
                frames.retain(|frame| is_vxlan(frame));
            }
            frames.sort();
            all.push(frames);
        }
        Ok(all)
    }

    /// What all NICs have counted, by name; nothing that is 0. What the kernel has forwarded is not
    /// told apart.
    fn numbers(&self) -> Result<BTreeMap<String, u64>> {
        let mut numbers = BTreeMap::new();
        for nic in self.api.borrow_mut().stats()? {
            for (name, count) in [
                ("ingress_frames", nic.ingress_frames),
                ("ingress_bytes", nic.ingress_bytes),
                ("ingress_drops", nic.ingress_drops),
                ("egress_frames", nic.egress_frames),
                ("egress_bytes", nic.egress_bytes),
                ("egress_drops", nic.egress_drops),
                ("egress_waits", nic.egress_waits),
            ] {
                numbers.insert(format!("{} {name}", nic.id), count);
            }
        }
        for drop in self.api.borrow_mut().drops()? {
            let direction = drop.direction().as_str_name();
            let name = format!("{} {direction} {}", drop.nic, drop.reason);
            numbers.insert(name, drop.frames);
        }
        if self.wire.is_some() {
            let uplink = self.uplink()?;
            for (name, count) in [
                ("sent_frames", uplink.sent_frames),
                ("sent_bytes", uplink.sent_bytes),
                ("received_frames", uplink.received_frames),
                ("received_bytes", uplink.received_bytes),
            ] {
                numbers.insert(format!("uplink {name}"), count);
            }
        }
        numbers.retain(|_, count| *count != 0);
        Ok(numbers)
    }

    /// What all NICs have counted since the beginning, what rules have, and connections as they
    /// stand.
    fn counted(&self) -> Result<String> {
        let mut numbers = self.numbers()?;
        for (name, before) in &self.before {
            *numbers.entry(name.clone()).or_default() -= before;
        }
        numbers.retain(|_, count| *count != 0);
        let rules = self.api.borrow_mut().rules()?;
        let rules: Vec<String> = rules.iter().map(|rule| format!("{rule:?}")).collect();
        let mut flows = self.api.borrow_mut().flows()?;
        for flow in &mut flows {
            // What is told in seconds from now differs with the moment it is asked for.
            (flow.age_secs, flow.timeout_secs) = (0, 0);
        }
        let mut flows: Vec<String> = flows.iter().map(|flow| format!("{flow:?}")).collect();
        flows.sort();
        let (rules, flows) = (rules.join("\n"), flows.join("\n"));
        Ok(format!("{numbers:#?}\n{rules}\n{flows}"))
    }

    /// Begins a connection, if it is TCP's.
    fn open(&mut self, flow: &mut Flow) -> Result<()> {
        if flow.tcp {
            for (side, flags) in [(0, TcpFlags::SYN), (1, TcpFlags(0x12)), (0, ACK)] {
                let frame = flow.segment(side, flags, 0);
                self.send(flow.ends[side], &[frame])?;
            }
        }
        Ok(())
    }

    /// Sends frames to and fro until the kernel forwards those of both. Numbers of TCP are counted
    /// on.
    fn make_known(&mut self, flow: &mut Flow) -> Result<()> {
        let (a, b) = (flow.ends[0], flow.ends[1]);
        self.open(flow)?;
        let count = |world: &World| match (&world.wire, world.arrives) {
            (None, _) => Ok((world.kernel_frames(a)?, world.kernel_frames(b)?)),
            // What comes from another host the workers have.
            (Some(_), false) => Ok((world.kernel_frames(1)?, world.kernel_frames(1)?)),
            (Some(_), true) => Ok((world.kernel_frames(1)?, world.arrived_by_kernel()?)),
        };
        let before: (u64, u64) = count(self)?;
        wait_closely("the kernel to forward a flow", PATIENCE, || {
            for side in 0..2 {
                let frames: Vec<_> = (0..6).map(|_| flow.data(side, 10)).collect();
                self.send(flow.ends[side], &frames)?;
            }
            std::thread::sleep(Duration::from_millis(20));
            let now: Result<(u64, u64)> = count(self);
            let now = now?;
            Ok((now.0 > before.0 && now.1 > before.1).then_some(()))
        })?;
        self.arrived().map(drop)
    }

    /// Sends frames of the container alone until the kernel forwards them.
    fn make_known_outward(&mut self, flow: &mut Flow) -> Result<()> {
        let before = self.kernel_frames(1)?;
        wait_closely("the kernel to forward a flow", PATIENCE, || {
            let frames: Vec<_> = (0..6).map(|_| flow.data(0, 10)).collect();
            self.send(1, &frames)?;
            std::thread::sleep(Duration::from_millis(20));
            Ok((self.kernel_frames(1)? > before).then_some(()))
        })?;
        self.arrived().map(drop)
    }

    /// True if a frame of one container reaches another.
    fn reaches(&mut self, from: usize, to: usize, frame: &[u8]) -> Result<bool> {
        self.arrived()?;
        self.send(from, &[frame.to_vec()])?;
        // It was written to its receiver, or dropped, when it was counted; it is there in a moment.
        for _ in 0..20 {
            if self.peers[to - 1].take()?.contains(&hex(frame)) {
                return Ok(true);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(false)
    }
}

/// Two ends that talk.
#[derive(Clone)]
struct Flow {
    ends: [usize; 2],
    ports: [u16; 2],
    v6: bool,
    tcp: bool,
    timestamps: bool,
    tos: u8,
    /// TCP: it was begun, as far as the test remembers.
    open: bool,
    /// TCP: the next byte of each side.
    next: [u32; 2],
}

impl Flow {
    fn new(from: usize, to: usize, ports: [u16; 2], tcp: bool) -> Flow {
        Flow {
            ends: [from, to],
            ports,
            v6: false,
            tcp,
            timestamps: false,
            tos: 0,
            open: false,
            next: [0xffff_ff00, 5_000],
        }
    }

    fn frame(&self, side: usize) -> Builder {
        let (from, to) = (self.ends[side], self.ends[1 - side]);
        build::frame(mac(from), mac(to))
            .tos(self.tos)
            .ip(address(from, self.v6), address(to, self.v6))
    }

    /// A segment where the connection is; what it takes of the sequence is counted.
    fn segment(&mut self, side: usize, flags: TcpFlags, len: usize) -> Vec<u8> {
        let begins = flags.0 & 0x03 != 0;
        let frame = self.segment_at(side, flags, len, self.next[side]);
        self.next[side] = self.next[side].wrapping_add(len as u32 + u32::from(begins));
        frame
    }

    fn segment_at(&self, side: usize, flags: TcpFlags, len: usize, seq: u32) -> Vec<u8> {
        let syn = flags.contains(TcpFlags::SYN);
        let mut frame = self
            .frame(side)
            .tcp(self.ports[side], self.ports[1 - side], flags)
            .seq(seq)
            .window(1000);
        if flags.contains(ACK) {
            frame = frame.ack(self.next[1 - side]);
        }
        frame = match (syn, self.timestamps) {
            (true, _) => frame.tcp_options(&[1, 3, 3, 5]),
            (false, true) => frame.tcp_options(&[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]),
            (false, false) => frame,
        };
        frame.payload(&vec![side as u8; len]).build()
    }

    fn data(&mut self, side: usize, len: usize) -> Vec<u8> {
        match self.tcp {
            true => self.segment(side, ACK, len),
            false => self
                .frame(side)
                .udp(self.ports[side], self.ports[1 - side])
                .payload(&vec![side as u8; len])
                .build(),
        }
    }
}

const BEGUN: [fn(&Flow) -> PartialChecksum; 6] = [
    // Its own, the ports, the source and the destination address.
    |flow| flow.place(0, if flow.tcp { 16 } else { 6 }),
    |flow| flow.place(0, 2),
    |flow| flow.place(0, 0),
    |flow| flow.place(-4, 2),
    |flow| flow.place(-8, 2),
    // Behind all that is judged.
    |flow| flow.place(if flow.tcp { 20 } else { 8 }, 4),
];

impl Flow {
    /// A checksum's place: so many bytes from the transport header on.
    fn place(&self, from: i16, offset: u16) -> PartialChecksum {
        PartialChecksum {
            start: if self.v6 { 54u16 } else { 34 }.wrapping_add_signed(from),
            offset,
        }
    }

    /// A frame in which something is left undone: segments to be cut, or a checksum that suits its
    /// headers or not.
    fn undone(&mut self, side: usize, dice: &mut Dice) -> (Vec<u8>, Offload) {
        let ports = [self.ports[side], self.ports[1 - side]];
        let len = [100, 3000][dice.roll(2)];
        let base = match self.tcp {
            true => self
                .frame(side)
                .tcp(ports[0], ports[1], ACK)
                .seq(self.next[side])
                .ack(self.next[1 - side])
                .window(1000),
            false => self.frame(side).udp(ports[0], ports[1]),
        };
        let base = base.payload(&vec![side as u8; len]).partial_checksum();
        let (frame, mut offload) = match len {
            100 => base.build_with_offload(),
            _ => base.gso(1000).build_with_offload(),
        };
        if offload.gso == Gso::None && dice.roll(2) == 0 {
            offload.checksum = Some(BEGUN[1 + dice.roll(5)](self));
        } else {
            // As its own stack leaves it.
            self.next[side] = self.next[side].wrapping_add(len as u32);
        }
        (frame, offload)
    }
}

/// Numbers that look drawn (xorshift), the same in each run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % sides
    }
}

/// The frame, for another MAC.
fn for_mac(mut frame: Vec<u8>, mac: Mac) -> Vec<u8> {
    frame[..6].copy_from_slice(&mac.0);
    frame
}

/// A frame of a flow, or of nobody's, that is not plain data or not for one NIC.
fn odd(flow: &mut Flow, dice: &mut Dice) -> (usize, Vec<u8>) {
    let side = dice.roll(2);
    let next = flow.next[side];
    let nic = flow.ends[side];
    let [from, to] = [flow.ports[side], flow.ports[1 - side]];
    let frame: Vec<u8> = match dice.roll(19) {
        0 if flow.tcp => flow.segment(side, TcpFlags(0x11), 0),
        // A reset where the connection is, and far from there.
        1 if flow.tcp => flow.segment_at(side, TcpFlags(0x14), 0, next),
        2 if flow.tcp => flow.segment_at(side, TcpFlags(0x04), 0, next.wrapping_add(1 << 30)),
        3 if flow.tcp => flow.segment_at(side, TcpFlags(0x30), 5, next),
        // Challenged, and impossible.
        4 if flow.tcp => flow.segment_at(side, TcpFlags(0x02), 0, next),
        5 if flow.tcp => flow.segment_at(side, TcpFlags(0x13), 0, next),
        // Options that are sound, with acknowledged blocks, and broken.
        6 if flow.tcp => flow
            .frame(side)
            .tcp(from, to, ACK)
            .seq(next)
            .tcp_options(&[
                1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2,
            ])
            .build(),
        7 if flow.tcp => flow
            .frame(side)
            .tcp(from, to, ACK)
            .seq(next)
            .tcp_options(&[1, 1, 5, 40])
            .build(),
        8 => flow.data(side, if nic == SHORT { 1200 } else { 1420 }), // too long for one
        9 => {
            // By a tag, which no rule knows.
            let mut frame = flow.data(side, 20);
            frame.splice(12..12, [0x81, 0, 0, 5]);
            frame
        }
        10 => {
            // From another's MAC.
            let mut frame = flow.data(side, 20);
            frame[6..12].copy_from_slice(&[0x52, 0x54, 0, 0, 2, 9]);
            frame
        }
        11 => {
            // In another's name.
            let other = flow.ends[1 - side];
            let frame = build::frame(mac(nic), mac(other))
                .ip(address(9, flow.v6), address(other, flow.v6))
                .udp(from, to);
            frame.payload(b"forged").build()
        }
        12 if !flow.v6 => {
            let frame = flow.frame(side).ip_options(&[1, 1, 1, 1]);
            frame.udp(from, to).payload(b"options").build()
        }
        13 => {
            // Longer than it is.
            let mut frame = flow.data(side, 30);
            frame.truncate(frame.len() - 7);
            frame
        }
        14 => {
            // Padding behind it.
            let frame = flow.data(side, 0);
            [frame, vec![0; 9]].concat()
        }
        // Floods: the flow's own data, for all; for a group; for a machine that nobody knows; and
        // who asks for one.
        15 => for_mac(flow.data(side, 20), Mac::BROADCAST),
        16 => for_mac(flow.data(side, 20), Mac([0x33, 0x33, 0, 0, 0, 0x77])),
        17 => for_mac(flow.data(side, 20), Mac([0x52, 0x54, 0, 0, 2, 0x77])),
        _ => match (address(nic, false), address(flow.ends[1 - side], false)) {
            (IpAddr::V4(own), IpAddr::V4(other)) => build::arp_request(mac(nic), own, other),
            _ => flow.data(side, 20),
        },
    };
    (nic, frame)
}

fn the_same_is_forwarded_counted_and_refused_with_the_kernel_and_without() -> Result<()> {
    let kernel = World::new("k", 3, &[])?;
    let path = World::new("p", 3, &["--kernel-flows", "off"])?;
    let ends = &[(1, 2), (2, 3), (3, 1), (1, 3)];
    the_same_with_both(kernel, path, ends, 110, 5)
}

/// What has nothing left undone is forwarded by a program that sees a frame alone; the rest comes
/// up, and passes.
fn the_same_without_a_look_into_the_kernel_s_buffers() -> Result<()> {
    let kernel = World::blind()?;
    let path = World::new("p", 3, &["--kernel-flows", "off"])?;
    let ends = &[(1, 2), (2, 3), (3, 1), (1, 3)];
    the_same_with_both(kernel, path, ends, 60, 50)?;
    let mut world = World::blind()?;
    world.daemon.cli(
        "sg rule add c2 --ip-proto udp --port 7000 + sg rule add c2 --ip-proto tcp --port 7000",
    )?;
    let mut flow = Flow::new(1, 2, [30_000, 7_000], false);
    world.make_known(&mut flow)?;
    let base = flow.frame(0).udp(30_000, 7_000).payload(&[7; 40]);
    let whole = base.clone().build();
    let done = (whole.clone(), Offload::default());
    let by_kernel = world.passes_undone((1, 2), done, &whole)?;
    check(by_kernel, "a complete checksum is no secret")?;
    let begun = base.partial_checksum().build_with_offload();
    let by_kernel = world.passes_undone((1, 2), begun.clone(), &begun.0)?;
    check(!by_kernel, "where a checksum was begun is not known")?;
    let mut flow = Flow::new(1, 2, [30_001, 7_000], true);
    world.make_known(&mut flow)?;
    let large = flow.frame(1).tcp(7_000, 30_001, ACK).seq(flow.next[1]);
    let large = large.ack(flow.next[0]).window(1000).payload(&[1; 3000]);
    let (frame, offload) = large.gso(1000).build_with_offload();
    let by_kernel = world.passes_undone((2, 1), (frame.clone(), offload), &frame)?;
    check(!by_kernel, "nor what segments are to be")
}

/// There is room for two connections of eight.
fn the_same_with_a_full_table() -> Result<()> {
    let kernel = World::new("k", 3, &["--kernel-flows", "2"])?;
    let path = World::new("p", 3, &["--kernel-flows", "off"])?;
    let ends = &[(1, 2), (2, 3), (3, 1), (1, 3)];
    the_same_with_both(kernel, path, ends, 60, 50)
}

/// NICs get and lose limits that what is sent is within: while one has any, all of it comes up.
fn the_same_under_limits() -> Result<()> {
    let kernel = World::new("k", 2, &[])?;
    let path = World::new("p", 2, &["--kernel-flows", "off"])?;
    let (mut worlds, mut flows) = ([kernel, path], Vec::new());
    for world in &worlds {
        for protocol in ["tcp", "udp"] {
            let rule = format!("sg rule add c2 --ip-proto {protocol} --port 7000");
            world.daemon.cli(&rule)?;
        }
    }
    for tcp in [true, false] {
        let mut flow = Flow::new(1, 2, [20_000, 7_000], tcp);
        // Each world's connection goes through the same numbers.
        for world in &mut worlds {
            let mut its = flow.clone();
            world.open(&mut its)?;
            if world.name == "p" {
                flow = its;
            }
        }
        flows.push(flow);
    }
    let wide = "1gbit,packets=1m,connections=1000,floods=1000";
    for (limit, by_kernel) in [
        (String::new(), true),
        (format!("--limit-out {wide}"), false),
        ("--limit-out none".to_owned(), true),
        (format!("--limit-in {wide}"), false),
        // A burst goes at once, the rest when there are tokens; none is lost.
        ("--limit-in 4mbit,burst=2000".to_owned(), false),
        ("--limit-in none".to_owned(), true),
    ] {
        for world in &worlds {
            if !limit.is_empty() {
                world.daemon.cli(&format!("nic update c2 {limit}"))?;
            }
        }
        let before = worlds[0].kernel_frames(1)? + worlds[0].kernel_frames(2)?;
        for flow in &mut flows {
            for round in 0..6 {
                let side = round % 2;
                let burst: Vec<_> = (0..20).map(|_| flow.data(side, 60)).collect();
                let flood = for_mac(flow.data(side, 20), Mac::BROADCAST);
                let batch = [&burst[..], &[flood]].concat();
                for world in &mut worlds {
                    world.send(flow.ends[side], &batch)?;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        let mut came = [Vec::new(), Vec::new()];
        wait_closely("the same frames to arrive", PATIENCE, || {
            for (world, came) in worlds.iter_mut().zip(&mut came) {
                came.extend(world.arrived()?.concat());
                came.sort();
            }
            Ok((came[0] == came[1] && came[0].len() >= 240).then_some(()))
        })
        .map_err(|e| format!("{limit}: {e}: {:?}", came.each_ref().map(Vec::len)))?;
        let counted = worlds.each_ref().map(World::counted);
        let [kernel, path] = counted;
        let (kernel, path) = (kernel?, path?);
        check(
            kernel == path,
            &format!("{limit}: the same is counted:\n{kernel}\n----\n{path}"),
        )?;
        let after = worlds[0].kernel_frames(1)? + worlds[0].kernel_frames(2)?;
        check(
            (after > before) == by_kernel,
            &format!("{limit}: by the kernel {before} and then {after}"),
        )?;
    }
    Ok(())
}

fn the_same_leaves_for_another_host_over_ipv4() -> Result<()> {
    the_same_leaves_for_another_host(false)
}

fn the_same_leaves_for_another_host_over_ipv6() -> Result<()> {
    the_same_leaves_for_another_host(true)
}

fn the_same_leaves_for_another_host(over_v6: bool) -> Result<()> {
    // Over IPv6 there are checksums else, which the worker makes.
    let options = ["--vxlan-checksum", "off"];
    let by_worker = [&options[..], &["--kernel-flows", "off"]].concat();
    let kernel = World::far("k", over_v6, &options)?;
    let path = World::far("p", over_v6, &by_worker)?;
    let ends = &[(1, 2), (1, 2), (2, 1), (2, 1)];
    the_same_with_both(kernel, path, ends, 110, 5)
}

fn the_same_comes_from_another_host_over_ipv4() -> Result<()> {
    the_same_comes_from_another_host(false, false)
}

fn the_same_comes_from_another_host_over_ipv6() -> Result<()> {
    the_same_comes_from_another_host(true, false)
}

fn the_same_comes_from_another_host_without_a_look_into_the_kernel_s_buffers() -> Result<()> {
    the_same_comes_from_another_host(false, true)
}

/// On an uplink with a packet socket.
fn the_same_comes_from_another_host(over_v6: bool, blind: bool) -> Result<()> {
    let options = ["--vxlan-checksum", "off", "--uplink-mode", "packet"];
    let by_worker = [&options[..], &["--kernel-flows", "off"]].concat();
    let kernel = World::far_by("k", over_v6, blind, &options)?;
    let path = World::far("p", over_v6, &by_worker)?;
    let ends = &[(1, 2), (1, 2), (2, 1), (2, 1)];
    the_same_with_both(kernel, path, ends, 110, 5)
}

/// Sends each frame to both worlds, under equal rules, between these ends, in so many steps. Of
/// `one_of` frames the kernel is to forward one at the least.
fn the_same_with_both(
    mut kernel: World,
    mut path: World,
    ends: &[(usize, usize)],
    steps: usize,
    one_of: u64,
) -> Result<()> {
    let nics = kernel.nics;
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let mut flows: Vec<Flow> = Vec::new();
    for (number, &(from, to)) in ends.iter().enumerate() {
        for tcp in [true, false] {
            let port = 7_000 + number as u16;
            let mut flow = Flow::new(from, to, [20_000 + port, port], tcp);
            (flow.v6, flow.timestamps) = (number % 2 == 1, number % 3 == 1);
            flow.tos = [0, 0xb9, 0x03][number % 3];
            flows.push(flow);
        }
    }
    let rule = |verb: &str, nic: usize, tcp: bool| {
        let protocol = if tcp { "tcp" } else { "udp" };
        format!("sg rule {verb} c{nic} --ip-proto {protocol} --port 7000-7005")
    };
    let mut allowed = [[false; 2]; 3];
    let mut frames = 0;
    for step in 0..steps {
        let what;
        if step < 2 * nics || dice.roll(20) == 0 {
            let (nic, tcp) = match step < 2 * nics {
                true => (step / 2 + 1, step % 2 == 0),
                false => (1 + dice.roll(nics), dice.roll(2) == 0),
            };
            flows.iter_mut().for_each(|flow| flow.open = false);
            let is = &mut allowed[nic - 1][usize::from(tcp)];
            let line = rule(if *is { "del" } else { "add" }, nic, tcp);
            *is = !*is;
            for world in [&kernel, &path] {
                world.daemon.cli(&line)?;
            }
            what = line;
        } else {
            let index = dice.roll(flows.len());
            let flow = &mut flows[index];
            let mut batches: Vec<Batch> = Vec::new();
            let done = |frame| (frame, Offload::default());
            match dice.roll(8) {
                0 => {
                    let (nic, frame) = odd(flow, &mut dice);
                    flow.open &= dice.roll(3) != 0;
                    batches.push((nic, vec![done(frame)]));
                    what = format!("odd of flow {index}");
                }
                shape if flow.tcp && (shape == 1 || !flow.open) => {
                    // Begun, where it is over, or still going on.
                    flow.open = true;
                    for (side, flags) in [(0, TcpFlags::SYN), (1, TcpFlags(0x12)), (0, ACK)] {
                        let frame = flow.segment(side, flags, 0);
                        batches.push((flow.ends[side], vec![done(frame)]));
                    }
                    what = format!("opening of flow {index}");
                }
                _ => {
                    for side in [0, 1, 0, 1, 0, 1] {
                        // What comes from a wire at once is merged or not as it happens to come.
                        let by_wire = kernel.wire.is_some() && flow.ends[side] == 2;
                        let count = if by_wire { 1 } else { 12 };
                        let mut burst: Vec<_> =
                            (0..count).map(|_| done(flow.data(side, 30))).collect();
                        // Of what is undone other hosts get more or less, as an uplink can do.
                        if kernel.wire.is_none() {
                            burst.push(flow.undone(side, &mut dice));
                        }
                        batches.push((flow.ends[side], burst));
                    }
                    what = format!("talk of flow {index}");
                }
            }
            for (nic, batch) in batches {
                frames += batch.len();
                kernel.send_undone(nic, &batch)?;
                path.send_undone(nic, &batch)?;
            }
            // Time to be entered.
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut here = kernel.arrived()?;
        let mut there = path.arrived()?;
        let counts = step % 4 == 3;
        let same = wait_closely("the same frames to arrive", Duration::from_secs(10), || {
            if here == there && (!counts || kernel.counted()? == path.counted()?) {
                return Ok(Some(()));
            }
            for (world, all) in [(&mut kernel, &mut here), (&mut path, &mut there)] {
                for (all, more) in all.iter_mut().zip(world.arrived()?) {
                    all.extend(more);
                    all.sort();
                }
            }
            Ok(None)
        });
        if same.is_err() {
            return Err(format!(
                "step {step}, {what}:\nwith the kernel {:?} frames arrived, without {:?}\n\
                 {}\n----\n{}",
                here.iter().map(Vec::len).collect::<Vec<_>>(),
                there.iter().map(Vec::len).collect::<Vec<_>>(),
                kernel.counted()?,
                path.counted()?
            ));
        }
    }
    let mut forwarded: u64 = (1..=nics)
        .map(|nic| kernel.kernel_frames(nic))
        .sum::<Result<u64>>()?;
    if kernel.wire.is_some() {
        let arrived = kernel.arrived_by_kernel()?;
        check(
            (arrived > 20) == kernel.arrives,
            &format!("the kernel gave {arrived} of {frames} frames to the container"),
        )?;
        assert_eq!(path.arrived_by_kernel()?, 0);
        forwarded += arrived;
    }
    check(
        forwarded > frames as u64 / one_of,
        &format!("the kernel forwarded {forwarded} of {frames} frames"),
    )?;
    for nic in 1..=nics {
        check(
            path.kernel_frames(nic)? == 0,
            "switched off it forwards none",
        )?;
    }
    Ok(())
}

fn a_dscp_is_on_what_the_kernel_sends() -> Result<()> {
    let options = ["--vxlan-dscp", "10"];
    let mut kernel = World::far("k", false, &options)?;
    let mut path = World::far(
        "p",
        false,
        &[&options[..], &["--kernel-flows", "off"]].concat(),
    )?;
    for v6 in [false, true] {
        let mut flow = Flow::new(1, 2, [20_000, 7_000], false);
        (flow.v6, flow.tos) = (v6, 0xba);
        let before = kernel.kernel_frames(1)?;
        for step in 0..20 {
            let frames: Vec<_> = (0..10).map(|n| flow.data(0, 10 * step + n)).collect();
            let mut came = [Vec::new(), Vec::new()];
            for (world, came) in [&mut kernel, &mut path].into_iter().zip(&mut came) {
                world.send(1, &frames)?;
                wait_closely("frames on the wire", PATIENCE, || {
                    came.extend(world.arrived()?.swap_remove(1));
                    Ok((came.len() == frames.len()).then_some(()))
                })?;
                came.sort();
            }
            assert_eq!(came[0], came[1]);
            // DSCP 10, and the inner ECN.
            check(
                came[0].iter().all(|frame| &frame[28..32] == "452a"),
                "the outer TOS",
            )?;
            std::thread::sleep(Duration::from_millis(20));
        }
        check(
            kernel.kernel_frames(1)? > before + 50,
            "most are the kernel's",
        )?;
    }
    wait_for("the same to be counted", PATIENCE, || {
        Ok((kernel.counted()? == path.counted()?).then_some(()))
    })
}

/// Where frames for the machine go, by a frame that the container sends: the MAC, and the address
/// of the host. `None`: nowhere.
fn goes_to(world: &mut World, flow: &mut Flow) -> Result<Option<(String, String)>> {
    world.arrived()?;
    let frame = flow.data(0, 12);
    world.send(1, &[frame])?;
    for _ in 0..20 {
        if let Some(frame) = world.arrived()?[1].first() {
            return Ok(Some((frame[..12].to_owned(), frame[60..68].to_owned())));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(None)
}

fn what_is_known_of_another_host_is_in_force_for_the_next_packet() -> Result<()> {
    let mut world = World::far("k", false, &[])?;
    world
        .daemon
        .cli("sg rule add c1 --ip-proto udp --port 7000")?;
    let host = |last: u8| IpAddr::from([192, 0, 2, last]);
    let there = |last: u8, mac: &str| Some((mac.to_owned(), format!("c00002{last:02x}")));
    let far = "02000000ff02";
    // Begun by the machine: only the rule lets it in.
    let mut flow = Flow::new(1, 2, [7_000, 30_000], false);
    world.send(2, &[flow.data(1, 10)])?;
    world.make_known(&mut flow)?;
    assert_eq!(goes_to(&mut world, &mut flow)?, there(2, far));
    // Another host has the machine: one with another next hop, and one with none.
    world.peers[1]
        .namespace
        .ok("ip addr add 192.0.2.3/24 dev uplink0")?;
    world.bind(host(3))?;
    wait_for("the other host to be found", PATIENCE, || {
        let to = goes_to(&mut world, &mut flow)?;
        assert_ne!(to, there(2, far), "it is not there any more");
        Ok((to == there(3, far)).then_some(()))
    })?;
    world.make_known_outward(&mut flow)?;
    world
        .daemon
        .cli(&format!("binding del --vni {VNI} {}", mac(2)))?;
    // It may be asked for everywhere; nobody knows where it is.
    assert_ne!(goes_to(&mut world, &mut flow)?, there(3, far));
    world.bind(host(2))?;
    world.make_known(&mut flow)?;
    assert_eq!(goes_to(&mut world, &mut flow)?, there(2, far));
    // The host has another MAC address, and what the kernel sends has it, too.
    if let Some(space) = &world.host {
        space
            .ok("ip neigh replace 192.0.2.2 lladdr 02:00:00:00:ff:09 nud permanent dev uplink0")?;
    }
    wait_for("the other address to be used", PATIENCE, || {
        Ok((goes_to(&mut world, &mut flow)? == there(2, "02000000ff09")).then_some(()))
    })?;
    world.make_known(&mut flow)?;
    assert_eq!(goes_to(&mut world, &mut flow)?, there(2, "02000000ff09"));
    // Without its rule it is cut at once.
    world
        .daemon
        .cli("sg rule del c1 --ip-proto udp --port 7000")?;
    let frame = flow.data(1, 10);
    check(!world.reaches(2, 1, &frame)?, "nothing comes in")?;
    // Nor does what is not of a known host or network get in by way of what the kernel knows.
    world
        .daemon
        .cli("sg rule add c1 --ip-proto udp --port 7000")?;
    world.make_known(&mut flow)?;
    let frame = flow.data(1, 10);
    check(world.reaches(2, 1, &frame)?, "the machine's own comes in")?;
    let Some(wire) = &world.wire else {
        return Err("no wire".into());
    };
    let stranger = Wire {
        macs: wire.macs,
        ends: [wire.ends[0], host(77)],
    };
    let forged = [
        wire.wrapped(&frame, VNI + 1)?,
        stranger.wrapped(&frame, VNI)?,
    ];
    world.arrived()?;
    world.peers[1].send(&forged)?;
    world.sent[1] += 2;
    let sent = world.sent[1];
    wait_closely("forgeries to be counted", PATIENCE, || {
        Ok((world.uplink()?.received_frames == sent).then_some(()))
    })?;
    check(world.arrived()?[0].is_empty(), "neither arrives")
}

/// One byte of the frame is another one, and the outer IPv4 header's checksum right.
fn with(frame: &[u8], at: usize, byte: u8) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[at] = byte;
    frame[24..26].fill(0);
    let sum = checksum::checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame
}

impl World {
    /// What of these frames of the wire, which are counted, has come to the container, and how many
    /// by the kernel.
    fn comes(&mut self, frames: &[Vec<u8>]) -> Result<(Vec<String>, u64)> {
        self.arrived()?;
        let before = self.arrived_by_kernel()?;
        self.peers[1].send(frames)?;
        self.sent[1] += frames.len() as u64;
        let sent = self.sent[1];
        wait_closely("frames of the wire to be counted", PATIENCE, || {
            Ok((self.uplink()?.received_frames == sent).then_some(()))
        })?;
        std::thread::sleep(Duration::from_millis(50));
        let came = self.arrived()?.swap_remove(0);
        Ok((came, self.arrived_by_kernel()? - before))
    }
}

/// Frames of a known flow in other outer headers, or with others of its own: none is the kernel's,
/// and what the worker would not let pass reaches nobody.
fn what_is_not_as_it_was_judged_comes_from_no_other_host() -> Result<()> {
    let mut world = World::far("k", false, &["--uplink-mode", "packet"])?;
    let uplink = world.uplink()?;
    assert_eq!(
        (uplink.mode.as_str(), uplink.why.as_str()),
        ("packet socket", PACKET)
    );
    world
        .daemon
        .cli("sg rule add c1 --ip-proto udp --port 7000")?;
    let mut flow = Flow::new(2, 1, [30_000, 7_000], false);
    world.make_known(&mut flow)?;
    let inner = flow.data(0, 40);
    let Some(wire) = &world.wire else {
        return Err("no wire".into());
    };
    let good = wire.wrapped(&inner, VNI)?;
    let host = |last: u8| IpAddr::from([192, 0, 2, last]);
    let by = |ends: [IpAddr; 2]| Wire {
        macs: wire.macs,
        ends,
    };
    let [ours, theirs] = wire.ends;
    let mut options = with(&good, 14, 0x46);
    options.splice(34..34, [1, 1, 1, 1]);
    options[16..18].copy_from_slice(&(good.len() as u16 - 14 + 4).to_be_bytes());
    options[24..26].fill(0);
    let sum = checksum::checksum(&options[14..38]);
    options[24..26].copy_from_slice(&sum.to_be_bytes());
    let mut summed = wire.wrapped_by(&inner, VNI, UdpChecksum::Full)?;
    let right = summed.clone();
    summed[40] ^= 0x55;
    let mut other_mac = inner.clone();
    other_mac[..6].copy_from_slice(&mac(3).0);
    let mut other_sender = inner.clone();
    other_sender[6..12].copy_from_slice(&mac(3).0);
    let mut bad_ip = good.clone();
    bad_ip[24] ^= 0x55;
    let mut tagged = good.clone();
    tagged.splice(12..12, [0x81, 0, 0, 5]);
    let long = [&good[..], &[0; 9]].concat();
    let reaches = [
        // The worker judges them, and lets them pass.
        ("with a right checksum", right),
        ("with bytes behind it", long),
    ];
    let reaches_nobody = [
        (
            "with options, which the packet socket does not take",
            options,
        ),
        ("another network", wire.wrapped(&inner, VNI + 1)?),
        ("no network", with(&good, 42, 0)),
        (
            "from another host",
            by([ours, host(77)]).wrapped(&inner, VNI)?,
        ),
        (
            "to another host",
            by([host(78), theirs]).wrapped(&inner, VNI)?,
        ),
        ("from us", by([ours, ours]).wrapped(&inner, VNI)?),
        ("more fragments", with(&good, 20, 0x20)),
        ("a later fragment", with(&good, 21, 1)),
        ("no UDP", with(&good, 23, 6)),
        ("a wrong IP checksum", bad_ip),
        ("a wrong UDP checksum", summed),
        ("cut short", with(&good[..good.len() - 1], 14, 0x45)),
        ("for another machine", wire.wrapped(&other_mac, VNI)?),
        ("congestion that is not understood", with(&good, 15, 3)),
    ];
    let of_another = wire.wrapped(&other_sender, VNI)?;
    for round in 0..2 {
        let (came, by_kernel) = world.comes(std::slice::from_ref(&good))?;
        assert_eq!((came, by_kernel), (vec![hex(&inner)], 1), "round {round}");
        for (what, frame) in &reaches {
            let (came, by_kernel) = world.comes(std::slice::from_ref(frame))?;
            assert_eq!((came.len(), by_kernel), (1, 0), "{what}");
        }
        for (what, frame) in &reaches_nobody {
            world
                .not_from_the_wire(frame)
                .map_err(|e| format!("{what}: {e}"))?;
        }
        for frame in [&of_another, &tagged] {
            world.not_by_kernel(frame)?;
        }
    }
    // Its rule goes, and it is in force for the next.
    world
        .daemon
        .cli("sg rule del c1 --ip-proto udp --port 7000")?;
    let (came, by_kernel) = world.comes(std::slice::from_ref(&good))?;
    assert_eq!((came.len(), by_kernel), (0, 0));
    // Nor does anything come when nobody is there to judge it.
    world
        .daemon
        .cli("sg rule add c1 --ip-proto udp --port 7000")?;
    world.make_known(&mut flow)?;
    let pid = world.daemon.pid().to_string();
    process::run(&["kill", "-9", &pid])?;
    wait_for("the kernel to take no more in", PATIENCE, || {
        world.arrived()?;
        world.peers[1].send(std::slice::from_ref(&good))?;
        std::thread::sleep(Duration::from_millis(20));
        Ok(world.arrived()?[0].is_empty().then_some(()))
    })
}

impl World {
    /// A frame from the wire, which may not even be counted, reaches the container by no way.
    fn not_from_the_wire(&mut self, frame: &[u8]) -> Result<()> {
        let came = self.not_by_kernel(frame)?;
        check(came.is_empty(), &format!("{came:?} came"))
    }

    /// It is not the kernel's. Gives what the worker has made of it.
    fn not_by_kernel(&mut self, frame: &[u8]) -> Result<Vec<String>> {
        self.arrived()?;
        let before = self.uplink()?;
        self.peers[1].send(&[frame.to_vec()])?;
        std::thread::sleep(Duration::from_millis(100));
        let came = self.arrived()?.swap_remove(0);
        let after = self.uplink()?;
        self.sent[1] += after.received_frames - before.received_frames;
        assert_eq!(after.received_kernel_frames, before.received_kernel_frames);
        Ok(came)
    }
}

/// What it was learnt from is not relied on for ever: its frames come up now and then, and go on by
/// the kernel.
fn a_machine_that_was_learnt_comes_by_the_kernel_and_is_heard_of() -> Result<()> {
    let mut world = World::far("k", false, &["--uplink-mode", "packet"])?;
    let [_, theirs] = world.wire.as_ref().ok_or("no wire")?.ends;
    world
        .daemon
        .cli("sg rule add c1 --ip-proto udp --port 7000")?;
    world.daemon.cli(&format!(
        "binding del --vni {VNI} {} + network set {VNI} --learning on + \
         host add {theirs} --vni {VNI}",
        mac(2)
    ))?;
    let mut flow = Flow::new(2, 1, [30_000, 7_000], false);
    world.make_known(&mut flow)?;
    let (mut came_up, mut before) = (0, world.arrived_by_kernel()?);
    for _ in 0..26 {
        let frames: Vec<_> = (0..20).map(|_| flow.data(0, 30)).collect();
        world.send(2, &frames)?;
        let answers: Vec<_> = (0..2).map(|_| flow.data(1, 30)).collect();
        world.send(1, &answers)?;
        let now = world.arrived_by_kernel()?;
        came_up += 20 - (now - before);
        before = now;
        std::thread::sleep(Duration::from_millis(500));
    }
    check(
        (1..=160).contains(&came_up),
        &format!("{came_up} of 520 came up"),
    )
}

fn world(containers: usize) -> Result<World> {
    world_with(containers, &[])
}

fn world_with(containers: usize, options: &[&str]) -> Result<World> {
    let world = World::new("k", containers, options)?;
    for protocol in ["tcp", "udp"] {
        world
            .daemon
            .cli(&format!("sg rule add c2 --ip-proto {protocol} --port 7000"))?;
    }
    Ok(world)
}

fn who_borrows_a_known_flow_s_addresses_reaches_nobody() -> Result<()> {
    let mut world = world(3)?;
    let mut flow = Flow::new(1, 2, [30_000, 7_000], false);
    world.make_known(&mut flow)?;
    let good = flow.data(0, 10);
    check(world.reaches(1, 2, &good)?, "who owns it goes on")?;
    // The very frame, from another container.
    let before = world.stats(3)?.egress_drops;
    check(!world.reaches(3, 2, &good)?, "a stranger's MAC")?;
    let mut own_mac = good.clone();
    own_mac[6..12].copy_from_slice(&mac(3).0);
    check(!world.reaches(3, 2, &own_mac)?, "a stranger's address")?;
    check(
        world.stats(3)?.egress_drops == before + 2,
        "both are counted",
    )?;
    // And from its owner to another MAC, or from a MAC that is not its own.
    let mut to_other = good.clone();
    to_other[..6].copy_from_slice(&mac(3).0);
    check(!world.reaches(1, 2, &to_other)?, "another MAC's")?;
    let mut forged = good.clone();
    forged[6..12].copy_from_slice(&mac(3).0);
    check(!world.reaches(1, 2, &forged)?, "a forged MAC")?;
    check(world.reaches(1, 2, &good)?, "who owns it still goes on")
}

/// A monitor that takes no begun checksums gets the frame with two bytes written to it, behind all
/// that has judged it, at a place that its sender has named.
fn a_checksum_that_is_begun_changes_nothing_that_was_judged() -> Result<()> {
    let mut world = World::with_machine()?;
    for protocol in ["tcp", "udp"] {
        let rule = format!("sg rule add c2 --ip-proto {protocol} --port 7000");
        world.daemon.cli(&rule)?;
    }
    let mut flow = Flow::new(1, 2, [30_000, 7_000], false);
    world.make_known(&mut flow)?;
    let base = flow.frame(0).udp(30_000, 7_000).payload(&[7; 40]);
    let (whole, (own, offload)) = (
        base.clone().build(),
        base.partial_checksum().build_with_offload(),
    );
    // Its own is completed, and its frame the kernel's to forward.
    let by_kernel = world.passes_undone((1, 2), (own.clone(), offload), &whole)?;
    check(by_kernel, "its frame is the kernel\'s to forward")?;
    // To a port that no rule has.
    let mut aimed = own.clone();
    aimed[40..42].fill(0);
    for word in 0..=u16::MAX {
        aimed[60..62].copy_from_slice(&word.to_be_bytes());
        if checksum::checksum(&aimed[34..]) == 9_000 {
            break;
        }
    }
    let to_port = Offload {
        checksum: Some(BEGUN[1](&flow)),
        ..offload
    };
    world.refuses((1, 2), (aimed, to_port))?;
    for place in &BEGUN[1..5] {
        let checksum = Some(place(&flow));
        world.refuses(
            (1, 2),
            (
                own.clone(),
                Offload {
                    checksum,
                    ..offload
                },
            ),
        )?;
    }
    // Segments of their own kind are the kernel's to forward.
    for v6 in [false, true] {
        let mut flow = Flow::new(1, 2, [30_001, 7_000], true);
        flow.v6 = v6;
        world.make_known(&mut flow)?;
        let large = flow.frame(1).tcp(7_000, 30_001, ACK).seq(flow.next[1]);
        let large = large.ack(flow.next[0]).window(1000).payload(&[1; 3000]);
        let (frame, offload) = large.gso(1000).build_with_offload();
        let by_kernel = world.passes_undone((2, 1), (frame.clone(), offload), &frame)?;
        check(by_kernel, "its frame is the kernel\'s to forward")?;
    }
    Ok(())
}

/// What comes when a connection is over begins another one, if its rule says so.
fn who_has_been_silent_for_its_time_is_decided_anew() -> Result<()> {
    let mut world = world(3)?;
    world.daemon.cli("nic update c1 --udp-timeout 30")?;
    let mut talk = Flow::new(3, 2, [30_000, 7_000], false);
    world.make_known(&mut talk)?;
    let mut flow = Flow::new(1, 2, [30_000, 7_000], false);
    world.make_known_outward(&mut flow)?;
    // Over, but hardly swept out of the table yet.
    std::thread::sleep(Duration::from_millis(30_300));
    let frame = flow.data(0, 10);
    let before = world.kernel_frames(1)?;
    check(world.reaches(1, 2, &frame)?, "its rule lets it in")?;
    assert_eq!(world.kernel_frames(1)?, before, "the path has judged it");
    let flows = world.api.borrow_mut().flows()?;
    let ages: Vec<u64> = flows.iter().map(|flow| flow.age_secs).collect();
    check(
        ages.len() == 2 && ages.iter().any(|age| *age < 10),
        &format!("one is new of {flows:?}"),
    )?;
    // What has a longer time goes on, the first by the worker.
    let before = world.kernel_frames(3)?;
    check(world.reaches(3, 2, &talk.data(0, 10))?, "that one goes on")?;
    assert_eq!(world.kernel_frames(3)?, before);
    let more: Vec<_> = (0..20).map(|_| talk.data(0, 10)).collect();
    world.send(3, &more)?;
    assert_eq!(world.kernel_frames(3)?, before + 20);
    Ok(())
}

fn a_rule_that_goes_is_in_force_for_the_next_packet() -> Result<()> {
    let mut world = world(2)?;
    for tcp in [false, true] {
        let mut flow = Flow::new(1, 2, [30_000, 7_000], tcp);
        world.make_known(&mut flow)?;
        let protocol = if tcp { "tcp" } else { "udp" };
        for round in 0..5 {
            let frame = flow.data(0, 10);
            check(world.reaches(1, 2, &frame)?, &format!("round {round}"))?;
            world
                .daemon
                .cli(&format!("sg rule del c2 --ip-proto {protocol} --port 7000"))?;
            let frame = flow.data(0, 10);
            check(!world.reaches(1, 2, &frame)?, "no rule lets it in any more")?;
            let answer = flow.data(1, 10);
            check(!world.reaches(2, 1, &answer)? || !tcp, "nor its answers")?;
            world
                .daemon
                .cli(&format!("sg rule add c2 --ip-proto {protocol} --port 7000"))?;
            // TCP begins anew.
            flow.ports[0] += 1;
            world.make_known(&mut flow)?;
        }
    }
    Ok(())
}

fn state(world: &World, port: u16) -> Result<String> {
    let text = world.daemon.cli(&format!("flows c1 --port {port}"))?;
    let row = text.lines().nth(1).unwrap_or_default();
    Ok(row.split_whitespace().nth(5).unwrap_or_default().to_owned())
}

fn a_reset_closes_where_the_connection_is_and_nowhere_else() -> Result<()> {
    let mut world = world(2)?;
    let mut flow = Flow::new(1, 2, [30_000, 7_000], true);
    world.make_known(&mut flow)?;
    // All that the kernel has forwarded since counts: the window is far from where it was.
    for _ in 0..4 {
        let data: Vec<_> = (0..20).map(|_| flow.data(0, 1000)).collect();
        world.send(1, &data)?;
        let answers: Vec<_> = (0..4).map(|_| flow.data(1, 10)).collect();
        world.send(2, &answers)?;
    }
    let far = flow.next[0].wrapping_add(1 << 28);
    let reset = flow.segment_at(0, TcpFlags(0x04), 0, far);
    world.reaches(1, 2, &reset)?;
    assert_eq!(
        state(&world, 30_000)?,
        "established",
        "of no connection here"
    );
    let before = world.kernel_frames(1)?;
    let data: Vec<_> = (0..20).map(|_| flow.data(0, 10)).collect();
    world.send(1, &data)?;
    check(
        world.kernel_frames(1)? > before,
        "and it goes on in the kernel",
    )?;
    let reset = flow.segment_at(0, TcpFlags(0x14), 0, flow.next[0]);
    check(world.reaches(1, 2, &reset)?, "its own arrives")?;
    assert_eq!(state(&world, 30_000)?, "close");
    let before = (world.kernel_frames(1)?, world.kernel_frames(2)?);
    for side in 0..2 {
        let data: Vec<_> = (0..30).map(|_| flow.data(side, 10)).collect();
        world.send(flow.ends[side], &data)?;
    }
    let after = (world.kernel_frames(1)?, world.kernel_frames(2)?);
    assert_eq!(after, before, "a closed one is the path's alone");
    Ok(())
}

fn a_nic_that_goes_is_reached_by_nothing_of_before() -> Result<()> {
    let mut world = world(2)?;
    let mut flow = Flow::new(1, 2, [30_000, 7_000], false);
    world.make_known(&mut flow)?;
    let frame = flow.data(0, 10);
    world.daemon.cli("nic del c2")?;
    world.peers[0].send(std::slice::from_ref(&frame))?;
    world.sent[0] += 1;
    wait_closely("the frame to be counted", PATIENCE, || {
        Ok((world.stats(1)?.egress_frames == world.sent[0]).then_some(()))
    })?;
    // Another NIC with the same addresses, without the rule.
    let before = world.kernel_frames(1)?;
    let old = world.peers.pop();
    world.daemon.cli("sg del c2")?;
    let namespace = Namespace::new()?;
    world.add(2, namespace.pid())?;
    world.peers.push(PacketPeer::new(namespace)?);
    drop(old);
    for _ in 0..12 {
        check(!world.reaches_unsynced(&frame)?, "it has no rule")?;
    }
    assert_eq!(world.kernel_frames(1)?, before);
    world
        .daemon
        .cli("sg rule add c2 --ip-proto udp --port 7000")?;
    world.sent[0] = world.stats(1)?.egress_frames;
    world.sent[1] = world.settled(2)?;
    world.make_known(&mut flow)
}

impl World {
    /// As [`reaches`](Self::reaches), from the first to the second, where frames are not counted.
    fn reaches_unsynced(&mut self, frame: &[u8]) -> Result<bool> {
        self.peers[1].take()?;
        self.peers[0].send(&[frame.to_vec()])?;
        std::thread::sleep(Duration::from_millis(20));
        Ok(self.peers[1].take()?.contains(&hex(frame)))
    }
}

fn who_watches_sees_every_frame() -> Result<()> {
    let mut world = world_with(2, &["--trace-dir", "{dir}"])?;
    let mut flow = Flow::new(1, 2, [30_000, 7_000], false);
    for watched in ["c1", "c2"] {
        world.make_known(&mut flow)?;
        let file = world.daemon.dir().join(format!("{watched}.pcapng"));
        let words = format!("capture -w {} -n 200 {watched}", file.display());
        let mut capture = world.start_cli(&words)?;
        wait_for("the capture to begin", PATIENCE, || {
            Ok(std::fs::metadata(&file)
                .is_ok_and(|file| file.len() > 0)
                .then_some(()))
        })?;
        let before = (world.kernel_frames(1)?, world.kernel_frames(2)?);
        for _ in 0..10 {
            for side in 0..2 {
                let frames: Vec<_> = (0..10).map(|_| flow.data(side, 10)).collect();
                world.send(flow.ends[side], &frames)?;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        // All two hundred are in it, or it does not end.
        let ended = capture.wait(PATIENCE)?;
        check(ended.success(), &capture.log())?;
        let after = (world.kernel_frames(1)?, world.kernel_frames(2)?);
        assert_eq!(
            after, before,
            "while {watched} is watched the kernel forwards nothing"
        );
    }
    // What becomes of each frame is told live, begun amid a connection.
    world.make_known(&mut flow)?;
    let mut told = world.start_cli("trace --live c1 --frames 60 --rate 1000")?;
    wait_for("the kernel to forward nothing", PATIENCE, || {
        let before = world.kernel_frames(1)?;
        world.send(1, &[flow.data(0, 10)])?;
        std::thread::sleep(Duration::from_millis(10));
        Ok((world.kernel_frames(1)? == before).then_some(()))
    })?;
    let before = world.kernel_frames(1)?;
    let frames: Vec<_> = (0..60).map(|_| flow.data(0, 10)).collect();
    for frames in frames.chunks(10) {
        world.send(1, frames)?;
        std::thread::sleep(Duration::from_millis(10));
    }
    let ended = told.wait(PATIENCE)?;
    check(ended.success(), &told.log())?;
    assert_eq!(world.kernel_frames(1)?, before, "it forwards what is told");
    // The file of a packet trace, begun amid a connection.
    world.make_known(&mut flow)?;
    let file = world.daemon.dir().join("c1.pcap");
    world
        .daemon
        .cli("nic update c1 --packet-trace true --trace-path c1.pcap")?;
    let before = (world.kernel_frames(1)?, world.kernel_frames(2)?);
    let mut length = 24; // the file's own header
    for round in 0..10 {
        let side = round % 2;
        let frames: Vec<_> = (0..10).map(|_| flow.data(side, 10)).collect();
        length += frames.iter().map(|frame| 16 + frame.len()).sum::<usize>();
        world.send(flow.ends[side], &frames)?;
        std::thread::sleep(Duration::from_millis(10));
    }
    wait_for("all frames in the file", PATIENCE, || {
        let written = std::fs::metadata(&file).map_or(0, |file| file.len() as usize);
        Ok((written >= length).then_some(()))
    })?;
    let after = (world.kernel_frames(1)?, world.kernel_frames(2)?);
    assert_eq!(
        after, before,
        "while c1 is traced the kernel forwards nothing"
    );
    world.daemon.cli("nic update c1 --packet-trace false")?;
    // Nor does it for who has limits.
    world.make_known(&mut flow)?;
    world.daemon.cli("nic update c2 --limit-in 1000mbit")?;
    let before = world.kernel_frames(1)?;
    for _ in 0..5 {
        let frames: Vec<_> = (0..10).map(|_| flow.data(0, 10)).collect();
        world.send(1, &frames)?;
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(world.kernel_frames(1)?, before);
    Ok(())
}

fn nothing_passes_when_the_daemon_was_killed() -> Result<()> {
    let mut world = world(2)?;
    let mut flow = Flow::new(1, 2, [30_000, 7_000], false);
    world.make_known(&mut flow)?;
    let pid = world.daemon.pid().to_string();
    process::run(&["kill", "-9", &pid])?;
    nobody_judges(&mut world, &flow.data(0, 10))
}

/// Stopped (SIGSTOP), it judges nothing either: after two seconds nothing passes, and when it goes
/// on the connection does.
fn nothing_passes_while_the_daemon_stands_still() -> Result<()> {
    let mut world = world(2)?;
    let mut flow = Flow::new(1, 2, [30_000, 7_000], false);
    world.make_known(&mut flow)?;
    let still = world.daemon.stand_still()?;
    let frame = flow.data(0, 10);
    nobody_judges(&mut world, &frame)?;
    drop(still);
    wait_for("the connection to go on", PATIENCE, || {
        Ok(world.reaches_unsynced(&frame)?.then_some(()))
    })
}

fn nobody_judges(world: &mut World, frame: &[u8]) -> Result<()> {
    // Several, since one may come late.
    wait_for("the kernel to forward no more", PATIENCE, || {
        for _ in 0..10 {
            if world.reaches_unsynced(frame)? {
                return Ok(None);
            }
        }
        Ok(Some(()))
    })?;
    for _ in 0..5 {
        check(!world.reaches_unsynced(frame)?, "nobody is there to judge")?;
    }
    Ok(())
}

fn a_full_table_costs_speed_alone() -> Result<()> {
    let mut world = World::new("k", 2, &["--kernel-flows", "3"])?;
    world
        .daemon
        .cli("sg rule add c2 --ip-proto udp --port 7000")?;
    for port in 0..8 {
        let mut flow = Flow::new(1, 2, [30_000 + port, 7_000], false);
        for _ in 0..4 {
            for side in 0..2 {
                let frames: Vec<_> = (0..8).map(|_| flow.data(side, 10)).collect();
                world.send(flow.ends[side], &frames)?;
            }
            std::thread::sleep(Duration::from_millis(60));
        }
        let frame = flow.data(0, 33);
        check(
            world.reaches(1, 2, &frame)?,
            &format!("flow {port} goes on"),
        )?;
    }
    check(world.kernel_frames(1)? > 0, "some the kernel forwards")
}
