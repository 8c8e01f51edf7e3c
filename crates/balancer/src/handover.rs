//! A balancer from one process to the next: flows stay with their servers, and counters go on.
//!
//! The programs of both processes have the same maps of flows and of counters
//! ([`Balancer::hand_over`], [`Balancer::handed`]). Of all else the next one has maps of its own,
//! filled before a packet comes to it. So that both mean the same server by a word of the flow
//! table, and choose the same one for a new flow, the next one takes up the numbers and the Maglev
//! tables that the one before has in force ([`Balancer::leave`], [`Balancer::take_up`]). From then
//! on the one before changes nothing, until it [goes on](Balancer::go_on) or ends.
//!
//! Where the one before may be killed, somebody has its maps and is told of its tables at each
//! change ([`Balancer::keep_tables`]): the next one takes up those.
//!
//! What is handed over is read as if an enemy had written it.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU16;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use libbpf_rs::{MapInfo, OpenObject};
use sys::handed::Handed;

use crate::balancer::Balancer;
use crate::compile::{Image, Register, Table};
use crate::error::Error;
use crate::flows::now_ns;
use crate::layout::{MAGLEV_SIZE, ProgramSettings, TICK_MASK};
use crate::maglev::Member;
use crate::numbers::Numbers;
use crate::options::Options;
use model::{Protocol, ServiceKey};

/// Of what is handed over: another one for whatever is changed in it, or in the maps' values.
const VERSION: u32 = 1;
/// The maps that both processes use, in the order of their descriptors.
const MAPS: [&str; 5] = [
    "flows",
    "flow_names",
    "fragments",
    "server_counters",
    "counters",
];

/// What a balancer leaves, but for its maps: this, services each with the slots of its table, and
/// servers.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct LeftHeader {
    version: u32,
    services: u32,
    servers: u32,
    /// The numbers that are looked at first for who comes next.
    next_service: u16,
    next_server: u16,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct LeftService {
    vip: [u8; 16],
    /// When its table has changed last, if `has_changed`.
    changed_ns: u64,
    /// 0: all.
    port: u16,
    number: u16,
    since: u16,
    protocol: u8,
    /// 4 or 6.
    family: u8,
    used: u8,
    has_changed: u8,
    reserved: [u8; 6],
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct LeftServer {
    address: [u8; 16],
    /// Its service's number.
    service: u16,
    number: u16,
    /// In its service's table; 0: it takes no part.
    weight: u16,
    /// 4 or 6.
    family: u8,
    reserved: u8,
}

/// Who is told of what the next process is to take up, should this one be killed.
pub(crate) struct KeepTables(Box<WriteTables>);
type WriteTables = dyn FnMut(&[u8]) + Send;

impl KeepTables {
    pub fn write(&mut self, register: &Register, image: &Image) {
        (self.0)(&write(register, image));
    }
}

impl fmt::Debug for KeepTables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeepTables")
    }
}

impl Options {
    /// With no less room for services and servers than a balancer had that is
    /// [handed over](Balancer::hand_over).
    pub fn with_room_of(self, handed: &Handed) -> Options {
        let its: Option<ProgramSettings> = handed
            .note
            .get(4..)
            .and_then(|its| bytemuck::try_pod_read_unaligned(its).ok());
        let Some(its) = its else { return self };
        // Number 0 is nobody's.
        let room =
            |own: u16, its: u32| own.max(u16::try_from(its.saturating_sub(1)).unwrap_or(own));
        Options {
            max_services: room(self.max_services, its.max_services),
            max_servers: room(self.max_servers, its.max_servers),
            ..self
        }
    }
}

/// The maps of the process before.
pub(crate) struct Maps([OwnedFd; MAPS.len()]);

