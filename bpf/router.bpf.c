// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The router's fast path: transit packets of IPv4 and IPv6 from one of our interfaces to another.
//
// It forwards what the kernel would forward and nothing more, and gives everything else to the kernel unchanged: whatever
// needs an answer, a decision or a change beyond one hop less and a new Ethernet header. The tables are kept by
// crates/router from what the kernel knows; the theory is at the top of its lib.rs. Read router() at the bottom first.
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "lib/chain.h"
#include "lib/checksum.h"
#include "lib/packet.h"
#include "router.h"
#include "router/maps.h"
#include "router/table.h"
#include "router/hop.h"

#define AF_INET 2
#define AF_INET6 10

// What is known of a packet on its way through the steps below.
struct transit {
	struct packet packet;
	struct interface *in;
	struct counters *counters;
	struct path *path;
	struct hop hop;       // the table's or the kernel's choice, a copy
	__u32 size;           // of the IP packet
	__u8 v6;
};

static __always_inline void count(struct counters *counters, __u8 v6, __u32 counter, __u64 more)
{
	__u32 index = counter + (v6 ? ROUTER_COUNTERS : 0);

	if (counters && index < 2 * ROUTER_COUNTERS)
		counters->value[index] += more;
}

// Why a packet is the kernel's: counted, and handed on.
static __always_inline int leave(struct xdp_md *ctx, struct transit *t, __u32 reason)
{
	count(t->counters, t->v6, reason, 1);
	return chain_next(ctx);
}

// The interface by device and tag. Less than zero: not one of ours.
static __always_inline int find_interface(struct xdp_md *ctx, struct transit *t)
{
	struct interface_key key = {.ifindex = ctx->ingress_ifindex};
	struct ethhdr *link = at(ctx, 0, sizeof(*link) + sizeof(struct vlan_tag));

	if (!link || t->packet.tags > 1)
		return -1;
	if (t->packet.tags) {
		struct vlan_tag *tag = (void *)(link + 1);

		key.vlan = bpf_ntohs(tag->tci) & 0xfff;
		// A priority tag is no VLAN (802.1Q, 9.6): the kernel knows what to do.
		if (!key.vlan)
			return -1;
		key.protocol = link->h_proto;
	}
	t->in = bpf_map_lookup_elem(&interfaces, &key);
	if (!t->in)
		return -1;
	t->counters = bpf_map_lookup_elem(&counters, &t->in->slot);
	return 0;
}

static __always_inline bool same_mac(const __u8 *a, const __u8 *b)
{
	return *(__u32 *)a == *(__u32 *)b && *(__u16 *)(a + 4) == *(__u16 *)(b + 4);
}

// What the kernel's ip_rcv() and ip_route_input_slow() look at before they look up a route. Zero, or why not.
static __always_inline int check4(struct xdp_md *ctx, struct transit *t, struct iphdr *ip)
{
	__u32 source = bpf_ntohl(ip->saddr), destination = bpf_ntohl(ip->daddr);

	if (ip->version != 4 || ip->ihl < 5)
		return COUNT_MALFORMED;
	if (ip->ihl > 5)
		return COUNT_OPTIONS;
	t->size = bpf_ntohs(ip->tot_len);
	if (t->size < sizeof(*ip) || !frame_holds(ctx, t->packet.l3, t->size))
		return COUNT_MALFORMED;
	if (checksum_fold(checksum_ipv4(ip)) != 0xffff)
		return COUNT_CHECKSUM;
	if (ip->ttl <= 1)
		return COUNT_HOP_LIMIT;
	// RFC 1812, section 5.3.7: this network, loopback, multicast, broadcast.
	if (source >> 24 == 0 || source >> 24 == 127 || source >> 28 == 14 || source == ~0u)
		return COUNT_SOURCE;
	if (destination >> 24 == 0 || destination >> 24 == 127 || destination >> 28 == 14 || destination == ~0u)
		return COUNT_DESTINATION;
	return 0;
}

// RFC 3704 with the kernel's two ways, and never an address of our own.
static __always_inline int check_source4(struct transit *t, struct iphdr *ip, bool by_kernel)
{
	struct path *back = table4(bpf_ntohl(ip->saddr));

	if (!back || (back->kind == PATH_PASS && back->reason == COUNT_LOCAL))
		return COUNT_SOURCE;
	// Where the kernel looks up, it is asked for the way back as well.
	if (t->in->rp_filter == RP_OFF || by_kernel)
		return 0;
	// No way back at all is what only the filters mind.
	if (t->in->rp_filter == RP_ROUTES && back->kind == PATH_PASS && back->reason == COUNT_NO_ROUTE)
		return 0;
	if (!back->unicast)
		return COUNT_SOURCE;
	// Strict: several ways back, or another one, are for the kernel to judge.
	return t->in->rp_filter == RP_STRICT && back->ifindex != t->in->ifindex ? COUNT_SOURCE : 0;
}

