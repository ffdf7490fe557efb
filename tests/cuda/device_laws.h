/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a reducer of gradients on a device must do, over NCCL (nccl_test.c, nccl_carrier_test.c) or over a comm through
 * pinned memory (device_test.c, staged_carrier_test.c), on real devices and made-up ones: the CPU computes from the
 * inputs of all ranks what they must get. Block codecs and sparsifiers have its very bits, powersgd agrees within
 * rounding.
 *
 * Who includes it defines `law_device` and `law_open_reducer`, and calls every law on all ranks at the same time.
 */
#ifndef PITH_TESTS_CUDA_DEVICE_LAWS_H
#define PITH_TESTS_CUDA_DEVICE_LAWS_H

#include <math.h>
#include <pith/carrier.h>
#include <stdlib.h>

#include "base/half.h"
#include "base/hash.h"
#include "device/bucket.h"
#include "test.h"

typedef struct law_world {
  void *comm, *stream;
  int rank, ranks;
} law_world;

/* Memory of the device; get and put wait for it. */
typedef struct law_memory {
  void *(*take)(size_t);
  void (*give)(void *);
  void (*put)(void *, const void *, size_t);
  void (*get)(void *, const void *, size_t);
  int (*same)(const law_world *, uint64_t); /* whether all ranks say the same number */
} law_memory;

static const law_memory law_device;

static pith_reducer_options law_options = PITH_REDUCER_OPTIONS_INIT;

static pith_status law_open_reducer(const law_world *w, const char *rules, uint64_t seed,
                                    const pith_reducer_options *options, pith_reducer **reducer);

static pith_status law_create(const law_world *w, const pith_layer *layers, size_t count, const char *rules,
                              uint64_t seed, pith_reducer **made) {
  pith_reducer *reducer = NULL;
  pith_reducer_options options = law_options;
  options.cuda = 1;
  options.stream = w->stream;
  pith_status status = law_open_reducer(w, rules, seed, &options, &reducer);
  for (size_t i = 0; i < count && status == PITH_OK; i++) {
    status = pith_reducer_add(reducer, &layers[i], NULL);
  }
  if (status == PITH_OK) {
    status = pith_reducer_check(reducer);
  }
  if (status != PITH_OK) {
    pith_reducer_destroy(reducer);
    return status;
  }
  *made = reducer;
  return PITH_OK;
}

/* A step: gradients come from the last layer to the first, as in a backward pass. */
static pith_status law_allreduce(pith_reducer *reducer, void *const *gradients) {
  pith_status status = PITH_OK;
  for (size_t i = pith_reducer_layers(reducer); i-- > 0 && status == PITH_OK;) {
    status = pith_reducer_start(reducer, i, gradients[i]);
  }
  pith_status finished = pith_reducer_finish(reducer);
  return status == PITH_OK ? finished : status;
}

/* For ranks of a comm of Pith's own. */
static inline int law_all_say(pith_comm *comm, uint64_t number) {
  enum { MOST = 64 };
  uint64_t all[MOST];
  size_t ranks = (size_t)pith_comm_size(comm), equal = 0;
  CHECK(ranks <= MOST);
  CHECK_OK(
      pith_all_gather(comm, (pith_cspan){&number, 1, PITH_I64}, (pith_span){all, ranks, PITH_I64}, NULL, NULL, NULL));
  for (size_t p = 0; p < ranks; p++) {
    equal += all[p] == number;
  }
  return equal == ranks;
}

/* ---- Layers and gradients ---------------------------------------------------------------------------------------- */

static const size_t law_shapes[][2] = {{101, 129}, {64, 300}, {77, 0}, {3, 5}, {128, 213}, {0, 5}, {40, 40}, {2050, 0}};
static const char *const law_names[] = {"embed.weight", "fc.weight",    "norm.bias",    "tiny.weight",
                                        "head.weight",  "empty.weight", "small.weight", "long.bias"};
enum { LAW_LAYERS = 8, LAW_SEED = 99, LAW_STEPS = 3 };

static size_t law_n(size_t layer) {
  return law_shapes[layer][0] * (law_shapes[layer][1] || layer == 5 ? law_shapes[layer][1] : 1);
}

