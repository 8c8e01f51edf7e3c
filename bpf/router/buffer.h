// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What a packet may be besides a finished frame: one of several segments, or with a checksum that
// is only begun.
#pragma once

#include "../lib/begun.h"
#include "../lib/packet.h"
#include "../router.h"

// Whether a packet longer than the next link takes is segments that each fit, as
// skb_gso_validate_network_len() says of the kernel's own. `l4` is where its transport header is,
// 0: not known.
static __always_inline bool segments_fit(context *ctx, __u32 l3, __u32 l4, __u8 protocol,
					 const struct hop *hop)
{
#ifdef BUTTERFLY_TC
	__u32 payload = ctx->gso_size, mtu = 0;

	if (!payload)
		return false;
	if (protocol == IPPROTO_TCP && l4) {
		__u8 *words = at(ctx, l4 + 12, 1);

		return words && l4 - l3 + (*words >> 4) * 4 + payload <= hop->tc_mtu;
	}
	// Only the kernel knows where the payload of tunnels begins. It compares with the
	// interface's MTU; where the route's is smaller the packet is the kernel's.
	return bpf_check_mtu(ctx, hop->ifindex, &mtu, 0, BPF_MTU_CHK_SEGS) == 0 &&
	       mtu <= hop->tc_mtu;
#else
	return false;
#endif
}

// What ip_forward() makes of the type of service (rt_tos2priority()), by which queueing disciplines
// tell packets; XDP has no queues.
static __always_inline void set_priority(context *ctx, __u8 tos)
{
#ifdef BUTTERFLY_TC
	if (tos & 0x18)
		ctx->priority = 0x4620 >> ((tos >> 3 & 3) * 4) & 0xf;
#endif
}

#ifndef BUTTERFLY_TC

// Whether the checksum of the packet that begins at `l3` is only begun. A function of its own for
// the verifier, who looks at it once.
__attribute__((noinline)) int is_begun(context *ctx, __u32 l3, int family)
{
	struct packet packet = {.l3 = l3, .family = family};

	return packet_network(ctx, &packet) == 0 && checksum_begun(ctx, &packet);
}

#endif
