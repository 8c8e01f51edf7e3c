//! One family's forwarding table: which spec each prefix has, and what of it is in the program's
//! tries.
//!
//! The kernel tries its tables one after the other; a trie knows only prefixes. So a prefix of a
//! table is shown if no table before it has anything for it, and a change of a table that others
//! stand behind is a change of all that lies under the prefix ([`Fib::refresh_under`]). A neighbour
//! on a connected network is shown as a prefix of its own, one address long.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use imbl::ordmap::DiffItem;
use ipnet::IpNet;
use netlink::{Family, RouteKey, RouteSet, Snapshot};
use xdp::Table;

use crate::layout::TRIE6_BITS;
use crate::paths::{Key, Paths, Reach};
use crate::plan::Plan;
use crate::spec::{Spec, Via};
use crate::trie::Trie;

/// The highest bits of an address and how many of them count. IPv4's are at the top as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    /// The rest is zero.
    pub bits: u128,
    /// How many.
    pub len: u8,
}

impl Prefix {
    /// The prefix that the kernel's tables write so.
    pub fn from_net(net: IpNet) -> Prefix {
        match net {
            IpNet::V4(net) => Prefix {
                bits: u128::from(u32::from(net.addr())) << 96,
                len: net.prefix_len(),
            },
            IpNet::V6(net) => Prefix {
                bits: u128::from(net.addr()),
                len: net.prefix_len(),
            },
        }
    }

    /// One address.
    pub fn host(ip: IpAddr) -> Prefix {
        match ip {
            IpAddr::V4(ip) => Prefix {
                bits: u128::from(u32::from(ip)) << 96,
                len: 32,
            },
            IpAddr::V6(ip) => Prefix {
                bits: u128::from(ip),
                len: 128,
            },
        }
    }

    /// The first `len` bits of it.
    pub fn cut(self, len: u8) -> Prefix {
        let bits = if len == 0 {
            0
        } else {
            self.bits >> (128 - len) << (128 - len)
        };
        Prefix { bits, len }
    }

    fn covers(self, other: Prefix) -> bool {
        other.len >= self.len && other.cut(self.len) == self
    }

    fn address(bits: u128, family: Family) -> IpAddr {
        match family {
            Family::V4 => IpAddr::V4(Ipv4Addr::from((bits >> 96) as u32)),
            Family::V6 => IpAddr::V6(Ipv6Addr::from(bits)),
        }
    }
}

/// The single addresses of a /64, and prefixes longer than it.
#[derive(Debug, Default)]
struct Singles {
    hosts: u32,
    wide: u32,
    /// The path of the route for the /64 itself, if there is one.
    own: Option<u32>,
}

/// From so many changes on all neighbours are refreshed, without a look which of them are
/// concerned.
const MANY: usize = 64;

/// The table of one family.
#[derive(Debug)]
pub struct Fib {
    family: Family,
    bits: u8,
    trie: Trie,
    /// What is in the trie.
    shown: HashMap<Prefix, u32>,
    /// How many prefixes of each length are in `shown`.
    lengths: [u32; 129],
    /// IPv6 only: single addresses, in the program's map and here.
    hosts: Option<Table<[u8; 16], u32>>,
    host_paths: HashMap<Prefix, u32>,
    wide: HashMap<Prefix, u32>,
    singles: HashMap<u128, Singles>,
    /// By table: how many prefixes of each length it has.
    tables: HashMap<u32, [u32; 129]>,
    /// How many routes have each MTU of their own.
    mtus: BTreeMap<u32, u32>,
    /// Prefixes with a throw route in some table: what they show is another's.
    throws: BTreeSet<Prefix>,
    /// A path or a single address did not fit: the kernel looks up until the next rebuild.
    overflown: bool,
    /// The trie has no room for what has changed: the kernel looks up until it has.
    behind: bool,
}

/// What the fib is made from.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// The kernel's tables.
    pub snapshot: &'a Snapshot,
    /// Which of them, in which order.
    pub plan: &'a Plan,
}

