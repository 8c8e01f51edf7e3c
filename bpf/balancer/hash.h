// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Hashes, the same in crates/balancer/src/hash.rs: multiply and fold, a round for each word, one
// more at the end of flows. The seed keeps strangers from choosing flows that meet in one bucket;
// it need not be secret for anything else.
#pragma once

#include <linux/types.h>

// Who speaks with whom. IPv4 addresses are in the first word, the others are zero.
struct tuple {
	__be32 client[4];
	__be32 vip[4];
	__be16 client_port;
	__be16 port;
	__u8 protocol;
	__u8 family;
	__u16 reserved;
};

static __always_inline __u64 mix(__u64 word)
{
	word ^= word >> 32;
	word *= 0xd6e8feb86659fd93ULL;
	return word ^ (word >> 32);
}

static __always_inline __u64 pair(__be32 high, __be32 low)
{
	return (__u64)high << 32 | low;
}

static __always_inline __u64 hash_address(__u64 seed, const __be32 *address, __u8 family)
{
	__u64 hash = mix(seed ^ pair(address[0], family));

	if (family == 6) {
		hash = mix(hash ^ pair(address[1], address[2]));
		hash = mix(hash ^ address[3]);
	}
	return hash;
}

// A client of a VIP, whatever its ports; to be mixed once more before its bits are used.
static __always_inline __u64 hash_client(__u64 seed, const struct tuple *tuple)
{
	__u64 hash = mix(seed ^ pair(tuple->client[0], tuple->vip[0]));

	if (tuple->family == 6) {
		hash = mix(hash ^ pair(tuple->client[1], tuple->client[2]));
		hash = mix(hash ^ pair(tuple->client[3], tuple->vip[1]));
		hash = mix(hash ^ pair(tuple->vip[2], tuple->vip[3]));
	}
	return hash;
}

// A flow, from its client's hash.
static __always_inline __u64 hash_flow(__u64 client, const struct tuple *tuple)
{
	return mix(mix(client ^
		       ((__u64)tuple->client_port << 32 | (__u32)tuple->port << 16 |
			tuple->protocol)));
}

// Evenly from 0 to size - 1, by the hash's high half.
static __always_inline __u32 reduce(__u64 hash, __u32 size)
{
	return ((hash >> 32) * size) >> 32;
}
