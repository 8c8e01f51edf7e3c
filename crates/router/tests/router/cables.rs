//! What the router's two interfaces are made of: TAP devices as they are, or VLANs and bonds on
//! them.

use testkit::netns::Namespace;
use xdp::Mode;

/// How `east` and `west` come to be.
pub struct Cables {
    /// TAP devices of the east: one, or a bond's.
    pub east: &'static [&'static str],
    /// TAP devices of the west: one, or a bond's.
    pub west: &'static [&'static str],
    /// EtherType and VLAN of frames on the eastern wire, as bytes; none without VLANs.
    pub east_tag: &'static [u8],
    /// EtherType and VLAN of frames on the western wire, as bytes; none without VLANs.
    pub west_tag: &'static [u8],
    /// Makes `east` and `west` of them.
    pub setup: &'static str,
    /// How the program runs in the east and in the west.
    pub modes: [Mode; 2],
}

/// In the drivers.
pub const NATIVE: [Mode; 2] = [Mode::Native, Mode::Native];
/// Where packets are the kernel's buffers.
pub const TC: [Mode; 2] = [Mode::Tc, Mode::Tc];

/// The devices themselves.
pub const PLAIN: Cables = Cables {
    east: &["east"],
    west: &["west"],
    east_tag: &[],
    west_tag: &[],
    setup: "",
    modes: NATIVE,
};

/// Whether this kernel makes a device of such a type, and if not a line that says so: a guest's
/// kernel does (`another_kernel.rs`).
pub fn can_make(kind: &str) -> bool {
    let namespace = Namespace::new().expect("a namespace");
    let made = match kind {
        "vlan" => "ip link add far type dummy && ip link add link far name near type vlan id 5",
        "macvlan" => {
            "ip link add far type veth peer name end && ip link add link far name near type macvlan"
        }
        "vrf" => "ip link add near type vrf table 10",
        "bridge" => "ip link add near type bridge",
        _ => "ip link add near type bond",
    };
    let can = namespace.succeeds(made).expect("ip");
    if !can {
        println!(
            "skipped: this machine's kernel makes no {kind} devices; \
             a guest's does, see another_kernel.rs"
        );
    }
    can
}

/// Whether this kernel runs programs at tc, and if not a line that says so: before Linux 6.6 it
/// needs modules for that, which not every guest has.
pub fn has_tc() -> bool {
    let namespace = Namespace::new().expect("a namespace");
    let (xdp, tc) = (xdp::objects::PASS, xdp::objects::tc::PASS);
    let program = xdp::Program::load_both("pass", xdp, tc, |_| Ok(())).expect("a program");
    let mut attached = xdp::Interfaces::new();
    let had = namespace.inside(|| {
        attached
            .add(1, xdp::Feature::Router, &program, Some(Mode::Tc))
            .is_ok()
    });
    let had = had.expect("the namespace");
    if !had {
        println!("skipped at tc: this kernel has neither tcx nor filters with programs");
    }
    had
}
