// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What is at the front of a frame: Ethernet, VLAN tags, IPv4 with options, IPv6 with extension
// headers, fragments.
//
// A program calls packet_link(), looks at the addresses, and when the packet may be its own
// packet_network(). Both answer less than zero when they do not understand the frame: it is the
// kernel's then, never a guess. Positions are offsets from the frame's start, and at() turns one
// into a pointer after checking the end: nothing here keeps a pointer, so a program may move the
// frame's head and go on with at().
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "context.h"

#define PACKET_MAX_TAGS 2        // 802.1ad: a service tag and a customer tag
#define PACKET_MAX_EXTENSIONS 6  // RFC 8200, section 4.1 lists seven, one of them twice; senders
				 // use two at the most
#define PACKET_MAX_OFFSET 1023   // at() reads nothing that begins behind this
#define PACKET_MAX_L4 960        // so that what is read behind l4 begins within: the ports of a
				 // packet that an ICMPv6 error quotes do 48 bytes behind it

#define FRAME_SMALL 1024         // no driver splits a frame up to here into several buffers

#define IP_RF 0x8000
#define IP_DF 0x4000
#define IP_MF 0x2000
#define IP_OFFSET 0x1fff

enum fragment {
	FRAGMENT_NONE = 0,   // the whole packet
	FRAGMENT_FIRST = 1,  // has the transport header
	FRAGMENT_LATER = 2,  // has none
};

struct vlan_tag {
	__be16 tci;
	__be16 next;  // the ethertype of what follows
};

struct extension {
	__u8 next;
	__u8 words;  // length in units of 8 bytes (AH: 4 bytes), not counting the first
};

struct fragment_header {
	__u8 next;
	__u8 reserved;
	__be16 offset;  // in units of 8 bytes, shifted by three; the lowest bit: more follow
	__be32 id;
};

// Where a packet's headers are and what they say that everybody asks for.
struct packet {
	__u32 l3;          // offset of the IP header
	__u32 l4;          // offset of what follows all of IP's headers, PACKET_MAX_L4 at the
			   // most (the rest of a fragmented packet aside, which has no ports)
	__u32 length;      // bytes from l3 to the packet's end as IP tells it; the frame has at
			   // least these
	__u32 id;          // of a fragment; network order
	__u8 family;       // 4 or 6
	__u8 tags;         // VLAN tags in front of it, with one that lies beside the frame
			   // (frame_tag_beside())
	__u8 protocol;     // what is at l4: IPPROTO_*
	__u8 fragment;     // enum fragment
};

// The `size` bytes at `offset`, which is PACKET_MAX_OFFSET at the most, or NULL when the frame ends
// before.
static __always_inline void *at(context *ctx, __u32 offset, __u32 size)
{
	void *end = (void *)(long)ctx->data_end;
	void *data = (void *)(long)ctx->data;

	// The mask is for the verifier, which loses sight of an offset that was in memory; the
	// barrier keeps the compiler from dropping it.
	offset &= PACKET_MAX_OFFSET;
	asm volatile("" : "+r"(offset));
	data += offset;
	return data + size > end ? NULL : data;
}

static __always_inline bool same_mac(const __u8 *a, const __u8 *b)
{
	return !((*(const __u32 *)a ^ *(const __u32 *)b) |
		 (__u32)(*(const __u16 *)(a + 4) ^ *(const __u16 *)(b + 4)));
}

// Bytes behind a packet that ends at `end`; less than zero: they are missing. A small frame that
// ends with its packet, as most do, is not asked for its length.
static __always_inline int frame_surplus(context *ctx, __u32 end)
{
#ifdef BUTTERFLY_TC
	return ctx->len - end;
#else
	__u32 linear = frame_linear(ctx);

	return end == linear && linear <= FRAME_SMALL ? 0 : (int)(frame_length(ctx) - end);
#endif
}

// Whether IP tells of no more bytes than came.
static __always_inline bool frame_holds(context *ctx, __u32 offset, __u32 length)
{
	return offset + length <= frame_linear(ctx) || offset + length <= frame_length(ctx);
}

// VLAN tags in the frame itself, between Ethernet's addresses and the packet.
static __always_inline __u32 packet_tags_within(const struct packet *packet)
{
#ifdef BUTTERFLY_TC
	return (packet->l3 - sizeof(struct ethhdr)) / sizeof(struct vlan_tag);
#else
	return packet->tags;
#endif
}

// Whether what follows is a VLAN tag (IEEE 802.1Q).
static __always_inline bool is_tag(__be16 ethertype)
{
	return ethertype == bpf_htons(ETH_P_8021Q) || ethertype == bpf_htons(ETH_P_8021AD);
}

