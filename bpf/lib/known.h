// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Flows that the switch has let pass, whose packets programs forward themselves: what they have in
// common that do so from a container (cable.bpf.c), at tc ingress or while it sends, and from other
// hosts (arrival.bpf.c), at tc ingress. The theory is at the head of
// crates/dataplane/src/flow/kernel.rs; here is what holds for one packet. It passes only if it is
// one that the switch's own fast path would let pass without a look at anything but its flow:
// untagged, whole, without IP options, TCP or UDP with sound headers, in TCP nothing but an
// acknowledgement with data or without, short enough.
//
// Nor does a packet pass of which its sender has left something undone that does not suit its
// headers. A checksum that is begun is completed by whoever needs it complete, behind the program:
// two bytes at a place that a packet socket or a VMM names freely, such as a port or an address
// that was judged. What is undone is not in what programs are shown of a buffer, so it is read out
// of the kernel's own, whose BTF says where it is. Where there is none, programs are compiled with
// KNOWN_BLIND, whose packets' checksums are all complete.
//
// The maps are one program's, and the others load beside it. Entries are the switch's, and of
// cable_ends crates/container's.
#pragma once

#include "checksum.h"
#include "context.h"
#include "packet.h"
#include "../cable.h"

#include <linux/tcp.h>
#include <linux/udp.h>

#ifndef KNOWN_BLIND
#include <bpf/bpf_core_read.h>
#endif

_Static_assert(sizeof(struct cable_end) == 16, "as src/cables.rs has it");
_Static_assert(sizeof(struct kernel_key) == 60, "as src/cables.rs has it");
_Static_assert(sizeof(struct kernel_flow) == 88, "as src/cables.rs has it");
_Static_assert(sizeof(struct kernel_state) == 64, "as flow/kernel.rs has it");
_Static_assert(sizeof(struct kernel_force) == 16, "as flow/kernel.rs has it");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, CABLE_ENDS);
	__type(key, __u32); // the index of the interface that a frame comes in by
	__type(value, struct cable_end);
} cable_ends SEC(".maps");

// Directions of connections. Its size is set before it is loaded: two for each connection.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 2);
	__type(key, struct kernel_key);
	__type(value, struct kernel_flow);
} kernel_flows SEC(".maps");

// How they stand; as many.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct kernel_state);
} kernel_states SEC(".maps");

// Whether any pass.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct kernel_force);
} kernel_force SEC(".maps");

#define SEGMENTS_MAX 2048 // of one frame, as the switch takes them (crates/wire/src/parse)

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10
#define TCP_URG 0x20

#define OPTION_TIMESTAMP __builtin_bswap32(0x0101080a) // two no-operations and a timestamp
#define OPTION_SACK __builtin_bswap32(0x01010500)      // two no-operations and its kind

// What is in front of an inner packet, over IPv4 and over IPv6.
struct front4 {
	__u16 unused;
	struct ethhdr link;
	struct iphdr ip;
	struct udphdr udp;
	__u8 vxlan[8];
	struct ethhdr inner;
};

struct front6 {
	__u16 unused;
	struct ethhdr link;
	struct ipv6hdr ip;
	struct udphdr udp;
	__u8 vxlan[8];
	struct ethhdr inner;
};

_Static_assert(offsetof(struct front4, inner) == 2 + KERNEL_OUTER4, "front4");
_Static_assert(offsetof(struct front6, inner) == 2 + KERNEL_OUTER6, "front6");

// What a TCP header says that is followed.
struct segment {
	__u32 end;
	__u32 ack;
	__u32 window;
};

// A plain packet of a flow that may be known.
struct plain {
	__u32 front;  // where it begins, with its Ethernet header: behind outer ones, if there are any
	__u32 l4;
	__u32 header; // bytes at layer 4; of UDP all of it
	__u8 tos;
	struct segment segment; // of TCP
	struct kernel_key key;  // without the device and the network
};

// The Ethernet type of its packets, as it is in a frame.
static __always_inline __be16 ethertype_of(const struct kernel_key *key)
{
	return key->family == 4 ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);
}

