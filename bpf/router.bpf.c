// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The router's fast path: transit packets of IPv4 and IPv6 from one of our interfaces to another.
//
// It forwards what the kernel would forward and nothing more, and gives everything else to the
// kernel unchanged: whatever needs an answer, a decision or a change beyond one hop less and a new
// Ethernet header. In XDP and at tc ingress it is the same code over the same tables
// (lib/context.h). crates/router fills the tables from what the kernel knows; the theory is at the
// top of its lib.rs. Flows that are known are forwarded by the flow cache (router/flow_cache.h),
// all others by long_way(). Read router() at the bottom first, and then long_way() above it.
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "lib/chain.h"
#include "lib/checksum.h"
#include "lib/packet.h"
#include "router.h"
#include "router/maps.h"
#include "router/address.h"
#include "router/table.h"
#include "router/hop.h"
#include "router/buffer.h"
#include "router/acl.h"
#include "router/flow_cache.h"
#include "router/send.h"

#define AF_INET 2
#define AF_INET6 10

#define ARP_REQUEST 1
#define ARP_REPLY 2
#define ND_FIRST 133  // a router's solicitation
#define ND_SOLICITATION 135
#define ND_ADVERTISEMENT 136
#define ND_LAST 137   // a redirect

// The ARP header's start, with the EtherType in front of it.
struct arp_start {
	__be16 ethertype;
	__be16 hardware;
	__be16 protocol;
	__u8 hardware_length;
	__u8 protocol_length;
	__be16 operation;
};

// What is known of a packet on its way through the steps below.
struct transit {
	struct packet packet;
	const struct interface *in;
	struct counters *counters;
	const struct path *path;
	const struct hop *hop;  // the table's, or `asked`
	struct hop asked;       // the kernel's choice
	__u32 size;             // of the IP packet
	__u32 number;           // the hop's in its table; 0: chosen by more than the flow cache
				// knows
	__u32 epoch;            // as it was before anything else was read
	__u32 flags;            // CONFIG_*
	__u8 v6;
};

// Neighbour discovery (RFC 4861) is counted as what it is, whatever else a packet is the kernel's
// for.
static __noinline __u32 discovery(context *ctx, __u32 l3, __u32 reason)
{
	struct ipv6hdr *ip = at(ctx, l3, sizeof(*ip) + 1);
	__u8 type;

	if (!ip || !may_be_discovery(ip))
		return reason;
	type = *(__u8 *)(ip + 1);
	return type == ND_SOLICITATION ? COUNT_ASKED :
	       type == ND_ADVERTISEMENT ? COUNT_TOLD : reason;
}

// Whether it is neighbour discovery: the kernel answers in the place of hosts behind it
// (proxy_ndp), and what is forwarded has lost the hop limit by which it is believed.
static __noinline bool is_discovery(context *ctx, __u32 l3)
{
	struct ipv6hdr *ip = at(ctx, l3, sizeof(*ip));
	__u8 *type = at(ctx, l3 + sizeof(*ip), 1);

	if (!ip || !may_be_discovery(ip))
		return false;
	// One that is not in view may be any.
	return !type || (*type >= ND_FIRST && *type <= ND_LAST);
}

// Whether the program has counted the packet in XDP already: all but those that only tc can send
// on.
static __always_inline bool counted_in_xdp(const struct transit *t)
{
#ifdef BUTTERFLY_TC
	return t->in && t->in->flags & INTERFACE_XDP && !(t->hop && !t->hop->mtu);
#else
	return false;
#endif
}

// Why a packet is the kernel's: counted, and handed on. The access list judges it where the program
// runs in XDP and at tc in both places: since XDP saw the packet, the way may have become another,
// and one that XDP has left to tc unjudged for that is judged here.
static __always_inline int leave(context *ctx, struct transit *t, __u32 reason)
{
	bool counted = counted_in_xdp(t);
	int drops = ACL_LEAVES;

	if (t->flags & CONFIG_ACL_ALL && t->in && t->packet.family && ACL_LEFT & 1u << reason)
		drops = acl_drops_left(ctx, t->packet.l3, t->in->ifindex,
				       counted ? t->flags | ACL_AGAIN : t->flags);
	if (drops) {
		count(t->counters, t->v6, drops == ACL_DROPS ? COUNT_DENIED : reason, 1);
		return VERDICT_DROP;
	}
	if (!counted)
		count(t->counters, t->v6,
		      t->v6 ? discovery(ctx, t->packet.l3, reason) : reason, 1);
	return chain_next(ctx);
}

