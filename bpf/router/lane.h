// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The lane: plain IPv4 packets of a flow that was forwarded before go the same way without a lookup.
//
// What the long way decides by addresses and interfaces alone (source, way to the destination, next hop) holds until a map
// changes, which a new epoch tells; what depends on the packet (length, checksum, TTL, MTU) is looked at here again. A packet
// that does not fit goes the long way, which knows the reasons. Each CPU has flows of its own, found by a hash of their
// addresses, in pairs; one that is new takes the place of one that holds no more, or of either.
#pragma once

#include "../lib/checksum.h"
#include "hop.h"
#include "maps.h"
#include "send.h"

// EtherType of IPv4, version 4 and a header of five words, as they lie from the twelfth byte on.
#define PLAIN_START bpf_htonl(0x08004500)
#define PLAIN_MASK bpf_htonl(0xffffff00)

// The interface without tags of a device.
static __always_inline const struct interface *plain_interface(__u32 ifindex)
{
	struct interface_key key = {.ifindex = ifindex};
	__u32 place = near_place(&key);
	const struct near *close = bpf_map_lookup_elem(&near, &place);
	__u32 outer, inner;

	if (!close || close->key.ifindex != ifindex)
		return NULL;
	// A tag as one number.
	__builtin_memcpy(&outer, &close->key.vlan, sizeof(outer));
	__builtin_memcpy(&inner, &close->key.inner_vlan, sizeof(inner));
	return outer | inner ? NULL : &close->interface;
}

static __always_inline struct lane_flows *lane_flows(void)
{
	__u32 cpu = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&lanes, &cpu);
}

// Where a flow is, if it is known.
static __always_inline struct lane_pair *lane_pair(struct lane_flows *flows, __u64 addresses)
{
	return &flows->pair[addresses * 0x9e3779b97f4a7c15ull >> (64 - LANE_BITS)];
}

// One of the two, if it is the flow; which one nobody can foresee, so it is no branch.
static __always_inline struct lane_flow *lane_flow(struct lane_pair *pair, __u64 addresses)
{
	__u64 difference = pair->flow[0].addresses ^ addresses, minus = -difference;

	// The compiler must not see that this asks whether there is one.
	asm volatile("" : "+r"(minus));
	return &pair->flow[(difference | minus) >> 63];
}

// What is decided of a flow that comes in here in this epoch, without its hop.
static __always_inline __u64 lane_decided(const struct interface *in, __u32 epoch)
{
	return (__u64)epoch << LANE_EPOCH_SHIFT | (__u64)in->slot << LANE_SLOT_SHIFT;
}

// Forwards a packet whose flow is known and which the long way would forward. Less than zero: that one's.
static __always_inline int lane_forward(struct xdp_md *ctx, __u32 epoch)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *link = data;
	struct iphdr *ip = data + sizeof(*link);
	const struct interface *in;
	struct counters *counted;
	struct lane_flows *flows;
	struct lane_flow *flow;
	const struct hop *hop;
	__u64 addresses, decided;
	__u32 size;

	if ((void *)(ip + 1) > end || (((__u32 *)data)[3] & PLAIN_MASK) != PLAIN_START || !epoch)
		return -1;
	flows = lane_flows();
	if (!flows)
		return -1;
	if (flows->rest) {
		flows->rest--;
		return -1;
	}
	in = plain_interface(ctx->ingress_ifindex);
	if (!in)
		return -1;

	// Its flow.
	addresses = *(__u64 *)(data + sizeof(*link) + offsetof(struct iphdr, saddr));
	flow = lane_flow(lane_pair(flows, addresses), addresses);
	decided = flow->decided ^ lane_decided(in, epoch);
	if (flow->addresses != addresses || decided > LANE_HOP_MASK)
		return -1;

	// What depends on the packet.
	size = bpf_ntohs(ip->tot_len);
	if (!same_mac(link->h_dest, in->mac) || size < sizeof(*ip) || frame_surplus(ctx, sizeof(*link) + size) != 0)
		return -1;
	if (ip->ttl <= 1 || !checksum_holds(checksum_ipv4(ip)))
		return -1;
	hop = hop_of(decided);
	if (!hop || size > hop->mtu)
		return -1;

	flows->hits++;
	rewrite_addresses(link, hop);
	ipv4_decrement_ttl(ip);
	counted = bpf_map_lookup_elem(&counters, &in->slot);
	count(counted, 0, COUNT_KNOWN, 1);
	return hand_over(hop, counted, 0, size);
}

// A packet of a flow that was not known before. Where most are, as when each goes somewhere else, the look at the lane costs more than it
// saves, and pauses.
static __always_inline void lane_missed(struct lane_flows *flows)
{
	if (++flows->misses < LANE_LOOK)
		return;
	flows->rest = flows->hits < LANE_LOOK ? LANE_REST : 0;
	flows->hits = 0;
	flows->misses = 0;
}

// Where a flow is to be that has no place: in that of one that holds no more, or of either.
static __always_inline struct lane_flow *lane_place(struct lane_pair *pair, __u64 addresses, __u64 decided)
{
	if ((pair->flow[0].decided ^ decided) >> LANE_EPOCH_SHIFT)
		return &pair->flow[0];
	if ((pair->flow[1].decided ^ decided) >> LANE_EPOCH_SHIFT)
		return &pair->flow[1];
	return &pair->flow[addresses >> 32 & 1];
}

// The long way forwards a packet without tags to that hop, decided by its addresses in this epoch, and would forward the others of
// its flow as well.
static __always_inline void lane_remember(const struct iphdr *ip, const struct interface *in, __u32 hop, __u32 epoch)
{
	__u64 addresses = *(const __u64 *)&ip->saddr, decided = lane_decided(in, epoch);
	struct lane_flows *flows = lane_flows();
	struct lane_pair *pair;
	struct lane_flow *flow;

	if (!flows || flows->rest || !epoch || hop > LANE_HOP_MASK)
		return;
	pair = lane_pair(flows, addresses);
	flow = lane_flow(pair, addresses);
	if (flow->addresses != addresses) {
		lane_missed(flows);
		flow = lane_place(pair, addresses, decided);
	}
	flow->addresses = addresses;
	flow->decided = decided | hop;
}
