//! Flows that the kernel forwards itself between containers and to and from other hosts: the thread
//! that enters them in the map of the programs at interfaces, and says that the daemon is there.
//! What it is about is at the head of [`dataplane::flow::kernel`].
//!
//! Begun by [`attachments::veths`](crate::attachments::veths) with the first such interface; ends
//! with the switch.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytemuck::Zeroable;
use container::cables::{DSCP_INNER, FlowKey, FlowMaps, FlowValue};
use dataplane::Switch;
use dataplane::flow::kernel::{
    GOOD_FOR_NS, KernelFlow, KernelFlowTable, KernelFlows, KernelKey, KernelMap, KernelMemory,
    KernelOuter,
};
use rustix::time::{ClockId, clock_gettime};
use xdp::Table;

use crate::arrivals::Arrivals;

/// How often workers are asked what they want entered, for a second after the last time that they
/// wanted anything. Then one that wants something says so, and it is only looked whether something
/// is over.
const SOON: Duration = Duration::from_millis(5);
const LATER: Duration = Duration::from_millis(200);
const LATER_AFTER_NS: u64 = 1_000_000_000;

/// Has the switch use the maps, and begins to look after them. The error is a sentence.
pub fn begin(switch: &Arc<Switch>, arrivals: &Arrivals, maps: FlowMaps) -> Result<(), String> {
    let FlowMaps {
        flows,
        states,
        force,
        arrival,
    } = maps;
    let shared = KernelFlows::new(KernelMemory::Map(states), KernelMemory::Map(force));
    shared.extend(monotonic_ns() + GOOD_FOR_NS);
    let table = switch.use_kernel_flows(&shared);
    let Some(table) = table.map_err(|e| e.to_string())? else {
        return Ok(());
    };
    match arrival {
        Ok(program) => arrivals.begin(program),
        Err(why) => tracing::warn!("what comes from other hosts is the workers' alone: {why}"),
    }
    let switch = switch.clone();
    let thread = std::thread::Builder::new().name("kernel-flows".into());
    let thread = thread.spawn(move || look_after(&switch, &shared, table, Map(flows)));
    match thread {
        Ok(_) => Ok(()),
        Err(e) => Err(format!("a thread cannot be started: {e}")),
    }
}

fn look_after(switch: &Switch, shared: &KernelFlows, mut table: KernelFlowTable, mut map: Map) {
    let mut wanted_ns = 0;
    loop {
        let now_ns = monotonic_ns();
        shared.extend(now_ns + GOOD_FOR_NS);
        let rests = now_ns.saturating_sub(wanted_ns) >= LATER_AFTER_NS;
        if rests {
            shared.rest();
        }
        let count = match switch.update_kernel_flow_table(&mut table, &mut map) {
            Ok(count) => count,
            // Nothing is switched any more.
            Err(_) => break,
        };
        if count > 0 {
            wanted_ns = now_ns;
        } else if rests {
            shared.park(LATER);
        }
        let wait = if rests { Duration::ZERO } else { SOON };
        if switch.wait_stopping(wait) {
            break;
        }
    }
    shared.close();
}

/// What bpf_ktime_get_ns() reads.
fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let secs = u64::try_from(now.tv_sec).unwrap_or_default();
    secs * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or_default()
}

/// The program's map.
struct Map(Table<FlowKey, FlowValue>);

impl KernelMap for Map {
    fn enter(&mut self, key: &KernelKey, flow: &KernelFlow) -> bool {
        let mut value = FlowValue {
            state: flow.state,
            tag: flow.tag,
            to: flow.to,
            ..FlowValue::zeroed()
        };
        if let Some(KernelOuter { headers, dscp }) = &flow.outer {
            let bytes = headers.bytes();
            let Some(place) = value.outer.get_mut(2..2 + bytes.len()) else {
                return false;
            };
            place.copy_from_slice(bytes);
            value.outer_len = bytes.len() as u8;
            value.dscp = dscp.unwrap_or(DSCP_INNER);
        }
        self.0.set(&as_entered(key), &value).is_ok()
    }

    fn leave(&mut self, key: &KernelKey) {
        // One that is not there has left.
        let _ = self.0.remove(&as_entered(key));
    }
}

fn as_entered(key: &KernelKey) -> FlowKey {
    FlowKey {
        device: key.device,
        macs: key.macs.map(|mac| mac.0),
        from: octets(key.from),
        to: octets(key.to),
        ports: key.ports.map(u16::to_be_bytes),
        protocol: key.protocol,
        family: if key.from.is_ipv6() { 6 } else { 4 },
        reserved: 0,
        vni: key.vni.map_or(0, |vni| vni.id()),
    }
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V6(six) => six.octets(),
        IpAddr::V4(four) => {
            let mut octets = [0; 16];
            octets[..4].copy_from_slice(&four.octets());
            octets
        }
    }
}
