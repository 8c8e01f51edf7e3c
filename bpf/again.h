// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What again.bpf.c is told by a benchmark (crates/balancer/benches/packets/again.rs).
#pragma once

#include <linux/types.h>

#define AGAIN_BYTES 96  // of a frame that are restored; a multiple of eight

struct again {
	__u8 frame[AGAIN_BYTES];
	__u32 length;     // of the frame, AGAIN_BYTES at the least
	__u32 flow_mask;  // flows less one; their number is a power of two
	__u32 address;    // offset of the last word of the client's address: the flow's high bits
	__u32 port;       // offset of the client's port: its low sixteen bits
};

_Static_assert(sizeof(struct again) == 112, "again");
