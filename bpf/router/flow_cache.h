// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The flow cache: plain packets of a flow that was forwarded before go to that flow's next hop
// without a lookup.
//
// What the full lookup (long_way() in router.bpf.c) decides by addresses and interfaces alone
// (source, way to the destination, next hop) holds until a map changes, and then the epoch does;
// what depends on the packet (length, checksum, hop limit, MTU) is looked at here again. A packet
// that does not fit takes the full lookup, which counts the reason. The access list judges each
// packet, and has a cache of its own (acl_flows.h). With IPv4 both addresses decide; with IPv6,
// whose sources are not looked up, a flow is all that goes to one destination.
// Each CPU has flows of its own, found by a hash of their addresses, in pairs; a new one takes the
// place of one whose epoch is over, or of either.
// Of 64 destinations a packet takes 87 ns where it took 136 to 140 (a bare redirect 76:
// docs/journal/2026-11-23-router.md).
#pragma once

#include "../lib/checksum.h"
#include "acl_flows.h"
#include "address.h"
#include "buffer.h"
#include "cache_use.h"
#include "hop.h"
#include "maps.h"
#include "send.h"

// EtherType and version, and of IPv4 a header of five words, as they lie from the twelfth byte on.
#define PLAIN4_START bpf_htonl(0x08004500)
#define PLAIN4_MASK bpf_htonl(0xffffff00)
#define PLAIN6_START bpf_htonl(0x86dd6000)
#define PLAIN6_MASK bpf_htonl(0xfffff000)

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

static __always_inline struct cache_flows4 *cache_flows4(void)
{
	__u32 cpu = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&flow_caches4, &cpu);
}

static __always_inline struct cache_flows6 *cache_flows6(void)
{
	__u32 cpu = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&flow_caches6, &cpu);
}

// Where a flow is, if it is known.
static __always_inline struct cache_pair4 *cache_pair4(struct cache_flows4 *flows, __u64 addresses)
{
	return &flows->pair[addresses * 0x9e3779b97f4a7c15ull >> (64 - CACHE_BITS)];
}

static __always_inline struct cache_pair6 *cache_pair6(struct cache_flows6 *flows,
						       const __u64 *destination)
{
	__u64 mixed = (destination[0] * 0x9e3779b97f4a7c15ull ^ destination[1]) *
		      0xbf58476d1ce4e5b9ull;

	return &flows->pair[mixed >> (64 - CACHE_BITS)];
}

// Which of a pair to look at, by the difference from the first one: 0 is the first. It cannot be
// predicted, so it is no branch.
static __always_inline __u64 cache_which(__u64 difference)
{
	__u64 minus = -difference;

	// The compiler must not see that this asks whether there is one.
	asm volatile("" : "+r"(minus));
	return (difference | minus) >> 63;
}

static __always_inline struct cache_flow4 *cache_flow4(struct cache_pair4 *pair, __u64 addresses)
{
	return &pair->flow[cache_which(pair->flow[0].addresses ^ addresses)];
}

// Zero if a flow is the one to a destination: the bits in which their addresses differ.
static __always_inline __u64 cache_differs6(const struct cache_flow6 *flow,
					    const __u64 *destination)
{
	return (flow->destination[0] ^ destination[0]) | (flow->destination[1] ^ destination[1]);
}

static __always_inline struct cache_flow6 *cache_flow6(struct cache_pair6 *pair,
						       const __u64 *destination)
{
	return &pair->flow[cache_which(cache_differs6(&pair->flow[0], destination))];
}

// What is decided of a flow that comes in here in this epoch, without its hop.
static __always_inline __u64 cache_decided(const struct interface *in, __u32 epoch)
{
	return (__u64)epoch << CACHE_EPOCH_SHIFT | (__u64)in->slot << CACHE_SLOT_SHIFT;
}

// Sends a packet on to the hop that was decided, if it fits there. Less than zero: nothing was
// changed.
static __always_inline int cache_send(context *ctx, struct cache_use *use, struct ethhdr *link,
				      const struct interface *in, __u32 number, __u8 v6,
				      __u8 protocol, __u32 size, __u32 epoch, __u32 flags)
{
	const struct hop *hop = hop_of(number);
	__u32 l4 = sizeof(*link) + (v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));
	struct counters *counted;

