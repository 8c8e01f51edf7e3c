// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The access list: which rule takes a packet, at a cost that does not go by how many there are.
//
// Each field of a packet (address, port, …) leads to a row of bits, one for each rule: those that
// take such a value. The rules that take the packet are what all rows have in common (bit vectors:
// Lakshman and Stiliadis, 1998), and a summary of which words of a row are not zero says where to
// look (aggregated: Baboescu and Varghese, 2001). crates/router/src/acl/image.rs puts rules that
// differ in one address or port next to each other, so that rows have few words in common, mostly
// one or two; of each word the lowest bit is the first rule of the file.
//
// Why not others: tuple space search, as Open vSwitch has it, costs a look for each combination of
// prefix lengths; a tree of cuts is deeper with more rules; tables of all combinations need
// memory that some lists do not fit. Here the worst is a look at all 256 words, for a list of which
// many rules differ in nothing that a packet shows.
#pragma once

#include "../lib/packet.h"
#include "address.h"
#include "hop.h"
#include "maps.h"
#include "table.h"

enum acl_verdict {
	ACL_ALLOW = 0,
	ACL_DENY = 1,
	ACL_UNREAD = 2,  // headers that are not understood, where the kernel can judge
};

// Bits that are set.
static __always_inline __u32 acl_ones(__u64 bits)
{
	bits -= bits >> 1 & 0x5555555555555555ull;
	bits = (bits & 0x3333333333333333ull) + (bits >> 2 & 0x3333333333333333ull);
	bits = (bits + (bits >> 4)) & 0x0f0f0f0f0f0f0f0full;
	return bits * 0x0101010101010101ull >> 56;
}

// The element of a line, and the line's first word in it.
static __always_inline const struct element *acl_line(void *image, __u32 line, __u32 *first)
{
	__u32 key = line / ACL_LINES_AN_ELEMENT;

	*first = line % ACL_LINES_AN_ELEMENT * LINE_WORDS;
	return bpf_map_lookup_elem(image, &key);
}

// A place in an element, whose highest bits are cut off where it is read. The barrier keeps the
// compiler from dropping that: it knows the bounds of a sum of bits, but Linux 6.1's verifier does
// not.
static __always_inline __u32 acl_at(__u32 at)
{
	asm volatile("" : "+r"(at));
	return at;
}

// The entry of a table of words that begins with a line, or 0.
static __always_inline __u32 acl_entry(void *image, __u32 line, __u32 index)
{
	__u32 first;
	const struct element *element = acl_line(image, line + index / LINE_WORDS, &first);

	return element ? word(element, acl_at(first + index % LINE_WORDS)) : 0;
}

// 64 bits at an even word.
static __always_inline __u64 acl_bits(const struct element *element, __u32 at)
{
	return *(const __u64 *)&element->word[acl_at(at) & (ELEMENT_WORDS - 2)];
}

// The line of the row of an address, of which the trie with its root at that line has the prefixes.
// IPv4's are the highest bits. A function of its own for the verifier, who looks at it once.
__attribute__((noinline)) __u32 acl_address(__u32 bank, __u32 root, __u64 upper, __u64 lower)
{
	__u32 first, entry, slot, best = 0;
	const struct element *element;
	void *image = bpf_map_lookup_elem(&acls, &bank);
	int i;

	if (!image)
		return 0;
	entry = acl_entry(image, root, upper >> (64 - TRIE6_WIDTH));
	for (i = 0; i < ACL_LEVELS && entry & ENTRY_CHILD; i++) {
		upper = upper << TRIE6_WIDTH | lower >> (64 - TRIE6_WIDTH);
		lower <<= TRIE6_WIDTH;
		slot = upper >> (64 - TRIE6_WIDTH);
		// A root begins its element, and the trie's lines are numbered from there.
		element = acl_line(image, root + (entry & ENTRY_LINE_MASK), &first);
		if (!element)
			return 0;
		if (entry & ENTRY_LINES)
			entry = look_lines(element, first, entry, slot, TRIE6_WIDTH, &best);
		else
			entry = look_index(element, first, entry, slot, TRIE6_WIDTH, &best);
	}
	return either(entry, best);
}

