//! Kernel memory of the flow table and the flows' names, by what the maps say of themselves.

use butterfly_balancer::Tunnel;
use libbpf_rs::MapCore;
use testkit::results::Results;

use crate::stage::{self, LOOPBACK, MAX_FLOWS};

/// Bytes for each of `max_flows`.
pub fn measure(results: &mut Results) {
    let balancer = stage::balancer(
        LOOPBACK,
        LOOPBACK,
        &stage::macs(1),
        Tunnel::None,
        false,
        false,
    );
    let bytes = |name| {
        let map = balancer.program().map(name).expect("it has the map");
        f64::from(map.value_size()) * f64::from(map.max_entries())
    };
    let each = (bytes("flows") + bytes("flow_names")) / f64::from(MAX_FLOWS);
    results.add("memory of a flow", "balancer", "bytes", vec![each]);
    results.ratio("bytes_per_flow", each);
}
