// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What comes from other hosts for containers and VMMs of this one, at tc ingress of an uplink that
// is joined by a packet socket: packets of flows that the switch has let pass (lib/known.h) are
// taken out of their outer headers and go straight to whom they are for. Everything else goes on,
// to the next program and to the packet socket of the switch.
//
// A packet is taken only if its outer headers are what the entry says, which is what the switch has
// judged of the one before it (crates/dataplane/src/stages/outer.rs): from that host, to that
// address of ours, in that network, untagged, whole, without options or extension headers, without
// a UDP checksum, for this host's hardware address, and all lengths say the same. One whose inner
// congestion mark would have to be changed (RFC 6040) goes up, too.
#include "lib/chain.h"
#include "lib/known.h"

#define VXLAN_VNI 0x08 // the one flag: its network is valid (RFC 7348, section 5)

#define ECN_MASK 3
#define ECN_ECT1 1
#define ECN_ECT0 2
#define ECN_CE 3

// linux/bpf.h, since 6.3.
#define DECAP_L3_IPV4 (1ull << 7)
#define DECAP_L3_IPV6 (1ull << 8)

struct tunnel {
	struct udphdr udp;
	__u8 vxlan[8];
};

// The inner congestion mark would be another one behind the tunnel, or there must be no packet.
static __always_inline bool ecn_changes(__u8 inner, __u8 outer)
{
	inner &= ECN_MASK;
	outer &= ECN_MASK;
	if (outer == ECN_CE)
		return inner != ECN_CE;
	return outer == ECN_ECT1 && inner == ECN_ECT0;
}

// Looks at UDP and VXLAN headers at `l4`, to the frame's end, and fills in the network. NULL: the
// packet goes on.
static __always_inline struct tunnel *read_tunnel(context *ctx, __u32 l4, struct kernel_key *key)
{
	struct tunnel *tunnel = at(ctx, l4, sizeof(*tunnel));

	if (!tunnel || tunnel->udp.check || bpf_ntohs(tunnel->udp.len) != ctx->len - l4 ||
	    !(tunnel->vxlan[0] & VXLAN_VNI))
		return NULL;
	key->vni = tunnel->vxlan[4] << 16 | tunnel->vxlan[5] << 8 | tunnel->vxlan[6];
	return tunnel;
}

// The entry of the packet behind outer headers that are read already and have this TOS or traffic
// class. NULL: the packet goes on.
static __always_inline struct kernel_flow *find_behind(context *ctx, struct plain *plain, __u8 tos,
						       const struct kernel_force *force, __u64 now,
						       struct kernel_state **state)
{
	struct kernel_flow *flow;

	if (!read_plain(ctx, plain))
		return NULL;
	plain->key.device = ctx->ifindex;
	flow = find_known(ctx, plain, force, now, state);
	if (!flow || flow->outer_len != plain->front || ecn_changes(plain->tos, tos))
		return NULL;
	return flow;
}

// Gives what is in outer headers to whom it is for. Less than zero: the packet is as it was.
static __always_inline int unwrap(context *ctx, const struct kernel_flow *flow,
				  struct kernel_state *state, struct plain *plain, __u64 now)
{
	__u32 length = ctx->len - plain->front;
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO;
	int machine = machine_at(flow->to);
	struct ethhdr link;

	if (machine < 0)
		return -1;
	// The buffer is one of another protocol then; kernels before 6.3 cannot say so.
	if (plain->front == KERNEL_OUTER4 && plain->key.family == 6)
		flags |= DECAP_L3_IPV6;
	if (plain->front == KERNEL_OUTER6 && plain->key.family == 4)
		flags |= DECAP_L3_IPV4;
	if (bpf_skb_adjust_room(ctx, -(__s32)plain->front, BPF_ADJ_ROOM_MAC, flags) < 0)
		return -1;
	fill_link(&link, &plain->key);
	if (bpf_skb_store_bytes(ctx, 0, &link, sizeof(link), 0))
		return VERDICT_DROP;
	count_known(state, plain, length, now);
	return send_by(flow->to, !machine);
}

