// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A cable between a container's interface and the switch, at tc ingress alone: what comes in by the
// host's end of a container's veth pair goes out by the TAP device that the switch reads, and what
// the switch writes to that goes to the container. In the place of the pair may be a TAP device
// that a VMM has open, and reads and writes itself. No frame reaches the host's own stack, not even
// when the switch is gone: the program stays on the interface, and what it knows no way for is
// dropped. Segments stay whole and checksums begun (GSO).
//
// What the switch has let pass it may have entered here (kernel_flows): then the packets that
// follow go straight to the other container, or in outer headers to another host. The theory is at
// the head of crates/dataplane/src/flow/kernel.rs; here is what holds for one packet. It passes
// only if it is one that the switch's own fast path would let pass without a look at anything but
// its flow: untagged, whole, without IP options, TCP or UDP with sound headers, in TCP nothing but
// an acknowledgement with data or without, short enough. Everything else goes up, and nothing is
// refused here.
//
// So does a packet of which its sender has left something undone that does not suit its headers. A
// checksum that is begun is completed by whoever needs it complete, behind this program: two bytes
// at a place that a packet socket or a VMM names freely, such as a port or an address that was
// judged. What is undone is not in what programs are shown of a buffer, so it is read out of the
// kernel's own, whose BTF says where it is. Where there is none, cable_blind.bpf.c is loaded, whose
// checksums are all complete.
//
// Entries are crates/container's, one for each of the two interfaces, and the switch's.
#include "lib/checksum.h"
#include "lib/context.h"
#include "lib/packet.h"
#include "cable.h"

#include <linux/tcp.h>
#include <linux/udp.h>

#ifndef CABLE_BLIND
#include <bpf/bpf_core_read.h>
#endif

_Static_assert(sizeof(struct cable_end) == 12, "as src/cables.rs has it");
_Static_assert(sizeof(struct kernel_key) == 56, "as src/cables.rs has it");
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

// What a TCP header says that is followed.
struct segment {
	__u32 end;
	__u32 ack;
	__u32 window;
};

// The frame is for the container's own MAC.
static __always_inline bool is_for(context *ctx, const struct cable_end *end)
{
	__u8 to[6];

	if (bpf_skb_load_bytes(ctx, 0, to, sizeof(to)) < 0)
		return false;
	return !((to[0] ^ end->mac[0]) | (to[1] ^ end->mac[1]) | (to[2] ^ end->mac[2]) |
		 (to[3] ^ end->mac[3]) | (to[4] ^ end->mac[4]) | (to[5] ^ end->mac[5]));
}

