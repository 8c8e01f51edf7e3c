/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What router.bpf.c and crates/router/src/layout.rs share: the entries of the router's maps and
 * its counters. */
#pragma once

#include <linux/types.h>

/* Tries. A root is an array over the first bits of an address; below it are nodes, each over
 * some bits more: IPv4 24 and 8 bits, IPv6 four times 16 down to /64. An entry of the root is a
 * path's number, or with ENTRY_CHILD leads to a node: the first line of its block, and how many
 * of the node's first bits choose where in it to look. A node, in words:
 *
 *   with ENTRY_LINES a line for each value of those bits, SHORT_RUNS at the most with ENTRY_SHORT:
 *     head   the path of what no run of this node covers, 0: what is known from above; in bits 26
 *            to 30 how many runs follow the first one; NODE_WIDE: runs are two words
 *     runs   sorted: the first address's bits in the upper half; then the entry, in the lower half
 *            or in the next word; 0: the head's
 *   or with ENTRY_SHORT
 *     head   as with ENTRY_LINES
 *     firsts of all runs, 16 bits each
 *     values of all runs, 8 bits each
 *   and else
 *     head   as with ENTRY_LINES, without the number of runs
 *     index  for each value of those bits: the run it begins in, and in the upper half how many
 *            more there are
 *     runs   all of them
 *
 * The root is the first lines of the map. No block lies in two elements. */
#define ENTRY_CHILD 0x80000000u
#define ENTRY_LINES 0x40000000u
#define ENTRY_SHORT 0x20000000u   /* with ENTRY_LINES only */
#define ENTRY_BITS_SHIFT 26
#define ENTRY_BITS_MASK 0xf
#define ENTRY_LINES_MASK 0x7      /* of lines there are 64 at the most */
#define ENTRY_LINE_MASK 0x03ffffff
#define NODE_WIDE 0x80000000u
#define NODE_MORE_SHIFT 26
#define NODE_MORE_MASK 0x1f
#define NODE_VALUE_MASK 0x03ffffff
#define SHORT_RUNS 20
#define SHORT_FIRSTS 2            /* where they begin in the line, in units of 16 bits */
#define SHORT_VALUES 44           /* where they begin in the line, in bytes */

#define LINE_WORDS 16
#define ELEMENT_WORDS 262144  /* 1 MiB */

#define TRIE4_WIDTH 16
#define TRIE6_WIDTH 16
#define TRIE6_LEVELS 3

struct element {
	__u32 word[ELEMENT_WORDS];
};

/* What a path does with a packet. */
enum path_kind {
	PATH_PASS = 0,       /* the kernel's: for `reason` */
	PATH_FORWARD = 1,    /* to one of its members */
	PATH_DROP = 2,       /* a blackhole */
	PATH_ASK = 3,        /* the table cannot say: bpf_fib_lookup() */
};

#define PATH_MEMBERS 16

/* `ifindex` also answers for addresses that packets come *from*: where packets to them would
 * leave; 0: several, or nowhere. */
struct path {
	__u8 kind;
	__u8 reason;     /* enum router_counter, for PATH_PASS */
	__u8 count;      /* members in use */
	__u8 hosts;      /* IPv6: single addresses of this /64 are in the map hosts6 */
	__u8 unicast;    /* a route to somewhere else: a source that loose reverse path filtering
			  * takes */
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
	__u32 ifindex;   /* the interface as routes name it: the device, a VLAN on it, or a VLAN
			  * within one */
	__u32 mtu;       /* of a packet without its Ethernet header: the smaller of the interface's
			  * and the route's; 0: XDP cannot send there, the program at tc does */
	__u16 protocol;  /* network order: the EtherType of the tag to put in front, 0 for none */
	__u16 vlan;      /* network order: the tag */
	__u32 slot;      /* of the counters of the interface it leaves by */
	__u32 used;      /* set by the program, cleared by who looks */
	__u16 inner_protocol;  /* of a second tag behind that one; 0 for none */
	__u16 inner_vlan;
	/* At tc. */
	__u32 tc_mtu;    /* for tc; also of each segment of a packet that is several */
	__u32 device;    /* ifindex of the device that sends */
	__u32 flags;     /* HOP_* */
	__u32 pad[3];
};

#define HOP_PEER 1   /* the device's other end, in another namespace, takes the packet at once
		      * (bpf_redirect_peer) */

