//! Two guests with Debian's kernel and four cables between them, of which one runs our programs.

use tempfile::TempDir;
use testkit::Result;
use testkit::image::Image;
use testkit::qemu::{Guest, Machine, Nic, Wire};

use crate::daemon::program;

/// Starts the host that our programs run on and, under this name, the one at the other end. `eth0`
/// to `eth3` of both are joined; the host's `eth3` is VMware's NIC, which can take VLAN tags out of
/// frames. The cables are there as long as the folder is.
pub fn start(other: &str) -> Result<(Guest, Guest, TempDir)> {
    let cables = tempfile::tempdir().map_err(|e| format!("cannot make a folder: {e}"))?;
    let programs = [program("butterfly"), program("butterflyd")];
    let mut host = Machine::named("host")
        .with_tools()
        .with_programs(&programs.each_ref().map(String::as_str));
    let mut far = Machine::named(other).with_tools();
    for n in 0..4 {
        let cable = cables.path().join(format!("cable{n}"));
        let nic = Nic::new(Wire::Listen(cable.clone()), &format!("52:54:00:00:01:0{n}"));
        host = host.with(if n == 3 { nic.of_vmware() } else { nic });
        far = far.with(Nic::new(
            Wire::Connect(cable),
            &format!("52:54:00:00:02:0{n}"),
        ));
    }
    let mut guests = Guest::start_all(&Image::ready()?, &[host, far])?;
    let (Some(far), Some(host)) = (guests.pop(), guests.pop()) else {
        return Err("two guests were started".to_owned());
    };
    Ok((host, far, cables))
}
