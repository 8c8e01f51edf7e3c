//! The requests of the v0 API, one by one: each is an operation of the controller.

use api::v0::message_v0 as v0;
use control::model::{GroupId, NicId};
use control::{Author, Controller, Error};

use super::convert;
use crate::app::Operations;
use crate::logging::Level;

/// What a request leads to.
pub struct Outcome {
    pub response: v0::Response,
    /// The daemon is to stop when the answer is out.
    pub quit: bool,
}

/// Carries a request out. Of several fields the first counts, by field number, as it did for the
/// original.
pub fn carry_out(operations: &Operations, request: v0::Request) -> Outcome {
    let mut control = operations.control_by(Author::Client("v0".into()));
    control.count_request();
    let answer = one(operations, &mut control, request);
    let quit = matches!(answer, Ok(Done::Quit));
    let response = match answer {
        Ok(Done::Answer(response)) => *response,
        Ok(Done::Quit) => success(),
        Err(why) => refused(why),
    };
    Outcome { response, quit }
}

/// What a request that succeeded leads to.
enum Done {
    Answer(Box<v0::Response>),
    Quit,
}

/// `status` true, and nothing else yet.
fn success() -> v0::Response {
    v0::Response {
        status: v0::Status {
            status: true,
            error: None,
        },
        ..Default::default()
    }
}

pub fn refused(why: String) -> v0::Response {
    let error = v0::Error {
        description: Some(why),
        ..Default::default()
    };
    v0::Response {
        status: v0::Status {
            status: false,
            error: Some(error),
        },
        ..Default::default()
    }
}

/// The first thing that the request asks for. Taken apart, so that a field that is added to the
/// protocol and not listed here does not compile.
fn one(
    operations: &Operations,
    control: &mut Controller,
    request: v0::Request,
) -> Result<Done, String> {
    let v0::Request {
        nic_add: add,
        nic_update: update,
        nic_del,
        nic_list,
        nic_details: details,
        nic_export: export,
        nic_stats: stats,
        sg_add,
        sg_del,
        sg_list,
        sg_rule_add,
        sg_rule_del,
        sg_rule_list,
        sg_member_add,
        sg_member_del,
        sg_member_list,
        app_status,
        app_quit,
        app_config,
        sg_details: groups,
    } = request;
    let done = |changed: Result<control::Diff, Error>| changed.map(|_| success());
    let answer = if let Some(nic) = add {
        nic_add(control, nic)
    } else if let Some(update) = update {
        let updated =
            convert::nic_update(update).and_then(|(id, update)| control.update_nic(&id, update));
        updated.map(|_| success())
    } else if let Some(id) = nic_del {
        done(NicId::new(&id).and_then(|id| control.delete_nic(&id)))
    } else if nic_list.is_some() {
        Ok(v0::Response {
            nic_list: control.nic_ids().iter().map(NicId::to_string).collect(),
            ..success()
        })
    } else if let Some(id) = details {
        nic_details(control, &id)
    } else if let Some(id) = export {
        nic_export(control, &id)
    } else if let Some(id) = stats {
        nic_stats(control, &id)
    } else if let Some(sg) = sg_add {
        done(convert::group(sg).and_then(|group| control.put_group(group)))
    } else if let Some(id) = sg_del {
        done(GroupId::new(&id).and_then(|id| control.delete_group(&id)))
    } else if sg_list.is_some() {
        Ok(v0::Response {
            sg_list: control.group_ids().iter().map(GroupId::to_string).collect(),
            ..success()
        })
    } else if let Some(add) = sg_rule_add {
        let rule = convert::rule(&add.rule).and_then(|rule| Ok((GroupId::new(&add.sg_id)?, rule)));
        done(rule.and_then(|(id, rule)| control.add_rule(&id, rule)))
    } else if let Some(del) = sg_rule_del {
        let rule = convert::rule_to_delete(&del.rule)
            .and_then(|rule| Ok((GroupId::new(&del.sg_id)?, rule)));
        done(rule.and_then(|(id, rule)| control.delete_rule(&id, &rule)))
    } else if let Some(id) = sg_rule_list {
        group(control, &id).map(|group| v0::Response {
            sg_rule_list: group.rule,
            ..success()
        })
    } else if let Some(add) = sg_member_add {
        let member = convert::member(&add.sg_id, &add.member);
        let member = member.and_then(|ip| Ok((GroupId::new(&add.sg_id)?, ip)));
        done(member.and_then(|(id, ip)| control.add_member(&id, ip)))
    } else if let Some(del) = sg_member_del {
        let member = convert::member(&del.sg_id, &del.member);
        let member = member.and_then(|ip| Ok((GroupId::new(&del.sg_id)?, ip)));
        done(member.and_then(|(id, ip)| control.delete_member(&id, ip)))
    } else if let Some(id) = sg_member_list {
        group(control, &id).map(|group| v0::Response {
            sg_member_list: group.member,
            ..success()
        })
    } else if app_status.is_some() {
        Ok(status(control, operations.unix_secs()))
    } else if app_quit.is_some() {
        return Ok(Done::Quit);
    } else if let Some(config) = app_config {
        if let Some(level) = &config.log_level {
            operations.log.set(level.parse::<Level>()?);
        }
        Ok(success())
    } else if let Some(id) = groups {
        sg_details(control, &id)
    } else {
        return Err("the request asks for nothing".to_owned());
    };
    answer
        .map(|response| Done::Answer(Box::new(response)))
        .map_err(|e| e.to_string())
}

