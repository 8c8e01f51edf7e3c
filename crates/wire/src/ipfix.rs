//! IPFIX (RFC 7011) as an exporter of flows sends it: templates, and records of connections with
//! both directions in one (RFC 5103). One [`Message`] is one UDP datagram.

use std::net::IpAddr;

use crate::parse::{ETHERNET_LEN, protocol};

/// The longest message: it is to fit where the path's MTU is not known (RFC 7011, section 10.3.3).
pub const MESSAGE_MAX: usize = 1400;
/// Templates of this exporter: connections of IPv4, and of IPv6.
pub const TEMPLATES: [u16; 2] = [256, 257];
/// `firewallEvent` 2 and 3: a flow that was allowed is over; packets were refused.
pub const FLOW_DELETED: u8 = 2;
/// See [`FLOW_DELETED`].
pub const FLOW_DENIED: u8 = 3;

const VERSION: u16 = 10;
const HEADER_LEN: usize = 16;
const TEMPLATE_SET: u16 = 2;
/// Elements of the way back (RFC 5103, section 6.1).
const REVERSE_PEN: u32 = 29_305;
const ENTERPRISE: u16 = 0x8000;
/// A length that is told with each value.
const VARIABLE: u16 = 0xffff;
/// What is told of an interface's name at most, bytes.
const NAME_MAX: usize = 64;
/// `layer2SegmentId`'s first byte: VXLAN.
const SEGMENT_VXLAN: u64 = 1 << 56;

/// One connection that is over, or refused packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record<'a> {
    /// Of the first and last packet, milliseconds since 1970.
    pub start_ms: u64,
    /// See `start_ms`.
    pub end_ms: u64,
    /// Who began it.
    pub source: IpAddr,
    /// With whom: an address of the same family.
    pub destination: IpAddr,
    /// TCP, UDP, SCTP.
    pub source_port: u16,
    /// See `source_port`; ICMP: type * 256 + code.
    pub destination_port: u16,
    /// IP protocol number.
    pub protocol: u8,
    /// Of the source, and of the destination.
    pub tcp_flags: [u8; 2],
    /// Frames' bytes of the source, and of the destination: with their Ethernet headers, which have
    /// no tags.
    pub bytes: [u64; 2],
    /// Frames of the source, and of the destination.
    pub packets: [u64; 2],
    /// `flowEndReason` (RFC 5102, section 5.11.3).
    pub end_reason: u8,
    /// `firewallEvent`.
    pub event: u8,
    /// The network.
    pub vni: u32,
    /// `interfaceName`: the NIC of this host that it is about.
    pub interface: &'a str,
}

/// Information elements of a template in their order: number, length, and whether it is of the way
/// back. `{v6}`'s addresses are the longer ones.
fn elements(v6: bool) -> [(u16, u16, bool); 20] {
    let (source, destination, len, icmp) = match v6 {
        false => (8, 12, 4, 32),
        true => (27, 28, 16, 139),
    };
    [
        (152, 8, false), // flowStartMilliseconds
        (153, 8, false), // flowEndMilliseconds
        (source, len, false),
        (destination, len, false),
        (7, 2, false),  // sourceTransportPort
        (11, 2, false), // destinationTransportPort
        (4, 1, false),  // protocolIdentifier
        // The way back first: nfdump 1.7 knows one field for both, and keeps the last.
        (6, 2, true),          // reverseTcpControlBits
        (6, 2, false),         // tcpControlBits
        (1, 8, false),         // octetDeltaCount
        (352, 8, false),       // layer2OctetDeltaCount
        (2, 8, false),         // packetDeltaCount
        (1, 8, true),          // reverseOctetDeltaCount
        (352, 8, true),        // reverseLayer2OctetDeltaCount
        (2, 8, true),          // reversePacketDeltaCount
        (icmp, 2, false),      // icmpTypeCodeIPv4, icmpTypeCodeIPv6
        (136, 1, false),       // flowEndReason
        (233, 1, false),       // firewallEvent
        (351, 8, false),       // layer2SegmentId
        (82, VARIABLE, false), // interfaceName
    ]
}

/// A message that is being made.
#[derive(Debug)]
pub struct Message {
    bytes: Vec<u8>,
    /// The set that is open: where it begins, and its id.
    set: Option<(usize, u16)>,
    records: u32,
    templates: bool,
}

