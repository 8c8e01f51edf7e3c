// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What the load balancer's program and crates/balancer (src/layout.rs) both read and write. Sizes
// are asserted on both sides.
//
// Addresses and ports are in network order, everything else in the machine's.
#pragma once

#include <linux/types.h>

#define MAGLEV_SIZE 16384      // slots of a service's table; a power of two
#define LINKS 256              // interfaces, found by the low byte of their index
#define PROBES 8               // entries that are looked at for an address or a service before
			       // giving up
#define BUCKET_SLOTS 16        // flows of a bucket
#define FRAGMENT_BUCKETS 1024
#define FRAGMENT_SLOTS 8

// .rodata.settings: fixed when the program is loaded.
struct settings {
	__u64 seed;          // of all hashes; a fleet that shall choose alike shares it
	__u32 buckets;       // of the flow table
	__u32 vips;          // room for addresses in one half; a power of two
	__u32 ports;         // room for services in one half; a power of two
	__u32 max_services;
	__u32 max_servers;
	__u32 idle;          // after so many ticks without a packet a flow may be forgotten
	__be32 source4;      // who speaks in ICMP errors; zero: the VIP
	__be32 source6[4];
	__u32 remember_all;  // every flow is remembered, not only where servers have changed
};

// An interface on which services are balanced.
struct link {
	__u32 ifindex;  // the interface that packets come in by; 0: none
	__u32 out;      // the index that servers name: the bond's where ifindex is its port
	__u8 mac[6];
	__u8 reserved[2];
};

// An address that has services.
struct vip {
	__be32 address[4];  // IPv4: the first word
	__u16 id;
	__u8 family;        // 4, 6; 0: free
	__u8 reserved;
};

// A service: a port of a VIP, or all that have no service of their own (port 0).
struct port {
	__u16 vip;
	__be16 port;
	__u8 protocol;  // 0: free
	__u8 flags;     // enum port_flag
	__u16 service;
	__u16 since;    // tick of the first change that the Maglev table still tells of; older
			// words of flows do not count
	__u16 reserved;
};

enum port_flag {
	PORT_STICKY = 1,  // a client's flows all go to one server
};

enum server_state {
	SERVER_GONE = 0,
	SERVER_UP = 1,
	SERVER_DRAINING = 2,  // old flows only
	SERVER_DOWN = 3,
};

enum outer {
	OUTER_NONE = 0,  // layer 2: the server has the VIP and sees the packet itself
	OUTER_IPV4 = 4,
	OUTER_IPV6 = 6,
};

// A server of one service, with all that is put in front of its packets.
struct server {
	__u16 service;
	__u8 state;      // enum server_state
	__u8 outer;      // enum outer
	__u8 tags;       // VLAN tags in link
	__u8 shim_len;   // 0, 4 (GRE), 8 (FOU) or 12 (GUE)
	__u16 mtu;       // of the way to it: the longest IP packet
	__u32 ifindex;   // out of here; 0: the way is not known
	__u32 outer_sum; // of the outer IPv4 header without TOS, length and checksum
	__u8 link[22];   // Ethernet header with its tags
	__u8 reserved[2];
	__u8 header[40]; // outer IP header
	__u8 shim[12];   // GRE, or UDP with or without GUE
	__u8 padding[36];
};

// A slot: its server in the low half, 0 for none; in the high half the one that it had before
// servers changed, 0 for none: the slot is calm.
struct maglev {
	__u32 slot[MAGLEV_SIZE];
};

// Flows are words: fingerprint 32 bits, server 16, state 2, tick when last seen 14. 0: free.
struct bucket {
	__u64 slot[BUCKET_SLOTS];
};

#define TICK_SHIFT 33          // a tick is 2^33 ns = 8.6 s,
#define TICK_MASK 0x3fff       // and a word's clock goes round in 39 h

enum flow_state {
	FLOW_NEW = 0,          // one packet, and nobody knows whether the sender exists
	FLOW_ESTABLISHED = 1,  // went on
	FLOW_CLOSED = 2,       // was ended by the client
	FLOW_CLIENT = 3,       // not a flow: a client of a sticky service
};

// Who a flow's parties are: for people, the program itself compares fingerprints. One for each
// slot.
struct flow_name {
	__be32 client[4];
	__be16 client_port;
	__be16 port;
	__u16 service;
	__u8 protocol;
	__u8 family;
	__u64 since;  // CLOCK_MONOTONIC, ns
};

// Datagrams in fragments are words too: fingerprint 32 bits, server 16 (0: the kernel), second
// (2^30 ns) when last seen 16.
struct fragment_bucket {
	__u64 slot[FRAGMENT_SLOTS];
};

struct server_counters {
	__u64 packets;
	__u64 bytes;  // of IP packets as they came
	__u64 flows;  // that began here
	__u64 ended;  // packets that ended one
};

// Why a packet to a VIP did not just go to its server; a packet that did not go has one.
enum reason {
	REASON_NO_SERVER,         // dropped: the service has no server that is up
	REASON_NO_WAY,            // dropped: the server's next hop is not known yet
	REASON_TTL,               // answered: its last hop was this one
	REASON_TOO_BIG,           // answered: it does not fit the tunnel
	REASON_FRAGMENT,          // dropped: a later fragment whose first one was not seen
	REASON_NO_ROOM,           // dropped: the frame cannot grow
	REASON_SILENT,            // dropped instead of answered: the rate, or a packet that must
				  // not be answered
	REASON_ECHO,              // answered: an echo request
	REASON_NOT_UNDERSTOOD,    // to the kernel: broken or encrypted headers
	REASON_NO_SERVICE,        // to the kernel: no service has this protocol and port, or it
				  // follows a first fragment that was the kernel's
	REASON_TABLE_FULL,        // sent, but the flow is not remembered
	REASON_ADOPTED,           // sent: a flow whose beginning was not seen here
	REASONS = 16,
};

struct counters {
	__u64 reason[REASONS];
};

_Static_assert(sizeof(struct settings) == 56, "settings");
_Static_assert(sizeof(struct link) == 16, "link");
_Static_assert(sizeof(struct vip) == 20, "vip");
_Static_assert(sizeof(struct port) == 12, "port");
_Static_assert(sizeof(struct server) == 128, "server");
_Static_assert(sizeof(struct maglev) == 65536, "maglev");
_Static_assert(sizeof(struct bucket) == 128, "bucket");
_Static_assert(sizeof(struct flow_name) == 32, "flow_name");
_Static_assert(sizeof(struct server_counters) == 32, "server_counters");
_Static_assert(sizeof(struct counters) == 128, "counters");
