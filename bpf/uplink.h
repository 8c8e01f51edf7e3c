// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What the uplink's program and crates/uplink (src/layout.rs) both read and write. Sizes are asserted on both sides.
//
// Addresses and ports are in network order, everything else in the machine's. An IPv4 address is an IPv4-mapped IPv6 one
// (RFC 4291, section 2.5.5.2).
#pragma once

#include <linux/types.h>

#define UPLINKS 64           // interfaces at most
#define UPLINK_QUEUES 64     // queues of each at most
#define UPLINK_ENDPOINTS 256 // addresses at most

// .rodata.settings: fixed when the program is loaded.
struct settings {
	__u8 group[16];       // multicast groups that carry flooded frames: all addresses that
	__u8 group_mask[16];  // are `group` under this mask count as `group`; all zero: none
	__be16 port;          // VXLAN's
	__u8 reserved[2];
};

// An address that VXLAN comes to, and where.
struct endpoint {
	__u8 address[16];
	__u16 vlan;  // the ID of the one tag in front of it; 0: none, or a priority tag
	__u16 reserved;
};

// What became of packets to our port, by CPU.
struct counters {
	__u64 taken;        // to a socket
	__u64 no_socket;    // ours, but nobody takes them from this queue: the kernel's
	__u64 elsewhere;    // to an address that is not ours: the kernel's
	__u64 fragments;    // UDP in fragments, to whatever port: the kernel's
};

_Static_assert(sizeof(struct settings) == 36, "settings");
_Static_assert(sizeof(struct endpoint) == 20, "endpoint");
_Static_assert(sizeof(struct counters) == 32, "counters");