static __always_inline struct acl_shown *acl_shown(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&acl_shown_map, &zero);
}

static __always_inline const struct acl_header *acl_header(void *image)
{
	__u32 zero = 0;

	return image ? bpf_map_lookup_elem(image, &zero) : NULL;
}

// The row of an address, if rules ask for such.
static __always_inline __u32 acl_look_address(const struct acl_header *header, __u32 bank,
					      __u32 field, __u32 root, __u64 upper, __u64 lower)
{
	return header->fields & 1 << field ? acl_address(bank, root, upper, lower) : 0;
}

// Rows of the addresses of the packet that begins at `l3`. The packet's family, or less than zero:
// it is none of IP. A function of its own for the verifier, as those below.
__attribute__((noinline)) int acl_look_addresses(context *ctx, __u32 l3, __u32 bank)
{
	struct acl_shown *shown = acl_shown();
	void *image = bpf_map_lookup_elem(&acls, &bank);
	const struct acl_header *header = acl_header(image);
	__u8 *version = at(ctx, l3, 1);
	bool version_is_four;

	if (!shown || !header || !version)
		return -1;
	version_is_four = *version >> 4 == 4;
	if (version_is_four) {
		struct iphdr *ip = at(ctx, l3, sizeof(*ip));
		__u64 from, to;

		if (!ip)
			return -1;
		from = (__u64)bpf_ntohl(ip->saddr) << 32;
		to = (__u64)bpf_ntohl(ip->daddr) << 32;
		shown->size = bpf_ntohs(ip->tot_len);
		shown->row[ACL_SOURCE] = acl_look_address(header, bank, ACL_SOURCE,
							  header->source[0], from, 0);
		shown->row[ACL_DESTINATION] = acl_look_address(header, bank, ACL_DESTINATION,
							       header->destination[0], to, 0);
	} else {
		struct ipv6hdr *ip = at(ctx, l3, sizeof(*ip));
		__u64 from[2], to[2];

		if (!ip)
			return -1;
		__builtin_memcpy(from, &ip->saddr, sizeof(from));
		__builtin_memcpy(to, &ip->daddr, sizeof(to));
		shown->size = sizeof(*ip) + bpf_ntohs(ip->payload_len);
		shown->row[ACL_SOURCE] = acl_look_address(header, bank, ACL_SOURCE,
							  header->source[1],
							  bpf_be64_to_cpu(from[0]),
							  bpf_be64_to_cpu(from[1]));
		shown->row[ACL_DESTINATION] = acl_look_address(header, bank, ACL_DESTINATION,
							       header->destination[1],
							       bpf_be64_to_cpu(to[0]),
							       bpf_be64_to_cpu(to[1]));
	}
	return version_is_four ? 4 : 6;
}

// packet_network(), also of segments of TCP that are more than 64 KiB together (BIG TCP), as the
// kernel makes them or a guest says. IP tells no length of those: the buffer has it.
static __always_inline int acl_network(context *ctx, struct packet *packet)
{
	int unread = packet_network(ctx, packet);
	struct iphdr *ip = at(ctx, packet->l3, sizeof(*ip));

	if (!ip || !frame_segment(ctx))
		return unread;
	if (packet->family == 6) {
		if (packet->length == sizeof(struct ipv6hdr))
			packet->length = frame_length(ctx) - packet->l3;
		return unread;
	}
	if (ip->tot_len || ip->ihl < 5 || ip->frag_off & bpf_htons(IP_MF | IP_OFFSET))
		return unread;
	packet->length = frame_length(ctx) - packet->l3;
	packet->l4 = packet->l3 + ip->ihl * 4;
	packet->protocol = ip->protocol;
	return 0;
}

