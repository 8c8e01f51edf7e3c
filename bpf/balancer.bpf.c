// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The load balancer: packets to service addresses go to servers, which answer the clients
// themselves (direct server return).
//
// crates/balancer says how it works, fills the maps and attaches it. The packet's path is
// balancer() at the end of this file. Functions that are neither static nor inline are verified on
// their own: the verifier would otherwise follow each of their ends through the rest of the
// program. That is why they are given structures, and ask for NULL. Each call costs some
// nanoseconds, so what every packet needs is inline as far as the verifier lets it.
//
// Needs Linux 5.18: programs for frames in several buffers (xdp.frags) are as young as that; the
// youngest of the rest is compare-and-exchange (5.12).
#include "lib/chain.h"
#include "lib/packet.h"
#include "balancer/maps.h"
#include "balancer/transport.h"
#include "balancer/services.h"
#include "balancer/choose.h"
#include "balancer/fragments.h"
#include "balancer/forward.h"
#include "balancer/answer.h"

#define NOT_UNDERSTOOD (CHOSEN_NO_SERVICE - 1)

// The interface that the frame came by, if services are balanced on it and it is for this machine.
// NULL: it is not ours.
static __always_inline struct link *find_link(context *ctx)
{
	__u32 ifindex = context_device(ctx);
	__u32 key = ifindex & (LINKS - 1);
	struct link *link = bpf_map_lookup_elem(&links, &key);
	struct ethhdr *ethernet = at(ctx, 0, sizeof(*ethernet));

	if (!link || link->ifindex != ifindex || !ethernet)
		return NULL;
	return same_mac(ethernet->h_dest, link->mac) ? link : NULL;
}

static __always_inline __u32 half_in_force(void)
{
	__u32 zero = 0;
	__u32 *word = bpf_map_lookup_elem(&half, &zero);

	return word ? *(volatile __u32 *)word & 1 : 0;
}

static __always_inline int not_ours(context *ctx, enum reason reason)
{
	count(reason);
	return chain_next(ctx);
}

static __always_inline bool expired(context *ctx, const struct packet *packet)
{
	if (packet->family == 4) {
		struct iphdr *ip = at(ctx, packet->l3, sizeof(*ip));

		return !ip || ip->ttl <= 1;
	} else {
		struct ipv6hdr *ip = at(ctx, packet->l3, sizeof(*ip));

		return !ip || ip->hop_limit <= 1;
	}
}

// The server's number for a packet that has ports, or one of enum chosen; less than those: the
// packet is not understood.
static __always_inline int find_choice(context *ctx, const struct packet *packet,
				       struct tuple *tuple, struct choice *choice)
{
	if (is_icmp(packet)) {
		choice->part = PART_ERROR;
		if (read_error(ctx, packet, tuple) < 0)
			return NOT_UNDERSTOOD;
	} else if (read_transport(ctx, packet, tuple, &choice->part) < 0) {
		return NOT_UNDERSTOOD;
	}
	return choose(tuple, choice);
}

// Has the rest of a datagram follow its first fragment.
static __always_inline void remember_first(context *ctx, const struct packet *packet,
					   struct tuple *tuple, __u16 server)
{
	// Of an error the tuple has become that of the flow that it is about.
	if (read_addresses(ctx, packet, tuple) == 0)
		remember_fragment(packet, tuple, server);
}

PROGRAM
int balancer(context *ctx)
{
	struct choice choice = {};
	struct packet packet = {};
	struct tuple tuple = {};
	struct server *server;
	struct link *link;
	int vip, id;
	__u32 room;

	// 1. To a service address?
	frame_pull(ctx, HEADERS_MIN);
	if (packet_link(ctx, &packet) < 0 || read_addresses(ctx, &packet, &tuple) < 0)
		return chain_next(ctx);
	choice.half = half_in_force();
	vip = find_vip(choice.half, &tuple);
	if (vip < 0)
		return chain_next(ctx);
	choice.vip = vip;
	link = find_link(ctx);
	if (!link)
		return chain_next(ctx);

	// 2. All headers, checked.
	pull_headers(ctx, &packet);
	if (read_network(ctx, &packet) < 0)
		return not_ours(ctx, REASON_NOT_UNDERSTOOD);

	// 3. An echo is answered.
	if (is_icmp(&packet)) {
		int verdict = answer_echo(ctx, &packet);

		if (verdict >= 0)
			return verdict;
	}

	// 4. The server: of the flow by its ports, or of those in the packet that an error is
	//    about; the rest of a datagram follows its beginning.
	if (packet.fragment == FRAGMENT_LATER) {
		id = recall_fragment(&packet, &tuple);
		if (id < 0)
			return drop(REASON_FRAGMENT);
		if (id == FRAGMENT_OF_KERNEL)
			return not_ours(ctx, REASON_NO_SERVICE);
	} else {
		id = find_choice(ctx, &packet, &tuple, &choice);
		if (id == CHOSEN_NOBODY)
			return drop(REASON_NO_SERVER);
		if (packet.fragment == FRAGMENT_FIRST)
			remember_first(ctx, &packet, &tuple, id < 0 ? FRAGMENT_OF_KERNEL : id);
		if (id < CHOSEN_NO_SERVICE)
			return not_ours(ctx, REASON_NOT_UNDERSTOOD);
		if (id == CHOSEN_NO_SERVICE)
			return not_ours(ctx, REASON_NO_SERVICE);
	}

	// 5. Can it go there?
	server = find_server(choice.half, id);
	if (!server || server->state == SERVER_GONE || server->state == SERVER_DOWN)
		return drop(REASON_FRAGMENT);
	if (!server->ifindex)
		return drop(REASON_NO_WAY);
	if (expired(ctx, &packet))
		return refuse_expired(ctx, &packet, &tuple);
	room = server->mtu - outer_length(server);
	if (longest_packet(ctx, &packet) > room)
		return refuse_too_big(ctx, &packet, &tuple, room);

	// 6. It goes.
	count_packet(id, packet.length, choice.new_flow, choice.end_flow);
	if (keeps_its_length(&packet, server)) {
		if (readdress(ctx, &packet, server) < 0)
			return drop(REASON_NO_ROOM);
	} else if (encapsulate(ctx, &packet, choice.half, id, choice.entropy) < 0) {
		return drop(REASON_NO_ROOM);
	}
	return send(ctx, link->out, server->ifindex);
}

char _license[] SEC("license") = "Dual BSD/GPL";
