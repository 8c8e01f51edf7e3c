// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Whose packet: address, then protocol and port. Open addressing in arrays: a packet of somebody
// else meets a free entry at once.
#pragma once

#include <stddef.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>
#include "hash.h"
#include "maps.h"

static __always_inline bool same_address(const struct vip *vip, const __be32 *address, __u8 family)
{
	if (vip->family != family || vip->address[0] != address[0])
		return false;
	return family == 4 ||
	       !((vip->address[1] ^ address[1]) | (vip->address[2] ^ address[2]) |
		 (vip->address[3] ^ address[3]));
}

// The number of the VIP that a packet goes to; less than zero: the address has no service.
static __always_inline int find_vip(__u32 half, const struct tuple *tuple)
{
	__u32 mask = settings.vips - 1;
	__u32 first;
	int i;

	first = hash_address(settings.seed, tuple->vip, tuple->family);

	for (i = 0; i < PROBES; i++) {
		__u32 key = half * settings.vips + ((first + i) & mask);
		struct vip *vip = bpf_map_lookup_elem(&vips, &key);

		if (!vip || !vip->family)
			return -1;
		if (same_address(vip, tuple->vip, tuple->family))
			return vip->id;
	}
	return -1;
}

static __always_inline struct port *find_port(__u32 half, __u16 vip, __u8 protocol, __be16 number)
{
	__u32 first = mix(settings.seed ^ ((__u64)vip << 32 | (__u32)number << 8 | protocol));
	__u32 mask = settings.ports - 1;
	int i;

	for (i = 0; i < PROBES; i++) {
		__u32 key = half * settings.ports + ((first + i) & mask);
		struct port *port = bpf_map_lookup_elem(&ports, &key);

		if (!port || !port->protocol)
			return NULL;
		if (port->vip == vip && port->port == number && port->protocol == protocol)
			return port;
	}
	return NULL;
}

// The service of a protocol and port of a VIP: its own, or the one that has all ports.
static __always_inline struct port *find_service(__u32 half, __u16 vip, __u8 protocol,
						 __be16 number)
{
	struct port *port = find_port(half, vip, protocol, number);

	return port ? port : find_port(half, vip, protocol, 0);
}

static __always_inline struct server *find_server(__u32 half, __u16 id)
{
	__u32 key = half * settings.max_servers + id;

	return id < settings.max_servers ? bpf_map_lookup_elem(&servers, &key) : NULL;
}