// Fills in addresses, protocol and family, where layer 4 is, and the TOS or traffic class. Gives
// where the packet ends; 0: it is not for here.
static __always_inline __u32 read_network(context *ctx, struct plain *plain)
{
	struct ethhdr *link = at(ctx, plain->front, sizeof(*link));
	__u32 l3 = plain->front + sizeof(*link);
	struct kernel_key *key = &plain->key;
	struct ipv6hdr *six;
	struct iphdr *four;

	if (!link)
		return 0;
	__builtin_memcpy(key->macs, link, sizeof(key->macs));
	if (link->h_proto == bpf_htons(ETH_P_IP)) {
		four = at(ctx, l3, sizeof(*four));
		if (!four || *(__u8 *)four != 0x45)
			return 0;
		if (four->frag_off & bpf_htons(IP_MF | IP_OFFSET))
			return 0;
		__builtin_memcpy(key->from, &four->saddr, 4);
		__builtin_memcpy(key->to, &four->daddr, 4);
		key->protocol = four->protocol;
		key->family = 4;
		plain->tos = four->tos;
		plain->l4 = l3 + sizeof(*four);
		return l3 + bpf_ntohs(four->tot_len);
	}
	if (link->h_proto == bpf_htons(ETH_P_IPV6)) {
		six = at(ctx, l3, sizeof(*six));
		if (!six || *(__u8 *)six >> 4 != 6)
			return 0;
		__builtin_memcpy(key->from, &six->saddr, 16);
		__builtin_memcpy(key->to, &six->daddr, 16);
		key->protocol = six->nexthdr;
		key->family = 6;
		plain->tos = bpf_ntohl(*(__be32 *)six) >> 20;
		plain->l4 = l3 + sizeof(*six);
		return l3 + sizeof(*six) + bpf_ntohs(six->payload_len);
	}
	return 0;
}

// A TCP header without options, with a timestamp, or with that and selective acknowledgements:
// what nearly every segment has.
static __always_inline bool options_are_sound(context *ctx, __u32 l4, __u32 header)
{
	__u32 *word;

	if (header == sizeof(struct tcphdr))
		return true;
	word = at(ctx, l4 + sizeof(struct tcphdr), sizeof(*word));
	if (!word || *word != OPTION_TIMESTAMP || header < 32)
		return false;
	if (header == 32)
		return true;
	word = at(ctx, l4 + 32, sizeof(*word));
	if (!word || (*word & __builtin_bswap32(0xffffff00)) != OPTION_SACK)
		return false;
	// Its length, to the header's end.
	return __builtin_bswap32(*word) % 256 == header - 34;
}

// An acknowledgement, with data or without. Gives the header's length; 0: it is not for here.
static __always_inline __u32 read_tcp(context *ctx, __u32 l4, __u32 end, struct segment *segment)
{
	struct tcphdr *tcp = at(ctx, l4, sizeof(*tcp));
	__u32 header;
	__u8 flags;

	if (!tcp)
		return 0;
	header = tcp->doff * 4;
	flags = ((__u8 *)tcp)[13];
	if (!(flags & TCP_ACK) || flags & (TCP_FIN | TCP_SYN | TCP_RST | TCP_URG))
		return 0;
	if (header < sizeof(*tcp) || l4 + header > end)
		return 0;
	segment->end = bpf_ntohl(tcp->seq) + (end - l4 - header);
	segment->ack = bpf_ntohl(tcp->ack_seq);
	segment->window = bpf_ntohs(tcp->window);
	return options_are_sound(ctx, l4, header) ? header : 0;
}

// Reads the packet at plain->front. False: it goes up. Headers that are not in the buffer's first
// piece, where every stack has them, do: having them there would copy what the sender's TCP shares.
static __always_inline bool read_plain(context *ctx, struct plain *plain)
{
	__u32 end = read_network(ctx, plain), l4 = plain->l4, size = ctx->gso_size;
	struct kernel_key *key = &plain->key;
	struct udphdr *udp;

	// The kernel cuts all of a frame, and not what its packet says alone.
	if (!end || end > ctx->len || (size && end != ctx->len))
		return false;
	if (key->protocol == IPPROTO_TCP) {
		plain->header = read_tcp(ctx, l4, end, &plain->segment);
		if (!plain->header || (size && end - l4 > size * SEGMENTS_MAX))
			return false;
	} else if (key->protocol == IPPROTO_UDP) {
		udp = at(ctx, l4, sizeof(*udp));
		if (!udp || size)
			return false;
		plain->header = bpf_ntohs(udp->len);
		if (plain->header < sizeof(*udp) || l4 + plain->header > end)
			return false;
	} else {
		return false;
	}
	udp = at(ctx, l4, sizeof(*udp));
	if (!udp)
		return false;
	key->ports = *(__u32 *)udp;
	return true;
}

