// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Answers to a packet's sender: ICMP (RFC 792, RFC 1812) and ICMPv6 (RFC 4443) errors, for all
// programs that forward.
//
// icmp_error() makes the frame in hand into the error about it and sends it back where it came
// from: Ethernet addresses swapped, VLAN tags kept, the packet's start quoted. It is rate limited,
// and says no to packets that must not be answered.
#pragma once

#include "begun.h"
#include "checksum.h"
#include "packet.h"

// linux/icmp.h needs a C library for the machine, which `-target bpf` does not have.
#define ICMP_UNREACHABLE 3
#define ICMP_FRAGMENTATION_NEEDED 4  // code of it
#define ICMP_TIME_EXCEEDED 11
#define ICMPV6_TOO_BIG 2
#define ICMPV6_TIME_EXCEEDED 3

#define ICMP_QUOTE 128         // bytes of the packet that an error quotes: the longest headers we
			       // forward fit
#define ICMP_WINDOW_SHIFT 27   // the rate is counted in windows of 2^27 ns = 134 ms,
#define ICMP_WINDOW_LIMIT 128  // with so many errors at the most in each: about 950 a second and
			       // CPU
#define ICMP_TTL 64

// What to say. The family is the packet's.
struct icmp_error {
	__u8 type;
	__u8 code;
	__u16 reserved;
	__be32 rest;       // second word of the header: the MTU, or zero
	__be32 source[4];  // who says it; IPv4: the first word
};

struct icmp_window {
	__u64 number;
	__u64 sent;
};

// The header of both families' errors.
struct icmp_header {
	__u8 type;
	__u8 code;
	__u16 checksum;
	__be32 rest;
};

// How many errors this CPU has sent in the present window.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct icmp_window);
} icmp_rate SEC(".maps");

static __always_inline bool icmp_allowed(void)
{
	__u64 number = bpf_ktime_get_coarse_ns() >> ICMP_WINDOW_SHIFT;
	__u32 zero = 0;
	struct icmp_window *window = bpf_map_lookup_elem(&icmp_rate, &zero);

	if (!window)
		return false;
	if (window->number != number) {
		window->number = number;
		window->sent = 0;
	}
	return window->sent++ < ICMP_WINDOW_LIMIT;
}

// RFC 1122, section 3.2.2; RFC 4443, section 2.4 (e): no error is sent about a packet to a
// broadcast or multicast address, to a source that is no single host's address, or about a later
// fragment. The caller has seen that the packet is no error itself.
static __always_inline bool icmp_answerable(context *ctx, const struct packet *packet)
{
	struct ethhdr *link = at(ctx, 0, sizeof(*link));

	if (!link || link->h_dest[0] & 1 || packet->fragment == FRAGMENT_LATER)
		return false;
	if (packet->family == 4) {
		struct iphdr *ip = at(ctx, packet->l3, sizeof(*ip));
		__u8 first;

		if (!ip)
			return false;
		first = bpf_ntohl(ip->saddr) >> 24;
		return first != 0 && first != 127 && first < 224;
	} else {
		struct ipv6hdr *ip = at(ctx, packet->l3, sizeof(*ip));

		if (!ip || ip->saddr.s6_addr[0] == 0xff)
			return false;
		return ip->saddr.s6_addr32[0] | ip->saddr.s6_addr32[1] | ip->saddr.s6_addr32[2] |
		       ip->saddr.s6_addr32[3];
	}
}

// The sum of the first `length` bytes from `offset`, an even number and ICMP_QUOTE at the most.
static __always_inline __u64 icmp_sum_quote(context *ctx, __u32 offset, __u32 length)
{
	void *end = (void *)(long)ctx->data_end;
	__u16 *word = at(ctx, offset, 0);
	__u64 sum = 0;
	__u32 i;

	for (i = 0; i < ICMP_QUOTE / 2; i++) {
		if (!word || i * 2 >= length || (void *)(word + i + 1) > end)
			break;
		sum += word[i];
	}
	return sum;
}

// Swaps the Ethernet addresses of the header that lies `by` bytes into the frame and writes it,
// tags included, to the front.
static __always_inline int icmp_return_link(context *ctx, __u32 by, __u8 tags)
{
	struct ethhdr *to = at(ctx, 0, sizeof(*to) + PACKET_MAX_TAGS * sizeof(struct vlan_tag));
	struct ethhdr *from = at(ctx, by,
				 sizeof(*from) + PACKET_MAX_TAGS * sizeof(struct vlan_tag));
	struct ethhdr old;
	__u32 tag[PACKET_MAX_TAGS];

	if (!to || !from)
		return -1;
	old = *from;
	__builtin_memcpy(tag, from + 1, sizeof(tag));
	__builtin_memcpy(to->h_dest, old.h_source, ETH_ALEN);
	__builtin_memcpy(to->h_source, old.h_dest, ETH_ALEN);
	to->h_proto = old.h_proto;
	if (tags > 0)
		__builtin_memcpy((void *)(to + 1), &tag[0], sizeof(tag[0]));
	if (tags > 1)
		__builtin_memcpy((void *)(to + 1) + sizeof(tag[0]), &tag[1], sizeof(tag[1]));
	return 0;
}

#ifdef BUTTERFLY_TC

// What an error's sum has to have added so that it is right when the checksum in its quote, which
// begins at `l4` and ends at `end`, has been finished.
static __always_inline __u64 icmp_sum_finished(context *ctx, __u32 l4, __u32 end, __u32 field)
{
	__u16 *checksum = at(ctx, l4 + field, sizeof(*checksum));

	if (!checksum)
		return 0;
	return (__u64)(__u16)~*checksum + checksum_finish(icmp_sum_quote(ctx, l4, end - l4));
}

