// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Longest prefix match in the tries (router.h says what is where), and what is found.
//
// A node is one read that may miss the caches, or with an index two or three. The search among its runs takes no branch
// that depends on the address: with random destinations half of them would be foreseen wrongly.
#pragma once

#include "maps.h"

static __always_inline struct path *path_of(__u32 number)
{
	return bpf_map_lookup_elem(&paths, &number);
}

// The block that an entry leads to; `*first` is its first word in the element.
static __always_inline const struct element *block_of(void *trie, __u32 entry, __u32 *first)
{
	__u32 line = entry & ENTRY_LINE_MASK, key = line * LINE_WORDS / ELEMENT_WORDS;

	*first = line * LINE_WORDS % ELEMENT_WORDS;
	return bpf_map_lookup_elem(trie, &key);
}

// No block reaches beyond its element; the verifier has to see it.
static __always_inline __u32 word(const struct element *element, __u32 at)
{
	return element->word[at % ELEMENT_WORDS];
}

// What a node says of a slot: a path's number or another node, or 0 for nothing, and then `*best` is what is known.
static __always_inline __u32 look(const struct element *element, __u32 at, __u32 entry, __u32 slot, __u32 width, __u32 *best)
{
	__u32 bits = entry >> ENTRY_BITS_SHIFT & ENTRY_BITS_MASK, bucket = slot >> (width - bits);
	__u32 head, runs, low, more, wide;
	int i;

	if (entry & ENTRY_LINES) {
		at += bucket * LINE_WORDS;
		head = word(element, at);
		runs = at + 1;
		low = 0;
		more = head >> NODE_MORE_SHIFT & NODE_MORE_MASK;
	} else {
		__u32 index = word(element, at + 1 + bucket);

		head = word(element, at);
		runs = at + 1 + (1 << bits);
		low = index & 0xffff;
		more = index >> 16;
	}
	wide = head >> 31;
	if (head & NODE_VALUE_MASK)
		*best = head & NODE_VALUE_MASK;
	// The run is among `low` and `more` after it. At the most 2^16 are halved until one is left.
	for (i = 0; i < 17 && more; i++) {
		__u32 half = (more + 1) / 2;
		__u64 beyond = (__u64)slot - (word(element, runs + ((low + half) << wide)) >> 16);

		// All ones if that run begins beyond the slot.
		beyond = (__s64)beyond >> 63;
		asm volatile("" : "+r"(beyond));
		low += half & ~(__u32)beyond;
		more -= half;
	}
	return wide ? word(element, runs + 2 * low + 1) : word(element, runs + low) & 0xffff;
}

// The number of the path to an IPv4 address in host order. A function of its own for the verifier, who looks at it once.
__attribute__((noinline)) __u32 find4(__u32 address)
{
	__u32 slot = address >> TRIE4_WIDTH, key = slot / ELEMENT_WORDS, first, entry, best = 0;
	const struct element *element = bpf_map_lookup_elem(&trie4, &key);

	if (!element)
		return 0;
	entry = word(element, slot);
	if (!(entry & ENTRY_CHILD))
		return entry;
	element = block_of(&trie4, entry, &first);
	if (!element)
		return 0;
	entry = look(element, first, entry, address & ((1 << TRIE4_WIDTH) - 1), TRIE4_WIDTH, &best);
	return entry ? entry : best;
}

// The number of the path to an IPv6 address, of which the first 64 bits are given in host order.
__attribute__((noinline)) __u32 find6(__u64 bits)
{
	__u32 zero = 0, first, entry, best = 0;
	const struct element *element = bpf_map_lookup_elem(&trie6, &zero);
	int i;

	if (!element)
		return 0;
	entry = word(element, bits >> (64 - TRIE6_WIDTH));
	for (i = 0; i < TRIE6_LEVELS && entry & ENTRY_CHILD; i++) {
		bits <<= TRIE6_WIDTH;
		element = block_of(&trie6, entry, &first);
		if (!element)
			return 0;
		entry = look(element, first, entry, bits >> (64 - TRIE6_WIDTH), TRIE6_WIDTH, &best);
	}
	return entry ? entry : best;
}

// The path to an IPv4 address in host order.
static __always_inline struct path *table4(__u32 address)
{
	return path_of(find4(address));
}

// The path to an IPv6 address.
static __always_inline struct path *table6(const struct in6_addr *address)
{
	struct path *path = path_of(find6(bpf_be64_to_cpu(*(const __be64 *)address)));

	if (path && path->hosts) {
		__u32 *host = bpf_map_lookup_elem(&hosts6, address);

		if (host)
			return path_of(*host);
	}
	return path;
}
