// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What the access list said of a packet's flow: the next packets of the flow are judged by that, so
// that a list costs them the same whatever it holds.
//
// A flow is all that the list looks at: both addresses and ports, the protocol and both interfaces.
// Of plain packets alone, as the flow cache takes them, and of TCP and UDP that are no fragments;
// the others go through the list each time. What is remembered is the rule that took the flow, so
// that it goes on counting, and holds as long as the epoch (epoch.rs), which ends with each change
// of the list. Each CPU has flows of its own, found by a hash, in pairs, of IPv4 in one line of
// memory; a new one takes the place of one whose epoch is over, or of either. There are none until
// there is a list (crates/router/src/acl/loaded.rs). With IPv6 and 64 destinations a packet under a
// list takes 373 to 386 ns where it took 693 to 887 (docs/journal/2026-11-27-access-lists.md).
#pragma once

#include "acl.h"
#include "cache_use.h"
#include "maps.h"

// What a packet is known by.
struct acl_key {
	__u64 address[4];  // IPv4's are the first alone
	struct acl_about about;
};

static __always_inline struct acl_flows *acl_flows_here(void)
{
	__u32 cpu = bpf_get_smp_processor_id(), zero = 0;
	void *flows = bpf_map_lookup_elem(&acl_flows, &cpu);

	return flows ? bpf_map_lookup_elem(flows, &zero) : NULL;
}

// Reads what a packet is known by, behind an Ethernet header without tags. The size of the IP
// packet, or 0: it is not to be known.
static __always_inline __u32 acl_key_of(context *ctx, bool v6, __u64 interfaces, __u32 epoch,
					__u32 bank, struct acl_key *key)
{
	__u32 l3 = sizeof(struct ethhdr), l4, size, *ports;
	__u8 protocol;

	if (v6) {
		struct ipv6hdr *ip = at(ctx, l3, sizeof(*ip));

		if (!ip)
			return 0;
		__builtin_memcpy(key->address, &ip->saddr, 2 * sizeof(ip->saddr));
		protocol = ip->nexthdr;
		l4 = l3 + sizeof(*ip);
		size = sizeof(*ip) + bpf_ntohs(ip->payload_len);
	} else {
		struct iphdr *ip = at(ctx, l3, sizeof(*ip));

		if (!ip || ip->frag_off & bpf_htons(IP_RF | IP_MF | IP_OFFSET))
			return 0;
		__builtin_memcpy(key->address, &ip->saddr, 2 * sizeof(ip->saddr));
		protocol = ip->protocol;
		l4 = l3 + sizeof(*ip);
		size = bpf_ntohs(ip->tot_len);
	}
	ports = at(ctx, l4, sizeof(*ports));
	// What is behind the packet is padding.
	if ((protocol != IPPROTO_TCP && protocol != IPPROTO_UDP) || !ports ||
	    l4 + sizeof(*ports) > l3 + size)
		return 0;
	key->about.ports = *ports;
	key->about.in = interfaces;
	key->about.out = interfaces >> 32;
	key->about.stamp = epoch << ACL_STAMP_EPOCH_SHIFT | (bank ? ACL_STAMP_BANK : 0) |
			   (protocol == IPPROTO_UDP ? ACL_STAMP_UDP : 0);
	return size;
}

static __always_inline __u32 acl_hash(const struct acl_key *key)
{
	__u64 mixed = (key->address[0] ^ key->address[2]) * 0x9e3779b97f4a7c15ull;

	mixed = (mixed ^ key->address[1] ^ key->address[3]) * 0xbf58476d1ce4e5b9ull;
	mixed ^= mixed >> 32;
	mixed = (mixed ^ key->about.ports) * 0x94d049bb133111ebull;
	return mixed >> (64 - ACL_FLOW_BITS);
}

// Zero if two are of the same flow, but for its addresses.
static __always_inline __u64 acl_differs(const struct acl_about *one, const struct acl_about *other)
{
	const __u64 *a = (const void *)one, *b = (const void *)other;

	return (a[0] ^ b[0]) | (a[1] ^ b[1]);
}

static __always_inline __u64 acl_differs4(const struct acl_flow4 *flow, const struct acl_key *key)
{
	return (flow->addresses ^ key->address[0]) | acl_differs(&flow->about, &key->about);
}

