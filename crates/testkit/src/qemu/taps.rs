//! NICs whose other end is a TAP device in a namespace. QEMU opens TAP devices where it runs: that
//! is a namespace of the guest's own, from where each device moves to the one it is meant for. It
//! stays QEMU's, and goes when QEMU does.

use super::machine::Machine;
use super::nic::Wire;
use crate::netns::Namespace;
use crate::process::{self, Process};
use crate::{PATIENCE, Result, wait_for};

/// What QEMU calls the device of NIC `index`, before it moves.
pub(super) fn made_as(index: usize) -> String {
    format!("nic{index}")
}

/// Where QEMU of this machine has to run: nowhere special without such a NIC.
pub(super) fn home(machine: &Machine) -> Result<Option<Namespace>> {
    let has_any = machine
        .nics
        .iter()
        .any(|nic| matches!(nic.wire, Wire::Tap { .. }));
    has_any.then(Namespace::new).transpose()
}

/// The words in front of a program that is to run in a namespace.
pub(super) fn enter(home: &Namespace) -> Vec<String> {
    let pid = home.pid().to_string();
    ["nsenter", "-t", &pid, "-n", "--"]
        .map(str::to_owned)
        .to_vec()
}

/// Moves the devices to their namespaces, and takes them up.
pub(super) fn distribute(machine: &Machine, home: &Namespace, qemu: &mut Process) -> Result<()> {
    for (index, nic) in machine.nics.iter().enumerate() {
        let Wire::Tap { namespace, device } = &nic.wire else {
            continue;
        };
        let made = made_as(index);
        wait_for(&format!("QEMU's TAP device {made}"), PATIENCE, || {
            if let Some(status) = qemu.ended() {
                return Err(format!(
                    "QEMU of {} ended with {status}:\n{}",
                    machine.name,
                    qemu.log()
                ));
            }
            Ok(home
                .succeeds(&format!("ip link show {made}"))?
                .then_some(()))
        })?;
        home.ok(&format!(
            "ip link set {made} netns {namespace} name {device}"
        ))?;
        let pid = namespace.to_string();
        process::run(&[
            "nsenter", "-t", &pid, "-n", "ip", "link", "set", device, "up",
        ])?;
    }
    Ok(())
}
