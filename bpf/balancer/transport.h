// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Who speaks with whom, and whether this packet begins a flow, goes on with it or ends it.
#pragma once

#include <linux/tcp.h>
#include "../lib/packet.h"
#include "hash.h"

#ifndef IPPROTO_SCTP
#define IPPROTO_SCTP 132
#endif

// What says whether a packet is ours.
#define HEADERS_MIN (sizeof(struct ethhdr) + sizeof(struct ipv6hdr))
#define HEADERS_MAX 256  // extension headers, and what an ICMP error quotes

#define TCP_FLAGS_OFFSET 13
#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

#define SCTP_CHUNK_OFFSET 12  // RFC 9260, section 3: the first chunk's type, behind the common
			      // header
#define SCTP_INIT 1
#define SCTP_ABORT 6
#define SCTP_SHUTDOWN_COMPLETE 14

enum part {
	PART_DATAGRAM,  // may be any: the protocol does not say
	PART_BEGIN,
	PART_MIDDLE,
	PART_END,
	PART_ERROR,     // not the flow's own: an ICMP error about it
};

// The addresses: all that is needed to see that a packet is not ours. Less than zero: there is no
// whole IP header.
static __always_inline int read_addresses(context *ctx, const struct packet *packet,
					  struct tuple *tuple)
{
	tuple->family = packet->family;
	if (packet->family == 4) {
		struct iphdr *ip = at(ctx, packet->l3, sizeof(*ip));

		if (!ip)
			return -1;
		tuple->client[0] = ip->saddr;
		tuple->vip[0] = ip->daddr;
		tuple->client[1] = tuple->client[2] = tuple->client[3] = 0;
		tuple->vip[1] = tuple->vip[2] = tuple->vip[3] = 0;
	} else {
		struct ipv6hdr *ip = at(ctx, packet->l3, sizeof(*ip));

		if (!ip)
			return -1;
		__builtin_memcpy(tuple->client, &ip->saddr, sizeof(tuple->client));
		__builtin_memcpy(tuple->vip, &ip->daddr, sizeof(tuple->vip));
	}
	return 0;
}

__noinline int read_ipv6(context *ctx, struct packet *packet)
{
	return packet ? packet_ipv6(ctx, packet) : -1;
}

// Has all headers in one piece, where the kernel may have them in several. No more than that:
// pulling a stream's bytes to its headers copies them.
static __always_inline void pull_headers(context *ctx, const struct packet *packet)
{
#ifdef BUTTERFLY_TC
	__u32 end = packet->l3, protocol;

	if (packet->family == 4) {
		struct iphdr *ip = at(ctx, packet->l3, sizeof(*ip));

		if (!ip)
			return;
		end += ip->ihl * 4;
		protocol = ip->protocol;
	} else {
		struct ipv6hdr *ip = at(ctx, packet->l3, sizeof(*ip));

		if (!ip)
			return;
		end += sizeof(*ip);
		protocol = ip->nexthdr;
	}
	frame_pull(ctx, protocol == IPPROTO_TCP   ? end + sizeof(struct tcphdr)
			: protocol == IPPROTO_UDP ? end + 8
						  : HEADERS_MAX);
#endif
}

// All headers up to the transport. Less than zero: not understood.
static __always_inline int read_network(context *ctx, struct packet *packet)
{
	return packet->family == 4 ? packet_ipv4(ctx, packet) : read_ipv6(ctx, packet);
}

// Ports and part. Less than zero: no protocol that is balanced, or its header is cut off.
static __always_inline int read_transport(context *ctx, const struct packet *packet,
					  struct tuple *tuple, __u8 *part)
{
	__u32 room = packet->l3 + packet->length - packet->l4;
	__be16 *port = at(ctx, packet->l4, 8);
	__u8 *byte;

	if (!port || room < 8)
		return -1;
	tuple->client_port = port[0];
	tuple->port = port[1];
	tuple->protocol = packet->protocol;
	switch (packet->protocol) {
	case IPPROTO_UDP:
		*part = PART_DATAGRAM;
		return 0;
	case IPPROTO_TCP:
		byte = at(ctx, packet->l4 + TCP_FLAGS_OFFSET, 1);
		if (!byte || room < sizeof(struct tcphdr))
			return -1;
		*part = *byte & (TCP_FIN | TCP_RST)                      ? PART_END
			: (*byte & (TCP_SYN | TCP_ACK)) == TCP_SYN ? PART_BEGIN
								   : PART_MIDDLE;
		return 0;
	case IPPROTO_SCTP:
		byte = at(ctx, packet->l4 + SCTP_CHUNK_OFFSET, 1);
		if (!byte || room <= SCTP_CHUNK_OFFSET)
			return -1;
		*part = *byte == SCTP_INIT                                             ? PART_BEGIN
			: *byte == SCTP_ABORT || *byte == SCTP_SHUTDOWN_COMPLETE ? PART_END
										 : PART_MIDDLE;
		return 0;
	}
	return -1;
}

static __always_inline bool is_vip(const struct in6_addr *address, const struct tuple *tuple)
{
	const __be32 *word = address->s6_addr32;

	return !((word[0] ^ tuple->vip[0]) | (word[1] ^ tuple->vip[1]) | (word[2] ^ tuple->vip[2]) |
		 (word[3] ^ tuple->vip[3]));
}

// The flow that an ICMP error is about: the quoted packet went from the VIP to the client. Less
// than zero: it is no error, or quotes too little, or something else.
__noinline int read_error(context *ctx, const struct packet *packet, struct tuple *tuple)
{
	__u32 quote, end;
	__u8 *type;
	__be16 *port;

	if (!packet || !tuple)
		return -1;
	type = at(ctx, packet->l4, 8);
	if (!type)
		return -1;
	quote = packet->l4 + 8;
	end = packet->l3 + packet->length;
	if (packet->family == 4) {
		struct iphdr *ip = at(ctx, quote, sizeof(*ip));

		// unreachable, time exceeded, parameter problem
		if (*type != 3 && *type != 11 && *type != 12)
			return -1;
		if (!ip || ip->version != 4 || ip->ihl < 5 || ip->saddr != tuple->vip[0] ||
		    ip->frag_off & bpf_htons(IP_OFFSET))
			return -1;
		tuple->client[0] = ip->daddr;
		tuple->protocol = ip->protocol;
		quote += ip->ihl * 4;
	} else {
		struct ipv6hdr *ip = at(ctx, quote, sizeof(*ip));

		// unreachable, too big, time exceeded, parameter problem
		if (*type < 1 || *type > 4)
			return -1;
		if (!ip || ip->version != 6 || !is_vip(&ip->saddr, tuple))
			return -1;
		__builtin_memcpy(tuple->client, &ip->daddr, sizeof(tuple->client));
		tuple->protocol = ip->nexthdr;
		quote += sizeof(*ip);
	}
	port = at(ctx, quote, 4);
	if (!port || quote + 4 > end)
		return -1;
	if (tuple->protocol != IPPROTO_TCP && tuple->protocol != IPPROTO_UDP &&
	    tuple->protocol != IPPROTO_SCTP)
		return -1;
	tuple->port = port[0];
	tuple->client_port = port[1];
	return 0;
}

static __always_inline bool is_icmp(const struct packet *packet)
{
	return packet->protocol == (packet->family == 4 ? IPPROTO_ICMP : IPPROTO_ICMPV6);
}
