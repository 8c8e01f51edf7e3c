// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A packet leaves: its new Ethernet addresses, the device, the counters.
#pragma once

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

// Hands a packet that is as it is to leave to the device, and counts it.
static __always_inline int hand_over(const struct hop *hop, struct counters *in, __u8 v6, __u32 size)
{
	struct counters *out = bpf_map_lookup_elem(&counters, &hop->slot);
	int verdict = bpf_redirect_map(&ports, hop->port, XDP_ABORTED);

	if (verdict != XDP_REDIRECT)
		return verdict;
	count(in, v6, COUNT_FORWARDED, 1);
	count(in, v6, COUNT_FORWARDED_BYTES, size);
	count(out, v6, COUNT_SENT, 1);
	return verdict;
}
