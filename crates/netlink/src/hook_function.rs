//! Functions of the kernel that netfilter calls for packets and that are no rules: IPVS has some,
//! and so do BPF programs and modules that nobody here knows. The kernel lists them by name
//! (linux/netfilter/nfnetlink_hook.h, since Linux 5.14).

use crate::message::Message;
use crate::uapi::{NFNLA_HOOK_FUNCTION_NAME, NFNLA_HOOK_MODULE_NAME};

/// What the names of functions begin with that are looked at otherwise, or do nothing to a
/// forwarded packet.
const KNOWN: [&str; 20] = [
    // Chains of nftables and tables of iptables.
    "nft_",
    "ipt_do_table",
    "ip6t_do_table",
    "iptable_",
    "ip6table_",
    // There with rules that ask for them.
    "nf_nat_",
    "ipv4_synproxy_",
    "ipv6_synproxy_",
    // Follow connections and put fragments together, also for rules of packets to this host alone.
    "ipv4_conntrack_",
    "ipv6_conntrack_",
    "nf_confirm",
    "ipv4_confirm",
    "ipv6_confirm",
    "ipv4_helper",
    "ipv6_helper",
    "ipv6_defrag",
    // For packets that a bridge has shown to netfilter already.
    "ip_sabotage_in",
    // Ask for labels and marks, and are there on every system that has them.
    "selinux_",
    "apparmor_",
    // In the place of one that has gone.
    "accept_all",
];

/// The name of a function that a list of them tells, as people may know it: "ip_vs_out_hook of
/// ip_vs". `None`: it is known, or the kernel says no names.
pub fn stranger(message: &Message) -> Option<String> {
    let text = |kind| {
        let mut attributes = message.attributes(4);
        attributes
            .find(|one| one.kind == kind)
            .map(|one| one.text())
    };
    let function = text(NFNLA_HOOK_FUNCTION_NAME)?;
    if KNOWN.iter().any(|known| function.starts_with(known)) {
        return None;
    }
    Some(match text(NFNLA_HOOK_MODULE_NAME) {
        Some(module) => format!("{function} of {module}"),
        None => function,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Request, messages};
    use crate::uapi::{NFNL_SUBSYS_HOOK, NFNLA_HOOK_HOOKNUM};

    /// What is said of a function in a module, or in the kernel itself.
    fn told(function: Option<&str>, module: Option<&str>) -> Option<String> {
        let text = |text: &str| [text.as_bytes(), &[0]].concat();
        let mut message = Request::new(NFNL_SUBSYS_HOOK, 0, 1, &[2, 0, 0, 0])
            .with(NFNLA_HOOK_HOOKNUM, &2u32.to_be_bytes());
        if let Some(module) = module {
            message = message.with(NFNLA_HOOK_MODULE_NAME, &text(module));
        }
        if let Some(function) = function {
            message = message.with(NFNLA_HOOK_FUNCTION_NAME, &text(function));
        }
        let bytes = message.finish();
        messages(&bytes).find_map(|message| stranger(&message))
    }

    #[test]
    fn functions_that_are_no_rules_are_named() {
        let name = told(Some("ip_vs_out_hook"), Some("ip_vs"));
        assert_eq!(name.as_deref(), Some("ip_vs_out_hook of ip_vs"));
        let name = told(Some("nf_hook_run_bpf"), None);
        assert_eq!(name.as_deref(), Some("nf_hook_run_bpf"));
    }

    #[test]
    fn functions_that_are_looked_at_otherwise_or_do_nothing_are_not() {
        for (function, module) in [
            ("nft_do_chain_inet", Some("nf_tables")),
            ("ipt_do_table", Some("ip_tables")),
            ("iptable_mangle_hook", Some("iptable_mangle")),
            ("ip6t_do_table", Some("ip6_tables")),
            ("nf_nat_ipv4_pre_routing", Some("nf_nat")),
            ("ipv4_conntrack_in", Some("nf_conntrack")),
            ("ipv6_conntrack_in", Some("nf_conntrack")),
            ("nf_confirm", Some("nf_conntrack")),
            ("ipv4_conntrack_defrag", Some("nf_defrag_ipv4")),
            ("ipv6_defrag", Some("nf_defrag_ipv6")),
            ("ip_sabotage_in", Some("br_netfilter")),
            ("selinux_ip_forward", None),
            ("apparmor_ip_postroute", None),
        ] {
            assert_eq!(told(Some(function), module), None, "{function}");
        }
        // A kernel without names of its functions.
        assert_eq!(told(None, None), None);
    }
}