// Fills the key's addresses, protocol and family. Gives where layer 4 is, in `end` where the packet
// ends, and in `tos` its TOS or traffic class; 0: it is not for here.
static __always_inline __u32 read_network(context *ctx, struct kernel_key *key, __u32 *end,
					  __u8 *tos)
{
	struct ethhdr *link = at(ctx, 0, sizeof(*link));
	struct ipv6hdr *six;
	struct iphdr *four;

	if (!link)
		return 0;
	__builtin_memcpy(key->macs, link, sizeof(key->macs));
	if (link->h_proto == bpf_htons(ETH_P_IP)) {
		four = at(ctx, sizeof(*link), sizeof(*four));
		if (!four || *(__u8 *)four != 0x45)
			return 0;
		if (four->frag_off & bpf_htons(IP_MF | IP_OFFSET))
			return 0;
		__builtin_memcpy(key->from, &four->saddr, 4);
		__builtin_memcpy(key->to, &four->daddr, 4);
		key->protocol = four->protocol;
		key->family = 4;
		*tos = four->tos;
		*end = sizeof(*link) + bpf_ntohs(four->tot_len);
		return sizeof(*link) + sizeof(*four);
	}
	if (link->h_proto == bpf_htons(ETH_P_IPV6)) {
		six = at(ctx, sizeof(*link), sizeof(*six));
		if (!six || *(__u8 *)six >> 4 != 6)
			return 0;
		__builtin_memcpy(key->from, &six->saddr, 16);
		__builtin_memcpy(key->to, &six->daddr, 16);
		key->protocol = six->nexthdr;
		key->family = 6;
		*tos = bpf_ntohl(*(__be32 *)six) >> 20;
		*end = sizeof(*link) + sizeof(*six) + bpf_ntohs(six->payload_len);
		return sizeof(*link) + sizeof(*six);
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

// Sequence numbers go round (RFC 9293, section 3.4). Packets of one direction on two processors at
// one moment may leave the lower number, until the next packet.
static __always_inline void raise_to(__u32 *number, __u32 to)
{
	if ((__s32)(*number - to) < 0)
		*number = to;
}

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

#define ROOM                                                                                      \
	(BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L4_UDP | BPF_F_ADJ_ROOM_ENCAP_L2_ETH |   \
	 BPF_F_ADJ_ROOM_ENCAP_L2(sizeof(struct ethhdr)))

static __always_inline void fill_inner(struct ethhdr *inner, const struct kernel_key *key)
{
	__builtin_memcpy(inner, key->macs, sizeof(key->macs));
	inner->h_proto = key->family == 4 ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);
}

// Puts the flow's outer headers in front of a packet, of each of its segments in the end. Less than
// zero: the packet is as it was; more than zero: it is no longer whole.
static __always_inline int wrap4(context *ctx, const struct kernel_flow *flow,
				 const struct kernel_key *key, __u8 tos)
{
	__u32 size = ctx->len + KERNEL_OUTER4 - sizeof(struct ethhdr);
	struct front4 front;

	if (size > 0xffff ||
	    bpf_skb_adjust_room(ctx, KERNEL_OUTER4, BPF_ADJ_ROOM_MAC,
				ROOM | BPF_F_ADJ_ROOM_ENCAP_L3_IPV4) < 0)
		return -1;
	__builtin_memcpy(&front, flow->outer, offsetof(struct front4, inner));
	front.ip.tos = tos;
	front.ip.tot_len = bpf_htons(size);
	front.ip.check = checksum_finish(checksum_ipv4(&front.ip));
	front.udp.len = bpf_htons(size - sizeof(front.ip));
	fill_inner(&front.inner, key);
	return bpf_skb_store_bytes(ctx, 0, &front.link, KERNEL_OUTER4 + sizeof(front.inner), 0) ?
		       1 : 0;
}

// As wrap4(), by IPv6.
static __always_inline int wrap6(context *ctx, const struct kernel_flow *flow,
				 const struct kernel_key *key, __u8 tos)
{
	__u32 size = ctx->len + KERNEL_OUTER6 - sizeof(struct ethhdr) - sizeof(struct ipv6hdr);
	struct front6 front;

	if (size > 0xffff ||
	    bpf_skb_adjust_room(ctx, KERNEL_OUTER6, BPF_ADJ_ROOM_MAC,
				ROOM | BPF_F_ADJ_ROOM_ENCAP_L3_IPV6) < 0)
		return -1;
	__builtin_memcpy(&front, flow->outer, offsetof(struct front6, inner));
	*(__be32 *)&front.ip = bpf_htonl(6u << 28 | (__u32)tos << 20);
	front.ip.payload_len = bpf_htons(size);
	front.udp.len = bpf_htons(size);
	fill_inner(&front.inner, key);
	return bpf_skb_store_bytes(ctx, 0, &front.link, KERNEL_OUTER6 + sizeof(front.inner), 0) ?
		       1 : 0;
}

// Makes of a packet what leaves by the uplink. Less than zero: it is as it was; more than zero: it
// is lost.
static __always_inline int wrap(context *ctx, const struct kernel_flow *flow,
				const struct kernel_key *key, __u8 tos)
{
	if (flow->dscp != KERNEL_DSCP_INNER)
		tos = flow->dscp << 2 | (tos & 3); // ECN is the inner packet's (RFC 6040)
	if (flow->outer_len == KERNEL_OUTER4)
		return wrap4(ctx, flow, key, tos);
	return flow->outer_len == KERNEL_OUTER6 ? wrap6(ctx, flow, key, tos) : -1;
}

#ifdef CABLE_BLIND

// Nothing is left undone. Only begun checksums can be told by what programs may ask: a buffer whose
// checksum nobody has looked at can be said to have been checked (and is said not to, again), one
// with a begun checksum can not.
static __always_inline bool undone_suits(context *ctx, const struct kernel_key *key, __u32 l4)
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

#else

// Of the kernel's structures what is looked at; where that is libbpf finds by its name.
struct sk_buff {
	unsigned char *head;
	unsigned int end;
	__u16 csum_start; // this and the next from `head`
	__u16 mac_header;
	__u16 csum_offset;
	__u8 ip_summed : 2;
} __attribute__((preserve_access_index));

struct skb_shared_info {
	unsigned int gso_type;
} __attribute__((preserve_access_index));

#define CHECKSUM_PARTIAL 3 // ip_summed of a checksum that is begun (linux/skbuff.h)

// The kinds in gso_type (there, too), and what may be beside one: that who made it is not trusted,
// that the first segment alone has CWR, that all have one IP identification.
#define GSO_TCP4 (1 << 0)
#define GSO_TCP6 (1 << 4)
#define GSO_BESIDE (1 << 1 | 1 << 2 | 1 << 3)

#define READ(to, from, member)                                                                     \
	bpf_probe_read_kernel(to, sizeof(*(to)), __builtin_preserve_access_index(&(from)->member))

// What the sender has left undone is what its headers say: the transport header's own checksum, and
// segments of their kind. As Plain::suits() of crates/wire has it.
static __always_inline bool undone_suits(context *ctx, const struct kernel_key *key, __u32 l4)
{
	const struct sk_buff *skb = (void *)ctx;
	const struct skb_shared_info *shared;
	__u16 start, offset, link;
	unsigned char *head;
	unsigned int end, type;
	__u64 summed = 0;

	if (__CORE_BITFIELD_PROBE_READ(&summed, skb, ip_summed))
		return false;
	summed <<= __CORE_RELO(skb, ip_summed, LSHIFT_U64);
	summed >>= __CORE_RELO(skb, ip_summed, RSHIFT_U64);
	if (summed == CHECKSUM_PARTIAL) {
		if (READ(&start, skb, csum_start) || READ(&offset, skb, csum_offset) ||
		    READ(&link, skb, mac_header))
			return false;
		if (start != link + l4 ||
		    offset != (key->protocol == IPPROTO_TCP ? offsetof(struct tcphdr, check) :
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
	return (type & ~GSO_BESIDE) == (key->family == 4 ? GSO_TCP4 : GSO_TCP6);
}

#endif

// Sends a packet of a connection that was entered to its container, or to another host. Less than
// zero: it goes up.
static __always_inline int forward(context *ctx)
{
	struct kernel_key key = {};
	struct kernel_state *state;
	struct kernel_force *force;
	struct kernel_flow *flow;
	struct cable_end *peer;
	struct segment segment = {};
	__u32 zero = 0, l4, end = 0, header, size, length = ctx->len;
	struct udphdr *udp;
	bool pair = false;
	__u8 tos = 0;
	__u64 now;
	int wrapped;

	force = bpf_map_lookup_elem(&kernel_force, &zero);
	if (!force || !force->generation || ctx->vlan_present)
		return -1;
	// Headers that are not in the buffer's first piece, where every stack has them, go up: having
	// them there would copy what the sender's TCP shares.
	l4 = read_network(ctx, &key, &end, &tos);
	if (!l4 || end > length)
		return -1;
	size = ctx->gso_size;
	if (key.protocol == IPPROTO_TCP) {
		header = read_tcp(ctx, l4, end, &segment);
		if (!header || (size && end - l4 > size * SEGMENTS_MAX))
			return -1;
	} else if (key.protocol == IPPROTO_UDP) {
		udp = at(ctx, l4, sizeof(*udp));
		if (!udp || size)
			return -1;
		header = bpf_ntohs(udp->len);
		if (header < sizeof(*udp) || l4 + header > end)
			return -1;
	} else {
		return -1;
	}
	udp = at(ctx, l4, sizeof(*udp));
	if (!udp)
		return -1;
	key.ports = *(__u32 *)udp;
	key.device = ctx->ifindex;
	flow = bpf_map_lookup_elem(&kernel_flows, &key);
	if (!flow)
		return -1;
	state = bpf_map_lookup_elem(&kernel_states, &flow->state);
	if (!state)
		return -1;
	now = bpf_ktime_get_ns();
	if (*(volatile __u64 *)&state->mark != ((__u64)flow->tag << 32 | force->generation) ||
	    now >= force->until_ns || now >= state->until_ns)
		return -1;
	// It may be over, which the switch knows. Another processor may have been here a moment later.
	if ((__s64)(now - *(volatile __u64 *)&state->last_ns) >= (__s64)KERNEL_IDLE_NS)
		return -1;
	if (!undone_suits(ctx, &key, l4))
		return -1;
	if (length > state->max_frame && (!size || l4 + header + size > state->max_frame))
		return -1;
	if (flow->outer_len) {
		wrapped = wrap(ctx, flow, &key, tos);
		if (wrapped)
			return wrapped < 0 ? -1 : VERDICT_DROP;
	} else {
		// The receiver's device is one of ours yet: nothing goes where a container was.
		peer = bpf_map_lookup_elem(&cable_ends, &flow->to);
		if (!peer || peer->from_tap)
			return -1;
		pair = !peer->machine;
		// For the stack behind: it is for whom it reaches, since its MAC is.
		if (bpf_skb_change_type(ctx, 0 /* PACKET_HOST */))
			return -1;
	}
	if (key.protocol == IPPROTO_TCP) {
		raise_to(&state->end, segment.end);
		raise_to(&state->ack, segment.ack);
		raise_to(&state->edge, segment.ack + (segment.window << (state->scale & 15)));
	}
	state->last_ns = now;
	__sync_fetch_and_add(&state->bytes, length);
	__sync_fetch_and_add(&state->frames, 1);
	return pair ? bpf_redirect_peer(flow->to, 0) : bpf_redirect(flow->to, 0);
}

SEC("tc")
int cable(context *ctx)
{
	__u32 device = context_device(ctx);
	struct cable_end *end = bpf_map_lookup_elem(&cable_ends, &device);
	int verdict;

	if (!end)
		return VERDICT_DROP;
	// Straight into the container's namespace, past a queue. The kernel takes what goes there for
	// the container's own; what is not goes the long way, where its MAC is looked at.
	if (end->from_tap)
		return !end->machine && is_for(ctx, end) ? bpf_redirect_peer(end->to, 0) :
							   bpf_redirect(end->to, 0);
	verdict = forward(ctx);
	return verdict < 0 ? bpf_redirect(end->to, 0) : verdict;
}

char _license[] SEC("license") = "Dual BSD/GPL";