#define VLAN_MASK 0xfff

// A tag's VLAN. Zero is a priority tag, which is no VLAN (802.1Q, 9.6).
static __always_inline __u16 vlan_of(const struct vlan_tag *tag)
{
	return bpf_ntohs(tag->tci) & VLAN_MASK;
}

// Puts a frame's next tag into the key of its interface, which has room for it. Zero, or not: a
// priority tag, which the kernel takes off and looks no further at.
static __always_inline int key_tag(struct interface_key *key, __be16 protocol, __u16 vlan)
{
	if (!vlan)
		return 1;
	if (key->vlan) {
		key->inner_vlan = vlan;
		key->inner_protocol = protocol;
	} else {
		key->vlan = vlan;
		key->protocol = protocol;
	}
	return 0;
}

// The tags of a frame as the key of its interface has them. How many were left out.
static __always_inline int read_tags(context *ctx, const struct packet *packet,
				     struct interface_key *key)
{
	struct ethhdr *link = at(ctx, 0, sizeof(*link) + PACKET_MAX_TAGS * sizeof(struct vlan_tag));
	struct vlan_tag *tag = (void *)(link + 1);
	int left;

	if (!link)
		return -1;
#ifdef BUTTERFLY_TC
	if (ctx->vlan_present) {
		left = key_tag(key, ctx->vlan_proto, ctx->vlan_tci & VLAN_MASK);
		return packet->tags < 2 ? left : left + key_tag(key, link->h_proto, vlan_of(tag));
	}
#endif
	left = key_tag(key, link->h_proto, vlan_of(tag));
	return packet->tags < 2 ? left : left + key_tag(key, tag->next, vlan_of(tag + 1));
}

static __always_inline bool same_key(const struct interface_key *a, const struct interface_key *b)
{
	return a->ifindex == b->ifindex && a->vlan == b->vlan && a->protocol == b->protocol &&
	       a->inner_vlan == b->inner_vlan && a->inner_protocol == b->inner_protocol;
}

// The interface by device and tags. Less than zero: not one of ours; more: it is, and what is to be
// forwarded has priority tags as well.
static __always_inline int find_interface(context *ctx, struct transit *t)
{
	struct interface_key key = {.ifindex = context_device(ctx)};
	const struct near *close;
	__u32 place;
	int left = t->packet.tags ? read_tags(ctx, &t->packet, &key) : 0;

	if (left < 0)
		return -1;
	place = near_place(&key);
	close = bpf_map_lookup_elem(&near, &place);
	t->in = close && same_key(&close->key, &key) ? &close->interface :
		bpf_map_lookup_elem(&interfaces, &key);
	if (!t->in)
		return -1;
	t->counters = bpf_map_lookup_elem(&counters, &t->in->slot);
	return left;
}

// Neither IPv4 nor IPv6: the kernel's. ARP is counted (RFC 826). What may be in more tags than are
// read here the access list lets nobody send.
static __always_inline int leave_other(context *ctx, struct transit *t)
{
	struct arp_start *arp = at(ctx, t->packet.l3 - sizeof(__be16), sizeof(*arp));
	__u16 operation;

	if (t->flags & CONFIG_ACL_ALL && arp && is_tag(arp->ethertype)) {
		if (find_interface(ctx, t) >= 0)
			count(t->counters, 0, COUNT_DENIED, 1);
		return VERDICT_DROP;
	}
	if (!arp || arp->ethertype != bpf_htons(ETH_P_ARP) || find_interface(ctx, t) < 0)
		return chain_next(ctx);
	operation = bpf_ntohs(arp->operation);
	return leave(ctx, t,
		     operation == ARP_REQUEST ? COUNT_ASKED :
		     operation == ARP_REPLY ? COUNT_TOLD : COUNT_MALFORMED);
}

