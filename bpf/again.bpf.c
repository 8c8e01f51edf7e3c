// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// For benchmarks: makes the frame what it was before the last run, of the next flow, and hands it
// to the program under test.
//
// BPF_PROG_TEST_RUN repeats a run over what the run before has left, one and the same packet. With
// this in front, a run of the program under test costs what it would for a stream of frames of many
// flows, which come in an order that no prefetcher foresees; the same with a program that does
// nothing tells what this one costs.
#include "lib/chain.h"
#include "lib/packet.h"
#include "again.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct again);
} again_frame SEC(".maps");

// Runs so far.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} again_count SEC(".maps");

PROGRAM
int again(context *ctx)
{
	__u32 zero = 0, flow;
	struct again *told = bpf_map_lookup_elem(&again_frame, &zero);
	__u64 *count = bpf_map_lookup_elem(&again_count, &zero);
	__u64 *frame;
	__be32 *address;
	__be16 *port;
	int grown, i;

	if (!told || !count)
		return VERDICT_ABORT;
	grown = frame_linear(ctx) - told->length;
#ifdef BUTTERFLY_TC
	// Programs under test give back a frame as long as it was.
	if (grown)
		return VERDICT_ABORT;
#else
	if (grown && bpf_xdp_adjust_head(ctx, grown) < 0)
		return VERDICT_ABORT;
#endif
	frame = at(ctx, 0, AGAIN_BYTES);
	if (!frame)
		return VERDICT_ABORT;
#pragma unroll
	for (i = 0; i < AGAIN_BYTES / 8; i++)
		frame[i] = ((__u64 *)told->frame)[i];
	// An odd factor goes through all flows before it comes to one again.
	flow = (__u32)(*count)++ * 0x9e3779b1u & told->flow_mask;
	address = at(ctx, told->address, sizeof(*address));
	if (!address)
		return VERDICT_ABORT;
	*address += bpf_htonl(flow >> 16);
	port = at(ctx, told->port, sizeof(*port));
	if (!port)
		return VERDICT_ABORT;
	*port = bpf_htons(flow);
	return chain_next(ctx);
}

char _license[] SEC("license") = "Dual BSD/GPL";