impl Message {
    /// An empty one, or one that begins with the templates: a collector needs them before the first
    /// record, and over UDP again and again (section 8.4).
    pub fn new(templates: bool) -> Message {
        let mut message = Message {
            bytes: vec![0; HEADER_LEN],
            set: None,
            records: 0,
            templates,
        };
        if templates {
            message.open(TEMPLATE_SET);
            for (template, v6) in TEMPLATES.into_iter().zip([false, true]) {
                let elements = elements(v6);
                message.put16(template);
                message.put16(elements.len() as u16);
                for (number, len, reverse) in elements {
                    message.put16(if reverse { ENTERPRISE | number } else { number });
                    message.put16(len);
                    if reverse {
                        message.bytes.extend(REVERSE_PEN.to_be_bytes());
                    }
                }
            }
        }
        message
    }

    /// Adds a record; false, and nothing is added, when it does not fit any more.
    pub fn push(&mut self, record: &Record) -> bool {
        let before = (self.bytes.len(), self.set);
        let v6 = record.source.is_ipv6();
        self.open(TEMPLATES[usize::from(v6)]);
        self.put64(record.start_ms);
        self.put64(record.end_ms);
        for address in [record.source, record.destination] {
            match address {
                IpAddr::V4(v4) => self.bytes.extend(v4.octets()),
                IpAddr::V6(v6) => self.bytes.extend(v6.octets()),
            }
        }
        self.put16(record.source_port);
        self.put16(record.destination_port);
        self.bytes.push(record.protocol);
        let [there, back] = record.tcp_flags;
        self.put16(back.into());
        self.put16(there.into());
        for (bytes, packets) in record.bytes.into_iter().zip(record.packets) {
            // RFC 7012 has IP headers and what they carry in the one, and all of a frame in the
            // other. Many collectors know the first alone.
            let headers = packets.saturating_mul(ETHERNET_LEN as u64);
            self.put64(bytes.saturating_sub(headers));
            self.put64(bytes);
            self.put64(packets);
        }
        let icmp = if v6 { protocol::ICMPV6 } else { protocol::ICMP };
        let is_icmp = record.protocol == icmp;
        self.put16(if is_icmp { record.destination_port } else { 0 });
        self.bytes.extend([record.end_reason, record.event]);
        self.put64(SEGMENT_VXLAN | u64::from(record.vni));
        let mut name_len = record.interface.len().min(NAME_MAX);
        while !record.interface.is_char_boundary(name_len) {
            name_len -= 1;
        }
        self.bytes.push(name_len as u8);
        self.bytes.extend(&record.interface.as_bytes()[..name_len]);
        if self.bytes.len() > MESSAGE_MAX {
            self.bytes.truncate(before.0);
            self.set = before.1;
            return false;
        }
        self.records += 1;
        true
    }

    /// Records that were added.
    pub fn records(&self) -> u32 {
        self.records
    }

    /// It begins with the templates.
    pub fn has_templates(&self) -> bool {
        self.templates
    }

    /// The datagram. `sequence` counts the records that were sent before.
    pub fn finish(mut self, unix_secs: u32, sequence: u32, domain: u32) -> Vec<u8> {
        self.close();
        let len = self.bytes.len() as u16;
        self.bytes[..2].copy_from_slice(&VERSION.to_be_bytes());
        self.bytes[2..4].copy_from_slice(&len.to_be_bytes());
        for (at, word) in [(4, unix_secs), (8, sequence), (12, domain)] {
            self.bytes[at..at + 4].copy_from_slice(&word.to_be_bytes());
        }
        self.bytes
    }

    fn open(&mut self, id: u16) {
        if self.set.is_some_and(|(_, open)| open == id) {
            return;
        }
        self.close();
        self.set = Some((self.bytes.len(), id));
        self.put16(id);
        self.put16(0);
    }

    fn close(&mut self) {
        if let Some((at, _)) = self.set.take() {
            let len = (self.bytes.len() - at) as u16;
            self.bytes[at + 2..at + 4].copy_from_slice(&len.to_be_bytes());
        }
    }

    fn put16(&mut self, number: u16) {
        self.bytes.extend(number.to_be_bytes());
    }