// What the kernel's ip_rcv() and ip_route_input_slow() look at before they look up a route. Zero,
// or why not.
static __always_inline int check4(context *ctx, struct transit *t, struct iphdr *ip)
{
	if (ip->version != 4 || ip->ihl < 5)
		return COUNT_MALFORMED;
	if (ip->ihl > 5)
		return COUNT_OPTIONS;
	// Segments of TCP that are more than 64 KiB together (BIG TCP), or nothing: only the kernel
	// knows.
	if (!ip->tot_len)
		return COUNT_BEYOND;
	t->size = bpf_ntohs(ip->tot_len);
	if (t->size < sizeof(*ip) || !frame_holds(ctx, t->packet.l3, t->size))
		return COUNT_MALFORMED;
	if (!checksum_holds(checksum_ipv4(ip)))
		return COUNT_CHECKSUM;
	if (ip->ttl <= 1)
		return COUNT_HOP_LIMIT;
	if (is_special4(ip->saddr))
		return COUNT_SOURCE;
	return is_special4(ip->daddr) ? COUNT_DESTINATION : 0;
}

// Reverse path filtering (RFC 3704) in the kernel's two modes, and a source is never an address of
// our own.
static __always_inline int check_source4(struct transit *t, __u32 number, bool by_kernel)
{
	const struct path *back = path_of(number);

	if (!back || (back->kind == PATH_PASS && back->reason == COUNT_LOCAL))
		return COUNT_SOURCE;
	// Where the kernel looks up, it is asked for the way back as well.
	if (t->in->rp_filter == RP_OFF || by_kernel)
		return 0;
	// That there is no route back at all is for the filters alone to refuse.
	if (t->in->rp_filter == RP_ROUTES && back->kind == PATH_PASS &&
	    back->reason == COUNT_NO_ROUTE)
		return 0;
	if (!back->unicast)
		return COUNT_SOURCE;
	// Strict: several routes back, or one by another interface, are for the kernel to judge.
	return t->in->rp_filter == RP_STRICT && back->ifindex != t->in->ifindex ? COUNT_SOURCE : 0;
}

// What ipv6_rcv() and ip6_forward() look at. Only a hop-by-hop header concerns routers (RFC 8200,
// section 4.3).
static __always_inline int check6(context *ctx, struct transit *t, struct ipv6hdr *ip)
{
	if (ip->version != 6)
		return COUNT_MALFORMED;
	t->size = sizeof(*ip) + bpf_ntohs(ip->payload_len);
	if (!frame_holds(ctx, t->packet.l3, t->size))
		return COUNT_MALFORMED;
	if (ip->nexthdr == IPPROTO_HOPOPTS)
		return COUNT_OPTIONS;
	// As with IPv4.
	if (!ip->payload_len)
		return COUNT_BEYOND;
	if (ip->hop_limit <= 1)
		return COUNT_HOP_LIMIT;
	if (is_special6(&ip->saddr))
		return COUNT_SOURCE;
	return is_special6(&ip->daddr) ? COUNT_DESTINATION : 0;
}

// The flow's hash, where there is something to choose.
static __always_inline __u32 flow4(context *ctx, struct transit *t, struct iphdr *ip,
				   const struct router_config *config)
{
	if (t->path->count < 2)
		return 0;
	return config->flags & CONFIG_PORTS4 ? hash4_ports(ctx, &t->packet, ip, config->seed) :
	       hash4(ip, config->seed);
}

static __always_inline __u32 flow6(context *ctx, struct transit *t, struct ipv6hdr *ip,
				   const struct router_config *config)
{
	if (t->path->count < 2)
		return 0;
	return config->flags & CONFIG_PORTS6 ? hash6_ports(ctx, &t->packet, ip, config->seed) :
	       hash6(ip, config->seed);
}

// One of a path's next hops. Zero, or why the packet is the kernel's.
static __always_inline int choose(struct transit *t, __u32 hash)
{
	if (t->path->kind == PATH_DROP)
		return COUNT_BLACKHOLE;
	if (t->path->kind != PATH_FORWARD)
		return t->path->reason;
	t->number = t->path->count < 2 ? t->path->member[0].hop : member_of(t->path, hash);
	t->hop = hop_of(t->number);
	return t->hop ? 0 : COUNT_NEIGHBOUR;
}

