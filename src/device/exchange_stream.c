/* SPDX-License-Identifier: Apache-2.0 */
/* Exchanges that are enqueued: see exchange_stream.h. */
#include "device/exchange_stream.h"

pith_status pith__exchange_stream_open(const pith_cuda_module *gpu, pith_exchange_stream *s) {
  *s = (pith_exchange_stream){.gpu = gpu};
  PITH_CUDA_TRY(gpu->stream_create, &s->stream);
  PITH_CUDA_TRY(gpu->event_create, &s->ready);
  return PITH_OK;
}

/* What is under way on the stream goes on. */
void pith__exchange_stream_close(pith_exchange_stream *s) {
  for (size_t i = 0; i < PITH_EXCHANGES_MOST; i++) {
    if (s->tickets[i].done) {
      s->gpu->event_destroy(s->tickets[i].done);
    }
  }
  if (s->ready) {
    s->gpu->event_destroy(s->ready);
  }
  if (s->stream) {
    s->gpu->stream_destroy(s->stream);
  }
}

pith_status pith__exchange_stream_begin(pith_exchange_stream *s, void *behind, uint64_t *ticket) {
  uint64_t i = 0;
  while (i < PITH_EXCHANGES_MOST && s->tickets[i].is_taken) {
    i++;
  }
  PITH_REQUIRE(i < PITH_EXCHANGES_MOST, PITH_ERR_STATE, "more than %d exchanges at a time", PITH_EXCHANGES_MOST);
  if (!s->tickets[i].done) {
    PITH_CUDA_TRY(s->gpu->event_create, &s->tickets[i].done);
  }
  PITH_CUDA_TRY(s->gpu->event_record, s->ready, behind);
  PITH_CUDA_TRY(s->gpu->stream_wait, s->stream, s->ready);
  *ticket = i;
  return PITH_OK;
}

pith_status pith__exchange_stream_end(pith_exchange_stream *s, void *behind, uint64_t ticket) {
  PITH_CUDA_TRY(s->gpu->event_record, s->tickets[ticket].done, s->stream);
  s->tickets[ticket].waiting = behind;
  s->tickets[ticket].is_taken = 1;
  return PITH_OK;
}

pith_status pith__exchange_stream_join(pith_exchange_stream *s, uint64_t ticket) {
  s->tickets[ticket].is_taken = 0;
  PITH_CUDA_TRY(s->gpu->stream_wait, s->tickets[ticket].waiting, s->tickets[ticket].done);
  return PITH_OK;
}
