// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// To the server: one hop less, the new headers in front, out of its interface.
//
// At tc ingress a packet may be many segments (GSO) whose checksums are begun. They stay so: the
// kernel is told what is put in front of them (BPF_F_ADJ_ROOM_ENCAP_*) and cuts them behind the
// tunnel's header, or the device does, or nobody where the server's kernel takes them whole. What
// is asked about a packet's length is asked of the longest segment.
#pragma once

#include "../lib/checksum.h"
#include "../lib/packet.h"
#include "maps.h"
#include "services.h"
#include <linux/tcp.h>

#define GRE_LEN 4  // a shim that is longer begins with UDP
#define UDP_HEADER 8
#define TCP_OFFSET_OFFSET 12          // the byte whose upper half is the header's length in words
#define SEGMENTS_OWN_LENGTHS 0xffff   // linux/skbuff.h, GSO_BY_FRAGS: SCTP's

// What the outer header takes over from the inner one: DSCP and ECN (RFC 2983, RFC 6040).
static __always_inline int take_hop(context *ctx, const struct packet *packet, __u8 *class)
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
		ipv6_decrement_hop_limit(ctx, ip);
		*class = bpf_ntohl(*(__be32 *)ip) >> 20;
	}
	return 0;
}

// Bytes of a server's Ethernet header as it lies in the frame.
static __always_inline __u32 link_length(const struct server *server)
{
#ifdef BUTTERFLY_TC
	return sizeof(struct ethhdr);
#else
	return sizeof(struct ethhdr) + (server->tags & 3) * sizeof(struct vlan_tag);
#endif
}

#ifdef BUTTERFLY_TC

#define SERVER_TAG 12  // where a server's tags begin in its Ethernet header

// The Ethernet header in the frame has no tags; they lie beside it, the outer one, or are put back
// by write_tags().
static __always_inline int write_link(context *ctx, const struct server *server)
{
	struct ethhdr *link = at(ctx, 0, sizeof(*link));

	if (!link)
		return -1;
	__builtin_memcpy(link, server->link, 2 * ETH_ALEN);
	if (server->outer == OUTER_IPV4)
		link->h_proto = bpf_htons(ETH_P_IP);
	else if (server->outer == OUTER_IPV6)
		link->h_proto = bpf_htons(ETH_P_IPV6);
	return 0;
}

// The kernel's helper puts each one in front of those before: the inner one first.
static __always_inline int write_tags(context *ctx, const struct server *server)
{
	const struct vlan_tag *tag = (const void *)server->link + SERVER_TAG;

	// In a server's header a tag's two words are the ethertype that says "tag", and the tag.
	if (server->tags > 1 && bpf_skb_vlan_push(ctx, tag[1].tci, bpf_ntohs(tag[1].next)) < 0)
		return -1;
	return server->tags > 0 ? bpf_skb_vlan_push(ctx, tag[0].tci, bpf_ntohs(tag[0].next)) : 0;
}

// What makes room for `added` bytes between Ethernet's header and the packet tells the kernel what
// they are, so that segments are cut behind them.
static __always_inline int make_room(context *ctx, const struct packet *packet,
				     const struct server *server, __u32 added)
{
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO;

	if (packet->tags > 0 && bpf_skb_vlan_pop(ctx) < 0)
		return -1;
	if (packet->tags > 1 && bpf_skb_vlan_pop(ctx) < 0)
		return -1;
	if (!added)
		return 0;
	// All lengths in the outer headers are words of 16 bits.
	if (packet->length + added > 0xffff)
		return -1;
	flags |= server->outer == OUTER_IPV4 ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 :
		 BPF_F_ADJ_ROOM_ENCAP_L3_IPV6;
	if (server->shim_len)
		flags |= server->shim_len == GRE_LEN ? BPF_F_ADJ_ROOM_ENCAP_L4_GRE :
			 BPF_F_ADJ_ROOM_ENCAP_L4_UDP;
	if (bpf_skb_adjust_room(ctx, added, BPF_ADJ_ROOM_MAC, flags) == 0)
		return 0;
	// In a tunnel already, of which the kernel knows one only: a packet by itself needs nothing
	// told.
	return frame_segment(ctx) ? -1 : bpf_skb_adjust_room(ctx, added, BPF_ADJ_ROOM_MAC, 0);
}

#else

static __always_inline int write_link(context *ctx, const struct server *server)
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

// write_link() has written them.
static __always_inline int write_tags(context *ctx, const struct server *server)
{
	return 0;
}

static __always_inline int make_room(context *ctx, const struct packet *packet,
				     const struct server *server, __u32 added)
{
	int grow = (int)(link_length(server) + added) - (int)packet->l3;

	return grow ? bpf_xdp_adjust_head(ctx, -grow) : 0;
}

#endif

