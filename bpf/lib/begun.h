// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Checksums that are only begun: the sender has left the rest to the device, which here is nobody
// (CHECKSUM_PARTIAL).
#pragma once

#include <linux/types.h>

#include "checksum.h"
#include "packet.h"

// Where checksums are in their headers.
#define TCP_CHECKSUM 16
#define UDP_CHECKSUM 6
#define SCTP_CHECKSUM 8

// Where the checksum of a packet is, from its transport header on, if it is only begun; else 0. It
// holds the sum of the addresses, protocol and length then; SCTP's is nothing (RFC 9260 has no
// pseudo-header). Only the kernel knows for certain: of finished packets one in 65,536 looks so.
// packet_network() has understood the packet.
static __always_inline __u32 checksum_begun(context *ctx, const struct packet *packet)
{
	__u32 field, length = packet->length - (packet->l4 - packet->l3);
	__u16 *checksum;
	__u64 sum;

	if (packet->fragment != FRAGMENT_NONE)
		return 0;
	if (packet->protocol == IPPROTO_SCTP) {
		__u32 *crc = at(ctx, packet->l4 + SCTP_CHECKSUM, sizeof(*crc));

		return crc && !*crc ? SCTP_CHECKSUM : 0;
	}
	if (packet->protocol == IPPROTO_TCP)
		field = TCP_CHECKSUM;
	else if (packet->protocol == IPPROTO_UDP)
		field = UDP_CHECKSUM;
	else
		return 0;
	checksum = at(ctx, packet->l4 + field, sizeof(*checksum));
	if (!checksum)
		return 0;
	sum = bpf_htonl(length) + (__u64)bpf_htonl(packet->protocol);
	if (packet->family == 4) {
		struct iphdr *ip = at(ctx, packet->l3, sizeof(*ip));

		if (!ip)
			return 0;
		sum += (__u64)ip->saddr + ip->daddr;
	} else {
		struct ipv6hdr *ip = at(ctx, packet->l3, sizeof(*ip));
		int i;

		if (!ip)
			return 0;
#pragma unroll
		for (i = 0; i < 4; i++)
			sum += (__u64)ip->saddr.s6_addr32[i] + ip->daddr.s6_addr32[i];
	}
	return *checksum == checksum_fold(sum) ? field : 0;
}