// Cuts the buffer behind the quote, before anything is put in front of it: what was many segments
// is one packet then.
static __always_inline int icmp_cut(context *ctx, __u32 end)
{
	if (ctx->len > end && bpf_skb_change_tail(ctx, end, 0) < 0)
		return -1;
	frame_pull(ctx, end);
	return 0;
}

#endif

static __always_inline int icmp_error_v4(context *ctx, const struct packet *packet,
					 const struct icmp_error *error, __u32 quote,
					 __u64 finished)
{
	struct icmp_header *icmp;
	struct iphdr *ip;
	__be32 sender;

	ip = at(ctx, packet->l3 + sizeof(*ip) + sizeof(*icmp), sizeof(*ip));
	if (!ip)
		return -1;
	sender = ip->saddr;
	ip = at(ctx, packet->l3, sizeof(*ip) + sizeof(*icmp));
	if (!ip)
		return -1;
	__builtin_memset(ip, 0, sizeof(*ip) + sizeof(*icmp));
	ip->version = 4;
	ip->ihl = sizeof(*ip) / 4;
	ip->tos = 0xc0;  // internetwork control, as RFC 1812, section 4.3.2.5, asks
	ip->tot_len = bpf_htons(sizeof(*ip) + sizeof(*icmp) + quote);
	ip->ttl = ICMP_TTL;
	ip->protocol = IPPROTO_ICMP;
	ip->saddr = error->source[0];
	ip->daddr = sender;
	ip->check = checksum_finish(checksum_ipv4(ip));
	icmp = (void *)(ip + 1);
	icmp->type = error->type;
	icmp->code = error->code;
	icmp->rest = error->rest;
	icmp->checksum = checksum_finish(
		icmp_sum_quote(ctx, packet->l3 + sizeof(*ip), sizeof(*icmp)) +
		icmp_sum_quote(ctx, packet->l3 + sizeof(*ip) + sizeof(*icmp), quote) + finished);
	return 0;
}

static __always_inline int icmp_error_v6(context *ctx, const struct packet *packet,
					 const struct icmp_error *error, __u32 quote,
					 __u64 finished)
{
	struct icmp_header *icmp;
	struct ipv6hdr *ip;
	struct in6_addr sender;
	__u64 sum;

	ip = at(ctx, packet->l3 + sizeof(*ip) + sizeof(*icmp), sizeof(*ip));
	if (!ip)
		return -1;
	sender = ip->saddr;
	ip = at(ctx, packet->l3, sizeof(*ip) + sizeof(*icmp));
	if (!ip)
		return -1;
	__builtin_memset(ip, 0, sizeof(*ip) + sizeof(*icmp));
	ip->version = 6;
	ip->payload_len = bpf_htons(sizeof(*icmp) + quote);
	ip->nexthdr = IPPROTO_ICMPV6;
	ip->hop_limit = ICMP_TTL;
	__builtin_memcpy(&ip->saddr, error->source, sizeof(ip->saddr));
	ip->daddr = sender;
	icmp = (void *)(ip + 1);
	icmp->type = error->type;
	icmp->code = error->code;
	icmp->rest = error->rest;
	// The pseudo-header: both addresses, the length, the protocol.
	sum = bpf_htonl(sizeof(*icmp) + quote) + (__u64)bpf_htonl(IPPROTO_ICMPV6);
	sum += icmp_sum_quote(ctx, packet->l3 + offsetof(struct ipv6hdr, saddr),
			      2 * sizeof(struct in6_addr) + sizeof(*icmp));
	sum += icmp_sum_quote(ctx, packet->l3 + sizeof(*ip) + sizeof(*icmp), quote) + finished;
	icmp->checksum = checksum_finish(sum);
	return 0;
}

// Sends the error about this packet. Less than zero: nothing may be said, and the frame, perhaps
// changed, is to be dropped.
static __noinline int icmp_error(context *ctx, struct packet *packet,
				 const struct icmp_error *error)
{
	__u32 quote = packet->length < ICMP_QUOTE ? packet->length & ~1u : ICMP_QUOTE;
	__u32 grow = packet->family == 4 ? sizeof(struct iphdr) + sizeof(struct icmp_header)
					 : sizeof(struct ipv6hdr) + sizeof(struct icmp_header);
	__u64 finished = 0;
#ifdef BUTTERFLY_TC
	__u32 field;
#else
	int surplus;
#endif

	if (!icmp_answerable(ctx, packet) || !icmp_allowed())
		return -1;
#ifdef BUTTERFLY_TC
	// Whoever sends the buffer out finishes the checksum of what is only a quote any more, and the
	// error's own has to count with that. SCTP's is not known before it is there.
	field = checksum_begun(ctx, packet);
	if (field == SCTP_CHECKSUM)
		return -1;
	if (icmp_cut(ctx, packet->l3 + quote) < 0)
		return -1;
	if (field)
		finished = icmp_sum_finished(ctx, packet->l4, packet->l3 + quote, field);
#endif
	if (frame_grow_front(ctx, grow) < 0)
		return -1;
	if (icmp_return_link(ctx, grow, packet_tags_within(packet)) < 0)
		return -1;
	if (packet->family == 4) {
		if (icmp_error_v4(ctx, packet, error, quote, finished) < 0)
			return -1;
	} else {
		if (icmp_error_v6(ctx, packet, error, quote, finished) < 0)
			return -1;
	}
#ifndef BUTTERFLY_TC
	surplus = frame_length(ctx) - (packet->l3 + grow + quote);
	if (surplus > 0 && frame_cut_end(ctx, surplus) < 0)
		return -1;
#endif
	return frame_return(ctx);
}