// The outer IP header at `offset`, `length` bytes with all that is behind it.
static __always_inline int write_outer(context *ctx, const struct server *server, __u32 offset,
				       __u32 length, __u8 class, __u32 entropy)
{
	if (server->outer == OUTER_IPV4) {
		struct iphdr *ip = at(ctx, offset, sizeof(*ip));

		if (!ip)
			return -1;
		__builtin_memcpy(ip, server->header, sizeof(*ip));
		ip->tos = class;
		ip->tot_len = bpf_htons(length);
		ip->check = checksum_finish((__u64)server->outer_sum + bpf_htons(class) +
					    bpf_htons(length));
	} else {
		struct ipv6hdr *ip = at(ctx, offset, sizeof(*ip));

		if (!ip)
			return -1;
		__builtin_memcpy(ip, server->header, sizeof(*ip));
		*(__be32 *)ip = bpf_htonl(6u << 28 | (__u32)class << 20 | (entropy & 0xfffff));
		ip->payload_len = bpf_htons(length - sizeof(*ip));
		// An IPv4 header's sum is nothing, by its checksum.
		frame_sum_more(ctx, checksum_ipv6(ip));
	}
	return 0;
}

// GRE, or UDP whose source port is the flow's, so that the network and the server's NIC spread
// flows.
static __always_inline int write_shim(context *ctx, const struct server *server, __u32 offset,
				      __u32 length, __u32 entropy)
{
	__u8 *shim = at(ctx, offset, GRE_LEN);

	if (!shim)
		return -1;
	__builtin_memcpy(shim, server->shim, GRE_LEN);
	if (server->shim_len == GRE_LEN) {
		frame_sum_more(ctx, *(__u32 *)shim);
		return 0;
	}
	shim = at(ctx, offset, 8);
	if (!shim)
		return -1;
	*(__be16 *)shim = bpf_htons(0xc000 | (entropy & 0x3fff));
	*(__be16 *)(shim + 4) = bpf_htons(length);
	// RFC 6935: tunnels may leave the checksum out; the inner packet has its own
	*(__be16 *)(shim + 6) = 0;
	frame_sum_more(ctx, checksum_fold((__u64)*(__u32 *)shim + *(__u32 *)(shim + 4)));
	if (server->shim_len == 8)
		return 0;
	shim = at(ctx, offset + 8, 4);
	if (!shim)
		return -1;
	__builtin_memcpy(shim, server->shim + 8, 4);
	frame_sum_more(ctx, *(__u32 *)shim);
	return 0;
}

static __always_inline __u32 outer_length(const struct server *server)
{
	return (server->outer == OUTER_NONE ? 0 :
		server->outer == OUTER_IPV4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr)) +
	       server->shim_len;
}

// Rewrites the frame for a server. Less than zero: there is no room for it.
__noinline int encapsulate(context *ctx, const struct packet *packet, __u32 half, __u16 id,
			   __u32 entropy)
{
	struct server *server = find_server(half, id);
	__u32 link, added;
	__u8 class;

	if (!packet || !server)
		return -1;
	if (take_hop(ctx, packet, &class) < 0)
		return -1;
	link = link_length(server);
	added = outer_length(server);
	if (make_room(ctx, packet, server, added) < 0)
		return -1;
	if (write_link(ctx, server) < 0)
		return -1;
	if (server->outer != OUTER_NONE) {
		if (write_outer(ctx, server, link, added + packet->length, class, entropy) < 0)
			return -1;
		if (server->shim_len && write_shim(ctx, server, link + added - server->shim_len,
						   server->shim_len + packet->length, entropy) < 0)
			return -1;
	}
	return write_tags(ctx, server);
}

// Addresses a frame to a server on layer 2 when it need not grow or shrink, the commonest case.
static __always_inline int readdress(context *ctx, const struct packet *packet,
				     const struct server *server)
{
	__u8 class;

	return take_hop(ctx, packet, &class) < 0 ? -1 : write_link(ctx, server);
}

static __always_inline bool keeps_its_length(const struct packet *packet,
					     const struct server *server)
{
#ifdef BUTTERFLY_TC
	// A tag that lies beside the frame is changed by taking it off.
	return server->outer == OUTER_NONE && !(server->tags | packet->tags);
#else
	return server->outer == OUTER_NONE && server->tags == packet->tags;
#endif
}

// Bytes of the longest packet that this one is on a wire: of itself, or of one of its segments.
static __always_inline __u32 longest_packet(context *ctx, const struct packet *packet)
{
#ifdef BUTTERFLY_TC
	__u32 segment = frame_segment(ctx), longest = packet->l4 - packet->l3 + segment;

	if (!segment)
		return packet->length;
	// No longer than the device took them that they came by.
	if (segment == SEGMENTS_OWN_LENGTHS)
		return 0;
	if (packet->protocol == IPPROTO_TCP) {
		__u8 *offset = at(ctx, packet->l4 + TCP_OFFSET_OFFSET, 1);

		longest += offset ? (*offset >> 4) * 4 : sizeof(struct tcphdr);
	} else {
		longest += UDP_HEADER;
	}
	return longest < packet->length ? longest : packet->length;
#else
	return packet->length;
#endif
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

static __always_inline int send(context *ctx, __u32 out, __u32 ifindex)
{
	return ifindex == out ? frame_return(ctx) : bpf_redirect(ifindex, 0);
}
