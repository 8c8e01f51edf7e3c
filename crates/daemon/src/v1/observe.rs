//! What can be counted and listed: drops, rules, connections, the daemon itself.

use std::collections::BTreeMap;

use api::v1;
use control::model::{GroupId, NicId};
use control::{Controller, InterfaceStatus, NicStats};
use dataplane::drop_reason::DropReason;
use dataplane::flow::FlowInfo;
use tonic::Status;

use super::{render, workers};
use crate::access::{Permitted, Refusal};
use crate::app::{App, monotonic_ns};
use crate::balancer;
use crate::deaf;
use crate::forgotten;
use crate::router::Summary;
use crate::stored;
use crate::uplinks::Uplinks;

/// The counters of one NIC.
pub fn nic_stats(control: &Permitted, id: &NicId) -> Result<v1::NicStats, Refusal> {
    Ok(v1::NicStats {
        flows: control.count_flows(id)?,
        ..counters(&control.nic_stats(id)?)
    })
}

/// The counters of all NICs. They are read without asking a worker.
pub fn all_nic_stats(control: &Permitted) -> Result<v1::ListNicStatsResponse, Refusal> {
    let (ids, time_ns) = (control.nic_ids(), monotonic_ns());
    let nics = ids
        .iter()
        .map(|id| control.nic_stats(id).map(|stats| counters(&stats)));
    Ok(v1::ListNicStatsResponse {
        time_ns,
        nics: nics.collect::<Result<_, _>>()?,
    })
}

fn counters(stats: &NicStats) -> v1::NicStats {
    let sum = |drops: &[(DropReason, u64)]| drops.iter().map(|(_, frames)| frames).sum();
    v1::NicStats {
        id: stats.id.to_string(),
        ingress_frames: stats.frames_in,
        ingress_bytes: stats.bytes_in,
        egress_frames: stats.frames_out,
        egress_bytes: stats.bytes_out,
        ingress_drops: sum(&stats.drops_in),
        egress_drops: sum(&stats.drops_out),
        flows: 0,
        egress_waits: stats.waits_out,
        egress_wait_ns: stats.wait_out_ns,
        egress_kernel_frames: stats.kernel_out,
        mirrored_frames: stats.mirrored.map_or(0, |(all, _)| all),
        mirror_lost_frames: stats.mirrored.map_or(0, |(_, lost)| lost),
    }
}

/// Drops of one NIC, or of all with their totals.
pub fn drops(
    control: &Permitted,
    request: &v1::ListDropsRequest,
) -> Result<v1::ListDropsResponse, Refusal> {
    let one = |id: &NicId| {
        control
            .nic_stats(id)
            .map(|stats| nic_drops(&stats, request.all))
    };
    if !request.nic.is_empty() {
        return Ok(v1::ListDropsResponse {
            totals: vec![],
            drops: one(&NicId::new(&request.nic)?)?,
        });
    }
    let mut drops = Vec::new();
    for id in control.nic_ids() {
        drops.extend(one(&id)?);
    }
    Ok(v1::ListDropsResponse {
        totals: totals(&drops, request.all),
        drops,
    })
}

fn nic_drops(stats: &NicStats, all: bool) -> Vec<v1::Drop> {
    let id = stats.id.to_string();
    let directions = [
        (v1::Direction::Egress, &stats.drops_out),
        (v1::Direction::Ingress, &stats.drops_in),
    ];
    let mut drops = Vec::new();
    for (direction, counted) in directions {
        for reason in DropReason::ALL {
            let frames = counted
                .iter()
                .find(|(counted, _)| counted == reason)
                .map_or(0, |(_, frames)| *frames);
            if frames > 0 || all {
                drops.push(drop(&id, direction, *reason, frames));
            }
        }
    }
    drops
}

fn drop(nic: &str, direction: v1::Direction, reason: DropReason, frames: u64) -> v1::Drop {
    v1::Drop {
        nic: nic.to_owned(),
        direction: direction.into(),
        reason: reason.name().into(),
        description: reason.description().into(),
        frames,
    }
}

fn totals(drops: &[v1::Drop], all: bool) -> Vec<v1::Drop> {
    let mut sums: BTreeMap<(i32, &str), u64> = BTreeMap::new();
    for drop in drops {
        *sums.entry((drop.direction, &drop.reason)).or_default() += drop.frames;
    }
    let mut totals = Vec::new();
    for direction in [v1::Direction::Egress, v1::Direction::Ingress] {
        for reason in DropReason::ALL {
            let frames = sums
                .get(&(direction.into(), reason.name()))
                .copied()
                .unwrap_or(0);
            if frames > 0 || all {
                totals.push(drop("", direction, *reason, frames));
            }
        }
    }
    totals
}

/// What the rules of one group, or of all, let pass.
pub fn rule_counters(control: &Permitted, group: &str) -> Result<Vec<v1::RuleCounter>, Refusal> {
    let ids = match group {
        "" => control.group_ids(),
        id => vec![GroupId::new(id)?],
    };
    let mut counters = Vec::new();
    for id in ids {
        counters.extend(
            control
                .group_stats(&id)?
                .rules
                .iter()
                .map(|stats| v1::RuleCounter {
                    group: id.to_string(),
                    rule: Some(render::rule(&stats.rule)),
                    flows: stats.flows,
                    frames: stats.frames,
                    bytes: stats.bytes,
                }),
        );
    }
    Ok(counters)
}

