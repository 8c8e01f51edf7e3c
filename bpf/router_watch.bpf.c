// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Looks once a second whether somebody still fills the router's tables, and has the router leave
// its packets to the kernel while nobody does (ROUTER_PATIENCE): routes that nobody follows are
// worse than slow ones. It is a timer of the kernel's and costs no packet anything. Run once, by
// who has loaded it (crates/router/src/router.rs): the timer lives as long as that process, or
// who outlives it, has the map open. config_map is the router's.
#include <linux/bpf.h>
#include <linux/time.h>
#include <bpf/bpf_helpers.h>

#include "router.h"

#define LOOK 1000000000ull /* ns */

struct watch {
	struct bpf_timer timer;
	__u32 beat;   /* as it was at the last look */
	__u32 still;  /* so many looks it was the same */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct watch);
} watch SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct router_config);
} config_map SEC(".maps");

static int look(void *map, __u32 *key, struct watch *watch)
{
	struct router_config *config;
	__u32 zero = 0, beat;

	config = bpf_map_lookup_elem(&config_map, &zero);
	if (config) {
		beat = *(volatile __u32 *)&config->beat;
		watch->still = beat == watch->beat ? watch->still + 1 : 0;
		watch->beat = beat;
		*(volatile __u32 *)&config->hung = watch->still >= ROUTER_PATIENCE;
	}
	bpf_timer_start(&watch->timer, LOOK, 0);
	return 0;
}

SEC("xdp")
int router_watch(struct xdp_md *ctx)
{
	struct watch *first;
	__u32 zero = 0;

	first = bpf_map_lookup_elem(&watch, &zero);
	if (!first || bpf_timer_init(&first->timer, &watch, CLOCK_MONOTONIC) ||
	    bpf_timer_set_callback(&first->timer, look) ||
	    bpf_timer_start(&first->timer, LOOK, 0))
		return XDP_ABORTED;
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
