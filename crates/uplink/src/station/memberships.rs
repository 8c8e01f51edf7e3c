//! The multicast groups that we hear on a wire where we are a station of our own, and who is told
//! of it when: the host's part of IGMP version 2 (RFC 2236) and MLD version 1 (RFC 2710). Pure: no
//! socket, no clock.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use wire::{Mac, build, membership, nd};

/// A report that was not asked for is repeated after so long, since it may have been lost. General
/// queries are not answered more often than that: answers have ten seconds' time.
const AGAIN: Duration = Duration::from_secs(1);

/// Our groups.
#[derive(Debug)]
pub(super) struct Memberships {
    mac: Mac,
    /// The source of reports of IPv4.
    ours: Ipv4Addr,
    /// Where we are asked for by others, who do not know our MAC yet: the solicited-node groups of
    /// our addresses.
    always: BTreeSet<IpAddr>,
    /// With those.
    groups: BTreeSet<IpAddr>,
    /// When all of them are to be told, by families: that of IPv4 first.
    due: [Option<Instant>; 2],
    /// When they were told last.
    told: [Option<Instant>; 2],
}

impl Memberships {
    pub fn new(mac: Mac, addresses: &[IpAddr]) -> Memberships {
        let v4 = |address: &IpAddr| match *address {
            IpAddr::V4(ip) => Some(ip),
            IpAddr::V6(_) => None,
        };
        let solicited = |address: &IpAddr| match *address {
            IpAddr::V4(_) => None,
            IpAddr::V6(ip) => Some(IpAddr::from(build::solicited_node(ip).0)),
        };
        let always: BTreeSet<IpAddr> = addresses.iter().filter_map(solicited).collect();
        Memberships {
            mac,
            // Without an address of our own that is what is allowed (RFC 4541, section 2.1.1).
            ours: addresses
                .iter()
                .find_map(v4)
                .unwrap_or(Ipv4Addr::UNSPECIFIED),
            groups: always.clone(),
            always,
            due: [None; 2],
            told: [None; 2],
        }
    }

    /// Makes these the groups. Gives what is to be said of it now; that is said once more later.
    pub fn join(&mut self, groups: &BTreeSet<IpAddr>, now: Instant) -> Vec<Vec<u8>> {
        let told = groups.iter().filter(|group| is_told(group));
        let groups: BTreeSet<IpAddr> = told.chain(&self.always).copied().collect();
        let came = groups.difference(&self.groups).inspect(|group| {
            self.due[usize::from(group.is_ipv6())].get_or_insert(now + AGAIN);
        });
        let came = came.map(|group| membership::report(self.mac, self.ours, *group));
        let mut said: Vec<Vec<u8>> = came.collect();
        let went = self.groups.difference(&groups);
        said.extend(went.map(|group| membership::leave(self.mac, self.ours, *group)));
        self.groups = groups;
        said
    }

    /// All of them, when we come.
    pub fn all(&self) -> Vec<Vec<u8>> {
        self.of(|_| true)
    }

    /// A query came for a group, or (unspecified) for all of its family: gives the answer, or the
    /// answers are due now.
    pub fn receive(&mut self, group: IpAddr, now: Instant) -> Option<Vec<u8>> {
        if group.is_unspecified() {
            let family = usize::from(group.is_ipv6());
            let at = self.told[family].map_or(now, |told| now.max(told + AGAIN));
            self.due[family] = Some(self.due[family].map_or(at, |due| due.min(at)));
            return None;
        }
        let ours = self.groups.contains(&group);
        ours.then(|| membership::report(self.mac, self.ours, group))
    }

    /// What is due.
    pub fn take_due(&mut self, now: Instant) -> Vec<Vec<u8>> {
        let due = self.due.map(|at| at.is_some_and(|at| at <= now));
        for family in (0..2).filter(|family| due[*family]) {
            (self.due[family], self.told[family]) = (None, Some(now));
        }
        match due {
            [false, false] => Vec::new(),
            due => self.of(|group| due[usize::from(group.is_ipv6())]),
        }
    }

    fn of(&self, which: impl Fn(&IpAddr) -> bool) -> Vec<Vec<u8>> {
        let groups = self.groups.iter().filter(|group| which(group));
        let report = |group: &IpAddr| membership::report(self.mac, self.ours, *group);
        groups.map(report).collect()
    }
}

