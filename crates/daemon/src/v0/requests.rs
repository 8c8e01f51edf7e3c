//! The requests of the v0 API, one by one: each is an operation of the controller.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use api::v0::message_v0 as v0;
use control::Controller;
use control::model::{GroupId, NicId};
use prost::Message;

use super::convert;
use crate::access::needs::V0Request;
use crate::access::{Caller, Gate, Peer, Permitted, Refusal};
use crate::app::Operations;
use crate::logging::Level;

/// What a request leads to.
pub struct Outcome {
    pub response: v0::Response,
    /// Whose change was carried out, with its record: that is written when this is dropped, which
    /// is when it is known whether the change stays.
    pub changed_by: Option<Caller>,
    /// The daemon is to stop when the answer is out.
    pub quit: bool,
}

/// How often one frame has connections exported: each time all that there are may be looked at, a
/// tenth of a second, while the frame has one of the few turns.
pub const EXPORTS_MAX: usize = 64;

/// What the requests of one frame have in common.
pub struct Frame<'a> {
    /// Its client has hung up.
    client_gone: &'a AtomicBool,
    exports: usize,
}

impl<'a> Frame<'a> {
    pub fn new(client_gone: &'a AtomicBool) -> Frame<'a> {
        Frame {
            client_gone,
            exports: 0,
        }
    }

    /// Why a request is not carried out that its client may ask. What changes something is carried
    /// out without the client, too: it may have sent it and not waited.
    fn admit(&mut self, kind: V0Request) -> Result<(), String> {
        let exports = kind == V0Request::NicExport;
        self.exports += usize::from(exports);
        if self.exports > EXPORTS_MAX && exports {
            return Err(format!(
                "not carried out: one frame exports connections {EXPORTS_MAX} times at the most, \
                 send it in another frame"
            ));
        }
        let is_for_the_answer = exports || !kind.need().is_change();
        match is_for_the_answer && self.client_gone.load(Ordering::Relaxed) {
            true => Err("not carried out: the client has hung up".to_owned()),
            false => Ok(()),
        }
    }
}

/// Carries a request out for who asks, if that may. Of several fields the first counts, by field
/// number, as it did for the original.
pub fn carry_out(
    operations: &Operations,
    gate: &Gate,
    peer: &Peer,
    frame: &mut Frame,
    request: v0::Request,
) -> Outcome {
    let bytes = request.encode_to_vec();
    let Some((kind, asked)) = first(request) else {
        operations.control().count_request();
        return Outcome {
            response: refused("the request asks for nothing".to_owned()),
            changed_by: None,
            quit: false,
        };
    };
    let (began, need) = (Instant::now(), kind.need());
    let count = |result: &str| {
        let requests = gate.requests();
        requests.answered("v0", need.request, began, result.to_owned());
    };
    let caller = match gate.admit("v0", peer, need) {
        Ok(caller) => caller,
        Err(why) => {
            count("PERMISSION_DENIED");
            return Outcome {
                response: refused(why),
                changed_by: None,
                quit: false,
            };
        }
    };
    caller.asked(
        || api::json::of_v0("MessageV0.Request", &bytes),
        bytes.len(),
    );
    let waited = match need.is_change() {
        true => gate.changes().wait_here().map_err(str::to_owned),
        false => Ok(()),
    };
    let answer = if let Err(why) = waited.and_then(|()| frame.admit(kind)) {
        Err(why)
    } else {
        let control = operations.control_for(&caller);
        control
            .map_err(|refusal| refusal.to_string())
            .and_then(|mut control| {
                control.count_request();
                let control = &mut Permitted::new(&mut control, &caller);
                one(operations, control, asked)
            })
    };
    count(if answer.is_ok() { "ok" } else { "refused" });
    let quit = matches!(answer, Ok(Done::Quit));
    let response = match answer {
        Ok(Done::Answer(response)) => {
            caller.ended("ok", "");
            *response
        }
        Ok(Done::Quit) => {
            caller.ended("ok", "");
            success()
        }
        Err(why) => {
            caller.ended("error", &why);
            refused(why)
        }
    };
    Outcome {
        response,
        changed_by: need.is_change().then_some(caller),
        quit,
    }
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

/// What is asked for, with what it takes.
enum Asked {
    NicAdd(Box<v0::Nic>),
    NicUpdate(v0::NicUpdateReq),
    NicDel(String),
    NicList,
    NicDetails(String),
    NicExport(String),
    NicStats(String),
    SgAdd(v0::Sg),
    SgDel(String),
    SgList,
    SgRuleAdd(v0::SgRuleAddReq),
    SgRuleDel(v0::SgRuleDelReq),
    SgRuleList(String),
    SgMemberAdd(v0::SgMemberAddReq),
    SgMemberDel(v0::SgMemberDelReq),
    SgMemberList(String),
    AppStatus,
    AppQuit,
    AppConfig(v0::AppConfigReq),
    SgDetails(String),
}

/// The first thing that the request asks for. Taken apart, so that a field that is added to the
/// protocol and not listed here does not compile.
fn first(request: v0::Request) -> Option<(V0Request, Asked)> {
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
    use V0Request as Kind;
    let nic_add = nic_add.map(|nic| (Kind::NicAdd, Asked::NicAdd(Box::new(nic))));
    nic_add
        .or(nic_update.map(|update| (Kind::NicUpdate, Asked::NicUpdate(update))))
        .or(nic_del.map(|id| (Kind::NicDel, Asked::NicDel(id))))
        .or(nic_list.map(|_| (Kind::NicList, Asked::NicList)))
        .or(nic_details.map(|id| (Kind::NicDetails, Asked::NicDetails(id))))
        .or(nic_export.map(|id| (Kind::NicExport, Asked::NicExport(id))))
        .or(nic_stats.map(|id| (Kind::NicStats, Asked::NicStats(id))))
        .or(sg_add.map(|sg| (Kind::SgAdd, Asked::SgAdd(sg))))
        .or(sg_del.map(|id| (Kind::SgDel, Asked::SgDel(id))))
        .or(sg_list.map(|_| (Kind::SgList, Asked::SgList)))
        .or(sg_rule_add.map(|add| (Kind::SgRuleAdd, Asked::SgRuleAdd(add))))
        .or(sg_rule_del.map(|del| (Kind::SgRuleDel, Asked::SgRuleDel(del))))
        .or(sg_rule_list.map(|id| (Kind::SgRuleList, Asked::SgRuleList(id))))
        .or(sg_member_add.map(|add| (Kind::SgMemberAdd, Asked::SgMemberAdd(add))))
        .or(sg_member_del.map(|del| (Kind::SgMemberDel, Asked::SgMemberDel(del))))
        .or(sg_member_list.map(|id| (Kind::SgMemberList, Asked::SgMemberList(id))))
        .or(app_status.map(|_| (Kind::AppStatus, Asked::AppStatus)))
        .or(app_quit.map(|_| (Kind::AppQuit, Asked::AppQuit)))
        .or(app_config.map(|config| (Kind::AppConfig, Asked::AppConfig(config))))
        .or(sg_details.map(|id| (Kind::SgDetails, Asked::SgDetails(id))))
}

fn one(operations: &Operations, control: &mut Permitted, asked: Asked) -> Result<Done, String> {
    let done = |changed: Result<control::Diff, Refusal>| changed.map(|_| success());
    let answer = match asked {
        Asked::NicAdd(nic) => nic_add(control, *nic),
        Asked::NicUpdate(update) => {
            let update = convert::nic_update(update).map_err(Refusal::from);
            let updated = update.and_then(|(id, update)| control.update_nic(&id, update));
            updated.map(|_| success())
        }
        Asked::NicDel(id) => done(nic_id(&id).and_then(|id| control.delete_nic(&id))),
        Asked::NicList => Ok(v0::Response {
            nic_list: control.nic_ids().iter().map(NicId::to_string).collect(),
            ..success()
        }),
        Asked::NicDetails(id) => nic_details(control, &id),
        Asked::NicExport(id) => nic_export(control, &id),
        Asked::NicStats(id) => nic_stats(control, &id),
        Asked::SgAdd(sg) => {
            let group = convert::group(sg).map_err(Refusal::from);
            done(group.and_then(|group| control.put_group(group)))
        }
        Asked::SgDel(id) => done(group_id(&id).and_then(|id| control.delete_group(&id))),
        Asked::SgList => Ok(v0::Response {
            sg_list: control.group_ids().iter().map(GroupId::to_string).collect(),
            ..success()
        }),
        Asked::SgRuleAdd(add) => {
            let rule = convert::rule(&add.rule).map_err(Refusal::from);
            let rule = rule.and_then(|rule| Ok((group_id(&add.sg_id)?, rule)));
            done(rule.and_then(|(id, rule)| control.add_rule(&id, rule)))
        }
        Asked::SgRuleDel(del) => {
            let rule = convert::rule_to_delete(&del.rule).map_err(Refusal::from);
            let rule = rule.and_then(|rule| Ok((group_id(&del.sg_id)?, rule)));
            done(rule.and_then(|(id, rule)| control.delete_rule(&id, &rule)))
        }
        Asked::SgRuleList(id) => group(control, &id).map(|group| v0::Response {
            sg_rule_list: group.rule,
            ..success()
        }),
        Asked::SgMemberAdd(add) => {
            let member = convert::member(&add.sg_id, &add.member).map_err(Refusal::from);
            let member = member.and_then(|ip| Ok((group_id(&add.sg_id)?, ip)));
            done(member.and_then(|(id, ip)| control.add_member(&id, ip)))
        }
        Asked::SgMemberDel(del) => {
            let member = convert::member(&del.sg_id, &del.member).map_err(Refusal::from);
            let member = member.and_then(|ip| Ok((group_id(&del.sg_id)?, ip)));
            done(member.and_then(|(id, ip)| control.delete_member(&id, ip)))
        }
        Asked::SgMemberList(id) => group(control, &id).map(|group| v0::Response {
            sg_member_list: group.member,
            ..success()
        }),
        Asked::AppStatus => Ok(status(control, operations.unix_secs())),
        Asked::AppQuit => {
            control.caller().takes_effect();
            return Ok(Done::Quit);
        }
        Asked::AppConfig(config) => {
            if let Some(level) = &config.log_level {
                operations.set_log_level(level.parse::<Level>()?, control.caller());
            }
            Ok(success())
        }
        Asked::SgDetails(id) => sg_details(control, &id),
    };
    answer
        .map(|response| Done::Answer(Box::new(response)))
        .map_err(|e| e.to_string())
}

fn nic_id(id: &str) -> Result<NicId, Refusal> {
    Ok(NicId::new(id)?)
}

fn group_id(id: &str) -> Result<GroupId, Refusal> {
    Ok(GroupId::new(id)?)
}

/// One group as v0 tells it.
fn group(control: &Permitted, id: &str) -> Result<v0::Sg, Refusal> {
    Ok(convert::sg_details(&*control.group(&GroupId::new(id)?)?))
}

fn status(control: &Permitted, now_unix_secs: u64) -> v0::Response {
    let status = control.status();
    let answer = v0::AppStatusRes {
        start_date: Some(status.started_unix_secs),
        current_date: Some(now_unix_secs),
        request_counter: Some(status.requests),
        graph_dot: Some(
            control
                .unlimited()
                .map_or_else(String::new, Controller::graph_dot),
        ),
    };
    v0::Response {
        app_status: Some(answer),
        ..success()
    }
}

fn nic_add(control: &mut Permitted, nic: v0::Nic) -> Result<v0::Response, Refusal> {
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

fn nic_details(control: &Permitted, id: &str) -> Result<v0::Response, Refusal> {
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

fn nic_export(control: &Permitted, id: &str) -> Result<v0::Response, Refusal> {
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

fn nic_stats(control: &Permitted, id: &str) -> Result<v0::Response, Refusal> {
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

fn sg_details(control: &Permitted, id: &str) -> Result<v0::Response, Refusal> {
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
