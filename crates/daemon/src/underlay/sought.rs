//! Whom there are next hops to be found to: those whom the model names, and those whom workers have
//! asked for; and what is kept of each meanwhile.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::Instant;

use control::model::is_of_one_host;
use control::{Reach, limits};
use netlink::Resolution;

use super::WAIT;

#[derive(Default)]
pub struct Sought {
    /// Learnt addresses that are to be reached, oldest first, and the same to look them up.
    learnt: VecDeque<IpAddr>,
    is_learnt: BTreeSet<IpAddr>,
    /// Addresses that frames wanted to go to lately, and when one did last.
    looked: BTreeMap<IpAddr, Instant>,
    /// What the kernel said of each, while no route may have changed.
    pub routes: BTreeMap<IpAddr, Resolution>,
}

impl Sought {
    /// Notes what workers ask for. True when any of it was not asked for a moment ago.
    pub fn ask(&mut self, wanted: &[IpAddr], reach: &Reach, now: Instant) -> bool {
        let mut is_news = false;
        for address in wanted {
            is_news |= self.looked.insert(*address, now).is_none();
            let told = reach.hosts.contains(address) || reach.groups.contains(address);
            if !told && is_of_one_host(*address) && self.is_learnt.insert(*address) {
                self.learnt.push_back(*address);
            }
        }
        while self.learnt.len() > limits::HOSTS {
            if let Some(oldest) = self.learnt.pop_front() {
                self.is_learnt.remove(&oldest);
            }
        }
        is_news
    }

    /// All who are to be reached, but for groups. Of others nothing is kept any more.
    pub fn targets(&mut self, reach: &Reach) -> BTreeSet<IpAddr> {
        let named = reach.hosts.iter().copied();
        let targets: BTreeSet<IpAddr> = named.chain(self.learnt.iter().copied()).collect();
        self.routes.retain(|target, _| targets.contains(target));
        self.looked
            .retain(|address, _| targets.contains(address) || reach.groups.contains(address));
        targets
    }

    /// Learnt ones that are not `found` and that no frame wanted to go to lately are asked for no
    /// more, until one wants to: who forges sources has no neighbours looked for without end.
    pub fn forget_missing(&mut self, found: impl Fn(&IpAddr) -> bool, now: Instant) {
        let lately = |noted: &Instant| now.duration_since(*noted) < WAIT;
        let is_learnt = &mut self.is_learnt;
        let looked = &self.looked;
        self.learnt.retain(|address| {
            let stays = found(address) || looked.get(address).is_some_and(lately);
            if !stays {
                is_learnt.remove(address);
            }
            stays
        });
    }

    /// Those whom frames may wait for still.
    pub fn looked_for(&mut self, now: Instant) -> impl Iterator<Item = &IpAddr> {
        self.looked
            .retain(|_, noted| now.duration_since(*noted) < WAIT);
        self.looked.keys()
    }
}

#[cfg(test)]
mod tests {
    use netlink::RouteKind;

    use super::*;

    fn host(n: usize) -> IpAddr {
        IpAddr::from((0x0a00_0000 + n as u32).to_be_bytes())
    }

    fn resolution() -> Resolution {
        Resolution {
            kind: RouteKind::Unicast,
            table: 254,
            prefix: "0.0.0.0/0".parse().unwrap(),
            hops: Vec::new(),
            source: None,
            mtu: None,
        }
    }

    #[test]
    fn of_who_is_not_to_be_reached_any_more_nothing_is_kept() {
        let (mut sought, now) = (Sought::default(), Instant::now());
        let group = IpAddr::from([230, 0, 0, 1]);
        let mut reach = Reach::default();
        reach.hosts.insert(host(0));
        reach.groups.insert(group);
        assert!(sought.ask(&[host(0), group], &reach, now));
        assert!(!sought.ask(&[host(0), group], &reach, now), "twice");
        assert!(sought.learnt.is_empty(), "they are told of");
        assert_eq!(sought.targets(&reach), [host(0)].into());

        // More are heard of than can be kept, some of them again and again.
        let most = limits::HOSTS;
        for n in 1..=2 * most {
            assert!(sought.ask(&[host(n), host(n)], &reach, now));
            sought.routes.insert(host(n), resolution());
        }
        let kept: BTreeSet<IpAddr> = (most + 1..=2 * most).map(host).collect();
        let targets: BTreeSet<IpAddr> = kept.iter().copied().chain([host(0)]).collect();
        assert_eq!(sought.targets(&reach), targets);
        assert_eq!(sought.is_learnt, kept);
        assert!(sought.routes.keys().eq(&kept));
        assert!(sought.looked.keys().eq(targets.iter().chain([&group])));

        // Nobody waits for them any more; a host is taken out of the model.
        reach.hosts.clear();
        sought.targets(&reach);
        assert_eq!(sought.looked_for(now).count(), most + 1);
        assert_eq!(sought.looked_for(now + WAIT).count(), 0);
    }

    /// Frames of forged sources, one after the other, of hosts that are not there.
    #[test]
    fn who_is_not_there_is_not_asked_for_without_end() {
        let (mut sought, now) = (Sought::default(), Instant::now());
        let reach = Reach::default();
        sought.ask(&[host(1), host(2)], &reach, now);
        let there = |address: &IpAddr| *address == host(2);
        sought.forget_missing(there, now);
        assert_eq!(sought.targets(&reach), [host(1), host(2)].into());
        sought.forget_missing(there, now + WAIT);
        assert_eq!(sought.targets(&reach), [host(2)].into());
        // A frame wants to go to it again.
        assert!(sought.ask(&[host(1)], &reach, now + WAIT));
        assert_eq!(sought.targets(&reach), [host(1), host(2)].into());

        for no_host in [
            "0.0.0.0",
            "127.0.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "ff02::1",
        ] {
            sought.ask(&[no_host.parse().unwrap()], &reach, now + WAIT);
        }
        assert_eq!(sought.targets(&reach), [host(1), host(2)].into());
    }
}