impl Fib {
    /// An empty one. IPv6 has `hosts`.
    pub fn new(family: Family, trie: Trie, hosts: Option<Table<[u8; 16], u32>>) -> Fib {
        Fib {
            family,
            bits: if family == Family::V4 { 32 } else { 128 },
            trie,
            shown: HashMap::new(),
            lengths: [0; 129],
            hosts,
            host_paths: HashMap::new(),
            wide: HashMap::new(),
            singles: HashMap::new(),
            tables: HashMap::new(),
            mtus: BTreeMap::new(),
            throws: BTreeSet::new(),
            overflown: false,
            behind: false,
        }
    }

    /// Whether this is the table of IPv4.
    pub fn is_v4(&self) -> bool {
        self.family == Family::V4
    }

    /// Prefixes that the program knows, and the lines of the trie that they take of how many.
    pub fn usage(&self) -> (usize, usize, usize) {
        let (used, all) = self.trie.usage();
        (self.shown.len() + self.host_paths.len(), used, all)
    }

    /// Now and then: see [`Trie::rest`]. What found no room before may find it now.
    pub fn rest(&mut self) {
        self.trie.rest();
        self.flush();
    }

    /// Writes what has changed to the program's tables.
    pub fn flush(&mut self) {
        self.behind = self.trie.flush().is_err();
    }

    /// Not everything is in the program's tables: the kernel has to look up.
    pub fn is_full(&self) -> bool {
        self.overflown || self.behind
    }

    /// The keys between two snapshots that differ, as prefixes of tables. Keeps count of the
    /// tables' lengths.
    pub fn changes(&mut self, old: &Snapshot, new: &Snapshot) -> Vec<(u32, Prefix)> {
        let mut changed = Vec::new();
        for change in old.routes.diff(&new.routes) {
            let (key, before, after) = match change {
                DiffItem::Add(key, after) => (key, None, Some(after)),
                DiffItem::Remove(key, before) => (key, Some(before), None),
                DiffItem::Update {
                    old: (_, before),
                    new: (key, after),
                } => (key, Some(before), Some(after)),
            };
            if Family::of(key.dst.addr()) != self.family {
                continue;
            }
            self.count_mtus(before, -1);
            self.count_mtus(after, 1);
            let by = i32::from(after.is_some()) - i32::from(before.is_some());
            let prefix = Prefix::from_net(key.dst);
            let lengths = self.tables.entry(key.table).or_insert([0; 129]);
            let count = &mut lengths[usize::from(prefix.len)];
            *count = count.saturating_add_signed(by);
            changed.push((key.table, prefix));
        }
        changed
    }

    fn count_mtus(&mut self, set: Option<&std::sync::Arc<RouteSet>>, by: i32) {
        for mtu in set
            .iter()
            .flat_map(|set| &set.routes)
            .filter_map(|route| route.mtu)
        {
            let count = self.mtus.entry(mtu).or_default();
            *count = count.saturating_add_signed(by);
            if *count == 0 {
                self.mtus.remove(&mtu);
            }
        }
    }

    /// The smallest MTU of any route.
    pub fn smallest_mtu(&self) -> u32 {
        self.mtus.keys().next().copied().unwrap_or(u32::MAX)
    }

    /// Brings what is shown for a changed prefix of a table up to date, and what lies under it
    /// where that matters.
    pub fn refresh_changed(
        &mut self,
        changed: &[(u32, Prefix)],
        source: Source,
        paths: &mut Paths,
        reach: &impl Reach,
    ) {
        for (table, prefix) in changed {
            let Some(at) = source.plan.tables.iter().position(|listed| listed == table) else {
                continue;
            };
            let behind = source.plan.tables[at + 1..]
                .iter()
                .any(|table| !self.is_empty(*table));
            if behind && prefix.len < self.bits {
                self.refresh_under(*prefix, source, paths, reach);
            } else {
                self.refresh(*prefix, source, paths, reach);
            }
        }
        if !changed.is_empty() {
            for prefix in self.throws.clone() {
                self.refresh(prefix, source, paths, reach);
            }
        }
        if changed.iter().any(|(_, prefix)| prefix.len < self.bits) {
            self.refresh_neighbours(changed, source, paths, reach);
        }
    }

