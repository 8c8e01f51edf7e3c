//! Operations on who is where, request to answer; the service calls them with the controller.

use api::v1;
use control::model::{BindingKey, Host, NetworkOptions};
use control::{Error, HostStatus};
use prost::Message;
use std::sync::Arc;
use tonic::Status;
use wire::Vni;

use super::budget::{self, Held};
use super::convert::overlay as convert;
use super::render;
use super::service::refused;
use crate::access::{Permitted, Refusal};
use crate::app::App;

/// A stream of which every item is there already.
pub type Items<T> = tokio_stream::Iter<std::vec::IntoIter<Result<T, Status>>>;

/// With what they take, which `held` has room for.
fn items<T: Message>(all: impl Iterator<Item = T>, held: Held) -> Result<(Items<T>, Held), Status> {
    let memory = |item: &Result<T, Status>| {
        let heap = item.as_ref().map_or(0, Message::encoded_len);
        size_of::<Result<T, Status>>() + heap
    };
    let (items, held) = budget::collect(all.map(Ok), memory, held)?;
    Ok((tokio_stream::iter(items), held))
}

/// All hosts.
pub fn hosts(control: &mut Permitted) -> Result<v1::ListEndpointsResponse, Refusal> {
    let hosts = control
        .whole()?
        .hosts()
        .map(|status| render::host_status(&status));
    Ok(v1::ListEndpointsResponse {
        endpoints: hosts.collect(),
    })
}

pub fn put_host(
    control: &mut Permitted,
    host: v1::Endpoint,
) -> Result<v1::EndpointStatus, Refusal> {
    let control = control.whole()?;
    let host = convert::host(host)?;
    let address = host.address;
    control.put_host(host)?;
    Ok(render::host_status(&control.host(address)?))
}

pub fn update_host(
    control: &mut Permitted,
    update: v1::UpdateEndpointRequest,
) -> Result<v1::EndpointStatus, Refusal> {
    let control = control.whole()?;
    let (address, update) = convert::host_update(update)?;
    control.update_host(address, update)?;
    // Only to leave networks no host is made.
    let none = || HostStatus {
        host: Arc::new(Host::new(address)),
        bindings: 0,
    };
    let status = control.host(address).unwrap_or_else(|_| none());
    Ok(render::host_status(&status))
}

pub fn delete_host(
    control: &mut Permitted,
    request: &v1::DeleteEndpointRequest,
) -> Result<v1::DeleteEndpointResponse, Refusal> {
    let control = control.whole()?;
    let address = convert::host_address(&request.address)?;
    control.delete_host(address, request.with_bindings)?;
    Ok(v1::DeleteEndpointResponse {})
}

/// Every network that is spoken of.
pub fn networks(
    control: &Permitted,
    held: Held,
) -> Result<(Items<v1::NetworkStatus>, Held), Status> {
    let ipv6 = control.settings().underlay_ipv6;
    let networks = control.networks();
    items(
        networks.map(|status| render::network_status(&status, ipv6)),
        held,
    )
}

/// One network, with the addresses of its hosts and what was learnt in it.
pub fn network(app: &App, control: &Permitted, vni: u32) -> Result<v1::NetworkStatus, Status> {
    let vni = convert::vni(vni).map_err(refused)?;
    let network = shown(control, vni)?;
    let learned = app.workers.switch().learned(vni);
    let learned = learned.map_err(|gone| Status::unavailable(gone.to_string()))?;
    let names = control.nics_by_uid();
    Ok(v1::NetworkStatus {
        learned: learned
            .iter()
            .map(|mac| render::learned(mac, &names))
            .collect(),
        ..network
    })
}

pub fn put_network(
    control: &mut Permitted,
    network: v1::Network,
) -> Result<v1::NetworkStatus, Refusal> {
    let options: NetworkOptions = convert::network(network)?;
    let vni = options.vni;
    control.put_network(options)?;
    shown(control, vni)
}

fn shown(control: &Permitted, vni: Vni) -> Result<v1::NetworkStatus, Refusal> {
    let status = render::network_status(&control.network(vni)?, control.settings().underlay_ipv6);
    let addresses = control.network_hosts(vni)?;
    Ok(v1::NetworkStatus {
        endpoint_addresses: addresses.iter().map(ToString::to_string).collect(),
        ..status
    })
}

/// Bindings, of a VNI or of all, behind a host or any.
pub fn bindings(
    control: &Permitted,
    request: &v1::ListBindingsRequest,
    held: Held,
) -> Result<(Items<v1::Binding>, Held), Status> {
    let vni = request.vni.map(convert::vni).transpose().map_err(refused)?;
    let host = match request.endpoint.as_str() {
        "" => None,
        text => Some(convert::host_address(text).map_err(refused)?),
    };
    let all = control.bindings(vni, host)?;
    items(all.map(|binding| render::binding(&binding)), held)
}

pub fn binding(control: &Permitted, key: &v1::BindingKey) -> Result<v1::Binding, Refusal> {
    Ok(render::binding(
        &control.binding(convert::binding_key(key)?)?,
    ))
}

pub fn put_bindings(
    control: &mut Permitted,
    request: &v1::PutBindingsRequest,
) -> Result<v1::BindingsResponse, Refusal> {
    let bindings = convert::bindings(&request.bindings)?;
    let diff = control.put_bindings(bindings.into_values().collect())?;
    Ok(render::bindings_response(&diff))
}

pub fn delete_bindings(
    control: &mut Permitted,
    request: &v1::DeleteBindingsRequest,
) -> Result<v1::BindingsResponse, Refusal> {
    let keys = request.bindings.iter().map(convert::binding_key);
    let keys: Vec<BindingKey> = keys.collect::<Result<_, Error>>()?;
    Ok(render::bindings_response(&control.delete_bindings(&keys)?))
}

pub fn set_bindings(
    control: &mut Permitted,
    request: &v1::SetBindingsRequest,
) -> Result<v1::BindingsResponse, Refusal> {
    let vni = request.vni.map(convert::vni).transpose()?;
    let bindings = convert::bindings(&request.bindings)?;
    let diff = control.set_bindings(vni, bindings, request.dry_run)?;
    Ok(render::bindings_response(&diff))
}
