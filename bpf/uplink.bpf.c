// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// VXLAN for us goes to the AF_XDP socket of its queue. All else stays the kernel's, untouched.
//
// Ours is: at most one VLAN tag, IPv4 without options or IPv6 without extension headers, whole, UDP
// to the configured port, to one of our addresses (or one of our multicast groups) in its VLAN.
// What looks like ours and is not that plain is the kernel's, which knows best what to do with it:
//
// - fragments: a tunnel endpoint does not fragment (RFC 7348, section 4.3), so a fragment is
//   somebody's mistake or attack. The kernel puts it together and finds a port that the daemon has
//   reserved and reads nothing from.
// - IPv4 options and IPv6 extension headers: no endpoint sends them; source routes and the like are
//   a matter of the host's policy.
// - two tags: the kernel has no VLAN interface of ours there.
//
// Neither checksums nor lengths behind the UDP header are looked at: the data plane does that, and
// counts what it drops.
#include "lib/chain.h"
#include "lib/packet.h"
#include "uplink.h"

const volatile struct settings settings SEC(".rodata.settings");

// One more than where an interface's sockets begin in `sockets`, by its index, 0: nowhere. Packets
// of other interfaces, which the chain brings here too, are not ours.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, NEAR_INTERFACES);
	__type(key, __u32);
	__type(value, __u32);
} near_interfaces SEC(".maps");

// The uplinks whose interfaces have larger indices.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, UPLINKS);
	__type(key, __u32);
	__type(value, __u32);
} interfaces SEC(".maps");

// Our addresses. The value says nothing.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, UPLINK_ENDPOINTS);
	__type(key, struct endpoint);
	__type(value, __u32);
} endpoints SEC(".maps");

// The endpoints once more, each at its near_place(), but for those whose place another one has. Two
// hash tables, of endpoints and interfaces, took 45 ns a packet
// (docs/journal/2026-11-23-overlay.md).
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, NEAR_ENDPOINTS);
	__type(key, __u32);
	__type(value, struct near_endpoint);
} near_endpoints SEC(".maps");

// An interface's sockets by queue.
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, UPLINKS * UPLINK_QUEUES);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

// One entry.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counters);
} counters SEC(".maps");

struct udp {
	__be16 source, dest, len, check;
};

// The front of what nearly all packets for us are: IPv4, no tag, no options.
struct plain {
	struct ethhdr link;
	struct iphdr ip;
	struct udp udp;
} __attribute__((packed));

// Reads the destination of such a packet, if it is VXLAN and no multicast: with one look at where
// the frame ends. False: it has to be looked at in full.
static __always_inline bool read_plain(struct xdp_md *ctx, struct endpoint *to)
{
	struct plain *plain = (void *)(long)ctx->data;

	if ((void *)(plain + 1) > (void *)(long)ctx->data_end)
		return false;
	if (plain->link.h_proto != bpf_htons(ETH_P_IP) || plain->ip.version != 4 ||
	    plain->ip.ihl != 5 || plain->ip.protocol != IPPROTO_UDP ||
	    plain->ip.frag_off & bpf_htons(IP_MF | IP_OFFSET) || plain->udp.dest != settings.port ||
	    (plain->ip.daddr & bpf_htonl(0xf0000000)) == bpf_htonl(0xe0000000))
		return false;
	to->address[10] = to->address[11] = 0xff;
	__builtin_memcpy(to->address + 12, &plain->ip.daddr, 4);
	return true;
}

// Where the UDP header of a plain packet is, and in which VLAN; -1: none. `*fragment` becomes true
// where it was a fragment.
static __always_inline int find_udp(struct xdp_md *ctx, struct packet *packet, __u16 *vlan,
				    bool *fragment)
{
	if (packet_link(ctx, packet) < 0 || packet->tags > 1)
		return -1;
	if (packet->tags) {
		struct vlan_tag *tag = at(ctx, sizeof(struct ethhdr), sizeof(*tag));

		if (!tag)
			return -1;
		*vlan = bpf_ntohs(tag->tci) & 0xfff;
	}
	if (packet->family == 4) {
		struct iphdr *ip = at(ctx, packet->l3, sizeof(*ip));

		if (!ip || ip->version != 4 || ip->ihl != 5 || ip->protocol != IPPROTO_UDP)
			return -1;
		*fragment = ip->frag_off & bpf_htons(IP_MF | IP_OFFSET);
		return *fragment ? -1 : (int)(packet->l3 + sizeof(*ip));
	} else {
		struct ipv6hdr *ip = at(ctx, packet->l3, sizeof(*ip));

		if (!ip || ip->version != 6)
			return -1;
		*fragment = ip->nexthdr == IPPROTO_FRAGMENT;
		return ip->nexthdr == IPPROTO_UDP ? (int)(packet->l3 + sizeof(*ip)) : -1;
	}
}

