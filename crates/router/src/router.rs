//! The router itself: program, tables and interfaces, brought in step with a snapshot of the
//! kernel's. No clock and no netlink of its own: both are handed in by [`Service`](crate::Service).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::sync::Arc;

use netlink::{Family, Kinds, Snapshot};
use sys::bpf_array::BpfArray;
use wire::Mac;
use xdp::{Mode, PerCpuTable, Program, Table, objects};

use crate::acl::loaded::Loaded;
use crate::acl_in_use::AclInUse;
use crate::attach::Device;
use crate::behind::Behind;
use crate::entries::{Entries, NEAR_WORDS};
use crate::epoch::{CONFIG_WORDS, Epochs};
use crate::error::Error;
use crate::fib::{Fib, Prefix, Source};
use crate::firewall::Firewall;
use crate::handover::{KeepSlots, Left, LeftSlot};
use crate::interfaces::{Interface, Run, View};
use crate::layout::{
    self, CACHE4_WORDS, CACHE6_WORDS, Config, Counter, Counters, ELEMENT_LINES, Hop, Path, config,
};
use crate::node::LINE;
use crate::paths::Paths;
use crate::plan::Plan;
use crate::report::{InterfaceReport, Report, TableReport};
use crate::spec::Spec;
use crate::trie::{Shape, Trie, Words};

/// How large the tables are. They cost their memory whether they are full or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Lines of IPv4's trie, of 64 bytes, rounded up to a MiB in all: one for each /16 with longer
    /// prefixes or neighbours, and one more for each ten of these. [`NODES`](Self::NODES) says how
    /// many there may be.
    pub nodes4: u32,
    /// Lines of IPv6's trie, as IPv4's: one for each one to three prefixes.
    pub nodes6: u32,
    /// Paths, of 144 bytes: one for each different set of next hops.
    pub paths: u32,
}

impl Options {
    /// How many lines a trie may have: their numbers have 26 bits, and the root's are among them.
    pub const NODES: RangeInclusive<i64> = 1024..=(1 << 26) - 2 * ELEMENT_LINES as i64;
}

impl Default for Options {
    fn default() -> Self {
        Options {
            nodes4: 520_192,
            nodes6: 520_192,
            paths: 65_536,
        }
    }
}

/// The router. Its interfaces are the kernel's again when the [`xdp::Interfaces`] are dropped that
/// they were added to, before it or with it, and their NICs are set as they were when it is dropped
/// itself.
#[derive(Debug)]
pub struct Router {
    pub(crate) program: Program,
    epochs: Epochs,
    entries: Entries,
    pub(crate) egresses: Table<u32, layout::Egress>,
    pub(crate) ports: Table<u32, u32>,
    pub(crate) counters: PerCpuTable<u32, Counters>,
    pub(crate) paths: Paths,
    pub(crate) fibs: [Fib; 2],
    pub(crate) plans: [Plan; 2],
    pub(crate) interfaces: BTreeMap<u32, Interface>,
    /// What runs the program, by index: see `attach`.
    pub(crate) devices: BTreeMap<u32, Device>,
    /// A device runs the program at tc, and all others do so behind XDP.
    pub(crate) at_tc: bool,
    /// Indices in the order they were added.
    pub(crate) order: Vec<u32>,
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) firewall: Firewall,
    /// What of the kernel's changes is not in force.
    pub(crate) behind: Behind,
    /// Whether multipath is by ports (IPv4, IPv6); `None` is a policy that only the kernel has.
    by_ports: [Option<bool>; 2],
    seed: u32,
    pub(crate) acl: AclInUse,
    /// See [`watch`](Self::watch).
    pub(crate) watch: Option<Program>,
    /// Where the process before has counted interfaces that have not come yet.
    pub(crate) slots_left: Vec<LeftSlot>,
    pub(crate) keep: Option<KeepSlots>,
}