// What ipv6_rcv() and ip6_forward() look at. Only a hop-by-hop header concerns routers (RFC 8200, section 4.3).
static __always_inline int check6(struct xdp_md *ctx, struct transit *t, struct ipv6hdr *ip)
{
	__u32 first = bpf_ntohl(ip->saddr.s6_addr32[0]), to = bpf_ntohl(ip->daddr.s6_addr32[0]);

	if (ip->version != 6)
		return COUNT_MALFORMED;
	t->size = sizeof(*ip) + bpf_ntohs(ip->payload_len);
	if (!frame_holds(ctx, t->packet.l3, t->size))
		return COUNT_MALFORMED;
	if (ip->nexthdr == IPPROTO_HOPOPTS)
		return COUNT_OPTIONS;
	if (ip->hop_limit <= 1)
		return COUNT_HOP_LIMIT;
	// Multicast, link-local, and all that begins with 32 zero bits: unspecified, loopback, addresses of IPv4.
	if (first >> 24 == 0xff || first >> 22 == 0xfe80 >> 6 || first == 0)
		return COUNT_SOURCE;
	if (to >> 24 == 0xff || to >> 22 == 0xfe80 >> 6 || to == 0)
		return COUNT_DESTINATION;
	return 0;
}

// The flow's hash, where there is something to choose.
static __always_inline __u32 flow4(struct xdp_md *ctx, struct transit *t, struct iphdr *ip, struct router_config *config)
{
	if (t->path->count < 2)
		return 0;
	return config->flags & CONFIG_PORTS4 ? hash4_ports(ctx, &t->packet, ip, config->seed) : hash4(ip, config->seed);
}

static __always_inline __u32 flow6(struct xdp_md *ctx, struct transit *t, struct ipv6hdr *ip, struct router_config *config)
{
	if (t->path->count < 2)
		return 0;
	return config->flags & CONFIG_PORTS6 ? hash6_ports(ctx, &t->packet, ip, config->seed) : hash6(ip, config->seed);
}

// The way to the destination: a path of the table, or with the kernel's own lookup a hop. Zero, or why not.
static __always_inline int route4(struct xdp_md *ctx, struct transit *t, struct router_config *config)
{
	struct iphdr *ip = at(ctx, t->packet.l3, sizeof(*ip));
	struct bpf_fib_lookup fib = {};
	int refused;

	if (!ip)
		return COUNT_MALFORMED;
	refused = check4(ctx, t, ip);
	if (refused)
		return refused;
	refused = check_source4(t, ip, config->flags & CONFIG_ASK4);
	if (refused)
		return refused;
	t->path = table4(bpf_ntohl(ip->daddr));
	if (!t->path)
		return COUNT_NO_ROUTE;
	if (!(config->flags & CONFIG_ASK4) && t->path->kind != PATH_ASK)
		return choose(t->path, flow4(ctx, t, ip, config), &t->hop);
	if ((config->flags & CONFIG_ASK4) && t->in->rp_filter && ask_back4(ctx, t->in, ip) < 0)
		return COUNT_SOURCE;
	fib.family = AF_INET;
	fib.l4_protocol = ip->protocol;
	fib.tos = ip->tos;
	fib.ipv4_src = ip->saddr;
	fib.ipv4_dst = ip->daddr;
	return ask(ctx, &t->packet, t->in, t->size, &fib, &t->hop, config->ask_mtu4);
}

static __always_inline int route6(struct xdp_md *ctx, struct transit *t, struct router_config *config)
{
	struct ipv6hdr *ip = at(ctx, t->packet.l3, sizeof(*ip));
	struct bpf_fib_lookup fib = {};
	int refused;

	if (!ip)
		return COUNT_MALFORMED;
	refused = check6(ctx, t, ip);
	if (refused)
		return refused;
	t->path = table6(&ip->daddr);
	if (!t->path)
		return COUNT_NO_ROUTE;
	if (!(config->flags & CONFIG_ASK6) && t->path->kind != PATH_ASK)
		return choose(t->path, flow6(ctx, t, ip, config), &t->hop);
	fib.family = AF_INET6;
	fib.l4_protocol = ip->nexthdr;
	fib.flowinfo = *(__be32 *)ip & bpf_htonl(0x0fffffff);
	__builtin_memcpy(fib.ipv6_src, &ip->saddr, sizeof(ip->saddr));
	__builtin_memcpy(fib.ipv6_dst, &ip->daddr, sizeof(ip->daddr));
	return ask(ctx, &t->packet, t->in, t->size, &fib, &t->hop, config->ask_mtu6);
}

