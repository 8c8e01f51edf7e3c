// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What comes from other hosts, for a kernel whose buffers cannot be looked into: no packet is taken
// of which anything is left undone.
#define KNOWN_BLIND
#include "arrival.bpf.c"
