/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a comm on sockets in memory, on which the input speaks for all others: there is a comm, or an error. */
#ifndef PITH_FUZZ_JOIN_H
#define PITH_FUZZ_JOIN_H

#include <pith/comm.h>

#include "fuzz/fake_sockets.h"

static inline int fuzz_join(const uint8_t *data, size_t size, int rank, double timeout) {
  fuzz_input in = {data, size};
  unsigned head = (unsigned)fuzz_take(&in, 1);
  pith_config config = PITH_CONFIG_INIT;
  pith_comm *comm = NULL;
  config.rank = rank, config.ranks = 2 + (int)(head & 1), config.host = "127.0.0.1", config.port = 12345;
  config.transport = "tcp", config.timeout = timeout, config.host_id = "here";
  config.secret = head & 2 ? "secret" : NULL;
  fake_begin(in);
  pith_status status = pith_comm_create(&config, &comm);
  FUZZ_REQUIRE(status == PITH_OK ? comm != NULL : pith_error()[0] != 0);
  pith_comm_destroy(comm);
  fake_end();
  return 0;
}

#endif
