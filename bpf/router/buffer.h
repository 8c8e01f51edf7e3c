// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What a packet may be besides a finished frame: one of several segments, or with a checksum that
// is only begun.
#pragma once

#include "../lib/checksum.h"
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

// One hop less, as a word of an IPv6 header as it lies in memory.
#define HOP_LIMIT_ONE bpf_htons(1)

#ifndef BUTTERFLY_TC

// Where checksums are in their headers.
#define BEGUN_TCP 16
#define BEGUN_UDP 6

// Whether a packet's checksum is only begun: it holds the sum of the addresses, protocol and
// length, and the device is to add the rest. Only the kernel knows for certain; of finished packets
// one of 65536 looks so. SCTP's is nothing until it is finished.
static __noinline bool checksum_begun(context *ctx, struct packet *packet)
{
	__u32 length;
	__u16 *field;
	__u64 sum;

	if (!packet || packet_network(ctx, packet) < 0 || packet->fragment)
		return false;
	length = packet->l3 + packet->length - packet->l4;
	if (packet->protocol == IPPROTO_SCTP) {
		__u32 *crc = at(ctx, packet->l4 + 8, sizeof(*crc));

		return crc && !*crc;
	}
	if (packet->protocol == IPPROTO_TCP)
		field = at(ctx, packet->l4 + BEGUN_TCP, sizeof(*field));
	else if (packet->protocol == IPPROTO_UDP)
		field = at(ctx, packet->l4 + BEGUN_UDP, sizeof(*field));
	else
		return false;
	if (!field)
		return false;
	sum = bpf_htonl(length) + (__u64)bpf_htonl(packet->protocol);
	if (packet->family == 4) {
		struct iphdr *ip = at(ctx, packet->l3, sizeof(*ip));

		if (!ip)
			return false;
		sum += (__u64)ip->saddr + ip->daddr;
	} else {
		struct ipv6hdr *ip = at(ctx, packet->l3, sizeof(*ip));
		int i;

		if (!ip)
			return false;
#pragma unroll
		for (i = 0; i < 4; i++)
			sum += (__u64)ip->saddr.s6_addr32[i] + ip->daddr.s6_addr32[i];
	}
	return *field == checksum_fold(sum);
}

#endif