static __always_inline bool is_vxlan(struct xdp_md *ctx, int l4)
{
	struct udp *udp = at(ctx, l4, sizeof(*udp));

	return udp && udp->dest == settings.port;
}

// Reads the destination, a multicast group of ours as the groups' common address.
static __always_inline int read_destination(struct xdp_md *ctx, struct packet *packet,
					    __u8 *address)
{
	bool group = true;
	int i;

	if (packet->family == 4) {
		struct iphdr *ip = at(ctx, packet->l3, sizeof(*ip));

		if (!ip)
			return -1;
		address[10] = address[11] = 0xff;
		__builtin_memcpy(address + 12, &ip->daddr, 4);
		if ((address[12] & 0xf0) != 0xe0)
			return 0;
	} else {
		struct ipv6hdr *ip = at(ctx, packet->l3, sizeof(*ip));

		if (!ip)
			return -1;
		__builtin_memcpy(address, &ip->daddr, 16);
		if (address[0] != 0xff)
			return 0;
	}
#pragma unroll
	for (i = 0; i < 16; i++)
		if ((address[i] & settings.group_mask[i]) != settings.group[i])
			group = false;
	if (group)
#pragma unroll
		for (i = 0; i < 16; i++)
			address[i] = settings.group[i];
	return 0;
}

// Reads where a packet to our port goes, whatever it has in front. Less than zero: it is none. A
// fragment may be one, and has no port to tell.
static __always_inline int read_any(struct xdp_md *ctx, struct endpoint *to, bool *fragment)
{
	struct packet packet = {};
	int l4 = find_udp(ctx, &packet, &to->vlan, fragment);

	if (*fragment)
		return 0;
	if (l4 < 0 || !is_vxlan(ctx, l4))
		return -1;
	return read_destination(ctx, &packet, to->address);
}

static __always_inline bool same_endpoint(const struct endpoint *a, const struct endpoint *b)
{
	const __u32 *one = (const __u32 *)a->address, *other = (const __u32 *)b->address;

	return one[0] == other[0] && one[1] == other[1] && one[2] == other[2] &&
	       one[3] == other[3] && a->vlan == b->vlan;
}

static __always_inline bool is_endpoint(const struct endpoint *to)
{
	__u32 place = near_place(to);
	const struct near_endpoint *near = bpf_map_lookup_elem(&near_endpoints, &place);

	if (near && near->used && same_endpoint(&near->endpoint, to))
		return true;
	return bpf_map_lookup_elem(&endpoints, to);
}

// Where the sockets of the packet's interface begin. Less than zero: it is not ours.
static __always_inline int first_socket(struct xdp_md *ctx)
{
	__u32 ifindex = ctx->ingress_ifindex, *first;

	first = ifindex < NEAR_INTERFACES ? bpf_map_lookup_elem(&near_interfaces, &ifindex) :
					    bpf_map_lookup_elem(&interfaces, &ifindex);
	return first ? (int)*first - 1 : -1;
}

// To the socket of the packet's queue. Less than zero: there is none.
static __always_inline int take(struct xdp_md *ctx, __u32 first)
{
	__u32 queue = ctx->rx_queue_index;

	if (queue >= UPLINK_QUEUES)
		return -1;
	return bpf_redirect_map(&sockets, first + queue, XDP_PASS) == XDP_REDIRECT ? 0 : -1;
}

SEC("xdp.frags")
int uplink(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct endpoint to = {};
	struct counters *count;
	bool fragment = false;
	int first;

	if (!read_plain(ctx, &to) && read_any(ctx, &to, &fragment) < 0)
		return chain_next(ctx);
	first = first_socket(ctx);
	count = bpf_map_lookup_elem(&counters, &zero);
	if (first < 0 || !count)
		return chain_next(ctx);

	if (fragment)
		count->fragments++;
	else if (!is_endpoint(&to))
		count->elsewhere++;
	else if (take(ctx, first) < 0)
		count->no_socket++;
	else {
		count->taken++;
		return XDP_REDIRECT;
	}
	return chain_next(ctx);
}

char _license[] SEC("license") = "Dual BSD/GPL";
