//! The frames that machines send to each other, one at a time.

use std::net::IpAddr;

use wire::parse::{TcpFlags, protocol};
use wire::{Mac, Vni, build};

use super::MACHINES;
use crate::fixture::{mac, v4, v6};
use crate::input::Input;

/// One frame's protocol and ports; of an echo request its number in both.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Talk {
    pub protocol: u8,
    pub ports: [u16; 2],
    /// An echo reply, which is no beginning of anything.
    pub reply: bool,
}

/// A flow that has been let pass, by who began it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Flow {
    pub vni: Vni,
    pub from: IpAddr,
    pub to: IpAddr,
    pub talk: Talk,
}

/// A frame as its sender has made it.
pub struct Sent {
    pub bytes: Vec<u8>,
    /// What answers it where it is amid an unknown connection.
    pub reset: Option<Vec<u8>>,
    pub src: Mac,
    pub dst: Mac,
    pub from: IpAddr,
    pub to: IpAddr,
    /// `None`: who has an address is asked, by ARP or neighbour discovery.
    pub talk: Option<Talk>,
}

impl Talk {
    pub fn needs_no_flow(self) -> bool {
        match self.protocol {
            protocol::UDP => true,
            protocol::ICMP | protocol::ICMPV6 => !self.reply,
            _ => false,
        }
    }
}

impl Sent {
    pub fn flow(&self, vni: Vni, talk: Talk) -> Flow {
        Flow {
            vni,
            from: self.from,
            to: self.to,
            talk,
        }
    }

    pub fn says(&self) -> String {
        let Sent {
            src,
            dst,
            from,
            to,
            talk,
            ..
        } = self;
        format!("{src} > {dst}, {from} > {to}, {talk:?}")
    }
}

/// A frame in the name of a machine, to another one or to all.
pub fn sent(input: &mut Input<'_>, name: u8) -> Sent {
    let (to, choice) = (input.u8(), input.u8());
    // All in IPv6 where this bit is set.
    let (is_v6, to) = (to & MACHINES != 0, to % MACHINES);
    // Its address is another one's now and then.
    let claimed = match input.u8() {
        0..=223 => name,
        other => other % MACHINES,
    };
    let address = |machine| match is_v6 {
        false => IpAddr::from(v4(machine)),
        true => IpAddr::from(v6(machine)),
    };
    let (src, from, target) = (mac(name), address(claimed), address(to));
    let port = |choice: u8| [53, 80, 99, 1000][usize::from(choice & 3)];
    let ports = [port(choice >> 2), port(choice >> 4)];
    let ip = |dst| build::frame(src, dst).ip(from, target);
    let talk = |protocol, ports, reply| {
        Some(Talk {
            protocol,
            ports,
            reply,
        })
    };
    let (dst, bytes, talk) = match choice & 3 {
        0 => {
            let (dst, bytes) = match is_v6 {
                false => {
                    let bytes = build::arp_request(src, v4(claimed), v4(to));
                    (Mac::BROADCAST, bytes)
                }
                true => {
                    let bytes = build::neighbour_solicitation(src, v6(claimed), v6(to));
                    (build::solicited_node(v6(to)).1, bytes)
                }
            };
            (dst, bytes, None)
        }
        1 => {
            let flags = match choice & 0x80 {
                0 => TcpFlags::SYN,
                _ => TcpFlags::ACK,
            };
            let tcp = ip(mac(to)).tcp(ports[0], ports[1], flags);
            (mac(to), tcp.build(), talk(protocol::TCP, ports, false))
        }
        2 => {
            let udp = ip(mac(to)).udp(ports[0], ports[1]).payload(b"whole");
            (mac(to), udp.build(), talk(protocol::UDP, ports, false))
        }
        _ => {
            let (number, reply) = (ports[0], choice & 0x80 != 0);
            let echo = match reply {
                false => ip(mac(to)).echo_request(number, 1),
                true => ip(mac(to)).echo_reply(number, 1),
            };
            let kind = match is_v6 {
                false => protocol::ICMP,
                true => protocol::ICMPV6,
            };
            let talk = talk(kind, [number; 2], reply);
            (mac(to), echo.build(), talk)
        }
    };
    let is_amid = talk.is_some_and(|talk| talk.protocol == protocol::TCP) && choice & 0x80 != 0;
    let reset = is_amid.then(|| {
        let back = build::frame(dst, src).ip(target, from).dont_fragment();
        back.tcp(ports[1], ports[0], TcpFlags::RST)
            .window(0)
            .build()
    });
    Sent {
        bytes,
        reset,
        src,
        dst,
        from,
        to: target,
        talk,
    }
}
