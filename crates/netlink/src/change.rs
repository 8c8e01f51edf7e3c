//! Interfaces made and set up: pairs (veth), addresses, routes. Synchronous, for callers that have
//! a thread of their own: whoever works in another network namespace makes its socket there.
//!
//! Each request is acknowledged by the kernel before its call returns.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, BorrowedFd};

use ipnet::IpNet;
use netlink_sys::{SocketAddr, protocols::NETLINK_ROUTE};
use wire::Mac;

use crate::decode::route_as_told;
use crate::dump::{DUMPS_MAX, Dump};
use crate::error::Error;
use crate::message::{Attribute, Message, Request, attributes, messages, u32_at};
use crate::model::{Family, Route, RouteKey};
use crate::uapi::*;

/// struct ifinfomsg, struct rtmsg: bytes.
const IFINFOMSG: usize = 16;
/// A dump's datagrams are up to 32 KiB long.
const DATAGRAM_BYTES: usize = 64 << 10;

/// A socket that changes interfaces of the namespace where it was made. Needs CAP_NET_ADMIN there.
#[derive(Debug)]
pub struct Changes {
    socket: netlink_sys::Socket,
    sequence: u32,
}

/// Hears which interfaces of a namespace go, and which become otherwise.
#[derive(Debug)]
pub struct Departures {
    socket: netlink_sys::Socket,
}

impl Departures {
    /// From now on, in the calling thread's namespace.
    ///
    /// # Errors
    /// The system refuses a socket.
    pub fn listen() -> Result<Self, Error> {
        let failed = |source| Error::Socket {
            action: "open",
            source,
        };
        let mut socket = netlink_sys::Socket::new(NETLINK_ROUTE).map_err(failed)?;
        socket
            .bind(&SocketAddr::new(0, LINK_GROUP_BIT))
            .map_err(failed)?;
        socket.set_non_blocking(true).map_err(failed)?;
        Ok(Departures { socket })
    }

    /// Readable when there is news.
    pub fn fd(&self) -> BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&self.socket)
    }

    /// The indices of those that have gone since this was last called, and of those of which
    /// something else is told, their carrier among it; `None`: some were missed.
    pub fn take(&mut self) -> Option<LinkNews> {
        let (mut news, mut missed) = (LinkNews::default(), false);
        let mut buffer = Vec::with_capacity(DATAGRAM_BYTES);
        loop {
            buffer.clear();
            match self.socket.recv(&mut buffer, 0) {
                Ok(_) => {
                    for message in messages(&buffer) {
                        let index = u32_at(message.body, 4);
                        match message.kind {
                            RTM_DELLINK => news.gone.extend(index),
                            RTM_NEWLINK => news.changed.extend(index),
                            _ => (),
                        }
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // ENOBUFS: the kernel had no room for all of it.
                Err(error) if error.raw_os_error() == Some(ENOBUFS) => missed = true,
                Err(_) => return None,
            }
        }
        (!missed).then_some(news)
    }
}

/// What [`Departures`] have heard: indices.
#[derive(Clone, Default, Debug)]
pub struct LinkNews {
    /// Of interfaces that have gone.
    pub gone: Vec<u32>,
    /// Of interfaces that are there, and perhaps otherwise than before.
    pub changed: Vec<u32>,
}

const ENOBUFS: i32 = 105;
/// RTNLGRP_LINK as a bit (rtnetlink(7): RTMGRP_LINK).
const LINK_GROUP_BIT: u32 = 1;

/// What a pair of interfaces is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PairKind {
    /// veth.
    Veth,
    /// netkit, of Ethernet. What the far end sends is dropped until a program at it says otherwise.
    Netkit,
}

impl PairKind {
    /// The kernel's word for it.
    pub fn name(self) -> &'static str {
        match self {
            PairKind::Veth => "veth",
            PairKind::Netkit => "netkit",
        }
    }

    /// The kind of that name.
    pub fn of(name: &str) -> Option<PairKind> {
        let kinds = [PairKind::Veth, PairKind::Netkit];
        kinds.into_iter().find(|kind| kind.name() == name)
    }
}

