//! CHECK: whether the container's interface is what ADD has answered (`prevResult`) and what the
//! daemon has been told. Called by `operations`; `meant` reads an answer by it too.

use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsFd;

use api::v1;
use ipnet::IpNet;
use netlink::change::{Changes, Device};
use netlink::{RouteKey, RouteKind};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;

use crate::call::Call;
use crate::error::Error;

/// The table of routes that packets are looked up in without rules of one's own.
const MAIN_TABLE: u32 = 254;

/// What ADD has answered: of this interface, and the routes of all plugins.
pub struct Answered {
    mac: Option<String>,
    mtu: Option<u64>,
    sandbox: String,
    ips: Vec<IpNet>,
    routes: Vec<Route>,
}

/// A route that has to be there.
struct Route {
    to: IpNet,
    /// `None`: whichever next hop it has.
    via: Option<IpAddr>,
    table: u32,
    /// By our interface; else by any.
    is_ours: bool,
}

/// What the container has of what is wanted. What else it has may be any number of addresses and
/// routes, which its root says.
struct Within {
    device: Device,
    addresses: Vec<(IpAddr, u8)>,
    /// Whether there is each of the routes.
    routes: Vec<bool>,
}

/// The error says the first thing that differs.
pub fn check(call: &Call, previous: &Value, status: &v1::NicStatus) -> Result<(), Error> {
    let differs = |why: String| Err(Error::differs(why));
    let ifname = &call.ifname;
    let Some(answered) = answered(previous, call)? else {
        return differs(format!("prevResult has no interface {ifname} in a sandbox"));
    };
    if !is_same(&answered.sandbox, &call.netns) {
        let (said, is) = (&answered.sandbox, &call.netns);
        return differs(format!(
            "prevResult has {ifname} in the sandbox {said}, and CNI_NETNS is {is}"
        ));
    }
    let nic = status.nic.clone().unwrap_or_default();
    let mut routes = answered.routes;
    routes.extend(declared(nic.veth.unwrap_or_default()));
    let within = within(call, &answered.ips, &routes)?;
    let device = &within.device;
    for mac in answered.mac.iter().chain([&nic.mac]) {
        if !mac.eq_ignore_ascii_case(&device.mac.to_string()) {
            return differs(format!("{ifname} has the MAC {}, not {mac}", device.mac));
        }
    }
    for mtu in answered.mtu.into_iter().chain([status.mtu.into()]) {
        if mtu != u64::from(device.mtu) {
            return differs(format!("{ifname} has the MTU {}, not {mtu}", device.mtu));
        }
    }
    for ip in &nic.addresses {
        if !answered.ips.iter().any(|net| net.addr().to_string() == *ip) {
            return differs(format!("prevResult has not {ip}, an address of {ifname}"));
        }
    }
    for net in &answered.ips {
        let (ip, len) = (net.addr(), net.prefix_len());
        match within.addresses.iter().find(|(is, _)| *is == ip) {
            Some((_, is)) if *is != len => {
                return differs(format!("{ifname} has {ip}/{is}, not {net}"));
            }
            Some(_) if nic.addresses.contains(&ip.to_string()) => {}
            _ => return differs(format!("{ifname} has not the address {ip}")),
        }
    }
    match within.routes.iter().position(|is_there| !is_there) {
        Some(at) => differs(format!("the container has no route {}", routes[at])),
        None => Ok(()),
    }
}