// Steps over Ethernet and VLAN tags: fills l3, tags and family. Less than zero: neither IPv4 nor
// IPv6.
static __always_inline int packet_link(context *ctx, struct packet *packet)
{
	void *end = (void *)(long)ctx->data_end;
	void *data = (void *)(long)ctx->data;
	struct ethhdr *link = data;
	struct vlan_tag *tag = data + sizeof(*link);
	__be16 ethertype;
	int i;

	if (data + sizeof(*link) > end)
		return -1;
	ethertype = link->h_proto;
	packet->tags = frame_tag_beside(ctx);
	packet->l3 = sizeof(*link);
#pragma unroll
	for (i = 0; i < PACKET_MAX_TAGS; i++) {
		if (packet->tags == PACKET_MAX_TAGS)
			break;
		if (!is_tag(ethertype))
			break;
		if ((void *)(tag + 1) > end)
			return -1;
		ethertype = tag->next;
		packet->tags++;
		packet->l3 += sizeof(*tag);
		tag++;
	}
	packet->family = ethertype == bpf_htons(ETH_P_IP) ? 4 :
			 ethertype == bpf_htons(ETH_P_IPV6) ? 6 : 0;
	return packet->family ? 0 : -1;
}

// IPv4 (RFC 791): version, header length and total length agree with the frame. Less than zero:
// they do not.
static __always_inline int packet_ipv4(context *ctx, struct packet *packet)
{
	struct iphdr *ip = at(ctx, packet->l3, sizeof(*ip));
	__u16 fragment;
	__u32 header;

	if (!ip || ip->version != 4 || ip->ihl < 5)
		return -1;
	header = ip->ihl * 4;
	packet->length = bpf_ntohs(ip->tot_len);
	if (packet->length < header || !frame_holds(ctx, packet->l3, packet->length))
		return -1;
	fragment = bpf_ntohs(ip->frag_off);
	packet->id = ip->id;
	packet->l4 = packet->l3 + header;
	packet->protocol = ip->protocol;
	packet->fragment = fragment & IP_OFFSET ? FRAGMENT_LATER :
			   fragment & IP_MF ? FRAGMENT_FIRST : FRAGMENT_NONE;
	return 0;
}

// IPv6 (RFC 8200): walks the extension headers. Less than zero: broken, encrypted, or more of them
// than anybody sends.
static __always_inline int packet_ipv6(context *ctx, struct packet *packet)
{
	struct ipv6hdr *ip = at(ctx, packet->l3, sizeof(*ip));
	int i;

	if (!ip || ip->version != 6)
		return -1;
	packet->length = sizeof(*ip) + bpf_ntohs(ip->payload_len);
	if (!frame_holds(ctx, packet->l3, packet->length))
		return -1;
	packet->id = 0;
	packet->l4 = packet->l3 + sizeof(*ip);
	packet->protocol = ip->nexthdr;
	packet->fragment = FRAGMENT_NONE;
	for (i = 0; i < PACKET_MAX_EXTENSIONS; i++) {
		struct extension *extension;

		switch (packet->protocol) {
		case IPPROTO_HOPOPTS:
		case IPPROTO_ROUTING:
		case IPPROTO_DSTOPTS:
			extension = at(ctx, packet->l4, sizeof(*extension));
			if (!extension)
				return -1;
			packet->protocol = extension->next;
			packet->l4 += (extension->words + 1) * 8;
			break;
		case IPPROTO_AH:
			extension = at(ctx, packet->l4, sizeof(*extension));
			if (!extension)
				return -1;
			packet->protocol = extension->next;
			packet->l4 += (extension->words + 2) * 4;
			break;
		case IPPROTO_FRAGMENT: {
			struct fragment_header *fragment = at(ctx, packet->l4, sizeof(*fragment));
			__u16 offset;

			if (!fragment)
				return -1;
			offset = bpf_ntohs(fragment->offset);
			packet->protocol = fragment->next;
			packet->l4 += sizeof(*fragment);
			packet->id = fragment->id;
			if (offset & 0xfff8) {
				// What follows is the middle of something.
				packet->fragment = FRAGMENT_LATER;
				goto done;
			}
			// An atomic fragment (RFC 6946), neither offset nor more to come, is a
			// whole packet.
			packet->fragment = offset & 1 ? FRAGMENT_FIRST : FRAGMENT_NONE;
			break;
		}
		default:
			goto done;
		}
		if (packet->l4 > PACKET_MAX_L4)
			return -1;
	}
	return -1;
done:
	return packet->l4 > packet->l3 + packet->length ? -1 : 0;
}

// Steps over all of IP's headers after packet_link(): fills the rest. Less than zero: not
// understood.
static __always_inline int packet_network(context *ctx, struct packet *packet)
{
	return packet->family == 4 ? packet_ipv4(ctx, packet) : packet_ipv6(ctx, packet);
}