/// A pair of interfaces to make.
#[derive(Clone, Copy, Debug)]
pub struct NewPair<'a> {
    /// What it is made of.
    pub kind: PairKind,
    /// The name of the end that is here.
    pub near: &'a str,
    /// The name of the other end.
    pub far: &'a str,
    /// The other end's MAC address.
    pub far_mac: Mac,
    /// The MTU of both ends.
    pub mtu: u16,
    /// The network namespace of the other end.
    pub namespace: BorrowedFd<'a>,
}

/// An interface, as far as callers here need to know it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    /// Its index.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its kind (`veth`), empty for hardware.
    pub kind: String,
    /// Its alias, which is for people and for whoever made it.
    pub alias: String,
    /// Its MAC address; zero when it has none.
    pub mac: Mac,
    /// Its MTU.
    pub mtu: u32,
    /// It is set up.
    pub up: bool,
    /// It has a carrier; of a TAP device: somebody has it open.
    pub carrier: bool,
    /// The index of the other end of a pair, in that end's namespace.
    pub far: Option<u32>,
    /// The kernel's number here for the namespace of that end; `None`: it is in this one.
    pub far_namespace: Option<i32>,
    /// How often a TAP device of several queues is open, with those that pass nothing (IFF_DETACH).
    pub queues: Option<u32>,
}

/// Where packets go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WantedRoute {
    /// The destinations.
    pub to: IpNet,
    /// The next hop; `None`: the destinations are on the link themselves.
    pub via: Option<IpAddr>,
    /// The next hop need not be in a network of the interface's addresses.
    pub onlink: bool,
    /// The largest packet by it, where that is less than the interface's.
    pub mtu: Option<u32>,
}

impl Changes {
    /// A socket of the calling thread's namespace.
    ///
    /// # Errors
    /// The system refuses one.
    pub fn new() -> Result<Self, Error> {
        let failed = |source| Error::Socket {
            action: "open",
            source,
        };
        let mut socket = netlink_sys::Socket::new(NETLINK_ROUTE).map_err(failed)?;
        socket.bind_auto().map_err(failed)?;
        socket.connect(&SocketAddr::new(0, 0)).map_err(failed)?;
        Ok(Changes {
            socket,
            sequence: 0,
        })
    }

    /// Makes a pair of which the other end is in another namespace. Both are down: the kernel opens
    /// no end before it has both.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] when either name is taken; the caller may not change the
    /// other namespace; the kernel has no such pairs.
    pub fn make_pair(&mut self, pair: &NewPair<'_>) -> Result<(), Error> {
        let namespace = pair.namespace.as_raw_fd().to_ne_bytes();
        let far = Nested::fixed(&ifinfomsg(0, 0, 0))
            .with(IFLA_IFNAME, &text(pair.far))
            .with(IFLA_ADDRESS, &pair.far_mac.0)
            .with(IFLA_MTU, &u32::from(pair.mtu).to_ne_bytes())
            .with(IFLA_NET_NS_FD, &namespace);
        let data = match pair.kind {
            PairKind::Veth => Nested::default().with(VETH_INFO_PEER, &far.0),
            PairKind::Netkit => Nested::default()
                .with(IFLA_NETKIT_PEER_INFO, &far.0)
                .with(IFLA_NETKIT_PEER_POLICY, &NETKIT_DROP.to_ne_bytes())
                .with(IFLA_NETKIT_MODE, &NETKIT_L2.to_ne_bytes()),
        };
        let info = Nested::default()
            .with(IFLA_INFO_KIND, &text(pair.kind.name()))
            .with(IFLA_INFO_DATA, &data.0);
        self.done("make a pair of interfaces", |sequence| {
            let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
            Request::new(RTM_NEWLINK, flags, sequence, &ifinfomsg(0, 0, 0))
                .with(IFLA_IFNAME, &text(pair.near))
                .with(IFLA_MTU, &u32::from(pair.mtu).to_ne_bytes())
                .with(IFLA_LINKINFO, &info.0)
                .finish()
        })
    }

