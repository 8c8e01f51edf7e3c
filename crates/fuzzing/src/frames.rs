//! Target `frames`: the parser and everything that reads a frame's bytes.
//!
//! Promises: offsets lie within the bytes; the first 256 bytes are judged as the whole frame is, or
//! refused; what a checksum's completion writes does not change what was judged; the segments of a
//! large frame are its payload, no byte more or less, in packets that parse and whose checksums are
//! right.
//!
//! Input: 12 bytes of virtio-net header, a `u16` of bytes that the frame has beyond those given,
//! the frame.

use wire::offload::{Gso, Offload};
use wire::parse::{self, IpPacket, L4, Net, Packet};
use wire::segment::{Checksum, Segments};
use wire::{checksum, dhcp, nd, virtio_net};

use crate::input::Input;

/// What a port copies of a frame.
const HEAD_MAX: usize = 256;

/// Judges one frame.
pub fn frames(data: &[u8]) {
    let mut input = Input::new(data);
    let offload = input.offload();
    assert_eq!(
        virtio_net::decode(&virtio_net::encode(&offload, 0, 0)),
        Ok(normal(offload))
    );
    let beyond = usize::from(input.u16());
    let frame = input.take(usize::MAX);
    let frame_len = frame.len() + beyond;
    sums(frame);
    let Ok(packet) = parse::parse(frame, frame_len) else {
        return;
    };
    let head = &frame[..frame.len().min(HEAD_MAX)];
    if let Ok(from_head) = parse::parse(head, frame_len) {
        assert_eq!(
            from_head, packet,
            "the head is judged otherwise than the frame"
        );
    }
    if let Net::Ip(ip) = &packet.net {
        places(ip, frame, frame_len);
        let _ = (dhcp::is_client_request(ip), dhcp::is_server_answer(ip));
        let _ = parse::quoted(ip.message(head), ip.v6);
        let _ = nd::parse(head, ip);
    }
    if parse::check_offload(&packet, frame_len, &offload).is_err() {
        return;
    }
    if beyond == 0 && offload.gso == Gso::None {
        completed(frame, &packet, &offload);
    }
    if beyond == 0 && offload.gso != Gso::None {
        cut(frame, &packet, &offload);
    }
}

/// Fields that mean nothing without another one are not carried.
fn normal(offload: Offload) -> Offload {
    Offload {
        data_valid: offload.data_valid && offload.checksum.is_none(),
        ..offload
    }
}

fn sums(bytes: &[u8]) {
    let words = bytes
        .chunks(2)
        .map(|word| u64::from(word[0]) << 8 | word.get(1).map_or(0, |&low| u64::from(low)));
    let mut plain = words.sum::<u64>();
    while plain > 0xffff {
        plain = (plain & 0xffff) + (plain >> 16);
    }
    assert_eq!(u64::from(checksum::fold(checksum::sum(bytes))), plain);
    let (a, b) = bytes.split_at(bytes.len() / 3);
    let mut sum = checksum::Sum::new();
    sum.add(a);
    sum.add(b);
    assert_eq!(u64::from(sum.folded()), plain);
}

fn places(ip: &IpPacket, frame: &[u8], frame_len: usize) {
    let (l3, l4, end) = (usize::from(ip.l3), usize::from(ip.l4), ip.end as usize);
    assert!(
        l3 < l4 && l4 <= end && end <= frame_len,
        "{l3} {l4} {end} {frame_len}"
    );
    assert!(l4 <= frame.len(), "layer 4 begins behind what was seen");
    assert_eq!(ip.l4_len(), end - l4);
    let header = match ip.l4_info {
        L4::Tcp {
            header_len,
            payload_len,
            ..
        } => {
            assert_eq!(l4 + usize::from(header_len) + payload_len as usize, end);
            usize::from(header_len)
        }
        L4::Udp { .. } => 8,
        // The rest is read of queries alone.
        L4::Icmp { .. } => 4,
        L4::Sctp { .. } => 12,
        L4::Other | L4::LaterFragment => 0,
    };
    assert!(
        l4 + header <= frame.len().min(end),
        "a header that was not seen"
    );
    assert_eq!(ip.src().is_ipv6(), ip.v6);
    assert_eq!(ip.dst().is_ipv6(), ip.v6);
}

/// Completes the checksum as a port does for a receiver that does not, and judges again.
fn completed(frame: &[u8], packet: &Packet, offload: &Offload) {
    let Some(partial) = offload.checksum else {
        return;
    };
    let start = usize::from(partial.start);
    let at = start + usize::from(partial.offset);
    let mut bytes = frame.to_vec();
    // Whatever the sum is: the guest chooses the bytes that go into it.
    bytes[at..at + 2].iter_mut().for_each(|byte| *byte ^= 0xff);
    assert_eq!(
        parse::parse(&bytes, bytes.len()).as_ref(),
        Ok(packet),
        "another frame than was judged"
    );
    let Net::Ip(ip) = &packet.net else { return };
    let head = |bytes: &[u8]| bytes[..bytes.len().min(HEAD_MAX)].to_vec();
    let (before, after) = (head(frame), head(&bytes));
    assert_eq!(
        nd::parse(&before, ip),
        nd::parse(&after, ip),
        "another ND message than was judged"
    );
    if ip.is_icmp_error() {
        let quoted = |head| parse::quoted(ip.message(head), ip.v6);
        assert_eq!(
            quoted(&before),
            quoted(&after),
            "another quoted packet than was judged"
        );
    }
}

fn cut(frame: &[u8], packet: &Packet, offload: &Offload) {
    let head = &frame[..frame.len().min(HEAD_MAX)];
    let Ok(segments) = Segments::new(head, frame.len(), offload) else {
        return;
    };
    let ip = packet.ip().expect("only IP packets are cut");
    let (count, header_len) = (segments.count(), segments.header_len());
    assert!(
        (1..=parse::SEGMENTS_MAX).contains(&count),
        "{count} segments"
    );
    let mut next = header_len;
    for index in 0..count {
        let payload = segments.payload(index);
        assert_eq!(payload.start, next);
        assert!(payload.len() <= usize::from(offload.gso_size));
        next = payload.end;
    }
    assert_eq!(next, ip.end as usize);
    for index in [0, count / 2, count - 1] {
        let payload = &frame[segments.payload(index)];
        let payload_sum = checksum::sum(payload);
        let mut segment = vec![0xa5; header_len];
        segments.write(index, Checksum::Full { payload_sum }, &mut segment);
        segment.extend_from_slice(payload);
        let parsed = parse::parse(&segment, segment.len()).expect("a segment that parses");
        assert_eq!((parsed.src, parsed.dst), (packet.src, packet.dst));
        let small = parsed.ip().expect("an IP segment");
        assert_eq!(
            (small.src_bits(), small.dst_bits()),
            (ip.src_bits(), ip.dst_bits())
        );
        assert_eq!(small.l4_info.ports(), ip.l4_info.ports());
        assert_eq!(small.end as usize, segment.len());
    }
}
