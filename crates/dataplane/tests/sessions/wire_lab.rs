//! A host on a wire: a lab whose network 0 goes on on other hosts, and what is seen on the wire.

use std::net::{IpAddr, Ipv4Addr};

use dataplane::overlay::{Flood, HostIdx, Overlay};
use dataplane::trial::To;
use dataplane::underlay::{Encapsulation, Hop, Underlay};
use dataplane::{PortSlot, PortUid, Simulation};
use io::memory_port::MemoryPeer;
use wire::offload::Offload;
use wire::vxlan::{self, Ends, Outer, UdpChecksum};
use wire::{Mac, Vni, checksum, parse};

use crate::lab::*;

/// Our host, and the MAC address of the uplink.
pub const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
pub const HERE_MAC: Mac = Mac([2, 0xaa, 0, 0, 0, 1]);
/// The router through which all others are reached.
pub const ROUTER_MAC: Mac = Mac([2, 0xaa, 0, 0, 0, 254]);

/// The host of another host.
pub const fn host_ip(n: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, n))
}

/// A machine in network 0 on another host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Far {
    pub nic: Nic,
    pub at: IpAddr,
}

/// The lab, and the other end of its uplink.
pub struct Host {
    pub lab: Lab,
    pub wire: MemoryPeer,
}

impl Host {
    /// Bindings alone: nothing is learnt or flooded, and only hosts 2 and 3 are known.
    pub fn new() -> Host {
        Host::on(Simulation::default())
    }

    pub fn on(mut sim: Simulation) -> Host {
        let wire = sim.attach(PortSlot::uplink(0));
        let mut lab = Lab::on(sim);
        lab.overlays[0] = Some(Overlay {
            members: [HostIdx(0), HostIdx(1)].into(),
            ..Overlay::new(PortUid(50))
        });
        lab.hosts = vec![host_ip(2), host_ip(3)];
        lab.publish();
        let mut host = Host { lab, wire };
        host.set_paths([2, 3, 4].map(|n| (host_ip(n), vec![hop()])).into());
        host
    }

    pub fn set_paths(&mut self, paths: Vec<(IpAddr, Vec<Hop>)>) {
        self.set_underlay(&[(HERE, 0)], paths);
    }

    /// Our addresses, each with the VLAN that it is in; 0: none.
    pub fn set_underlay(&mut self, endpoints: &[(IpAddr, u16)], paths: Vec<(IpAddr, Vec<Hop>)>) {
        let endpoints = endpoints.iter().copied();
        let underlay = Underlay::new(Encapsulation::default(), endpoints, paths);
        self.lab.sim.set_underlay(underlay.unwrap());
    }

    pub fn configure(&mut self, change: impl FnOnce(&mut Overlay)) {
        change(self.lab.overlays[0].as_mut().unwrap());
        self.lab.publish();
    }

    /// A machine with addresses of both families, bound to host `at`.
    pub fn far(&mut self, n: u8, at: u8) -> Far {
        let far = machine(n, host_ip(at));
        let index = self.lab.hosts.iter().position(|e| *e == far.at).unwrap();
        self.configure(|overlay| {
            overlay.bindings.insert(far.nic.mac, HostIdx(index as u32));
            overlay
                .neighbours
                .insert(far.nic.v4.into(), far.nic.mac.into());
            overlay
                .neighbours
                .insert(far.nic.v6.into(), far.nic.mac.into());
        });
        far
    }

    /// Learns where machines are, from whoever sends, and floods to both hosts.
    pub fn learn(&mut self) {
        self.configure(|overlay| {
            overlay.learn = true;
            overlay.any_host = true;
            overlay.flood = Flood::Hosts([HostIdx(0), HostIdx(1)].into());
        });
    }

    /// A frame comes from the wire; the switch comes to rest.
    pub fn arrive(&mut self, frame: Vec<u8>) {
        assert!(self.wire.send(frame, Offload::default()));
        self.lab.sim.run();
    }

