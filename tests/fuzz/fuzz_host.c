/* What guests and strangers say to rank 0, from the rendezvous to the links: it has its comm, or an error. */
#include <pith/comm.h>

#include "fuzz/fake_sockets.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  fuzz_input in = {data, size};
  unsigned head = (unsigned)fuzz_take(&in, 1);
  pith_config config = PITH_CONFIG_INIT;
  pith_comm *comm = NULL;
  config.rank = 0, config.ranks = 2 + (int)(head & 1), config.host = "127.0.0.1", config.port = 12345;
  config.transport = "tcp", config.timeout = 10, config.host_id = "here";
  config.secret = head & 2 ? "secret" : NULL;
  fake_begin(in);
  pith_status status = pith_comm_create(&config, &comm);
  FUZZ_REQUIRE(status == PITH_OK ? comm != NULL : pith_error()[0] != 0);
  pith_comm_destroy(comm);
  fake_end();
  return 0;
}
