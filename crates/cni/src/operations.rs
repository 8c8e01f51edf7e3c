//! The operations, one function each.

use std::collections::BTreeSet;
use std::time::Instant;

use api::v1;
use ipnet::IpNet;
use serde_json::Value;

use crate::call::{Call, Command};
use crate::check;
use crate::config::Config;
use crate::daemon::{Daemon, id, mac, whose};
use crate::error::Error;
use crate::ipam;
use crate::result::{self, Addresses, Made};

/// Does what is asked; what is to be printed.
pub async fn run(call: &Call, config: &Config) -> Result<Option<Value>, Error> {
    match call.command {
        Command::Add => add(call, config).await.map(Some),
        Command::Del => del(call, config).await.map(|()| None),
        Command::Check => compare(call, config).await.map(|()| None),
        Command::Gc => gc(call, config).await.map(|()| None),
        Command::Status => status(call, config).await.map(|()| None),
        // Answered before there is a configuration.
        Command::Version => Ok(None),
    }
}

async fn add(call: &Call, config: &Config) -> Result<Value, Error> {
    config.vni(call)?;
    is_free(call, config)?;
    let mut daemon = Daemon::connect(&config.socket).await?;
    let id = id(&config.name, &call.container, &call.ifname);
    let existed = daemon.nic(&id).await?.is_some();
    let before = ipam::held(call, config)?;
    let addresses = ipam::add(call, config).inspect_err(|_| {
        // Of a container that runs they are what it sends from.
        if !existed {
            ipam::failed(call, config);
        }
    })?;
    let made = make(&mut daemon, &id, call, config, addresses).await;
    if made.is_err() {
        // The error that is told is the first one.
        if existed {
            let _ = ipam::give_back_but(call, config, &before);
        } else if daemon.delete(&id).await.is_ok() {
            // Else there may be a NIC that sends from them: DEL or GC gives them back.
            let _ = ipam::del(call, config);
        }
    }
    Ok(result::added(
        &config.version,
        &made?,
        config.previous.as_ref(),
    ))
}

/// The interface's name is not taken by a plugin before this one in the list: a runtime gives all
/// of them the same name, and an interface that two have made would be neither's.
fn is_free(call: &Call, config: &Config) -> Result<(), Error> {
    let before = config.previous.as_ref();
    let taken = before.and_then(|before| check::answered(before, call).transpose());
    match taken {
        Some(_) => Err(Error::config(format!(
            "{} is the interface of a plugin before this one (prevResult): in a list butterfly-cni \
             comes before plugins that set its interface up, and not behind one that makes another",
            call.ifname
        ))),
        None => Ok(()),
    }
}

async fn make(
    daemon: &mut Daemon,
    id: &str,
    call: &Call,
    config: &Config,
    mut addresses: Addresses,
) -> Result<Made, Error> {
    if config.dns.as_object().is_some_and(|dns| !dns.is_empty()) {
        addresses.dns = config.dns.clone();
    }
    let asked = call.arguments.mac.clone().or(config.mac.clone());
    let mac = asked.unwrap_or_else(|| mac(id));
    let ips = addresses.ips.iter();
    let nic = v1::Nic {
        id: id.to_owned(),
        mac: mac.clone(),
        vni: config.vni(call)?,
        addresses: ips.clone().map(|ip| ip.net.addr().to_string()).collect(),
        security_groups: call
            .arguments
            .groups
            .clone()
            .unwrap_or(config.groups.clone()),
        anti_spoof: Some(config.anti_spoof),
        kind: v1::NicKind::Veth.into(),
        mtu: config.mtu,
        veth: Some(veth(call, &addresses)),
        ..Default::default()
    };
    let status = daemon.put(nic).await?;
    if status.state() == v1::PortState::Broken {
        return Err(Error::refused(format!(
            "the interface cannot be made: {}",
            status.detail
        )));
    }
    Ok(Made {
        host: status.path,
        name: call.ifname.clone(),
        mac,
        mtu: status.mtu,
        netns: call.netns.clone(),
        addresses,
    })
}