// The kernel lets a program load from the very pointer alone that it is called with, and the
// compiler would have both branches load from one that it has made of that.
static __always_inline context *same(context *ctx)
{
	asm volatile("" : "+r"(ctx));
	return ctx;
}

// Takes a packet over IPv4. Less than zero: it goes on.
static __always_inline int arrive4(context *ctx, struct kernel_force *force)
{
	struct plain plain = {.front = KERNEL_OUTER4};
	struct iphdr *ip = at(ctx, sizeof(struct ethhdr), sizeof(*ip));
	__u64 now = bpf_ktime_get_ns();
	const struct front4 *entered;
	struct kernel_state *state;
	struct kernel_flow *flow;
	struct tunnel *tunnel;

	if (!ip || *(__u8 *)ip != 0x45 || ip->frag_off & bpf_htons(IP_MF | IP_OFFSET) ||
	    ip->protocol != IPPROTO_UDP ||
	    sizeof(struct ethhdr) + bpf_ntohs(ip->tot_len) != ctx->len ||
	    !checksum_holds(checksum_ipv4(ip)))
		return -1;
	tunnel = read_tunnel(ctx, sizeof(struct ethhdr) + sizeof(*ip), &plain.key);
	if (!tunnel)
		return -1;
	flow = find_behind(ctx, &plain, ip->tos, force, now, &state);
	if (!flow)
		return -1;
	entered = (const struct front4 *)flow->outer;
	if (ip->saddr != entered->ip.saddr || ip->daddr != entered->ip.daddr ||
	    tunnel->udp.dest != entered->udp.dest)
		return -1;
	return unwrap(ctx, flow, state, &plain, now);
}

static __always_inline bool same_address(const struct in6_addr *a, const struct in6_addr *b)
{
	const __u32 *one = a->s6_addr32, *other = b->s6_addr32;

	return !((one[0] ^ other[0]) | (one[1] ^ other[1]) | (one[2] ^ other[2]) |
		 (one[3] ^ other[3]));
}

// As arrive4(), over IPv6.
static __always_inline int arrive6(context *ctx, struct kernel_force *force)
{
	struct plain plain = {.front = KERNEL_OUTER6};
	struct ipv6hdr *ip = at(ctx, sizeof(struct ethhdr), sizeof(*ip));
	__u64 now = bpf_ktime_get_ns();
	const struct front6 *entered;
	struct kernel_state *state;
	struct kernel_flow *flow;
	struct tunnel *tunnel;

	if (!ip || *(__u8 *)ip >> 4 != 6 || ip->nexthdr != IPPROTO_UDP ||
	    sizeof(struct ethhdr) + sizeof(*ip) + bpf_ntohs(ip->payload_len) != ctx->len)
		return -1;
	tunnel = read_tunnel(ctx, sizeof(struct ethhdr) + sizeof(*ip), &plain.key);
	if (!tunnel)
		return -1;
	flow = find_behind(ctx, &plain, bpf_ntohl(*(__be32 *)ip) >> 20, force, now, &state);
	if (!flow)
		return -1;
	entered = (const struct front6 *)flow->outer;
	if (!same_address(&ip->saddr, &entered->ip.saddr) ||
	    !same_address(&ip->daddr, &entered->ip.daddr) ||
	    tunnel->udp.dest != entered->udp.dest)
		return -1;
	return unwrap(ctx, flow, state, &plain, now);
}

static __always_inline int arrive(context *ctx)
{
	struct ethhdr *link = at(ctx, 0, sizeof(*link));
	struct kernel_force *force = force_now();

	if (!link || !force || ctx->vlan_present || ctx->pkt_type != 0 /* PACKET_HOST */)
		return -1;
	if (link->h_proto == bpf_htons(ETH_P_IP))
		return arrive4(same(ctx), force);
	return link->h_proto == bpf_htons(ETH_P_IPV6) ? arrive6(same(ctx), force) : -1;
}

SEC("tc")
int arrival(context *ctx)
{
	int verdict = arrive(ctx);

	return verdict < 0 ? chain_next(ctx) : verdict;
}

char _license[] SEC("license") = "Dual BSD/GPL";
