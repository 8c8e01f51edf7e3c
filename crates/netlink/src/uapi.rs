//! The kernel's numbers, as its headers name them (linux/rtnetlink.h, if_link.h, if_addr.h,
//! neighbour.h, fib_rules.h, nexthop.h, netconf.h). They are ABI: they never change. `libc` has
//! some of them only.

#![allow(missing_docs, reason = "the kernel's headers describe them")]

// struct nlmsghdr: message types and flags.
pub const NLMSG_ERROR: u16 = 2;
pub const NLMSG_DONE: u16 = 3;
pub const NLM_F_REQUEST: u16 = 0x1;
pub const NLM_F_ACK: u16 = 0x4;
pub const NLM_F_DUMP_INTR: u16 = 0x10;
pub const NLM_F_DUMP: u16 = 0x300;
pub const NLM_F_REPLACE: u16 = 0x100;
pub const NLM_F_EXCL: u16 = 0x200;
pub const NLM_F_CREATE: u16 = 0x400;
pub const NLM_F_APPEND: u16 = 0x800;

// rtnetlink message types.
pub const RTM_NEWLINK: u16 = 16;
pub const RTM_DELLINK: u16 = 17;
pub const RTM_GETLINK: u16 = 18;
pub const RTM_SETLINK: u16 = 19;
pub const RTM_NEWADDR: u16 = 20;
pub const RTM_DELADDR: u16 = 21;
pub const RTM_GETADDR: u16 = 22;
pub const RTM_NEWROUTE: u16 = 24;
pub const RTM_DELROUTE: u16 = 25;
pub const RTM_GETROUTE: u16 = 26;
pub const RTM_NEWNEIGH: u16 = 28;
pub const RTM_DELNEIGH: u16 = 29;
pub const RTM_GETNEIGH: u16 = 30;
pub const RTM_NEWRULE: u16 = 32;
pub const RTM_DELRULE: u16 = 33;
pub const RTM_GETRULE: u16 = 34;
pub const RTM_GETNEIGHTBL: u16 = 66;
pub const RTM_NEWNETCONF: u16 = 80;
pub const RTM_DELNETCONF: u16 = 81;
pub const RTM_GETNETCONF: u16 = 82;
pub const RTM_GETNSID: u16 = 90;
pub const RTM_NEWNEXTHOP: u16 = 104;
pub const RTM_DELNEXTHOP: u16 = 105;
pub const RTM_GETNEXTHOP: u16 = 106;

/// Every group that tells something this crate keeps: links, neighbours, and for both families
/// addresses, routes, rules and settings; next-hop objects.
pub const GROUPS: [u32; 11] = [1, 3, 5, 7, 8, 9, 11, 19, 24, 25, 32];

// linux/if.h, if_link.h, if_arp.h.
pub const IFF_UP: u32 = 0x1;
pub const IFF_LOOPBACK: u32 = 0x8;
pub const IFF_NOARP: u32 = 0x80;
pub const IFF_LOWER_UP: u32 = 0x1_0000;
pub const ARPHRD_ETHER: u16 = 1;
pub const IFLA_ADDRESS: u16 = 1;
pub const IFLA_IFNAME: u16 = 3;
pub const IFLA_MTU: u16 = 4;
pub const IFLA_CARRIER: u16 = 33;
pub const IFLA_LINK: u16 = 5;
pub const IFLA_QDISC: u16 = 6;
pub const IFLA_MASTER: u16 = 10;
pub const IFLA_LINKINFO: u16 = 18;
pub const IFLA_IFALIAS: u16 = 20;
pub const IFLA_AF_SPEC: u16 = 26;
pub const IFLA_GROUP: u16 = 27;
pub const IFLA_NET_NS_FD: u16 = 28;
pub const IFLA_NUM_TX_QUEUES: u16 = 31;
pub const IFLA_NUM_RX_QUEUES: u16 = 32;
pub const IFLA_LINK_NETNSID: u16 = 37;
pub const IFLA_XDP: u16 = 43;
pub const IFLA_TARGET_NETNSID: u16 = 46;
pub const NETNSA_NSID: u16 = 1;
pub const NETNSA_FD: u16 = 3;
pub const IFLA_INFO_KIND: u16 = 1;
pub const IFLA_INFO_DATA: u16 = 2;
pub const IFLA_INFO_SLAVE_KIND: u16 = 4;
pub const IFLA_INFO_SLAVE_DATA: u16 = 5;
pub const VETH_INFO_PEER: u16 = 1;
pub const IFLA_TUN_NUM_QUEUES: u16 = 8;
pub const IFLA_TUN_NUM_DISABLED_QUEUES: u16 = 9;
pub const IFLA_NETKIT_PEER_INFO: u16 = 1;
pub const IFLA_NETKIT_PEER_POLICY: u16 = 4;
pub const IFLA_NETKIT_MODE: u16 = 5;
pub const NETKIT_DROP: u32 = 2;
pub const NETKIT_L2: u32 = 0;
pub const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
pub const IN6_ADDR_GEN_MODE_NONE: u8 = 1;
pub const IFLA_BOND_SLAVE_STATE: u16 = 1;
pub const IFLA_VLAN_ID: u16 = 1;
pub const IFLA_VLAN_EGRESS_QOS: u16 = 3;
pub const IFLA_VLAN_PROTOCOL: u16 = 5;
pub const IFLA_XDP_PROG_ID: u16 = 4;

