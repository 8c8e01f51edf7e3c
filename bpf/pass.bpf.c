// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Takes nothing: every packet goes on. What the far end of a veth needs to be redirected to in
// native mode, and the smallest member of a chain.
#include "lib/chain.h"

PROGRAM
int pass(context *ctx)
{
	return chain_next(ctx);
}

char _license[] SEC("license") = "Dual BSD/GPL";
