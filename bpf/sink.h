/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What sink.bpf.c is told by crates/xdp (sink.rs). */
#pragma once

#include <linux/types.h>

struct sink {
	__be32 source;
	__be16 port;
	__u16 pad;
};

_Static_assert(sizeof(struct sink) == 8, "no holes");
