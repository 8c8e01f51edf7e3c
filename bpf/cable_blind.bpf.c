// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The cable for a kernel whose buffers cannot be looked into: it forwards itself no packet of which
// anything is left undone.
#define KNOWN_BLIND
#include "cable.bpf.c"
