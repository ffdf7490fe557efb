/* The CUDA module for the rest of the folder, and buckets on devices whose parts lie apart. */
#ifndef PITH_DEVICE_CUDA_DEVICE_H
#define PITH_DEVICE_CUDA_DEVICE_H

#include <pith/bucket.h>
#include <pith/cuda.h>

#include "kernel/formats.h"

/* The module, opened at the first call; the error says why there is none. */
pith_status pith__cuda_module(const pith_cuda_module **module);

/* As pith_cuda_bucket_…, but what is for or from rank p begins at p · stride. 0: parts lie one after another. */
pith_status pith__cuda_bucket_encode(const pith_bucket *bucket, const void *const *src, float *const *memories,
                                     const pith_ctx *ctx, void *parts, size_t stride, void *stream);
pith_status pith__cuda_bucket_sum(const pith_bucket *bucket, const void *const *src, float *const *memories,
                                  const void *received, size_t stride, const pith_ctx *ctx, float *sums, void *stream);
pith_status pith__cuda_bucket_decode(const pith_bucket *bucket, const void *results, size_t stride, const pith_ctx *ctx,
                                     void *const *dst, void *stream);

#endif
