// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The server of a packet: the one its flow has, as long as it may have it, and Maglev's otherwise.
//
// Where a slot of the Maglev table is calm, its server is the server of all its flows that say when
// they begin (TCP, SCTP), and nothing is looked up or written. A slot whose server has changed is
// watched: flows that begin are remembered, and one that goes on without being known began before
// the change and belongs to the server from before. Datagram flows do not say when they begin, and
// clients of sticky services have flows that begin at different times: they are always watched.
#pragma once

#include "flows.h"
#include "services.h"
#include "transport.h"

// What is asked of choose() about a packet's flow, and what it found.
struct choice {
	__u32 half;
	__u16 vip;
	__u8 part;       // enum part
	__u8 new_flow;   // found: 1, this packet is the flow's first
	__u8 end_flow;   // found: 1, this packet ends it
	__u32 entropy;   // found: of the flow, for outer headers
};

enum chosen {
	CHOSEN_NOBODY = 0,       // the service has no server; more than this: the server's number
	CHOSEN_NO_SERVICE = -1,
};

// A flow that its client goes on with so many ticks after its end was not ended: somebody else has
// said so, or it is closed on one side alone.
#define CLOSED_TICKS 2

// Whether a flow that was seen before goes on with its server. An established one is not moved by
// who begins it anew, however long it was silent: anybody could in its client's name. A server that
// has it still says so, and the reset of a client that knows nothing of it ends it here too, so
// that the next begin may go elsewhere; one that has forgotten it begins it. Clients of a sticky
// service go where they went last, and one that cannot be reached is left by whoever was silent.
static __always_inline bool may_follow(__u64 entry, const struct server *server, __u8 part,
				       bool sticky, __u32 tick)
{
	__u8 state = entry_state(entry);
	bool fresh = entry_age(entry, tick) < settings.idle;

	if (server->state == SERVER_UP && part == PART_BEGIN) {
		if (state == FLOW_ESTABLISHED && !sticky && server->ifindex)
			return true;
		return fresh && state != FLOW_CLOSED;
	}
	if (server->state == SERVER_UP)
		return part != PART_DATAGRAM || fresh;
	if (server->state == SERVER_DRAINING)
		return part == PART_BEGIN ? fresh && state == FLOW_NEW :
		       part != PART_DATAGRAM || fresh;
	return false;
}

// `age`: ticks since it was in this state, or was seen in it.
static __always_inline __u8 next_state(__u8 state, __u8 part, __u32 age)
{
	if (part == PART_END)
		return FLOW_CLOSED;
	if (state == FLOW_CLOSED)
		return part == PART_MIDDLE && age >= CLOSED_TICKS ? FLOW_ESTABLISHED : FLOW_CLOSED;
	return part == PART_BEGIN ? state : FLOW_ESTABLISHED;
}

// Says in the table that the flow was seen. Writes once a tick and when its state changes, so that
// the line stays shared; of a closed one the tick is that of its end.
static __always_inline void touch(struct place *place, const struct tuple *tuple, __u16 service,
				  __u8 part, __u32 tick)
{
	__u64 entry = place->entry;
	__u32 age = entry_age(entry, tick);
	__u8 was = entry_state(entry), state = next_state(was, part, age);

	if (state == was && (!age || (was == FLOW_CLOSED && part != PART_END)))
		return;
	if (!swap_entry(place, place->index, entry,
			make_entry(place->fingerprint, entry_server(entry), state, tick)))
		return;
	if (state == FLOW_ESTABLISHED && was != state)
		name_flow(place, tuple, service);
}

// A slot of a service's table, by the hash's low bits.
static __always_inline __u32 ask_maglev(__u32 half, __u16 service, __u64 hash)
{
	__u32 key = half * settings.max_services + service;
	struct maglev *maglev = bpf_map_lookup_elem(&maglevs, &key);

	return maglev ? maglev->slot[hash & (MAGLEV_SIZE - 1)] : 0;
}

// Puts a word where the place says that one is, or where there is room.
static __always_inline bool remember(struct place *place, __u16 server, __u8 state, __u32 tick)
{
	__u64 new = make_entry(place->fingerprint, server, state, tick);

	return place->entry ? swap_entry(place, place->index, place->entry, new) :
	       insert_entry(place, new, tick);
}

static __always_inline bool has_way(__u32 half, __u16 id)
{
	struct server *server = id ? find_server(half, id) : NULL;

	return server && server->ifindex;
}