impl Maps {
    /// Those of a balancer with the same settings.
    fn of(handed: Handed, settings: &ProgramSettings) -> Result<Maps, Error> {
        let refused = |why: &str| Error::Handed { why: why.into() };
        let (version, its) = handed.note.split_first_chunk().unwrap_or((&[0; 4], &[]));
        if u32::from_ne_bytes(*version) != VERSION {
            return Err(refused("its flows are of another version"));
        }
        if its != bytemuck::bytes_of(settings) {
            return Err(refused(
                "it has other limits or another seed, which only a restart changes",
            ));
        }
        let maps = handed.take().map(Maps);
        maps.ok_or_else(|| refused("it has other maps"))
    }

    /// Has a program use them.
    pub(crate) fn put_into(&self, object: &mut OpenObject) -> libbpf_rs::Result<()> {
        for mut map in object.maps_mut() {
            let Some(at) = MAPS.iter().position(|name| map.name() == *name) else {
                continue;
            };
            let other = self.0[at].as_fd();
            let info = MapInfo::new(other)?;
            let is = (info.map_type(), info.info.key_size, info.info.value_size);
            let own = (map.map_type(), map.key_size(), map.value_size());
            if is != own || info.info.max_entries != map.max_entries() {
                let why = format!("the map {} of the one before is another", MAPS[at]);
                return Err(std::io::Error::other(why).into());
            }
            map.reuse_fd(other)?;
        }
        Ok(())
    }
}

impl Balancer {
    /// One that goes on with the flows and the counters of another process's, which hands them
    /// over. It has no services until it has [taken up](Self::take_up) what that one leaves: those
    /// that it is given wait.
    ///
    /// # Errors
    /// Those of [`new`](Self::new); it was handed over by a balancer of another version, or with
    /// other options.
    pub fn handed(options: &Options, handed: Handed) -> Result<Self, Error> {
        let maps = Maps::of(handed, &crate::options::settings(options)?)?;
        let mut balancer = Self::load(options, Some(&maps))?;
        balancer.held = true;
        Ok(balancer)
    }

    /// The maps of flows and counters, for another process's balancer.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub fn hand_over(&self) -> Result<Handed, Error> {
        let failed = |source: std::io::Error| Error::Bpf {
            what: "maps",
            source: source.into(),
        };
        let map = |name: &&str| -> Result<OwnedFd, Error> {
            let map = self.program.map(name)?;
            map.as_fd().try_clone_to_owned().map_err(failed)
        };
        let version = VERSION.to_ne_bytes();
        Ok(Handed {
            note: [&version[..], bytemuck::bytes_of(&self.settings)].concat(),
            fds: MAPS.iter().map(map).collect::<Result<_, _>>()?,
        })
    }

    /// What another process's balancer is to [take up](Self::take_up). What is in force stays so:
    /// changes wait until this one [goes on](Self::go_on).
    pub fn leave(&mut self) -> Vec<u8> {
        self.held = true;
        write(&self.register, self.halves.image())
    }

    /// The other one has not taken over: makes the changes that have waited.
    ///
    /// # Errors
    /// Those of [`apply`](Self::apply).
    pub fn go_on(&mut self) -> Result<(), Error> {
        match std::mem::take(&mut self.held) {
            true => self.apply_with(self.services.clone(), self.hops.clone()),
            false => Ok(()),
        }
    }

    /// Goes on with what another process's balancer [leaves](Self::leave): services and servers
    /// that both have keep their numbers, and new flows go where that one would have sent them.
    ///
    /// # Errors
    /// Those of [`apply`](Self::apply); it cannot be what a balancer with these options leaves.
    pub fn take_up(&mut self, left: &[u8]) -> Result<(), Error> {
        let (register, before) = read(left, &self.settings, now_ns()).ok_or(Error::Handed {
            why: "its tables cannot be".into(),
        })?;
        self.register = register;
        self.held = false;
        self.put_in_force(self.services.clone(), self.hops.clone(), Some(&before))
    }

    /// Has `keep` told of what this one would [leave](Self::leave), now and before each change of
    /// it is in force: should this process be killed, another one may [take it up](Self::take_up).
    pub fn keep_tables(&mut self, keep: impl FnMut(&[u8]) + Send + 'static) {
        let mut keep = KeepTables(Box::new(keep));
        // What is to be taken up first is still kept.
        if !self.held {
            keep.write(&self.register, self.halves.image());
        }
        self.keep = Some(keep);
    }

    /// Whether this is what a balancer with the same options has left.
    pub fn can_take_up(&self, left: &[u8]) -> bool {
        read(left, &self.settings, now_ns()).is_some()
    }

    /// Services wait for [`take_up`](Self::take_up) or [`go_on`](Self::go_on).
    pub fn is_held(&self) -> bool {
        self.held
    }
}