static void law_layers(pith_dtype dtype, pith_layer *layers) {
  for (size_t i = 0; i < LAW_LAYERS; i++) {
    layers[i] = (pith_layer){sizeof(pith_layer), law_names[i], law_shapes[i], law_shapes[i][1] ? 2 : 1, dtype, NULL};
  }
}

/* A gradient of a rank: strong directions, as low rank likes them, and noise; every rank can make those of all. */
static void *law_gradient(int rank, size_t layer, uint64_t step, pith_dtype dtype) {
  size_t n = law_n(layer), cols = law_shapes[layer][1] ? law_shapes[layer][1] : 100;
  void *values = malloc(n * sizeof(float) + 4);
  uint64_t key = pith__mix64((uint64_t)rank << 40 ^ (uint64_t)layer << 20 ^ step ^ 0x5eed);
  for (size_t i = 0; i < n; i++) {
    double r = (double)(i / cols), c = (double)(i % cols);
    double noise = (double)(pith__mix64(key + i * 0x9e3779b97f4a7c15u) >> 11) * 0x1p-53 - 0.5;
    float x = (float)(3 * sin(0.1 * r + 0.2 * rank) * cos(0.07 * c) + 2 * cos(0.3 * r) * sin(0.2 * c) + 0.3 * noise);
    if (dtype == PITH_F32) {
      ((float *)values)[i] = x;
    } else {
      ((uint16_t *)values)[i] = dtype == PITH_F16 ? pith__f32_to_f16(x) : pith__f32_to_bf16(x);
    }
  }
  return values;
}

static float law_value(const void *values, size_t i, pith_dtype dtype) {
  return dtype == PITH_F32   ? ((const float *)values)[i]
         : dtype == PITH_F16 ? pith__f16_to_f32(((const uint16_t *)values)[i])
                             : pith__bf16_to_f32(((const uint16_t *)values)[i]);
}

/* ---- The same on the CPU, for all ranks -------------------------------------------------------------------------- */

enum { LAW_RANKS = 8 };

typedef struct law_model {
  int ranks;
  pith_dtype dtype;
  pith_rules *rules;
  pith_match match[LAW_LAYERS];
  pith_state *state[LAW_RANKS][LAW_LAYERS];
  pith_bucket *bucket[LAW_RANKS];
  size_t blocks[LAW_LAYERS], block_count;
} law_model;

static int law_is_block(const pith_codec *codec) {
  uint32_t needed = PITH_CAP_FIXED | PITH_CAP_CHUNKED;
  return (pith_codec_caps(codec) & (needed | PITH_CAP_ONCE)) == needed;
}

static uint64_t law_number(size_t layer) { return pith__hash64(law_names[layer], strlen(law_names[layer]), 0); }

static pith_ctx law_ctx(const law_model *m, size_t layer, int rank, uint64_t step) {
  pith_ctx ctx = PITH_CTX_INIT;
  ctx.seed = LAW_SEED;
  ctx.step = step;
  ctx.layer = law_number(layer);
  ctx.rank = (uint32_t)rank;
  ctx.ranks = (uint32_t)m->ranks;
  ctx.rows = law_shapes[layer][1] ? law_shapes[layer][0] : 0;
  return ctx;
}

static void law_open(law_model *m, const char *rules, int ranks, pith_dtype dtype) {
  *m = (law_model){.ranks = ranks, .dtype = dtype};
  CHECK_OK(pith_rules_create(rules, &m->rules));
  for (size_t i = 0; i < LAW_LAYERS; i++) {
    m->match[i] = (pith_match)PITH_MATCH_INIT;
    CHECK_OK(pith_rules_find(m->rules, law_names[i], law_shapes[i][1] ? 2 : 1, law_n(i), &m->match[i]));
    if (law_is_block(m->match[i].codec)) {
      m->blocks[m->block_count++] = i;
    }
  }
  for (int r = 0; r < ranks; r++) {
    pith_bucket_item list[LAW_LAYERS];
    for (size_t i = 0; i < LAW_LAYERS; i++) {
      pith_ctx ctx = law_ctx(m, i, r, 0);
      CHECK_OK(pith_state_create(m->match[i].codec, law_n(i), ctx.rows <= law_n(i) ? ctx.rows : 0, &m->state[r][i]));
    }
    for (size_t k = 0; k < m->block_count; k++) {
      size_t i = m->blocks[k];
      list[k] = (pith_bucket_item){
          .codec = m->match[i].codec, .state = m->state[r][i], .layer = law_number(i), .n = law_n(i), .dtype = dtype};
    }
    CHECK_OK(pith__bucket_create(r, ranks, list, m->block_count, &m->bucket[r]));
  }
}

