/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Seconds are those of the topology: so much for each call and value. Sizes of payloads follow from n where the codec
 * says so; else made-up gradients (normal, the same in every run) are encoded, and the entries that several ranks have
 * together are as many as independent ranks would have.
 */
#include "sim/costs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"

#define PARTS_MOST 16

/* ---- Sizes ------------------------------------------------------------------------------------------------------- */

static pith_status make_values(pith_sim_codec_costs *c) {
  const pith_key key = {0x5eed, 1};
  if (c->values) {
    return PITH_OK;
  }
  c->values = malloc((c->n + 1) * sizeof *c->values);
  PITH_REQUIRE(c->values, PITH_ERR_MEMORY, "no memory for %zu values", c->n);
  for (size_t i = 0; i < c->n; i++) { /* Box and Muller's, of which one is used */
    float u = 1.0f - pith__rng_unit(key, (uint32_t)(2 * i)), v = pith__rng_unit(key, (uint32_t)(2 * i + 1));
    c->values[i] = sqrtf(-2 * logf(u)) * cosf(6.2831853f * v);
  }
  return PITH_OK;
}

/* Encodes values, and decodes the payload where that is wanted. */
static pith_status try_codec(const pith_codec *codec, const float *values, size_t n, float *decoded, size_t *bytes) {
  pith_arena arena = pith__arena_over(NULL, 0);
  pith_ctx ctx = PITH_CTX_INIT;
  size_t bound = pith_codec_bound(codec, n);
  pith__codec_take_scratch(codec, n, &arena);
  size_t need = pith__arena_need(&arena);
  PITH_FREED void *memory = malloc(need + 1);
  PITH_FREED uint8_t *payload = malloc(bound + 1);
  PITH_REQUIRE(memory && payload, PITH_ERR_MEMORY, "no memory for %zu values", n);
  arena = pith__arena_over(memory, need);
  void *scratch = pith__codec_take_scratch(codec, n, &arena);
  pith_out out = {payload, bound, 0};
  ctx.ranks = 1;
  PITH_TRY(pith__codec_encode(codec, (pith_cspan){values, n, PITH_F32}, &out, NULL, scratch, &ctx));
  *bytes = out.size;
  return decoded ? pith__codec_decode(codec, (pith_bytes){payload, out.size}, (pith_span){decoded, n, PITH_F32},
                                      PITH_APPLY_SET, scratch, &ctx)
                 : PITH_OK;
}

/* What one rank's payload decodes to. */
static pith_status make_decoded(pith_sim_codec_costs *c) {
  size_t bytes;
  if (c->decoded) {
    return PITH_OK;
  }
  PITH_TRY(make_values(c));
  c->decoded = malloc((c->n + 1) * sizeof *c->decoded);
  PITH_REQUIRE(c->decoded, PITH_ERR_MEMORY, "no memory for %zu values", c->n);
  PITH_TRY(try_codec(c->codec, c->values, c->n, c->decoded, &bytes));
  size_t entries = 0;
  for (size_t i = 0; i < c->n; i++) {
    entries += c->decoded[i] != 0;
  }
  c->density = (double)entries / (double)c->n;
  return PITH_OK;
}

/* Entries for each value that so many ranks have together; 0: all of them. */
static double density_of(const pith_sim_codec_costs *c, int passes) {
  return 1 - pow(1 - c->density, passes ? passes : c->topology->ranks);
}

static pith_status make_union(pith_sim_codec_costs *c, int passes) {
  const pith_key key = {0x5eed, 2};
  double density = density_of(c, passes);
  if (c->joint && c->joint_ranks == passes) {
    return PITH_OK;
  }
  c->joint = c->joint ? c->joint : malloc((c->n + 1) * sizeof *c->joint);
  PITH_REQUIRE(c->joint, PITH_ERR_MEMORY, "no memory for %zu values", c->n);
  for (size_t i = 0; i < c->n; i++) {
    c->joint[i] = pith__rng_unit(key, (uint32_t)i) < 1 - density ? 0 : c->values[i];
  }
  c->joint_ranks = passes;
  return PITH_OK;
}

/* The mean of several parts of the tensor: one of them may have more entries than others. */
static pith_status entries_of(pith_sim_codec_costs *c, size_t n, int passes, size_t *bytes) {
  size_t parts = c->n / n < PARTS_MOST ? c->n / n : PARTS_MOST, sum = 0;
  PITH_REQUIRE(parts > 0, PITH_ERR_ARGUMENT, "a part has %zu values, and the tensor %zu", n, c->n);
  PITH_TRY(make_decoded(c));
  PITH_TRY(passes == 1 ? PITH_OK : make_union(c, passes));
  for (size_t p = 0; p < parts; p++) {
    PITH_TRY(try_codec(c->entries, (passes == 1 ? c->decoded : c->joint) + p * (c->n / parts), n, NULL, bytes));
    sum += *bytes;
  }
  *bytes = (sum + parts / 2) / parts;
  return PITH_OK;
}

