//! Beside the steps: where connections are logged, what was refused is told.

use crate::flow::{Endpoint, Refused};
use crate::round::{Round, Verdict};

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
            from: Endpoint {
                uid: round.nic.uid,
                address: ip.src(),
                port: 0,
            },
            to: Endpoint {
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