    /// What was sent to the wire since this was asked last.
    pub fn sent(&mut self) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| self.wire.receive())
            .map(|(frame, _)| frame)
            .collect()
    }

    /// The NIC's frame goes to the wire, to `at`, and nowhere else, and nothing is dropped.
    #[track_caller]
    pub fn leaves(&mut self, from: Nic, at: IpAddr, inner: Vec<u8>) {
        self.leaves_to(from, &[at], inner);
    }

    #[track_caller]
    pub fn leaves_to(&mut self, from: Nic, at: &[IpAddr], inner: Vec<u8>) {
        let expected: Vec<_> = at.iter().map(|at| outbound(*at, &inner)).collect();
        if let Some(report) = self.lab.tried(from.slot, &inner) {
            let hops = report
                .targets
                .iter()
                .filter_map(|target| target.hop.as_ref());
            let told: Vec<_> = hops.map(|hop| hop.packet.clone()).collect();
            assert_eq!(told, expected, "what a trial says is sent");
        }
        self.lab.passes_to(from, &[], inner.clone());
        assert_eq!(self.sent(), expected);
    }

    /// The inner frame arrives, as it is, at `to` and nowhere else, and nothing is dropped or sent.
    #[track_caller]
    pub fn enters(&mut self, from: IpAddr, to: Nic, inner: Vec<u8>) {
        self.enters_to(from, &[to], inner);
    }

    #[track_caller]
    pub fn enters_to(&mut self, from: IpAddr, to: &[Nic], inner: Vec<u8>) {
        let before = self.lab.drops();
        let arriving = inbound(from, &inner);
        if let Some(report) = self.lab.tried(PortSlot::uplink(0), &arriving) {
            assert_eq!(
                foretold(&report),
                [],
                "a trial says that it is dropped: {report:?}"
            );
            let told: Vec<_> = report.targets.iter().map(|target| target.to).collect();
            let meant: Vec<_> = to.iter().map(|nic| To::Nic(nic.slot)).collect();
            assert_eq!(told, meant, "where a trial says it goes");
            assert_eq!(report.frame, inner);
        }
        self.arrive(arriving);
        assert_eq!(difference(&before, &self.lab.drops()), [], "dropped");
        for nic in to {
            assert_eq!(
                self.lab.received(*nic),
                std::slice::from_ref(&inner),
                "at {nic:?}"
            );
        }
        self.lab.silent();
        assert_eq!(self.sent(), [[0u8; 0]; 0]);
    }

    /// The frame from the wire arrives nowhere, and is counted once, for this reason.
    #[track_caller]
    pub fn refuses(&mut self, frame: Vec<u8>, reason: dataplane::DropReason) {
        let before = self.lab.drops();
        if let Some(report) = self.lab.tried(PortSlot::uplink(0), &frame) {
            assert_eq!(foretold(&report), [reason], "by a trial: {report:?}");
        }
        self.arrive(frame);
        assert_eq!(difference(&before, &self.lab.drops()), [(reason, 1)]);
        self.lab.silent();
        assert_eq!(self.sent(), [[0u8; 0]; 0]);
    }
}

/// The machine with this number, as [`Lab::nic`] would have it, at a host.
pub fn machine(n: u8, at: IpAddr) -> Far {
    Far {
        nic: Nic {
            // No NIC of this host.
            slot: PortSlot(u32::MAX),
            uid: PortUid(50),
            mac: Mac([2, 0xbb, 0, 0, 0, n]),
            v4: Ipv4Addr::new(10, 0, 0, n),
            v6: std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, n.into()),
        },
        at,
    }
}

/// The way to everybody.
pub fn hop() -> Hop {
    Hop {
        uplink: PortSlot::uplink(0),
        src_mac: HERE_MAC,
        dst_mac: ROUTER_MAC,
        vlan: None,
        source: HERE,
        mtu: 1500,
        weight: 1,
        device: 0,
    }
}

/// An inner frame in the headers that we give it on the way to a host.
pub fn outbound(to: IpAddr, inner: &[u8]) -> Vec<u8> {
    let macs = (HERE_MAC, ROUTER_MAC);
    wrap(
        macs,
        Ends::new(HERE, to).unwrap(),
        0,
        inner,
        vxlan::ecn::tos_of(inner),
    )
}

/// An inner frame in the headers that a host gives it on the way to us.
pub fn inbound(from: IpAddr, inner: &[u8]) -> Vec<u8> {
    arriving(Ends::new(from, HERE).unwrap(), 0, inner, 0)
}

/// An inner frame in outer headers between these addresses, with this VNI and TOS.
pub fn arriving(ends: Ends, vni: u32, inner: &[u8], tos: u8) -> Vec<u8> {
    wrap((ROUTER_MAC, HERE_MAC), ends, vni, inner, tos)
}

fn wrap(macs: (Mac, Mac), ends: Ends, vni: u32, inner: &[u8], tos: u8) -> Vec<u8> {
    let sport = parse::parse(inner, inner.len())
        .map_or(0, |packet| vxlan::source_port(vxlan::flow_hash(&packet)));
    wrap_as(macs, ends, (vni, sport, tos), UdpChecksum::Zero, inner)
}

pub fn wrap_as(
    macs: (Mac, Mac),
    ends: Ends,
    (vni, sport, tos): (u32, u16, u8),
    udp: UdpChecksum,
    inner: &[u8],
) -> Vec<u8> {
    let mut outer = Outer::new(macs, None, ends, 64, vxlan::PORT, udp);
    outer.set_flow(Vni::new(vni).unwrap(), sport, tos);
    let mut frame = vec![0xa5; outer.len()];
    outer.write(&mut frame, inner.len(), checksum::sum(inner));
    frame.extend_from_slice(inner);
    frame
}