/* An interface whose packets are forwarded: a device, a VLAN on it, or a VLAN within one (IEEE
 * 802.1ad). */
struct interface_key {
	__u32 ifindex;   /* the device */
	__u16 vlan;      /* host order, 0 for none */
	__u16 protocol;  /* network order, 0 for none */
	__u16 inner_vlan;      /* of a second tag behind that one; 0: none */
	__u16 inner_protocol;
};

#define ROUTER_INTERFACES 1024

#define INTERFACE_FORWARD4 1
#define INTERFACE_FORWARD6 2
#define INTERFACE_XDP 4     /* the program runs in XDP there; at tc it sees what that one has
			     * passed */
#define INTERFACE_BEGUN 8   /* runs in XDP, and checksums of packets may be begun only */
#define INTERFACE_OTHER_MAC 16  /* what it is on has a MAC address that is not its own */

/* How a source is judged (RFC 3704). */
enum rp_filter {
	RP_OFF = 0,
	RP_STRICT = 1,   /* the way back leaves by the interface it came in by */
	RP_LOOSE = 2,    /* there is a way back */
	RP_ROUTES = 3,   /* off, but with policy rules the kernel still refuses sources that a
			  * route refuses */
};

struct interface {
	__u8 mac[6];
	__u8 flags;
	__u8 rp_filter;  /* enum rp_filter */
	__u32 ifindex;   /* the index that routes name it by */
	__u32 slot;      /* of its counters */
};

/* Most interfaces are found without a search: at the place that near_place() says, if it is
 * their own. */
#define NEAR_PLACES 1024

struct near {
	struct interface_key key;  /* without an ifindex: nobody's */
	struct interface interface;
	__u32 pad;
};

static inline __u32 near_place(const struct interface_key *key)
{
	return (key->ifindex + key->vlan * 67u + key->inner_vlan * 71u) % NEAR_PLACES;
}

/* A hop by the kernel's own lookup: what the map egress says of an interface. */
struct egress {
	__u32 port;
	__u32 slot;
	__u16 protocol;
	__u16 vlan;
	__u16 inner_protocol;
	__u16 inner_vlan;
	__u32 device;    /* ifindex of the device that sends */
	__u32 only_tc;   /* XDP cannot send there */
};

#define CONFIG_OFF4 1      /* the firewall sees IPv4's transit packets: all are the kernel's */
#define CONFIG_OFF6 2
#define CONFIG_ASK4 4      /* the policy rules ask for more than a destination: the kernel looks
			    * up */
#define CONFIG_ASK6 8
#define CONFIG_PORTS4 16   /* multipath by ports too (fib_multipath_hash_policy 1) */
#define CONFIG_PORTS6 32
#define CONFIG_ACL4 64     /* IPv4's packets are judged by the access list before they leave */
#define CONFIG_ACL6 128
#define CONFIG_ACL_ALL 256 /* and so are those that are left to the kernel, which would forward
			    * them without it */
#define CONFIG_ACL_BANK 512  /* the access list is the second of the map acls */

struct router_config {
	__u32 flags;
	__u32 seed;
	__u32 ask_mtu4;  /* the smallest MTU of any route: bpf_fib_lookup() looks at the
			  * interface's only */
	__u32 ask_mtu6;
	__u32 epoch;     /* a new number when any of the maps has changed; 0 while they change */
	__u32 beat;      /* another number each second, by who fills the maps */
	__u32 hung;      /* nobody does any more: router_watch.bpf.c */
};

/* After so many seconds without a beat packets are the kernel's. */
#define ROUTER_PATIENCE 5

/* The flow cache (router/flow_cache.h): what was decided of a plain flow, and holds as long as
 * the epoch is the same. Of IPv4 that goes by both addresses, since sources are looked up too;
 * of IPv6 by the destination. */
struct cache_flow4 {
	__u64 addresses;  /* both, as they lie in the packet */
	__u64 decided;    /* from the highest bits on: epoch, slot of the interface it came in
			   * by, hop */
};

struct cache_flow6 {
	__u64 destination[2];  /* as it lies in the packet */
	__u64 decided;
	__u64 pad;
};

#define CACHE_EPOCH_SHIFT 34
#define CACHE_EPOCHS (1 << 30)  /* when they are used up, all flows are to be forgotten */
#define CACHE_SLOT_SHIFT 24
#define CACHE_HOP_MASK 0xffffff

