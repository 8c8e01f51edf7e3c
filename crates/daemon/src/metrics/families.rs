//! The table of metrics: names, labels and what they mean. Names are stable; units and suffixes are
//! Prometheus' (<https://prometheus.io/docs/practices/naming/>). docs/metrics.md has a line for
//! each, and the tests hold the two together.

use prometheus_client::metrics::MetricType;

/// All metrics of one name.
#[derive(Debug)]
pub struct Family {
    /// Without `_total`, which counters get; with the unit.
    pub name: &'static str,
    pub kind: Kind,
    /// The base unit, which the name then ends in; or none.
    pub unit: Option<&'static str>,
    pub labels: &'static [&'static str],
    pub help: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Family {
    pub fn metric_type(&self) -> MetricType {
        match self.kind {
            Kind::Counter => MetricType::Counter,
            Kind::Gauge => MetricType::Gauge,
            Kind::Histogram => MetricType::Histogram,
        }
    }

    /// The name without its unit.
    pub fn stem(&self) -> &'static str {
        let unit = self.unit.unwrap_or_default();
        let stem = self.name.strip_suffix(unit);
        stem.and_then(|stem| stem.strip_suffix('_'))
            .filter(|_| !unit.is_empty())
            .unwrap_or(self.name)
    }
}

macro_rules! families {
    ($($constant:ident =
        $kind:ident $name:literal $([$unit:literal])? ($($label:literal),*) $help:literal;)*) => {
        $(pub static $constant: Family = Family {
            name: $name,
            kind: Kind::$kind,
            unit: families!(@unit $($unit)?),
            labels: &[$($label),*],
            help: $help,
        };)*

        /// In the order in which they are written.
        #[cfg(test)]
        pub static ALL: &[&Family] = &[$(&$constant),*];
    };
    (@unit) => { None };
    (@unit $unit:literal) => { Some($unit) };
}

