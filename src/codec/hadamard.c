/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hadamard: a seeded orthonormal rotation of each block, which spreads outliers over all of it before a quantizer. A
 * last, shorter block is cut into powers of two, largest first, so that nothing is padded and sizes stay those of the
 * codec.
 */
#include "base/rng.h"
#include "codec/block.h"
#include "kernel/kernel.h"

enum { HADAMARD_BLOCK };

static const pith_param hadamard_params[] = {
    {sizeof(pith_param), "block", PITH_PARAM_INT, 64, PITH_BLOCK_MAX, "1024", NULL,
     "values rotated together; a power of two"},
    {0},
};

static pith_status hadamard_check(const pith_value *a) {
  int64_t block = a[HADAMARD_BLOCK].i;
  PITH_REQUIRE((block & (block - 1)) == 0, PITH_ERR_RANGE, "hadamard: block=%lld is not a power of two",
               (long long)block);
  return PITH_OK;
}

static size_t hadamard_block(const pith_value *a) { return (size_t)a[HADAMARD_BLOCK].i; }

typedef void (*rotate_fn)(float *x, size_t n, pith_key key, uint32_t index);

static void each_power(rotate_fn rotate, float *x, size_t n, uint64_t index, const pith_ctx *ctx) {
  pith_key key = pith__rng_key(ctx, PITH_DOMAIN_ROTATE, index);
  for (size_t done = 0; done < n;) {
    size_t power = (size_t)1 << (63 - __builtin_clzll((unsigned long long)(n - done)));
    rotate(x + done, power, key, (uint32_t)(index + done));
    done += power;
  }
}

/* A rotated NaN or overflow is NaN everywhere; which NaN, C and CPUs leave open, and payloads must not depend on it. */
static pith_status hadamard_forward(const pith_value *a, float *x, size_t n, uint64_t index, const pith_ctx *ctx) {
  (void)a;
  each_power(pith__kernels()->rotate, x, n, index, ctx);
  if (pith__kernels()->absmax(x, n) >= PITH_INF_BITS) {
    for (size_t i = 0; i < n; i++) {
      x[i] = pith__nan();
    }
  }
  return PITH_OK;
}

static pith_status hadamard_inverse(const pith_value *a, float *x, size_t n, uint64_t index, const pith_ctx *ctx) {
  (void)a;
  each_power(pith__kernels()->unrotate, x, n, index, ctx);
  return PITH_OK;
}

static void hadamard_gpu(const pith_value *a, pith_gpu_task *task) {
  task->rotation = (uint8_t)(63 - __builtin_clzll((unsigned long long)a[HADAMARD_BLOCK].i));
}

const pith_transform_ops pith__transform_hadamard = {
    .name = "hadamard",
    .family = "transform",
    .summary = "a seeded rotation of each block; flattens outliers before a quantizer",
    .origin = "Suresh 2017",
    .detail = "nothing of its own: signs of the rotation follow from the seed",
    .use = "before a quantizer of few bits, where a few values dominate a bucket; costs time on both sides",
    .params = hadamard_params,
    .check = hadamard_check,
    .block = hadamard_block,
    .forward = hadamard_forward,
    .inverse = hadamard_inverse,
    .gpu_block = hadamard_gpu,
};