#ifdef KNOWN_BLIND

// Nothing is left undone. Only begun checksums can be told by what programs may ask: a buffer whose
// checksum nobody has looked at can be said to have been checked (and is said not to, again), one
// with a begun checksum can not.
static __always_inline bool undone_suits(context *ctx, const struct plain *plain)
{
	bool begun;

	if (ctx->gso_size)
		return false;
	if (bpf_csum_level(ctx, BPF_CSUM_LEVEL_QUERY) >= 0)
		return true;
	bpf_csum_level(ctx, BPF_CSUM_LEVEL_INC);
	begun = bpf_csum_level(ctx, BPF_CSUM_LEVEL_QUERY) < 0;
	bpf_csum_level(ctx, BPF_CSUM_LEVEL_DEC);
	return !begun;
}

// It cannot be told.
static __always_inline bool beside_suits(context *ctx, const struct plain *plain)
{
	return false;
}

#else

// Of the kernel's structures what is looked at; where that is libbpf finds by its name.
struct sk_buff {
	unsigned char *head;
	unsigned int end;
	__u16 csum_start; // this and the next two from `head`
	__u16 mac_header;
	__u16 network_header;
	__u16 csum_offset;
	__u8 ip_summed : 2;
} __attribute__((preserve_access_index));

struct skb_shared_info {
	unsigned int gso_type;
} __attribute__((preserve_access_index));

#define CHECKSUM_PARTIAL 3 // ip_summed of a checksum that is begun (linux/skbuff.h)

// The kinds in gso_type (there, too), and what may be beside one: that who made it is not trusted,
// that the first segment alone has CWR, that all have one IP identification. Beside that of a
// packet in outer headers without a checksum: that it is.
#define GSO_TCP4 (1 << 0)
#define GSO_TCP6 (1 << 4)
#define GSO_BESIDE (1 << 1 | 1 << 2 | 1 << 3)
#define GSO_UDP_TUNNEL (1 << 10)

#define READ(to, from, member)                                                                     \
	bpf_probe_read_kernel(to, sizeof(*(to)), __builtin_preserve_access_index(&(from)->member))

// What the sender has left undone is what its headers say: the transport header's own checksum, and
// segments of their kind. As Plain::suits() of crates/wire has it, and of what is in outer headers
// vxlan::inner_undone(): segments have a checksum that is begun.
static __always_inline bool undone_suits(context *ctx, const struct plain *plain)
{
	const struct sk_buff *skb = (void *)ctx;
	const struct skb_shared_info *shared;
	unsigned int end, type, beside = GSO_BESIDE;
	__u16 start, offset, link;
	unsigned char *head;
	__u64 summed = 0;

	if (__CORE_BITFIELD_PROBE_READ(&summed, skb, ip_summed))
		return false;
	summed <<= __CORE_RELO(skb, ip_summed, LSHIFT_U64);
	summed >>= __CORE_RELO(skb, ip_summed, RSHIFT_U64);
	if (summed == CHECKSUM_PARTIAL) {
		if (READ(&start, skb, csum_start) || READ(&offset, skb, csum_offset) ||
		    READ(&link, skb, mac_header))
			return false;
		if (start != link + plain->l4 ||
		    offset != (plain->key.protocol == IPPROTO_TCP ?
				       offsetof(struct tcphdr, check) :
				       offsetof(struct udphdr, check)))
			return false;
	}
	if (!ctx->gso_size)
		return true;
	if (READ(&head, skb, head) || READ(&end, skb, end))
		return false;
	shared = (void *)(head + end);
	if (READ(&type, shared, gso_type))
		return false;
	if (plain->front) {
		if (summed != CHECKSUM_PARTIAL)
			return false;
		beside |= GSO_UDP_TUNNEL;
	}
	return (type & ~beside) == (plain->key.family == 4 ? GSO_TCP4 : GSO_TCP6);
}