#ifdef BUTTERFLY_TC
	// XDP could have sent it and has passed it: it had a reason.
	if (!hop || (hop->mtu && in->flags & INTERFACE_XDP))
		return -1;
#endif
	if (!hop || (size > hop_mtu(hop) && !segments_fit(ctx, sizeof(*link), l4, protocol, hop)))
		return -1;
	// The access list asks for more than a flow is known by, and counts packets.
	if (acl_is_on(flags, v6)) {
		int judged = acl_check_plain(ctx, v6, in->ifindex, hop->ifindex, epoch, flags);

		if (judged == ACL_UNREAD)
			return -1;
		if (judged != ACL_ALLOW) {
			count(bpf_map_lookup_elem(&counters, &in->slot), v6, COUNT_DENIED, 1);
			return VERDICT_DROP;
		}
	}
	use->hits++;
	rewrite_addresses(link, hop);
	if (v6) {
		ipv6_decrement_hop_limit(ctx, (struct ipv6hdr *)(link + 1));
	} else {
		ipv4_decrement_ttl((struct iphdr *)(link + 1));
		set_priority(ctx, ((struct iphdr *)(link + 1))->tos);
	}
	counted = bpf_map_lookup_elem(&counters, &in->slot);
	count(counted, v6, COUNT_KNOWN, 1);
	return hand_over(hop, counted, v6, size);
}

// Sent to the interface's MAC address, and in XDP with a checksum that is finished.
static __always_inline bool cache_takes(context *ctx, const struct ethhdr *link,
					const struct interface *in, __u8 family)
{
#ifdef BUTTERFLY_TC
	return same_mac(link->h_dest, in->mac);
#else
	// The address and the flags are one word, and most interfaces have no such flag.
	__u64 own = *(const __u64 *)in, differs = (own ^ *(const __u64 *)link) << 16;

	if (!(differs | (own & (__u64)INTERFACE_BEGUN << 48)))
		return true;
	return !differs && !is_begun(ctx, sizeof(*link), family);
#endif
}

// Whether it may be neighbour discovery (RFC 4861): ICMPv6 of the highest hop limit, which only who
// is on the link can send. The two lie side by side.
static __always_inline bool may_be_discovery(const struct ipv6hdr *ip)
{
	return *(const __be16 *)&ip->nexthdr == bpf_htons(IPPROTO_ICMPV6 << 8 | 255);
}

// Forwards a packet whose flow is known and which the full lookup would forward. Less than zero:
// the full lookup is to decide.
static __always_inline int cache_forward4(context *ctx, struct ethhdr *link, void *end, __u32 epoch,
					  __u32 flags)
{
	struct cache_flows4 *flows = cache_flows4();
	struct iphdr *ip = (void *)(link + 1);
	const struct interface *in;
	struct cache_flow4 *flow;
	__u64 addresses, decided;
	__u32 size;

	if ((void *)(ip + 1) > end || !flows || cache_rests(&flows->use))
		return -1;
	in = plain_interface(context_device(ctx));
	if (!in)
		return -1;

	// Its flow.
	addresses = *(__u64 *)&ip->saddr;
	flow = cache_flow4(cache_pair4(flows, addresses), addresses);
	decided = flow->decided ^ cache_decided(in, epoch);
	if (flow->addresses != addresses || decided > CACHE_HOP_MASK)
		return -1;

	// What depends on the packet.
	size = bpf_ntohs(ip->tot_len);
	if (!cache_takes(ctx, link, in, 4) || size < sizeof(*ip) ||
	    frame_surplus(ctx, sizeof(*link) + size) != 0)
		return -1;
	if (ip->ttl <= 1 || !checksum_holds(checksum_ipv4(ip)))
		return -1;
	return cache_send(ctx, &flows->use, link, in, decided, 0, ip->protocol, size, epoch,
			  flags);
}