static void law_close(law_model *m) {
  for (int r = 0; r < m->ranks; r++) {
    for (size_t i = 0; i < LAW_LAYERS; i++) {
      pith_state_destroy(m->state[r][i]);
    }
    pith__bucket_destroy(m->bucket[r]);
  }
  pith_rules_destroy(m->rules);
}

/* Every rank's part p, one after another, is what rank p gets. */
static void law_blocks(law_model *m, void *const inputs[][LAW_LAYERS], uint64_t step, void *const *out) {
  size_t at[LAW_RANKS + 1] = {0};
  for (int p = 0; p < m->ranks; p++) {
    at[p + 1] = at[p] + m->bucket[0]->bytes[p];
  }
  uint8_t *parts[LAW_RANKS], *mine = malloc(at[m->ranks] * (size_t)m->ranks + 1), *results = malloc(at[m->ranks] + 1);
  pith_ctx ctx = PITH_CTX_INIT;
  ctx.seed = LAW_SEED;
  ctx.step = step;
  for (int r = 0; r < m->ranks; r++) {
    const void *src[LAW_LAYERS];
    for (size_t k = 0; k < m->block_count; k++) {
      src[k] = inputs[r][m->blocks[k]];
    }
    parts[r] = malloc(at[m->ranks] + 1);
    CHECK_OK(pith__bucket_encode(m->bucket[r], src, &ctx, parts[r]));
  }
  for (int p = 0; p < m->ranks; p++) {
    size_t size = at[p + 1] - at[p];
    for (int r = 0; r < m->ranks; r++) {
      memcpy(mine + (size_t)r * size, parts[r] + at[p], size);
    }
    const void *src[LAW_LAYERS];
    for (size_t k = 0; k < m->block_count; k++) {
      src[k] = inputs[p][m->blocks[k]];
    }
    CHECK_OK(pith__bucket_reduce(m->bucket[p], src, mine, &ctx, results + at[p]));
  }
  void *dst[LAW_LAYERS];
  for (size_t k = 0; k < m->block_count; k++) {
    dst[k] = out[m->blocks[k]];
  }
  CHECK_OK(pith__bucket_decode(m->bucket[0], results, 0, &ctx, dst));
  for (int r = 0; r < m->ranks; r++) {
    free(parts[r]);
  }
  free(mine);
  free(results);
}

static void law_whole(law_model *m, void *const inputs[][LAW_LAYERS], size_t i, uint64_t step, void *out) {
  const pith_codec *codec = m->match[i].codec;
  size_t n = law_n(i), bound = pith_codec_bound(codec, n);
  float *sum = malloc(n * sizeof *sum + 4);
  uint8_t *payload = malloc(bound + 1);
  for (int r = 0; r < m->ranks; r++) {
    pith_ctx ctx = law_ctx(m, i, r, step);
    pith_out to = {payload, bound, 0};
    CHECK_OK(pith_encode(codec, m->state[r][i], (pith_cspan){inputs[r][i], n, m->dtype}, &to, &ctx));
    CHECK_OK(pith_decode(codec, (pith_bytes){payload, to.size}, (pith_span){sum, n, PITH_F32}, r ? PITH_ADD : PITH_SET,
                         &ctx));
  }
  pith_ctx ctx = law_ctx(m, i, 0, step);
  CHECK_OK(pith_aggregate(codec, (pith_span){sum, n, PITH_F32}, &ctx));
  for (size_t j = 0; j < n; j++) {
    if (m->dtype == PITH_F32) {
      ((float *)out)[j] = sum[j];
    } else {
      ((uint16_t *)out)[j] = m->dtype == PITH_F16 ? pith__f32_to_f16(sum[j]) : pith__f32_to_bf16(sum[j]);
    }
  }
  free(sum);
  free(payload);
}

