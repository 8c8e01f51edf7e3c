// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A cable between a container's interface and the switch, at tc ingress: what comes in by the
// host's end of a container's veth pair goes out by the TAP device that the switch reads, and what
// the switch writes to that goes to the container. A netkit pair has it look at what the container
// sends while that is sent, which saves a queue. In the place of the pair may be a TAP device
// that a VMM has open, and reads and writes itself. No frame reaches the host's own stack, not even
// when the switch is gone: the program stays on the interface, and what it knows no way for is
// dropped. Segments stay whole and checksums begun (GSO).
//
// What the switch has let pass it may have entered (lib/known.h): then the packets that follow go
// straight to the other container, or in outer headers to another host. Everything else goes up,
// and nothing is refused here. What comes from other hosts is arrival.bpf.c's.
//
// Entries are crates/container's, one for each of the two interfaces, and the switch's.
#include "lib/known.h"

// The frame is for the container's own MAC.
static __always_inline bool is_for(context *ctx, const struct cable_end *end)
{
	__u8 to[6];

	if (bpf_skb_load_bytes(ctx, 0, to, sizeof(to)) < 0)
		return false;
	return !((to[0] ^ end->mac[0]) | (to[1] ^ end->mac[1]) | (to[2] ^ end->mac[2]) |
		 (to[3] ^ end->mac[3]) | (to[4] ^ end->mac[4]) | (to[5] ^ end->mac[5]));
}

#define ROOM                                                                                      \
	(BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L4_UDP | BPF_F_ADJ_ROOM_ENCAP_L2_ETH |   \
	 BPF_F_ADJ_ROOM_ENCAP_L2(sizeof(struct ethhdr)))

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
	fill_link(&front.inner, key);
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
	fill_link(&front.inner, key);
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

// Sends a packet of a connection that was entered to its container, or to another host. Less than
// zero: it goes up.
static __always_inline int forward(context *ctx, const struct cable_end *from)
{
	struct kernel_force *force = force_now();
	struct plain plain = {};
	struct kernel_state *state;
	struct kernel_flow *flow;
	__u32 length = ctx->len;
	int machine = 1, wrapped;
	__u64 now;

	if (!force || ctx->vlan_present || !read_plain(ctx, &plain))
		return -1;
	plain.key.device = ctx->ifindex;
	now = bpf_ktime_get_ns();
	flow = find_known(ctx, &plain, force, now, &state);
	if (!flow || (from->at_sender && !beside_suits(ctx, &plain)))
		return -1;
	if (flow->outer_len) {
		wrapped = wrap(ctx, flow, &plain.key, plain.tos);
		if (wrapped)
			return wrapped < 0 ? -1 : VERDICT_DROP;
	} else {
		machine = machine_at(flow->to);
		if (machine < 0)
			return -1;
		// For the stack behind: it is for whom it reaches, since its MAC is.
		if (bpf_skb_change_type(ctx, 0 /* PACKET_HOST */))
			return -1;
	}
	count_known(state, &plain, length, now);
	return send_by(flow->to, !machine && !from->at_sender);
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
		return send_by(end->to, !end->machine && is_for(ctx, end));
	verdict = forward(ctx, end);
	return verdict < 0 ? bpf_redirect(end->to, 0) : verdict;
}

char _license[] SEC("license") = "Dual BSD/GPL";
