/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exchanges that are enqueued. They have a stream of their own, beside that of the reducer: while the messages of one
 * group travel, others are encoded and decoded. Events put both in order, and nobody waits on the host.
 */
#ifndef PITH_DEVICE_EXCHANGE_STREAM_H
#define PITH_DEVICE_EXCHANGE_STREAM_H

#include "device/cuda_device.h"

#define PITH_EXCHANGES_MOST 64 /* at a time */

typedef struct pith_exchange_stream {
  const pith_cuda_module *gpu;
  void *stream, *ready; /* ready: what is sent has been written */
  struct {
    void *done, *waiting; /* an event behind the exchange, and the stream that will wait for it */
    int is_taken;
  } tickets[PITH_EXCHANGES_MOST];
} pith_exchange_stream;

/* Of the calling thread's current device. After a failure too it is to be closed. */
pith_status pith__exchange_stream_open(const pith_cuda_module *gpu, pith_exchange_stream *s);
void pith__exchange_stream_close(pith_exchange_stream *s);

/* What is enqueued on s->stream from now on comes behind all that is on `behind`. */
pith_status pith__exchange_stream_begin(pith_exchange_stream *s, void *behind, uint64_t *ticket);
/* The exchange is enqueued; that stream will wait for it, … */
pith_status pith__exchange_stream_end(pith_exchange_stream *s, void *behind, uint64_t ticket);
/* … from now on. */
pith_status pith__exchange_stream_join(pith_exchange_stream *s, uint64_t ticket);

#endif
