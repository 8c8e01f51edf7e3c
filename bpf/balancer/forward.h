// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// To the server: one hop less, the new headers in front, out of its interface.
#pragma once

#include "../lib/checksum.h"
#include "../lib/packet.h"
#include "maps.h"
#include "services.h"

#define GRE_LEN 4  // a shim that is longer begins with UDP

// What the outer header takes over from the inner one: DSCP and ECN (RFC 2983, RFC 6040).
static __always_inline int take_hop(struct xdp_md *ctx, const struct packet *packet, __u8 *class)
{
	if (packet->family == 4) {
		struct iphdr *ip = at(ctx, packet->l3, sizeof(*ip));

		if (!ip)
			return -1;
		ipv4_decrement_ttl(ip);
		*class = ip->tos;
	} else {
		struct ipv6hdr *ip = at(ctx, packet->l3, sizeof(*ip));

		if (!ip)
			return -1;
		ip->hop_limit--;
		*class = bpf_ntohl(*(__be32 *)ip) >> 20;
	}
	return 0;
}

static __always_inline int write_link(struct xdp_md *ctx, const struct server *server)
{
	__u8 *link = at(ctx, 0, sizeof(struct ethhdr));

	if (!link)
		return -1;
	__builtin_memcpy(link, server->link, sizeof(struct ethhdr));
	if (server->tags > 0) {
		link = at(ctx, 14, 4);
		if (!link)
			return -1;
		__builtin_memcpy(link, server->link + 14, 4);
	}
	if (server->tags > 1) {
		link = at(ctx, 18, 4);
		if (!link)
			return -1;
		__builtin_memcpy(link, server->link + 18, 4);
	}
	return 0;
}

// The outer IP header at `offset`, `length` bytes with all that is behind it.
static __always_inline int write_outer(struct xdp_md *ctx, const struct server *server, __u32 offset, __u32 length, __u8 class,
				       __u32 entropy)
{
	if (server->outer == OUTER_IPV4) {
		struct iphdr *ip = at(ctx, offset, sizeof(*ip));

		if (!ip)
			return -1;
		__builtin_memcpy(ip, server->header, sizeof(*ip));
		ip->tos = class;
		ip->tot_len = bpf_htons(length);
		ip->check = checksum_finish((__u64)server->outer_sum + bpf_htons(class) + bpf_htons(length));
	} else {
		struct ipv6hdr *ip = at(ctx, offset, sizeof(*ip));

		if (!ip)
			return -1;
		__builtin_memcpy(ip, server->header, sizeof(*ip));
		*(__be32 *)ip = bpf_htonl(6u << 28 | (__u32)class << 20 | (entropy & 0xfffff));
		ip->payload_len = bpf_htons(length - sizeof(*ip));
	}
	return 0;
}

// GRE, or UDP whose source port is the flow's, so that the network and the server's NIC spread flows.
static __always_inline int write_shim(struct xdp_md *ctx, const struct server *server, __u32 offset, __u32 length, __u32 entropy)
{
	__u8 *shim = at(ctx, offset, GRE_LEN);

	if (!shim)
		return -1;
	__builtin_memcpy(shim, server->shim, GRE_LEN);
	if (server->shim_len == GRE_LEN)
		return 0;
	shim = at(ctx, offset, 8);
	if (!shim)
		return -1;
	*(__be16 *)shim = bpf_htons(0xc000 | (entropy & 0x3fff));
	*(__be16 *)(shim + 4) = bpf_htons(length);
	*(__be16 *)(shim + 6) = 0;  // RFC 6935: tunnels may leave the checksum out; the inner packet has its own
	if (server->shim_len == 8)
		return 0;
	shim = at(ctx, offset + 8, 4);
	if (!shim)
		return -1;
	__builtin_memcpy(shim, server->shim + 8, 4);
	return 0;
}

static __always_inline __u32 outer_length(const struct server *server)
{
	return (server->outer == OUTER_NONE ? 0 : server->outer == OUTER_IPV4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr)) +
	       server->shim_len;
}

// Rewrites the frame for a server. Less than zero: there is no room for it.
__noinline int encapsulate(struct xdp_md *ctx, const struct packet *packet, __u32 half, __u16 id, __u32 entropy)
{
	struct server *server = find_server(half, id);
	__u32 link, added;
	__u8 class;
	int grow;

	if (!packet || !server)
		return -1;
	if (take_hop(ctx, packet, &class) < 0)
		return -1;
	link = sizeof(struct ethhdr) + (server->tags & 3) * sizeof(struct vlan_tag);
	added = outer_length(server);
	grow = (int)(link + added) - (int)packet->l3;
	if (grow && bpf_xdp_adjust_head(ctx, -grow) < 0)
		return -1;
	if (write_link(ctx, server) < 0)
		return -1;
	if (server->outer == OUTER_NONE)
		return 0;
	if (write_outer(ctx, server, link, added + packet->length, class, entropy) < 0)
		return -1;
	if (!server->shim_len)
		return 0;
	return write_shim(ctx, server, link + added - server->shim_len, server->shim_len + packet->length, entropy);
}

// The same for a server on layer 2 when the frame need not grow or shrink, the commonest of all.
static __always_inline int readdress(struct xdp_md *ctx, const struct packet *packet, const struct server *server)
{
	__u8 class;

	return take_hop(ctx, packet, &class) < 0 ? -1 : write_link(ctx, server);
}

static __always_inline bool keeps_its_length(const struct packet *packet, const struct server *server)
{
	return server->outer == OUTER_NONE && server->tags == packet->tags;
}

static __always_inline void count_packet(__u16 id, __u32 bytes, __u8 new_flow, __u8 end_flow)
{
	__u32 key = id;
	struct server_counters *mine = bpf_map_lookup_elem(&server_counters, &key);

	if (!mine)
		return;
	mine->packets++;
	mine->bytes += bytes;
	mine->flows += new_flow;
	mine->ended += end_flow;
}

static __always_inline int send(struct xdp_md *ctx, __u32 out, __u32 ifindex)
{
	return ifindex == out ? XDP_TX : bpf_redirect(ifindex, 0);
}
