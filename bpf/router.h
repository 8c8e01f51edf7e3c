/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What router.bpf.c and crates/router/src/layout.rs share: the entries of the router's maps and its counters. */
#pragma once

#include <linux/types.h>

/* Tries. An entry is a path's number, or with ENTRY_CHILD the number of a node below. IPv4: a root of 24 bits, then 8; a
 * node is 256 entries. IPv6: a root of 16 bits, then 4 at a time down to /64; a node is 16 entries, one cache line. The
 * root is the first nodes of the map. */
#define ENTRY_CHILD 0x80000000u
#define NODE4_ENTRIES 256
#define NODE6_ENTRIES 16
#define TRIE6_ROOT_BITS 16
#define TRIE6_BITS 64

struct node4 {
	__u32 entry[NODE4_ENTRIES];
};

struct node6 {
	__u32 entry[NODE6_ENTRIES];
};

/* What a path does with a packet. */
enum path_kind {
	PATH_PASS = 0,       /* the kernel's: for `reason` */
	PATH_FORWARD = 1,    /* to one of its members */
	PATH_DROP = 2,       /* a blackhole */
	PATH_ASK = 3,        /* the table cannot say: bpf_fib_lookup() */
};

#define PATH_MEMBERS 16

/* `ifindex` also answers for addresses that packets come *from*: where packets to them would leave; 0: several, or nowhere. */
struct path {
	__u8 kind;
	__u8 reason;     /* enum router_counter, for PATH_PASS */
	__u8 count;      /* members in use */
	__u8 hosts;      /* IPv6: single addresses of this /64 are in the map hosts6 */
	__u8 unicast;    /* a route to somewhere else: a source that loose reverse path filtering takes */
	__u8 pad[3];
	__u32 ifindex;
	__u32 pad2;
	struct path_member {
		__u32 hop;    /* 0: this one is the kernel's, its neighbour is not known yet */
		__u32 upper;  /* hashes up to this one, of 31 bits */
	} member[PATH_MEMBERS];
};

/* A neighbour, and how to reach it. Never changed while in use, but for `used`. */
struct hop {
	__u8 destination[6];
	__u8 source[6];
	__u32 port;      /* slot of the map ports: the device that sends */
	__u32 ifindex;   /* the interface as routes name it: the device, or a VLAN on it */
	__u32 mtu;       /* of a packet without its Ethernet header: the smaller of the interface's and the route's */
	__u16 protocol;  /* network order: the EtherType of the tag to put in front, 0 for none */
	__u16 vlan;      /* network order: the tag */
	__u32 slot;      /* of the counters of the interface it leaves by */
	__u32 used;      /* set by the program, cleared by who looks */
	__u32 pad;
};

/* An interface whose packets are forwarded: a device, or a VLAN on it. */
struct interface_key {
	__u32 ifindex;   /* the device */
	__u16 vlan;      /* host order, 0 for none */
	__u16 protocol;  /* network order, 0 for none */
};

#define ROUTER_INTERFACES 1024

#define INTERFACE_FORWARD4 1
#define INTERFACE_FORWARD6 2

/* How a source is judged (RFC 3704). */
enum rp_filter {
	RP_OFF = 0,
	RP_STRICT = 1,   /* the way back leaves by the interface it came in by */
	RP_LOOSE = 2,    /* there is a way back */
	RP_ROUTES = 3,   /* off, but with policy rules the kernel still refuses sources that a route refuses */
};

struct interface {
	__u8 mac[6];
	__u8 flags;
	__u8 rp_filter;  /* enum rp_filter */
	__u32 ifindex;   /* as routes name it */
	__u32 slot;      /* of its counters */
};

/* A hop by the kernel's own lookup: what the map egress says of an interface. */
struct egress {
	__u32 port;
	__u32 slot;
	__u16 protocol;
	__u16 vlan;
};

#define CONFIG_OFF4 1      /* the firewall sees IPv4's transit packets: all are the kernel's */
#define CONFIG_OFF6 2
#define CONFIG_ASK4 4      /* the policy rules ask for more than a destination: the kernel looks up */
#define CONFIG_ASK6 8
#define CONFIG_PORTS4 16   /* multipath by ports too (fib_multipath_hash_policy 1) */
#define CONFIG_PORTS6 32

struct router_config {
	__u32 flags;
	__u32 seed;
	__u32 ask_mtu4;  /* the smallest MTU of any route: bpf_fib_lookup() looks at the interface's only */
	__u32 ask_mtu6;
};

/* Counters of an interface, each once for IPv4 and once for IPv6. All but the first three and BLACKHOLE say why a packet
 * was left to the kernel. docs/router.md lists them. */
enum router_counter {
	COUNT_FORWARDED = 0,
	COUNT_FORWARDED_BYTES,
	COUNT_SENT,           /* of the interface it leaves by */
	COUNT_BLACKHOLE,
	COUNT_NOT_TO_US,
	COUNT_MALFORMED,
	COUNT_CHECKSUM,
	COUNT_OPTIONS,
	COUNT_HOP_LIMIT,
	COUNT_TOO_BIG,
	COUNT_SOURCE,
	COUNT_DESTINATION,
	COUNT_LOCAL,
	COUNT_NO_ROUTE,
	COUNT_REFUSED,        /* unreachable and prohibit routes */
	COUNT_NEIGHBOUR,
	COUNT_SAME_INTERFACE,
	COUNT_ELSEWHERE,      /* leaves by an interface that is not ours */
	COUNT_FIREWALL,
	COUNT_OFF,            /* forwarding is off here */
	COUNT_BEYOND,         /* the route needs what the fast path does not do */
	ROUTER_COUNTERS,
};

struct counters {
	__u64 value[2 * ROUTER_COUNTERS];  /* IPv4's, then IPv6's */
};

_Static_assert(sizeof(struct node4) == 1024, "a block");
_Static_assert(sizeof(struct node6) == 64, "a cache line");
_Static_assert(sizeof(struct path) == 16 + 8 * PATH_MEMBERS, "no holes");
_Static_assert(sizeof(struct hop) == 40, "no holes");
_Static_assert(sizeof(struct interface_key) == 8, "no holes");
_Static_assert(sizeof(struct interface) == 16, "no holes");
_Static_assert(sizeof(struct egress) == 12, "no holes");
_Static_assert(sizeof(struct router_config) == 16, "no holes");
_Static_assert(ROUTER_COUNTERS == 21, "layout.rs has as many");