// linux/if_addr.h.
pub const IFA_ADDRESS: u16 = 1;
pub const IFA_LOCAL: u16 = 2;
pub const IFA_LABEL: u16 = 3;
pub const IFA_BROADCAST: u16 = 4;
pub const IFA_FLAGS: u16 = 8;
pub const IFA_F_NODAD: u32 = 2;

// Routes.
pub const RT_TABLE_MAIN: u8 = 254;
pub const RTPROT_STATIC: u8 = 4;
pub const RT_SCOPE_UNIVERSE: u8 = 0;
pub const RT_SCOPE_LINK: u8 = 253;
pub const RTN_UNICAST: u8 = 1;
pub const RTM_F_CLONED: u32 = 0x200;
pub const RTM_F_FIB_MATCH: u32 = 0x2000;
pub const RTNH_F_ONLINK: u8 = 4;
pub const RTA_DST: u16 = 1;
pub const RTA_SRC: u16 = 2;
pub const RTA_IIF: u16 = 3;
pub const RTA_OIF: u16 = 4;
pub const RTA_GATEWAY: u16 = 5;
pub const RTA_PRIORITY: u16 = 6;
pub const RTA_PREFSRC: u16 = 7;
pub const RTA_METRICS: u16 = 8;
pub const RTA_MULTIPATH: u16 = 9;
pub const RTA_FLOW: u16 = 11;
pub const RTA_TABLE: u16 = 15;
pub const RTA_MARK: u16 = 16;
pub const RTA_VIA: u16 = 18;
pub const RTA_ENCAP_TYPE: u16 = 21;
pub const RTA_ENCAP: u16 = 22;
pub const RTA_IP_PROTO: u16 = 27;
pub const RTA_SPORT: u16 = 28;
pub const RTA_DPORT: u16 = 29;
pub const RTA_NH_ID: u16 = 30;
pub const RTAX_MTU: u16 = 2;

// linux/neighbour.h.
pub const NUD_INCOMPLETE: u16 = 0x01;
pub const NUD_REACHABLE: u16 = 0x02;
pub const NUD_STALE: u16 = 0x04;
pub const NUD_DELAY: u16 = 0x08;
pub const NUD_PROBE: u16 = 0x10;
pub const NUD_FAILED: u16 = 0x20;
pub const NUD_NOARP: u16 = 0x40;
pub const NUD_PERMANENT: u16 = 0x80;
pub const NTF_USE: u8 = 0x01;
pub const NTF_PROXY: u8 = 0x08;
pub const NTF_ROUTER: u8 = 0x80;
pub const NDA_DST: u16 = 1;
pub const NDA_LLADDR: u16 = 2;
pub const NDA_CACHEINFO: u16 = 3;
pub const NDA_MASTER: u16 = 9;
pub const AF_BRIDGE: u8 = 7;
pub const AF_INET6: u16 = 10;
pub const NDTA_PARMS: u16 = 6;
pub const NDTPA_IFINDEX: u16 = 1;
pub const NDTPA_REACHABLE_TIME: u16 = 3;
pub const NDTPA_GC_STALETIME: u16 = 6;

