/* SPDX-License-Identifier: Apache-2.0 */
/* What clients and strangers send to rank 0 at the rendezvous, and then to its links: it has its comm, or an error. */
#include "fuzz/fuzz_join.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) { return fuzz_join(data, size, 0, 10); }
