// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What is remembered of flows: their server, in one word each.
//
// A bucket is two cache lines of eight words, one of which, chosen by the hash, is looked at first.
// Words change by compare and exchange only, so that no CPU undoes what another has done. A
// newcomer takes a free word, or one of those that may go: flows that have not shown that their
// sender exists, that are closed, or that were quiet for settings.idle; of these the one that was
// quiet for longest. Where there is none, it is not remembered: established flows are never evicted
// for new ones, whatever the rate of new ones.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <bpf/bpf_helpers.h>
#include "hash.h"
#include "maps.h"

#define HALF_SLOTS (BUCKET_SLOTS / 2)
#define CLIENT_SALT 0x9e3779b97f4a7c15ULL

// Where a flow is remembered, or would be.
struct place {
	struct bucket *bucket;
	__u32 number;       // of the bucket
	__u32 fingerprint;
	__u32 index;        // of its word in the bucket; BUCKET_SLOTS: it is not there
	__u64 entry;        // the word; 0: it is not there
};

static __always_inline __u32 entry_fingerprint(__u64 entry) { return entry >> 32; }
static __always_inline __u16 entry_server(__u64 entry) { return entry >> 16; }
static __always_inline __u8 entry_state(__u64 entry) { return entry >> 14 & 3; }
static __always_inline __u32 entry_tick(__u64 entry) { return entry & TICK_MASK; }

static __always_inline __u64 make_entry(__u32 fingerprint, __u16 server, __u8 state, __u32 tick)
{
	return (__u64)fingerprint << 32 | (__u32)server << 16 | (__u32)state << 14 | tick;
}

static __always_inline __u32 entry_age(__u64 entry, __u32 tick)
{
	return (tick - entry_tick(entry)) & TICK_MASK;
}

static __always_inline __u32 now_tick(void)
{
	return bpf_ktime_get_coarse_ns() >> TICK_SHIFT & TICK_MASK;
}

// Looks a hash up: fills the place, found or not. False: there is no table.
static __always_inline bool find_place(__u64 hash, struct place *place)
{
	__u32 near, i;

	place->fingerprint = hash;
	place->number = reduce(hash, settings.buckets);
	place->index = BUCKET_SLOTS;
	place->entry = 0;
	place->bucket = bpf_map_lookup_elem(&flows, &place->number);
	if (!place->bucket)
		return false;
	near = hash & 1 ? HALF_SLOTS : 0;
	for (i = 0; i < BUCKET_SLOTS; i++) {
		__u32 index = i ^ near;
		__u64 entry = place->bucket->slot[index & (BUCKET_SLOTS - 1)];

		if (entry && entry_fingerprint(entry) == place->fingerprint) {
			place->index = index;
			place->entry = entry;
			return true;
		}
	}
	return true;
}

// Puts a word where the old one is. False: another CPU was faster; the next packet tries again.
static __always_inline bool swap_entry(struct place *place, __u32 index, __u64 old, __u64 new)
{
	__u64 *slot = &place->bucket->slot[index & (BUCKET_SLOTS - 1)];

	if (__sync_val_compare_and_swap(slot, old, new) != old)
		return false;
	place->index = index;
	place->entry = new;
	return true;
}

// Remembers what is not in the table yet. False: nobody there may go.
static __always_inline bool insert_entry(struct place *place, __u64 new, __u32 tick)
{
	__u32 near = place->fingerprint & 1 ? HALF_SLOTS : 0;
	__u32 best = BUCKET_SLOTS, best_age = 0, i;
	__u64 victim = 0;

	for (i = 0; i < BUCKET_SLOTS; i++) {
		__u32 index = (i ^ near) & (BUCKET_SLOTS - 1);
		__u64 entry = place->bucket->slot[index];
		__u32 age;
		__u8 state;

		if (!entry)
			return swap_entry(place, index, 0, new);
		age = entry_age(entry, tick);
		state = entry_state(entry);
		if ((state == FLOW_ESTABLISHED || state == FLOW_CLIENT) && age < settings.idle)
			continue;
		if (best == BUCKET_SLOTS || age > best_age) {
			best = index;
			best_age = age;
			victim = entry;
		}
	}
	return best != BUCKET_SLOTS && swap_entry(place, best, victim, new);
}

// Writes down whose flow this is.
static __always_inline void name_flow(const struct place *place, const struct tuple *tuple,
				      __u16 service)
{
	__u32 key = place->number * BUCKET_SLOTS + place->index;
	struct flow_name *name = bpf_map_lookup_elem(&flow_names, &key);

	if (!name)
		return;
	__builtin_memcpy(name->client, tuple->client, sizeof(name->client));
	name->client_port = tuple->client_port;
	name->port = tuple->port;
	name->service = service;
	name->protocol = tuple->protocol;
	name->family = tuple->family;
	name->since = bpf_ktime_get_coarse_ns();
}
