// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Datagrams in fragments: the first one has ports and finds the server, the later ones follow it by
// the datagram's id; to the kernel, too, which could not put a datagram together without them.
#pragma once

#include "../lib/packet.h"
#include "hash.h"
#include "services.h"

#define FRAGMENT_OF_KERNEL 0  // in the place of a server, of which none has this number

#define FRAGMENT_SECOND_SHIFT 30
#define FRAGMENT_SECONDS 30  // RFC 8200, section 4.5, lets a receiver wait for 60; Linux waits for
			     // 30

static __always_inline __u64 fragment_hash(const struct packet *packet, const struct tuple *tuple)
{
	// IPv6 identifies a datagram without its protocol, and only the first fragment is sure to
	// tell it.
	__u32 protocol = packet->family == 4 ? packet->protocol : 0;

	return mix(mix(hash_client(settings.seed, tuple) ^ pair(packet->id, protocol)));
}

static __always_inline __u16 fragment_second(void)
{
	return bpf_ktime_get_coarse_ns() >> FRAGMENT_SECOND_SHIFT;
}

static __always_inline struct fragment_bucket *fragment_bucket(__u64 hash)
{
	__u32 key = reduce(hash, FRAGMENT_BUCKETS);

	return bpf_map_lookup_elem(&fragments, &key);
}

// A first fragment went to this server, or to the kernel. Takes the place of the same datagram, or
// of the one seen longest ago.
__noinline int remember_fragment(const struct packet *packet, const struct tuple *tuple,
				 __u16 server)
{
	__u16 second = fragment_second(), best_age = 0;
	struct fragment_bucket *bucket;
	__u32 best = 0, i;
	__u64 hash;

	if (!packet || !tuple)
		return 0;
	hash = fragment_hash(packet, tuple);
	bucket = fragment_bucket(hash);
	if (!bucket)
		return 0;
	for (i = 0; i < FRAGMENT_SLOTS; i++) {
		__u64 entry = bucket->slot[i];
		__u16 age = second - (__u16)entry;

		if (!entry || entry >> 32 == (__u32)hash) {
			best = i;
			break;
		}
		if (age >= best_age) {
			best = i;
			best_age = age;
		}
	}
	bucket->slot[best & (FRAGMENT_SLOTS - 1)] = (__u64)(__u32)hash << 32 | (__u32)server << 16 |
						    second;
	return 0;
}

// Where a later fragment's datagram goes: a server, or FRAGMENT_OF_KERNEL; less than zero: its
// first fragment was not seen.
__noinline int recall_fragment(const struct packet *packet, const struct tuple *tuple)
{
	__u16 second = fragment_second();
	struct fragment_bucket *bucket;
	__u64 hash;
	__u32 i;

	if (!packet || !tuple)
		return -1;
	hash = fragment_hash(packet, tuple);
	bucket = fragment_bucket(hash);
	if (!bucket)
		return -1;
	for (i = 0; i < FRAGMENT_SLOTS; i++) {
		__u64 entry = bucket->slot[i];

		if (entry && entry >> 32 == (__u32)hash &&
		    (__u16)(second - (__u16)entry) < FRAGMENT_SECONDS)
			return (__u16)(entry >> 16);
	}
	return -1;
}
