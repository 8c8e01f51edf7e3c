// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// For measurements: makes the frame what it was before the last run, to the next of many
// destinations, and hands it to the program under test, or sends it by an interface. The
// destinations are in no order: what they lead to is foreseen by no prefetcher, while to read them
// here costs next to nothing.
#include "lib/chain.h"
#include "lib/checksum.h"
#include "lib/packet.h"
#include "scatter.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scatter);
} scatter_frame SEC(".maps");

// The destinations; IPv4's are the first word.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SCATTER_ADDRESSES);
	__type(key, __u32);
	__type(value, struct in6_addr);
} scatter_to SEC(".maps");

// Runs so far.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} scatter_count SEC(".maps");

SEC("xdp.frags")
int scatter(struct xdp_md *ctx)
{
	__u32 zero = 0, number;
	struct scatter *told = bpf_map_lookup_elem(&scatter_frame, &zero);
	__u64 *count = bpf_map_lookup_elem(&scatter_count, &zero);
	struct in6_addr *to;
	__u64 *words;
	int i;

	if (!told || !count)
		return XDP_ABORTED;
	number = (__u32)(*count)++ & told->mask;
	to = bpf_map_lookup_elem(&scatter_to, &number);
	words = at(ctx, 0, SCATTER_WORDS * sizeof(*words));
	if (!to || !words)
		return XDP_ABORTED;
#pragma unroll
	for (i = 0; i < SCATTER_WORDS; i++)
		words[i] = told->frame[i];
	if (told->v6) {
		struct ipv6hdr *ip = at(ctx, sizeof(struct ethhdr), sizeof(*ip));

		if (!ip)
			return XDP_ABORTED;
		ip->daddr = *to;
	} else {
		struct iphdr *ip = at(ctx, sizeof(struct ethhdr), sizeof(*ip));

		if (!ip)
			return XDP_ABORTED;
		ip->daddr = to->s6_addr32[0];
		ip->check = checksum_replace32(ip->check, 0, ip->daddr);
	}
	return told->ifindex ? bpf_redirect(told->ifindex, 0) : chain_next(ctx);
}

char _license[] SEC("license") = "Dual BSD/GPL";
