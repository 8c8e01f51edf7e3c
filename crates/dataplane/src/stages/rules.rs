//! Steps 9 and 10: the rules, for packets of which nothing is known.

use crate::drop_reason::DropReason;
use crate::judge::{self, Grant, Question};
use crate::round::{Round, Verdict, owns_source, question};
use crate::snapshot::PortConfig;
use crate::view::View;

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
        let looked = &mut round.tables.looked;
        match may_leave(round.view, round.nic, &question(ip), owned, looked) {
            Ok(grant) => case.egress = grant,
            Err(reason) => return Verdict::DropFrom(reason),
        }
        Verdict::Open
    });
}

/// What the sender's rules say of a packet; `owned`: from an address of its own.
#[inline]
pub(crate) fn may_leave(
    view: &View,
    nic: &PortConfig,
    question: &Question,
    owned: bool,
    looked: &mut u64,
) -> Result<Grant, DropReason> {
    judge::egress(view, nic, question, owned, looked).ok_or_else(|| {
        // Without egress rules it is the address that is wrong.
        match view.open_to(nic.slot).needs_egress {
            false => DropReason::ForeignSource,
            true => DropReason::NoEgressRule,
        }
    })
}

/// Step 10: may it enter its target?
pub(crate) fn ingress(round: &mut Round) {
    round.each_open(|round, job, case| {
        let case = &mut round.cases[case];
        let target = round.view.port(round.jobs[job].target);
        let (Some(ip), Some(target)) = (round.items[case.item].ip(), target) else {
            return Verdict::Open;
        };
        let looked = &mut round.tables.looked;
        match judge::ingress(round.view, target, &question(ip), looked) {
            Some(grant) => case.ingress = grant,
            None => return Verdict::DropTo(DropReason::NoIngressRule),
        }
        Verdict::Open
    });
}