// Chooses a next hop by what the kernel's multipath hashes. Where that is more than the addresses
// that the flow cache knows a flow by, the choice is not cached.
static __always_inline int choose4(context *ctx, struct transit *t, struct iphdr *ip,
				   const struct router_config *config)
{
	int refused = choose(t, flow4(ctx, t, ip, config));

	if (t->path->count > 1 && config->flags & CONFIG_PORTS4)
		t->number = 0;
	return refused;
}

static __always_inline int choose6(context *ctx, struct transit *t, struct ipv6hdr *ip,
				   const struct router_config *config)
{
	int refused = choose(t, flow6(ctx, t, ip, config));

	if (t->path->count > 1)
		t->number = 0;
	return refused;
}

// The way to the destination: a path of the table, or with the kernel's own lookup a hop. Zero, or
// why not.
static __always_inline int route4(context *ctx, struct transit *t,
				  const struct router_config *config)
{
	struct iphdr *ip = at(ctx, t->packet.l3, sizeof(*ip));
	struct bpf_fib_lookup fib;
	__u32 source, destination, to, back;
	int refused;

	if (!ip)
		return COUNT_MALFORMED;
	// Both reads may miss the caches: together, and while the packet is looked at.
	source = bpf_ntohl(ip->saddr);
	destination = bpf_ntohl(ip->daddr);
	to = root4(destination);
	back = root4(source);
	to = find4(to, destination);
	back = find4(back, source);
	refused = check4(ctx, t, ip);
	if (refused)
		return refused;
	refused = check_source4(t, back, config->flags & CONFIG_ASK4);
	if (refused)
		return refused;
	t->path = path_of(to);
	if (!t->path)
		return COUNT_NO_ROUTE;
	if (!(config->flags & CONFIG_ASK4) && t->path->kind != PATH_ASK)
		return choose4(ctx, t, ip, config);
	if ((config->flags & CONFIG_ASK4) && t->in->rp_filter &&
	    ask_back4(ctx, &t->packet, t->in, ip) < 0)
		return COUNT_SOURCE;
	__builtin_memset(&fib, 0, sizeof(fib));
	fib.family = AF_INET;
	fib.l4_protocol = ip->protocol;
	fib.tos = ip->tos;
	fib.ipv4_src = ip->saddr;
	fib.ipv4_dst = ip->daddr;
	t->hop = &t->asked;
	return ask(ctx, &t->packet, t->in, t->size, &fib, &t->asked, config->ask_mtu4);
}

static __always_inline int route6(context *ctx, struct transit *t,
				  const struct router_config *config)
{
	struct ipv6hdr *ip = at(ctx, t->packet.l3, sizeof(*ip));
	struct bpf_fib_lookup fib;
	__u32 number;
	int refused;

	if (!ip)
		return COUNT_MALFORMED;
	// First, as with IPv4.
	number = find6(bpf_be64_to_cpu(*(const __be64 *)&ip->daddr));
	refused = check6(ctx, t, ip);
	if (refused)
		return refused;
	t->path = table6(number, &ip->daddr);
	if (!t->path)
		return COUNT_NO_ROUTE;
	if (!(config->flags & CONFIG_ASK6) && t->path->kind != PATH_ASK)
		return choose6(ctx, t, ip, config);
	// The kernel's rules ask by the protocol behind them.
	if (config->flags & CONFIG_ASK6 && is_extension(ip->nexthdr))
		return COUNT_BEYOND;
	__builtin_memset(&fib, 0, sizeof(fib));
	fib.family = AF_INET6;
	fib.l4_protocol = ip->nexthdr;
	fib.flowinfo = *(__be32 *)ip & bpf_htonl(0x0fffffff);
	__builtin_memcpy(fib.ipv6_src, &ip->saddr, sizeof(ip->saddr));
	__builtin_memcpy(fib.ipv6_dst, &ip->daddr, sizeof(ip->daddr));
	t->hop = &t->asked;
	return ask(ctx, &t->packet, t->in, t->size, &fib, &t->asked, config->ask_mtu6);
}

// Tags that a packet to this neighbour has.
static __always_inline __u32 tags_of(const struct hop *hop)
{
	return hop->inner_protocol ? 2 : hop->protocol ? 1 : 0;
}

