//! Beside the steps: where connections are logged, what was refused is told.

use wire::parse::protocol::{TCP, UDP};

use crate::drop_reason::DropReason;
use crate::flow::{Key, Log, Party, Refused, Seen, Side};
use crate::round::{Round, Verdict};
use crate::time::Now;

/// Notes a packet that was refused on the fast path, and of which flow it would be.
#[cold]
pub(crate) fn denied_flow(log: &mut Log, key: &Key, seen: &Seen, reason: DropReason, now: Now) {
    let end = |side: Side, port| Party {
        uid: key.uid(side),
        address: key.address(side),
        port,
    };
    let to = 1 - seen.side;
    let has_ports = matches!(key.protocol(), TCP | UDP);
    let what = Refused {
        from: end(seen.side, 0),
        to: end(to, if has_ports { key.port(to) } else { 0 }),
        protocol: key.protocol(),
        reason,
    };
    log.denied(what, seen.len, now);
}

/// Notes each packet that a step before has refused to bring to a target.
#[cold]
pub(crate) fn denied(round: &mut Round) {
    for job in round.jobs.iter() {
        let (Verdict::DropFrom(reason) | Verdict::DropTo(reason)) = job.verdict else {
            continue;
        };
        let Some(case) = round.cases.get(job.case as usize) else {
            continue;
        };
        let item = &round.items[case.item];
        let (Some(ip), Some(target)) = (item.ip(), round.view.port(job.target)) else {
            continue;
        };
        let what = Refused {
            from: Party {
                uid: round.nic.uid,
                address: ip.src(),
                port: 0,
            },
            to: Party {
                uid: target.uid,
                address: ip.dst(),
                port: ip.l4_info.ports().map_or(0, |(_, to)| to),
            },
            protocol: ip.protocol,
            reason,
        };
        let bytes = round.batch.frames()[item.frame].len();
        if let Some(log) = &mut round.tables.flows.log {
            log.denied(what, bytes, round.now);
        }
    }
}
