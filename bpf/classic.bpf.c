// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// For benchmarks: a load balancer of the design that is usual, an entry in an LRU table for every
// flow, looked up for every packet. It stands for the programs that work so and cannot be had where
// the benchmark runs.
//
// It does no more than has to be done for one packet of TCP or UDP: headers, service, flow, or else
// a server and an entry, the server's headers, counters. No fragments, errors, answers, options,
// expiry or changes of servers: what it costs is the least that such a program can cost here.
#include "lib/checksum.h"
#include "lib/packet.h"
#include "classic.h"

// Services, by what names them.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, struct classic_key);
	__type(value, __u32);
} classic_services SEC(".maps");

// Flows and their servers; the benchmark sets the size.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct classic_flow);
	__type(value, __u32);
} classic_flows SEC(".maps");

// The service's servers, spread over slots.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, CLASSIC_SLOTS);
	__type(key, __u32);
	__type(value, __u32);
} classic_slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct classic_server);
} classic_servers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct classic_counters);
} classic_counters SEC(".maps");

// The flow of a packet of TCP or UDP; less than zero: it is of neither.
static __always_inline int read_flow(struct xdp_md *ctx, const struct packet *packet,
				     struct classic_flow *flow)
{
	__be16 *ports;

	if (packet->fragment ||
	    (packet->protocol != IPPROTO_TCP && packet->protocol != IPPROTO_UDP))
		return -1;
	if (packet->family == 4) {
		struct iphdr *ip = at(ctx, packet->l3, sizeof(*ip));

		if (!ip)
			return -1;
		__builtin_memcpy(flow->client, &ip->saddr, 4);
		__builtin_memcpy(flow->service.vip, &ip->daddr, 4);
	} else {
		struct ipv6hdr *ip = at(ctx, packet->l3, sizeof(*ip));

		if (!ip)
			return -1;
		__builtin_memcpy(flow->client, &ip->saddr, 16);
		__builtin_memcpy(flow->service.vip, &ip->daddr, 16);
	}
	ports = at(ctx, packet->l4, 4);
	if (!ports)
		return -1;
	flow->port = ports[0];
	flow->service.port = ports[1];
	flow->service.protocol = packet->protocol;
	return 0;
}

// Murmur's last step over what differs between flows.
static __always_inline __u32 slot_of(const struct classic_flow *flow)
{
	const __u32 *word = (const __u32 *)flow->client;
	__u32 hash = word[0] ^ word[1] ^ word[2] ^ word[3] ^ flow->port;

	hash = (hash ^ hash >> 16) * 0x85ebca6bu;
	hash = (hash ^ hash >> 13) * 0xc2b2ae35u;
	return (hash ^ hash >> 16) & (CLASSIC_SLOTS - 1);
}

static __always_inline int take_hop(struct xdp_md *ctx, const struct packet *packet)
{
	if (packet->family == 4) {
		struct iphdr *ip = at(ctx, packet->l3, sizeof(*ip));

		if (!ip)
			return -1;
		ipv4_decrement_ttl(ip);
	} else {
		struct ipv6hdr *ip = at(ctx, packet->l3, sizeof(*ip));

		if (!ip)
			return -1;
		ip->hop_limit--;
	}
	return 0;
}

static __always_inline int write_headers(struct xdp_md *ctx, const struct packet *packet,
					 const struct classic_server *server)
{
	__u8 *link;

	if (server->tunnel && bpf_xdp_adjust_head(ctx, -(int)sizeof(struct iphdr)) < 0)
		return -1;
	link = at(ctx, 0, sizeof(server->link));
	if (!link)
		return -1;
	__builtin_memcpy(link, server->link, sizeof(server->link));
	if (server->tunnel) {
		struct iphdr *ip = at(ctx, sizeof(server->link), sizeof(*ip));

		if (!ip)
			return -1;
		__builtin_memcpy(ip, server->header, sizeof(*ip));
		ip->tot_len = bpf_htons(packet->length + sizeof(*ip));
		ip->check = checksum_finish(checksum_ipv4(ip));
	}
	return 0;
}

SEC("xdp.frags")
int classic(struct xdp_md *ctx)
{
	struct classic_counters *counters;
	struct classic_flow flow = {};
	struct classic_server *server;
	struct packet packet = {};
	__u32 *found, key;

	if (packet_link(ctx, &packet) < 0 || packet_network(ctx, &packet) < 0 ||
	    read_flow(ctx, &packet, &flow) < 0)
		return XDP_PASS;
	if (!bpf_map_lookup_elem(&classic_services, &flow.service))
		return XDP_PASS;
	found = bpf_map_lookup_elem(&classic_flows, &flow);
	if (!found) {
		key = slot_of(&flow);
		found = bpf_map_lookup_elem(&classic_slots, &key);
		if (!found)
			return XDP_DROP;
		bpf_map_update_elem(&classic_flows, &flow, found, BPF_ANY);
	}
	key = *found;
	server = bpf_map_lookup_elem(&classic_servers, &key);
	counters = bpf_map_lookup_elem(&classic_counters, &key);
	if (!server || !counters || take_hop(ctx, &packet) < 0 ||
	    write_headers(ctx, &packet, server) < 0)
		return XDP_DROP;
	counters->packets++;
	counters->bytes += packet.length;
	return server->ifindex ? bpf_redirect(server->ifindex, 0) : XDP_TX;
}

char _license[] SEC("license") = "Dual BSD/GPL";
