// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What the programs of cables and arrivals and crates/container (src/cables.rs) read and write.
// Sizes are asserted on both sides.
#pragma once

#include <linux/types.h>

#define CABLE_ENDS 65536 // two a container's interface, or a VMM's

// Where what comes in by an interface goes.
struct cable_end {
	__u32 to;       // an interface's index
	__u8 mac[6];    // of the container's interface, where `to` is the host's end of its pair
	__u8 from_tap;  // it is the TAP device that the switch writes to; else `to` is that
	__u8 machine;   // on the other side is no container, but a TAP device that a VMM has open
	__u8 at_sender; // frames are seen while they are sent (netkit), and have not come in yet
	__u8 reserved[3];
};

#define KERNEL_IDLE_NS 10000000000ull // no flow has a shorter timeout
#define KERNEL_DSCP_INNER 0xff
#define KERNEL_OUTER_BYTES 72
#define KERNEL_OUTER4 50     // bytes of outer headers over IPv4,
#define KERNEL_OUTER6 70     // and over IPv6

// One direction of a connection that the switch has let pass, as its packets tell it. Addresses of
// IPv4 have four bytes, and zeros behind them.
struct kernel_key {
	__u32 device;      // the host's end of the sender's pair, a VMM's TAP device, or an uplink
	__u8 macs[12];     // destination and source, as in the frame
	__u8 from[16];
	__u8 to[16];
	__u32 ports;       // source and destination, as in the packet
	__u8 protocol;
	__u8 family;       // 4 or 6
	__u16 reserved;
	__u32 vni;         // of what comes from other hosts; else 0
};

// What is entered under it.
struct kernel_flow {
	__u32 state;       // its place in kernel_states
	__u32 tag;         // which use of that place
	__u32 to;          // the host's end of the receiver's pair, a VMM's TAP device, or an uplink
	__u8 outer_len;    // bytes of outer headers that are put on or, from an uplink, taken off
	__u8 dscp;         // the outer one; KERNEL_DSCP_INNER: the inner packet's
	__u16 reserved;
	// Two zeros, so that what is behind Ethernet is aligned, and the headers: Ethernet, IPv4 or
	// IPv6, UDP, VXLAN, without TOS, lengths and checksum. Of what comes by an uplink, as the
	// other host makes them: what is looked at is addresses and the destination port.
	__u8 outer[KERNEL_OUTER_BYTES] __attribute__((aligned(4)));
};

// How a direction stands. The switch maps this and writes what is above the line.
struct kernel_state {
	__u64 mark;        // tag and generation under which packets pass; 0: none do
	__u32 max_frame;   // bytes of a frame, or of a segment with its headers
	__u8 scale;        // TCP: of the windows that this side offers
	__u8 reserved[3];
	// ---
	__u64 frames;      // passed, ever: never set back
	__u64 bytes;
	__u64 last_ns;     // when the last one did, CLOCK_MONOTONIC; begun by the switch
	__u32 end;         // TCP, as in crates/dataplane/src/flow/tcp.rs; begun by the switch
	__u32 ack;
	__u32 edge;
	__u32 reserved_end;
	__u64 until_ns;    // the switch's, again: so long packets pass, CLOCK_MONOTONIC
};

// Whether any packets pass.
struct kernel_force {
	__u64 generation;  // the one in force, 1 to 2^32-1; 0: none pass
	__u64 until_ns;    // for so long, CLOCK_MONOTONIC, unless the switch says so again
};
