//! Reads, for one scrape, all that is told.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use api::v1;
use balancer::Reason;
use control::model::{Group, NicKind};
use control::{NicState, NicStats, RuleStats};
use dataplane::drop_reason::REASONS;
use dataplane::load::WorkerLoad;

use super::process::Process;
use super::requests::Requests;
use crate::app::App;
use crate::balancer::status;
use crate::{forgotten, v1 as api_v1};

/// Rules that are told at most, in the order of their groups' ids.
pub const RULES_MAX: usize = 10_000;
/// Reasons of single NICs that are told at most, in the order of their ids.
pub const NIC_REASONS_MAX: usize = 50_000;

/// All of it, at about one moment.
#[derive(Debug)]
pub struct Scrape {
    pub status: control::Status,
    pub nics: Vec<Nic>,
    /// By reason, egress and ingress, of all NICs that ever were.
    pub drops: [[u64; REASONS]; 2],
    pub groups: Vec<(Arc<Group>, Vec<RuleStats>)>,
    pub rules_left_out: usize,
    pub workers: Vec<WorkerLoad>,
    pub max_flows: u32,
    /// Connections that the kernel may forward, how many it may at most, and those it was not told
    /// of.
    pub kernel_flows: [u64; 3],
    pub uplinks: Vec<v1::Uplink>,
    pub services: Vec<v1::ServiceStatus>,
    pub balancer_reasons: Vec<(Reason, u64)>,
    pub balancer_losing: BTreeMap<String, bool>,
    /// By neighbour.
    pub bgp_sessions: Vec<(IpAddr, bgp::State)>,
    pub router: Option<v1::RouterStatus>,
    pub requests: Requests,
    pub audit_lines_lost: u64,
    pub trace_frames_lost: u64,
    /// By the names of [`forgotten`](crate::forgotten).
    pub forgotten: [u64; forgotten::COUNT],
    /// By the names of [`flow_log`](crate::flow_log).
    pub flow_records: [u64; 3],
    pub flow_records_lost: [u64; 4],
    /// By the names of [`sflow`](crate::sflow).
    pub samples: [u64; 2],
    pub samples_lost: [u64; 2],
    pub process: Process,
}

#[derive(Debug)]
pub struct Nic {
    pub stats: NicStats,
    pub vni: u32,
    pub kind: &'static str,
    pub up: bool,
}

/// Reads everything else than `router`. It waits for workers and for the controller. The error is
/// a sentence.
pub fn gather(
    app: &App,
    requests: Requests,
    router: Option<v1::RouterStatus>,
) -> Result<Scrape, String> {
    let loads = app.workers.loads().map_err(|e| e.to_string())?;
    let facts = status::Facts::of(&app.balancer).map_err(|e| e.to_string())?;
    let uplinks = api_v1::uplinks::list(app).uplinks;
    let control = app.control();
    let mut nics = Vec::with_capacity(control.status().nics);
    for (nic, state, stats) in control.all_nic_stats() {
        nics.push(Nic {
            vni: nic.vni.id(),
            kind: match nic.kind {
                NicKind::VhostUser => "vhost_user",
                NicKind::Tap => "tap",
                NicKind::Veth(_) => "veth",
                NicKind::VmTap(_) => "vm-tap",
                NicKind::Bench(_) => "bench",
            },
            up: *state == NicState::Up,
            stats,
        });
    }
    let (mut groups, mut rules, mut rules_left_out) = (Vec::new(), 0, 0);
    for group in control.groups() {
        if rules + group.rules.len() > RULES_MAX {
            rules_left_out += group.rules.len();
            continue;
        }
        rules += group.rules.len();
        let stats = control.group_stats(&group.id).map_err(|e| e.to_string())?;
        groups.push((group, stats.rules));
    }
    let services = control.services().values();
    let services = services
        .map(|service| status::service(&control, service, &facts))
        .collect();
    let status = control.status();
    drop(control);
    Ok(Scrape {
        status,
        nics,
        drops: app.workers.switch().dropped_frames(),
        groups,
        rules_left_out,
        workers: loads,
        max_flows: app.workers.max_flows(),
        kernel_flows: match app.workers.switch().kernel_flows() {
            Some(kernel) => [kernel.len().into(), kernel.max().into(), kernel.refused()],
            None => [0; 3],
        },
        uplinks,
        services,
        balancer_reasons: facts.reasons().to_vec(),
        balancer_losing: facts.losing().clone(),
        bgp_sessions: app.bgp.states(),
        router,
        requests,
        audit_lines_lost: app.reload.audit().lost(),
        trace_frames_lost: app.traces.lost(),
        forgotten: forgotten::counts(),
        flow_records: app.reload.flow_log().counts().told(),
        flow_records_lost: app.reload.flow_log().counts().lost(),
        samples: app.sflow.counts().sent(),
        samples_lost: app.sflow.counts().lost(),
        process: Process::read(),
    })
}
