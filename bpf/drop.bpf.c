// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Drops every packet that is left for it: the sink of a measurement, and the end of a chain that a
// test can tell from the kernel.
#include "lib/chain.h"

PROGRAM
int drop(context *ctx)
{
	// In the chain like any other; nothing comes behind it.
	return chain_next(ctx) == VERDICT_PASS ? VERDICT_DROP : VERDICT_ABORT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
