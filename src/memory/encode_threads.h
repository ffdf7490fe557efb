/* Encoding and decoding by several threads: pieces of a layer for each of them, with the bytes and sums that one thread
 * would make. */
#ifndef PITH_MEMORY_ENCODE_THREADS_H
#define PITH_MEMORY_ENCODE_THREADS_H

#include "base/thread_pool.h"
#include "codec/codec.h"
#include "memory/memory.h"

typedef pith_status (*pith_encode_fn)(const pith_codec *codec, pith_state *state, pith_cspan src, pith_out *out,
                                      const pith_encode_scratch *scratch, const pith_ctx *ctx);

/* Each thread has a scratch of its own, `scratch[0]` is the caller's. pool: NULL for the caller alone. */
pith_status pith__encode_in_threads(pith_thread_pool *pool, pith_encode_fn encode, const pith_codec *codec,
                                    pith_state *state, pith_cspan src, pith_out *out,
                                    const pith_encode_scratch *scratch, const pith_ctx *ctx);
pith_status pith__decode_in_threads(pith_thread_pool *pool, const pith_codec *codec, pith_bytes in, pith_span dst,
                                    pith_apply apply, const pith_encode_scratch *scratch, const pith_ctx *ctx);
/* pith__memory_sum_own(). */
pith_status pith__sum_own_in_threads(pith_thread_pool *pool, const pith_codec *codec, pith_state *state, pith_cspan src,
                                     float *sum, pith_apply apply, const pith_ctx *ctx);

#endif
