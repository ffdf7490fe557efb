/* Without NCCL the calls say so. */
#include <pith/nccl.h>

#include "test.h"

TEST(missing_nccl_is_an_error_that_says_so) {
  pith_nccl *nccl = NULL;
  int version = 0, something = 0;
  if (pith_nccl_probe(&version) == PITH_OK) {
    CHECK_MSG(version >= 20700, "NCCL %d was accepted", version);
    SKIP("this machine has NCCL %d", version);
  }
  CHECK_STATUS(pith_nccl_probe(NULL), PITH_ERR_UNSUPPORTED);
  CHECK_ERROR_SAYS("NCCL cannot be opened");
  CHECK_ERROR_SAYS("libnccl.so.2");
  CHECK_STATUS(pith_nccl_create(&something, NULL, 0, "q:4", 0, &nccl), PITH_ERR_UNSUPPORTED);
  CHECK(nccl == NULL);
}

TEST(arguments_are_checked_before_nccl_is_looked_for) {
  pith_nccl *nccl = NULL;
  pith_layer layer = {sizeof(pith_layer), "w", (size_t[]){4}, 1, PITH_F32, NULL};
  int something = 0;
  CHECK_STATUS(pith_nccl_create(NULL, &layer, 1, "q:4", 0, &nccl), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_nccl_create(&something, NULL, 1, "q:4", 0, &nccl), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_nccl_create(&something, &layer, 1, NULL, 0, &nccl), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_nccl_create(&something, &layer, 1, "q:4", 0, NULL), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_nccl_allreduce(NULL, NULL, 0, NULL), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_nccl_scale(NULL, 2, NULL), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_nccl_spec(NULL, 0, NULL, NULL), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_nccl_save(NULL, NULL), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_nccl_load(NULL, (pith_bytes){NULL, 0}), PITH_ERR_ARGUMENT);
  CHECK_EQ(pith_nccl_save_size(NULL) + pith_nccl_sent(NULL) + pith_nccl_memory(NULL), 0);
  pith_nccl_destroy(NULL);
}
