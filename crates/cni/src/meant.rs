//! What a call means, before anything is done of it: for whoever drives that without a runtime, a
//! daemon and a file of leases.

use std::net::IpAddr;

use serde_json::Value;

use crate::call::{Call, Command};
use crate::check::answered;
use crate::config::{Config, Ipam};
use crate::daemon::{id, mac};
use crate::error::Error;
use crate::ipam;
use crate::result::{self, Addresses, Made};

/// What an ADD would do.
#[derive(Debug, Clone, PartialEq)]
pub struct Meant {
    /// The NIC's id.
    pub nic: String,
    /// The NIC's MAC, where none is asked for.
    pub mac: String,
    /// The plugin that is asked for addresses.
    pub plugin: Option<String>,
    /// Addresses that are asked for.
    pub asked: Vec<IpAddr>,
    /// Addresses that would be given, with the lengths of their networks' prefixes and their
    /// gateways: of ranges the first ones.
    pub given: Vec<(IpAddr, u8, Option<IpAddr>)>,
    /// The answer.
    pub answer: Value,
}

/// What the environment and a configuration mean; `None`: nothing is added. The error is as a
/// runtime gets it.
pub fn meant(variable: impl Fn(&str) -> String, input: &str) -> Result<Option<Meant>, Value> {
    let mut version = result::NEWEST.to_owned();
    try_meant(variable, input, &mut version).map_err(|error| error.told(&version))
}

fn try_meant(
    variable: impl Fn(&str) -> String,
    input: &str,
    version: &mut String,
) -> Result<Option<Meant>, Error> {
    let call = Call::read(variable)?;
    if call.command == Command::Version {
        let _ = result::versions(input);
        return Ok(None);
    }
    let config = Config::parse(input)?;
    version.clone_from(&config.version);
    if let Some(previous) = &config.previous {
        // As the answer of a plugin for addresses is read, and as DEL and CHECK read it.
        let _ = Addresses::parse(previous);
        let _ = answered(previous, &call);
    }
    if call.command != Command::Add {
        return Ok(None);
    }
    config.vni(&call)?;
    let (plugin, addresses) = match &config.ipam {
        Ipam::Plugin(plugin) => (Some(plugin.clone()), Addresses::default()),
        Ipam::Ours(ranges) => (None, ipam::first_of(ranges)?),
        Ipam::NotUsed => (None, ipam::add(&call, &config)?),
    };
    let nic = id(&config.name, &call.container, &call.ifname);
    let given = addresses.ips.iter();
    let given = given.map(|ip| (ip.net.addr(), ip.net.prefix_len(), ip.gateway));
    let made = Made {
        host: "bf-0".to_owned(),
        name: call.ifname.clone(),
        mac: mac(&nic),
        mtu: config.mtu,
        netns: call.netns.clone(),
        addresses: addresses.clone(),
    };
    Ok(Some(Meant {
        mac: made.mac.clone(),
        plugin,
        asked: config.asked(&call)?,
        given: given.collect(),
        answer: result::added(&config.version, &made, config.previous.as_ref()),
        nic,
    }))
}