    /// Has the kernel give an interface no IPv6 address of its own, and so send nothing on it. No
    /// error where there is no IPv6.
    pub fn leave_unaddressed(&mut self, index: u32) {
        let mode = Nested::default().with(IFLA_INET6_ADDR_GEN_MODE, &[IN6_ADDR_GEN_MODE_NONE]);
        let families = Nested::default().with(AF_INET6, &mode.0);
        let _ = self.set(index, "set up IPv6 of an interface", 0, 0, |request| {
            request.with(IFLA_AF_SPEC, &families.0)
        });
    }

    /// Gives an interface an alias of at most 255 bytes.
    ///
    /// # Errors
    /// It is gone.
    pub fn set_alias(&mut self, index: u32, alias: &str) -> Result<(), Error> {
        self.set(index, "name an interface", 0, 0, |request| {
            request.with(IFLA_IFALIAS, alias.as_bytes())
        })
    }

    /// Sets an interface up or down.
    ///
    /// # Errors
    /// It is gone.
    pub fn set_up(&mut self, index: u32, up: bool) -> Result<(), Error> {
        let flags = if up { IFF_UP } else { 0 };
        self.set(index, "set an interface up or down", flags, IFF_UP, |r| r)
    }

    /// Sets an interface up on which no neighbour is sought (IFF_NOARP).
    ///
    /// # Errors
    /// It is gone.
    pub fn set_up_without_arp(&mut self, index: u32) -> Result<(), Error> {
        let flags = IFF_UP | IFF_NOARP;
        self.set(index, "set an interface up", flags, flags, |r| r)
    }

    /// Sets an interface's MTU.
    ///
    /// # Errors
    /// It is gone, or does not take this one.
    pub fn set_mtu(&mut self, index: u32, mtu: u16) -> Result<(), Error> {
        self.set(index, "set the MTU of an interface", 0, 0, |request| {
            request.with(IFLA_MTU, &u32::from(mtu).to_ne_bytes())
        })
    }

    /// Sets an interface's MAC address.
    ///
    /// # Errors
    /// It is gone, or does not take this one.
    pub fn set_mac(&mut self, index: u32, mac: Mac) -> Result<(), Error> {
        self.set(index, "set the MAC of an interface", 0, 0, |request| {
            request.with(IFLA_ADDRESS, &mac.0)
        })
    }

