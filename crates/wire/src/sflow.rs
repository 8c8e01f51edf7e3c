//! sFlow version 5 (<https://sflow.org/sflow_version_5.txt>) as an agent sends it: flow samples
//! with the packet's first bytes, and counter samples of interfaces, in XDR. One [`Datagram`] is
//! one UDP datagram.

use std::net::IpAddr;

/// The longest datagram: it is to fit where the path's MTU is not known.
pub const DATAGRAM_MAX: usize = 1400;
/// Of a sampled packet so many bytes at most, the specification's default.
pub const HEADER_MAX: usize = 128;
/// What is told of an interface's name at most, bytes.
const NAME_MAX: usize = 64;

const VERSION: u32 = 5;
const FLOW_SAMPLE: u32 = 1;
const COUNTERS_SAMPLE: u32 = 2;
/// `sampled_header`, of the protocol Ethernet.
const RAW_HEADER: u32 = 1;
const ETHERNET: u32 = 1;
const IF_COUNTERS: u32 = 1;
/// `port_name` (<https://sflow.org/sflow_openflow.txt>).
const PORT_NAME: u32 = 1005;
/// ifType ethernetCsmacd (RFC 1213).
const IF_TYPE: u32 = 6;
const FULL_DUPLEX: u32 = 1;
/// A counter that is not known.
const UNKNOWN: u32 = u32::MAX;

/// Where a sampled packet has gone to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output {
    /// That is not known.
    Unknown,
    /// This interface.
    Interface(u32),
    /// So many interfaces.
    Several(u32),
    /// Nowhere, for this reason.
    Dropped(Reason),
}

/// Why a packet was discarded, as far as sFlow has numbers that no ICMP message has
/// (sflow_version_5, section 5, "interface").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Reason {
    /// None of the others.
    Unknown = 256,
    /// A rule.
    AccessList = 258,
    /// The receiver has no room.
    NoBufferSpace = 259,
    /// A rate limit.
    RateLimit = 261,
    /// An MTU.
    TooBig = 262,
}

/// One packet of many.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowSample<'a> {
    /// Counted for each input.
    pub sequence: u32,
    /// One packet in so many is taken.
    pub rate: u32,
    /// Packets that could have been taken until now.
    pub pool: u32,
    /// Samples that the agent has lost until now.
    pub drops: u32,
    /// ifIndex of where it came in.
    pub input: u32,
    /// Where it went to.
    pub output: Output,
    /// Bytes of the whole frame, without FCS.
    pub frame_len: u32,
    /// Its first bytes, [`HEADER_MAX`] of them at most.
    pub header: &'a [u8],
}

/// What an interface has counted. Directions are the switch's: `in` is what comes into it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CountersSample<'a> {
    /// Counted for each interface.
    pub sequence: u32,
    /// ifIndex.
    pub index: u32,
    /// ifName.
    pub name: &'a str,
    /// Frames can come and go.
    pub is_up: bool,
    /// Bytes in and out.
    pub octets: [u64; 2],
    /// Frames in and out.
    pub frames: [u64; 2],
    /// Dropped on the way in and out.
    pub discards: [u64; 2],
}

/// One datagram on its way to be sent.
#[derive(Clone, Debug)]
pub struct Datagram {
    bytes: Vec<u8>,
    /// Where the sequence number is; the uptime and the number of samples follow it.
    rest: usize,
    samples: u32,
}

impl Datagram {
    /// An empty one of this agent.
    pub fn new(agent: IpAddr) -> Datagram {
        let mut bytes = Vec::with_capacity(DATAGRAM_MAX);
        put(&mut bytes, VERSION);
        match agent {
            IpAddr::V4(v4) => {
                put(&mut bytes, 1);
                bytes.extend(v4.octets());
            }
            IpAddr::V6(v6) => {
                put(&mut bytes, 2);
                bytes.extend(v6.octets());
            }
        }
        // One agent, without parts.
        put(&mut bytes, 0);
        let rest = bytes.len();
        bytes.extend([0; 12]);
        Datagram {
            bytes,
            rest,
            samples: 0,
        }
    }

    /// How many samples are in it.
    pub fn samples(&self) -> u32 {
        self.samples
    }

    /// Adds a sample; false when there is no room.
    pub fn push_flow(&mut self, sample: &FlowSample) -> bool {
        let header = &sample.header[..sample.header.len().min(HEADER_MAX)];
        let padded = header.len().next_multiple_of(4);
        let len = 8 + 32 + 8 + 16 + padded;
        if self.bytes.len() + len > DATAGRAM_MAX {
            return false;
        }
        let output = match sample.output {
            Output::Unknown => 0,
            Output::Interface(index) => index,
            Output::Several(count) => 1 << 31 | count & 0x3fff_ffff,
            Output::Dropped(reason) => 1 << 30 | reason as u32,
        };
        let bytes = &mut self.bytes;
        for word in [
            FLOW_SAMPLE,
            (len - 8) as u32,
            sample.sequence,
            sample.input,
            sample.rate,
            sample.pool,
            sample.drops,
            sample.input,
            output,
            1,
            RAW_HEADER,
            (16 + padded) as u32,
            ETHERNET,
            // As on a wire, where there would be an FCS, which is stripped.
            sample.frame_len + 4,
            4,
            header.len() as u32,
        ] {
            put(bytes, word);
        }
        bytes.extend_from_slice(header);
        bytes.resize(bytes.len() + padded - header.len(), 0);
        self.samples += 1;
        true
    }