#ifdef BUTTERFLY_TC

// Takes the packet's tags off and puts the neighbour's on, the inner one first. Less than zero: not
// all of it could be done.
static __always_inline int fit_tags(context *ctx, struct transit *t)
{
	const struct hop *hop = t->hop;

	if (t->packet.tags > 0 && bpf_skb_vlan_pop(ctx) < 0)
		return -1;
	if (t->packet.tags > 1 && bpf_skb_vlan_pop(ctx) < 0)
		return -1;
	if (hop->inner_protocol &&
	    bpf_skb_vlan_push(ctx, hop->inner_protocol, bpf_ntohs(hop->inner_vlan)) < 0)
		return -1;
	return hop->protocol ? bpf_skb_vlan_push(ctx, hop->protocol, bpf_ntohs(hop->vlan)) : 0;
}

#endif

// Cuts what follows the packet, and in XDP makes room for tags or removes them. Less than zero:
// there was no room, and nothing has changed that the kernel would mind.
static __always_inline int fit(context *ctx, struct transit *t)
{
	int surplus = frame_surplus(ctx, t->packet.l3 + t->size);

	// The kernel does not send on the padding of a short frame.
	if (surplus > 0 && frame_cut_end(ctx, surplus) < 0)
		return -1;
#ifdef BUTTERFLY_TC
	return 0;
#else
	int shift = ((int)t->packet.tags - (int)tags_of(t->hop)) * (int)sizeof(struct vlan_tag);

	return shift ? bpf_xdp_adjust_head(ctx, shift) : 0;
#endif
}

#ifndef BUTTERFLY_TC

// The EtherType of what is behind the addresses, and a neighbour's tags in front of it.
static __always_inline void rewrite_tags(struct ethhdr *link, const struct hop *hop, __be16 network)
{
	struct vlan_tag *tag = (void *)(link + 1);

	link->h_proto = hop->protocol ? hop->protocol : network;
	if (!hop->protocol)
		return;
	tag->tci = hop->vlan;
	tag->next = hop->inner_protocol ? hop->inner_protocol : network;
	if (!hop->inner_protocol)
		return;
	tag++;
	tag->tci = hop->inner_vlan;
	tag->next = network;
}

#endif

// Writes the new Ethernet header and takes one hop off.
static __always_inline int rewrite(context *ctx, struct transit *t)
{
	const struct hop *hop = t->hop;
	__u32 tags = tags_of(hop), l3 = sizeof(struct ethhdr) + tags * sizeof(struct vlan_tag);
	struct ethhdr *link = at(ctx, 0, sizeof(*link) + PACKET_MAX_TAGS * sizeof(struct vlan_tag));

	if (!link)
		return -1;
	rewrite_addresses(link, hop);
#ifdef BUTTERFLY_TC
	// The tags are as they are to be, the outer one beside the frame.
	if (tags)
		l3 -= sizeof(struct vlan_tag);
#else
	if (t->packet.tags || tags)
		rewrite_tags(link, hop, t->v6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP));
#endif
	if (t->v6) {
		struct ipv6hdr *ip = at(ctx, l3, sizeof(*ip));

		if (ip)
			ipv6_decrement_hop_limit(ctx, ip);
	} else {
		struct iphdr *ip = at(ctx, l3, sizeof(*ip));

		if (ip) {
			ipv4_decrement_ttl(ip);
			set_priority(ctx, ip->tos);
		}
	}
	return 0;
}

// Puts the flow into the flow cache, if there are no tags on either side and the hop was chosen by
// the addresses that the flow cache knows flows by.
static __always_inline void remember(context *ctx, struct transit *t)
{
	__u64 decided = cache_decided(t->in, t->epoch) | t->number;

	if (!t->epoch || !t->number || t->number > CACHE_HOP_MASK || t->packet.tags ||
	    tags_of(t->hop))
		return;
	if (t->v6) {
		struct ipv6hdr *ip = at(ctx, sizeof(struct ethhdr), sizeof(*ip));

		if (ip)
			cache_remember6(ip, decided);
	} else {
		struct iphdr *ip = at(ctx, sizeof(struct ethhdr), sizeof(*ip));

		if (ip)
			cache_remember4(ip, decided);
	}
}