/// What ADD has answered for this interface; `None`: it has answered none. Two paths may name one
/// sandbox, so of several interfaces of this name the one is taken that has the call's path.
pub fn answered(previous: &Value, call: &Call) -> Result<Option<Answered>, Error> {
    let interfaces = previous["interfaces"].as_array();
    let interfaces = interfaces.map_or([].as_slice(), Vec::as_slice);
    let sandbox = |one: &Value| one["sandbox"].as_str().unwrap_or_default().to_owned();
    let inside = |one: &Value| one["name"] == *call.ifname && !sandbox(one).is_empty();
    let here = |one: &Value| inside(one) && sandbox(one) == call.netns;
    let at = interfaces.iter().position(here);
    let Some(at) = at.or_else(|| interfaces.iter().position(inside)) else {
        return Ok(None);
    };
    let wrong = |what: &Value| Error::decode(format!("prevResult: {what}"));
    let list = |field: &str| previous[field].as_array().into_iter().flatten();
    let is_ours = |ip: &&Value| {
        ip["interface"]
            .as_u64()
            .is_some_and(|index| index == at as u64)
    };
    let ips = list("ips").filter(is_ours).map(|ip| {
        let net = ip["address"].as_str().and_then(|text| text.parse().ok());
        net.ok_or_else(|| wrong(ip))
    });
    let routes = list("routes").map(|one| {
        let text = |field: &str| one[field].as_str().filter(|text| !text.is_empty());
        let to: Option<IpNet> = text("dst").and_then(|to| to.parse().ok());
        let via = text("gw").map(str::parse).transpose();
        let table = one["table"].as_u64().unwrap_or(MAIN_TABLE.into());
        Ok(Route {
            to: to.ok_or_else(|| wrong(one))?.trunc(),
            via: via.map_err(|_| wrong(one))?,
            table: u32::try_from(table).map_err(|_| wrong(one))?,
            is_ours: false,
        })
    });
    let mac = interfaces[at]["mac"].as_str();
    Ok(Some(Answered {
        mac: mac.filter(|mac| !mac.is_empty()).map(str::to_owned),
        mtu: interfaces[at]["mtu"].as_u64().filter(|mtu| *mtu > 0),
        sandbox: sandbox(&interfaces[at]),
        ips: ips.collect::<Result<_, _>>()?,
        routes: routes.collect::<Result<_, Error>>()?,
    }))
}

/// Whether two paths are of one namespace. What cannot be looked at is what its path says.
fn is_same(a: &str, b: &str) -> bool {
    let file = |path: &str| {
        let stat = rustix::fs::stat(path).ok()?;
        Some((stat.st_dev, stat.st_ino))
    };
    a == b || file(a).is_some_and(|a| file(b) == Some(a))
}

/// The routes that the daemon has been told.
fn declared(veth: v1::Veth) -> Vec<Route> {
    let gateways = veth.gateways.iter().filter_map(|via| {
        let via: IpAddr = via.parse().ok()?;
        let any: IpNet = if via.is_ipv4() { "0.0.0.0/0" } else { "::/0" }
            .parse()
            .ok()?;
        Some((any, Some(via)))
    });
    let routes = veth.routes.iter();
    let routes = routes.filter_map(|route| Some((route.to.parse().ok()?, route.via.parse().ok())));
    let ours = |(to, via): (IpNet, Option<IpAddr>)| Route {
        to: to.trunc(),
        via,
        table: MAIN_TABLE,
        is_ours: true,
    };
    gateways.chain(routes).map(ours).collect()
}

impl Route {
    /// Whether a route of the container is this one; `ifindex` is our interface.
    fn is(&self, ifindex: u32, key: &RouteKey, route: &netlink::Route) -> bool {
        let hop = |hop: &netlink::Hop| {
            (!self.is_ours || hop.ifindex == ifindex)
                && self.via.is_none_or(|via| hop.gateway == Some(via))
        };
        route.kind == RouteKind::Unicast
            && (key.table, key.dst) == (self.table, self.to)
            && route.hops.iter().any(hop)
    }
}

impl std::fmt::Display for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "to {}", self.to)?;
        match self.via {
            Some(via) => write!(f, " via {via}"),
            None => Ok(()),
        }
    }
}

/// Looks at the interface from inside.
fn within(call: &Call, ips: &[IpNet], routes: &[Route]) -> Result<Within, Error> {
    let differs = |why: String| Error::differs(format!("{} ({}): {why}", call.ifname, call.netns));
    let space = File::open(&call.netns).map_err(|e| differs(e.to_string()))?;
    let look = || {
        move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|e| e.to_string())?;
        let mut changes = Changes::new().map_err(|e| e.to_string())?;
        let device = changes.by_name(&call.ifname).map_err(|e| e.to_string())?;
        let device = device.filter(|device| device.up);
        let device = device.ok_or_else(|| "it is not there, or not up".to_owned())?;
        let is_wanted = |ip: &IpAddr| ips.iter().any(|net| net.addr() == *ip);
        let addresses = changes.addresses(device.index, is_wanted);
        let compare = |found: &mut [bool], key: &RouteKey, route: &netlink::Route| {
            for (found, wanted) in found.iter_mut().zip(routes) {
                *found |= wanted.is(device.index, key, route);
            }
        };
        let found = changes.routes(&vec![false; routes.len()], compare);
        Ok(Within {
            addresses: addresses.map_err(|e| e.to_string())?,
            routes: found.map_err(|e| e.to_string())?,
            device,
        })
    };
    let joined = std::thread::scope(|scope| scope.spawn(look).join());
    joined
        .unwrap_or_else(|_| Err("the thread inside panicked".to_owned()))
        .map_err(differs)
}
