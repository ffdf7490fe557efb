/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Everything Pith is born with. A new codec is one file in src/codec/ and one name in this list; but for the wire id in
 * kernel/formats.h no other file needs to know of it.
 */
#include "codec/registry.h"

#define CODEC_LIST(X) \
  X(none)             \
  X(fp16)             \
  X(bf16)             \
  X(lossless)         \
  X(q)                \
  X(qsgd)             \
  X(nuq)              \
  X(terngrad)         \
  X(natural)          \
  X(sign)             \
  X(signmean)         \
  X(tree8)            \
  X(fp8)              \
  X(mx)               \
  X(nvfp4)            \
  X(inceptionn)       \
  X(gq)               \
  X(lloyd)            \
  X(topk)             \
  X(randomk)          \
  X(threshold)        \
  X(adaptive)         \
  X(sketchml)         \
  X(powersgd)

#define DECLARE_CODEC(name) extern const pith_codec_ops pith__codec_##name;
CODEC_LIST(DECLARE_CODEC)

extern const pith_transform_ops pith__transform_hadamard;
extern const pith_memory_ops pith__memory_ef, pith__memory_momentum, pith__memory_moment, pith__memory_dgc;

#define LIST_CODEC(name) &pith__codec_##name,
const pith_codec_ops *const pith__builtin_codecs[] = {CODEC_LIST(LIST_CODEC) NULL};

const pith_transform_ops *const pith__builtin_transforms[] = {&pith__transform_hadamard, NULL};

const pith_memory_ops *const pith__builtin_memories[] = {&pith__memory_ef, &pith__memory_momentum, &pith__memory_moment,
                                                         &pith__memory_dgc, NULL};