families! {
    BUILD = Gauge "butterfly_build_info" ("version") "The daemon's version; always 1.";
    NICS = Gauge "butterfly_nics" () "NICs of this host.";
    GROUPS = Gauge "butterfly_groups" () "Security groups.";
    RULES = Gauge "butterfly_rules" () "Rules of all groups.";
    NETWORKS = Gauge "butterfly_networks" () "Virtual networks that anything speaks of.";
    ENDPOINTS = Gauge "butterfly_endpoints" () "Other hosts.";
    BINDINGS = Gauge "butterfly_bindings" () "MACs bound to other hosts.";
    FLOWS = Gauge "butterfly_flows" () "Connections tracked now.";
    FLOWS_MAX = Gauge "butterfly_flows_max" () "Connections that can be tracked (--max-flows).";
    KERNEL_FLOWS = Gauge "butterfly_kernel_flows" ()
        "Connections that the kernel may forward itself now.";
    KERNEL_FLOWS_MAX = Gauge "butterfly_kernel_flows_max" ()
        "How many it may at once (--kernel-flows); 0 as well before the first NIC of type veth or \
         vm-tap.";
    KERNEL_FLOWS_REFUSED = Counter "butterfly_kernel_flows_refused" ()
        "Directions of connections that it was not told of for want of a place: they go by the \
         workers.";
    EPOCH = Gauge "butterfly_config_epoch" ()
        "The configuration's epoch: grows with every change that concerns a frame.";

    NIC_INFO = Gauge "butterfly_nic_info" ("nic", "vni", "kind")
        "The network and kind of each NIC; always 1.";
    NIC_UP = Gauge "butterfly_nic_up" ("nic")
        "1 while a guest is attached and its rings work, else 0.";
    NIC_FRAMES = Counter "butterfly_nic_frames" ("nic", "direction")
        "Frames that the guest sent (egress), dropped ones included, and that were delivered to it \
         (ingress).";
    NIC_KERNEL = Counter "butterfly_nic_kernel_frames" ("nic")
        "Of the frames that a container sent, those that the kernel has forwarded itself.";
    NIC_BYTES = Counter "butterfly_nic_bytes" ["bytes"] ("nic", "direction")
        "Bytes of these frames, Ethernet headers included.";
    NIC_MIRRORED = Counter "butterfly_nic_mirrored_frames" ("nic")
        "Copies of frames for the NIC's mirror, of NICs that have one, since it was set.";
    NIC_MIRROR_LOST = Counter "butterfly_nic_mirror_lost_frames" ("nic")
        "Those of them that were lost: no room in the queue, or not taken by the host's network.";
    NIC_DROPPED = Counter "butterfly_nic_dropped_frames" ("nic", "direction")
        "Frames from this guest (egress) and on their way to it (ingress) that were dropped.";
    NIC_DROPPED_BY = Counter "butterfly_nic_dropped_frames_by_reason" ("nic", "direction", "reason")
        "The same by reason, once it has happened; docs/drops.md explains the reasons.";
    DROPPED = Counter "butterfly_dropped_frames" ("direction", "reason")
        "Frames of all NICs, deleted ones included, that were dropped; docs/state.md says over \
         what ends of the daemon.";

    RULE_FRAMES = Counter "butterfly_rule_frames" ("group", "rule")
        "Frames that passed because this rule allowed them, over all NICs.";
    RULE_BYTES = Counter "butterfly_rule_bytes" ["bytes"] ("group", "rule") "Their bytes.";
    RULE_FLOWS = Counter "butterfly_rule_flows" ("group", "rule")
        "Connections that this rule allowed to begin.";

    WORKER_BUSY = Counter "butterfly_worker_busy_seconds" ["seconds"] ("worker")
        "Time in turns of the loop that found frames: its rate is the busy share.";
    WORKER_ASLEEP = Counter "butterfly_worker_asleep_seconds" ["seconds"] ("worker")
        "Time asleep. What is neither busy nor asleep was polled in vain.";
    WORKER_TURNS = Counter "butterfly_worker_turns" ("worker") "Turns of the loop.";
    WORKER_SLEEPS = Counter "butterfly_worker_sleeps" ("worker") "How often it slept.";
    WORKER_BATCH = Histogram "butterfly_worker_batch_frames" ("worker")
        "Frames that were found at once; their sum is all frames that the worker has taken.";
    WORKER_STEP_CYCLES = Counter "butterfly_worker_step_cycles" ("worker", "step")
        "Cycles of the time-stamp counter that a step took, in the batches that were timed.";
    WORKER_STEP_FRAMES = Counter "butterfly_worker_step_frames" ("worker", "step")
        "Frames of these batches: cycles over frames is a frame's cost.";
    WORKER_QUEUES = Gauge "butterfly_worker_queues" ("worker") "Queue pairs that the worker has.";
    WORKER_EVICTED = Counter "butterfly_worker_flows_evicted" ("worker")
        "Connections given up before their time: a NIC's share or the table was full.";
    WORKER_HANDED_OVER = Counter "butterfly_worker_handed_over_frames" ("worker")
        "Frames given to another worker, which has their receiver.";
    WORKER_TAKEN_OVER = Counter "butterfly_worker_taken_over_frames" ("worker")
        "Frames of other workers that were delivered here.";
    WORKER_WAITING = Gauge "butterfly_worker_waiting_frames" ("worker")
        "Frames that wait now for the next hop to another host.";
    WORKER_FRAGMENTS = Gauge "butterfly_worker_held_fragments" ("worker")
        "Fragments held now until their first one comes.";
    WORKER_MACS = Gauge "butterfly_worker_learned_macs" ("worker") "MACs learnt from traffic now.";

    UPLINK_JOINED = Gauge "butterfly_uplink_joined" ("interface")
        "1 while frames can come and go by this interface, else 0.";
    UPLINK_UP = Gauge "butterfly_uplink_up" ("interface")
        "1 while it is set up and has a carrier, else 0.";
    UPLINK_FRAMES = Counter "butterfly_uplink_frames" ("interface", "direction")
        "VXLAN frames taken from the wire (ingress) and sent (egress).";
    UPLINK_BYTES = Counter "butterfly_uplink_bytes" ["bytes"] ("interface", "direction")
        "Their bytes, outer headers included.";
    UPLINK_DROPPED = Counter "butterfly_uplink_dropped_frames" ("interface", "direction", "reason")
        "Frames dropped on their way in or out, by reason, once it has happened.";
    UPLINK_LOST = Counter "butterfly_uplink_lost_frames" ("interface")
        "Frames that the kernel could not give us: no room in the sockets' rings, no buffer.";
    UPLINK_KERNEL = Counter "butterfly_uplink_kernel_frames" ("interface")
        "Of the frames taken from the wire, those that the kernel has given to containers itself.";

    SERVICE_IN_SERVICE = Gauge "butterfly_service_in_service" ("vip", "protocol", "port")
        "1 while enough of its servers are healthy, else 0.";
    SERVICE_ANNOUNCED = Gauge "butterfly_service_announced" ("vip", "protocol", "port")
        "1 while its address is announced, else 0.";
    SERVICE_SERVERS = Gauge "butterfly_service_servers" ("vip", "protocol", "port") "Its servers.";
    SERVICE_HEALTHY = Gauge "butterfly_service_healthy_servers" ("vip", "protocol", "port")
        "Those of them that are healthy.";
    SERVER_HEALTHY = Gauge "butterfly_server_healthy" ("vip", "protocol", "port", "server")
        "1 healthy, 0 not; absent while that is not known.";
    SERVER_REACHABLE = Gauge "butterfly_server_reachable" ("vip", "protocol", "port", "server")
        "1 while there is a way for its packets, else 0.";
    SERVER_CHECK = Gauge "butterfly_server_check_duration_seconds" ["seconds"]
        ("vip", "protocol", "port", "server") "How long the last health check took.";
    SERVER_PACKETS = Counter "butterfly_server_packets" ("vip", "protocol", "port", "server")
        "Packets sent to the server.";
    SERVER_BYTES = Counter "butterfly_server_bytes" ["bytes"] ("vip", "protocol", "port", "server")
        "Their bytes from the IP header on, without tunnel headers.";
    SERVER_FLOWS = Counter "butterfly_server_flows" ("vip", "protocol", "port", "server")
        "Flows that began.";
    BALANCER_DROPPED = Counter "butterfly_balancer_dropped_packets" ("reason")
        "Packets to services that were dropped, by reason (docs/drops.md).";
    BALANCER_NOTED = Counter "butterfly_balancer_noted_packets" ("reason")
        "Packets to services that were answered, left to the kernel, or sent with something to say \
         of them, by reason (docs/drops.md).";
    BALANCER_LOSES = Gauge "butterfly_balancer_interface_loses_frames" ("interface")
        "1 while what is sent to servers out of the interface is lost, else 0 (docs/balancer.md).";
    BGP_SESSION = Gauge "butterfly_bgp_session_state" ("neighbour")
        "How far the session is (--balance-bgp), as bgpPeerState of RFC 4273: 6 established, 1 to \
         5 on the way, 0 given up by BIRD.";

    ROUTER_FORWARDED = Counter "butterfly_router_forwarded_packets" ("interface", "family")
        "Transit packets from this interface that were forwarded.";
    ROUTER_FORWARDED_BYTES = Counter "butterfly_router_forwarded_bytes" ["bytes"]
        ("interface", "family") "Their bytes.";
    ROUTER_SENT = Counter "butterfly_router_sent_packets" ("interface", "family")
        "Transit packets that were sent out of this interface.";
    ROUTER_DROPPED = Counter "butterfly_router_dropped_packets" ("interface", "family", "reason")
        "Transit packets that were dropped, by reason, once it has happened (docs/router.md).";
    ROUTER_KERNEL = Counter "butterfly_router_kernel_packets" ("interface", "family", "reason")
        "Packets that were left to the kernel, by reason, once it has happened.";
    ROUTER_PREFIXES = Gauge "butterfly_router_prefixes" ("family")
        "Prefixes in the router's table.";
    ROUTER_NODES = Gauge "butterfly_router_nodes" ("family") "Lines of the table that are used.";
    ROUTER_NODES_MAX = Gauge "butterfly_router_nodes_max" ("family")
        "Lines that it has (--router-nodes4, --router-nodes6).";

    API_REQUESTS = Counter "butterfly_api_requests" ("api", "request", "result")
        "Requests of both APIs that were answered: ok, or how they were refused.";
    API_DURATION = Histogram "butterfly_api_request_duration_seconds" ["seconds"] ("api", "request")
        "From a request to its answer, or to the first of a stream. A change is in force by then.";
    AUDIT_LOST = Counter "butterfly_audit_lost_lines" ()
        "Lines that could not be written to the audit file.";
    TRACE_LOST = Counter "butterfly_packet_trace_lost_frames" ()
        "Frames that are missing in packet traces: the disk was too slow, or a file or the folder \
         is full (--trace-dir-max).";
    FORGOTTEN = Counter "butterfly_left_forgotten" ("what")
        "What a daemon before has left in memory and this one has forgotten, since it cannot be \
         true or is out of date (docs/state.md).";
    FLOW_RECORDS = Counter "butterfly_flow_log_records" ("kind")
        "Connections that began and ended, and sums of refused packets, that the flow log has told \
         (docs/flows.md).";
    FLOW_RECORDS_LOST = Counter "butterfly_flow_log_lost_records" ("place")
        "Those that it has lost: no room in a worker's ring, or not taken by the file, by a \
         collector, by somebody who watches.";
    SFLOW_SAMPLES = Counter "butterfly_sflow_samples" ("kind")
        "Samples of frames and of interfaces' counters that were sent to collectors \
         (docs/collectors.md).";
    SFLOW_LOST = Counter "butterfly_sflow_lost_samples" ("place")
        "Samples that were lost: no room in a worker's ring, or not taken by the network.";
    LEFT_OUT = Gauge "butterfly_metrics_left_out" ("family")
        "Objects that are over the maximum of a family, and therefore not told (docs/metrics.md).";

    PROCESS_CPU = Counter "process_cpu_seconds" ["seconds"] ()
        "Processor time of the daemon, user and system.";
    PROCESS_RESIDENT = Gauge "process_resident_memory_bytes" ["bytes"] ()
        "Memory of the daemon that is in RAM. Guests' memory that it maps is in it, as far as it \
         was touched.";
    PROCESS_VIRTUAL = Gauge "process_virtual_memory_bytes" ["bytes"] () "Its address space.";
    PROCESS_FDS = Gauge "process_open_fds" () "Its open file descriptors.";
    PROCESS_FDS_MAX = Gauge "process_max_fds" () "How many it may have.";
    PROCESS_THREADS = Gauge "process_threads" () "Its threads.";
    PROCESS_START = Gauge "process_start_time_seconds" ["seconds"] () "When it started, Unix time.";
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// The line of docs/metrics.md.
    fn line(family: &Family) -> String {
        let suffix = match family.kind {
            Kind::Counter => "_total",
            _ => "",
        };
        let labels: Vec<String> = family.labels.iter().map(|l| format!("`{l}`")).collect();
        let labels = match labels.is_empty() {
            true => "–".to_owned(),
            false => labels.join(", "),
        };
        format!(
            "| `{}{suffix}` | {} | {labels} | {} |",
            family.name,
            format!("{:?}", family.kind).to_lowercase(),
            family.help
        )
    }

    #[test]
    fn the_page_has_every_metric_and_no_other() {
        let page = include_str!("../../../../docs/metrics.md");
        let told: Vec<&str> = page.lines().filter(|l| l.starts_with("| `")).collect();
        let ours: Vec<String> = ALL.iter().map(|family| line(family)).collect();
        let missing: Vec<&str> = ours
            .iter()
            .map(String::as_str)
            .filter(|l| !told.contains(l))
            .collect();
        assert!(
            missing.is_empty(),
            "docs/metrics.md misses\n{}",
            missing.join("\n")
        );
        assert_eq!(told.len(), ours.len(), "docs/metrics.md has more");
    }

    #[test]
    fn names_follow_the_conventions() {
        let names: BTreeSet<&str> = ALL.iter().map(|family| family.name).collect();
        assert_eq!(names.len(), ALL.len(), "a name is there twice");
        for family in ALL {
            assert!(
                !family.name.ends_with("_total"),
                "{}: counters get their suffix",
                family.name
            );
            if let Some(unit) = family.unit {
                assert_eq!(format!("{}_{unit}", family.stem()), family.name);
            }
            assert!(family.help.ends_with('.'), "{}", family.name);
        }
    }
}
