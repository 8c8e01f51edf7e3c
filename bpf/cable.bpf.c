// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A cable between a container's interface and the switch, at tc ingress alone: what comes in by the
// host's end of a container's veth pair goes out by the TAP device that the switch reads, and what
// the switch writes to that goes to the container. No frame reaches the host's own stack, not even
// when the switch is gone: the program stays on the interface, and what it knows no way for is
// dropped. Segments stay whole and checksums begun (GSO).
//
// Entries are crates/container's, one for each of the two interfaces.
#include "lib/context.h"
#include "cable.h"

_Static_assert(sizeof(struct cable_end) == 12, "as src/cables.rs has it");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, CABLE_ENDS);
	__type(key, __u32); // the index of the interface that a frame comes in by
	__type(value, struct cable_end);
} cable_ends SEC(".maps");

// The frame is for the container's own MAC.
static __always_inline bool is_for(context *ctx, const struct cable_end *end)
{
	__u8 to[6];

	if (bpf_skb_load_bytes(ctx, 0, to, sizeof(to)) < 0)
		return false;
	return !((to[0] ^ end->mac[0]) | (to[1] ^ end->mac[1]) | (to[2] ^ end->mac[2]) |
		 (to[3] ^ end->mac[3]) | (to[4] ^ end->mac[4]) | (to[5] ^ end->mac[5]));
}

SEC("tc")
int cable(context *ctx)
{
	__u32 device = context_device(ctx);
	struct cable_end *end = bpf_map_lookup_elem(&cable_ends, &device);

	if (!end)
		return VERDICT_DROP;
	// Straight into the container's namespace, past a queue. The kernel takes what goes there for
	// the container's own; what is not goes the long way, where its MAC is looked at.
	if (end->pair && is_for(ctx, end))
		return bpf_redirect_peer(end->to, 0);
	return bpf_redirect(end->to, 0);
}

char _license[] SEC("license") = "Dual BSD/GPL";
