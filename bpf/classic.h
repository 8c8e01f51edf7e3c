// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What classic.bpf.c is told by a benchmark (crates/balancer/benches/packets/classic.rs).
#pragma once

#include <linux/types.h>

#define CLASSIC_SLOTS 16384  // of the service's table of servers; as many as ours has

// What names a service. An IPv4 address is in the first four bytes.
struct classic_key {
	__u8 vip[16];
	__be16 port;
	__u8 protocol;
	__u8 reserved;
};

// A flow, as its packets say it.
struct classic_flow {
	__u8 client[16];
	struct classic_key service;
	__be16 port;
	__u16 reserved;
};

// Where packets go. Ethernet's header, and the outer IPv4 header of a tunnel (IPIP) without length
// and checksum.
struct classic_server {
	__u8 link[14];
	__u16 tunnel;   // not zero: there is an outer header
	__u8 header[20];
	__u32 ifindex;  // 0: back by the interface that the packet came by
};

struct classic_counters {
	__u64 packets;
	__u64 bytes;
};

_Static_assert(sizeof(struct classic_key) == 20 && sizeof(struct classic_flow) == 40,
	       "classic keys");
_Static_assert(sizeof(struct classic_server) == 40, "classic server");
