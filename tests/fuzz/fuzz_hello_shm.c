/* SPDX-License-Identifier: Apache-2.0 */
/* What is said while shm makes its links: rank 1 of three calls rank 0 and is called by rank 2, and by strangers. */
#include "base/forked.h"
#include "fuzz/fake_sockets.h"
#include "fuzz/shm_links.h"

enum { OWN_MEMORY = 0 }; /* a descriptor that is only passed on */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const pith_transport_config config = {.rank = 1, .ranks = SHM_LINKS_RANKS, .timeout = 10};
  const pith_link_key key = {.job = 7, .bytes = {1, 2, 3}};
  pith_address address[SHM_LINKS_RANKS];
  shm_links links;
  int listener;
  fake_begin((fuzz_input){data, size});
  FUZZ_REQUIRE(pith__shm_link_listen(&listener, &address[1]) == PITH_OK);
  address[0] = address[2] = address[1];
  pith_shm_setup setup = shm_links_begin(&links, &config, &key, address, listener, OWN_MEMORY, 1010);
  pith_status status = pith__shm_link_connect(&setup);
  FUZZ_REQUIRE(status == PITH_OK ? links.established == 2 : pith_error()[0] != 0);
  pith__shm_link_end(&setup, 0);
  for (int r = 0; r < SHM_LINKS_RANKS; r += 2) {
    pith_shm_link *link = &links.link[r];
    FUZZ_REQUIRE(status != PITH_OK || (link->socket >= 0 && link->memory >= 0));
    FUZZ_REQUIRE(link->memory < 0 || link->inbox < link->shape.inboxes);
    pith__shm_link_close(link);
  }
  pith__fd_close(listener);
  fake_end();
  return 0;
}