// Rows of the protocol and the ports. Less than zero: what is behind the addresses is not
// understood.
__attribute__((noinline)) int acl_look_transport(context *ctx, __u32 l3, int family, __u32 flags)
{
	__u32 source = ACL_NO_PORT, destination = ACL_NO_PORT, protocol;
	__u32 bank = !!(flags & CONFIG_ACL_BANK);
	struct packet packet = {.l3 = l3, .family = family};
	struct acl_shown *shown = acl_shown();
	void *image = bpf_map_lookup_elem(&acls, &bank);
	const struct acl_header *header = acl_header(image);
	int unread;

	if (!shown || !image || !header)
		return -1;
	unread = acl_network(ctx, &packet);
	protocol = packet.protocol;
	if (unread < 0) {
		protocol = ACL_UNKNOWN_PROTOCOL;
		source = ACL_UNKNOWN_PORT;
		destination = ACL_UNKNOWN_PORT;
	} else if (packet.fragment != FRAGMENT_LATER) {
		__be16 *both = at(ctx, packet.l4, 2 * sizeof(*both));

		// What is behind the packet is padding. Of protocols without ports these are
		// whatever lies there, and no rule with ports takes such a protocol.
		if (packet.l4 + 2 * sizeof(*both) <= l3 + packet.length) {
			source = both ? bpf_ntohs(both[0]) : ACL_UNKNOWN_PORT;
			destination = both ? bpf_ntohs(both[1]) : ACL_UNKNOWN_PORT;
		} else if (flags & CONFIG_ACL_ALL &&
			   (packet.fragment == FRAGMENT_FIRST ||
			    (packet.protocol == IPPROTO_TCP &&
			     packet.length == sizeof(struct ipv6hdr)))) {
			// Headers of IPv6 fill it, and its ports are in the next one, which passes
			// as one that has none; or IPv6 tells no length, and XDP does not see that
			// it is segments. nftables lets fragments pass, and so do its lists here.
			source = ACL_UNKNOWN_PORT;
			destination = ACL_UNKNOWN_PORT;
		}
	}
	shown->row[ACL_PROTOCOL] = acl_entry(image, header->protocols, protocol);
	if (header->fields & 1 << ACL_SOURCE_PORT)
		shown->row[ACL_SOURCE_PORT] = acl_entry(image, header->source_ports, source);
	if (header->fields & 1 << ACL_DESTINATION_PORT)
		shown->row[ACL_DESTINATION_PORT] = acl_entry(image, header->destination_ports,
							     destination);
	return unread;
}

static __always_inline __u32 acl_place(__u32 ifindex)
{
	return ifindex * 0x9e3779b1u >> 24;
}

// Rows of the interfaces. Without an ifindex it is not known by which one the packet will leave.
static __always_inline void acl_look_interface(void *image, const struct acl_header *header,
					       __u32 ifindex, __u32 field, struct acl_shown *shown)
{
	__u32 place = acl_place(ifindex), first;
	const struct acl_interface *interface;
	const struct element *element;
	int i;

	shown->row[field] = field == ACL_IN ? header->other_in :
			    ifindex ? header->other_out : header->unknown_out;
	if (!ifindex)
		return;
	for (i = 0; i < ACL_PROBES; i++) {
		__u32 at = (place + i) % ACL_INTERFACES;

		element = acl_line(image, header->interfaces + at / 4, &first);
		if (!element)
			return;
		first += at % 4 * 4;
		interface = (const void *)&element->word[acl_at(first) & (ELEMENT_WORDS - 4)];
		if (!interface->ifindex)
			return;
		if (interface->ifindex == ifindex) {
			shown->row[field] = field == ACL_IN ? interface->in : interface->out;
			return;
		}
	}
}

// The bits of one word of a row, which has something in it.
static __always_inline __u64 acl_word(void *image, __u32 line, __u32 group, __u64 below)
{
	__u32 first, before;
	const struct element *element = acl_line(image, line, &first);
	__u64 summary;

	if (!element)
		return 0;
	summary = acl_bits(element, first + 2 * group);
	before = byte(element, acl_at(4 * first + 8 * ACL_GROUPS + group));
	return acl_bits(element, first + LINE_WORDS + 2 * (before + acl_ones(summary & below)));
}

