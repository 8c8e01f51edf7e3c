// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Addresses that routers forward nothing from and nothing to.
#pragma once

#include "../lib/packet.h"

// RFC 1812, section 5.3.7: this network, loopback, multicast, broadcast.
static __always_inline bool is_special4(__be32 address)
{
	__u32 bits = bpf_ntohl(address);

	return bits >> 24 == 0 || bits >> 24 == 127 || bits >> 28 == 14 || bits == ~0u;
}

// Multicast, link-local, and all that begins with 32 zero bits: unspecified, loopback, addresses of
// IPv4.
static __always_inline bool is_special6(const struct in6_addr *address)
{
	__u32 first = bpf_ntohl(address->s6_addr32[0]);

	return first >> 24 == 0xff || first >> 22 == 0xfe80 >> 6 || first == 0;
}
