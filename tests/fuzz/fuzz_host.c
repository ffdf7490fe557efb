/* What guests and strangers say to rank 0, from the rendezvous to the links: it has its comm, or an error. */
#include "fuzz/fuzz_join.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) { return fuzz_join(data, size, 0, 10); }
