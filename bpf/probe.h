// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What the program of health checks and the daemon (crates/daemon/src/balancer/probe) both read and
// write.
#pragma once

#include <linux/types.h>

// .rodata.source: where checks come from; fixed when the program is loaded.
struct probe_source {
	__u32 ifindex;  // of the host's end of the pair of interfaces, whose other end the checks'
			// sockets are behind
	__u8 mac[6];    // of that other end
	__u8 reserved[2];
};

// A check that is out, by where it is answered to.
struct probe_key {
	__be16 port;
	__u8 protocol;
	__u8 reserved;
};

// Whom it asks.
struct probe_target {
	__be32 vip[4];     // IPv4: the first word, the others zero
	__be32 source[4];  // the host's address that the check speaks from, of the VIP's family
	__u32 server;      // its number, as in the balancer's map
};

_Static_assert(sizeof(struct probe_source) == 12, "probe_source");
_Static_assert(sizeof(struct probe_key) == 4, "probe_key");
_Static_assert(sizeof(struct probe_target) == 36, "probe_target");
