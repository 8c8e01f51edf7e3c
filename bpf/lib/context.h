// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What a program is called with, and all that differs between the two places that one source is
// compiled for.
//
// In XDP a packet is a frame: all of it in order, VLAN tags and checksums too. At tc ingress
// (compiled with BUTTERFLY_TC) it is a buffer of the kernel's: the outer VLAN tag lies beside it,
// its headers may be in several pieces, checksums may be begun only, and it may be many segments of
// which each gets its own length, checksum and sequence number when it leaves (GSO). Everything
// else is one code. At XDP nothing here costs an instruction.
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include <linux/types.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#ifdef BUTTERFLY_TC

typedef struct __sk_buff context;

#define PROGRAM SEC("tc")

// What becomes of a packet. VERDICT_PASS lets other programs at tc see it, before the kernel does.
#define VERDICT_PASS TC_ACT_UNSPEC
#define VERDICT_DROP TC_ACT_SHOT
#define VERDICT_ABORT TC_ACT_SHOT
#define VERDICT_REDIRECT TC_ACT_REDIRECT

#else

typedef struct xdp_md context;

#define PROGRAM SEC("xdp.frags")

#define VERDICT_PASS XDP_PASS
#define VERDICT_DROP XDP_DROP
#define VERDICT_ABORT XDP_ABORTED
#define VERDICT_REDIRECT XDP_REDIRECT

#endif

// The device that the packet came in by.
static __always_inline __u32 context_device(context *ctx)
{
#ifdef BUTTERFLY_TC
	return ctx->ifindex;
#else
	return ctx->ingress_ifindex;
#endif
}

// Bytes of the whole frame, without a tag that lies beside it. A long one may have its end in other
// buffers than its start.
static __always_inline __u32 frame_length(context *ctx)
{
#ifdef BUTTERFLY_TC
	return ctx->len;
#else
	return bpf_xdp_get_buff_len(ctx);
#endif
}

// Bytes of the frame that a program can read and write.
static __always_inline __u32 frame_linear(context *ctx)
{
	return (void *)(long)ctx->data_end - (void *)(long)ctx->data;
}

// Has the first `bytes` of the frame in one piece, or all of a shorter one. All pointers into it
// are void then.
static __always_inline void frame_pull(context *ctx, __u32 bytes)
{
#ifdef BUTTERFLY_TC
	__u32 whole = ctx->len;

	if (frame_linear(ctx) < bytes && frame_linear(ctx) < whole)
		bpf_skb_pull_data(ctx, bytes < whole ? bytes : whole);
#endif
}

// Whether the frame's outer VLAN tag lies beside it.
static __always_inline bool frame_tag_beside(context *ctx)
{
#ifdef BUTTERFLY_TC
	return ctx->vlan_present;
#else
	return false;
#endif
}

// Bytes of payload of each segment, if the packet is several; 0: it is one.
static __always_inline __u32 frame_segment(context *ctx)
{
#ifdef BUTTERFLY_TC
	return ctx->gso_size;
#else
	return 0;
#endif
}

// Cuts the last `bytes`. Less than zero: nothing has changed. Not for packets of several segments,
// whose lengths are not the frame's.
static __always_inline int frame_cut_end(context *ctx, int bytes)
{
#ifdef BUTTERFLY_TC
	return ctx->gso_size ? -1 : bpf_skb_change_tail(ctx, ctx->len - bytes, 0);
#else
	return bpf_xdp_adjust_tail(ctx, -bytes);
#endif
}

// Makes room for `bytes` in front of the frame. Less than zero: nothing has changed.
static __always_inline int frame_grow_front(context *ctx, __u32 bytes)
{
#ifdef BUTTERFLY_TC
	return bpf_skb_change_head(ctx, bytes, 0);
#else
	return bpf_xdp_adjust_head(ctx, -(int)bytes);
#endif
}

// Sends the frame back out of the interface it came in by.
static __always_inline int frame_return(context *ctx)
{
#ifdef BUTTERFLY_TC
	return bpf_redirect(ctx->ifindex, 0);
#else
	return XDP_TX;
#endif
}

// Corrects the sum over the packet that a NIC may have made (CHECKSUM_COMPLETE) when words in it,
// as they lie in memory, have become more by `sum`. Needed where no checksum within the packet
// takes that up again: IPv6's hop limit, headers without a checksum that are put in front.
static __always_inline void frame_sum_more(context *ctx, __u32 sum)
{
#ifdef BUTTERFLY_TC
	// Refused where there is no such sum, as for most packets.
	bpf_csum_update(ctx, sum);
#endif
}
