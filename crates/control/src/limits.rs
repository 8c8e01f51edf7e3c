//! The stated maxima. Every one is refused by name, with the limit and the value, before anything
//! changes (security-groups.md 17: refuse, don't degrade).

/// NICs of one daemon: the data plane has as many port slots.
pub const NICS: usize = 16_384;
/// Uplinks that are named.
pub const UPLINKS: usize = 16;
/// Groups that exist at one time.
pub const GROUPS: usize = 65_536;
/// Rules of all groups together: the data plane has as many rule counters.
pub const RULES: usize = 1 << 20;
/// Rules of one group. EC2 stops at 60.
pub const RULES_PER_GROUP: usize = 10_000;
/// Members of one group that are listed by hand. Those that come from NICs are bounded by [`NICS`]
/// times [`IPS_PER_NIC`].
pub const MEMBERS_PER_GROUP: usize = 16_384;
/// Groups of one NIC. EC2 stops at 5.
pub const GROUPS_PER_NIC: usize = 64;
/// Rules of all groups of one NIC together. EC2 stops at 1000.
pub const RULES_PER_NIC: usize = 100_000;
/// IPv4 and IPv6 addresses of one NIC.
pub const IPS_PER_NIC: usize = 256;
/// Allowed address pairs of one NIC.
pub const PAIRS_PER_NIC: usize = 64;
/// Networks on the link of one container.
pub const SUBNETS_PER_NIC: usize = 64;
/// Routes in one container, default ones aside.
pub const ROUTES_PER_NIC: usize = 256;
/// Bytes of a NIC's id. The socket's whole path is bounded by [`SOCKET_PATH`] besides.
pub const NIC_ID: usize = 128;
/// Bytes of a group's id.
pub const GROUP_ID: usize = 255;
/// Bytes of a Unix socket's path: `sun_path` is 108 with its terminating zero (unix(7)).
pub const SOCKET_PATH: usize = 107;
/// Bytes of a network interface's name: `IFNAMSIZ` is 16 with its terminating zero (netdevice(7)).
pub const INTERFACE_NAME: usize = 15;
/// Bytes of a packet trace's path: `PATH_MAX` is 4096 with its terminating zero.
pub const TRACE_PATH: usize = 4_095;
/// Smallest MTU: an IPv4 link carries 68 bytes (RFC 791 section 3.2).
pub const MTU_MIN: u16 = 68;
/// VNIs that anything is said of: by a NIC, a host, a binding or options.
pub const VNIS: usize = 350_000;
/// Other hosts.
pub const HOSTS: usize = 10_667;
/// MACs that are bound to hosts.
pub const BINDINGS: usize = 1_000_000;
/// Addresses of all bindings together; of one there are as many as of a NIC, [`IPS_PER_NIC`].
pub const BINDING_IPS: usize = 2_000_000;
/// VNIs that hosts are declared for one by one, those of all hosts together.
pub const MEMBERSHIPS: usize = 1_000_000;
/// Bytes of a host's name.
pub const HOST_NAME: usize = 255;
/// Hosts whose DHCP servers, or routers, one VNI trusts.
pub const TRUSTED_HOSTS: usize = 64;
/// Services of the load balancer: each has 64 KiB of the kernel's memory set aside.
pub const SERVICES: usize = 256;
/// Servers of one service.
pub const SERVERS_PER_SERVICE: usize = 4_096;
/// Servers of all services together.
pub const SERVERS: usize = 4_096;
/// Events that a subscriber may be behind before it is told that it has missed some.
pub const EVENTS: usize = 4_096;

#[cfg(test)]
mod tests {
    use super::*;

    /// The table in the documentation says what the code does.
    #[test]
    fn the_documented_limits_are_these() {
        let document = include_str!("../../../docs/limits.md");
        let limits = [
            ("NICS", NICS),
            ("GROUPS", GROUPS),
            ("RULES", RULES),
            ("RULES_PER_GROUP", RULES_PER_GROUP),
            ("MEMBERS_PER_GROUP", MEMBERS_PER_GROUP),
            ("GROUPS_PER_NIC", GROUPS_PER_NIC),
            ("RULES_PER_NIC", RULES_PER_NIC),
            ("IPS_PER_NIC", IPS_PER_NIC),
            ("PAIRS_PER_NIC", PAIRS_PER_NIC),
            ("SUBNETS_PER_NIC", SUBNETS_PER_NIC),
            ("ROUTES_PER_NIC", ROUTES_PER_NIC),
            ("NIC_ID", NIC_ID),
            ("GROUP_ID", GROUP_ID),
            ("SOCKET_PATH", SOCKET_PATH),
            ("INTERFACE_NAME", INTERFACE_NAME),
            ("TRACE_PATH", TRACE_PATH),
            ("VNIS", VNIS),
            ("HOSTS", HOSTS),
            ("BINDINGS", BINDINGS),
            ("BINDING_IPS", BINDING_IPS),
            ("MEMBERSHIPS", MEMBERSHIPS),
            ("HOST_NAME", HOST_NAME),
            ("TRUSTED_HOSTS", TRUSTED_HOSTS),
            ("SERVICES", SERVICES),
            ("SERVERS_PER_SERVICE", SERVERS_PER_SERVICE),
            ("SERVERS", SERVERS),
            ("EVENTS", EVENTS),
        ];
        for (name, value) in limits {
            let row = format!("| `{name}` | {value} |");
            assert!(
                document.contains(&row),
                "docs/limits.md does not say '{row}'"
            );
        }
        assert_eq!(
            document.matches("\n| `").count(),
            limits.len(),
            "docs/limits.md lists others too"
        );
    }
}