// What lies beside the frame says the same as the frame: its Ethernet type, and where its IP header
// is, which is what stacks go by. Of what has come in by a device the kernel has seen to that. Of
// what is only being sent a packet socket may say anything.
static __always_inline bool beside_suits(context *ctx, const struct plain *plain)
{
	const struct sk_buff *skb = (void *)ctx;
	__u16 link, network;

	if (ctx->protocol != ethertype_of(&plain->key))
		return false;
	if (READ(&link, skb, mac_header) || READ(&network, skb, network_header))
		return false;
	return network == link + sizeof(struct ethhdr);
}

#endif

// What is in force; NULL: no packet passes.
static __always_inline struct kernel_force *force_now(void)
{
	struct kernel_force *force;
	__u32 zero = 0;

	force = bpf_map_lookup_elem(&kernel_force, &zero);
	return force && force->generation ? force : NULL;
}

// The entry of a packet that was read, and how it stands, in `state`. NULL: it goes up.
static __always_inline struct kernel_flow *find_known(context *ctx, struct plain *plain,
						      const struct kernel_force *force, __u64 now,
						      struct kernel_state **state)
{
	__u32 size = ctx->gso_size, length = ctx->len - plain->front;
	struct kernel_state *found;
	struct kernel_flow *flow;

	flow = bpf_map_lookup_elem(&kernel_flows, &plain->key);
	if (!flow)
		return NULL;
	found = bpf_map_lookup_elem(&kernel_states, &flow->state);
	if (!found)
		return NULL;
	if (*(volatile __u64 *)&found->mark != ((__u64)flow->tag << 32 | force->generation) ||
	    now >= force->until_ns || now >= found->until_ns)
		return NULL;
	// It may be over, which the switch knows. Another processor may have been here a moment later.
	if ((__s64)(now - *(volatile __u64 *)&found->last_ns) >= (__s64)KERNEL_IDLE_NS)
		return NULL;
	if (!undone_suits(ctx, plain))
		return NULL;
	if (length > found->max_frame &&
	    (!size || plain->l4 - plain->front + plain->header + size > found->max_frame))
		return NULL;
	*state = found;
	return flow;
}

// Sequence numbers go round (RFC 9293, section 3.4). Packets of one direction on two processors at
// one moment may leave the lower number, until the next packet.
static __always_inline void raise_to(__u32 *number, __u32 to)
{
	if ((__s32)(*number - to) < 0)
		*number = to;
}

// Notes that a packet passes, which has so many bytes without outer headers.
static __always_inline void count_known(struct kernel_state *state, const struct plain *plain,
					__u32 length, __u64 now)
{
	const struct segment *segment = &plain->segment;

	if (plain->key.protocol == IPPROTO_TCP) {
		raise_to(&state->end, segment->end);
		raise_to(&state->ack, segment->ack);
		raise_to(&state->edge, segment->ack + (segment->window << (state->scale & 15)));
	}
	state->last_ns = now;
	__sync_fetch_and_add(&state->bytes, length);
	__sync_fetch_and_add(&state->frames, 1);
}

// The Ethernet header of a packet of these.
static __always_inline void fill_link(struct ethhdr *link, const struct kernel_key *key)
{
	__builtin_memcpy(link, key->macs, sizeof(key->macs));
	link->h_proto = ethertype_of(key);
}

// Whether this is the device on the host of a container, 0, or of a VMM, 1. Less than zero: it is
// none of ours any more, and nothing goes where a container was.
static __always_inline int machine_at(__u32 device)
{
	struct cable_end *end = bpf_map_lookup_elem(&cable_ends, &device);

	return end && !end->from_tap ? end->machine : -1;
}

// Sends a packet out by a device: to a VMM's queue or the wire, or straight into a container's
// namespace, as can be done with what has come in.
static __always_inline int send_by(__u32 device, bool is_container)
{
	return is_container ? bpf_redirect_peer(device, 0) : bpf_redirect(device, 0);
}
