//! Operations on who is where, request to answer; the service calls them with the controller.

use api::v1;
use control::model::{BindingKey, NetworkOptions};
use control::{Controller, Error};
use tonic::Status;
use wire::Vni;

use super::convert::overlay as convert;
use super::render;
use super::service::refused;
use crate::app::App;

/// A stream of which every item is there already.
pub type Items<T> = tokio_stream::Iter<std::vec::IntoIter<Result<T, Status>>>;

fn items<T>(all: impl Iterator<Item = T>) -> Items<T> {
    tokio_stream::iter(all.map(Ok).collect::<Vec<_>>())
}

/// All endpoints.
pub fn endpoints(control: &Controller) -> v1::ListEndpointsResponse {
    let endpoints = control
        .endpoints()
        .map(|status| render::endpoint_status(&status));
    v1::ListEndpointsResponse {
        endpoints: endpoints.collect(),
    }
}

pub fn put_endpoint(
    control: &mut Controller,
    endpoint: v1::Endpoint,
) -> Result<v1::EndpointStatus, Error> {
    let endpoint = convert::endpoint(endpoint)?;
    let address = endpoint.address;
    control.put_endpoint(endpoint)?;
    Ok(render::endpoint_status(&control.endpoint(address)?))
}

pub fn update_endpoint(
    control: &mut Controller,
    update: v1::UpdateEndpointRequest,
) -> Result<v1::EndpointStatus, Error> {
    let (address, update) = convert::endpoint_update(update)?;
    control.update_endpoint(address, update)?;
    Ok(render::endpoint_status(&control.endpoint(address)?))
}

pub fn delete_endpoint(
    control: &mut Controller,
    request: &v1::DeleteEndpointRequest,
) -> Result<v1::DeleteEndpointResponse, Error> {
    let address = convert::endpoint_address(&request.address)?;
    control.delete_endpoint(address, request.with_bindings)?;
    Ok(v1::DeleteEndpointResponse {})
}

/// Every network that is spoken of.
pub fn networks(control: &Controller) -> Items<v1::NetworkStatus> {
    let ipv6 = control.settings().underlay_ipv6;
    items(
        control
            .networks()
            .map(|status| render::network_status(&status, ipv6)),
    )
}

/// One network, with the addresses of its endpoints and what was learnt in it.
pub fn network(app: &App, control: &Controller, vni: u32) -> Result<v1::NetworkStatus, Status> {
    let vni = convert::vni(vni).map_err(refused)?;
    let learned = app.workers.switch().learned(vni);
    let learned = learned.map_err(|gone| Status::unavailable(gone.to_string()))?;
    let names = control.nics_by_uid();
    Ok(v1::NetworkStatus {
        learned: learned
            .iter()
            .map(|mac| render::learned(mac, &names))
            .collect(),
        ..shown(control, vni)
    })
}

pub fn put_network(
    control: &mut Controller,
    network: v1::Network,
) -> Result<v1::NetworkStatus, Error> {
    let options: NetworkOptions = convert::network(network)?;
    let vni = options.vni;
    control.put_network(options)?;
    Ok(shown(control, vni))
}

fn shown(control: &Controller, vni: Vni) -> v1::NetworkStatus {
    let status = render::network_status(&control.network(vni), control.settings().underlay_ipv6);
    let addresses = control.network_endpoints(vni);
    v1::NetworkStatus {
        endpoint_addresses: addresses.iter().map(ToString::to_string).collect(),
        ..status
    }
}

/// Bindings, of a VNI or of all, behind an endpoint or any.
pub fn bindings(
    control: &Controller,
    request: &v1::ListBindingsRequest,
) -> Result<Items<v1::Binding>, Error> {
    let vni = request.vni.map(convert::vni).transpose()?;
    let endpoint = match request.endpoint.as_str() {
        "" => None,
        text => Some(convert::endpoint_address(text)?),
    };
    let all = control.bindings(vni, endpoint);
    Ok(items(all.map(|binding| render::binding(&binding))))
}

pub fn binding(control: &Controller, key: &v1::BindingKey) -> Result<v1::Binding, Error> {
    Ok(render::binding(
        &control.binding(convert::binding_key(key)?)?,
    ))
}

pub fn put_bindings(
    control: &mut Controller,
    request: &v1::PutBindingsRequest,
) -> Result<v1::BindingsResponse, Error> {
    let bindings = convert::bindings(&request.bindings)?;
    let diff = control.put_bindings(bindings.into_values().collect())?;
    Ok(render::bindings_response(&diff))
}

pub fn delete_bindings(
    control: &mut Controller,
    request: &v1::DeleteBindingsRequest,
) -> Result<v1::BindingsResponse, Error> {
    let keys = request.bindings.iter().map(convert::binding_key);
    let keys: Vec<BindingKey> = keys.collect::<Result<_, _>>()?;
    Ok(render::bindings_response(&control.delete_bindings(&keys)?))
}

pub fn set_bindings(
    control: &mut Controller,
    request: &v1::SetBindingsRequest,
) -> Result<v1::BindingsResponse, Error> {
    let vni = request.vni.map(convert::vni).transpose()?;
    let bindings = convert::bindings(&request.bindings)?;
    let diff = control.set_bindings(vni, bindings, request.dry_run)?;
    Ok(render::bindings_response(&diff))
}