// Which words all rows have something in.
__attribute__((noinline)) int acl_summarise(__u32 bank)
{
	__u64 common[ACL_GROUPS] = {~0ull, ~0ull, ~0ull, ~0ull};
	struct acl_shown *shown = acl_shown();
	const struct acl_header *header;
	void *image = bpf_map_lookup_elem(&acls, &bank);
	const struct element *element;
	__u32 first;
	int field, group;

	header = acl_header(image);
	if (!shown || !header)
		return -1;
#pragma unroll
	for (field = 0; field < ACL_FIELDS; field++) {
		if (!(header->fields & 1 << field))
			continue;
		element = acl_line(image, shown->row[field], &first);
		if (!element)
			return -1;
#pragma unroll
		for (group = 0; group < ACL_GROUPS; group++)
			common[group] &= acl_bits(element, first + 2 * group);
	}
#pragma unroll
	for (group = 0; group < ACL_GROUPS; group++)
		shown->common[group] = common[group];
	shown->order = ~0u;
	shown->decided = header->no_rule;
	return 0;
}

// The first word of those that are left, and its bit is taken away: its group, or less than zero
// if none is left.
static __always_inline int acl_next_word(struct acl_shown *shown, __u64 *bit)
{
	int group;

#pragma unroll
	for (group = 0; group < ACL_GROUPS; group++) {
		__u64 common = shown->common[group];

		if (!common)
			continue;
		*bit = common & -common;
		shown->common[group] = common ^ *bit;
		return group;
	}
	return -1;
}

// Looks at the next word that all rows have something in: whether there was one.
__attribute__((noinline)) int acl_step(__u32 bank)
{
	struct acl_shown *shown = acl_shown();
	const struct acl_header *header;
	void *image = bpf_map_lookup_elem(&acls, &bank);
	const struct element *element;
	__u64 bit = 0, bits = ~0ull;
	__u32 place, first;
	int field, group;

	header = acl_header(image);
	if (!shown || !header)
		return 0;
	group = acl_next_word(shown, &bit);
	if (group < 0)
		return 0;
#pragma unroll
	for (field = 0; field < ACL_FIELDS; field++) {
		if (header->fields & 1 << field)
			bits &= acl_word(image, shown->row[field], group, bit - 1);
	}
	if (!bits)
		return 1;
	place = (group * 64 + acl_ones(bit - 1)) * 64 + acl_ones((bits & -bits) - 1);
	// Two words each.
	element = acl_line(image, header->rules + place / 8, &first);
	if (!element)
		return 0;
	first = acl_at(first + place % 8 * 2);
	if (word(element, first) < shown->order) {
		shown->order = word(element, first);
		shown->decided = word(element, first + 1);
	}
	return 1;
}

// What the rule that takes a packet says of it, by its slot.
static __always_inline int acl_verdict(__u32 decided)
{
	return decided & ACL_DENIES ? ACL_DENY : ACL_ALLOW;
}

// acl_verdict(), and counts the packet for the rule.
static __always_inline int acl_count(__u32 bank, const struct acl_header *header, __u32 decided,
				     __u32 size)
{
	__u32 slot = bpf_get_smp_processor_id() * header->slots + (decided & ~ACL_DENIES);
	void *counts = bpf_map_lookup_elem(&acl_counters, &bank);
	struct acl_count *count = counts ? bpf_map_lookup_elem(counts, &slot) : NULL;

	if (count) {
		count->packets++;
		count->bytes += size;
	}
	return acl_verdict(decided);
}

// Judges the packet that was looked at, and counts it for its rule if it `counts`. `interfaces`:
// the one that it came in by, and in the upper half the one that it leaves by.
__attribute__((noinline)) int acl_decide(__u32 bank, __u64 interfaces, __u32 counts)
{
	struct acl_shown *shown = acl_shown();
	const struct acl_header *header;
	void *image = bpf_map_lookup_elem(&acls, &bank);
	int i;

	header = acl_header(image);
	if (!shown || !image || !header)
		return ACL_DENY;
	if (header->fields & 1 << ACL_IN)
		acl_look_interface(image, header, interfaces, ACL_IN, shown);
	if (header->fields & 1 << ACL_OUT)
		acl_look_interface(image, header, interfaces >> 32, ACL_OUT, shown);
	if (acl_summarise(bank) < 0)
		return ACL_DENY;
	for (i = 0; i < ACL_ROW_WORDS && acl_step(bank); i++)
		;
	return counts ? acl_count(bank, header, shown->decided, shown->size) :
	       acl_verdict(shown->decided);
}