    /// All prefixes of all tables of the plan, and those shown that are in none any more.
    pub fn refresh_all(&mut self, source: Source, paths: &mut Paths, reach: &impl Reach) {
        self.overflown = false;
        self.refresh_under(Prefix { bits: 0, len: 0 }, source, paths, reach);
        for host in self.neighbours_of(source.snapshot) {
            self.refresh(host, source, paths, reach);
        }
    }

    /// This family's neighbours, as prefixes of one address.
    fn neighbours_of(&self, snapshot: &Snapshot) -> BTreeSet<Prefix> {
        let all = snapshot
            .neighbours
            .keys()
            .filter(|(_, ip)| Family::of(*ip) == self.family);
        all.map(|(_, ip)| Prefix::host(*ip)).collect()
    }

    fn is_empty(&self, table: u32) -> bool {
        self.tables
            .get(&table)
            .is_none_or(|lengths| lengths.iter().all(|count| *count == 0))
    }

    /// A prefix and all longer ones under it.
    pub fn refresh_under(
        &mut self,
        prefix: Prefix,
        source: Source,
        paths: &mut Paths,
        reach: &impl Reach,
    ) {
        let mut under: BTreeSet<Prefix> = BTreeSet::from([prefix]);
        let first = Prefix::address(prefix.bits, self.family);
        let rest = u128::MAX.checked_shr(u32::from(prefix.len)).unwrap_or(0);
        let last = Prefix::address(prefix.bits | rest, self.family);
        for table in &source.plan.tables {
            let net = |ip, len| IpNet::new(ip, len).ok();
            let (Some(low), Some(high)) = (net(first, prefix.len), net(last, self.bits)) else {
                continue;
            };
            let low = RouteKey {
                table: *table,
                dst: low,
                tos: 0,
                metric: 0,
            };
            let high = RouteKey {
                table: *table,
                dst: high,
                tos: u8::MAX,
                metric: u32::MAX,
            };
            let keys = source
                .snapshot
                .routes
                .range(low..=high)
                .map(|(key, _)| Prefix::from_net(key.dst));
            under.extend(keys.filter(|found| prefix.covers(*found)));
        }
        let shown = self
            .shown
            .keys()
            .chain(self.host_paths.keys())
            .chain(self.wide.keys());
        under.extend(shown.filter(|shown| prefix.covers(**shown)));
        for prefix in under {
            self.refresh(prefix, source, paths, reach);
        }
    }

    /// Neighbours under a changed prefix: what their network is may have changed.
    fn refresh_neighbours(
        &mut self,
        changed: &[(u32, Prefix)],
        source: Source,
        paths: &mut Paths,
        reach: &impl Reach,
    ) {
        let mut hosts = self.neighbours_of(source.snapshot);
        // Among many changes each neighbour is under some.
        if changed.len() <= MANY {
            hosts.retain(|host| changed.iter().any(|(_, prefix)| prefix.covers(*host)));
        }
        for host in hosts {
            self.refresh(host, source, paths, reach);
        }
    }

    /// Works out anew what one prefix shows.
    pub fn refresh(
        &mut self,
        prefix: Prefix,
        source: Source,
        paths: &mut Paths,
        reach: &impl Reach,
    ) {
        let mut spec = self.effective(prefix, source);
        if spec.is_none() && prefix.len == self.bits {
            spec = self.neighbour(prefix, source, paths);
        }
        let path = match spec.map(|spec| paths.acquire(&Key { spec, hosts: false }, reach)) {
            None => None,
            Some(Ok(path)) => Some(path),
            Some(Err(_)) => {
                self.overflown = true;
                None
            }
        };
        self.set(prefix, path, paths, reach);
    }

