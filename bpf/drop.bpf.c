// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Drops every packet that is left for it: the sink of a measurement, and the end of a chain that a test can tell from
// the kernel.
#include "lib/chain.h"

SEC("xdp.frags")
int drop(struct xdp_md *ctx)
{
	// In the chain like any other; nothing comes behind it.
	return chain_next(ctx) == XDP_PASS ? XDP_DROP : XDP_ABORTED;
}

char _license[] SEC("license") = "Dual BSD/GPL";
