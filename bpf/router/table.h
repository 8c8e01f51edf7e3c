// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Longest prefix match in the tries, and what is found: two dependent reads for IPv4, one a nibble for IPv6.
#pragma once

#include "maps.h"

static __always_inline struct path *path_of(__u32 entry)
{
	return bpf_map_lookup_elem(&paths, &entry);
}

// The path to an IPv4 address in host order.
static __always_inline struct path *table4(__u32 address)
{
	__u32 key = address >> 16, entry;
	struct node4 *node = bpf_map_lookup_elem(&trie4, &key);

	if (!node)
		return NULL;
	entry = node->entry[(address >> 8) & 0xff];
	if (entry & ENTRY_CHILD) {
		key = entry & ~ENTRY_CHILD;
		node = bpf_map_lookup_elem(&trie4, &key);
		if (!node)
			return NULL;
		entry = node->entry[address & 0xff];
	}
	return path_of(entry);
}

// The path to an IPv6 address.
static __always_inline struct path *table6(const struct in6_addr *address)
{
	__u64 bits = bpf_be64_to_cpu(*(const __be64 *)address);
	__u32 key = bits >> 52, entry;
	struct node6 *node = bpf_map_lookup_elem(&trie6, &key);
	struct path *path;
	int i;

	if (!node)
		return NULL;
	entry = node->entry[(bits >> 48) & 0xf];
	bits <<= TRIE6_ROOT_BITS;
	for (i = 0; i < (TRIE6_BITS - TRIE6_ROOT_BITS) / 4 && entry & ENTRY_CHILD; i++) {
		key = entry & ~ENTRY_CHILD;
		node = bpf_map_lookup_elem(&trie6, &key);
		if (!node)
			return NULL;
		entry = node->entry[bits >> 60];
		bits <<= 4;
	}
	path = path_of(entry);
	if (path && path->hosts) {
		__u32 *host = bpf_map_lookup_elem(&hosts6, address);

		if (host)
			return path_of(*host);
	}
	return path;
}