    /// Adds what an interface has counted; false when there is no room.
    pub fn push_counters(&mut self, sample: &CountersSample) -> bool {
        let mut end = sample.name.len().min(NAME_MAX);
        while !sample.name.is_char_boundary(end) {
            end -= 1;
        }
        let name = &sample.name.as_bytes()[..end];
        let padded = name.len().next_multiple_of(4);
        let len = 8 + 12 + 8 + 88 + 8 + 4 + padded;
        if self.bytes.len() + len > DATAGRAM_MAX {
            return false;
        }
        let bytes = &mut self.bytes;
        for word in [
            COUNTERS_SAMPLE,
            (len - 8) as u32,
            sample.sequence,
            sample.index,
            2,
            IF_COUNTERS,
            88,
            sample.index,
            IF_TYPE,
        ] {
            put(bytes, word);
        }
        // The speed: a virtual interface has none.
        bytes.extend([0; 8]);
        put(bytes, FULL_DUPLEX);
        // Bit 0: it is set up, bit 1: it works.
        put(bytes, if sample.is_up { 3 } else { 1 });
        for way in 0..2 {
            bytes.extend(sample.octets[way].to_be_bytes());
            // Counters wrap; how many of the frames are for groups is not counted.
            put(bytes, sample.frames[way] as u32);
            put(bytes, UNKNOWN);
            put(bytes, UNKNOWN);
            put(bytes, sample.discards[way] as u32);
            put(bytes, 0);
            if way == 0 {
                put(bytes, UNKNOWN);
            }
        }
        // Not promiscuous.
        put(bytes, 2);
        put(bytes, PORT_NAME);
        put(bytes, (4 + padded) as u32);
        put(bytes, name.len() as u32);
        bytes.extend_from_slice(name);
        bytes.resize(bytes.len() + padded - name.len(), 0);
        self.samples += 1;
        true
    }

    /// Its bytes, with its number and how long the agent has been there.
    pub fn finish(mut self, sequence: u32, uptime_ms: u32) -> Vec<u8> {
        for (index, word) in [sequence, uptime_ms, self.samples].into_iter().enumerate() {
            let at = self.rest + 4 * index;
            self.bytes[at..at + 4].copy_from_slice(&word.to_be_bytes());
        }
        self.bytes
    }
}

fn put(bytes: &mut Vec<u8>, word: u32) {
    bytes.extend(word.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    fn words(bytes: &[u8]) -> Vec<u32> {
        let word = |part: &[u8]| u32::from_be_bytes(part.try_into().unwrap());
        bytes.chunks(4).map(word).collect()
    }

    const SAMPLE: FlowSample = FlowSample {
        sequence: 9,
        rate: 100,
        pool: 900,
        drops: 2,
        input: 5,
        output: Output::Interface(6),
        frame_len: 60,
        header: &[1, 2, 3, 4, 5],
    };

    #[test]
    fn a_flow_sample_is_the_specification_s() {
        let mut datagram = Datagram::new(Ipv4Addr::new(192, 0, 2, 1).into());
        assert!(datagram.push_flow(&SAMPLE));
        let bytes = datagram.finish(7, 1234);
        assert_eq!(
            words(&bytes),
            [
                5,
                1,
                0xc000_0201,
                0,
                7,
                1234,
                1, // header
                1,
                64,
                9,
                5,
                100,
                900,
                2,
                5,
                6,
                1, // sample
                1,
                24,
                1,
                64,
                4,
                5,
                0x0102_0304,
                0x0500_0000, // record
            ]
        );
    }

    #[test]
    fn outputs_have_their_formats() {
        for (output, word) in [
            (Output::Unknown, 0),
            (Output::Several(3), 0x8000_0003),
            (Output::Dropped(Reason::Unknown), 0x4000_0100),
            (Output::Dropped(Reason::AccessList), 0x4000_0102),
        ] {
            let mut datagram = Datagram::new(Ipv6Addr::LOCALHOST.into());
            let sample = FlowSample { output, ..SAMPLE };
            assert!(datagram.push_flow(&sample));
            assert_eq!(words(&datagram.finish(0, 0))[10 + 8], word);
        }
    }

    #[test]
    fn counters_are_the_specification_s() {
        let mut datagram = Datagram::new(Ipv4Addr::new(192, 0, 2, 1).into());
        let sample = CountersSample {
            sequence: 1,
            index: 5,
            name: "vm1",
            is_up: true,
            octets: [1 << 32, 2],
            frames: [3, 4],
            discards: [6, 7],
        };
        assert!(datagram.push_counters(&sample));
        let bytes = datagram.finish(0, 0);
        let unknown = u32::MAX;
        assert_eq!(
            words(&bytes)[7..],
            [
                2,
                124,
                1,
                5,
                2, // sample
                1,
                88,
                5,
                6,
                0,
                0,
                1,
                3, // interface
                1,
                0,
                3,
                unknown,
                unknown,
                6,
                0,
                unknown, // in
                0,
                2,
                4,
                unknown,
                unknown,
                7,
                0,
                2, // out
                1005,
                8,
                3,
                0x766d_3100, // name
            ]
        );
    }

    #[test]
    fn a_datagram_has_an_end() {
        let mut datagram = Datagram::new(Ipv4Addr::LOCALHOST.into());
        let sample = FlowSample {
            header: &[7; 200],
            ..SAMPLE
        };
        let mut count = 0;
        while datagram.push_flow(&sample) {
            count += 1;
        }
        assert_eq!((count, datagram.samples()), (7, 7));
        assert!(datagram.finish(0, 0).len() <= DATAGRAM_MAX);
    }
}