/// Whether membership of a group is reported: not of the group of all hosts, nor of those that stay
/// within a host or have no scope (RFC 2236, section 6; RFC 2710, section 5).
fn is_told(group: &IpAddr) -> bool {
    match group {
        IpAddr::V4(ip) => *ip != Ipv4Addr::new(224, 0, 0, 1),
        IpAddr::V6(ip) => ip.octets()[1] & 0x0f >= 2 && *ip != nd::ALL_NODES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = Mac([2, 0xbf, 192, 0, 2, 1]);
    const OURS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

    fn groups(text: &str) -> BTreeSet<IpAddr> {
        text.split_whitespace()
            .map(|group| group.parse().unwrap())
            .collect()
    }

    fn reports(text: &str) -> Vec<Vec<u8>> {
        let groups = groups(text).into_iter();
        groups
            .map(|group| membership::report(MAC, OURS, group))
            .collect()
    }

    #[test]
    fn groups_are_told_twice_when_they_come_and_once_when_they_go() {
        let start = Instant::now();
        let mut ours = Memberships::new(MAC, &[OURS.into()]);
        let said = ours.join(&groups("230.0.0.1 ff0e::1"), start);
        assert_eq!(said, reports("230.0.0.1 ff0e::1"));
        assert_eq!(
            ours.join(&groups("230.0.0.1 ff0e::1"), start),
            [[0u8; 0]; 0]
        );
        assert_eq!(ours.take_due(start + AGAIN / 2), [[0u8; 0]; 0]);
        assert_eq!(ours.take_due(start + AGAIN), reports("230.0.0.1 ff0e::1"));
        assert_eq!(ours.take_due(start + 2 * AGAIN), [[0u8; 0]; 0]);
        let left = membership::leave(MAC, OURS, "230.0.0.1".parse().unwrap());
        let said = ours.join(&groups("230.0.0.2 ff0e::1"), start);
        assert_eq!(said, [reports("230.0.0.2"), vec![left]].concat());
        assert_eq!(
            ours.take_due(start + AGAIN),
            reports("230.0.0.2"),
            "one family changed"
        );
        // Which are no one's to tell of.
        let more = groups("224.0.0.1 230.0.0.2 ff00::2a ff01::1 ff02::1 ff0e::1");
        assert_eq!(ours.join(&more, start), [[0u8; 0]; 0]);
        assert_eq!(ours.all(), reports("230.0.0.2 ff0e::1"));
    }

    #[test]
    fn who_asks_for_all_is_told_all_and_who_asks_for_one_that_one() {
        let start = Instant::now();
        let mut ours = Memberships::new(MAC, &["2001:db8::1".parse().unwrap(), OURS.into()]);
        ours.join(&groups("230.0.0.1 230.0.0.2 ff0e::1"), start);
        ours.take_due(start + AGAIN);
        let now = start + 2 * AGAIN;
        let mut asks = |group: &str| ours.receive(group.parse().unwrap(), now);
        assert_eq!(asks("230.0.0.2"), reports("230.0.0.2").pop());
        assert_eq!(asks("230.0.0.3"), None);
        assert_eq!(asks("ff0e::1"), reports("ff0e::1").pop());
        // Who looks for our address is heard, too.
        assert_eq!(asks("ff02::1:ff00:1"), reports("ff02::1:ff00:1").pop());
        assert_eq!(asks("0.0.0.0"), None);
        assert_eq!(ours.take_due(now), reports("230.0.0.1 230.0.0.2"));
        assert_eq!(ours.receive("::".parse().unwrap(), now), None);
        assert_eq!(ours.take_due(now), reports("ff02::1:ff00:1 ff0e::1"));
        assert_eq!(ours.take_due(now), [[0u8; 0]; 0]);
        // Who asks all the time is told every second.
        for _ in 0..3 {
            assert_eq!(ours.receive("0.0.0.0".parse().unwrap(), now), None);
            assert_eq!(ours.take_due(now + AGAIN / 2), [[0u8; 0]; 0]);
        }
        assert_eq!(ours.take_due(now + AGAIN), reports("230.0.0.1 230.0.0.2"));
    }
}
