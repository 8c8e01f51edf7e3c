// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Longest prefix match in the tries (router.h says what is where), and what is found.
//
// A node is one read that may miss the caches, or with an index two or three. The search among its
// runs takes no branch that depends on the address: with random destinations half of them would be
// foreseen wrongly.
#pragma once

#include "maps.h"

static __always_inline const struct path *path_of(__u32 number)
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

// A half word of an element, and below a byte.
static __always_inline __u32 half_word(const struct element *element, __u32 at)
{
	return ((const __u16 *)element)[at % (2 * ELEMENT_WORDS)];
}

static __always_inline __u32 byte(const struct element *element, __u32 at)
{
	return ((const __u8 *)element)[at % (4 * ELEMENT_WORDS)];
}

// One step of the search for the run that a slot is in, among `low` and `more` after it, of which
// `first` is where the one in the middle begins, `half` of them after `low`. None of it is a
// branch.
static __always_inline void halve(__u32 first, __u32 slot, __u32 half, __u32 *low, __u32 *more)
{
	__u64 beyond = (__u64)slot - first;

	// All ones if that run begins beyond the slot.
	beyond = (__s64)beyond >> 63;
	asm volatile("" : "+r"(beyond));
	*low += half & ~(__u32)beyond;
	*more -= half;
}

// Halves a range of runs of one word, or of two.
static __always_inline void halve_runs(const struct element *element, __u32 runs, __u32 wide,
				       __u32 slot, __u32 *low, __u32 *more)
{
	__u32 half = (*more + 1) / 2;

	halve(word(element, runs + ((*low + half) << wide)) >> 16, slot, half, low, more);
}

// What a line of runs of three bytes says of a slot.
static __always_inline __u32 look_short(const struct element *element, __u32 at, __u32 more,
					__u32 slot)
{
	__u32 low = 0, firsts = 2 * at + SHORT_FIRSTS;
	int i;

	// Always as often as a full line needs: how full this one is cannot be foreseen either.
#pragma unroll
	for (i = 0; i < 5; i++) {
		__u32 half = (more + 1) / 2;

		halve(half_word(element, firsts + low + half), slot, half, &low, &more);
	}
	return byte(element, 4 * at + SHORT_VALUES + low);
}

// What a node with lines says of a slot: a path's number or another node, or 0 for nothing, and
// then `*best` is what is known.
static __always_inline __u32 look_lines(const struct element *element, __u32 at, __u32 entry,
					__u32 slot, __u32 width, __u32 *best)
{
	__u32 bits = entry >> ENTRY_BITS_SHIFT & ENTRY_LINES_MASK, head, more, wide, low = 0;
	int i;

	at += (slot >> (width - bits)) * LINE_WORDS;
	head = word(element, at);
	more = head >> NODE_MORE_SHIFT & NODE_MORE_MASK;
	if (head & NODE_VALUE_MASK)
		*best = head & NODE_VALUE_MASK;
	if (entry & ENTRY_SHORT)
		return look_short(element, at, more, slot);
	wide = head >> 31;
	// Always as often as a full line needs.
#pragma unroll
	for (i = 0; i < 4; i++)
		halve_runs(element, at + 1, wide, slot, &low, &more);
	return word(element, at + 1 + (low << wide) + wide) & (0xffff | -wide);
}

// What a node with an index says of a slot.
static __always_inline __u32 look_index(const struct element *element, __u32 at, __u32 entry,
					__u32 slot, __u32 width, __u32 *best)
{
	__u32 bits = entry >> ENTRY_BITS_SHIFT & ENTRY_BITS_MASK;
	__u32 head = word(element, at), index = word(element, at + 1 + (slot >> (width - bits)));
	__u32 runs = at + 1 + (1 << bits), low = index & 0xffff, more = index >> 16,
	      wide = head >> 31;
	int i;

	if (head & NODE_VALUE_MASK)
		*best = head & NODE_VALUE_MASK;
	// At the most 2^16 are halved until one is left.
	for (i = 0; i < 17 && more; i++)
		halve_runs(element, runs, wide, slot, &low, &more);
	return word(element, runs + (low << wide) + wide) & (0xffff | -wide);
}

// What is said of an address, or where nothing is, what is known from above. No branch either.
static __always_inline __u32 either(__u32 entry, __u32 best)
{
	__u64 nothing = (__s64)((__u64)entry - 1) >> 63;

	asm volatile("" : "+r"(nothing));
	return entry | (best & (__u32)nothing);
}

// What the root says of an IPv4 address in host order: a path's number, or a node.
static __always_inline __u32 root4(__u32 address)
{
	__u32 zero = 0;
	const struct element *element = bpf_map_lookup_elem(&trie4, &zero);

	return element ? word(element, address >> TRIE4_WIDTH) : 0;
}

// What a node with an index says. A function of its own for the verifier, who looks at it once.
__attribute__((noinline)) __u32 index4(__u32 root, __u32 address)
{
	__u32 first, entry, best = 0;
	const struct element *element = block_of(&trie4, root, &first);

	if (!element)
		return 0;
	entry = look_index(element, first, root, address & ((1 << TRIE4_WIDTH) - 1), TRIE4_WIDTH,
			   &best);
	return either(entry, best);
}

// The number of the path to an IPv4 address in host order, of which the root has said `root`.
static __always_inline __u32 find4(__u32 root, __u32 address)
{
	__u32 first, entry, best = 0;
	const struct element *element;

	if (!(root & ENTRY_CHILD))
		return root;
	if (!(root & ENTRY_LINES))
		return index4(root, address);
	element = block_of(&trie4, root, &first);
	if (!element)
		return 0;
	entry = look_lines(element, first, root, address & ((1 << TRIE4_WIDTH) - 1), TRIE4_WIDTH,
			   &best);
	return either(entry, best);
}

// The number of the path to an IPv6 address, of which the first 64 bits are given in host order.
__attribute__((noinline)) __u32 find6(__u64 bits)
{
	__u32 zero = 0, first, entry, slot, best = 0;
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
		slot = bits >> (64 - TRIE6_WIDTH);
		if (entry & ENTRY_LINES)
			entry = look_lines(element, first, entry, slot, TRIE6_WIDTH, &best);
		else
			entry = look_index(element, first, entry, slot, TRIE6_WIDTH, &best);
	}
	return either(entry, best);
}

// The path to an IPv6 address, of which the trie has said `number`.
static __always_inline const struct path *table6(__u32 number, const struct in6_addr *address)
{
	const struct path *path = path_of(number);

	if (path && path->hosts) {
		__u32 *host = bpf_map_lookup_elem(&hosts6, address);

		if (host)
			return path_of(*host);
	}
	return path;
}
