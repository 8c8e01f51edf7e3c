// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The router's maps. crates/router sets their sizes before it loads the program; those that are
// memory-mapped it writes without a system call, a 32-bit word at a time.
#pragma once

#include "../router.h"

// IPv4's trie.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct element);
} trie4 SEC(".maps");

// IPv6's trie of the first 64 bits.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct element);
} trie6 SEC(".maps");

// Single addresses of IPv6 by their own path: ours, neighbours, host routes.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct in6_addr);
	__type(value, __u32);
} hosts6 SEC(".maps");

// What entries of the tries lead to. Path 0 is "no route".
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct path);
} paths SEC(".maps");

// Neighbours. Hop 0 is none.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct hop);
} hops SEC(".maps");

// The interfaces that are ours, by device and tag. A bond and the VLANs on it are there once more
// for each of its ports: there is room for bonds of fifteen.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16 * ROUTER_INTERFACES);
	__type(key, struct interface_key);
	__type(value, struct interface);
} interfaces SEC(".maps");

// The interfaces once more, each at its near_place(), but for those whose place another one has.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, NEAR_PLACES);
	__type(key, __u32);
	__type(value, struct near);
} near SEC(".maps");

// The interfaces by the index that routes name, for what the kernel's lookup answers.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, ROUTER_INTERFACES);
	__type(key, __u32);
	__type(value, struct egress);
} egresses SEC(".maps");

#ifndef BUTTERFLY_TC
// The devices to send by: frames for one are handed over in bulk. At tc a hop says which it is.
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, ROUTER_INTERFACES);
	__type(key, __u32);
	__type(value, __u32);
} ports SEC(".maps");
#endif

// The counters of each interface, by its slot.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, ROUTER_INTERFACES);
	__type(key, __u32);
	__type(value, struct counters);
} counters SEC(".maps");

// The flow cache of IPv4, one for each CPU.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cache_flows4);
} flow_caches4 SEC(".maps");

// The flow cache of IPv6, one for each CPU.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cache_flows6);
} flow_caches6 SEC(".maps");

// What holds for all packets.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct router_config);
} config_map SEC(".maps");

// An access list's image, of as many elements as it needs.
struct acl_image {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_INNER_MAP | BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	// By their sizes: to Linux 6.1 a map with types is not of the kind of one without (its
	// bpf_map_meta_equal compares where a timer is, and where none was looked for).
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct element));
};

// Two images: the one in use, as CONFIG_ACL_BANK says, and the one that takes its place.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 2);
	__type(key, __u32);
	__array(values, struct acl_image);
} acls SEC(".maps");

// What the rules of an image took: for each CPU a slot for each rule, and one for "no rule".
struct acl_counts {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_INNER_MAP | BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	// By their sizes, as above.
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct acl_count));
};

// Those of both images.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 2);
	__type(key, __u32);
	__array(values, struct acl_counts);
} acl_counters SEC(".maps");

// What lists said of a CPU's flows.
struct acl_flows_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	// By their sizes, as above.
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct acl_flows));
};

// Those of each CPU, while there is a list.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct acl_flows_map);
} acl_flows SEC(".maps");

// What the packet that is being judged shows (router/acl.h), one for each CPU.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct acl_shown);
} acl_shown_map SEC(".maps");
