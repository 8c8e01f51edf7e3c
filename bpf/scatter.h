/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What scatter.bpf.c is told by crates/xdp (scatter.rs). */
#pragma once

#include <linux/types.h>

#define SCATTER_WORDS 7           /* of 8 bytes, of a frame, that are restored: all that a router
				   * changes */
#define SCATTER_ADDRESSES 1048576  /* where nobody says how many */

struct scatter {
	__u64 frame[SCATTER_WORDS];  /* with destination zero; IPv4's checksum is for that */
	__u32 v6;
	__u32 mask;                 /* destinations less one; their number is a power of two */
	__u32 ifindex;              /* where to send to; 0: to the program behind */
	__u32 pad;
};

_Static_assert(sizeof(struct scatter) == 72, "no holes");
