//! The requests of the v0 API, one by one: each is an operation of the controller.

use api::v0::message_v0 as v0;
use control::model::{GroupId, NicId};
use control::{Controller, Error};

use super::convert;
use crate::app::{App, unix_secs};
use crate::logging::Level;

/// What a request leads to.
pub struct Outcome {
    pub response: v0::Response,
    /// The daemon is to stop when the answer is out.
    pub quit: bool,
}

/// Carries a request out. `None` when it asks for nothing.
pub fn carry_out(app: &App, request: v0::Request) -> Option<Outcome> {
    let mut control = app.control();
    control.count_request();
    let quit = request.app_quit.is_some();
    let answer = match fields_set(&request) {
        0 => return None,
        1 => one(app, &mut control, request),
        several => Err(format!("a request does one thing, this one asks for {several}")),
    };
    let quit = quit && answer.is_ok();
    Some(Outcome {
        response: answer.unwrap_or_else(refused),
        quit,
    })
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

fn refused(why: String) -> v0::Response {
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

/// Taken apart, so that a field that is added to the protocol and not listed here does not compile.
fn fields_set(request: &v0::Request) -> usize {
    let v0::Request {
        nic_add,
        nic_update,
        nic_del,
        nic_list,
        nic_details,
        nic_export,
        nic_stats,
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
        sg_details,
    } = request;
    let texts = [
        nic_del,
        nic_details,
        nic_export,
        nic_stats,
        sg_del,
        sg_rule_list,
        sg_member_list,
        sg_details,
    ];
    let flags = [nic_list, sg_list, app_status, app_quit];
    let others = [
        nic_add.is_some(),
        nic_update.is_some(),
        sg_add.is_some(),
        sg_rule_add.is_some(),
        sg_rule_del.is_some(),
        sg_member_add.is_some(),
        sg_member_del.is_some(),
        app_config.is_some(),
    ];
    texts.iter().filter(|field| field.is_some()).count()
        + flags.iter().filter(|field| field.is_some()).count()
        + others.iter().filter(|set| **set).count()
}

/// The one thing that the request asks for; the first that is set, when the caller has not counted.
fn one(app: &App, control: &mut Controller, request: v0::Request) -> Result<v0::Response, String> {
    let text = |e: Error| e.to_string();
    if let Some(level) = request.app_config.as_ref().map(|config| &config.log_level) {
        if let Some(level) = level {
            app.log.set(level.parse::<Level>()?);
        }
        return Ok(success());
    }
    if request.app_status.is_some() {
        return Ok(status(control));
    }
    if request.app_quit.is_some() {
        return Ok(success());
    }
    nics(control, &request)
        .or_else(|| groups(control, request))
        .unwrap_or_else(|| Ok(success()))
        .map_err(text)
}

fn status(control: &Controller) -> v0::Response {
    let status = control.status();
    let answer = v0::AppStatusRes {
        start_date: Some(status.started_unix_secs),
        current_date: Some(unix_secs()),
        request_counter: Some(status.requests),
        graph_dot: Some(control.graph_dot()),
    };
    v0::Response {
        app_status: Some(answer),
        ..success()
    }
}

/// `None` when the request is not about NICs.
fn nics(control: &mut Controller, request: &v0::Request) -> Option<Result<v0::Response, Error>> {
    if let Some(nic) = &request.nic_add {
        return Some(nic_add(control, nic.clone()));
    }
    if let Some(update) = &request.nic_update {
        let done =
            convert::nic_update(update.clone()).and_then(|(id, update)| control.update_nic(&id, update));
        return Some(done.map(|_| success()));
    }
    if let Some(id) = &request.nic_del {
        return Some(
            NicId::new(id)
                .and_then(|id| control.delete_nic(&id))
                .map(|_| success()),
        );
    }
    if request.nic_list.is_some() {
        let ids = control.nic_ids().iter().map(NicId::to_string).collect();
        return Some(Ok(v0::Response {
            nic_list: ids,
            ..success()
        }));
    }
    if let Some(id) = &request.nic_details {
        return Some(nic_details(control, id));
    }
    if let Some(id) = &request.nic_export {
        return Some(nic_export(control, id));
    }
    request.nic_stats.as_ref().map(|id| nic_stats(control, id))
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
    let answer = v0::NicStats {
        r#in: stats.bytes_in,
        out: stats.bytes_out,
    };
    Ok(v0::Response {
        nic_stats: Some(answer),
        ..success()
    })
}

/// `None` when the request is not about groups.
fn groups(control: &mut Controller, request: v0::Request) -> Option<Result<v0::Response, Error>> {
    let done = |changed: Result<control::Diff, Error>| Some(changed.map(|_| success()));
    if let Some(sg) = request.sg_add {
        return done(convert::group(sg).and_then(|group| control.put_group(group)));
    }
    if let Some(id) = request.sg_del {
        return done(GroupId::new(&id).and_then(|id| control.delete_group(&id)));
    }
    if let Some(add) = request.sg_rule_add {
        return done(rule_request(&add.sg_id, &add.rule).and_then(|(id, rule)| control.add_rule(&id, rule)));
    }
    if let Some(del) = request.sg_rule_del {
        return done(
            rule_request(&del.sg_id, &del.rule).and_then(|(id, rule)| control.delete_rule(&id, &rule)),
        );
    }
    if let Some(add) = request.sg_member_add {
        return done(
            member_request(&add.sg_id, &add.member).and_then(|(id, ip)| control.add_member(&id, ip)),
        );
    }
    if let Some(del) = request.sg_member_del {
        return done(
            member_request(&del.sg_id, &del.member).and_then(|(id, ip)| control.delete_member(&id, ip)),
        );
    }
    if request.sg_list.is_some() {
        let ids = control.group_ids().iter().map(GroupId::to_string).collect();
        return Some(Ok(v0::Response {
            sg_list: ids,
            ..success()
        }));
    }
    if let Some(id) = request.sg_rule_list {
        let group = GroupId::new(&id).and_then(|id| control.group(&id));
        return Some(group.map(|group| v0::Response {
            sg_rule_list: convert::sg_details(&group).rule,
            ..success()
        }));
    }
    if let Some(id) = request.sg_member_list {
        let group = GroupId::new(&id).and_then(|id| control.group(&id));
        return Some(group.map(|group| v0::Response {
            sg_member_list: convert::sg_details(&group).member,
            ..success()
        }));
    }
    request.sg_details.map(|id| sg_details(control, &id))
}

fn rule_request(id: &str, rule: &v0::Rule) -> Result<(GroupId, control::model::Rule), Error> {
    Ok((GroupId::new(id)?, convert::rule(rule)?))
}

fn member_request(id: &str, member: &str) -> Result<(GroupId, std::net::IpAddr), Error> {
    Ok((GroupId::new(id)?, convert::member(id, member)?))
}

fn sg_details(control: &Controller, id: &str) -> Result<v0::Response, Error> {
    let groups = match id {
        "" => control
            .groups()
            .map(|group| convert::sg_details(&group))
            .collect(),
        id => vec![convert::sg_details(&*control.group(&GroupId::new(id)?)?)],
    };
    Ok(v0::Response {
        sg_details: groups,
        ..success()
    })
}