fn write(register: &Register, image: &Image) -> Vec<u8> {
    let mut left = Vec::new();
    let mut add = |bytes: &[u8]| left.extend_from_slice(bytes);
    add(bytemuck::bytes_of(&LeftHeader {
        version: VERSION,
        services: register.services.iter().count() as u32,
        servers: register.servers.iter().count() as u32,
        next_service: register.services.next(),
        next_server: register.servers.next(),
    }));
    let table = |number: u16| image.maglevs.get(&u32::from(number));
    for (key, number) in register.services.iter() {
        let table = table(number);
        let changed_ns = table.and_then(|table| table.changed_ns);
        let (vip, family) = octets(key.vip());
        add(bytemuck::bytes_of(&LeftService {
            vip,
            changed_ns: changed_ns.unwrap_or_default(),
            port: key.port().map_or(0, NonZeroU16::get),
            number,
            since: table.map_or(0, |table| table.since),
            protocol: key.protocol().number(),
            family,
            used: table.is_some_and(|table| table.used).into(),
            has_changed: changed_ns.is_some().into(),
            reserved: [0; 6],
        }));
        match table {
            Some(table) => add(bytemuck::cast_slice(&table.slots)),
            None => add(&[0; 4 * MAGLEV_SIZE]),
        }
    }
    for ((key, address), number) in register.servers.iter() {
        let service = register.services.of(key).unwrap_or_default();
        let mut members = table(service).into_iter().flat_map(|table| &table.members);
        let member = members.find(|member| member.number == number);
        let (address, family) = octets(*address);
        add(bytemuck::bytes_of(&LeftServer {
            address,
            service,
            number,
            weight: member.map_or(0, |member| member.weight),
            family,
            reserved: 0,
        }));
    }
    left
}

/// What was written; of the image the Maglev tables alone. `None`: it cannot be.
fn read(mut left: &[u8], settings: &ProgramSettings, now_ns: u64) -> Option<(Register, Image)> {
    let header: LeftHeader = take(&mut left)?;
    if header.version != VERSION {
        return None;
    }
    let mut services = Vec::new();
    let mut tables = BTreeMap::new();
    for _ in 0..header.services {
        let service: LeftService = take(&mut left)?;
        let (slots, rest) = left.split_at_checked(4 * MAGLEV_SIZE)?;
        left = rest;
        let vip = address(service.vip, service.family)?;
        let protocol = Protocol::from_number(service.protocol)?;
        let key = ServiceKey::new(vip, protocol, NonZeroU16::new(service.port)).ok()?;
        let changed_ns = (service.has_changed != 0).then_some(service.changed_ns);
        if u32::from(service.since) > TICK_MASK || changed_ns.is_some_and(|at| at > now_ns) {
            return None;
        }
        services.push((key, service.number));
        let table = Table {
            key,
            members: Vec::new(),
            used: service.used != 0,
            slots: bytemuck::pod_collect_to_vec(slots),
            since: service.since,
            changed_ns,
        };
        tables.insert(service.number, table);
    }
    let mut servers = Vec::new();
    for _ in 0..header.servers {
        let server: LeftServer = take(&mut left)?;
        let table = tables.get_mut(&server.service)?;
        let address = address(server.address, server.family)?;
        servers.push(((table.key, address), server.number));
        if server.weight != 0 {
            table.members.push(Member {
                address,
                weight: server.weight,
                number: server.number,
            });
        }
    }
    let register = Register {
        services: Numbers::left(settings.max_services as u16, header.next_service, services)?,
        servers: Numbers::left(settings.max_servers as u16, header.next_server, servers)?,
    };
    let known = |slot: &u32| slot >> 16 < settings.max_servers;
    if !left.is_empty() || !tables.values().all(|table| table.is_own(known)) {
        return None;
    }
    let mut image = Image::default();
    let tables = tables.into_iter();
    image.maglevs = tables
        .map(|(number, table)| (number.into(), Arc::new(table)))
        .collect();
    Some((register, image))
}

