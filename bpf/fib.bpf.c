// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// For benchmarks, beside the router: the least that forwards by the kernel's own lookup, as the
// samples of the kernel and of xdp-tools do. Checks nothing that a stream of good packets does not
// need, and counts nothing.
#include "lib/checksum.h"
#include "lib/packet.h"

#define AF_INET 2
#define AF_INET6 10

static __always_inline int ask4(struct xdp_md *ctx, struct packet *packet,
				struct bpf_fib_lookup *fib)
{
	struct iphdr *ip = at(ctx, packet->l3, sizeof(*ip));

	if (!ip || ip->ttl <= 1)
		return -1;
	fib->family = AF_INET;
	fib->l4_protocol = ip->protocol;
	fib->tos = ip->tos;
	fib->tot_len = bpf_ntohs(ip->tot_len);
	fib->ipv4_src = ip->saddr;
	fib->ipv4_dst = ip->daddr;
	if (bpf_fib_lookup(ctx, fib, sizeof(*fib), 0) != BPF_FIB_LKUP_RET_SUCCESS)
		return -1;
	ipv4_decrement_ttl(ip);
	return 0;
}

static __always_inline int ask6(struct xdp_md *ctx, struct packet *packet,
				struct bpf_fib_lookup *fib)
{
	struct ipv6hdr *ip = at(ctx, packet->l3, sizeof(*ip));

	if (!ip || ip->hop_limit <= 1)
		return -1;
	fib->family = AF_INET6;
	fib->l4_protocol = ip->nexthdr;
	fib->tot_len = sizeof(*ip) + bpf_ntohs(ip->payload_len);
	fib->flowinfo = *(__be32 *)ip & bpf_htonl(0x0fffffff);
	__builtin_memcpy(fib->ipv6_src, &ip->saddr, sizeof(ip->saddr));
	__builtin_memcpy(fib->ipv6_dst, &ip->daddr, sizeof(ip->daddr));
	if (bpf_fib_lookup(ctx, fib, sizeof(*fib), 0) != BPF_FIB_LKUP_RET_SUCCESS)
		return -1;
	ip->hop_limit--;
	return 0;
}

SEC("xdp.frags")
int fib(struct xdp_md *ctx)
{
	struct bpf_fib_lookup fib = {.ifindex = ctx->ingress_ifindex};
	struct packet packet = {};
	struct ethhdr *link;

	if (packet_link(ctx, &packet) < 0)
		return XDP_PASS;
	if ((packet.family == 4 ? ask4(ctx, &packet, &fib) : ask6(ctx, &packet, &fib)) < 0)
		return XDP_PASS;
	link = at(ctx, 0, sizeof(*link));
	if (!link)
		return XDP_PASS;
	__builtin_memcpy(link->h_dest, fib.dmac, ETH_ALEN);
	__builtin_memcpy(link->h_source, fib.smac, ETH_ALEN);
	return bpf_redirect(fib.ifindex, 0);
}

char _license[] SEC("license") = "Dual BSD/GPL";
