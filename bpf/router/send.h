// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A packet leaves: its new Ethernet addresses, the device, the counters.
#pragma once

#include "../lib/context.h"
#include "maps.h"

static __always_inline void count(struct counters *counters, __u8 v6, __u32 counter, __u64 more)
{
	__u32 index = counter + (v6 ? ROUTER_COUNTERS : 0);

	if (counters && index < 2 * ROUTER_COUNTERS)
		counters->value[index] += more;
}

// Both addresses, as they lie one behind the other.
static __always_inline void rewrite_addresses(struct ethhdr *link, const struct hop *hop)
{
	*(__u64 *)link = *(const __u64 *)hop;
	((__u32 *)link)[2] = ((const __u32 *)hop)[2];
}

// How long a packet may be that is to leave here; 0: not from here, but from tc.
static __always_inline __u32 hop_mtu(const struct hop *hop)
{
#ifdef BUTTERFLY_TC
	return hop->tc_mtu;
#else
	return hop->mtu;
#endif
}

// Hands a packet to the device: at tc to its queue, or to the other end of the pair that it is one
// of.
static __always_inline int redirect(const struct hop *hop)
{
#ifdef BUTTERFLY_TC
	return hop->flags & HOP_PEER ? bpf_redirect_peer(hop->device, 0) :
	       bpf_redirect(hop->device, 0);
#else
	return bpf_redirect_map(&ports, hop->port, XDP_ABORTED);
#endif
}

// Hands a packet that is as it is to leave to the device, and counts it.
static __always_inline int hand_over(const struct hop *hop, struct counters *in, __u8 v6,
				     __u32 size)
{
	struct counters *out = bpf_map_lookup_elem(&counters, &hop->slot);
	int verdict = redirect(hop);

	if (verdict != VERDICT_REDIRECT) {
		count(in, v6, COUNT_UNSENT, 1);
		return verdict;
	}
	count(in, v6, COUNT_FORWARDED, 1);
	count(in, v6, COUNT_FORWARDED_BYTES, size);
	count(out, v6, COUNT_SENT, 1);
	return verdict;
}
