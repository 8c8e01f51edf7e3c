//! Steps 9 and 10: the rules, for packets of which nothing is known.

use crate::drop_reason::DropReason;
use crate::judge;
use crate::round::{Round, Verdict, owns_source, question};

/// Step 9: may the packet leave its sender?
pub(crate) fn egress(round: &mut Round) {
    round.each_open(|round, _, case| {
        let case = &mut round.cases[case];
        let Some(packet) = &round.items[case.item].packet else {
            return Verdict::Open;
        };
        let Some(ip) = packet.ip() else {
            return Verdict::Open;
        };
        let owned = owns_source(round.nic, packet, ip);
        match judge::egress(round.view, round.nic, &question(ip), owned) {
            Some(grant) => case.egress = grant,
            // Without egress rules it is the address that is wrong.
            None if !round.view.open_to(round.nic.slot).needs_egress => {
                return Verdict::DropFrom(DropReason::ForeignSource);
            }
            None => return Verdict::DropFrom(DropReason::NoEgressRule),
        }
        Verdict::Open
    });
}

/// Step 10: may it enter its target?
pub(crate) fn ingress(round: &mut Round) {
    round.each_open(|round, job, case| {
        let case = &mut round.cases[case];
        let target = round.view.port(round.jobs[job].target);
        let (Some(ip), Some(target)) = (round.items[case.item].ip(), target) else {
            return Verdict::Open;
        };
        match judge::ingress(round.view, target, &question(ip)) {
            Some(grant) => case.ingress = grant,
            None => return Verdict::DropTo(DropReason::NoIngressRule),
        }
        Verdict::Open
    });
}