// linux/fib_rules.h.
pub const FIB_RULE_INVERT: u32 = 2;
pub const FRA_DST: u16 = 1;
pub const FRA_SRC: u16 = 2;
pub const FRA_IIFNAME: u16 = 3;
pub const FRA_GOTO: u16 = 4;
pub const FRA_PRIORITY: u16 = 6;
pub const FRA_FWMARK: u16 = 10;
pub const FRA_SUPPRESS_IFGROUP: u16 = 13;
pub const FRA_SUPPRESS_PREFIXLEN: u16 = 14;
pub const FRA_TABLE: u16 = 15;
pub const FRA_FWMASK: u16 = 16;
pub const FRA_OIFNAME: u16 = 17;
pub const FRA_PAD: u16 = 18;
pub const FRA_L3MDEV: u16 = 19;
pub const FRA_PROTOCOL: u16 = 21;

// linux/nexthop.h.
pub const NHA_ID: u16 = 1;
pub const NHA_GROUP: u16 = 2;
pub const NHA_GROUP_TYPE: u16 = 3;
pub const NHA_BLACKHOLE: u16 = 4;
pub const NHA_OIF: u16 = 5;
pub const NHA_GATEWAY: u16 = 6;
pub const NHA_ENCAP_TYPE: u16 = 7;
pub const NHA_FDB: u16 = 11;

// linux/netconf.h.
pub const NETCONFA_IFINDEX: u16 = 1;
pub const NETCONFA_FORWARDING: u16 = 2;
pub const NETCONFA_RP_FILTER: u16 = 3;
pub const NETCONFA_IGNORE_ROUTES_WITH_LINKDOWN: u16 = 6;

// linux/netfilter.h, netfilter/nfnetlink.h, nfnetlink_hook.h and nf_tables.h.
pub const NFPROTO_UNSPEC: u8 = 0;
pub const NFPROTO_IPV4: u8 = 2;
pub const NFPROTO_IPV6: u8 = 10;
pub const NFNL_SUBSYS_NFTABLES: u16 = 10 << 8;
pub const NFNL_SUBSYS_HOOK: u16 = 12 << 8;
pub const NFNL_MSG_HOOK_GET: u16 = 0;
pub const NFNLA_HOOK_HOOKNUM: u16 = 1;
pub const NFNLA_HOOK_FUNCTION_NAME: u16 = 4;
pub const NFNLA_HOOK_MODULE_NAME: u16 = 5;
pub const NFNLGRP_NFTABLES: u32 = 7;
pub const NFT_GETCHAIN: u16 = 4;
pub const NFT_GETRULE: u16 = 7;
pub const NFTA_CHAIN_TABLE: u16 = 1;
pub const NFTA_CHAIN_NAME: u16 = 3;
pub const NFTA_CHAIN_HOOK: u16 = 4;
pub const NFTA_CHAIN_POLICY: u16 = 5;
pub const NFTA_HOOK_HOOKNUM: u16 = 1;
pub const NFTA_RULE_TABLE: u16 = 1;
pub const NFTA_RULE_CHAIN: u16 = 2;
pub const NFT_GETTABLE: u16 = 1;
pub const NFTA_TABLE_NAME: u16 = 1;
pub const NFTA_TABLE_FLAGS: u16 = 2;
pub const NFT_TABLE_F_DORMANT: u32 = 1;
pub const NFTA_CHAIN_TYPE: u16 = 7;
pub const NFTA_RULE_EXPRESSIONS: u16 = 4;
pub const NFTA_EXPR_NAME: u16 = 1;
pub const NFTA_EXPR_DATA: u16 = 2;
pub const NFTA_DATA_VALUE: u16 = 1;
pub const NFTA_DATA_VERDICT: u16 = 2;
pub const NFTA_VERDICT_CODE: u16 = 1;