/// One group as v0 tells it.
fn group(control: &Controller, id: &str) -> Result<v0::Sg, Error> {
    Ok(convert::sg_details(&*control.group(&GroupId::new(id)?)?))
}

fn status(control: &Controller, now_unix_secs: u64) -> v0::Response {
    let status = control.status();
    let answer = v0::AppStatusRes {
        start_date: Some(status.started_unix_secs),
        current_date: Some(now_unix_secs),
        request_counter: Some(status.requests),
        graph_dot: Some(control.graph_dot()),
    };
    v0::Response {
        app_status: Some(answer),
        ..success()
    }
}

fn nic_add(control: &mut Controller, nic: v0::Nic) -> Result<v0::Response, Error> {
    let nic = convert::nic(nic, control.settings())?;
    let status = control.put_nic(nic)?;
    let answer = v0::NicAddRes {
        path: convert::path(&status),
    };
    Ok(v0::Response {
        nic_add: Some(answer),
        ..success()
    })
}

fn nic_details(control: &Controller, id: &str) -> Result<v0::Response, Error> {
    let nics = match id {
        "" => control
            .nics()
            .map(|status| convert::nic_details(&status))
            .collect(),
        id => vec![convert::nic_details(&control.nic(&NicId::new(id)?)?)],
    };
    Ok(v0::Response {
        nic_details: nics,
        ..success()
    })
}

fn nic_export(control: &Controller, id: &str) -> Result<v0::Response, Error> {
    let state = crate::connections::export(control, &NicId::new(id)?)?;
    let fw_data = v0::nic_export_res::FwData { data: Some(state) };
    let answer = v0::NicExportRes {
        fw_data: Some(fw_data),
    };
    Ok(v0::Response {
        nic_export: Some(answer),
        ..success()
    })
}

fn nic_stats(control: &Controller, id: &str) -> Result<v0::Response, Error> {
    let stats = control.nic_stats(&NicId::new(id)?)?;
    // v0 counts from the switch's side: in is what it received from the guest.
    let answer = v0::NicStats {
        r#in: stats.bytes_out,
        out: stats.bytes_in,
    };
    Ok(v0::Response {
        nic_stats: Some(answer),
        ..success()
    })
}

fn sg_details(control: &Controller, id: &str) -> Result<v0::Response, Error> {
    let groups = match id {
        "" => control
            .groups()
            .map(|group| convert::sg_details(&group))
            .collect(),
        id => vec![group(control, id)?],
    };
    Ok(v0::Response {
        sg_details: groups,
        ..success()
    })
}