// Whether packets of a family are judged at all.
static __always_inline bool acl_is_on(__u32 flags, __u8 v6)
{
	return flags & (v6 ? CONFIG_ACL6 : CONFIG_ACL4);
}

// Judges a packet that is to leave, where an access list is, and counts it for the rule that takes
// it if it `counts`. `interfaces` as acl_decide() has them.
static __always_inline int acl_judge(context *ctx, __u32 l3, __u64 interfaces, __u32 flags,
				     bool counts)
{
	__u32 bank = !!(flags & CONFIG_ACL_BANK);
	int family = acl_look_addresses(ctx, l3, bank);

	if (family < 0)
		return ACL_DENY;
	if (acl_look_transport(ctx, l3, family, flags) < 0 && !(flags & CONFIG_ACL_ALL))
		return ACL_UNREAD;
	return acl_decide(bank, interfaces, counts);
}

static __always_inline int acl_check(context *ctx, __u32 l3, __u32 in, __u32 out, __u32 flags)
{
	return acl_judge(ctx, l3, (__u64)out << 32 | in, flags, true);
}

// Reasons to leave a packet to the kernel for which that may forward it. What it certainly answers
// itself or drops before its own firewall looks is not judged, nor what is for this host or for
// many.
#define ACL_LEFT                                                                        \
	(1u << COUNT_OPTIONS | 1u << COUNT_TOO_BIG | 1u << COUNT_SOURCE |               \
	 1u << COUNT_DESTINATION | 1u << COUNT_NEIGHBOUR | 1u << COUNT_SAME_INTERFACE | \
	 1u << COUNT_ELSEWHERE | 1u << COUNT_FIREWALL | 1u << COUNT_OFF |               \
	 1u << COUNT_BEYOND | 1u << COUNT_BEGUN | 1u << COUNT_HUNG)

// Addresses that the kernel's routes refuse as a source, and as a destination if the packet is to
// go to another host. Of 0.0.0.0/8 it is the first alone since Linux 5.3.
static __always_inline bool acl_is_refused4(__be32 address)
{
	return !address || (bpf_ntohl(address) >> 24 && is_special4(address));
}

static __always_inline bool acl_is_of_link6(const struct in6_addr *address)
{
	return bpf_ntohl(address->s6_addr32[0]) >> 22 == 0xfe80 >> 6;
}

// The number of the path to a packet's destination; 0: there is none.
__attribute__((noinline)) __u32 acl_path_to(context *ctx, __u32 l3)
{
	__u8 *version = at(ctx, l3, 1);

	if (!version)
		return 0;
	if (*version >> 4 == 4) {
		struct iphdr *ip = at(ctx, l3, sizeof(*ip));
		__u32 to;

		if (!ip)
			return 0;
		to = bpf_ntohl(ip->daddr);
		return find4(root4(to), to);
	} else {
		struct ipv6hdr *ip = at(ctx, l3, sizeof(*ip));
		const struct path *path;
		__u32 number, *host;

		if (!ip)
			return 0;
		number = find6(bpf_be64_to_cpu(*(const __be64 *)&ip->daddr));
		path = path_of(number);
		host = path && path->hosts ? bpf_map_lookup_elem(&hosts6, &ip->daddr) : NULL;
		return host ? *host : number;
	}
}

// For this host or for many.
static __always_inline bool acl_is_here(const struct path *path)
{
	return path->kind == PATH_PASS &&
	       (path->reason == COUNT_LOCAL || path->reason == COUNT_DESTINATION);
}

// What acl_way() gives for a link-local destination: the interface that the packet came by, if
// there is a route and the address is not this host's; else less than zero.
static __always_inline int acl_way_on_link(__u32 number, __u32 in)
{
	const struct path *path = path_of(number);

	if (!path || acl_is_here(path) ||
	    (path->kind == PATH_PASS && path->reason == COUNT_NO_ROUTE))
		return -1;
	return (int)in;
}

