//! A service of one port, and one of all ports that have none of their own.

use butterfly_balancer::{Protocol, Reason, Server, Service};
use wire::parse::TcpFlags;

use super::stage::*;

trials! {
    all_ports_but_those_with_a_service_of_their_own,
}

fn all_ports_but_those_with_a_service_of_their_own() {
    for v6 in [false, true] {
        for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
            let mut balancer = stage();
            let with = |port, n| {
                let only = Server::new(server(v6, n)).expect("a host");
                Service::new(key(v6, protocol, port)).with(only)
            };
            apply(&mut balancer, [with(0, 1), with(PORT, 2)]);
            let packet = |protocol, port| match protocol {
                Protocol::Tcp => arrives(v6, 1).tcp(1000, port, TcpFlags::SYN).build(),
                Protocol::Udp => arrives(v6, 1).udp(1000, port).build(),
                Protocol::Sctp => arrives(v6, 1).sctp(1000, port, 0, 1).build(),
            };
            let row = format!("{protocol}, IPv6 {v6}");
            let others = [1, 80, PORT - 1, PORT + 1, u16::MAX];
            for port in others {
                let to = goes_to(&balancer, &packet(protocol, port));
                assert_eq!(to, Some(1), "{row}, port {port}");
            }
            assert_eq!(
                goes_to(&balancer, &packet(protocol, PORT)),
                Some(2),
                "{row}"
            );
            let another = if protocol == Protocol::Tcp {
                Protocol::Udp
            } else {
                Protocol::Tcp
            };
            passes(
                &balancer,
                &packet(another, 80),
                &format!("{row}: all ports of one protocol are none of {another}"),
            );
            let counters = balancer.counters().expect("maps can be read");
            assert_eq!(
                [0, PORT].map(|port| counters.service(&key(v6, protocol, port)).flows),
                [others.len() as u64, 1],
                "{row}"
            );
            assert_eq!(counters.reason(Reason::NoService), 1, "{row}");
            // Without a service of its own the port is one of all.
            balancer
                .remove_service(key(v6, protocol, PORT))
                .expect("it is there");
            assert_eq!(
                goes_to(&balancer, &packet(protocol, PORT)),
                Some(1),
                "{row}"
            );
        }
    }
}