static __always_inline __u64 acl_differs6(const struct acl_flow6 *flow, const struct acl_key *key)
{
	return (flow->address[0] ^ key->address[0]) | (flow->address[1] ^ key->address[1]) |
	       (flow->address[2] ^ key->address[2]) | (flow->address[3] ^ key->address[3]) |
	       acl_differs(&flow->about, &key->about);
}

// What is known of a flow, or NULL.
static __always_inline const struct acl_about *acl_find(struct acl_flows *flows, bool v6,
							const struct acl_key *key)
{
	__u32 pair = acl_hash(key);

	if (v6) {
		const struct acl_flow6 *six = flows->six[pair];

		if (!acl_differs6(&six[0], key))
			return &six[0].about;
		return acl_differs6(&six[1], key) ? NULL : &six[1].about;
	} else {
		const struct acl_flow4 *four = flows->four[pair];

		if (!acl_differs4(&four[0], key))
			return &four[0].about;
		return acl_differs4(&four[1], key) ? NULL : &four[1].about;
	}
}

// Which of a pair a new flow takes: that of one whose epoch is over, or either.
static __always_inline __u32 acl_place_of(const struct acl_flows *flows,
					  const struct acl_about *first,
					  const struct acl_about *second,
					  const struct acl_about *new)
{
	if ((first->stamp ^ new->stamp) >> ACL_STAMP_EPOCH_SHIFT)
		return 0;
	if ((second->stamp ^ new->stamp) >> ACL_STAMP_EPOCH_SHIFT)
		return 1;
	return flows->use.misses & 1;
}

// What is known of a packet's flow: the verdict, for which it is counted; less than zero: nothing.
// A function of its own for the verifier, and so is the next: in one with acl_check() they would
// have too little stack. `interfaces` as acl_decide() has them.
__attribute__((noinline)) int acl_known(context *ctx, __u32 v6, __u64 interfaces, __u32 epoch,
					__u32 flags)
{
	__u32 bank = !!(flags & CONFIG_ACL_BANK), size;
	void *image = bpf_map_lookup_elem(&acls, &bank);
	const struct acl_header *header = acl_header(image);
	struct acl_flows *flows = acl_flows_here();
	const struct acl_about *known;
	struct acl_key key = {};

	if (!flows || !header || cache_rests(&flows->use))
		return -1;
	size = acl_key_of(ctx, v6, interfaces, epoch, bank, &key);
	known = size ? acl_find(flows, v6, &key) : NULL;
	if (!known)
		return -1;
	flows->use.hits++;
	return acl_count(bank, header, known->decided, size);
}

// Remembers what the list has just said of a packet.
__attribute__((noinline)) int acl_remember(context *ctx, __u32 v6, __u64 interfaces, __u32 epoch,
					   __u32 flags)
{
	__u32 bank = !!(flags & CONFIG_ACL_BANK), pair, place;
	struct acl_flows *flows = acl_flows_here();
	struct acl_shown *shown = acl_shown();
	struct acl_key key = {};

	if (!flows || !shown || flows->use.rest ||
	    !acl_key_of(ctx, v6, interfaces, epoch, bank, &key))
		return 0;
	key.about.decided = shown->decided;
	cache_missed(&flows->use, ACL_FLOWS_LOOK, ACL_FLOWS_LOOK / 8);
	pair = acl_hash(&key);
	if (v6) {
		struct acl_flow6 *six = flows->six[pair];

		place = acl_place_of(flows, &six[0].about, &six[1].about, &key.about);
		__builtin_memcpy(six[place].address, key.address, sizeof(key.address));
		six[place].about = key.about;
	} else {
		struct acl_flow4 *four = flows->four[pair];

		place = acl_place_of(flows, &four[0].about, &four[1].about, &key.about);
		four[place].addresses = key.address[0];
		four[place].about = key.about;
	}
	return 0;
}

// acl_check() of a plain packet.
static __always_inline int acl_check_plain(context *ctx, __u32 v6, __u32 in, __u32 out,
					   __u32 epoch, __u32 flags)
{
	__u64 interfaces = (__u64)out << 32 | in;
	int judged = acl_known(ctx, v6, interfaces, epoch, flags);

	if (judged >= 0)
		return judged;
	judged = acl_check(ctx, sizeof(struct ethhdr), in, out, flags);
	if (judged != ACL_UNREAD)
		acl_remember(ctx, v6, interfaces, epoch, flags);
	return judged;
}