impl Table {
    /// Its slots are its members' now, and were those of servers before that are `known`.
    fn is_own(&self, known: impl Fn(&u32) -> bool) -> bool {
        let mut own = vec![false; 1 << 16];
        own[0] = true;
        for member in &self.members {
            own[usize::from(member.number)] = true;
        }
        let mut slots = self.slots.iter();
        slots.all(|slot| own[*slot as u16 as usize] && known(slot))
    }
}

fn take<T: Pod>(left: &mut &[u8]) -> Option<T> {
    let (one, rest) = left.split_at_checked(size_of::<T>())?;
    *left = rest;
    Some(bytemuck::pod_read_unaligned(one))
}

fn octets(address: IpAddr) -> ([u8; 16], u8) {
    let mut octets = [0; 16];
    match address {
        IpAddr::V4(ip) => {
            octets[..4].copy_from_slice(&ip.octets());
            (octets, 4)
        }
        IpAddr::V6(ip) => (ip.octets(), 6),
    }
}

fn address(octets: [u8; 16], family: u8) -> Option<IpAddr> {
    match (family, octets) {
        (4, [a, b, c, d, ..]) => Some(IpAddr::from([a, b, c, d])),
        (6, octets) => Some(Ipv6Addr::from(octets).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::compile;
    use crate::hop::Hop;
    use model::{Server, Service, Services, State};
    use std::collections::BTreeSet;

    fn settings() -> ProgramSettings {
        crate::options::settings(&Options::default()).unwrap()
    }

    fn key(vip: &str, protocol: Protocol, port: u16) -> ServiceKey {
        ServiceKey::new(vip.parse().unwrap(), protocol, NonZeroU16::new(port)).unwrap()
    }

    fn services(third: State) -> Services {
        let server = |last: u8| Server::new([10, 0, 0, last].into()).unwrap();
        let of = |key| {
            let service = Service::new(key).with(server(1)).with(server(2));
            service.with(server(3).state(third))
        };
        let keys = [
            key("192.0.2.1", Protocol::Tcp, 80),
            key("2001:db8::1", Protocol::Udp, 0),
        ];
        keys.into_iter().map(of).collect()
    }

    /// Two services, both with a server that has left their tables, after others were there.
    fn left() -> (Register, Image) {
        let settings = settings();
        let mut register = Register {
            services: Numbers::new(settings.max_services as u16),
            servers: Numbers::new(settings.max_servers as u16),
        };
        let mut image = Image::default();
        let gone = key("192.0.2.9", Protocol::Sctp, 7);
        register.services.assign(&BTreeSet::from([gone]));
        for (time, third) in [(1 << 40, State::Up), (2 << 40, State::Draining)] {
            let services = services(third);
            let keys = services.iter().map(Service::key).collect();
            let own = |service: &Service| {
                let key = service.key();
                let own = service.servers().map(|server| (key, server.address()));
                own.collect::<Vec<_>>()
            };
            let servers = services.iter().flat_map(own).collect();
            assert!(register.services.assign(&keys) && register.servers.assign(&servers));
            let hops: BTreeMap<IpAddr, Hop> = BTreeMap::new();
            image = compile(&settings, &services, &hops, &register, &image, time).unwrap();
            // As if packets had gone by it.
            for table in image.maglevs.values_mut() {
                Arc::make_mut(table).used = true;
            }
        }
        (register, image)
    }

    #[test]
    fn what_is_left_is_taken_up_as_it_was() {
        let (register, image) = left();
        assert!(
            image
                .maglevs
                .values()
                .all(|table| table.changed_ns.is_some())
        );
        let written = write(&register, &image);
        let (mut again, tables) = read(&written, &settings(), 3 << 40).unwrap();
        assert!(again.services.iter().eq(register.services.iter()));
        assert!(again.servers.iter().eq(register.servers.iter()));
        assert_eq!(write(&again, &tables), written);
        for (number, table) in &image.maglevs {
            let other = &tables.maglevs[number];
            assert_eq!((other.key, &other.members), (table.key, &table.members));
            assert_eq!((&other.slots, other.since), (&table.slots, table.since));
            assert_eq!(
                (other.changed_ns, other.used),
                (table.changed_ns, table.used)
            );
        }
        // Who comes next gets a number that nobody had for the longest time.
        let mut before = register;
        let newcomer = key("192.0.2.7", Protocol::Tcp, 1);
        for numbers in [&mut again.services, &mut before.services] {
            let mut keys: BTreeSet<_> = numbers.iter().map(|(key, _)| *key).collect();
            keys.insert(newcomer);
            assert!(numbers.assign(&keys));
        }
        assert_eq!(again.services.of(&newcomer), before.services.of(&newcomer));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let (register, image) = left();
        let written = write(&register, &image);
        let refused = |left: &[u8]| read(left, &settings(), 3 << 40).is_none();
        assert!(!refused(&written));
        for len in (0..written.len()).step_by(997).chain([written.len() - 1]) {
            assert!(refused(&written[..len]), "{len} bytes of it");
        }
        assert!(refused(&[&written[..], &[0]].concat()), "and one more");
        let service = size_of::<LeftHeader>();
        let slots = service + size_of::<LeftService>();
        let servers = written.len() - 6 * size_of::<LeftServer>();
        let other = |at: usize, bytes: &[u8]| {
            let mut other = written.clone();
            other[at..at + bytes.len()].copy_from_slice(bytes);
            other
        };
        for (what, at, bytes) in [
            ("a version to come", 0, &[2u8, 0, 0, 0][..]),
            ("more services than there are", 4, &[255; 4][..]),
            ("a next service that none can be", 12, &[0; 2][..]),
            ("a next server behind all", 14, &[255; 2][..]),
            ("an address of many", service, &[224][..]),
            ("a change that is to come", service + 16, &[255; 8][..]),
            ("no service's number", service + 26, &[0; 2][..]),
            ("a tick that there is not", service + 28, &[255; 2][..]),
            ("no protocol of ours", service + 30, &[1][..]),
            ("no family", service + 31, &[5][..]),
            ("a slot of nobody's", slots, &[99, 0][..]),
            (
                "a slot that was of a server behind all",
                slots + 2,
                &[255; 2][..],
            ),
            ("a server of no service", servers + 16, &[77, 0][..]),
            ("a server without a number", servers + 18, &[0; 2][..]),
            ("a server of no family", servers + 22, &[0][..]),
            (
                "the number of another server",
                servers + 18,
                &written[servers + 24 + 18..][..2],
            ),
            (
                "the address of another server",
                servers,
                &written[servers + 24..][..16],
            ),
        ] {
            assert!(refused(&other(at, bytes)), "{what}");
        }
        // Clocks begin anew when the machine does.
        assert!(read(&written, &settings(), 1).is_none());
        let small = Options {
            max_servers: 4,
            ..Options::default()
        };
        let small = crate::options::settings(&small).unwrap();
        assert!(read(&written, &small, 3 << 40).is_none());
    }
}
