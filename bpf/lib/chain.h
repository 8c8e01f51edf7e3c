// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Several features on one interface: a program that finds a packet not to be its own hands it to
// the next one.
//
// Included once by each program. The slot is filled by crates/xdp (chain.rs) when another feature
// runs; while it is empty the tail call fails and the kernel gets the packet. XDP and tc have a
// chain each. Every program of XDP's is SEC("xdp.frags"): the kernel lets no program without
// fragments call one with them.
#pragma once

#include "context.h"

// The next feature's program: slot 0.
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} chain SEC(".maps");

// Not ours: the next feature's, or the kernel's.
static __always_inline int chain_next(context *ctx)
{
	bpf_tail_call_static(ctx, &chain, 0);
	return VERDICT_PASS;
}
