//! The compiled programs, one for each `bpf/NAME.bpf.c` (see `build.rs`), and those for tc ingress
//! in [`tc`]: ELF objects for [`Program::load`](crate::Program::load) and
//! [`Program::load_both`](crate::Program::load_both).

macro_rules! objects {
    ($suffix:literal: $($(#[$doc:meta])* $name:ident = $file:literal;)*) => {
        $(
            $(#[$doc])*
            pub static $name: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/", $file, $suffix));
        )*
    };
}

objects! {
    ".bpf.o":
    /// For benchmarks: restores the frame, of the next flow, and hands it to the program under
    /// test.
    AGAIN = "again";
    /// The load balancer.
    BALANCER = "balancer";
    /// For benchmarks: a load balancer that keeps an entry for every flow.
    CLASSIC = "classic";
    /// Drops everything.
    DROP = "drop";
    /// For benchmarks: forwards by the kernel's own lookup.
    FIB = "fib";
    /// Takes nothing.
    PASS = "pass";
    /// The router: transit packets between its interfaces.
    ROUTER = "router";
    /// Has the router leave its packets to the kernel while nobody fills its tables.
    ROUTER_WATCH = "router_watch";
    /// Health checks, through the load balancer's tables to one server each.
    PROBE = "probe";
    /// For measurements: hands on frames to many destinations, or sends them.
    SCATTER = "scatter";
    /// For measurements: counts and takes the datagrams of one.
    SINK = "sink";
    /// Sends everything back untouched.
    TRANSMIT = "transmit";
    /// VXLAN for us to the sockets of the uplinks.
    UPLINK = "uplink";
}

/// The programs again, compiled from the same sources for tc ingress.
pub mod tc {
    objects! {
        ".tc.o":
        /// For benchmarks: see [`AGAIN`](super::AGAIN).
        AGAIN = "again";
        /// What comes from other hosts for containers, beside [`CABLE`].
        ARRIVAL = "arrival";
        /// The same, beside [`CABLE_BLIND`].
        ARRIVAL_BLIND = "arrival_blind";
        /// The load balancer.
        BALANCER = "balancer";
        /// Between a container's interface and the switch; for tc ingress alone.
        CABLE = "cable";
        /// The same where the kernel's buffers cannot be looked into.
        CABLE_BLIND = "cable_blind";
        /// Drops everything.
        DROP = "drop";
        /// Takes nothing.
        PASS = "pass";
        /// Health checks: see [`PROBE`](super::PROBE).
        PROBE = "probe";
        /// The router.
        ROUTER = "router";
    }
}