/// A connection; by which rules it was allowed is for the caller to say.
pub fn flow(
    flow: &FlowInfo,
    asked: Option<&NicId>,
    names: &BTreeMap<dataplane::PortUid, NicId>,
) -> v1::Flow {
    let (initiator, responder) = (
        names.get(&flow.initiator.uid),
        names.get(&flow.responder.uid),
    );
    let began = asked.is_none() || asked == initiator;
    let name = |nic: Option<&NicId>| nic.map(NicId::to_string).unwrap_or_default();
    let (nic, peer, direction) = match began {
        true => (initiator, responder, v1::Direction::Egress),
        false => (responder, initiator, v1::Direction::Ingress),
    };
    v1::Flow {
        nic: name(nic),
        direction: direction.into(),
        protocol: flow.protocol.into(),
        source: flow.initiator.address.to_string(),
        destination: flow.responder.address.to_string(),
        source_port: flow.initiator.port.into(),
        destination_port: flow.responder.port.into(),
        state: flow.state.name().into(),
        age_secs: flow.age_secs.into(),
        timeout_secs: flow.timeout_secs.saturating_sub(flow.idle_secs).into(),
        original_frames: flow.frames_out,
        original_bytes: flow.bytes_out,
        reply_frames: flow.frames_in,
        reply_bytes: flow.bytes_in,
        peer_nic: name(peer),
        egress_rule: None,
        ingress_rule: None,
        current: flow.is_current,
    }
}

/// The daemon at a glance. What is in it of others is left out for who sees a part.
pub fn status(app: &App, control: &Permitted, router: Summary) -> Result<v1::Status, Status> {
    let workers = match control.sees_all() {
        true => workers::statuses(&app.workers)?,
        false => Vec::new(),
    };
    Ok(v1::Status {
        workers,
        graph_dot: control
            .unlimited()
            .map_or_else(String::new, Controller::graph_dot),
        ..brief(app, control, router)
    })
}

/// The daemon at a glance, without what takes asking the workers.
pub fn brief(app: &App, control: &Permitted, router: Summary) -> v1::Status {
    let status = control.status();
    let now = app.operations.unix_secs();
    let all = control.sees_all();
    v1::Status {
        version: api::VERSION.into(),
        pid: std::process::id(),
        start_unix_secs: status.started_unix_secs,
        current_unix_secs: now,
        uptime_secs: now.saturating_sub(status.started_unix_secs),
        requests: status.requests,
        epoch: status.epoch,
        nics: status.nics as u32,
        groups: status.groups as u32,
        rules: status.rules as u32,
        networks: status.vnis as u32,
        remote_endpoints: status.hosts as u32,
        bindings: status.bindings as u32,
        socket_dir: control.settings().socket_dir.clone(),
        endpoints: app.endpoints.clone(),
        log_level: app.operations.log.level().to_string(),
        audit_lines_lost: if all { app.reload.audit().lost() } else { 0 },
        uplink: match app.uplinks.running() {
            Some(uplinks) if all => uplinks.summary(),
            _ => String::new(),
        },
        router: if all { router.line } else { String::new() },
        warnings: match control.unlimited() {
            Some(control) => warnings(app, control, router.warnings),
            None => Vec::new(),
        },
        forgotten: if all { all_forgotten() } else { Vec::new() },
        ..v1::Status::default()
    }
}

/// What of a daemon before is forgotten, of which there is any.
fn all_forgotten() -> Vec<v1::Forgotten> {
    let all = forgotten::NAMES.iter().zip(forgotten::MEANINGS);
    let all = all.zip(forgotten::counts());
    let any = all.filter(|(_, count)| *count > 0);
    any.map(|((what, meaning), count)| v1::Forgotten {
        what: (*what).to_owned(),
        count,
        meaning: meaning.to_owned(),
    })
    .collect()
}

/// What keeps frames from passing, or from being recorded, or is not there, or would not outlive
/// the daemon, while that itself works, a sentence each.
fn warnings(app: &App, control: &Controller, router: Vec<String>) -> Vec<String> {
    let mut warnings = app
        .uplinks
        .running()
        .map(Uplinks::warnings)
        .unwrap_or_default();
    let losing = app.balancer.losing();
    warnings.extend(losing.iter().map(|name| balancer::loss(name)));
    warnings.extend(app.balancer.troubles());
    warnings.extend(app.bgp.warnings());
    let interfaces = app.balancer.interfaces().into_iter();
    let lacking = interfaces.filter(|one| one.mode.is_none());
    warnings.extend(lacking.map(|InterfaceStatus { name, why, .. }| {
        format!("the load balancer is not attached to {name}: {why}")
    }));
    warnings.extend(router);
    warnings.extend(app.traces.warning());
    warnings.extend(deaf::sentence(&control.deaf_networks()));
    warnings.extend(stored::unmade_sentence(control.unmade()));
    warnings.extend(app.held.as_ref().and_then(|held| held.warning()));
    warnings
}
