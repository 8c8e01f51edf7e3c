//! Steps 9 and 10: the rules, for packets of which nothing is known.

use crate::drop_reason::DropReason;
use crate::judge::{self, Grant, Question};
use crate::round::{Round, Verdict, owns_source, question};
use crate::ruleset::Direction;
use crate::searches::Searches;
use crate::snapshot::PortConfig;
use crate::view::View;

/// Step 9: may the packet leave its sender? It is one question, whoever is to get it.
pub(crate) fn egress(round: &mut Round) {
    round.begin_step();
    let mut last = None;
    round.each_open(|round, _, case| {
        let item = round.cases[case].item;
        let answer = match last {
            Some((of, answer)) if of == item => answer,
            _ => leave(round, item),
        };
        last = Some((item, answer));
        match answer {
            Ok(grant) => {
                round.cases[case].egress = grant;
                Verdict::Open
            }
            Err(verdict) => verdict,
        }
    });
}

/// What an item's sender may, or what becomes of the item.
#[inline]
fn leave(round: &mut Round, item: usize) -> Result<Grant, Verdict> {
    let (view, nic) = (round.view, round.nic);
    let Some(packet) = &round.items[item].packet else {
        return Err(Verdict::Open);
    };
    let Some(ip) = packet.ip() else {
        return Err(Verdict::Open);
    };
    let owned = owns_source(nic, packet, ip);
    let searches = &mut round.tables.searches;
    let most = || judge::most_looks(view, nic, Direction::Egress);
    if judge::is_egress_asked(view, nic, owned) && !searches.may_ask(item, most) {
        return Err(Verdict::Late);
    }
    may_leave(view, nic, &question(ip), owned, searches).map_err(Verdict::DropFrom)
}

/// What the sender's rules say of a packet; `owned`: from an address of its own.
#[inline]
pub(crate) fn may_leave(
    view: &View,
    nic: &PortConfig,
    question: &Question,
    owned: bool,
    searches: &mut Searches,
) -> Result<Grant, DropReason> {
    judge::egress(view, nic, question, owned, searches).ok_or_else(|| {
        // Without egress rules it is the address that is wrong.
        match view.open_to(nic.slot).needs_egress {
            false => DropReason::ForeignSource,
            true => DropReason::NoEgressRule,
        }
    })
}

/// Step 10: may it enter its target?
pub(crate) fn ingress(round: &mut Round) {
    round.begin_step();
    round.each_open(|round, job, case| {
        let case = &mut round.cases[case];
        let view = round.view;
        let target = view.port(round.jobs[job].target);
        let (Some(ip), Some(target)) = (round.items[case.item].ip(), target) else {
            return Verdict::Open;
        };
        let searches = &mut round.tables.searches;
        let most = || judge::most_looks(view, target, Direction::Ingress);
        if judge::is_ingress_asked(target) && !searches.may_ask(case.item, most) {
            return Verdict::Late;
        }
        match judge::ingress(view, target, &question(ip), searches) {
            Some(grant) => case.ingress = grant,
            None => return Verdict::DropTo(DropReason::NoIngressRule),
        }
        Verdict::Open
    });
}
