//! Hosts, networks and bindings of v1 to the model's.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use api::v1;
use control::Error;
use control::model::{
    Binding, BindingKey, Flood, Host, HostUpdate, Membership, NetworkOptions, parse_address,
    parse_mac, parse_vni,
};
use wire::Vni;

use super::given;

/// A host's address, its key.
pub fn host_address(text: &str) -> Result<IpAddr, Error> {
    parse_address(&"host", "address", text)
}

/// A host to put.
pub fn host(host: v1::Endpoint) -> Result<Host, Error> {
    let address = host_address(&host.address)?;
    let owner = host_owner(address);
    let listed = vnis(&owner, &host.vnis)?;
    let vnis = match (host.every_vni, host.vnis.first()) {
        (false, _) => Membership::Listed(listed.into_iter().collect::<BTreeSet<_>>()),
        (true, None) => Membership::Every,
        (true, Some(vni)) => {
            let why = "is listed, and the host is in every VNI";
            return Err(Error::value(&owner, "VNI", &vni.to_string(), why));
        }
    };
    Ok(Host {
        address,
        name: host.name,
        vnis,
    })
}

/// Which host to update, and with what.
pub fn host_update(update: v1::UpdateEndpointRequest) -> Result<(IpAddr, HostUpdate), Error> {
    let address = host_address(&update.address)?;
    let owner = host_owner(address);
    let change = HostUpdate {
        name: update.name,
        every_vni: update.every_vni,
        leave: vnis(&owner, &update.leave_vnis)?,
        join: vnis(&owner, &update.join_vnis)?,
    };
    Ok((address, change))
}

fn host_owner(address: IpAddr) -> String {
    format!("host '{address}'")
}

fn vnis(owner: &String, ids: &[u32]) -> Result<Vec<Vni>, Error> {
    ids.iter().map(|id| parse_vni(owner, *id)).collect()
}

/// A VNI that stands alone.
pub fn vni(id: u32) -> Result<Vni, Error> {
    parse_vni(&"network", id)
}

/// What is to be said of a network.
pub fn network(network: v1::Network) -> Result<NetworkOptions, Error> {
    let vni = vni(network.vni)?;
    let owner = format!("VNI {vni}");
    let group = given(network.multicast_group)
        .map(|text| parse_address(&owner, "multicast group", &text))
        .transpose()?;
    let hosts = |what: &'static str, texts: &[String]| {
        let hosts = texts.iter().map(|text| parse_address(&owner, what, text));
        hosts.collect::<Result<Arc<[IpAddr]>, Error>>()
    };
    let dhcp_servers = hosts("DHCP server's host", &network.dhcp_servers)?;
    let routers = hosts("router's host", &network.routers)?;
    let flood = match v1::Flood::try_from(network.flood) {
        Ok(v1::Flood::Unspecified) => None,
        Ok(v1::Flood::HeadEnd) => Some(Flood::HeadEnd),
        Ok(v1::Flood::Multicast) => Some(Flood::Multicast(group)),
        Ok(v1::Flood::Off) => Some(Flood::Off),
        Err(_) => {
            let why = "is no way to flood";
            return Err(Error::value(
                &owner,
                "flood",
                &network.flood.to_string(),
                why,
            ));
        }
    };
    match (group, flood) {
        (Some(group), None | Some(Flood::HeadEnd | Flood::Off)) => {
            let why = "goes with flood MULTICAST alone";
            Err(Error::value(
                &owner,
                "multicast group",
                &group.to_string(),
                why,
            ))
        }
        _ => Ok(NetworkOptions {
            vni,
            learning: network.learning,
            flood,
            from_anybody: network.from_anybody,
            dhcp_servers,
            routers,
        }),
    }
}

/// What names a binding.
pub fn binding_key(key: &v1::BindingKey) -> Result<BindingKey, Error> {
    Ok((
        parse_vni(&"binding", key.vni)?,
        parse_mac(&"binding", &key.mac)?,
    ))
}

/// A binding to put.
pub fn binding(binding: &v1::Binding) -> Result<Binding, Error> {
    let (vni, mac) = (
        parse_vni(&"binding", binding.vni)?,
        parse_mac(&"binding", &binding.mac)?,
    );
    // Composed for an error alone: there may be a million of them.
    let parse = |field, text: &str| {
        text.parse()
            .or_else(|_| parse_address(&format!("binding of {mac} in VNI {vni}"), field, text))
    };
    let ips = binding.addresses.iter().map(|text| parse("IP", text));
    Ok(Binding {
        ips: ips.collect::<Result<_, _>>()?,
        ..Binding::new(vni, mac, parse("host", &binding.endpoint)?)
    })
}

/// Bindings by key. Two of one key would lose one of them: refused.
pub fn bindings(given: &[v1::Binding]) -> Result<BTreeMap<BindingKey, Binding>, Error> {
    let mut bindings = BTreeMap::new();
    for one in given {
        let one = binding(one)?;
        if let Some(twice) = bindings.insert(one.key(), one) {
            let owner = format!("binding of {} in VNI {}", twice.mac, twice.vni);
            return Err(Error::value(
                &owner,
                "MAC",
                &twice.mac.to_string(),
                "is given twice",
            ));
        }
    }
    Ok(bindings)
}

/// Hosts by address, each once.
pub fn hosts(given: Vec<v1::Endpoint>) -> Result<BTreeMap<IpAddr, Host>, Error> {
    let mut hosts = BTreeMap::new();
    for one in given {
        let one = host(one)?;
        if let Some(twice) = hosts.insert(one.address, one) {
            let address = twice.address.to_string();
            return Err(Error::value(
                &host_owner(twice.address),
                "address",
                &address,
                "is given twice",
            ));
        }
    }
    Ok(hosts)
}

/// Networks by VNI, each once.
pub fn networks(given: Vec<v1::Network>) -> Result<BTreeMap<Vni, NetworkOptions>, Error> {
    let mut networks = BTreeMap::new();
    for one in given {
        let one = network(one)?;
        if let Some(twice) = networks.insert(one.vni, one) {
            let vni = twice.vni.to_string();
            return Err(Error::value(
                &format!("VNI {vni}"),
                "VNI",
                &vni,
                "is given twice",
            ));
        }
    }
    Ok(networks)
}