// Whether a packet is for the program's other part: in XDP what only tc can send, and at tc what
// XDP could have sent.
static __always_inline bool is_for_other_part(const struct transit *t)
{
#ifdef BUTTERFLY_TC
	return t->in->flags & INTERFACE_XDP && t->hop->mtu;
#else
	return !t->hop->mtu;
#endif
}

// What is for the other part is judged there, or, unless the way has changed since, was.
static __always_inline int leave_to_other_part(context *ctx, struct transit *t)
{
#ifdef BUTTERFLY_TC
	return leave(ctx, t, COUNT_BEYOND);
#else
	return chain_next(ctx);
#endif
}

// Whether a packet that is too long is of segments that each fit; only at tc.
static __always_inline bool is_segments(context *ctx, struct transit *t)
{
#ifdef BUTTERFLY_TC
	__u32 l3 = t->packet.l3;

	// Without options in between, as most are; else the kernel says.
	if (!t->v6) {
		struct iphdr *ip = at(ctx, l3, sizeof(*ip));

		return ip && segments_fit(ctx, l3, l3 + sizeof(*ip), ip->protocol, t->hop);
	} else {
		struct ipv6hdr *ip = at(ctx, l3, sizeof(*ip));

		return ip && segments_fit(ctx, l3, l3 + sizeof(*ip), ip->nexthdr, t->hop);
	}
#else
	return false;
#endif
}

// Rewrites and redirects. What cannot be sent for want of room is the kernel's.
static __always_inline int send(context *ctx, struct transit *t)
{
	if (fit(ctx, t) < 0)
		return leave(ctx, t, COUNT_BEYOND);
#ifdef BUTTERFLY_TC
	// Out of memory, and the packet is no longer what it was.
	if ((t->packet.tags || tags_of(t->hop)) && fit_tags(ctx, t) < 0) {
		count(t->counters, t->v6, COUNT_UNSENT, 1);
		return VERDICT_ABORT;
	}
#endif
	if (rewrite(ctx, t) < 0)
		return leave(ctx, t, COUNT_BEYOND);
	remember(ctx, t);
	return hand_over(t->hop, t->counters, t->v6, t->size);
}

// Whether nobody fills the maps any more.
static __always_inline bool is_hung(const struct router_config *config)
{
	return *(const volatile __u32 *)&config->hung;
}

// All headers that a lookup needs, of IPv6 and Ethernet, are in one piece then; a packet of several
// segments has its TCP header there too.
#define ROUTER_HEADERS 54

// The access list looks at ports, too, behind extension headers if there are any.
#define ACL_HEADERS 62
#define ACL_ALL_HEADERS 256

static __always_inline void pull(context *ctx, __u32 flags)
{
#ifdef BUTTERFLY_TC
	struct packet packet = {};
	struct ipv6hdr *ip;

	frame_pull(ctx, flags & (CONFIG_ACL4 | CONFIG_ACL6) ? ACL_HEADERS : ROUTER_HEADERS);
	if (!(flags & CONFIG_ACL6) || packet_link(ctx, &packet) < 0 || packet.family != 6)
		return;
	ip = at(ctx, packet.l3, sizeof(*ip));
	if (ip && ip->nexthdr != IPPROTO_TCP && ip->nexthdr != IPPROTO_UDP)
		frame_pull(ctx, ACL_ALL_HEADERS);
#endif
}

// Of IPv4 it looks behind options, which the flow cache does not.
static __always_inline void pull_options(context *ctx, __u32 flags)
{
#ifdef BUTTERFLY_TC
	struct packet packet = {};
	struct iphdr *ip;

	if (!(flags & CONFIG_ACL4) || packet_link(ctx, &packet) < 0 || packet.family != 4)
		return;
	ip = at(ctx, packet.l3, sizeof(*ip));
	if (ip && ip->ihl > 5)
		frame_pull(ctx, ACL_ALL_HEADERS);
#endif
}