#define CACHE_BITS 14  /* of a hash, which choose a pair */

struct cache_pair4 {
	struct cache_flow4 flow[2];
};

struct cache_pair6 {
	struct cache_flow6 flow[2];
};

/* What the flow cache is good for. */
struct cache_use {
	__u32 hits;    /* since they were last looked at: after CACHE_LOOK misses */
	__u32 misses;
	__u32 rest;    /* so many packets go the long way: there were too few hits */
	__u32 pad[LINE_WORDS - 3];
};

/* Of one CPU. */
struct cache_flows4 {
	struct cache_use use;
	struct cache_pair4 pair[1 << CACHE_BITS];
};

struct cache_flows6 {
	struct cache_use use;
	struct cache_pair6 pair[1 << CACHE_BITS];
};

#define CACHE_LOOK 512
#define CACHE_REST 4096

/* Access lists (router/acl.h). One is an image of elements, in lines of 64 bytes numbered through
 * the whole image: line 0 is its header, and a line that holds a row, a table or a trie's root is
 * named there or in a trie. No row lies in two elements. */
#define ACL_RULES 16384
#define ACL_ROW_WORDS (ACL_RULES / 64)      /* of 64 bits */
#define ACL_GROUPS (ACL_ROW_WORDS / 64)
#define ACL_LINES_AN_ELEMENT (ELEMENT_WORDS / LINE_WORDS)
#define ACL_LEVELS 7                        /* of a trie, below its root */

/* What a packet is told by. Each has for each of its values a row: the rules that take it. */
enum acl_field {
	ACL_SOURCE = 0,
	ACL_DESTINATION,
	ACL_PROTOCOL,
	ACL_SOURCE_PORT,
	ACL_DESTINATION_PORT,
	ACL_IN,
	ACL_OUT,
	ACL_FIELDS,
};

/* A row: bit N of the whole is the rule at place N. Only those of its 64-bit words are there that
 * are not zero, one behind the other after this line. */
struct acl_row {
	__u64 any[ACL_GROUPS];      /* which words are there */
	__u8 before[ACL_GROUPS];    /* how many are there of the groups before, of 256 at the most
				     * none is needed before the first */
	__u8 pad[28];
};

/* Interfaces that rules name, by ifindex: ACL_PROBES places from acl_place() on. */
#define ACL_INTERFACES 256
#define ACL_PROBES 8

struct acl_interface {
	__u32 ifindex;   /* 0: nobody's */
	__u32 in;        /* lines of rows */
	__u32 out;
	__u32 pad;
};

/* A rule by its place. Places are not in the order of the file: rules that differ in an address
 * alone are neighbours. */
struct acl_rule {
	__u32 order;     /* in the file: the lowest that takes a packet decides */
	__u32 slot;      /* of its counters; ACL_DENIES if it denies */
};

#define ACL_DENIES 0x80000000u

struct acl_header {
	__u32 fields;                /* bits by enum acl_field: there are rules that ask for it */
	__u32 no_rule;               /* slot, as a rule has it, where none takes a packet */
	__u32 source[2];             /* lines of tries' roots for IPv4 and IPv6 */
	__u32 destination[2];
	__u32 protocols;             /* lines of tables: a line of a row for each number, and
				      * behind them for what is not known */
	__u32 source_ports;          /* the same, and before the last for packets without ports */
	__u32 destination_ports;
	__u32 interfaces;            /* line of ACL_INTERFACES struct acl_interface */
	__u32 other_in;              /* lines of rows for all other interfaces */
	__u32 other_out;
	__u32 unknown_out;           /* where it is not known by which one a packet will leave */
	__u32 rules;                 /* line of the struct acl_rule of all places */
	__u32 slots;                 /* counters that each CPU has */
	__u32 pad;
};

#define ACL_NO_PORT 65536
#define ACL_UNKNOWN_PORT 65537
#define ACL_UNKNOWN_PROTOCOL 256

/* What a list said of a flow (router/acl_flows.h). All that it looks at is the key: addresses, and
 * of this all but `decided`. */
struct acl_about {
	__u32 ports;     /* both, as they lie in the packet */
	__u32 in;        /* by which interface it comes in */
	__u32 out;       /* and by which it leaves */
	__u32 stamp;     /* epoch; bank of the list; in the lowest bit whether it is UDP, not TCP */
	__u32 decided;   /* slot of the rule that takes it, as a rule has it */
	__u32 pad;
};

