// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What the balancer says itself: echo replies as the VIP, and errors about packets that cannot go
// on.
#pragma once

#include "../lib/icmp.h"
#include "hash.h"
#include "maps.h"

#define ECHO_REQUEST_V4 8
#define ECHO_REPLY_V4 0
#define ECHO_REQUEST_V6 128
#define ECHO_REPLY_V6 129

static __always_inline void swap_link(struct ethhdr *link)
{
	__u8 source[ETH_ALEN];

	__builtin_memcpy(source, link->h_source, ETH_ALEN);
	__builtin_memcpy(link->h_source, link->h_dest, ETH_ALEN);
	__builtin_memcpy(link->h_dest, source, ETH_ALEN);
}

// Makes an echo request into its reply. Less than zero: it is no whole echo request to one
// receiver.
__noinline int answer_echo(context *ctx, const struct packet *packet)
{
	struct ethhdr *link = at(ctx, 0, sizeof(*link));
	__u8 *icmp;
	__u16 old;

	if (!packet)
		return -1;
	icmp = at(ctx, packet->l4, 8);
	if (!link || !icmp || icmp[1] != 0 || packet->fragment != FRAGMENT_NONE)
		return -1;
	if (icmp[0] != (packet->family == 4 ? ECHO_REQUEST_V4 : ECHO_REQUEST_V6))
		return -1;
	old = *(__u16 *)icmp;
	icmp[0] = packet->family == 4 ? ECHO_REPLY_V4 : ECHO_REPLY_V6;
	*(__u16 *)(icmp + 2) = checksum_replace16(*(__u16 *)(icmp + 2), old, *(__u16 *)icmp);
	swap_link(link);
	if (packet->family == 4) {
		struct iphdr *ip = at(ctx, packet->l3, sizeof(*ip));
		__u16 word;
		__be32 client;

		if (!ip)
			return -1;
		word = *(__u16 *)&ip->ttl;
		client = ip->saddr;
		ip->saddr = ip->daddr;
		ip->daddr = client;
		ip->ttl = ICMP_TTL;
		ip->check = checksum_replace16(ip->check, word, *(__u16 *)&ip->ttl);
	} else {
		struct ipv6hdr *ip = at(ctx, packet->l3, sizeof(*ip));
		struct in6_addr client;

		if (!ip)
			return -1;
		client = ip->saddr;
		ip->saddr = ip->daddr;
		ip->daddr = client;
		ip->hop_limit = ICMP_TTL;
	}
	count(REASON_ECHO);
	return frame_return(ctx);
}

static __always_inline int refuse(context *ctx, struct packet *packet, const struct tuple *tuple,
				  __u8 type, __u8 code, __be32 rest, enum reason reason)
{
	struct icmp_error error = { .type = type, .code = code, .rest = rest };
	int verdict;

	// RFC 1122, section 3.2.2: no error about an error.
	if (is_icmp(packet))
		return drop(REASON_SILENT);
	if (packet->family == 4) {
		error.source[0] = settings.source4 ? settings.source4 : tuple->vip[0];
	} else {
		bool set = settings.source6[0] | settings.source6[1] | settings.source6[2] |
			   settings.source6[3];
		int i;

		for (i = 0; i < 4; i++)
			error.source[i] = set ? settings.source6[i] : tuple->vip[i];
	}
	verdict = icmp_error(ctx, packet, &error);
	if (verdict < 0)
		return drop(REASON_SILENT);
	count(reason);
	return verdict;
}

// The packet's last hop was this one.
__noinline int refuse_expired(context *ctx, struct packet *packet, const struct tuple *tuple)
{
	if (!packet || !tuple)
		return VERDICT_ABORT;
	return refuse(ctx, packet, tuple,
		      packet->family == 4 ? ICMP_TIME_EXCEEDED : ICMPV6_TIME_EXCEEDED, 0, 0,
		      REASON_TTL);
}

// The packet does not fit the way to its server; `mtu` would. Also said of IPv4 packets that may be
// fragmented: nobody on the way does that here, and their sender can (RFC 1191 allows for no answer
// to them; a silent loss helps nobody).
__noinline int refuse_too_big(context *ctx, struct packet *packet, const struct tuple *tuple,
			      __u32 mtu)
{
	if (!packet || !tuple)
		return VERDICT_ABORT;
	if (packet->family == 4)
		return refuse(ctx, packet, tuple, ICMP_UNREACHABLE, ICMP_FRAGMENTATION_NEEDED,
			      bpf_htonl(mtu), REASON_TOO_BIG);
	return refuse(ctx, packet, tuple, ICMPV6_TOO_BIG, 0, bpf_htonl(mtu), REASON_TOO_BIG);
}
