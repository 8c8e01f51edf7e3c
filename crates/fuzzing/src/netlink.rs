//! Target `netlink`: what the kernel tells of links, addresses, routes, rules and neighbours, and
//! what it never would.
//!
//! Promises: what is new and is told twice changes nothing the second time, so that a change that a
//! dump has seen already does no harm; whatever is in the tables can be looked up. Input: messages,
//! each a kind, its flags, a length and so many bytes of body (fixed part and attributes); or,
//! where the first byte says so, a datagram as it is.

use netlink::{Kinds, Offline};

use crate::input::Input;

/// Numbers of linux/rtnetlink.h: new and gone, for each thing that is followed.
const KINDS: [u16; 7] = [16, 20, 24, 28, 32, 104, 80];
/// NLM_F_REPLACE and NLM_F_APPEND, which say where a route goes.
const FLAGS: [u16; 4] = [0, 0x100, 0x800, 0x900];

/// Feeds the messages to tables.
pub fn netlink(data: &[u8]) {
    look(&apply(data));
}

fn apply(data: &[u8]) -> Offline {
    let mut tables = Offline::default();
    if let [RAW, datagram @ ..] = data {
        tables.apply(datagram);
        return tables;
    }
    let mut input = Input::new(data);
    while !input.is_empty() {
        let choice = usize::from(input.u8());
        let gone = choice & 8 != 0;
        let kind = KINDS[(choice & 7) % KINDS.len()] + u16::from(gone);
        let len = usize::from(input.u8());
        let datagram = message(kind, FLAGS[choice >> 4 & 3], input.take(len));
        tables.apply(&datagram);
        if !gone {
            assert_eq!(
                tables.apply(&datagram),
                Kinds::NONE,
                "told twice: {datagram:02x?}"
            );
        }
    }
    tables
}

/// The first byte of a datagram as it is.
pub const RAW: u8 = 0xff;

/// A message with its header (netlink(7)).
fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let mut message = (16 + body.len() as u32).to_ne_bytes().to_vec();
    message.extend(kind.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    message
}

/// Asks for everything that is there.
fn look(tables: &Offline) {
    let snapshot = tables.snapshot();
    for (index, link) in &snapshot.links {
        assert_eq!(*index, link.index);
        let named = snapshot.link_named(&link.name).map(|link| &link.name);
        assert_eq!(named, Some(&link.name));
        assert!(
            snapshot
                .addresses_of(*index)
                .all(|address| address.ifindex == *index)
        );
    }
    for (ifindex, ip) in snapshot.neighbours.keys() {
        assert!(snapshot.neighbour(*ifindex, *ip).is_some());
    }
    assert!(snapshot.routes.values().all(|set| !set.routes.is_empty()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeds_fill_every_table() {
        let seeds = crate::seeds::all()
            .into_iter()
            .filter(|(target, _)| *target == "netlink");
        let longest = seeds.map(|(_, seed)| apply(&seed)).max_by_key(|tables| {
            let now = tables.snapshot();
            now.links.len() + now.addresses.len() + now.routes.len() + now.settings.len()
        });
        let longest = longest.expect("there are seeds");
        let now = longest.snapshot();
        assert_eq!(
            (now.links.len(), now.addresses.len(), now.routes.len()),
            (1, 1, 1)
        );
        assert_eq!(
            (now.neighbours.len(), now.nexthops.len(), now.settings.len()),
            (1, 1, 1)
        );
        assert_eq!(now.rules.len(), 1);
        assert!(
            now.routes.values().all(|set| set.routes[0].hops.len() == 2),
            "by two gateways"
        );
    }
}
