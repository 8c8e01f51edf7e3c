// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// From a path to one of its next hops: by a hash of the flow as the kernel's
// fib_multipath_hash_policy says, or by the kernel's own lookup where the table cannot say.
#pragma once

#include "maps.h"

// 31 bits of both numbers and the seed, which is drawn at each start so that no sender can aim at
// one next hop.
static __always_inline __u32 mix(__u64 a, __u64 b, __u32 seed)
{
	__u64 h = (a ^ seed) * 0x9e3779b97f4a7c15ull;

	h ^= h >> 29;
	h = (h ^ b) * 0xbf58476d1ce4e5b9ull;
	h ^= h >> 32;
	h *= 0x94d049bb133111ebull;
	return h >> 33;
}

// Where the kernel has the ports of a protocol, from its header on; less than zero: it has none.
// Of IPsec it takes the SPI for them (proto_ports_offset()).
static __always_inline int ports_offset(__u8 protocol)
{
	switch (protocol) {
	case IPPROTO_TCP:
	case IPPROTO_UDP:
	case IPPROTO_DCCP:
	case IPPROTO_ESP:
	case IPPROTO_SCTP:
	case IPPROTO_UDPLITE:
		return 0;
	case IPPROTO_AH:
		return 4;
	default:
		return -1;
	}
}

// Both ports of the packet that begins at `l3`, below its protocol, as one number; without ports
// its protocol alone. 0 for all fragments of a datagram, which take one next hop. A function of its
// own for the verifier, who looks at it once.
__attribute__((noinline)) __u64 ports_of(context *ctx, __u32 l3, int family)
{
	struct packet packet = {.l3 = l3, .family = family};
	__u32 *both, from;
	int offset;

	if (packet_network(ctx, &packet) < 0 || packet.fragment)
		return 0;
	offset = ports_offset(packet.protocol);
	from = packet.l4 + offset;
	// What is behind the packet is padding.
	if (offset < 0 || from + sizeof(*both) > l3 + packet.length)
		return packet.protocol;
	both = at(ctx, from, sizeof(*both));
	return both ? (__u64)packet.protocol << 32 | *both : packet.protocol;
}

static __always_inline __u32 hash4(const struct iphdr *ip, __u32 seed)
{
	return mix((__u64)ip->saddr << 32 | ip->daddr, 0, seed);
}

static __always_inline __u32 hash4_ports(context *ctx, const struct packet *packet,
					 const struct iphdr *ip, __u32 seed)
{
	return mix((__u64)ip->saddr << 32 | ip->daddr, ports_of(ctx, packet->l3, packet->family), seed);
}

static __always_inline __u64 addresses6(const struct ipv6hdr *ip)
{
	const __be64 *from = (const __be64 *)&ip->saddr, *to = (const __be64 *)&ip->daddr;

	return (from[0] * 3 ^ from[1]) * 0x9e3779b97f4a7c15ull ^ (to[0] * 5 ^ to[1]);
}

static __always_inline __u32 hash6(const struct ipv6hdr *ip, __u32 seed)
{
	__u64 label = *(const __be32 *)ip & bpf_htonl(0x000fffff);

	return mix(addresses6(ip), label << 8 | ip->nexthdr, seed);
}

static __always_inline __u32 hash6_ports(context *ctx, const struct packet *packet,
					 const struct ipv6hdr *ip, __u32 seed)
{
	return mix(addresses6(ip), ports_of(ctx, packet->l3, packet->family), seed);
}

// The member of a path whose share a hash falls into: a hop's number.
static __always_inline __u32 member_of(const struct path *path, __u32 hash)
{
	__u32 number = path->member[0].hop;
	int i;

	for (i = 0; i < PATH_MEMBERS - 1; i++) {
		if (i + 1 >= path->count || hash <= path->member[i].upper)
			break;
		number = path->member[i + 1].hop;
	}
	return number;
}

// The hop of that number, marked as used. NULL: the neighbour is not known.
static __always_inline const struct hop *hop_of(__u32 number)
{
	struct hop *hop = bpf_map_lookup_elem(&hops, &number);

	if (!hop || !number)
		return NULL;
	if (!hop->used)
		hop->used = 1;
	return hop;
}

