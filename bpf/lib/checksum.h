// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The Internet checksum (RFC 1071) and its update by increment (RFC 1624), for all programs that
// change a header.
//
// A sum is the one's complement sum of 16-bit words as they lie in memory, not yet folded: adding
// is all that is needed to put pieces together, and byte order does not matter as long as nobody
// swaps.
#pragma once

#include <linux/bpf.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "context.h"

// A sum's 16 bits. Good for sums of up to 2^16 words.
static __always_inline __u16 checksum_fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

// Whether what sums up to this has the right checksum in it: the sum is a multiple of 0xffff, and
// not zero. Good for sums of up to 2^16 words.
static __always_inline bool checksum_holds(__u64 sum)
{
	sum = (__u32)sum + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum == 0xffff || sum == 2 * 0xffff;
}

// The checksum field of what sums up to this.
static __always_inline __u16 checksum_finish(__u64 sum)
{
	return ~checksum_fold(sum);
}

// The checksum after a 16-bit word changed from `old` to `new` (RFC 1624, equation 3: it never
// gives the wrong zero).
static __always_inline __u16 checksum_replace16(__u16 checksum, __u16 old, __u16 new)
{
	return ~checksum_fold((__u64)(__u16)~checksum + (__u16)~old + new);
}

// The checksum after a 32-bit word changed.
static __always_inline __u16 checksum_replace32(__u16 checksum, __u32 old, __u32 new)
{
	return ~checksum_fold((__u64)(__u16)~checksum + (__u32)~old + new);
}

// One hop less. The caller has seen that the TTL is above one. The TTL is the high byte of its
// word: that is 0x100 less, and the checksum 0x100 more (RFC 1141).
static __always_inline void ipv4_decrement_ttl(struct iphdr *ip)
{
	__u32 check = (__u32)ip->check + bpf_htons(0x0100);

	ip->check = check + (check >= 0xffff);
	ip->ttl--;
}

// Likewise. IPv6 has no checksum that would make up for it, so a sum of the whole packet that a NIC
// has made changes.
static __always_inline void ipv6_decrement_hop_limit(context *ctx, struct ipv6hdr *ip)
{
	ip->hop_limit--;
	frame_sum_more(ctx, (__u16)~bpf_htons(1));
}

// The sum of an IPv4 header without options.
static __always_inline __u64 checksum_ipv4(const struct iphdr *ip)
{
	const __u32 *word = (const __u32 *)ip;

	return (__u64)word[0] + word[1] + word[2] + word[3] + word[4];
}

// The sum of an IPv6 header, folded.
static __always_inline __u16 checksum_ipv6(const struct ipv6hdr *ip)
{
	const __u32 *word = (const __u32 *)ip;
	__u64 sum = 0;
	int i;

#pragma unroll
	for (i = 0; i < 10; i++)
		sum += word[i];
	return checksum_fold(sum);
}
