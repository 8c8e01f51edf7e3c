//! v0 requests over API v1: each is done by the operation that does the same, and answered in v0's
//! form. `butterfly request` uses it, so that a dump can be loaded over either API.

use api::v0::message_v0 as v0;
use api::v0::message_v0::{Request, Response};
use api::v0::proto::error::ErrorCode;
use api::v0::{Message, MessageV0, Messages, REVISION};

use super::V1;
use crate::error::Error;
use crate::translate::{Untranslatable, group, nic};

/// Does the requests in order. Fails only when the daemon is lost: what it refuses is told in the
/// answers.
pub async fn exchange(v1: &mut V1, requests: Messages) -> Result<Messages, Error> {
    let mut answers = Messages::default();
    for message in requests.messages {
        answers.messages.push(answer(v1, message).await?);
    }
    Ok(answers)
}

async fn answer(v1: &mut V1, message: Message) -> Result<Message, Error> {
    let failed = |code: ErrorCode| Message {
        revision: REVISION,
        error: Some(api::v0::Error {
            code: Some(code.into()),
        }),
        message_0: None,
    };
    let content = match message.message_0 {
        Some(content) => content,
        None => return Ok(failed(ErrorCode::VersionNotManaged)),
    };
    let Some(request) = content.request else {
        return Ok(failed(ErrorCode::EmptyRequest));
    };
    let response = match perform(v1, request).await {
        Ok(response) => response,
        Err(Error::Refused(reason) | Error::Usage(reason)) => refused(reason),
        Err(lost) => return Err(lost),
    };
    let content = MessageV0 {
        request: None,
        response: Some(response),
        message_id: content.message_id,
    };
    Ok(Message {
        revision: REVISION,
        error: None,
        message_0: Some(content),
    })
}

async fn perform(v1: &mut V1, request: Request) -> Result<Response, Error> {
    let mut response = done();
    match request {
        Request {
            nic_add: Some(nic), ..
        } => {
            let path = v1.put_nic(nic::from_v0(nic)?, true).await?.path;
            let path = nic::path_to_v0(path);
            response.nic_add = Some(v0::NicAddRes { path: Some(path) });
        }
        Request {
            nic_update: Some(update),
            ..
        } => {
            v1.update_nic(nic::update_from_v0(update)).await?;
        }
        Request {
            nic_del: Some(id), ..
        } => v1.delete_nic(&id).await?,
        Request {
            nic_list: Some(_), ..
        } => {
            response.nic_list = v1
                .nics()
                .await?
                .into_iter()
                .filter_map(|status| Some(status.nic?.id))
                .collect();
        }
        Request {
            nic_details: Some(id),
            ..
        } => {
            let nics = if id.is_empty() {
                v1.nics().await?
            } else {
                vec![v1.nic(&id).await?]
            };
            response.nic_details = nics.into_iter().map(nic::status_to_v0).collect();
        }
        Request {
            nic_export: Some(id),
            ..
        } => {
            let data = Some(v1.export_nic(&id).await?);
            response.nic_export = Some(v0::NicExportRes {
                fw_data: Some(v0::nic_export_res::FwData { data }),
            });
        }
        Request {
            nic_stats: Some(id),
            ..
        } => {
            let stats = v1.nic_stats(&id).await?;
            response.nic_stats = Some(v0::NicStats {
                r#in: stats.egress_bytes,
                out: stats.ingress_bytes,
            });
        }
        Request {
            app_status: Some(_),
            ..
        } => {
            let status = v1.status().await?;
            response.app_status = Some(v0::AppStatusRes {
                start_date: Some(status.start_unix_secs),
                current_date: Some(status.current_unix_secs),
                request_counter: Some(status.requests),
                graph_dot: Some(status.graph_dot),
            });
        }
        Request {
            app_quit: Some(_), ..
        } => v1.shutdown().await?,
        Request {
            app_config: Some(config),
            ..
        } => {
            if let Some(level) = config.log_level {
                v1.set_log_level(&level).await?;
            }
        }
        about_groups => return perform_on_groups(v1, about_groups).await,
    }
    Ok(response)
}

async fn perform_on_groups(v1: &mut V1, request: Request) -> Result<Response, Error> {
    let mut response = done();
    match request {
        Request {
            sg_add: Some(sg), ..
        } => {
            for rule in &sg.rule {
                group::new_rule_from_v0(rule.clone())?;
            }
            v1.put_group(group::from_v0(sg)?).await?;
        }
        Request {
            sg_del: Some(id), ..
        } => v1.delete_group(&id).await?,
        Request {
            sg_list: Some(_), ..
        } => {
            response.sg_list = v1
                .groups()
                .await?
                .into_iter()
                .map(|group| group.id)
                .collect();
        }
        Request {
            sg_rule_add: Some(add),
            ..
        } => {
            v1.add_rule(&add.sg_id, group::new_rule_from_v0(add.rule)?)
                .await?
        }
        Request {
            sg_rule_del: Some(del),
            ..
        } => {
            v1.delete_rule(&del.sg_id, group::rule_from_v0(del.rule)?)
                .await?
        }
        Request {
            sg_rule_list: Some(id),
            ..
        } => {
            let rules = v1.group(&id).await?.rules;
            response.sg_rule_list = rules
                .iter()
                .map(group::rule_to_v0)
                .collect::<Result<_, _>>()?;
        }
        Request {
            sg_member_add: Some(add),
            ..
        } => v1.add_member(&add.sg_id, &add.member).await?,
        Request {
            sg_member_del: Some(del),
            ..
        } => v1.delete_member(&del.sg_id, &del.member).await?,
        Request {
            sg_member_list: Some(id),
            ..
        } => response.sg_member_list = v1.group(&id).await?.members,
        Request {
            sg_details: Some(id),
            ..
        } => {
            let groups = if id.is_empty() {
                v1.groups().await?
            } else {
                vec![v1.group(&id).await?]
            };
            let sgs = groups.iter().map(group::details_to_v0);
            response.sg_details = sgs.collect::<Result<_, _>>()?;
        }
        _ => return Err(Error::Refused("the request asks for nothing".into())),
    }
    Ok(response)
}

fn done() -> Response {
    Response {
        status: v0::Status {
            status: true,
            error: None,
        },
        ..Default::default()
    }
}

fn refused(reason: String) -> Response {
    let error = v0::Error {
        description: Some(reason),
        ..Default::default()
    };
    Response {
        status: v0::Status {
            status: false,
            error: Some(error),
        },
        ..Default::default()
    }
}

impl From<Untranslatable> for Error {
    fn from(Untranslatable(what): Untranslatable) -> Error {
        Error::Refused(what)
    }
}