// Whether a frame to another address is for an interface all the same: for a VLAN, the kernel takes
// what is to its device's address, too.
static __always_inline bool is_to_device(const struct ethhdr *link, const struct interface *in)
{
	return in->flags & INTERFACE_OTHER_MAC && !(link->h_dest[0] & 1);
}

// A packet that the flow cache does not take.
static __always_inline int long_way(context *ctx, const struct router_config *config, __u32 epoch)
{
	struct transit t = {.epoch = epoch, .flags = config->flags};
	int refused, priority_tags;
	struct ethhdr *link;

	// 1. Ethernet and tags: IPv4 or IPv6, and one of our interfaces.
	pull_options(ctx, config->flags);
	if (packet_link(ctx, &t.packet) < 0)
		return leave_other(ctx, &t);
	priority_tags = find_interface(ctx, &t);
	if (priority_tags < 0)
		return chain_next(ctx);
	link = at(ctx, 0, sizeof(*link));
	if (!link)
		return chain_next(ctx);
	t.v6 = t.packet.family == 6;

	// 2. To be forwarded at all: sent to our MAC address, with forwarding on, no firewall
	//    looking on, and routes that are followed.
	if (!same_mac(link->h_dest, t.in->mac))
		return leave(ctx, &t, is_to_device(link, t.in) ? COUNT_BEYOND : COUNT_NOT_TO_US);
	if (!(t.in->flags & (t.v6 ? INTERFACE_FORWARD6 : INTERFACE_FORWARD4)))
		return leave(ctx, &t, COUNT_OFF);
	if (config->flags & (t.v6 ? CONFIG_OFF6 : CONFIG_OFF4))
		return leave(ctx, &t, COUNT_FIREWALL);
	if (is_hung(config))
		return leave(ctx, &t, COUNT_HUNG);
	if (priority_tags)
		return leave(ctx, &t, COUNT_BEYOND);

	// 3. Headers, source, way to the destination, one of its next hops.
	refused = t.v6 ? route6(ctx, &t, config) : route4(ctx, &t, config);
	if (refused == COUNT_BLACKHOLE) {
		count(t.counters, t.v6, COUNT_BLACKHOLE, 1);
		return VERDICT_DROP;
	}
	if (refused || !t.hop)
		return leave(ctx, &t, refused);

	// 4. Nothing that wants an ICMP message: redirect, neighbour discovery, packet too big.
	if (t.hop->ifindex == t.in->ifindex)
		return leave(ctx, &t, COUNT_SAME_INTERFACE);
	if (is_for_other_part(&t))
		return leave_to_other_part(ctx, &t);
	if (t.v6 && is_discovery(ctx, t.packet.l3))
		return leave(ctx, &t, COUNT_BEYOND);
	if (t.size > hop_mtu(t.hop) && !is_segments(ctx, &t))
		return leave(ctx, &t, COUNT_TOO_BIG);
#ifndef BUTTERFLY_TC
	// Nor what the kernel has yet to finish.
	if (t.in->flags & INTERFACE_BEGUN && is_begun(ctx, t.packet.l3, t.packet.family))
		return leave(ctx, &t, COUNT_BEGUN);
#endif

	// 5. Nothing that the access list denies.
	if (acl_is_on(t.flags, t.v6)) {
		int judged = acl_check(ctx, t.packet.l3, t.in->ifindex, t.hop->ifindex, t.flags);

		if (judged == ACL_UNREAD)
			return leave(ctx, &t, COUNT_FIREWALL);
		if (judged != ACL_ALLOW) {
			count(t.counters, t.v6, COUNT_DENIED, 1);
			return VERDICT_DROP;
		}
	}

	// 6. Off it goes.
	return send(ctx, &t);
}

PROGRAM
int router(context *ctx)
{
	struct router_config *config;
	__u32 zero = 0, epoch;
	int verdict;

	config = bpf_map_lookup_elem(&config_map, &zero);
	if (!config)
		return chain_next(ctx);
	// What is remembered holds for no epoch then.
	epoch = is_hung(config) ? 0 : *(const volatile __u32 *)&config->epoch;
	pull(ctx, config->flags);
	verdict = cache_forward(ctx, epoch, config->flags);
	return verdict < 0 ? long_way(ctx, config, epoch) : verdict;
}

char _license[] SEC("license") = "Dual BSD/GPL";
