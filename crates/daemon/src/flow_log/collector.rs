//! A collector of flows, which gets IPFIX over UDP.

use std::time::{Duration, Instant};

use api::v1;
use api::v1::flow_record::Kind;
use wire::ipfix::{self, Message, Record};

use crate::datagrams::{self, Datagrams, Sent};
use crate::events::unix_nanos;

/// How often the templates are sent again.
const TEMPLATES_EVERY: Duration = Duration::from_secs(60);

/// Where records are sent.
pub struct Collector {
    datagrams: Datagrams,
    /// Records that were sent, and those of the last message.
    sequence: u32,
    last: u32,
    told: Option<Instant>,
}

impl Collector {
    /// `ADDRESS:PORT`. The error is a sentence.
    pub fn new(to: &str) -> Result<Collector, String> {
        Ok(Collector {
            datagrams: Datagrams::new(datagrams::collector("--ipfix", to)?),
            sequence: 0,
            last: 0,
            told: None,
        })
    }

    /// Sends what a collector wants to know of: connections that are over, and refusals. Gives how
    /// many were lost.
    pub fn send(&mut self, records: &[v1::FlowRecord]) -> u64 {
        let mut lost = 0;
        let mut message = self.begin();
        for record in records.iter().filter_map(as_ipfix) {
            if !message.push(&record) {
                lost += self.finish(message);
                message = self.begin();
                // It fits into an empty one.
                message.push(&record);
            }
        }
        if message.records() > 0 {
            lost += self.finish(message);
        }
        lost
    }

    fn begin(&self) -> Message {
        let due = |at: Instant| at.elapsed() >= TEMPLATES_EVERY;
        Message::new(self.told.is_none_or(due))
    }

    fn finish(&mut self, message: Message) -> u64 {
        let (records, has_templates) = (message.records(), message.has_templates());
        let secs = (unix_nanos() / 1_000_000_000) as u32;
        // A collector that was started anew knows none, and could not read this one without.
        let templates = (!has_templates).then(|| Message::new(true).finish(secs, self.sequence, 0));
        let bytes = message.finish(secs, self.sequence, 0);
        // Those that are lost are missing for the collector, too: it sees a gap.
        self.sequence = self.sequence.wrapping_add(records);
        let before = std::mem::replace(&mut self.last, records);
        let sent = self
            .datagrams
            .send_behind(templates.as_deref(), &bytes, "flows");
        match sent {
            Ok(Sent::Fine) => {
                if has_templates {
                    self.told = Some(Instant::now());
                }
                0
            }
            Ok(Sent::OneBeforeRefused) => {
                self.told = None;
                before.into()
            }
            Err(_) => {
                self.told = None;
                records.into()
            }
        }
    }
}

fn as_ipfix(record: &v1::FlowRecord) -> Option<Record<'_>> {
    let event = match record.kind() {
        Kind::End => ipfix::FLOW_DELETED,
        Kind::Denied => ipfix::FLOW_DENIED,
        Kind::Begin | Kind::Unspecified => return None,
    };
    let end_reason = match record.reason.as_str() {
        "idle" => 1,
        "closed" => 3,
        "evicted" => 5,
        // What is not over is told as forced, since its sum is.
        _ => 4,
    };
    let interface = match record.nic.is_empty() {
        true => record.peer_nic.as_str(),
        false => record.nic.as_str(),
    };
    Some(Record {
        start_ms: record.start_unix_nanos / 1_000_000,
        end_ms: record.last_unix_nanos / 1_000_000,
        source: record.source.parse().ok()?,
        destination: record.destination.parse().ok()?,
        source_port: record.source_port as u16,
        destination_port: record.destination_port as u16,
        protocol: record.protocol as u8,
        tcp_flags: [record.original_tcp_flags, record.reply_tcp_flags].map(|flags| flags as u8),
        bytes: [record.original_bytes, record.reply_bytes],
        packets: [record.original_frames, record.reply_frames],
        end_reason,
        event,
        vni: record.vni,
        interface,
    })
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    fn ended() -> v1::FlowRecord {
        v1::FlowRecord {
            kind: Kind::End.into(),
            source: "10.0.0.1".into(),
            destination: "10.0.0.2".into(),
            protocol: 6,
            reason: "closed".into(),
            ..Default::default()
        }
    }

    #[test]
    fn the_first_datagram_has_the_templates_and_gaps_are_seen() {
        let listener = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let mut collector = Collector::new(&to.to_string()).unwrap();
        let began = v1::FlowRecord {
            kind: Kind::Begin.into(),
            ..ended()
        };
        assert_eq!(collector.send(&[began]), 0);
        let many: Vec<_> = (0..40).map(|_| ended()).collect();
        assert_eq!(collector.send(&many), 0);
        let mut bytes = [0; 2048];
        let mut next = || {
            let len = listener.recv(&mut bytes).unwrap();
            let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
            (len, word(8), u16::from_be_bytes([bytes[16], bytes[17]]))
        };
        let (len, sequence, set) = next();
        assert!(len <= ipfix::MESSAGE_MAX);
        assert_eq!((sequence, set), (0, 2));
        let (_, sequence, set) = next();
        assert!(sequence > 5, "{sequence}");
        assert_eq!(set, ipfix::TEMPLATES[0]);
        // Nobody listens: what is sent is refused with the next one, and the templates come again.
        drop(listener);
        let lost: u64 = (0..3).map(|_| collector.send(&[ended()])).sum();
        assert_eq!(lost, 2);
        assert!(collector.told.is_none());
    }

    #[test]
    fn a_collector_that_was_started_anew_can_read_the_first_record() {
        let listener = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let mut collector = Collector::new(&to.to_string()).unwrap();
        assert_eq!(collector.send(&[ended()]), 0);
        drop(listener);
        assert_eq!(collector.send(&[ended()]), 0);
        let listener = UdpSocket::bind(to).unwrap();
        assert_eq!(collector.send(&[ended()]), 1, "the one that was refused");
        let next = || {
            let mut bytes = [0; 2048];
            listener.recv(&mut bytes).unwrap();
            let sequence = u32::from_be_bytes(bytes[8..12].try_into().unwrap());
            (sequence, u16::from_be_bytes([bytes[16], bytes[17]]))
        };
        assert_eq!(next(), (2, 2), "templates alone");
        assert_eq!(next(), (2, ipfix::TEMPLATES[0]));
    }

    #[test]
    fn templates_are_due_until_they_are_sent() {
        let listener = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let mut collector = Collector::new(&to.to_string()).unwrap();
        assert_eq!(collector.send(&[ended()]), 0);
        // They fall due between the beginning and the end of one that has none.
        let mut message = collector.begin();
        assert!(message.push(&as_ipfix(&ended()).unwrap()));
        let due = Instant::now().checked_sub(TEMPLATES_EVERY);
        collector.told = due;
        assert_eq!((collector.finish(message), collector.told), (0, due));
        assert!(collector.begin().has_templates());
    }
}
