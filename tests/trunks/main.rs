//! The load balancer on trunks: VLANs (one tag, two, none), several interfaces, bonds, a NIC that
//! takes tags out of frames; in native mode and in generic. Debian's kernel in two guests, which
//! this machine's kernel has no such devices for: one balances, the other is all the hosts, a
//! namespace for each, which speak HTTP.

mod stage;
mod tunnels;
mod world;

use butterfly_tests::lab::{check, soon};
use butterfly_tests::trials;
use butterfly_tests::trials::run_trials;
use stage::{Pair, Trunk};
use testkit::Result;

fn main() {
    run_trials::<Pair>(
        &[],
        &trials![
            a_trunk_in_native_mode,
            a_trunk_in_generic_mode,
            a_nic_that_takes_tags_out,
            a_bond_with_a_backup_in_native_mode,
            a_bond_with_a_backup_in_generic_mode,
            a_bond_by_lacp_in_native_mode,
            a_bond_by_lacp_in_generic_mode,
            several_interfaces_at_once,
            tunnels::every_tunnel_over_a_vlan,
        ],
    );
}

fn a_trunk_in_native_mode(pair: &mut Pair) -> Result<()> {
    pair.play(&Trunk::nic("eth0"), "native")
}

fn a_trunk_in_generic_mode(pair: &mut Pair) -> Result<()> {
    pair.play(&Trunk::nic("eth0"), "generic")
}

/// VMware's NIC has no native XDP and hands VLAN tags over beside the frames: it is asked not to,
/// until it is given back.
fn a_nic_that_takes_tags_out(pair: &mut Pair) -> Result<()> {
    let takes_out = |pair: &Pair, expected: bool| {
        let says = pair.host.ok("ethtool -k eth3 | grep rx-vlan-offload")?;
        check(
            says.contains(": on") == expected,
            &format!("it takes tags out, {expected}: {says}"),
        )
    };
    takes_out(pair, true)?;
    pair.play(&Trunk::vmware(), "generic")?;
    takes_out(pair, true)?;
    // Without VLANs nothing is asked of it; VLANs that come later are seen.
    pair.host
        .ok("for vlan in v10 v20 v31 v30; do ip link del $vlan; done")?;
    pair.butterfly("service interface add eth3")?;
    takes_out(pair, true)?;
    pair.host
        .ok("ip link add link eth3 name v10 type vlan id 10")?;
    soon(
        &pair.host,
        "ethtool -k eth3 | grep -q 'rx-vlan-offload: off'",
    )?;
    pair.butterfly("service interface del eth3")?;
    takes_out(pair, true)
}

fn a_bond_with_a_backup_in_native_mode(pair: &mut Pair) -> Result<()> {
    survives(pair, &Trunk::backup(), "native")
}

fn a_bond_with_a_backup_in_generic_mode(pair: &mut Pair) -> Result<()> {
    survives(pair, &Trunk::backup(), "generic")
}

fn a_bond_by_lacp_in_native_mode(pair: &mut Pair) -> Result<()> {
    survives(pair, &Trunk::lacp(), "native")
}

fn a_bond_by_lacp_in_generic_mode(pair: &mut Pair) -> Result<()> {
    survives(pair, &Trunk::lacp(), "generic")
}

/// A bond of two ports that loses one, the other, and gets both back; one leaves it and comes
/// again.
fn survives(pair: &mut Pair, trunk: &Trunk, mode: &str) -> Result<()> {
    pair.set_up(trunk, mode)?;
    pair.each_serves("with both ports")?;
    for (gone, left) in [("eth1", "eth2"), ("eth2", "eth1")] {
        pair.unplug(gone)?;
        pair.goes_by(left)?;
        pair.each_serves(&format!("without {gone}"))?;
        pair.plug(gone)?;
    }
    pair.host.ok("ip link set eth1 nomaster")?;
    pair.goes_by("eth2")?;
    pair.each_serves("when eth1 has left the bond")?;
    pair.host
        .ok("ip link set eth1 down && ip link set eth1 master lag && ip link set eth2 down")?;
    pair.goes_by("eth1")?;
    pair.each_serves("when eth1 has come back")?;
    pair.host.ok("ip link set eth2 up")?;
    pair.give_back()
}

/// Clients on one NIC, servers on two others, one of them a trunk.
fn several_interfaces_at_once(pair: &mut Pair) -> Result<()> {
    for mode in ["native", "generic"] {
        pair.set_up(&Trunk::several(), mode)?;
        pair.each_serves(&format!("on three interfaces in {mode} mode"))?;
        pair.give_back()?;
        butterfly_tests::trials::Stage::reset(pair)?;
    }
    Ok(())
}