    /// Removes an interface; of a pair both ends go. One that is gone is no error.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn remove(&mut self, index: u32) -> Result<(), Error> {
        let done = self.done("remove an interface", |sequence| {
            Request::new(RTM_DELLINK, NLM_F_ACK, sequence, &ifinfomsg(index, 0, 0)).finish()
        });
        missing_is_fine(done)
    }

    /// Removes interfaces of this namespace, as [`remove`](Changes::remove) does one, and all
    /// together: the kernel waits once for all that may still use them, and not for each. They go
    /// as a group of interfaces whose number is made up, so that nobody else's are in it.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn remove_all(&mut self, indices: &[u32]) -> Result<(), Error> {
        if let [index] = indices {
            return self.remove(*index);
        }
        if indices.is_empty() {
            return Ok(());
        }
        // 1 << 30 of them, and none that people choose.
        let random = RandomState::new().hash_one(indices);
        let group = (1 << 30 | random as u32 & ((1 << 30) - 1)).to_ne_bytes();
        for index in indices {
            let done = self.set(*index, "group interfaces", 0, 0, |request| {
                request.with(IFLA_GROUP, &group)
            });
            missing_is_fine(done)?;
        }
        let done = self.done("remove a group of interfaces", |sequence| {
            Request::new(RTM_DELLINK, NLM_F_ACK, sequence, &ifinfomsg(0, 0, 0))
                .with(IFLA_GROUP, &group)
                .finish()
        });
        missing_is_fine(done)
    }

    /// The interface of a name; `None`: there is none.
    ///
    /// # Errors
    /// The kernel refuses to say.
    pub fn by_name(&mut self, name: &str) -> Result<Option<Device>, Error> {
        self.device(|sequence| {
            Request::new(RTM_GETLINK, 0, sequence, &ifinfomsg(0, 0, 0))
                .with(IFLA_IFNAME, &text(name))
                .finish()
        })
    }

    /// The interface of an index; `None`: there is none.
    ///
    /// # Errors
    /// The kernel refuses to say.
    pub fn by_index(&mut self, index: u32) -> Result<Option<Device>, Error> {
        self.device(|sequence| {
            Request::new(RTM_GETLINK, 0, sequence, &ifinfomsg(index, 0, 0)).finish()
        })
    }

    /// Whether the other end of a pair is in this namespace, and not in another that has come to be
    /// called as that one was.
    ///
    /// # Errors
    /// The kernel refuses to say.
    pub fn is_far_in(&mut self, near: &Device, namespace: BorrowedFd<'_>) -> Result<bool, Error> {
        let fd = namespace.as_raw_fd().to_ne_bytes();
        let answer = self.ask("look at a network namespace", |sequence| {
            Request::new(RTM_GETNSID, 0, sequence, &[0])
                .with(NETNSA_FD, &fd)
                .finish()
        })?;
        let message = messages(&answer).next();
        let mut attributes = message.iter().flat_map(|message| message.attributes(1));
        let id = attributes.find(|attribute| attribute.kind == NETNSA_NSID);
        let id = id.and_then(|id| id.u32()).map(|id| id as i32);
        // Less than zero: it has no number, so no interface here leads to it.
        Ok(id.is_some_and(|id| id >= 0) && near.far_namespace == id)
    }

    /// All interfaces of the namespace.
    ///
    /// # Errors
    /// The kernel refuses to say.
    pub fn devices(&mut self) -> Result<Vec<Device>, Error> {
        let body = ifinfomsg(0, 0, 0);
        self.list(&[], |changes, devices: &mut Vec<Device>| {
            changes.dump("list interfaces", RTM_GETLINK, &body, |message| {
                devices.extend(device(message));
            })
        })
    }

    /// Those of an interface's addresses that are `wanted`, each with the length of its prefix.
    ///
    /// # Errors
    /// The kernel refuses to say, or they change all the time.
    pub fn addresses(
        &mut self,
        index: u32,
        wanted: impl Fn(&IpAddr) -> bool,
    ) -> Result<Vec<(IpAddr, u8)>, Error> {
        self.list(&[], |changes, found: &mut Vec<(IpAddr, u8)>| {
            changes.dump("list addresses", RTM_GETADDR, &[0; 8], |message| {
                let of = u32_at(message.body, 4);
                let prefix = message.body.get(1).copied();
                let find = |kind| message.attributes(8).find(|a| a.kind == kind);
                let ip = find(IFA_LOCAL).or_else(|| find(IFA_ADDRESS));
                let ip = ip.and_then(|ip: Attribute<'_>| ip.ip()).filter(&wanted);
                if let (true, Some(ip), Some(prefix)) = (of == Some(index), ip, prefix) {
                    found.push((ip, prefix));
                }
            })
        })
    }

    /// Looks at all routes of the namespace, of both families and all tables, and keeps none of
    /// them, since there may be any number: what `each` makes of them, one after the other, `first`
    /// being what it begins with.
    ///
    /// # Errors
    /// The kernel refuses to say, or they change all the time.
    pub fn routes<T: Clone>(
        &mut self,
        first: &[T],
        each: impl Fn(&mut [T], &RouteKey, &Route),
    ) -> Result<Vec<T>, Error> {
        self.list(first, |changes, found| {
            for family in [Family::V4, Family::V6] {
                let mut body = [0; 12];
                body[0] = family.code();
                changes.dump("list routes", RTM_GETROUTE, &body, |message| {
                    if let Some((key, route)) = route_as_told(message) {
                        each(found, &key, &route);
                    }
                })?;
            }
            Ok(())
        })
    }

    /// What dumps find, from the beginning each time that the kernel says that one is not whole.
    fn list<T: Clone>(
        &mut self,
        first: &[T],
        mut dumps: impl FnMut(&mut Self, &mut Vec<T>) -> Result<(), Error>,
    ) -> Result<Vec<T>, Error> {
        let mut tries = 0;
        loop {
            let mut found = first.to_vec();
            tries += 1;
            match dumps(self, &mut found) {
                Err(Error::Interrupted(_)) if tries < DUMPS_MAX => {}
                done => return done.map(|()| found),
            }
        }
    }

    /// Gives an interface an address; one that it has is no error. It is good at once: nobody is
    /// asked whether they have it too (RFC 4862, section 5.4), which the caller knows.
    ///
    /// # Errors
    /// The interface is gone, or the kernel refuses the address.
    pub fn add_address(&mut self, index: u32, ip: IpAddr, prefix: u8) -> Result<(), Error> {
        self.done("add an address", |sequence| {
            let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
            let mut request =
                Request::new(RTM_NEWADDR, flags, sequence, &ifaddrmsg(index, ip, prefix))
                    .with_ip(IFA_LOCAL, ip)
                    .with_ip(IFA_ADDRESS, ip)
                    .with(IFA_FLAGS, &IFA_F_NODAD.to_ne_bytes());
            if let (IpAddr::V4(ip), true) = (ip, prefix < 31) {
                let host_bits = u32::MAX.checked_shr(prefix.into()).unwrap_or(0);
                let broadcast = Ipv4Addr::from(u32::from(ip) | host_bits);
                request = request.with(IFA_BROADCAST, &broadcast.octets());
            }
            request.finish()
        })
    }

    /// Takes an address away; one that is not there is no error.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn remove_address(&mut self, index: u32, ip: IpAddr, prefix: u8) -> Result<(), Error> {
        let done = self.done("remove an address", |sequence| {
            let body = ifaddrmsg(index, ip, prefix);
            Request::new(RTM_DELADDR, NLM_F_ACK, sequence, &body)
                .with_ip(IFA_LOCAL, ip)
                .finish()
        });
        missing_is_fine(done)
    }

    /// Adds a route by an interface, in the place of one to the same destinations.
    ///
    /// # Errors
    /// The interface is down or gone, or the next hop is not reached by it.
    pub fn add_route(&mut self, index: u32, route: &WantedRoute) -> Result<(), Error> {
        let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
        self.done("add a route", |sequence| {
            route.request(RTM_NEWROUTE, flags, sequence, index)
        })
    }

    /// Takes a route away; one that is not there is no error.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn remove_route(&mut self, index: u32, route: &WantedRoute) -> Result<(), Error> {
        let done = self.done("remove a route", |sequence| {
            route.request(RTM_DELROUTE, NLM_F_ACK, sequence, index)
        });
        missing_is_fine(done)
    }

    fn set(
        &mut self,
        index: u32,
        action: &'static str,
        flags: u32,
        change: u32,
        with: impl FnOnce(Request) -> Request,
    ) -> Result<(), Error> {
        self.done(action, |sequence| {
            let body = ifinfomsg(index, flags, change);
            with(Request::new(RTM_SETLINK, NLM_F_ACK, sequence, &body)).finish()
        })
    }

    fn device(&mut self, request: impl FnOnce(u32) -> Vec<u8>) -> Result<Option<Device>, Error> {
        let action = "look at an interface";
        match self.ask(action, request) {
            Ok(answer) => {
                let found = messages(&answer)
                    .next()
                    .and_then(|message| device(&message));
                found.map(Some).ok_or(Error::Malformed(action))
            }
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends a request that asks for an acknowledgement, and waits for it.
    fn done(
        &mut self,
        action: &'static str,
        request: impl FnOnce(u32) -> Vec<u8>,
    ) -> Result<(), Error> {
        self.ask(action, request).map(drop)
    }

    fn send(&mut self, request: impl FnOnce(u32) -> Vec<u8>) -> Result<u32, Error> {
        self.sequence = self.sequence.wrapping_add(1);
        let bytes = request(self.sequence);
        self.socket.send(&bytes, 0).map_err(failed)?;
        Ok(self.sequence)
    }

    fn receive(&mut self) -> Result<Vec<u8>, Error> {
        let mut buffer = Vec::with_capacity(DATAGRAM_BYTES);
        self.socket.recv(&mut buffer, 0).map_err(failed)?;
        Ok(buffer)
    }

    fn ask(
        &mut self,
        action: &'static str,
        request: impl FnOnce(u32) -> Vec<u8>,
    ) -> Result<Vec<u8>, Error> {
        let sequence = self.send(request)?;
        loop {
            let answer = self.receive()?;
            let Some(message) = messages(&answer).next() else {
                return Err(Error::Malformed(action));
            };
            if message.sequence != sequence {
                continue;
            }
            return match message.error() {
                Some(code) if code != 0 => Err(refused(action, code)),
                _ => Ok(answer),
            };
        }
    }

    fn dump(
        &mut self,
        action: &'static str,
        kind: u16,
        body: &[u8],
        mut each: impl FnMut(&Message<'_>),
    ) -> Result<(), Error> {
        let sequence =
            self.send(|sequence| Request::new(kind, NLM_F_DUMP, sequence, body).finish())?;
        let mut dump = Dump::new(action, sequence);
        loop {
            let datagram = self.receive()?;
            if let Some(done) = dump.read(&datagram, &mut each) {
                return done;
            }
        }
    }
}

impl WantedRoute {
    fn request(&self, kind: u16, flags: u16, sequence: u32, index: u32) -> Vec<u8> {
        let scope = match (self.to, self.via) {
            (IpNet::V4(_), None) => RT_SCOPE_LINK,
            _ => RT_SCOPE_UNIVERSE,
        };
        let mut body = [0u8; 12];
        body[0] = family(self.to.addr());
        body[1] = self.to.prefix_len();
        body[4] = RT_TABLE_MAIN;
        body[5] = RTPROT_STATIC;
        body[6] = scope;
        body[7] = RTN_UNICAST;
        if self.onlink && self.via.is_some() {
            body[8..].copy_from_slice(&u32::from(RTNH_F_ONLINK).to_ne_bytes());
        }
        let mut request =
            Request::new(kind, flags, sequence, &body).with(RTA_OIF, &index.to_ne_bytes());
        if self.to.prefix_len() > 0 {
            request = request.with_ip(RTA_DST, self.to.network());
        }
        if let Some(via) = self.via {
            request = request.with_ip(RTA_GATEWAY, via);
        }
        if let Some(mtu) = self.mtu {
            let metrics = Nested::default().with(RTAX_MTU, &mtu.to_ne_bytes());
            request = request.with(RTA_METRICS, &metrics.0);
        }
        request.finish()
    }
}

/// What an RTM_NEWLINK message says of an interface.
fn device(message: &Message<'_>) -> Option<Device> {
    if message.kind != RTM_NEWLINK {
        return None;
    }
    let mut device = Device {
        index: u32_at(message.body, 4)?,
        name: String::new(),
        kind: String::new(),
        alias: String::new(),
        mac: Mac([0; 6]),
        mtu: 0,
        up: u32_at(message.body, 8)? & IFF_UP != 0,
        carrier: false,
        far: None,
        far_namespace: None,
        queues: None,
    };
    for attribute in message.attributes(IFINFOMSG) {
        match attribute.kind {
            IFLA_IFNAME => device.name = attribute.text(),
            IFLA_IFALIAS => device.alias = attribute.text(),
            IFLA_CARRIER => device.carrier = attribute.value.first() == Some(&1),
            IFLA_MTU => device.mtu = attribute.u32()?,
            IFLA_LINK => device.far = attribute.u32(),
            IFLA_LINK_NETNSID => device.far_namespace = attribute.u32().map(|id| id as i32),
            IFLA_ADDRESS => {
                if let Ok(mac) = attribute.value.try_into() {
                    device.mac = Mac(mac);
                }
            }
            IFLA_LINKINFO => {
                let find = |wanted| attributes(attribute.value).find(|a| a.kind == wanted);
                let kind = find(IFLA_INFO_KIND).map(|kind| kind.text());
                device.kind = kind.unwrap_or_default();
                if device.kind == "tun" {
                    device.queues = find(IFLA_INFO_DATA).and_then(|data| queues(&data));
                }
            }
            _ => {}
        }
    }
    Some(device)
}

/// How many queues a TAP device has, of the two kinds that the kernel tells apart; `None`: it is
/// not one of several.
fn queues(data: &Attribute<'_>) -> Option<u32> {
    let number = |kind| attributes(data.value).find(|a| a.kind == kind)?.u32();
    Some(number(IFLA_TUN_NUM_QUEUES)?.saturating_add(number(IFLA_TUN_NUM_DISABLED_QUEUES)?))
}

/// Attributes in an attribute.
#[derive(Default)]
struct Nested(Vec<u8>);

impl Nested {
    fn fixed(bytes: &[u8]) -> Nested {
        Nested(bytes.to_vec())
    }

    fn with(mut self, kind: u16, value: &[u8]) -> Nested {
        // Values here are names, numbers and the like.
        let len = value.len() as u16 + 4;
        self.0.extend_from_slice(&len.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize((self.0.len() + 3) & !3, 0);
        self
    }
}

fn ifinfomsg(index: u32, flags: u32, change: u32) -> [u8; IFINFOMSG] {
    let mut body = [0; IFINFOMSG];
    body[4..8].copy_from_slice(&index.to_ne_bytes());
    body[8..12].copy_from_slice(&flags.to_ne_bytes());
    body[12..].copy_from_slice(&change.to_ne_bytes());
    body
}

fn ifaddrmsg(index: u32, ip: IpAddr, prefix: u8) -> [u8; 8] {
    let mut body = [0; 8];
    body[0] = family(ip);
    body[1] = prefix;
    body[4..].copy_from_slice(&index.to_ne_bytes());
    body
}

fn family(ip: IpAddr) -> u8 {
    Family::of(ip).code()
}

/// A string with the zero that ends it.
fn text(text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.push(0);
    bytes
}

fn failed(source: io::Error) -> Error {
    Error::Socket {
        action: "use",
        source,
    }
}

fn refused(action: &'static str, code: i32) -> Error {
    Error::Refused {
        action,
        source: io::Error::from_raw_os_error(code),
    }
}

/// The kernel's words for an interface, address or route that is not there.
fn is_missing(error: &Error) -> bool {
    let Error::Refused { source, .. } = error else {
        return false;
    };
    use rustix::io::Errno;
    let codes = [Errno::NODEV, Errno::ADDRNOTAVAIL, Errno::SRCH, Errno::NXIO];
    Errno::from_io_error(source).is_some_and(|errno| codes.contains(&errno))
}

fn missing_is_fine(done: Result<(), Error>) -> Result<(), Error> {
    match done {
        Err(error) if is_missing(&error) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_off_is_asked_for_again_from_the_beginning() {
        let mut changes = Changes::new().unwrap();
        let mut asked = |cut_off: u32| {
            let mut tries = 0;
            let found = changes.list(&[0], |_, found| {
                tries += 1;
                found[0] += 1;
                match tries <= cut_off {
                    true => Err(Error::Interrupted("list")),
                    false => Ok(()),
                }
            });
            (tries, found)
        };
        assert!(matches!(asked(0), (1, Ok(found)) if found == [1]));
        assert!(matches!(asked(3), (4, Ok(found)) if found == [1]));
        assert!(matches!(
            asked(100),
            (DUMPS_MAX, Err(Error::Interrupted(_)))
        ));
    }

    #[test]
    fn routes_and_addresses_are_looked_at_as_they_come() {
        let mut changes = Changes::new().unwrap();
        let lo = changes.by_name("lo").unwrap().unwrap();
        let any = changes.addresses(lo.index, |_| true).unwrap();
        let none = changes.addresses(lo.index, |_| false).unwrap();
        assert!(none.is_empty() && any.iter().all(|(ip, _)| ip.is_loopback()));
        let [count] = changes.routes(&[0], |count, _, _| count[0] += 1).unwrap()[..] else {
            panic!("one number");
        };
        let tables = |tables: &mut [u32], key: &RouteKey, _: &Route| tables[0] |= key.table;
        assert_eq!(changes.routes(&[0], tables).unwrap()[0] > 0, count > 0);
    }
}
