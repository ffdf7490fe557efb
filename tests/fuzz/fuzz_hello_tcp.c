/* SPDX-License-Identifier: Apache-2.0 */
/* What is said while tcp makes its links: rank 1 of three calls rank 0 and is called by rank 2, and by strangers. */
#include "directory.h"
#include "fuzz/fake_sockets.h"
#include "transport/tcp.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const pith_transport_config config = {.rank = 1, .ranks = 3, .timeout = 10};
  const pith_link_key key = {.job = 7, .bytes = {1, 2, 3}};
  const uint8_t wanted[3] = {1, 0, 1};
  pith_transport *transport;
  pith_address address[3];
  fake_begin((fuzz_input){data, size});
  FUZZ_REQUIRE(pith__transport_tcp.listen(&config, &transport, &address[1]) == PITH_OK);
  address[0] = address[2] = address[1]; /* random numbers are all the same: so are the tokens */
  pith_directory directory = directory_of(address);
  pith_status status = pith__transport_tcp.connect(transport, &directory, wanted, &key);
  FUZZ_REQUIRE(status == PITH_OK || pith_error()[0]);
  pith__transport_tcp.close(transport);
  fake_end();
  return 0;
}
