//! OVS-DPDK as a host of an overlay: a bridge with the guest and a VXLAN port, and below it a
//! bridge with the uplink, which has the endpoint's address.

use std::net::IpAddr;
use std::path::Path;

use super::pipeline::{self, Pipeline};
use super::{MTU, PeerError, Running, Server, Setup};
use crate::peers::process::{Process, run};

/// How OVS holds the uplink.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wire {
    /// DPDK's `net_af_packet`: a packet socket with rings.
    AfPacket,
    /// DPDK's `net_af_xdp`: with a program of its own on the interface.
    AfXdp,
}

/// Where the host is, and where the other one.
pub struct Ends<'a> {
    /// Who holds the network namespace.
    pub holder: u32,
    /// The interface there.
    pub uplink: &'a str,
    /// Our endpoint and theirs.
    pub addresses: [IpAddr; 2],
    /// Our MAC on the wire and theirs.
    pub macs: [String; 2],
}

/// Guest 0, with the rules that let it be reached; guest 1 is behind the tunnel. Each frame is
/// tracked in one zone, that of the guest that is here.
pub fn start(dir: &Path, core: usize, wire: Wire, ends: &Ends<'_>) -> Result<Running, PeerError> {
    let server = Server::launch(dir, Some(core), false, Some(ends.holder))?;
    let [here, there] = ends.addresses;
    let [own, far] = &ends.macs;
    server.add_bridge("br-phy", &format!("other-config:hwaddr={own}"))?;
    server.add_bridge("br0", "")?;
    // The packet socket's driver takes no larger frames than 1518 bytes, and no word of them.
    let device = match wire {
        Wire::AfPacket => format!("net_af_packet0,iface={}", ends.uplink),
        Wire::AfXdp => format!("net_af_xdp0,iface={} mtu_request={MTU}", ends.uplink),
    };
    server.vsctl(&format!(
        "add-port br-phy phy -- set Interface phy type=dpdk options:dpdk-devargs={device} \
         ofport_request=1"
    ))?;
    server.add_guest("br0", 0)?;
    server.vsctl(&format!(
        "add-port br0 tunnel -- set Interface tunnel type=vxlan options:remote_ip={there} \
         options:local_ip={here} options:key=1 options:dst_port=4789 ofport_request=2"
    ))?;
    server.wait_for_ports(&[("phy", 1), ("p0", 1), ("tunnel", 2)])?;
    let address = format!("ip addr add {here}/24 dev br-phy && ip link set br-phy up");
    run(Process::command_in(Some(ends.holder), "sh").args(["-c", &address]))?;
    server.appctl(&["tnl/arp/set", "br-phy", &there.to_string(), far])?;
    server.add_flows("br0", &pipeline::flows(Pipeline::OneZone, Setup::Small)?)?;
    Ok(server.running(&["p0"], true))
}