static void law_rounds(law_model *m, void *const inputs[][LAW_LAYERS], size_t i, uint64_t step, void *out) {
  const pith_codec *codec = m->match[i].codec;
  size_t n = law_n(i);
  for (size_t round = 0; round < pith_codec_rounds(codec); round++) {
    pith_round about = PITH_ROUND_INIT;
    CHECK_OK(pith_round_describe(codec, m->state[0][i], round, &about));
    float *sum = calloc(about.count + 1, sizeof *sum), *one = calloc(about.count + 1, sizeof *one);
    for (int r = 0; r < m->ranks; r++) {
      pith_ctx ctx = law_ctx(m, i, r, step);
      CHECK_OK(pith_round_produce(codec, m->state[r][i], round, (pith_cspan){inputs[r][i], n, m->dtype}, one, &ctx));
      for (size_t j = 0; j < about.count; j++) {
        sum[j] += one[j];
      }
    }
    for (int r = 0; r < m->ranks; r++) {
      pith_ctx ctx = law_ctx(m, i, r, step);
      CHECK_OK(pith_round_consume(codec, m->state[r][i], round, sum, (pith_span){out, n, m->dtype}, &ctx));
    }
    free(sum);
    free(one);
  }
}

/* What every rank must get. */
static void law_reduce(law_model *m, void *const inputs[][LAW_LAYERS], uint64_t step, void *const *out) {
  law_blocks(m, inputs, step, out);
  for (size_t i = 0; i < LAW_LAYERS; i++) {
    const pith_codec *codec = m->match[i].codec;
    if (pith_codec_rounds(codec)) {
      law_rounds(m, inputs, i, step, out[i]);
    } else if (!law_is_block(codec)) {
      law_whole(m, inputs, i, step, out[i]);
    }
  }
}

/* ---- Comparing --------------------------------------------------------------------------------------------------- */

static void law_compare(const law_model *m, size_t i, const void *expected, const void *found, uint64_t step) {
  const char *spec = pith_codec_spec(m->match[i].codec);
  double error = 0, norm = 1e-30;
  for (size_t j = 0; j < law_n(i); j++) {
    float a = law_value(expected, j, m->dtype), b = law_value(found, j, m->dtype);
    if (pith_codec_rounds(m->match[i].codec)) {
      error += ((double)a - b) * ((double)a - b);
      norm += (double)a * a;
    } else {
      CHECK_MSG(pith__bits_of(a) == pith__bits_of(b) || (isnan(a) && isnan(b)),
                "%s, %s of %s, step %d: value %zu is %.9g, not %.9g", spec, law_names[i], pith_dtype_name(m->dtype),
                (int)step, j, (double)b, (double)a);
    }
  }
  double most = m->dtype == PITH_F32 ? 2e-4 : 2e-2;
  CHECK_MSG(sqrt(error / norm) < most, "%s, %s, step %d differs by %g", spec, law_names[i], (int)step,
            sqrt(error / norm));
}

typedef struct law_set {
  void *device[LAW_LAYERS];
} law_set;

enum { LAW_GUARD = 64 }; /* bytes behind a gradient that nobody may touch */

static law_set law_take(pith_dtype dtype) {
  law_set set;
  uint8_t guard[LAW_GUARD];
  memset(guard, 0xa5, sizeof guard);
  for (size_t i = 0; i < LAW_LAYERS; i++) {
    size_t size = law_n(i) * pith_dtype_size(dtype);
    set.device[i] = law_device.take(size + LAW_GUARD);
    law_device.put((uint8_t *)set.device[i] + size, guard, sizeof guard);
  }
  return set;
}

static void law_check_guard(const law_set *set, size_t layer, pith_dtype dtype) {
  uint8_t guard[LAW_GUARD];
  law_device.get(guard, (uint8_t *)set->device[layer] + law_n(layer) * pith_dtype_size(dtype), sizeof guard);
  for (size_t i = 0; i < LAW_GUARD; i++) {
    CHECK_MSG(guard[i] == 0xa5, "byte %zu behind %s was written", i, law_names[layer]);
  }
}