impl Router {
    /// Loads the program with empty tables. It forwards for no interface yet.
    pub fn new(options: &Options) -> Result<Router, Error> {
        Self::load(options, None)
    }

    pub(crate) fn load(options: &Options, left: Option<Left>) -> Result<Router, Error> {
        // A trie's map has elements of many lines.
        let elements = |shape: Shape, lines: u32| {
            (shape.root_lines() + lines as usize).div_ceil(ELEMENT_LINES)
        };
        let (four, six) = (
            elements(Shape::V4, options.nodes4),
            elements(Shape::V6, options.nodes6),
        );
        let mut cpus = 0;
        let program = Program::load_both("router", objects::ROUTER, objects::tc::ROUTER, |open| {
            cpus = libbpf_rs::num_possible_cpus()?;
            let sizes = [
                ("trie4", four as u32),
                ("trie6", six as u32),
                ("paths", options.paths),
                ("hops", options.paths),
                ("flow_caches4", cpus as u32),
                ("flow_caches6", cpus as u32),
                ("acl_flows", cpus as u32),
            ];
            for mut map in open.maps_mut() {
                let name = map.name().to_string_lossy().into_owned();
                if let Some((_, size)) = sizes.iter().find(|(sized, _)| *sized == name) {
                    map.set_max_entries(*size)?;
                }
            }
            left.as_ref().map_or(Ok(()), |left| left.put_into(open))
        })?;
        let mapped = |table: &'static str, words: usize| -> Result<BpfArray, Error> {
            let map = program.map(table)?;
            BpfArray::new(map.as_fd(), words).map_err(|source| Error::Memory {
                table,
                words,
                source,
            })
        };
        let trie = |table, shape, elements: usize| -> Result<Trie, Error> {
            let lines = elements * ELEMENT_LINES;
            let words = Words::Kernel(mapped(table, lines * LINE)?);
            Ok(Trie::new(words, shape, lines))
        };
        let (four, six) = (
            trie("trie4", Shape::V4, four)?,
            trie("trie6", Shape::V6, six)?,
        );
        let entries = |size: usize| options.paths as usize * size / 4;
        let paths = Paths::new(
            mapped("paths", entries(size_of::<Path>()))?,
            mapped("hops", entries(size_of::<Hop>()))?,
        );
        let hosts = program.table("hosts6")?;
        Ok(Router {
            epochs: Epochs::new(
                mapped("config_map", CONFIG_WORDS)?,
                [
                    mapped("flow_caches4", cpus * CACHE4_WORDS)?,
                    mapped("flow_caches6", cpus * CACHE6_WORDS)?,
                ],
            ),
            entries: Entries::new(program.table("interfaces")?, mapped("near", NEAR_WORDS)?),
            egresses: program.table("egresses")?,
            ports: program.table("ports")?,
            counters: program.per_cpu_table("counters")?,
            paths,
            fibs: [
                Fib::new(Family::V4, four, None),
                Fib::new(Family::V6, six, Some(hosts)),
            ],
            plans: Default::default(),
            interfaces: BTreeMap::new(),
            devices: BTreeMap::new(),
            at_tc: false,
            order: Vec::new(),
            snapshot: Arc::default(),
            firewall: Firewall::default(),
            behind: Behind::default(),
            by_ports: [Some(false); 2],
            seed: rand::random(),
            acl: AclInUse::new(Loaded::new(
                program.map("acls")?,
                program.map("acl_counters")?,
                program.map("acl_flows")?,
                cpus,
            )),
            watch: None,
            slots_left: left.map(|left| left.slots).unwrap_or_default(),
            keep: None,
            program,
        })
    }

    /// From now on the program leaves all packets to the kernel when there was no
    /// [`beat`](Self::beat) for [`PATIENCE`](layout::PATIENCE) seconds.
    ///
    /// # Errors
    /// The kernel lacks timers of programs (before Linux 5.15), or memory.
    pub fn watch(&mut self) -> Result<(), Error> {
        let watch = self
            .program
            .load_beside("router_watch", objects::ROUTER_WATCH)?;
        // Any frame has it start its timer.
        let started = xdp::run(&watch, &[0; 64], 0, 1)?;
        if started.verdict != xdp::Verdict::Pass {
            return Err(Error::Timer);
        }
        self.watch = Some(watch);
        Ok(())
    }

    /// Says that the kernel is still followed: to be called once a second by who has called
    /// [`watch`](Self::watch). [`update`](Self::update) does it, too.
    pub fn beat(&self) {
        self.epochs.beat();
    }

    /// Brings the tables in step with what the kernel says now.
    ///
    /// # Errors
    /// Something could not be written, which the next call tries again. All else is in force.
    pub fn update(&mut self, snapshot: Arc<Snapshot>, kinds: Kinds) -> Result<(), Error> {
        self.epochs.end();
        self.epochs.beat();
        let old = std::mem::replace(&mut self.snapshot, snapshot);
        let plans = self.make_plans();
        let replanned = plans != self.plans;
        self.plans = plans;
        let snapshot = self.snapshot.clone();
        let view = View {
            snapshot: &snapshot,
            interfaces: &self.interfaces,
            at_tc: self.at_tc,
        };
        // A neighbour that is gone, and a link that is down, first: they are what the routes below
        // lead to.
        if kinds.any(Kinds::LINKS) {
            self.paths.redraw(&view, |_| true);
        } else if kinds.any(Kinds::NEIGHBOURS) {
            let changed: Vec<_> = old
                .neighbours
                .diff(&snapshot.neighbours)
                .map(|item| *key_of(&item))
                .collect();
            let touches = |via: &crate::spec::Via| changed.contains(&(via.ifindex, via.neighbour));
            self.paths.redraw(
                &view,
                |spec| matches!(spec, Spec::Via { members, .. } if members.iter().any(touches)),
            );
        }
        for (fib, plan) in self.fibs.iter_mut().zip(&self.plans) {
            let source = Source {
                snapshot: &snapshot,
                plan,
            };
            let changed = fib.changes(&old, &snapshot);
            // Next-hop objects change what routes say that do not change themselves.
            if replanned || kinds.any(Kinds::NEXTHOPS) {
                fib.refresh_all(source, &mut self.paths, &view);
            } else {
                fib.refresh_changed(&changed, source, &mut self.paths, &view);
            }
            for item in old.neighbours.diff(&snapshot.neighbours) {
                let (_, ip) = key_of(&item);
                if ip.is_ipv4() == fib.is_v4() {
                    fib.refresh(Prefix::host(*ip), source, &mut self.paths, &view);
                }
            }
            fib.flush();
        }
        if kinds.any(Kinds::LINKS) {
            self.follow_acl_names();
        }
        self.settle()
    }

    /// Brings everything up to date when an interface of ours came or went: anything may have
    /// changed.
    pub(crate) fn update_all(&mut self) -> Result<(), Error> {
        let snapshot = self.snapshot.clone();
        self.update(snapshot, Kinds::LINKS)
    }

    /// What the firewall sees from now on.
    pub fn set_firewall(&mut self, firewall: Firewall) -> Result<(), Error> {
        self.firewall = firewall;
        self.follow_acl();
        self.settle()
    }

    /// How the kernel chooses among several next hops: `fib_multipath_hash_policy` of IPv4 and
    /// IPv6.
    pub fn set_hash_policies(&mut self, policies: [u8; 2]) -> Result<(), Error> {
        let by_ports = |policy| match policy {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        };
        let by_ports = policies.map(by_ports);
        if by_ports == self.by_ports {
            // What is remembered of flows holds on.
            return Ok(());
        }
        self.by_ports = by_ports;
        self.settle()
    }

    /// Says of a device whether it takes redirected frames; those for one that does not are sent at
    /// tc, or left to the kernel where the program runs in XDP only. `None` is of a kernel that
    /// cannot say (before Linux 6.3): a driver that runs the program takes frames, all others do
    /// not.
    pub fn set_sends(&mut self, device: u32, sends: Option<bool>) -> Result<(), Error> {
        let sends = sends.unwrap_or(self.mode_of(device) == Some(Mode::Native));
        self.change(device, |interface| {
            std::mem::replace(&mut interface.sends, sends) != sends
        })
    }

    /// Says of a device whether packets can be handed to its other end at once, past its queue and
    /// the other end's (`bpf_redirect_peer`), and that one's MAC address.
    pub fn set_peer(&mut self, device: u32, peer: Option<Mac>) -> Result<(), Error> {
        self.change(device, |interface| {
            std::mem::replace(&mut interface.peer, peer) != peer
        })
    }

    /// Says which interfaces, by index, IPv6 is not disabled on. What comes by the others the
    /// kernel drops.
    pub fn set_ipv6(&mut self, enabled: &BTreeSet<u32>) -> Result<(), Error> {
        let mut changed = false;
        for interface in self.interfaces.values_mut() {
            let ipv6 = enabled.contains(&interface.ifindex);
            changed |= std::mem::replace(&mut interface.ipv6, ipv6) != ipv6;
        }
        if changed { self.settle() } else { Ok(()) }
    }

    /// Changes how the interfaces of a device are sent by.
    fn change(
        &mut self,
        device: u32,
        change: impl Fn(&mut Interface) -> bool,
    ) -> Result<(), Error> {
        let mut changed = false;
        for interface in self.interfaces.values_mut() {
            changed |= interface.device == device && change(interface);
        }
        if !changed {
            return Ok(());
        }
        let written = self.write_egresses();
        // Hops by it come or go.
        self.update_all().and(written)
    }

    /// What the kernel's lookup may lead to.
    pub(crate) fn write_egresses(&self) -> Result<(), Error> {
        for interface in self.interfaces.values() {
            if interface.is_sent_by(&self.snapshot, self.at_tc) {
                self.egresses.set(&interface.ifindex, &interface.egress())?;
            } else {
                self.egresses.remove(&interface.ifindex)?;
            }
        }
        Ok(())
    }

    /// Once a second: places that were given up are used again, and the neighbours are told that
    /// were used but that the kernel has not confirmed lately: it should.
    pub fn housekeep(&mut self) -> Vec<(u32, std::net::IpAddr)> {
        self.paths.rest();
        self.acl.rest();
        self.fibs.iter_mut().for_each(Fib::rest);
        let used = self.paths.take_used();
        let unsure = |via: &crate::spec::Via| {
            let known = self.snapshot.neighbour(via.ifindex, via.neighbour);
            known.is_some_and(|known| known.is_valid() && !known.is_confirmed())
        };
        let unsure = used.into_iter().map(|(_, via)| via).filter(unsure);
        unsure.map(|via| (via.ifindex, via.neighbour)).collect()
    }

    /// The kernel's tables as the router last saw them.
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }

    /// Its interfaces, in the order they were added.
    pub fn interfaces(&self) -> impl Iterator<Item = &Interface> {
        self.order
            .iter()
            .filter_map(|ifindex| self.interfaces.get(ifindex))
    }

    /// The one that was added under this name.
    pub fn interface_named(&self, name: &str) -> Option<&Interface> {
        self.interfaces().find(|interface| interface.name == name)
    }

    /// Why not all that the kernel says is in force; [`Service`](crate::Service) tries it again.
    pub fn behind(&self) -> Option<&str> {
        self.behind.why()
    }

    /// The program, for trials.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// How the program runs for a device of its interfaces.
    pub fn mode_of(&self, device: u32) -> Option<Mode> {
        Some(self.devices.get(&device)?.point.mode())
    }

    /// What there is to see.
    pub fn report(&self) -> Result<Report, Error> {
        let mut interfaces = Vec::new();
        for interface in self.interfaces() {
            let per_cpu = self.counters.get(&interface.slot)?.unwrap_or_default();
            let sum = |at: usize| per_cpu.iter().map(|cpu| cpu.value[at]).sum();
            let count = Counter::ALL.len();
            interfaces.push(InterfaceReport {
                name: interface.name.clone(),
                ifindex: interface.ifindex,
                mode: self
                    .mode_of(interface.device)
                    .map(|mode| mode.to_string())
                    .unwrap_or_default(),
                place: self.mode_words(interface),
                counters: [
                    (0..count).map(sum).collect(),
                    (count..2 * count).map(sum).collect(),
                ],
            });
        }
        let table = |fib: &Fib| {
            let (prefixes, nodes, nodes_max) = fib.usage();
            TableReport {
                prefixes,
                nodes,
                nodes_max,
            }
        };
        Ok(Report {
            interfaces,
            notes: self.notes(),
            tables: [table(&self.fibs[0]), table(&self.fibs[1])],
        })
    }

    fn mode_words(&self, interface: &Interface) -> String {
        let mode = self.mode_of(interface.device);
        mode.map(|mode| mode.words_on(self.buffers_of(&interface.name)))
            .unwrap_or_default()
    }

    /// Why packets or lookups are the kernel's, as sentences.
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some(why) = self.behind.why() {
            notes.push(format!(
                "not all that the kernel says is in force, and it is tried again: {why}"
            ));
        }
        notes.extend(self.acl_notes());
        for hook in self
            .firewall
            .hooks
            .iter()
            .filter(|hook| self.is_obeyed(hook))
        {
            let who = match (hook.v4, hook.v6) {
                (true, true) => "IPv4 and IPv6 are",
                (true, false) => "IPv4 is",
                _ => "IPv6 is",
            };
            notes.push(format!(
                "{who} left to the kernel: {hook} sees forwarded packets"
            ));
        }
        for (family, at) in [("IPv4", 0), ("IPv6", 1)] {
            if let Some(why) = self.why_ask(at) {
                notes.push(format!(
                    "{family} routes are looked up by the kernel: {why}"
                ));
            }
        }
        let cannot_send = |interface: &&Interface| !interface.sends && !self.at_tc;
        for interface in self.interfaces().filter(cannot_send) {
            notes.push(format!(
                "packets to {} are left to the kernel: its driver takes no redirected frames (a \
                 veth does when its other end has GRO)",
                interface.name
            ));
        }
        for interface in self.interfaces() {
            if interface.maps_priorities(&self.snapshot) {
                notes.push(format!(
                    "packets to {} are left to the kernel: its tags tell their priorities \
                     (egress-qos-map)",
                    interface.name
                ));
            }
            if interface.link(&self.snapshot).is_none_or(|link| !link.up) {
                notes.push(format!(
                    "nothing is forwarded from {}: it is down",
                    interface.name
                ));
                continue;
            }
            if let Some(why) = self.left_out(interface).filter(|_| self.acl.judges_all()) {
                notes.push(format!(
                    "the access list is not applied to what comes in by {}: {why}",
                    interface.name
                ));
            }
            if self.may_hide_tags(interface) {
                notes.push(format!(
                    "packets without a VLAN tag from {} are left to the kernel: whoever sends to a \
                     veth can hide tags",
                    interface.name
                ));
            }
            if let (Run { xdp: true, .. }, Some(kind)) =
                (self.run_of(interface), self.buffers_of(&interface.name))
            {
                notes.push(format!(
                    "packets from {} whose checksums are only begun are left to the kernel: it is \
                     a {kind}, and the program runs in XDP",
                    interface.name
                ));
            }
            if let Some(why) = self.trouble_of(&interface.name) {
                notes.push(format!("{}: {why}", interface.name));
            }
            let entry =
                interface.entry(&self.snapshot, self.plans[0].custom, self.run_of(interface));
            for (flag, family) in [
                (layout::INTERFACE_FORWARD4, "IPv4"),
                (layout::INTERFACE_FORWARD6, "IPv6"),
            ] {
                if entry.flags & flag == 0 {
                    let has_none = family == "IPv6" && !interface.has_ipv6(&self.snapshot);
                    let why = if has_none {
                        "it has none (disable_ipv6, or an MTU below 1280)"
                    } else {
                        "its forwarding is off"
                    };
                    notes.push(format!(
                        "{family} is not forwarded from {}: {why}",
                        interface.name
                    ));
                }
            }
        }
        notes
    }

    /// Why the kernel looks routes up: of IPv4 (0) or IPv6 (1).
    pub(crate) fn why_ask(&self, at: usize) -> Option<String> {
        if self.fibs[at].is_full() {
            return Some("the table is full".into());
        }
        if self.by_ports[at].is_none() {
            return Some("multipath is by a policy that only the kernel has".into());
        }
        self.plans[at].ask.clone()
    }

    fn make_plans(&self) -> [Plan; 2] {
        // Rules go by the names that interfaces have now.
        let links = self.interfaces.values();
        let links = links.filter_map(|interface| interface.link(&self.snapshot));
        let names: Vec<&str> = links.map(|link| link.name.as_str()).collect();
        [Family::V4, Family::V6].map(|family| Plan::new(&self.snapshot.rules, family, &names))
    }

    /// Writes what is not in the tables: the interfaces and what holds for all packets.
    ///
    /// # Errors
    /// Not all interfaces could be written; all else is in force.
    pub(crate) fn settle(&mut self) -> Result<(), Error> {
        let mut flags = 0;
        let mut set = |on: bool, flag| flags |= if on { flag } else { 0 };
        let judges = self.acl.judges();
        let sees = [self.firewall.sees_v4(), self.firewall.sees_v6()];
        let all = self.acl.judges_all();
        // A firewall that the access list is made from need not look itself.
        set(sees[0] && (all || !judges[0]), config::OFF4);
        set(sees[1] && (all || !judges[1]), config::OFF6);
        set(judges[0], config::ACL4);
        set(judges[1], config::ACL6);
        set(all, config::ACL_ALL);
        set(self.acl.bank() == 1, config::ACL_BANK);
        set(self.why_ask(0).is_some(), config::ASK4);
        set(self.why_ask(1).is_some(), config::ASK6);
        set(self.by_ports[0] == Some(true), config::PORTS4);
        set(self.by_ports[1] == Some(true), config::PORTS6);
        let ask_mtu = [self.fibs[0].smallest_mtu(), self.fibs[1].smallest_mtu()];
        self.epochs.write(&Config {
            flags,
            seed: self.seed,
            ask_mtu,
            epoch: 0,
        });
        let mut entries = BTreeMap::new();
        let interfaces = self.interfaces.values();
        for interface in interfaces.filter(|one| self.left_out(one).is_none()) {
            let entry =
                interface.entry(&self.snapshot, self.plans[0].custom, self.run_of(interface));
            let keys = interface.keys(&self.snapshot).into_iter();
            entries.extend(keys.map(|key| (key, entry)));
        }
        let written = self.entries.write(entries);
        let acl = &self.acl;
        self.epochs.begin(|| acl.forget_flows());
        self.acl.hand_over();
        written
    }

    pub(crate) fn forget_counters(&self, slot: u32) -> Result<(), Error> {
        Ok(self.counters.set(&slot, &bytemuck::Zeroable::zeroed())?)
    }
}

/// The key that a difference is about.
fn key_of<'a, K, V>(item: &imbl::ordmap::DiffItem<'a, 'a, K, V>) -> &'a K {
    use imbl::ordmap::DiffItem;
    match item {
        DiffItem::Add(key, _) | DiffItem::Remove(key, _) => key,
        DiffItem::Update { new: (key, _), .. } => key,
    }
}
