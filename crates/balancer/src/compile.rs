//! The model compiled to what one half of the maps holds: addresses and services in their places,
//! Maglev tables, servers with the bytes that go in front of their packets. Pure: the same in, the
//! same out.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use bytemuck::Zeroable;

use crate::error::Error;
use crate::flows::tick_of;
use crate::hash;
use crate::hop::{self, Hop};
use crate::layout::{self, PROBES};
use crate::maglev::{self, Member};
use crate::numbers::Numbers;
use model::ServiceKey;
use model::{Server, Service, Services, State};

/// What a half holds; what is not said is zero.
#[derive(Debug, Clone, Default)]
pub struct Image {
    pub(crate) vips: BTreeMap<u32, layout::Vip>,
    pub(crate) ports: BTreeMap<u32, layout::Port>,
    pub(crate) maglevs: BTreeMap<u32, Arc<Table>>,
    pub(crate) servers: BTreeMap<u32, layout::Server>,
}

impl Image {
    /// Puts another table in the place of a service's.
    pub(crate) fn replace(&mut self, number: u32, table: Table) {
        for port in self
            .ports
            .values_mut()
            .filter(|port| u32::from(port.service) == number)
        {
            port.since = table.since;
        }
        self.maglevs.insert(number, Arc::new(table));
    }

    /// Takes over all of another's keys.
    pub(crate) fn absorb(&mut self, other: Image) {
        self.vips.extend(other.vips);
        self.ports.extend(other.ports);
        self.maglevs.extend(other.maglevs);
        self.servers.extend(other.servers);
    }
}

/// A service's Maglev table and whom it was made for: it is kept while they stay the same.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    pub(crate) key: ServiceKey,
    pub(crate) members: Vec<Member>,
    /// Packets may have gone by it, or by one before: some server could be reached. No flow can be
    /// other than by the next one else.
    pub(crate) used: bool,
    /// The words of [`layout::Maglev::slot`].
    pub(crate) slots: Vec<u32>,
    /// Tick of the first change that `slots` tells of.
    pub(crate) since: u16,
    /// When the last one was, on the program's clock; `None`: all slots are calm.
    pub(crate) changed_ns: Option<u64>,
}

impl Table {
    fn new(key: ServiceKey, members: Vec<Member>, before: Option<&Table>, now_ns: u64) -> Self {
        let mut table = Table {
            key,
            slots: maglev::table(&members).into_iter().map(u32::from).collect(),
            members,
            used: true,
            since: tick_of(now_ns) as u16,
            changed_ns: None,
        };
        let Some(before) = before else { return table };
        for (slot, old) in table.slots.iter_mut().zip(&before.slots) {
            *slot |= watch(*old, *slot) << 16;
        }
        if table.slots.iter().any(|slot| slot >> 16 != 0) {
            table.changed_ns = Some(now_ns);
        }
        if before.changed_ns.is_some() {
            table.since = before.since;
        }
        table
    }

    /// This table, but words of it from before this tick do not count.
    pub(crate) fn since(&self, since: u16) -> Self {
        Table {
            since,
            ..self.clone()
        }
    }

    /// Every slot calm.
    pub(crate) fn settled(&self) -> Self {
        let mut table = self.clone();
        table.slots.iter_mut().for_each(|slot| *slot &= 0xffff);
        table.changed_ns = None;
        table
    }
}

/// Whom to keep in a slot as its earlier server; the slot was `old`, and its server is `now`. It is
/// the one before the first change of the time in which the slot is watched: flows that began since
/// are remembered, flows that began before may still be silent.
fn watch(old: u32, now: u32) -> u32 {
    match (old >> 16, old & 0xffff) {
        (0, was) if was == now => 0,
        (0, was) => was,
        (before, _) => before,
    }
}

/// Numbers given out for services and servers.
#[derive(Debug, Clone)]
pub(crate) struct Register {
    pub(crate) services: Numbers<ServiceKey>,
    pub(crate) servers: Numbers<(ServiceKey, IpAddr)>,
}

