// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The load balancer's memory: what crates/balancer fills (two halves, one in force) and what
// packets leave behind.
#pragma once

#include <bpf/bpf_helpers.h>
#include "../balancer.h"
#include "../lib/context.h"

const volatile struct settings settings SEC(".rodata.settings");

// Which half of vips, ports, maglev and servers is in force: the whole configuration changes with
// this one word.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} half SEC(".maps");

// Interfaces, by the low byte of their index.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, LINKS);
	__type(key, __u32);
	__type(value, struct link);
} links SEC(".maps");

// Addresses, by hash; settings.vips in each half.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct vip);
} vips SEC(".maps");

// Services, by hash of VIP, protocol and port; settings.ports in each half.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct port);
} ports SEC(".maps");

// A Maglev table for each service; settings.max_services in each half.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct maglev);
} maglevs SEC(".maps");

// Servers, by a number that stays theirs; settings.max_servers in each half. Number 0 is nobody's.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct server);
} servers SEC(".maps");

// Flows of all CPUs: a flow that moves to another queue finds its server there.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bucket);
} flows SEC(".maps");

// The parties of each slot's flow; written when a flow is established, never read here.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct flow_name);
} flow_names SEC(".maps");

// Datagrams that come in fragments.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FRAGMENT_BUCKETS);
	__type(key, __u32);
	__type(value, struct fragment_bucket);
} fragments SEC(".maps");

// What was sent to each server.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct server_counters);
} server_counters SEC(".maps");

// What was not.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counters);
} counters SEC(".maps");

static __always_inline void count(enum reason reason)
{
	__u32 zero = 0;
	struct counters *mine = bpf_map_lookup_elem(&counters, &zero);

	if (mine)
		mine->reason[reason]++;
}

static __always_inline int drop(enum reason reason)
{
	count(reason);
	return VERDICT_DROP;
}