// Whether a packet of that family may go another way than the lookup for programs says, which
// knows no ports, no mark that the firewall puts on and no address that it puts in the place of
// another.
static __always_inline bool acl_is_unsure(__u32 flags, bool v6)
{
	return flags & (v6 ? CONFIG_OFF6 | CONFIG_ASK6 : CONFIG_OFF4 | CONFIG_ASK4);
}

// What acl_way() gives where the kernel's lookup says that a packet is not forwarded. Of IPv6 that
// goes by the interface's own setting, where ip6_forward() asks all.forwarding, and
// force_forwarding: our table has the way. That tells what is for this host, too.
static __always_inline int acl_way_else(__u32 number, int found, __u32 flags, bool v6)
{
	bool off = found == BPF_FIB_LKUP_RET_FWD_DISABLED;
	const struct path *path;

	if (off ? !v6 : !acl_is_unsure(flags, v6))
		return -1;
	path = path_of(number);
	if (!path)
		return 0;
	if (acl_is_here(path))
		return -1;
	return off ? (int)path->ifindex : 0;
}

// Where the kernel would send a packet: less than zero: to nobody, 0: it cannot be said, else an
// ifindex. That does not go by its length: the lookup is told none, since it would compare it with
// what anybody's "fragmentation needed" has said of the way, at which the kernel does not look when
// it forwards. At tc it compares the buffer's with the device's MTU when it has found the way.
// `number` is what acl_path_to() says.
__attribute__((noinline)) int acl_way(context *ctx, __u32 l3, __u32 in, __u32 flags, __u32 number)
{
	struct bpf_fib_lookup fib = {.ifindex = in};
	__u8 *version = at(ctx, l3, 1);
	int found;

	if (!version)
		return -1;
	if (*version >> 4 == 4) {
		struct iphdr *ip = at(ctx, l3, sizeof(*ip));

		if (!ip || acl_is_refused4(ip->daddr))
			return -1;
		fib.family = 2;
		fib.tos = ip->tos;
		fib.l4_protocol = ip->protocol;
		fib.ipv4_src = ip->saddr;
		fib.ipv4_dst = ip->daddr;
	} else {
		struct ipv6hdr *ip = at(ctx, l3, sizeof(*ip));

		if (!ip || ip->daddr.s6_addr[0] == 0xff)
			return -1;
		// Addresses of a link are looked for on the link that the packet came by. The
		// lookup for programs refuses them, as sources too.
		if (acl_is_of_link6(&ip->daddr))
			return acl_way_on_link(number, in);
		// Rules that ask for a protocol look behind such headers.
		if (flags & CONFIG_ASK6 && is_extension(ip->nexthdr))
			return acl_way_else(number, BPF_FIB_LKUP_RET_NOT_FWDED, flags, true);
		fib.family = 10;
		fib.l4_protocol = ip->nexthdr;
		fib.flowinfo = *(__be32 *)ip & bpf_htonl(0x0fffffff);
		if (!acl_is_of_link6(&ip->saddr))
			__builtin_memcpy(fib.ipv6_src, &ip->saddr, sizeof(ip->saddr));
		__builtin_memcpy(fib.ipv6_dst, &ip->daddr, sizeof(ip->daddr));
	}
	found = bpf_fib_lookup(ctx, &fib, sizeof(fib), 0);
	if (found == BPF_FIB_LKUP_RET_BLACKHOLE || found == BPF_FIB_LKUP_RET_UNREACHABLE ||
	    found == BPF_FIB_LKUP_RET_PROHIBIT || found == BPF_FIB_LKUP_RET_NOT_FWDED ||
	    found == BPF_FIB_LKUP_RET_FWD_DISABLED)
		return acl_way_else(number, found, flags, fib.family == 10);
	return found == BPF_FIB_LKUP_RET_SUCCESS || found == BPF_FIB_LKUP_RET_NO_NEIGH ||
	       found == BPF_FIB_LKUP_RET_FRAG_NEEDED ? fib.ifindex : 0;
}

