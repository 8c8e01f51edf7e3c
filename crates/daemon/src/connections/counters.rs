//! What a NIC has counted, as a message: for the host to which it migrates.

use std::collections::BTreeSet;

use api::v1;
use control::NicStats;
use dataplane::counters::PortCounters;
use dataplane::drop_reason::{DropReason, REASONS};

/// All that it has counted.
pub fn outgoing(stats: &NicStats) -> v1::ExportedCounters {
    let drops = |drops: &[(DropReason, u64)]| {
        let each = drops.iter().map(|(reason, frames)| v1::ExportedDrops {
            reason: reason.name().into(),
            frames: *frames,
        });
        each.collect()
    };
    v1::ExportedCounters {
        frames_out: stats.frames_out,
        bytes_out: stats.bytes_out,
        kernel_out: stats.kernel_out,
        frames_in: stats.frames_in,
        bytes_in: stats.bytes_in,
        drops_out: drops(&stats.drops_out),
        drops_in: drops(&stats.drops_in),
    }
}

/// `None` for counts that no NIC has. Reasons of another version's are left out.
pub fn incoming(counted: v1::ExportedCounters) -> Option<PortCounters> {
    let counters = PortCounters {
        rx_frames: counted.frames_out,
        rx_bytes: counted.bytes_out,
        tx_frames: counted.frames_in,
        tx_bytes: counted.bytes_in,
        kernel_frames: counted.kernel_out,
        drops_from: by_reason(&counted.drops_out)?,
        drops_to: by_reason(&counted.drops_in)?,
    };
    counters.can_be().then_some(counters)
}

/// `None`: one comes twice.
fn by_reason(drops: &[v1::ExportedDrops]) -> Option<[u64; REASONS]> {
    let mut counts = [0; REASONS];
    let mut seen = BTreeSet::new();
    for one in drops {
        if !seen.insert(&*one.reason) {
            return None;
        }
        let mut all = DropReason::ALL.iter();
        if let Some(reason) = all.find(|reason| reason.name() == one.reason) {
            counts[*reason as usize] = one.frames;
        }
    }
    Some(counts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    fn stats() -> NicStats {
        NicStats {
            id: control::model::NicId::new("vm1").unwrap(),
            frames_out: 3,
            bytes_out: 300,
            kernel_out: 1,
            frames_in: 4,
            bytes_in: 500,
            drops_out: vec![(DropReason::ALL[0], 6)],
            drops_in: vec![(DropReason::ALL[1], 7), (DropReason::ALL[REASONS - 1], 8)],
            waits_out: 9,
            wait_out_ns: 10,
            mirrored: None,
        }
    }

    #[test]
    fn what_was_counted_comes_as_it_went() {
        let mut expected = PortCounters {
            rx_frames: 3,
            rx_bytes: 300,
            tx_frames: 4,
            tx_bytes: 500,
            kernel_frames: 1,
            ..PortCounters::default()
        };
        expected.drops_from[0] = 6;
        (expected.drops_to[1], expected.drops_to[REASONS - 1]) = (7, 8);
        assert_eq!(incoming(outgoing(&stats())), Some(expected));
    }

    /// Hosts of several versions read it: a number that means something stays.
    #[test]
    fn its_bytes_are_those_of_every_version() {
        let counted = v1::ExportedCounters {
            drops_out: vec![v1::ExportedDrops {
                reason: "a".into(),
                frames: 6,
            }],
            drops_in: vec![v1::ExportedDrops {
                reason: "b".into(),
                frames: 7,
            }],
            ..outgoing(&stats())
        };
        let exported = v1::ExportedConnections {
            version: 1,
            nic: "vm1".into(),
            vni: 42,
            connections: vec![],
            counters: Some(counted),
        };
        let expected = b"\x08\x01\x12\x03vm1\x18\x2a\x2a\x1a\x08\x03\x10\xac\x02\x18\x01\x20\x04\
                         \x28\xf4\x03\x32\x05\x0a\x01a\x10\x06\x3a\x05\x0a\x01b\x10\x07";
        assert_eq!(exported.encode_to_vec(), expected);
    }

    #[test]
    fn counts_that_cannot_be_are_none() {
        let good = outgoing(&stats());
        let bad: [fn(&mut v1::ExportedCounters); 5] = [
            |c| c.kernel_out = c.frames_out + 1,
            |c| c.frames_in = u64::MAX,
            |c| c.bytes_out = 1 << 62,
            |c| c.drops_in[0].frames = 1 << 63,
            |c| c.drops_out.push(c.drops_out[0].clone()),
        ];
        for change in bad {
            let mut counted = good.clone();
            change(&mut counted);
            assert_eq!(incoming(counted.clone()), None, "{counted:?}");
        }
        let mut other = good.clone();
        other.drops_in[0].reason = "of a later version".into();
        let taken = incoming(other).unwrap();
        assert_eq!((taken.drops_to[1], taken.drops_to[REASONS - 1]), (0, 8));
    }
}