/// The container's end. A route without a next hop goes by its family's gateway, where there is one
/// (SPEC.md: "if omitted, the gateway is used").
fn veth(call: &Call, addresses: &Addresses) -> v1::Veth {
    let gateway = |to: &IpNet| {
        let same = |ip: &&crate::result::Ip| ip.net.addr().is_ipv4() == to.addr().is_ipv4();
        addresses.ips.iter().filter(same).find_map(|ip| ip.gateway)
    };
    let (mut gateways, mut routes) = (Vec::new(), Vec::new());
    for route in &addresses.routes {
        let via = route.via.or_else(|| gateway(&route.to));
        match via {
            Some(via) if route.to.prefix_len() == 0 => gateways.push(via.to_string()),
            via => routes.push(v1::VethRoute {
                to: route.to.to_string(),
                via: via.map(|via| via.to_string()).unwrap_or_default(),
            }),
        }
    }
    v1::Veth {
        netns: call.netns.clone(),
        ifname: call.ifname.clone(),
        subnets: addresses
            .ips
            .iter()
            .map(|ip| ip.net.trunc().to_string())
            .collect(),
        gateways,
        routes,
    }
}

async fn del(call: &Call, config: &Config) -> Result<(), Error> {
    let mut daemon = Daemon::connect(&config.socket).await?;
    daemon
        .delete(&id(&config.name, &call.container, &call.ifname))
        .await?;
    // Only when nobody can send from them any more.
    ipam::del(call, config)
}

async fn compare(call: &Call, config: &Config) -> Result<(), Error> {
    let Some(previous) = &config.previous else {
        return Err(Error::config("CHECK comes without prevResult"));
    };
    ipam::check(call, config)?;
    let mut daemon = Daemon::connect(&config.socket).await?;
    let id = id(&config.name, &call.container, &call.ifname);
    let Some(status) = daemon.nic(&id).await? else {
        return Err(Error::differs(format!("there is no NIC '{id}'")));
    };
    if status.state() != v1::PortState::Up {
        return Err(Error::differs(format!(
            "NIC '{id}' is not up: {}",
            status.detail
        )));
    }
    check::check(call, previous, &status)
}

async fn gc(call: &Call, config: &Config) -> Result<(), Error> {
    let Some(valid) = &config.valid else {
        return Err(Error::config("GC comes without cni.dev/valid-attachments"));
    };
    let mut daemon = Daemon::connect(&config.socket).await?;
    let used = valid
        .iter()
        .map(|one| id(&config.name, &one.container, &one.ifname));
    let mut used: BTreeSet<String> = used.collect();
    let ids = daemon.ids(&config.name).await?;
    let lost: Vec<&String> = ids.iter().filter(|id| !used.contains(*id)).collect();
    let (mut silent, mut failed) = (Vec::new(), Vec::new());
    // All of them before another plugin is waited for.
    for id in lost {
        match daemon.silence(id).await {
            Ok(()) => silent.push(id),
            Err(error) => failed.push((id, error)),
        }
    }
    let are_silent = failed.is_empty();
    let until = Instant::now() + ipam::PATIENCE;
    for id in silent {
        if let Err(error) = collect(&mut daemon, call, config, id, until).await {
            failed.push((id, error));
        }
    }
    let mut errors = Vec::new();
    for (id, error) in failed {
        let message = format!("NIC '{id}' is not collected: {}", error.message);
        errors.push(Error { message, ..error });
        // Its leases stay with it, and the next GC finds both.
        used.insert(id.clone());
    }
    // Another plugin may give away at once what a NIC has that still sends.
    if are_silent || !ipam::is_delegated(config) {
        let is_used =
            |container: &str, ifname: &str| used.contains(&id(&config.name, container, ifname));
        errors.extend(ipam::gc(call, config, is_used, until).err());
    }
    Error::all(&errors)
}

/// Removes a NIC that no container has and by which nothing passes. What another plugin has given
/// it goes first, since a NIC that is gone is found by no later GC.
async fn collect(
    daemon: &mut Daemon,
    call: &Call,
    config: &Config,
    id: &str,
    until: Instant,
) -> Result<(), Error> {
    // Of a name that was too long for an id only its digest is known.
    if let Some((container, ifname)) = whose(&config.name, id) {
        ipam::lost(call, config, container, ifname, until)?;
    }
    daemon.delete(id).await
}

async fn status(call: &Call, config: &Config) -> Result<(), Error> {
    let unavailable = |e: Error| Error::unavailable(e.message);
    let mut daemon = Daemon::connect(&config.socket).await.map_err(unavailable)?;
    daemon.is_there().await.map_err(unavailable)?;
    ipam::status(call, config)
}
