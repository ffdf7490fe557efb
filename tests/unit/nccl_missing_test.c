/* SPDX-License-Identifier: Apache-2.0 */
/* Without NCCL the calls say so. */
#include <pith/carrier.h>

#include "test.h"

TEST(missing_nccl_is_an_error_that_says_so) {
  pith_carrier carrier = PITH_CARRIER_INIT;
  int version = 0, something = 0;
  if (pith_nccl_probe(&version) == PITH_OK) {
    CHECK_MSG(version >= 21000, "NCCL %d was accepted", version);
    SKIP("this machine has NCCL %d", version);
  }
  CHECK_STATUS(pith_nccl_probe(NULL), PITH_ERR_UNSUPPORTED);
  CHECK_ERROR_SAYS("NCCL cannot be opened");
  CHECK_ERROR_SAYS("libnccl.so.2");
  CHECK_STATUS(pith_nccl_carrier(&something, 0, &carrier), PITH_ERR_UNSUPPORTED);
  CHECK(carrier.start == NULL);
}

TEST(arguments_are_checked_before_nccl_is_looked_for) {
  pith_carrier carrier = PITH_CARRIER_INIT;
  int something = 0;
  CHECK_STATUS(pith_nccl_carrier(NULL, 0, &carrier), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_nccl_carrier(&something, 0, NULL), PITH_ERR_ARGUMENT);
}
