/* SPDX-License-Identifier: Apache-2.0 */
/* What rank 0 and strangers send to a client of the rendezvous, and then to its links: it has its comm, or an error. */
#include "fuzz/fuzz_join.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) { return fuzz_join(data, size, 1, 1); }
