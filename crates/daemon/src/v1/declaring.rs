//! The methods that declare NICs, groups and who is where, from a request's bytes to those of its
//! answer: for whoever drives them without sockets. They are those of [`Service`](super::service),
//! behind the same gate; what is not here is the codec, and what a method has beside the
//! controller.

use api::v1;
use prost::Message;
use tonic::Status;

use super::service::required;
use super::{declare, objects, overlay};
use crate::access::{Gate, Peer, Permitted, needs};
use crate::app::Operations;

/// Carries out a method of `butterfly.v1.Butterfly`, for somebody who may do everything. Waits for
/// the workers.
///
/// # Errors
/// What its client would be told; also of a method that is not among these.
pub fn carry_out(operations: &Operations, method: &str, request: &[u8]) -> Result<Vec<u8>, Status> {
    let need = needs::of_path(&format!("/butterfly.v1.Butterfly/{method}"))
        .ok_or_else(|| Status::unimplemented(method))?;
    let caller = Gate::open()
        .admit("v1", &Peer::unknown(), need)
        .map_err(Status::permission_denied)?;
    let mut control = operations.control_by(caller.author());
    control.count_request();
    let control = &mut Permitted::new(&mut control, &caller);
    match method {
        "PutNic" => {
            let request: v1::PutNicRequest = read(request)?;
            let nic = required(request.nic, "nic")?;
            written(objects::put_nic(control, nic, request.create_only)?)
        }
        "UpdateNic" => written(objects::update_nic(control, read(request)?)?),
        "DeleteNic" => written(objects::delete_nic(control, &read(request)?)?),
        "PutGroup" => {
            let request: v1::PutGroupRequest = read(request)?;
            written(objects::put_group(
                control,
                required(request.group, "group")?,
            )?)
        }
        "DeleteGroup" => written(objects::delete_group(control, &read(request)?)?),
        "AddRule" => written(objects::add_rule(control, &read(request)?)?),
        "DeleteRule" => written(objects::delete_rule(control, &read(request)?)?),
        "AddMember" => written(objects::add_member(control, &read(request)?)?),
        "DeleteMember" => written(objects::delete_member(control, &read(request)?)?),
        "PutEndpoint" => {
            let request: v1::PutEndpointRequest = read(request)?;
            let endpoint = required(request.endpoint, "endpoint")?;
            written(overlay::put_host(control, endpoint)?)
        }
        "DeleteEndpoint" => written(overlay::delete_host(control, &read(request)?)?),
        "PutNetwork" => {
            let request: v1::PutNetworkRequest = read(request)?;
            let network = required(request.network, "network")?;
            written(overlay::put_network(control, network)?)
        }
        "PutBindings" => written(overlay::put_bindings(control, &read(request)?)?),
        "DeleteBindings" => written(overlay::delete_bindings(control, &read(request)?)?),
        "GetConfig" => written(declare::config(control)),
        "Apply" => {
            let request: v1::ApplyRequest = read(request)?;
            let config = required(request.config, "config")?;
            written(declare::apply(control, config, request.dry_run)?)
        }
        _ => Err(Status::unimplemented(method)),
    }
}

fn read<T: Message + Default>(request: &[u8]) -> Result<T, Status> {
    T::decode(request).map_err(|why| Status::internal(why.to_string()))
}

fn written(answer: impl Message) -> Result<Vec<u8>, Status> {
    Ok(answer.encode_to_vec())
}
