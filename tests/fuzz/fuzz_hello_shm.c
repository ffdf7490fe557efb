/* What is said while shm makes its links: rank 1 of three calls rank 0 and is called by rank 2, and by strangers. */
#include "base/forked.h"
#include "fuzz/fake_sockets.h"
#include "transport/shm_link.h"

enum { OWN_MEMORY = 0 }; /* a descriptor that is only passed on */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const pith_transport_config config = {.rank = 1, .ranks = 3, .timeout = 10};
  const pith_link_key key = {.job = 7, .bytes = {1, 2, 3}};
  pith_address address[3];
  pith_shm_link links[2] = {{.rank = 0, .socket = -1, .process = -1, .memory = -1},
                            {.rank = 2, .socket = -1, .process = -1, .memory = -1}};
  int listener;
  fake_begin((fuzz_input){data, size});
  FUZZ_REQUIRE(pith__shm_link_listen(&listener, &address[1]) == PITH_OK);
  address[0] = address[2] = address[1];
  pith_shm_setup setup = {.config = &config,
                          .key = &key,
                          .address = address,
                          .listener = listener,
                          .memory = OWN_MEMORY,
                          .shape = pith__shm_shape(2),
                          .links = links,
                          .count = 2,
                          .end = 1010};
  pith_status status = pith__shm_link_connect(&setup);
  FUZZ_REQUIRE(status == PITH_OK || pith_error()[0]);
  for (int i = 0; i < 2; i++) {
    FUZZ_REQUIRE(status != PITH_OK || (links[i].socket >= 0 && links[i].memory >= 0));
    FUZZ_REQUIRE(links[i].memory < 0 || links[i].inbox < links[i].shape.inboxes);
    pith__shm_link_close(&links[i]);
  }
  pith__fd_close(listener);
  fake_end();
  return 0;
}
