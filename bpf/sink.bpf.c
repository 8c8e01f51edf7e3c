// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The end of a measurement: counts and drops the datagrams over IPv4 of one source address to one
// port. All else goes on, so that it may run where other traffic is.
#include <linux/udp.h>

#include "lib/chain.h"
#include "lib/packet.h"
#include "sink.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sink);
} sink_of SEC(".maps");

// Frames so far.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} sink_count SEC(".maps");

PROGRAM
int sink(context *ctx)
{
	struct ethhdr *link = at(ctx, 0, sizeof(*link));
	struct iphdr *ip = at(ctx, sizeof(*link), sizeof(*ip));
	struct udphdr *udp = at(ctx, sizeof(*link) + sizeof(*ip), sizeof(*udp));
	__u32 zero = 0;
	struct sink *of = bpf_map_lookup_elem(&sink_of, &zero);
	__u64 *count = bpf_map_lookup_elem(&sink_count, &zero);

	if (!link || !ip || !udp || !of || !count)
		return chain_next(ctx);
	if (link->h_proto != bpf_htons(ETH_P_IP) || ip->ihl != 5 || ip->protocol != IPPROTO_UDP ||
	    ip->saddr != of->source || udp->dest != of->port)
		return chain_next(ctx);
	(*count)++;
	return VERDICT_DROP;
}

char _license[] SEC("license") = "Dual BSD/GPL";
