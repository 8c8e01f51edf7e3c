// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What the cable's program and crates/container (src/cables.rs) both read and write. Sizes are
// asserted on both sides.
#pragma once

#include <linux/types.h>

#define CABLE_ENDS 65536 // two a container's interface

// Where what comes in by an interface goes.
struct cable_end {
	__u32 to;    // an interface's index
	__u8 mac[6]; // of the container's interface, where `to` is the host's end of its pair
	__u8 pair;   // `to` is that
	__u8 reserved;
};