static void law_give(law_set *set) {
  for (size_t i = 0; i < LAW_LAYERS; i++) {
    law_device.give(set->device[i]);
  }
}

static void law_put(const law_set *set, void *const *values, pith_dtype dtype) {
  for (size_t i = 0; i < LAW_LAYERS; i++) {
    law_device.put(set->device[i], values[i], law_n(i) * pith_dtype_size(dtype));
  }
}

static uint64_t law_get(const law_set *set, void *const *values, pith_dtype dtype) {
  uint64_t hash = 0;
  for (size_t i = 0; i < LAW_LAYERS; i++) {
    law_device.get(values[i], set->device[i], law_n(i) * pith_dtype_size(dtype));
    law_check_guard(set, i, dtype);
    hash = pith__hash64(values[i], law_n(i) * pith_dtype_size(dtype), hash);
  }
  return hash;
}

/* One infinite value of rank 0, in the last step, where values are compared bit by bit: everybody must see it. */
static void law_spoil(const law_model *m, void *values, size_t layer, int rank, uint64_t step) {
  if (rank == 0 && layer == 0 && step + 1 == LAW_STEPS && m->dtype == PITH_F32 &&
      !pith_codec_rounds(m->match[0].codec)) {
    ((float *)values)[1000] = INFINITY;
  }
}

static void law_inputs(const law_model *m, uint64_t step, void *inputs[][LAW_LAYERS]) {
  for (int r = 0; r < m->ranks; r++) {
    for (size_t i = 0; i < LAW_LAYERS; i++) {
      inputs[r][i] = law_gradient(r, i, step, m->dtype);
      law_spoil(m, inputs[r][i], i, r, step);
    }
  }
}

static void law_free(const law_model *m, void *inputs[][LAW_LAYERS]) {
  for (int r = 0; r < m->ranks; r++) {
    for (size_t i = 0; i < LAW_LAYERS; i++) {
      free(inputs[r][i]);
    }
  }
}

/* ---- The laws ---------------------------------------------------------------------------------------------------- */

static void law_step(const law_world *w, pith_reducer *object, law_model *m, const law_set *set, uint64_t step) {
  void *inputs[LAW_RANKS][LAW_LAYERS], *expected[LAW_LAYERS], *found[LAW_LAYERS];
  law_inputs(m, step, inputs);
  for (size_t i = 0; i < LAW_LAYERS; i++) {
    expected[i] = calloc(law_n(i) + 1, sizeof(float));
    found[i] = calloc(law_n(i) + 1, sizeof(float));
  }
  law_put(set, inputs[w->rank], m->dtype);
  CHECK_OK(law_allreduce(object, set->device));
  uint64_t hash = law_get(set, found, m->dtype);
  law_reduce(m, (void *const(*)[LAW_LAYERS])inputs, step, expected);
  for (size_t i = 0; i < LAW_LAYERS; i++) {
    law_compare(m, i, expected[i], found[i], step);
    free(expected[i]);
    free(found[i]);
  }
  CHECK_MSG(law_device.same(w, hash), "ranks have other means, step %d", (int)step);
  law_free(m, inputs);
}

/* Several steps give what the CPU gives. */
static void law_means(const law_world *w, const char *rules, pith_dtype dtype) {
  pith_layer layers[LAW_LAYERS];
  pith_reducer *object;
  law_model model;
  law_set set = law_take(dtype);
  law_layers(dtype, layers);
  law_open(&model, rules, w->ranks, dtype);
  CHECK_OK(law_create(w, layers, LAW_LAYERS, rules, LAW_SEED, &object));
  for (size_t i = 0; i < LAW_LAYERS; i++) {
    pith_layer_stats stats = PITH_LAYER_STATS_INIT;
    CHECK_OK(pith_reducer_layer_stats(object, i, &stats));
    CHECK_STR(stats.spec, pith_codec_spec(model.match[i].codec));
    CHECK_STR(stats.reason, model.match[i].reason);
  }
  for (uint64_t step = 0; step < LAW_STEPS; step++) {
    law_step(w, object, &model, &set, step);
  }
  law_close(&model);
  pith_reducer_destroy(object);
  law_give(&set);
}