    /// What the kernel's tables say of exactly this prefix; `None` if it shows nothing of its own.
    fn effective(&mut self, prefix: Prefix, source: Source) -> Option<Spec> {
        let mut thrown = false;
        for table in &source.plan.tables {
            let Some((len, spec)) = self.match_in(*table, prefix, source.snapshot) else {
                continue;
            };
            match spec {
                // Thrown to the tables behind: what they say of it is its own then.
                None => thrown |= len == prefix.len,
                Some(spec) if len == prefix.len || thrown => {
                    if thrown {
                        self.throws.insert(prefix);
                    }
                    return Some(spec);
                }
                // A shorter prefix of a table before hides it.
                Some(_) => return None,
            }
        }
        if thrown {
            self.throws.insert(prefix);
            return Some(Spec::Pass(crate::layout::Counter::NoRoute));
        }
        self.throws.remove(&prefix);
        None
    }

    /// The longest match of a prefix in one table: its length, and what it asks for (`None`:
    /// throw).
    pub(crate) fn match_in(
        &self,
        table: u32,
        prefix: Prefix,
        snapshot: &Snapshot,
    ) -> Option<(u8, Option<Spec>)> {
        let lengths = self.tables.get(&table)?;
        for len in (0..=prefix.len)
            .rev()
            .filter(|len| lengths[usize::from(*len)] > 0)
        {
            let dst = IpNet::new(Prefix::address(prefix.cut(len).bits, self.family), len).ok()?;
            let low = RouteKey {
                table,
                dst,
                tos: 0,
                metric: 0,
            };
            let high = RouteKey {
                table,
                dst,
                tos: u8::MAX,
                metric: u32::MAX,
            };
            let sets = snapshot
                .routes
                .range(low..=high)
                .map(|(key, set)| (key.tos, &**set));
            let sets: Vec<(u8, &RouteSet)> = sets.collect();
            if !sets.is_empty() {
                return Some((len, Spec::of(&sets, self.family, snapshot)));
            }
        }
        None
    }

    /// A neighbour whose network is connected by the interface that it is known on.
    fn neighbour(&self, host: Prefix, source: Source, paths: &Paths) -> Option<Spec> {
        let Spec::OnLink { ifindex, mtu } = self.longest(host, self.bits - 1, paths)? else {
            return None;
        };
        let ip = Prefix::address(host.bits, self.family);
        let known = source.snapshot.neighbour(ifindex, ip)?;
        let members = vec![Via {
            ifindex,
            neighbour: ip,
            weight: 1,
        }];
        known.is_valid().then_some(Spec::Via { members, mtu })
    }

    /// What the longest route of at most `len` bits says of an address.
    fn longest(&self, host: Prefix, len: u8, paths: &Paths) -> Option<Spec> {
        for len in (0..=len).rev() {
            let cut = host.cut(len);
            let path = self.route_path(cut);
            if let Some(path) = path {
                return paths.key(path).map(|key| key.spec.clone());
            }
        }
        None
    }

    /// The path of exactly this prefix, if the program knows it: a route's, or a neighbour's.
    pub fn path(&self, prefix: Prefix) -> Option<u32> {
        if self.family == Family::V6 && prefix.len == self.bits {
            return self.host_paths.get(&prefix).copied();
        }
        self.route_path(prefix)
    }

    /// The path of a prefix's own route.
    fn route_path(&self, prefix: Prefix) -> Option<u32> {
        if self.family == Family::V4 || prefix.len < TRIE6_BITS {
            if self.lengths[usize::from(prefix.len)] == 0 {
                return None;
            }
            return self.shown.get(&prefix).copied();
        }
        if prefix.len > TRIE6_BITS {
            return self.wide.get(&prefix).copied();
        }
        match self.singles.get(&prefix.bits) {
            Some(singles) => singles.own,
            None => self.shown.get(&prefix).copied(),
        }
    }