    fn put64(&mut self, number: u64) {
        self.bytes.extend(number.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(interface: &str) -> Record<'_> {
        Record {
            start_ms: 0x0102_0304_0506_0708,
            end_ms: 0x1112_1314_1516_1718,
            source: [10, 0, 0, 1].into(),
            destination: [10, 0, 0, 2].into(),
            source_port: 0xa1a2,
            destination_port: 443,
            protocol: 6,
            tcp_flags: [0x1b, 0x12],
            bytes: [0x1002a, 0x20038],
            packets: [3, 4],
            end_reason: 3,
            event: FLOW_DELETED,
            vni: 0xabcdef,
            interface,
        }
    }

    #[test]
    fn a_record_is_these_bytes() {
        let mut message = Message::new(false);
        assert!(message.push(&record("vm1")));
        let expected: Vec<u8> = [
            &[0, 10, 0, 117][..],
            &[0, 0, 0, 7, 0, 0, 0, 8, 0, 0, 0, 9],
            &[1, 0, 0, 101],
            &[1, 2, 3, 4, 5, 6, 7, 8],
            &[0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18],
            &[10, 0, 0, 1, 10, 0, 0, 2, 0xa1, 0xa2, 1, 187],
            &[6, 0, 0x12, 0, 0x1b],
            // Without and with 14 bytes a packet.
            &[0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 42],
            &[0, 0, 0, 0, 0, 0, 0, 3],
            &[0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 2, 0, 56],
            &[0, 0, 0, 0, 0, 0, 0, 4],
            &[0, 0, 3, 2],
            &[1, 0, 0, 0, 0, 0xab, 0xcd, 0xef],
            &[3, b'v', b'm', b'1'],
        ]
        .concat();
        assert_eq!(message.finish(7, 8, 9), expected);
    }

    #[test]
    fn templates_say_what_records_have() {
        let bytes = Message::new(true).finish(0, 0, 0);
        // The set, two templates of 20 elements of 4 bytes, four of each with a number of 4 more.
        assert_eq!(bytes.len(), 16 + 4 + 2 * (4 + 20 * 4 + 4 * 4));
        assert_eq!(bytes[16..20], [0, 2, 0, (bytes.len() - 16) as u8]);
        assert_eq!(bytes[20..28], [1, 0, 0, 20, 0, 152, 0, 8]);
        for v6 in [false, true] {
            let fixed = elements(v6).into_iter().map(|(_, len, _)| len);
            let fixed: u16 = fixed.filter(|len| *len != VARIABLE).sum();
            let mut message = Message::new(false);
            let addresses: [IpAddr; 2] = match v6 {
                false => [[10, 0, 0, 1].into(), [10, 0, 0, 2].into()],
                true => [[1u16; 8].into(), [2u16; 8].into()],
            };
            message.push(&Record {
                source: addresses[0],
                destination: addresses[1],
                ..record("")
            });
            let len = message.finish(0, 0, 0).len();
            assert_eq!(len, 16 + 4 + usize::from(fixed) + 1);
        }
    }

    #[test]
    fn type_and_code_of_icmp_are_told_in_the_element_of_their_version() {
        let told = |v6: bool, protocol: u8| {
            let addresses: [IpAddr; 2] = match v6 {
                false => [[10, 0, 0, 1].into(), [10, 0, 0, 2].into()],
                true => [[1u16; 8].into(), [2u16; 8].into()],
            };
            let mut message = Message::new(false);
            message.push(&Record {
                source: addresses[0],
                destination: addresses[1],
                destination_port: 0x8001,
                protocol,
                ..record("")
            });
            let bytes = message.finish(0, 0, 0);
            // Where the fixed elements before it end.
            let icmp = if v6 { 139 } else { 32 };
            let before = elements(v6).into_iter().take_while(|of| of.0 != icmp);
            let at = 20 + before.map(|(_, len, _)| usize::from(len)).sum::<usize>();
            u16::from_be_bytes([bytes[at], bytes[at + 1]])
        };
        assert_eq!([told(false, 1), told(true, 58)], [0x8001; 2]);
        assert_eq!([told(false, 6), told(true, 6), told(true, 1)], [0; 3]);
    }

    #[test]
    fn a_full_message_takes_no_more_and_stays_whole() {
        let mut message = Message::new(true);
        let long = "x".repeat(NAME_MAX + 1);
        let mut count = 0;
        while message.push(&record(&long)) {
            count += 1;
        }
        assert_eq!(message.records(), count);
        let v6 = Record {
            source: [1u16; 8].into(),
            destination: [2u16; 8].into(),
            ..record(&long)
        };
        assert!(!message.push(&v6));
        let bytes = message.finish(0, 0, 0);
        assert!(bytes.len() <= MESSAGE_MAX && count > 5);
        assert_eq!(
            usize::from(u16::from_be_bytes([bytes[2], bytes[3]])),
            bytes.len()
        );
        let mut at = 16;
        while at < bytes.len() {
            at += usize::from(u16::from_be_bytes([bytes[at + 2], bytes[at + 3]]));
        }
        assert_eq!(at, bytes.len(), "sets end where the message does");
    }
}
