// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What the uplink's program and crates/uplink (src/layout.rs) both read and write. Sizes are
// asserted on both sides.
//
// Addresses and ports are in network order, everything else in the machine's. An IPv4 address is an
// IPv4-mapped IPv6 one (RFC 4291, section 2.5.5.2).
#pragma once

#include <linux/types.h>

#define UPLINKS 64           // interfaces at most
#define UPLINK_QUEUES 64     // queues of each at most
#define UPLINK_ENDPOINTS 256 // addresses at most

// Interfaces with smaller indices than this, and most endpoints, are found without a search.
#define NEAR_INTERFACES 1024
#define NEAR_ENDPOINTS 64

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
} __attribute__((aligned(4)));

// A place in near_endpoints.
struct near_endpoint {
	struct endpoint endpoint;
	__u32 used;
};

// The place of an endpoint in near_endpoints, if it is its own.
static inline __u32 near_place(const struct endpoint *endpoint)
{
	const __u32 *words = (const __u32 *)endpoint->address;
	__u32 mixed = words[0] ^ words[1] ^ words[2] ^ words[3];

	mixed ^= mixed >> 16;
	return ((mixed ^ mixed >> 8) + endpoint->vlan * 7u) % NEAR_ENDPOINTS;
}

// What became of packets to our port, by CPU.
struct counters {
	__u64 taken;        // to a socket
	__u64 no_socket;    // ours, but nobody takes them from this queue: the kernel's
	__u64 elsewhere;    // to an address that is not ours: the kernel's
	__u64 fragments;    // UDP in fragments, to whatever port: the kernel's
};

_Static_assert(sizeof(struct settings) == 36, "settings");
_Static_assert(sizeof(struct endpoint) == 20, "endpoint");
_Static_assert(sizeof(struct near_endpoint) == 24, "near_endpoint");
_Static_assert(sizeof(struct counters) == 32, "counters");