static pith_status measure(pith_sim_codec_costs *c, pith_effort effort, size_t n, int passes, size_t *bytes) {
  switch (effort) {
    case PITH_EFFORT_PACK:
    case PITH_EFFORT_UNPACK:
    case PITH_EFFORT_PACK_RESULT:
    case PITH_EFFORT_UNPACK_RESULT:
      return entries_of(c, n, passes, bytes);
    default:
      PITH_TRY(make_values(c));
      return try_codec(c->codec, c->values, n, NULL, bytes);
  }
}

static pith_status payload(const pith_sim_costs *costs, pith_effort effort, size_t n, int passes, size_t bound,
                           size_t *bytes) {
  pith_sim_codec_costs *c = (pith_sim_codec_costs *)(uintptr_t)costs;
  int is_coded = effort == PITH_EFFORT_ENCODE || effort == PITH_EFFORT_DECODE || effort == PITH_EFFORT_ENCODE_DECODE;
  *bytes = bound;
  if (n == 0 || (is_coded && (c->codec->caps & PITH_CAP_FIXED))) {
    return PITH_OK;
  }
  effort = is_coded                              ? PITH_EFFORT_ENCODE
           : effort == PITH_EFFORT_UNPACK        ? PITH_EFFORT_PACK
           : effort == PITH_EFFORT_UNPACK_RESULT ? PITH_EFFORT_PACK_RESULT
                                                 : effort;
  for (size_t i = 0; i < c->known_count; i++) {
    if (c->known[i].effort == effort && c->known[i].n == n && c->known[i].passes == passes) {
      *bytes = c->known[i].bytes;
      return PITH_OK;
    }
  }
  PITH_TRY(measure(c, effort, n, passes, bytes));
  size_t at = c->known_count < PITH_SIM_SIZES_MOST ? c->known_count++ : 0;
  c->known[at] = (struct pith_sim_known){effort, passes, n, *bytes};
  return PITH_OK;
}

/* ---- Seconds ----------------------------------------------------------------------------------------------------- */

/* Of a sparse payload `decode_value` is that of adding it to a sum. To set a sum, all of it is written too. */
static double seconds(const pith_sim_costs *costs, pith_effort effort, int mode, size_t n, int passes) {
  const pith_sim_codec_costs *c = (const pith_sim_codec_costs *)(const void *)costs;
  const pith_sim_topology *t = c->topology;
  double values = (double)n, all = (double)c->n, rounds = c->codec ? (double)pith_codec_rounds(c->codec) : 1;
  double encode = t->encode_call + values * t->encode_value, decode = t->decode_call + values * t->decode_value;
  if (c->codec && (c->codec->caps & PITH_CAP_SPARSE) && mode != PITH_ADD) {
    decode += values * t->sum_value;
  }
  switch (effort) {
    case PITH_EFFORT_ENCODE:
      return encode;
    case PITH_EFFORT_DECODE:
      return decode;
    case PITH_EFFORT_ENCODE_DECODE:
      return encode + decode;
    case PITH_EFFORT_PRODUCE:
      return t->encode_call + all * t->encode_value / rounds;
    case PITH_EFFORT_CONSUME:
      return t->decode_call + all * t->decode_value / rounds;
    case PITH_EFFORT_NONE:
      return 0;
    case PITH_EFFORT_PACK:
    case PITH_EFFORT_PACK_RESULT:
      return values * (t->pack_value + density_of(c, passes) * t->pack_entry);
    case PITH_EFFORT_UNPACK:
    case PITH_EFFORT_UNPACK_RESULT:
      return values * (density_of(c, passes) * t->unpack_entry + (mode == PITH_ADD ? 0 : t->sum_value));
    case PITH_EFFORT_SUM:
      break;
  }
  return values * (passes ? passes : 1) * t->sum_value;
}

void pith__sim_costs_init(pith_sim_codec_costs *c, const pith_sim_topology *topology, const pith_codec *codec,
                          const pith_codec *entries, size_t n) {
  *c = (pith_sim_codec_costs){
      .costs = {payload, seconds}, .topology = topology, .codec = codec, .entries = entries, .n = n};
}

void pith__sim_costs_fini(pith_sim_codec_costs *c) {
  free(c->values);
  free(c->decoded);
  free(c->joint);
}
