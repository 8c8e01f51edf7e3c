// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Health checks: packets to a service address that go to one server each, by the balancer's own way
// and tunnel.
//
// The sockets of the checks are in a network namespace of their own, behind a pair of interfaces.
// What they send comes in at the host's end of the pair; the port that it is sent from says for
// which server it is (map `probes`). From there on it is treated as the balancer treats a client's
// packet: the same entry of `servers`, the same code. No flow is remembered, nothing is counted for
// it. The server's answers come by the interfaces that are balanced on, to the host's own address
// and that port, and are put into the namespace before the kernel, which knows no such socket, sees
// them.
#include "lib/chain.h"
#include "lib/packet.h"
#include "balancer/maps.h"
#include "balancer/transport.h"
#include "balancer/services.h"
#include "balancer/forward.h"
#include "probe.h"

const volatile struct probe_source source SEC(".rodata.source");

// Checks that are out.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct probe_key);
	__type(value, struct probe_target);
} probes SEC(".maps");

static __always_inline struct probe_target *find_probe(__be16 port, __u8 protocol)
{
	struct probe_key key = { .port = port, .protocol = protocol };

	return bpf_map_lookup_elem(&probes, &key);
}

static __always_inline bool is_address(const __be32 *a, const __be32 *b)
{
	return !((a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2]) | (a[3] ^ b[3]));
}

// A check's packet, to its server.
static __always_inline int leave(context *ctx, struct packet *packet, struct tuple *tuple)
{
	struct probe_target *target = find_probe(tuple->client_port, tuple->protocol);
	__u32 zero = 0, *word = bpf_map_lookup_elem(&half, &zero);
	struct server *server;
	__u32 in_force, ifindex;

	if (!target || !word || !is_address(target->vip, tuple->vip))
		return VERDICT_DROP;
	in_force = *(volatile __u32 *)word & 1;
	server = find_server(in_force, target->server);
	if (!server || !server->ifindex || packet->length + outer_length(server) > server->mtu)
		return VERDICT_DROP;
	ifindex = server->ifindex;
	if (encapsulate(ctx, packet, in_force, target->server, bpf_ntohs(tuple->client_port)) < 0)
		return VERDICT_DROP;
	return bpf_redirect(ifindex, 0);
}

static __always_inline int take_tags_off(context *ctx, const struct packet *packet)
{
#ifdef BUTTERFLY_TC
	if (packet->tags > 0 && bpf_skb_vlan_pop(ctx) < 0)
		return -1;
	return packet->tags > 1 ? bpf_skb_vlan_pop(ctx) : 0;
#else
	__u32 tags = packet->l3 - sizeof(struct ethhdr);

	return tags ? bpf_xdp_adjust_head(ctx, tags) : 0;
#endif
}

// A server's answer, to the check: without VLAN tags, which the namespace knows nothing of.
static __always_inline int arrive(context *ctx, struct packet *packet, struct tuple *tuple)
{
	struct probe_target *target = find_probe(tuple->port, tuple->protocol);
	struct ethhdr *ethernet;
	int i;

	// What a server sends to a client by way of this host is not for the check, whatever its
	// port.
	if (!target || !is_address(target->vip, tuple->client) ||
	    !is_address(target->source, tuple->vip))
		return chain_next(ctx);
	if (take_tags_off(ctx, packet) < 0)
		return chain_next(ctx);
	ethernet = at(ctx, 0, sizeof(*ethernet));
	if (!ethernet)
		return VERDICT_DROP;
	// One by one: a copy of the whole would lose "volatile", and with it what was set after
	// compilation.
#pragma unroll
	for (i = 0; i < ETH_ALEN; i++)
		ethernet->h_dest[i] = source.mac[i];
	__builtin_memset(ethernet->h_source, 0, sizeof(ethernet->h_source));
	ethernet->h_proto = packet->family == 4 ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);
	return bpf_redirect(source.ifindex, 0);
}

PROGRAM
int probe(context *ctx)
{
	struct packet packet;
	struct tuple tuple = {};
	__u8 part;

	frame_pull(ctx, HEADERS_MIN);
	if (packet_link(ctx, &packet) < 0 || read_addresses(ctx, &packet, &tuple) < 0)
		return chain_next(ctx);
	pull_headers(ctx, &packet);
	if (packet_network(ctx, &packet) < 0 || packet.fragment != FRAGMENT_NONE)
		return chain_next(ctx);
	if (read_transport(ctx, &packet, &tuple, &part) < 0)
		return chain_next(ctx);
	return context_device(ctx) == source.ifindex ? leave(ctx, &packet, &tuple) :
	       arrive(ctx, &packet, &tuple);
}

char _license[] SEC("license") = "Dual BSD/GPL";