static uint64_t law_blind_step(const law_world *w, pith_reducer *object, const law_set *set, uint64_t step) {
  void *values[LAW_LAYERS];
  for (size_t i = 0; i < LAW_LAYERS; i++) {
    values[i] = law_gradient(w->rank, i, step, PITH_F32);
  }
  law_put(set, values, PITH_F32);
  CHECK_OK(law_allreduce(object, set->device));
  uint64_t hash = law_get(set, values, PITH_F32);
  for (size_t i = 0; i < LAW_LAYERS; i++) {
    free(values[i]);
  }
  return hash;
}

/* An object that has loaded a checkpoint goes on as the one that saved it; damage is found. */
static void law_checkpoints(const law_world *w, const char *rules) {
  pith_layer layers[LAW_LAYERS];
  pith_reducer *first, *second;
  law_set set = law_take(PITH_F32);
  law_layers(PITH_F32, layers);
  CHECK_OK(law_create(w, layers, LAW_LAYERS, rules, LAW_SEED, &first));
  CHECK_OK(law_create(w, layers, LAW_LAYERS, rules, LAW_SEED, &second));
  law_blind_step(w, first, &set, 0);
  size_t size = pith_reducer_save_size(first);
  uint8_t *bytes = malloc(size);
  pith_out out = {bytes, size, 0};
  CHECK_OK(pith_reducer_save(first, &out));
  CHECK_EQ(out.size, size);
  uint64_t next = law_blind_step(w, first, &set, 1), fresh = law_blind_step(w, second, &set, 1);
  CHECK_MSG(next != fresh, "nothing was kept: this checkpoint proves nothing");
  bytes[size / 2] ^= 1;
  CHECK_STATUS(pith_reducer_load(second, (pith_bytes){bytes, size}), PITH_ERR_CORRUPT);
  bytes[size / 2] ^= 1;
  CHECK_STATUS(pith_reducer_load(second, (pith_bytes){bytes, size - 1}), PITH_ERR_CORRUPT);
  CHECK_STATUS(pith_reducer_load(second, (pith_bytes){bytes, 3}), PITH_ERR_CORRUPT);
  CHECK_OK(pith_reducer_load(second, (pith_bytes){bytes, size}));
  CHECK_EQ(law_blind_step(w, second, &set, 1), next);
  CHECK_STATUS(pith_reducer_save(first, &(pith_out){bytes, size - 1, 0}), PITH_ERR_BUFFER);
  free(bytes);
  pith_reducer_destroy(first);
  pith_reducer_destroy(second);
  law_give(&set);
}

/* The means of a step whose gradients are `factor` times the usual ones. */
static void law_scaled_step(const law_world *w, pith_reducer *object, const law_set *set, float factor, float **means) {
  for (size_t i = 0; i < LAW_LAYERS; i++) {
    means[i] = law_gradient(w->rank, i, 1, PITH_F32);
    for (size_t j = 0; j < law_n(i); j++) {
      means[i][j] *= factor;
    }
  }
  law_put(set, (void *const *)means, PITH_F32);
  CHECK_OK(law_allreduce(object, set->device));
  law_get(set, (void *const *)means, PITH_F32);
}

/* Twice the gradients, after what is kept was doubled, give twice the means: multiplication by two is exact. */
static void law_scaling(const law_world *w, const char *rules) {
  pith_layer layers[LAW_LAYERS];
  pith_reducer *once, *twice;
  float *means[2][LAW_LAYERS];
  law_set set = law_take(PITH_F32);
  law_layers(PITH_F32, layers);
  CHECK_OK(law_create(w, layers, LAW_LAYERS, rules, LAW_SEED, &once));
  CHECK_OK(law_create(w, layers, LAW_LAYERS, rules, LAW_SEED, &twice));
  CHECK_EQ(law_blind_step(w, once, &set, 0), law_blind_step(w, twice, &set, 0));
  CHECK_OK(pith_reducer_scale(twice, 2.0f));
  law_scaled_step(w, once, &set, 1, means[0]);
  law_scaled_step(w, twice, &set, 2, means[1]);
  for (size_t i = 0; i < LAW_LAYERS; i++) {
    for (size_t j = 0; j < law_n(i); j++) {
      CHECK_MSG(means[1][i][j] == 2 * means[0][i][j], "%s: value %zu is %g, not twice %g", law_names[i], j,
                (double)means[1][i][j], (double)means[0][i][j]);
    }
    free(means[0][i]);
    free(means[1][i]);
  }
  pith_reducer_destroy(once);
  pith_reducer_destroy(twice);
  law_give(&set);
}

