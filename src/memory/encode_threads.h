/* Encoding and decoding that a crew shares: pieces of a layer for each thread, with the bytes and sums that one thread
 * would make. */
#ifndef PITH_MEMORY_ENCODE_THREADS_H
#define PITH_MEMORY_ENCODE_THREADS_H

#include "base/crew.h"
#include "codec/codec.h"
#include "memory/memory.h"

typedef pith_status (*pith_feed_fn)(const pith_codec *codec, pith_state *state, pith_cspan src, pith_out *out,
                                    const pith_feed_scratch *scratch, const pith_ctx *ctx);

/* The crew's members have a scratch each, `scratch[0]` is the caller's. crew: NULL for nobody. */
pith_status pith__encode_in_threads(pith_crew *crew, pith_feed_fn feed, const pith_codec *codec, pith_state *state,
                                    pith_cspan src, pith_out *out, const pith_feed_scratch *scratch,
                                    const pith_ctx *ctx);
pith_status pith__decode_in_threads(pith_crew *crew, const pith_codec *codec, pith_bytes in, pith_span dst,
                                    pith_apply apply, const pith_feed_scratch *scratch, const pith_ctx *ctx);

#endif