// Cuts what follows the packet, makes room for or removes the tag, writes the new Ethernet header and takes one hop off.
// Less than zero: there was no room, and nothing has changed that the kernel would mind.
static __always_inline int rewrite(struct xdp_md *ctx, struct transit *t)
{
	struct hop *hop = &t->hop;
	__u32 tags = hop->protocol ? 1 : 0;
	int surplus = frame_length(ctx) - t->packet.l3 - t->size;
	int shift = (int)(t->packet.tags - tags) * (int)sizeof(struct vlan_tag);
	__u32 l3 = sizeof(struct ethhdr) + (tags ? sizeof(struct vlan_tag) : 0);
	struct ethhdr *link;

	// The kernel does not send on what filled up a short frame.
	if (surplus > 0 && bpf_xdp_adjust_tail(ctx, -surplus) < 0)
		return -1;
	if (shift && bpf_xdp_adjust_head(ctx, shift) < 0)
		return -1;
	link = at(ctx, 0, sizeof(*link) + sizeof(struct vlan_tag));
	if (!link)
		return -1;
	__builtin_memcpy(link->h_dest, hop->destination, ETH_ALEN);
	__builtin_memcpy(link->h_source, hop->source, ETH_ALEN);
	link->h_proto = t->v6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
	if (tags) {
		struct vlan_tag *tag = (void *)(link + 1);

		tag->next = link->h_proto;
		tag->tci = hop->vlan;
		link->h_proto = hop->protocol;
	}
	if (t->v6) {
		struct ipv6hdr *ip = at(ctx, l3, sizeof(*ip));

		if (ip)
			ip->hop_limit--;
	} else {
		struct iphdr *ip = at(ctx, l3, sizeof(*ip));

		if (ip)
			ipv4_decrement_ttl(ip);
	}
	return 0;
}

// Rewrites and redirects. What cannot be sent for want of room is the kernel's.
static __always_inline int send(struct xdp_md *ctx, struct transit *t)
{
	struct counters *out = bpf_map_lookup_elem(&counters, &t->hop.slot);
	int verdict;

	if (rewrite(ctx, t) < 0)
		return leave(ctx, t, COUNT_BEYOND);
	verdict = bpf_redirect_map(&ports, t->hop.port, XDP_ABORTED);
	if (verdict != XDP_REDIRECT)
		return verdict;
	count(t->counters, t->v6, COUNT_FORWARDED, 1);
	count(t->counters, t->v6, COUNT_FORWARDED_BYTES, t->size);
	count(out, t->v6, COUNT_SENT, 1);
	return verdict;
}

SEC("xdp.frags")
int router(struct xdp_md *ctx)
{
	struct transit t = {};
	struct router_config *config;
	struct ethhdr *link;
	__u32 zero = 0;
	int refused;

	// 1. Ethernet and tags: IPv4 or IPv6, and one of our interfaces.
	if (packet_link(ctx, &t.packet) < 0 || find_interface(ctx, &t) < 0)
		return chain_next(ctx);
	config = bpf_map_lookup_elem(&config_map, &zero);
	link = at(ctx, 0, sizeof(*link));
	if (!config || !link)
		return chain_next(ctx);
	t.v6 = t.packet.family == 6;

	// 2. To be forwarded at all: sent to our MAC address, with forwarding on, and no firewall looking on.
	if (!same_mac(link->h_dest, t.in->mac))
		return leave(ctx, &t, COUNT_NOT_TO_US);
	if (!(t.in->flags & (t.v6 ? INTERFACE_FORWARD6 : INTERFACE_FORWARD4)))
		return leave(ctx, &t, COUNT_OFF);
	if (config->flags & (t.v6 ? CONFIG_OFF6 : CONFIG_OFF4))
		return leave(ctx, &t, COUNT_FIREWALL);

	// 3. Headers, source, way to the destination, one of its next hops.
	refused = t.v6 ? route6(ctx, &t, config) : route4(ctx, &t, config);
	if (refused == COUNT_BLACKHOLE) {
		count(t.counters, t.v6, COUNT_BLACKHOLE, 1);
		return XDP_DROP;
	}
	if (refused)
		return leave(ctx, &t, refused);

	// 4. Nothing that wants an ICMP message: redirect, packet too big.
	if (t.hop.ifindex == t.in->ifindex)
		return leave(ctx, &t, COUNT_SAME_INTERFACE);
	if (t.size > t.hop.mtu)
		return leave(ctx, &t, COUNT_TOO_BIG);

	// 5. Off it goes.
	return send(ctx, &t);
}

char _license[] SEC("license") = "Dual BSD/GPL";