struct acl_flow4 {
	__u64 addresses; /* both, as they lie in the packet */
	struct acl_about about;
};

struct acl_flow6 {
	__u64 address[4];
	struct acl_about about;
	__u64 pad;
};

#define ACL_STAMP_EPOCH_SHIFT 2
#define ACL_STAMP_BANK 2
#define ACL_STAMP_UDP 1

#define ACL_FLOW_BITS 14 /* of a hash, which choose a pair */
/* A list costs so much more than a look for the flow that few hits are worth it. */
#define ACL_FLOWS_LOOK 4096

/* Of one CPU. */
struct acl_flows {
	struct cache_use use;
	struct acl_flow4 four[1 << ACL_FLOW_BITS][2];
	struct acl_flow6 six[1 << ACL_FLOW_BITS][2];
};

/* What a packet shows of itself. */
struct acl_shown {
	__u32 row[ACL_FIELDS];  /* lines of rows */
	__u32 size;             /* of the IP packet */
	__u64 common[ACL_GROUPS];  /* words that all rows have something in, and that were not
				    * looked at */
	__u32 order;            /* of the first rule so far that takes it */
	__u32 decided;          /* its slot, as the rule has it */
};

struct acl_count {
	__u64 packets;
	__u64 bytes;     /* of IP packets, without what is in front of them */
};

/* Counters of an interface, each once for IPv4 and once for IPv6. All but the first four,
 * BLACKHOLE and DENIED say why a packet was left to the kernel. docs/router.md lists them. */
enum router_counter {
	COUNT_FORWARDED = 0,
	COUNT_FORWARDED_BYTES,
	COUNT_SENT,           /* of the interface it leaves by */
	COUNT_KNOWN,          /* of those forwarded: by the flow cache */
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
	COUNT_BEYOND,         /* the route or the packet needs what the fast path does not do */
	COUNT_ASKED,          /* ARP requests, neighbour solicitations */
	COUNT_TOLD,           /* ARP replies, neighbour advertisements */
	COUNT_BEGUN,          /* a checksum that is only begun, where the program runs in XDP */
	COUNT_HUNG,           /* nobody follows the kernel's routes any more */
	COUNT_DENIED,         /* dropped by the access list */
	COUNT_UNSENT,         /* dropped: what it was to leave by is gone, or memory is short */
	ROUTER_COUNTERS,
};

struct counters {
	__u64 value[2 * ROUTER_COUNTERS];  /* IPv4's, then IPv6's */
};

_Static_assert(sizeof(struct element) == 1 << 20, "a power of two");
_Static_assert(SHORT_VALUES == 2 * (SHORT_FIRSTS + SHORT_RUNS), "values behind the firsts");
_Static_assert(SHORT_VALUES + SHORT_RUNS == 4 * LINE_WORDS, "a line is full");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the lower half of a word is first");
_Static_assert(sizeof(struct path) == 16 + 8 * PATH_MEMBERS, "no holes");
_Static_assert(sizeof(struct hop) == 64, "no holes");
_Static_assert(sizeof(struct interface_key) == 12, "no holes");
_Static_assert(sizeof(struct interface) == 16, "no holes");
_Static_assert(sizeof(struct near) == 32, "no holes");
_Static_assert(sizeof(struct egress) == 24, "no holes");
_Static_assert(sizeof(struct router_config) == 28, "no holes");
_Static_assert(sizeof(struct cache_flows4) == (4 * LINE_WORDS) + (32 << CACHE_BITS), "no holes");
_Static_assert(sizeof(struct cache_flows6) == (4 * LINE_WORDS) + (64 << CACHE_BITS), "no holes");
_Static_assert(sizeof(struct acl_header) == 4 * LINE_WORDS, "a line");
_Static_assert(sizeof(struct acl_row) == 4 * LINE_WORDS, "a line");
_Static_assert(sizeof(struct acl_interface) == 16, "no holes");
_Static_assert(ROUTER_INTERFACES <= 1 << (CACHE_EPOCH_SHIFT - CACHE_SLOT_SHIFT),
	       "a slot has its bits");
_Static_assert(ROUTER_COUNTERS == 28, "layout.rs has as many");
