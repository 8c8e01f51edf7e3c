// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Whether a cache of flows is worth looking into: where most packets are of flows that it does not
// know, as when each goes to another destination, that costs more than it saves, and it pauses.
#pragma once

#include "../router.h"

// It pauses, for one packet less than before.
static __always_inline bool cache_rests(struct cache_use *use)
{
	if (!use->rest)
		return false;
	use->rest--;
	return true;
}

// A packet of a flow that was not known before. Of so many it is looked whether there were `least`
// hits meanwhile.
static __always_inline void cache_missed(struct cache_use *use, __u32 look, __u32 least)
{
	if (++use->misses < look)
		return;
	use->rest = use->hits < least ? CACHE_REST : 0;
	use->hits = 0;
	use->misses = 0;
}
