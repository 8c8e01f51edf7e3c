//! Step 4: a later fragment borrows what its datagram's first one said of layer 4, and is judged
//! like it.

use wire::parse::{Fragment, IpPacket, Net, Packet};

use crate::drop_reason::DropReason;
use crate::fragments::{DatagramKey, Disposition, Held, Lent, Piece};
use crate::round::{Fate, Round};
use crate::stages::related;

pub(crate) fn run(round: &mut Round) {
    for index in 0..round.items.len() {
        let item = &round.items[index];
        if let Some(ip) = item.ip()
            && let Some(fragment) = ip.fragment
            && item.is_going()
        {
            judge_like_first(round, index, fragment);
        }
    }
}

#[cold]
fn judge_like_first(round: &mut Round, index: usize, fragment: Fragment) {
    // A NIC that is not filtered; other hosts' machines are, on their side, by whole packets.
    let unfiltered = round.nic.bypass && !round.is_from_wire();
    let host = round.host(round.items[index].frame);
    let item = &mut round.items[index];
    let Some(Packet {
        dst,
        net: Net::Ip(ip),
        ..
    }) = &mut item.packet
    else {
        return;
    };
    let frame = &round.batch.frames()[item.frame];
    let key = DatagramKey {
        sender: round.nic.uid,
        to: *dst,
        src: ip.src_bits(),
        dst: ip.dst_bits(),
        protocol: if ip.v6 { 0 } else { ip.protocol },
        v6: ip.v6,
        id: fragment.id,
    };
    let start = u32::from(fragment.offset);
    let piece = Piece {
        start,
        end: start + ip.end - fragment_start(ip, frame.head()),
        more: fragment.more,
    };
    let first = (fragment.offset == 0).then(|| Lent {
        protocol: ip.protocol,
        l4: ip.l4_info,
        quoted: related::quoted_in(ip, frame.head()),
    });
    let millis = round.now.millis();
    let (fragments, counters) = (&mut round.tables.fragments, round.counters);
    let given_up =
        |held: Held| counters.dropped_from(held.source, DropReason::FragmentWithoutFirst);
    match fragments.place(&key, host, piece, first, millis) {
        Disposition::First => item.first_of = Some(key),
        Disposition::Later(lent) => item.borrow_of(&lent),
        // Not filtered: it goes as it is, where its receiver is not filtered either.
        Disposition::Early | Disposition::Drop(_) if unfiltered => {}
        Disposition::Early if fragments.make_room(key.sender, frame.len(), given_up) => {
            let bytes = round.batch.to_bytes(item.frame);
            let from = round.sources.map(|sources| sources[item.frame]);
            let source = (round.from.slot, from);
            fragments.hold(key, source, bytes, frame.offload, millis);
            item.fate = Fate::Held;
        }
        Disposition::Early => round.drop_item(index, DropReason::FragmentWithoutFirst),
        Disposition::Drop(reason) => round.drop_item(index, reason),
    }
}

/// Where the bytes of the fragment begin: behind IPv4's header, or behind IPv6's fragment header.
/// The chain was checked by the parser; in a first fragment there may be more extension headers
/// behind that one.
fn fragment_start(ip: &IpPacket, head: &[u8]) -> u32 {
    const FRAGMENT: u8 = 44;
    const AH: u8 = 51;
    if !ip.v6 || ip.is_later_fragment() {
        return ip.l4.into();
    }
    let l3 = usize::from(ip.l3);
    let (mut next, mut at) = (head.get(l3 + 6).copied(), l3 + 40);
    while let (Some(kind), Some(&[after, len])) =
        (next, head.get(at..at + 2).and_then(|b| b.first_chunk()))
    {
        if at >= usize::from(ip.l4) {
            break;
        }
        match kind {
            FRAGMENT => return at as u32 + 8,
            AH => at += (usize::from(len) + 2) * 4,
            _ => at += (usize::from(len) + 1) * 8,
        }
        next = Some(after);
    }
    ip.l4.into()
}
