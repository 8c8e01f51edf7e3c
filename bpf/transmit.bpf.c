// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Sends every packet back where it came from, untouched: what the cost of a program is measured
// against.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

SEC("xdp.frags")
int transmit(struct xdp_md *ctx)
{
	return XDP_TX;
}

char _license[] SEC("license") = "Dual BSD/GPL";