/// Compiles. Everybody in `services` has a number in `register`; `before` lends tables that are
/// still right.
pub(crate) fn compile(
    settings: &layout::ProgramSettings,
    services: &Services,
    hops: &BTreeMap<IpAddr, Hop>,
    register: &Register,
    before: &Image,
    now_ns: u64,
) -> Result<Image, Error> {
    let mut image = Image::default();
    let mut vips: BTreeMap<IpAddr, u16> = BTreeMap::new();
    for service in services.iter() {
        let key = service.key();
        let number = register
            .services
            .of(&key)
            .expect("the caller has registered all");
        let known = vips.len() as u16;
        let vip = *vips.entry(key.vip()).or_insert(known);
        if vip == known {
            place_vip(&mut image, settings, key.vip(), vip)?;
        }
        let entries: Vec<(u32, layout::Server)> = service
            .servers()
            .map(|server| {
                let entry = entry(
                    server,
                    number,
                    hops.get(&server.address()),
                    key.vip().is_ipv6(),
                );
                let number = register.servers.of(&(key, server.address()));
                (u32::from(number.expect("registered")), entry)
            })
            .collect();
        let reached = |number: u16| {
            entries
                .iter()
                .any(|(own, entry)| *own == u32::from(number) && entry.ifindex != 0)
        };
        let (members, reached) = members(service, register, reached);
        let old = before
            .maglevs
            .get(&u32::from(number))
            .filter(|table| table.key == key);
        let used = reached || old.is_some_and(|table| table.used);
        let kept = old.filter(|table| table.members == members && table.used == used);
        let made = || {
            let before = old.filter(|table| table.used).map(Arc::as_ref);
            Arc::new(Table {
                used,
                ..Table::new(key, members, before, now_ns)
            })
        };
        let table = kept.cloned().unwrap_or_else(made);
        place_port(&mut image, settings, service, vip, number, table.since)?;
        image.maglevs.insert(u32::from(number), table);
        image.servers.extend(entries);
    }
    Ok(image)
}

fn place_vip(
    image: &mut Image,
    settings: &layout::ProgramSettings,
    vip: IpAddr,
    id: u16,
) -> Result<(), Error> {
    let hash = hash::of_address(settings.seed, vip) as u32;
    let place = free_place(hash, settings.vips, |at| image.vips.contains_key(&at));
    let entry = layout::Vip {
        address: hash::words(vip),
        id,
        family: if vip.is_ipv4() { 4 } else { 6 },
        reserved: 0,
    };
    image.vips.insert(
        place.ok_or_else(|| crowded("addresses", settings.vips, image.vips.len()))?,
        entry,
    );
    Ok(())
}

fn place_port(
    image: &mut Image,
    settings: &layout::ProgramSettings,
    service: &Service,
    vip: u16,
    number: u16,
    since: u16,
) -> Result<(), Error> {
    let key = service.key();
    let port = key.port().map_or(0, |port| port.get());
    let protocol = key.protocol().number();
    let hash = hash::of_port(settings.seed, vip, protocol, port) as u32;
    let place = free_place(hash, settings.ports, |at| image.ports.contains_key(&at));
    let entry = layout::Port {
        vip,
        port: port.to_be(),
        protocol,
        flags: if service.sticky {
            layout::PORT_STICKY
        } else {
            0
        },
        service: number,
        since,
        reserved: 0,
    };
    image.ports.insert(
        place.ok_or_else(|| crowded("services", settings.ports, image.ports.len()))?,
        entry,
    );
    Ok(())
}

/// The program looks at [`PROBES`] places from where the hash points. Tables have eight times the
/// room they need, so that this fails about never.
fn free_place(hash: u32, room: u32, taken: impl Fn(u32) -> bool) -> Option<u32> {
    (0..PROBES)
        .map(|step| hash.wrapping_add(step) & (room - 1))
        .find(|at| !taken(*at))
}

fn crowded(what: &'static str, room: u32, asked: usize) -> Error {
    Error::Full {
        what,
        room: room as usize,
        asked: asked + 1,
    }
}

/// Who takes part in a service's table, and whether any of them can be reached: the servers that
/// are up and that a way is known to. When it is to none of them, all that are up: their packets
/// are lost either way, and the reason is named.
fn members(
    service: &Service,
    register: &Register,
    reached: impl Fn(u16) -> bool,
) -> (Vec<Member>, bool) {
    let up = service.servers().filter(|server| server.state == State::Up);
    let member = |server: &Server| Member {
        address: server.address(),
        weight: server.weight.get(),
        number: register
            .servers
            .of(&(service.key(), server.address()))
            .expect("registered"),
    };
    let (reached, lost): (Vec<Member>, Vec<Member>) =
        up.map(member).partition(|member| reached(member.number));
    match reached.is_empty() {
        true => (lost, false),
        false => (reached, true),
    }
}

fn entry(server: &Server, service: u16, hop: Option<&Hop>, vip_is_v6: bool) -> layout::Server {
    let mut entry = layout::Server::zeroed();
    entry.service = service;
    entry.state = match server.state {
        State::Up => layout::SERVER_UP,
        State::Draining => layout::SERVER_DRAINING,
        State::Down => layout::SERVER_DOWN,
    };
    hop::fill(&mut entry, server, hop, vip_is_v6);
    entry
}