    /// Makes a prefix have a path, held by the caller, or none.
    fn set(&mut self, prefix: Prefix, path: Option<u32>, paths: &mut Paths, reach: &impl Reach) {
        if self.family == Family::V4 || prefix.len < TRIE6_BITS {
            self.show(prefix, path, paths);
            if self.family == Family::V6 {
                let under = self.singles.keys().map(|bits| Prefix {
                    bits: *bits,
                    len: TRIE6_BITS,
                });
                let under: Vec<Prefix> = under.filter(|single| prefix.covers(*single)).collect();
                for single in under {
                    self.show_singles(single, paths, reach);
                }
            }
            return;
        }
        let network = prefix.cut(TRIE6_BITS);
        if prefix.len == TRIE6_BITS {
            let Some(singles) = self.singles.get_mut(&network.bits) else {
                return self.show(prefix, path, paths);
            };
            if let Some(old) = std::mem::replace(&mut singles.own, path) {
                paths.release(old);
            }
        } else {
            let map = if prefix.len == 128 {
                &mut self.host_paths
            } else {
                &mut self.wide
            };
            let old = match path {
                Some(path) => map.insert(prefix, path),
                None => map.remove(&prefix),
            };
            if prefix.len == 128 {
                self.set_host(prefix, path);
            }
            self.count_single(
                prefix,
                i32::from(path.is_some()) - i32::from(old.is_some()),
                paths,
            );
            if let Some(old) = old {
                paths.release(old);
            }
        }
        self.show_singles(network, paths, reach);
    }

    /// A single address in the program's map.
    fn set_host(&mut self, host: Prefix, path: Option<u32>) {
        let Some(hosts) = &self.hosts else {
            return;
        };
        let key = host.bits.to_be_bytes();
        let done = match path {
            Some(path) => hosts.set(&key, &path),
            None => hosts.remove(&key).map(drop),
        };
        self.overflown |= done.is_err();
    }

    fn count_single(&mut self, prefix: Prefix, by: i32, paths: &mut Paths) {
        let network = prefix.cut(TRIE6_BITS);
        let own = self.shown.get(&network).copied();
        let singles = self.singles.entry(network.bits).or_insert_with(|| {
            // What the /64's route has is kept here from now on; the trie shows something else.
            own.inspect(|path| paths.hold(*path));
            Singles {
                own,
                ..Singles::default()
            }
        });
        let count = if prefix.len == 128 {
            &mut singles.hosts
        } else {
            &mut singles.wide
        };
        *count = count.saturating_add_signed(by);
    }

    /// Shows a /64 that has single addresses: what covers it, with a note that the map of hosts
    /// comes first.
    fn show_singles(&mut self, network: Prefix, paths: &mut Paths, reach: &impl Reach) {
        let Some(singles) = self.singles.get(&network.bits) else {
            return;
        };
        let (hosts, wide, own) = (singles.hosts, singles.wide, singles.own);
        if hosts == 0 && wide == 0 {
            self.singles.remove(&network.bits);
            return self.show(network, own, paths);
        }
        let mut spec = self.longest(network, TRIE6_BITS, paths);
        if wide > 0 {
            spec = Some(Spec::Ask);
        }
        let spec = spec.unwrap_or(Spec::Pass(crate::layout::Counter::NoRoute));
        match paths.acquire(&Key { spec, hosts: true }, reach) {
            Ok(path) => self.show(network, Some(path), paths),
            Err(_) => self.overflown = true,
        }
    }

    /// Puts a prefix into the trie, changes or removes it. Takes over the caller's hold of the
    /// path.
    fn show(&mut self, prefix: Prefix, path: Option<u32>, paths: &mut Paths) {
        let before = self.shown.get(&prefix).copied();
        match (before, path) {
            (None, None) => {}
            (Some(old), Some(new)) => {
                if old != new {
                    self.shown.insert(prefix, new);
                    self.trie.change(prefix.bits, prefix.len, new);
                }
                paths.release(old);
            }
            (None, Some(new)) => {
                self.trie.insert(prefix.bits, prefix.len, new);
                self.shown.insert(prefix, new);
                self.lengths[usize::from(prefix.len)] += 1;
            }
            (Some(old), None) => {
                self.shown.remove(&prefix);
                self.lengths[usize::from(prefix.len)] -= 1;
                let shorter = (0..prefix.len)
                    .rev()
                    .filter(|len| self.lengths[usize::from(*len)] > 0);
                let parent = shorter
                    .map(|len| prefix.cut(len))
                    .find_map(|cut| Some((*self.shown.get(&cut)?, cut.len)));
                let (value, owner) = parent.unwrap_or((0, 0));
                self.trie.remove(prefix.bits, prefix.len, value, owner);
                paths.release(old);
            }
        }
    }
}