static __always_inline int cache_forward6(context *ctx, struct ethhdr *link, void *end, __u32 epoch,
					  __u32 flags)
{
	struct cache_flows6 *flows = cache_flows6();
	struct ipv6hdr *ip = (void *)(link + 1);
	const struct interface *in;
	struct cache_flow6 *flow;
	__u64 *destination, decided;
	__u32 size;

	if ((void *)(ip + 1) > end || !flows || cache_rests(&flows->use))
		return -1;
	in = plain_interface(context_device(ctx));
	if (!in)
		return -1;

	// Its flow.
	destination = (__u64 *)&ip->daddr;
	flow = cache_flow6(cache_pair6(flows, destination), destination);
	decided = flow->decided ^ cache_decided(in, epoch);
	if (cache_differs6(flow, destination) || decided > CACHE_HOP_MASK)
		return -1;

	// What depends on the packet.
	size = sizeof(*ip) + bpf_ntohs(ip->payload_len);
	if (!cache_takes(ctx, link, in, 6) || frame_surplus(ctx, sizeof(*link) + size) != 0)
		return -1;
	if (ip->hop_limit <= 1 || ip->nexthdr == IPPROTO_HOPOPTS || may_be_discovery(ip) ||
	    is_special6(&ip->saddr))
		return -1;
	return cache_send(ctx, &flows->use, link, in, decided, 1, ip->nexthdr, size, epoch,
			  flags);
}

static __always_inline int cache_forward(context *ctx, __u32 epoch, __u32 flags)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 *start = data;

	if ((void *)(start + 4) > end || !epoch || frame_tag_beside(ctx))
		return -1;
	if ((start[3] & PLAIN4_MASK) == PLAIN4_START)
		return cache_forward4(ctx, data, end, epoch, flags);
	if ((start[3] & PLAIN6_MASK) == PLAIN6_START)
		return cache_forward6(ctx, data, end, epoch, flags);
	return -1;
}

// Counts that a flow was not known, and says which place of two it takes: that of one whose epoch
// is over, or by `chance` of either.
static __always_inline __u32 cache_place(struct cache_use *use, __u64 first, __u64 second,
					 __u64 decided, __u32 chance)
{
	cache_missed(use, CACHE_LOOK, CACHE_LOOK);
	if ((first ^ decided) >> CACHE_EPOCH_SHIFT)
		return 0;
	if ((second ^ decided) >> CACHE_EPOCH_SHIFT)
		return 1;
	return chance & 1;
}

// Remembers the flow of a packet without tags that the full lookup forwards, decided by its
// addresses in this epoch: it would forward the others of the flow as well. `decided` has the hop.
static __always_inline void cache_remember4(const struct iphdr *ip, __u64 decided)
{
	__u64 addresses = *(const __u64 *)&ip->saddr;
	struct cache_flows4 *flows = cache_flows4();
	struct cache_pair4 *pair;
	struct cache_flow4 *flow;

	if (!flows || flows->use.rest)
		return;
	pair = cache_pair4(flows, addresses);
	flow = cache_flow4(pair, addresses);
	if (flow->addresses != addresses)
		flow = &pair->flow[cache_place(&flows->use, pair->flow[0].decided,
					       pair->flow[1].decided, decided, addresses >> 32)];
	flow->addresses = addresses;
	flow->decided = decided;
}

static __always_inline void cache_remember6(const struct ipv6hdr *ip, __u64 decided)
{
	const __u64 *destination = (const __u64 *)&ip->daddr;
	struct cache_flows6 *flows = cache_flows6();
	struct cache_pair6 *pair;
	struct cache_flow6 *flow;

	if (!flows || flows->use.rest)
		return;
	pair = cache_pair6(flows, destination);
	flow = cache_flow6(pair, destination);
	if (cache_differs6(flow, destination))
		flow = &pair->flow[cache_place(&flows->use, pair->flow[0].decided,
					       pair->flow[1].decided, decided,
					       destination[1] >> 56)];
	flow->destination[0] = destination[0];
	flow->destination[1] = destination[1];
	flow->decided = decided;
}
