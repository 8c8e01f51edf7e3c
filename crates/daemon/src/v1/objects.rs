//! Operations on NICs, groups and rules, request to answer; the service calls them with the
//! controller.

use api::v1;
use control::model::{Group, GroupId, NicId};
use tonic::Status;

use super::service::{refused, required};
use super::{convert, render};
use crate::access::{Permitted, Refusal};

pub fn put_nic(
    control: &mut Permitted,
    nic: v1::Nic,
    create_only: bool,
) -> Result<v1::NicStatus, Refusal> {
    let nic = convert::nic(nic, control.settings())?;
    let status = match create_only {
        true => control.create_nic(nic)?,
        false => control.put_nic(nic)?,
    };
    Ok(render::nic_status(&status))
}

pub fn update_nic(
    control: &mut Permitted,
    update: v1::UpdateNicRequest,
) -> Result<v1::NicStatus, Refusal> {
    let (id, update) = convert::nic_update(update)?;
    Ok(render::nic_status(&control.update_nic(&id, update)?))
}

pub fn delete_nic(
    control: &mut Permitted,
    request: &v1::DeleteNicRequest,
) -> Result<v1::DeleteNicResponse, Refusal> {
    control.delete_nic(&NicId::new(&request.id)?)?;
    Ok(v1::DeleteNicResponse {})
}

pub fn put_group(control: &mut Permitted, group: v1::Group) -> Result<v1::Group, Refusal> {
    let group = convert::group(group)?;
    let id = group_to_make(control, group.id.as_str())?;
    control.put_group(group)?;
    Ok(group_after(control, &id, false))
}

pub fn update_group(
    control: &mut Permitted,
    update: &v1::UpdateGroupRequest,
) -> Result<v1::Group, Refusal> {
    let id = group_to_make(control, &update.id)?;
    let removal = update
        .removal
        .map(|number| convert::removal(&id, number))
        .transpose()?;
    let (allow, silent) = (update.allow_midstream, update.silent_midstream);
    control.update_group(&id, removal, allow, silent)?;
    Ok(group_after(control, &id, false))
}

pub fn delete_group(
    control: &mut Permitted,
    request: &v1::DeleteGroupRequest,
) -> Result<v1::DeleteGroupResponse, Refusal> {
    control.delete_group(&GroupId::new(&request.id)?)?;
    Ok(v1::DeleteGroupResponse {})
}

pub fn add_rule(control: &mut Permitted, request: &v1::RuleRequest) -> Result<v1::Group, Status> {
    let rule = required(request.rule.as_ref(), "rule")?;
    let id = group_to_make(control, &request.group)?;
    control.add_rule(&id, convert::rule(rule).map_err(refused)?)?;
    Ok(group_after(control, &id, request.brief))
}

pub fn delete_rule(
    control: &mut Permitted,
    request: &v1::RuleRequest,
) -> Result<v1::Group, Status> {
    let rule = required(request.rule.as_ref(), "rule")?;
    let id = GroupId::new(&request.group).map_err(refused)?;
    control.delete_rule(&id, &convert::rule(rule).map_err(refused)?)?;
    Ok(group_after(control, &id, request.brief))
}

pub fn add_member(
    control: &mut Permitted,
    request: &v1::MemberRequest,
) -> Result<v1::Group, Refusal> {
    let id = group_to_make(control, &request.group)?;
    control.add_member(&id, convert::member(&request.group, &request.member)?)?;
    Ok(group_after(control, &id, request.brief))
}

pub fn delete_member(
    control: &mut Permitted,
    request: &v1::MemberRequest,
) -> Result<v1::Group, Refusal> {
    let id = GroupId::new(&request.group)?;
    control.delete_member(&id, convert::member(&request.group, &request.member)?)?;
    Ok(group_after(control, &id, request.brief))
}

/// The id of a group that an operation makes where there is none.
fn group_to_make(control: &Permitted, id: &str) -> Result<GroupId, Refusal> {
    let id = GroupId::new(id)?;
    // One of that id was made over v0, which takes blanks.
    if control.group(&id).is_err() {
        convert::word("group", id.as_str())?;
    }
    Ok(id)
}

/// A group after an operation on it; an empty one where there is none. Brief: its id alone.
fn group_after(control: &Permitted, id: &GroupId, brief: bool) -> v1::Group {
    if brief {
        return v1::Group {
            id: id.to_string(),
            ..Default::default()
        };
    }
    match control.group(id) {
        Ok(group) => render::group(&group),
        Err(_) => render::group(&Group::new(id.clone())),
    }
}