static void law_refuses(const law_world *w, const char *rules, pith_status status, const char *says) {
  pith_layer layers[LAW_LAYERS];
  pith_reducer *object = NULL;
  law_layers(PITH_F32, layers);
  CHECK_STATUS(law_create(w, layers, LAW_LAYERS, rules, LAW_SEED, &object), status);
  CHECK_ERROR_SAYS(says);
  CHECK(object == NULL);
}

/* What is wrong is said before anything travels. The same mistake on all ranks. */
static void law_refusals(const law_world *w) {
  pith_layer layers[LAW_LAYERS];
  pith_reducer *object = NULL;
  law_world nowhere = *w;
  nowhere.comm = NULL;
  law_refuses(w, "q:99", PITH_ERR_RANGE, "bits");
  law_refuses(w, "nonsense", PITH_ERR_SPEC, "nonsense");
  law_refuses(w, "*=sketchml", PITH_ERR_UNSUPPORTED, "no CUDA kernels");
  law_refuses(w, "nobody*=q:4;*=q:4", PITH_ERR_SPEC, "matches none");
  law_layers(PITH_F32, layers);
  layers[3].name = layers[1].name;
  CHECK_STATUS(law_create(w, layers, LAW_LAYERS, "q:4", LAW_SEED, &object), PITH_ERR_ARGUMENT);
  CHECK_ERROR_SAYS("already a layer fc.weight");
  layers[3].name = NULL;
  CHECK_STATUS(law_create(w, layers, LAW_LAYERS, "q:4", LAW_SEED, &object), PITH_ERR_ARGUMENT);
  law_layers(PITH_I32, layers);
  CHECK_STATUS(law_create(w, layers, LAW_LAYERS, "q:4", LAW_SEED, &object), PITH_ERR_ARGUMENT);
  CHECK_ERROR_SAYS("gradients are f32, f16 or bf16");
  law_layers(PITH_F32, layers);
  CHECK_STATUS(law_create(&nowhere, layers, LAW_LAYERS, "q:4", LAW_SEED, &object), PITH_ERR_ARGUMENT);
  CHECK_OK(law_create(w, layers, LAW_LAYERS, "q:4", LAW_SEED, &object));
  law_set set = law_take(PITH_F32);
  void *broken[LAW_LAYERS];
  memcpy(broken, set.device, sizeof broken);
  broken[4] = NULL;
  CHECK_STATUS(law_allreduce(object, broken), PITH_ERR_ARGUMENT);
  broken[4] = (char *)set.device[4] + 1;
  CHECK_STATUS(law_allreduce(object, broken), PITH_ERR_ARGUMENT);
  CHECK_ERROR_SAYS("not aligned");
  CHECK_OK(law_allreduce(object, set.device)); /* none of this has ended it */
  pith_reducer_destroy(object);
  pith_reducer_destroy(NULL);
  law_give(&set);
}

/* Ranks that have other rules or another seed are named, on all ranks. */
static void law_disagreement(const law_world *w) {
  pith_layer layers[LAW_LAYERS];
  pith_reducer *object = NULL;
  law_layers(PITH_F32, layers);
  if (w->ranks == 1) {
    return;
  }
  int odd = w->rank == 1;
  pith_status status = law_create(w, layers, LAW_LAYERS, odd ? "q:8" : "q:4", LAW_SEED, &object);
  CHECK_EQ(status, PITH_ERR_MISMATCH);
  CHECK_ERROR_SAYS("rank 0 has the spec *=q:4, rank 1 has *=q:8");
  CHECK_STATUS(law_create(w, layers, LAW_LAYERS, "q:4", LAW_SEED + (uint64_t)odd, &object), PITH_ERR_MISMATCH);
}

#endif
