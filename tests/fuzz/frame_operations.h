/* SPDX-License-Identifier: Apache-2.0 */
/* The operations that are under way while fuzz_frame.c reads messages; make_corpus records those of the other rank. */
#ifndef PITH_TESTS_FUZZ_FRAME_OPERATIONS_H
#define PITH_TESTS_FUZZ_FRAME_OPERATIONS_H

#include <pith/comm.h>

#include "fuzz/fuzz.h"

enum { FUZZ_FRAME_VALUES = 40, FUZZ_FRAME_TAG = 7, FUZZ_FRAME_CODECS = 4, FUZZ_FRAME_OPERATIONS = 12 };
enum { FUZZ_FRAME_SEALED = 1, FUZZ_FRAME_CHECKED = 2 }; /* flags of an input */

static inline pith_status fuzz_frame_allreduce(pith_comm *comm, pith_cspan src, pith_span dst, unsigned which) {
  static const char *const specs[FUZZ_FRAME_CODECS] = {"q:4", "topk:0.1", "threshold:0.5", "fp16"};
  static pith_codec *codecs[2][FUZZ_FRAME_CODECS]; /* of each rank */
  pith_codec **codec = &codecs[pith_comm_rank(comm)][which];
  pith_call call = PITH_CALL_INIT;
  if (!*codec) {
    FUZZ_REQUIRE(pith_codec_create(specs[which], codec) == PITH_OK);
  }
  call.codec = *codec;
  return pith_allreduce(comm, src, dst, PITH_MEAN, &call, NULL);
}

static inline pith_status fuzz_frame_run(pith_comm *comm, unsigned operation) {
  float src[FUZZ_FRAME_VALUES], dst[2 * FUZZ_FRAME_VALUES];
  int rank = pith_comm_rank(comm);
  for (int i = 0; i < FUZZ_FRAME_VALUES; i++) {
    src[i] = dst[i] = (float)i;
  }
  pith_cspan from = {src, FUZZ_FRAME_VALUES, PITH_F32};
  pith_span to = {dst, FUZZ_FRAME_VALUES, PITH_F32}, all = {dst, (size_t)2 * FUZZ_FRAME_VALUES, PITH_F32};
  switch (operation) {
    case 4:
      return pith_allreduce(comm, from, to, PITH_SUM, NULL, NULL);
    case 5:
      return pith_all_gather(comm, from, all, NULL, NULL, NULL);
    case 6:
      return pith_broadcast(comm, to, 1, NULL, NULL);
    case 7:
      return rank == 0 ? pith_recv(comm, to, 1, FUZZ_FRAME_TAG, NULL) : pith_send(comm, from, 0, FUZZ_FRAME_TAG, NULL);
    case 8:
      return rank == 0 ? pith_recv(comm, to, PITH_ANY_RANK, FUZZ_FRAME_TAG, NULL)
                       : pith_send(comm, from, 0, FUZZ_FRAME_TAG, NULL);
    case 9:
      return pith_gather(comm, from, all, NULL, 0, NULL);
    case 10:
      return rank == 0 ? pith_send(comm, from, 1, FUZZ_FRAME_TAG, NULL) : pith_recv(comm, to, 0, FUZZ_FRAME_TAG, NULL);
    case 11:
      return pith_barrier(comm, NULL);
    default:
      return fuzz_frame_allreduce(comm, from, to, operation);
  }
}

#endif