#define LOOPBACK 1                 // its index in every namespace
#define FIB_LOOKUP_SKIP_NEIGH 4    // BPF_FIB_LOOKUP_SKIP_NEIGH; kernels before 6.3 refuse it, and
				   // the packet is theirs

// Whether an extension header follows that packet_ipv6() steps over.
static __always_inline bool is_extension(__u8 protocol)
{
	return protocol == IPPROTO_HOPOPTS || protocol == IPPROTO_ROUTING ||
	       protocol == IPPROTO_FRAGMENT || protocol == IPPROTO_AH ||
	       protocol == IPPROTO_DSTOPTS;
}

// Both ports of a packet by which rules may ask, the source's in the lower half; 0: it has none.
static __always_inline __u32 rule_ports(context *ctx, const struct packet *packet)
{
	__u64 ports = ports_of(ctx, packet->l3, packet->family);

	return ports >> 32 ? ports : 0;
}

// The way back by the kernel's own lookup, as __fib_validate_source() asks: less than zero if there
// is none, or it may be another one than reverse path filtering wants.
static __always_inline int ask_back4(context *ctx, const struct packet *packet,
				     const struct interface *in, const struct iphdr *ip)
{
	struct bpf_fib_lookup fib = {.family = 2, .ifindex = LOOPBACK};
	__u32 ports;

	fib.tos = ip->tos;
	fib.l4_protocol = ip->protocol;
	fib.ipv4_src = ip->daddr;
	fib.ipv4_dst = ip->saddr;
	ports = rule_ports(ctx, packet);
	fib.sport = ports >> 16;
	fib.dport = ports;
	if (bpf_fib_lookup(ctx, &fib, sizeof(fib), FIB_LOOKUP_SKIP_NEIGH) !=
	    BPF_FIB_LKUP_RET_SUCCESS)
		return -1;
	return in->rp_filter == RP_STRICT && fib.ifindex != in->ifindex ? -1 : 0;
}

// The kernel's own lookup, by all its rules. It fills in the neighbour's address too.
static __always_inline int ask(context *ctx, const struct packet *packet,
			       const struct interface *in, __u32 size, struct bpf_fib_lookup *fib,
			       struct hop *chosen, __u32 mtu)
{
	struct egress *egress;
	__u32 ports = rule_ports(ctx, packet);
	int verdict;

	fib->sport = ports;
	fib->dport = ports >> 16;
	// For a packet of several segments the lookup would take the length of all for that of one.
	fib->tot_len = frame_segment(ctx) ? 0 : size;
	fib->ifindex = in->ifindex;
	verdict = bpf_fib_lookup(ctx, fib, sizeof(*fib), 0);
	if (verdict == BPF_FIB_LKUP_RET_BLACKHOLE)
		return COUNT_BLACKHOLE;
	if (verdict == BPF_FIB_LKUP_RET_UNREACHABLE || verdict == BPF_FIB_LKUP_RET_PROHIBIT)
		return COUNT_REFUSED;
	if (verdict == BPF_FIB_LKUP_RET_NO_NEIGH)
		return COUNT_NEIGHBOUR;
	if (verdict == BPF_FIB_LKUP_RET_FRAG_NEEDED)
		return COUNT_TOO_BIG;
	if (verdict != BPF_FIB_LKUP_RET_SUCCESS)
		return COUNT_BEYOND;
	egress = bpf_map_lookup_elem(&egresses, &fib->ifindex);
	if (!egress)
		return COUNT_ELSEWHERE;
	__builtin_memcpy(chosen->destination, fib->dmac, ETH_ALEN);
	__builtin_memcpy(chosen->source, fib->smac, ETH_ALEN);
	chosen->port = egress->port;
	chosen->slot = egress->slot;
	chosen->protocol = egress->protocol;
	chosen->vlan = egress->vlan;
	chosen->inner_protocol = egress->inner_protocol;
	chosen->inner_vlan = egress->inner_vlan;
	chosen->ifindex = fib->ifindex;
	// The interface's is compared by the lookup.
	chosen->mtu = egress->only_tc ? 0 : mtu;
	chosen->tc_mtu = mtu;
	chosen->device = egress->device;
	chosen->flags = 0;
	return 0;
}