// Whether there are several ways, of which the kernel may choose another one than we are told.
static __always_inline bool acl_has_ways(__u32 number)
{
	const struct path *path = path_of(number);

	return path && path->kind == PATH_FORWARD && !path->ifindex;
}

// Whether a packet of IPv4 is longer than its route takes, which has one next hop that is known.
static __always_inline bool acl_is_beyond_route4(__u32 number, __u32 size)
{
	const struct path *path = path_of(number);
	const struct hop *hop;

	if (!path || path->kind != PATH_FORWARD || path->count != 1)
		return false;
	hop = hop_of(path->member[0].hop);
	// Where it is to leave from tc the other is zero.
	return hop && size > (hop->tc_mtu ? hop->tc_mtu : hop->mtu);
}

// Whether the kernel should tell the sender, before its firewall looks, that a packet is too big
// for the interface or, as it does with IPv4, for the route, and may not be cut on the way.
__attribute__((noinline)) int acl_is_too_big(context *ctx, __u32 l3, __u32 out,
					     __u32 number)
{
	struct iphdr *ip = at(ctx, l3, sizeof(*ip));
	__u32 size, mtu;
	bool v6;

	if (!ip || frame_segment(ctx))
		return false;
	v6 = ip->version == 6;
	if (v6) {
		size = sizeof(struct ipv6hdr) + bpf_ntohs(((struct ipv6hdr *)ip)->payload_len);
	} else {
		if (!(ip->frag_off & bpf_htons(IP_DF)))
			return false;
		size = bpf_ntohs(ip->tot_len);
	}
	// It is told there what the MTU is.
	mtu = size;
	if (out && bpf_check_mtu(ctx, out, &mtu, 0, 0) > 0)
		return true;
	return !v6 && acl_is_beyond_route4(number, size);
}

// Whether the kernel refuses a source of IPv6: multicast and loopback, and, where the packet goes
// further, what ip6_forward() looks at: addresses of a link and the unspecified one.
static __always_inline bool acl_is_refused6(const struct in6_addr *source, __u32 returns)
{
	__u32 last = bpf_ntohl(source->s6_addr32[3]), first = bpf_ntohl(source->s6_addr32[0]);
	bool small = !(first | source->s6_addr32[1] | source->s6_addr32[2]) && last < 2;

	if (first >> 24 == 0xff || (small && last == 1))
		return true;
	return !returns && (small || acl_is_of_link6(source));
}

// Whether the kernel refuses a source before its firewall looks, as by its defaults: one that
// nobody else can have. `returns`: the packet leaves by the interface that it came in by.
__attribute__((noinline)) int acl_source_is_refused(context *ctx, __u32 l3, __u32 returns)
{
	struct iphdr *ip = at(ctx, l3, sizeof(*ip));
	const struct path *back;
	__u32 from;

	if (!ip)
		return true;
	if (ip->version == 6) {
		struct ipv6hdr *ip6 = at(ctx, l3, sizeof(*ip6));

		return !ip6 || acl_is_refused6(&ip6->saddr, returns);
	}
	if (ip->version != 4 || acl_is_refused4(ip->saddr))
		return true;
	from = bpf_ntohl(ip->saddr);
	back = path_of(find4(root4(from), from));
	return back && back->kind == PATH_PASS && back->reason == COUNT_LOCAL;
}

// Whether the kernel forwards it no further whatever its firewall says: its hop limit is used up,
// it tells of more bytes than came, or IPv4's checksum, over all options, is wrong.
__attribute__((noinline)) int acl_is_at_end(context *ctx, __u32 l3)
{
	struct iphdr *ip = at(ctx, l3, sizeof(*ip));
	__u32 sum = 0, words, i;

	if (!ip)
		return true;
	if (ip->version == 6) {
		struct ipv6hdr *ip6 = at(ctx, l3, sizeof(*ip6));

		return !ip6 || ip6->hop_limit <= 1 ||
		       !frame_holds(ctx, l3, sizeof(*ip6) + bpf_ntohs(ip6->payload_len));
	}
	if (ip->ttl <= 1 || !frame_holds(ctx, l3, bpf_ntohs(ip->tot_len)))
		return true;
	words = 2 * ip->ihl;
	for (i = 0; i < 30 && i < words; i++) {
		__u16 *word = at(ctx, l3 + 2 * i, sizeof(*word));

		// It is there, since the frame holds the packet: not in view.
		if (!word)
			return false;
		sum += *word;
	}
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum != 0xffff;
}

