//! Steps 7 and 8: the rules, for packets of which nothing is known.

use crate::drop_reason::DropReason;
use crate::judge;
use crate::round::{Round, Verdict, owns_source, question};

/// Step 7: may the packet leave its sender?
pub(crate) fn egress(round: &mut Round) {
    for job in round.jobs.iter_mut().filter(|job| job.verdict == Verdict::Open) {
        let Some(packet) = &round.items[job.frame].packet else {
            continue;
        };
        let Some(ip) = packet.ip() else { continue };
        let owned = owns_source(round.nic, packet, ip);
        match judge::egress(round.view, round.nic, &question(ip), owned) {
            Some(grant) => job.egress = grant,
            None => job.verdict = Verdict::DropFrom(DropReason::NoEgressRule),
        }
    }
}

/// Step 8: may it enter its target?
pub(crate) fn ingress(round: &mut Round) {
    for job in round.jobs.iter_mut().filter(|job| job.verdict == Verdict::Open) {
        let (Some(ip), Some(target)) = (round.items[job.frame].ip(), round.view.port(job.target)) else {
            continue;
        };
        match judge::ingress(round.view, target, &question(ip)) {
            Some(grant) => job.ingress = grant,
            None => job.verdict = Verdict::DropTo(DropReason::NoIngressRule),
        }
    }
}