// The server of a client of a sticky service: the one it has, or Maglev's by its address alone. One
// that cannot be reached loses its clients if they have another one to go to. Of whom somebody else
// speaks nothing is remembered.
__noinline int choose_for_client(__u64 hash, __u32 half, __u16 service, __u8 part, __u32 tick)
{
	struct place place;
	__u16 id;

	if (!find_place(mix((hash ^ CLIENT_SALT) + service), &place))
		return 0;
	if (place.entry && entry_age(place.entry, tick) < settings.idle) {
		struct server *server;

		id = entry_server(place.entry);
		server = find_server(half, id);
		if (server && server->service == service && server->state == SERVER_UP &&
		    (server->ifindex || !has_way(half, ask_maglev(half, service, hash)))) {
			if (part != PART_ERROR && entry_tick(place.entry) != tick)
				swap_entry(&place, place.index, place.entry,
					   make_entry(place.fingerprint, id, FLOW_CLIENT, tick));
			return id;
		}
	}
	id = (__u16)ask_maglev(half, service, hash);
	if (id && part != PART_ERROR && !remember(&place, id, FLOW_CLIENT, tick))
		count(REASON_TABLE_FULL);
	return id;
}

// Whether a flow may be where a slot's server was before.
static __always_inline bool may_stay(__u32 half, __u16 id, __u16 service)
{
	struct server *server = id ? find_server(half, id) : NULL;

	return server && server->service == service &&
	       (server->state == SERVER_UP || server->state == SERVER_DRAINING);
}

// The server of a flow that nothing is known of, or that may not have its server any more.
static __always_inline int choose_anew(const struct port *port, struct choice *choice,
				       struct place *place, bool known, __u64 client, __u32 slot,
				       __u32 tick)
{
	bool begins = choice->part == PART_BEGIN || choice->part == PART_DATAGRAM;
	__u16 id = slot, before = slot >> 16;

	if (port->flags & PORT_STICKY)
		id = choose_for_client(mix(client), choice->half, port->service, choice->part,
				       tick);
	else if (!begins && !known && may_stay(choice->half, before, port->service))
		id = before;
	if (!id || choice->part == PART_ERROR || choice->part == PART_END)
		return id;
	if (!remember(place, id, FLOW_NEW, tick)) {
		count(REASON_TABLE_FULL);
		// Its next packet will be taken for one of a flow from before the change: so it is
		// one from the beginning.
		if (choice->part == PART_BEGIN && !(port->flags & PORT_STICKY) &&
		    may_stay(choice->half, before, port->service))
			id = before;
	}
	if (begins)
		choice->new_flow = 1;
	else if (!before)
		count(REASON_ADOPTED);
	return id;
}

// Words of a service that was calm in between may be of flows that are long over.
static __always_inline bool outdated(__u64 entry, const struct port *port)
{
	return ((entry_tick(entry) - port->since) & TICK_MASK) > TICK_MASK / 2;
}

// The number of the server, or one of enum chosen.
__noinline int choose(const struct tuple *tuple, struct choice *choice)
{
	struct server *server;
	struct place place;
	struct port *port;
	__u64 client, hash;
	__u32 slot, tick;
	bool always, known;

	if (!tuple || !choice)
		return CHOSEN_NO_SERVICE;
	port = find_service(choice->half, choice->vip, tuple->protocol, tuple->port);
	if (!port)
		return CHOSEN_NO_SERVICE;
	client = hash_client(settings.seed, tuple);
	hash = hash_flow(client, tuple);
	choice->entropy = hash >> 32;
	choice->new_flow = choice->part == PART_BEGIN;
	choice->end_flow = choice->part == PART_END;
	slot = ask_maglev(choice->half, port->service, hash);
	always = settings.remember_all || port->flags & PORT_STICKY ||
		 tuple->protocol == IPPROTO_UDP;
	if (!always && !(slot >> 16))
		return slot;
	choice->new_flow = 0;
	tick = now_tick();
	if (!find_place(hash, &place))
		return CHOSEN_NOBODY;
	known = place.entry && (always || !outdated(place.entry, port));
	if (known) {
		__u16 id = entry_server(place.entry);

		server = find_server(choice->half, id);
		if (server && server->service == port->service &&
		    may_follow(place.entry, server, choice->part, port->flags & PORT_STICKY,
			       tick)) {
			if (choice->part != PART_ERROR) {
				choice->end_flow = choice->part == PART_END &&
						   entry_state(place.entry) != FLOW_CLOSED;
				touch(&place, tuple, port->service, choice->part, tick);
			}
			return id;
		}
	}
	return choose_anew(port, choice, &place, known, client, slot, tick);
}