#define IP_OPTIONS_MAX 40  // bytes

// Whether options of IPv4 say which way a packet takes. What is to this host goes on by them, where
// it takes such (accept_source_route): to an address that no rule has seen.
__attribute__((noinline)) int acl_is_source_routed(context *ctx, __u32 l3)
{
	struct iphdr *ip = at(ctx, l3, sizeof(*ip));
	__u32 offset = sizeof(*ip), end, i;

	if (!ip || ip->version != 4)
		return false;
	end = ip->ihl * 4;
	for (i = 0; i < IP_OPTIONS_MAX && offset < end; i++) {
		__u8 *option = at(ctx, l3 + offset, 2);
		__u32 single;

		// One that is not in view may be any.
		if (!option || option[0] == IPOPT_LSRR || option[0] == IPOPT_SSRR)
			return true;
		if (option[0] == IPOPT_END)
			return false;
		// A single byte, or as long as it says. No branch: the verifier would go both ways
		// each time.
		single = ((option[0] ^ IPOPT_NOOP) - 1u) >> 31;
		asm volatile("" : "+r"(single));
		offset += single | (option[1] & (single - 1));
	}
	return false;
}

enum acl_left {
	ACL_LEAVES = 0,
	ACL_DROPS = 1,
	ACL_DROPS_UNCOUNTED = 2,  // the list's answer to what the kernel should refuse by itself
};

// What acl_left_way() says beside interfaces: the kernel should refuse the packet by itself. No
// index is as high.
#define ACL_REFUSED (1ull << 31)

// By which interfaces a packet comes and leaves that is left to the kernel, as acl_decide() has
// them; less than zero: it does not leave.
__attribute__((noinline)) __s64 acl_left_way(context *ctx, __u32 l3, __u32 in, __u32 flags)
{
	__u32 number;
	bool refused;
	int out;

	// Some reasons are found before all of this was looked at.
	if (acl_is_at_end(ctx, l3))
		return -1;
	number = acl_path_to(ctx, l3);
	out = acl_way(ctx, l3, in, flags, number);
	if (out < 0)
		return -1;
	// With accept_local or route_localnet the kernel refuses fewer sources, and it may have
	// another way than we see, with another MTU.
	refused = acl_source_is_refused(ctx, l3, out == (int)in) ||
		  acl_is_too_big(ctx, l3, out, number);
	if (acl_has_ways(number))
		out = 0;
	return (__u64)out << 32 | (refused ? ACL_REFUSED : 0) | in;
}

// With the flags: the packet was judged before, in all likelihood, and no rule counts it once more.
#define ACL_AGAIN 0x80000000u

// Judges a packet that is left to the kernel for a reason of ACL_LEFT: enum acl_left. A function of
// its own for the verifier, who looks at it once. It has few things to remember, as has the one
// before: of functions that call each other Linux 6.6 adds up the stack in units of 32 bytes, 512
// at the most, and these are deep.
__attribute__((noinline)) int acl_drops_left(context *ctx, __u32 l3, __u32 in, __u32 flags)
{
	__s64 way = acl_left_way(ctx, l3, in, flags);

	if (way < 0)
		return acl_is_source_routed(ctx, l3) ? ACL_DROPS : ACL_LEAVES;
	if (acl_judge(ctx, l3, way & ~ACL_REFUSED, flags,
		      !(way & ACL_REFUSED || flags & ACL_AGAIN)) != ACL_DENY)
		return ACL_LEAVES;
	return way & ACL_REFUSED ? ACL_DROPS_UNCOUNTED : ACL_DROPS;
}
