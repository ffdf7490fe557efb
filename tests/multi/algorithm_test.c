/* SPDX-License-Identifier: Apache-2.0 */
/* Algorithms of allreduce beyond what collective_laws_test.c says of them: hosts, memories of owners, wishes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "ranks.h"
#include "test.h"

/* ---- Uncompressed, with hosts ------------------------------------------------------------------------------------ */

typedef struct plain {
  pith_dtype dtype;
  pith_reduce_op reduce;
  size_t n;
  const char *algorithm; /* NULL: hierarchical */
} plain;

/* Small whole numbers: exact in every type, whatever the order. */
static double number_of(int rank, size_t i) { return (double)((i * 7 + (size_t)rank * 3) % 5) + 1; }

static void put(void *data, pith_dtype dtype, size_t i, double x) {
  switch (dtype) {
    case PITH_F32:
      ((float *)data)[i] = (float)x;
      break;
    case PITH_F64:
      ((double *)data)[i] = x;
      break;
    case PITH_F16:
      ((uint16_t *)data)[i] = pith__f32_to_f16((float)x);
      break;
    case PITH_BF16: {
      float f = (float)x;
      uint32_t bits;
      memcpy(&bits, &f, sizeof bits);
      ((uint16_t *)data)[i] = (uint16_t)(bits >> 16);
      break;
    }
    case PITH_I8:
      ((int8_t *)data)[i] = (int8_t)x;
      break;
    case PITH_U8:
      ((uint8_t *)data)[i] = (uint8_t)x;
      break;
    case PITH_I16:
      ((int16_t *)data)[i] = (int16_t)x;
      break;
    case PITH_I32:
      ((int32_t *)data)[i] = (int32_t)x;
      break;
    case PITH_I64:
      ((int64_t *)data)[i] = (int64_t)x;
      break;
  }
}

static double reduced(pith_reduce_op reduce, int ranks, size_t i) {
  double result = number_of(0, i);
  for (int r = 1; r < ranks; r++) {
    double x = number_of(r, i);
    long a = (long)result, b = (long)x;
    switch (reduce) {
      case PITH_MAX:
        result = fmax(result, x);
        break;
      case PITH_MIN:
        result = fmin(result, x);
        break;
      case PITH_PROD:
        result *= x;
        break;
      case PITH_BAND:
        result = (double)(a & b);
        break;
      case PITH_BOR:
        result = (double)(a | b);
        break;
      case PITH_BXOR:
        result = (double)(a ^ b);
        break;
      default:
        result += x;
    }
  }
  return reduce == PITH_MEAN ? result / ranks : result;
}

static void reduce_plainly(pith_comm *comm, void *argument) {
  const plain *p = argument;
  int ranks = pith_comm_size(comm);
  size_t bytes = p->n * pith_dtype_size(p->dtype);
  void *x = malloc(bytes + 8), *wanted = malloc(bytes + 8);
  pith_call call = PITH_CALL_INIT;
  call.algorithm = p->algorithm ? p->algorithm : "hierarchical";
  for (size_t i = 0; i < p->n; i++) {
    put(x, p->dtype, i, number_of(pith_comm_rank(comm), i));
    put(wanted, p->dtype, i, reduced(p->reduce, ranks, i));
  }
  CHECK_OK(
      pith_allreduce(comm, (pith_cspan){x, p->n, p->dtype}, (pith_span){x, p->n, p->dtype}, p->reduce, &call, NULL));
  CHECK_BYTES(x, wanted, bytes);
  free(x);
  free(wanted);
}

static int is_float(pith_dtype d) { return d == PITH_F32 || d == PITH_F64 || d == PITH_F16 || d == PITH_BF16; }

/* Means of four or eight ranks, so that they are exact too; products small enough for bf16 and i8. */
TEST_WITHIN(hosts_reduce_every_type_in_every_way, 120) {
  for (pith_dtype dtype = PITH_F32; dtype <= PITH_U8; dtype++) {
    for (pith_reduce_op reduce = PITH_SUM; reduce <= PITH_BXOR; reduce++) {
      if (is_float(dtype) ? reduce >= PITH_BAND : reduce == PITH_MEAN) {
        continue;
      }
      int ranks = reduce == PITH_MEAN ? 4 : reduce == PITH_PROD ? 3 : 3 + (int)test_below(7);
      int per_host = reduce == PITH_MEAN ? 2 : 2 + (int)test_below(ranks > 4 ? 3 : 1);
      plain p = {dtype, reduce, test_below(3000), NULL};
      ranks_run_hosts("inproc", ranks, per_host, test_below(2) ? 64 : 0, NULL, reduce_plainly, &p);
    }
  }
}

/* Lengths on both sides of the number of ranks; blocks of 64 bytes. */
TEST_WITHIN(grids_reduce_every_type_in_every_way, 120) {
  for (pith_dtype dtype = PITH_F32; dtype <= PITH_U8; dtype++) {
    for (pith_reduce_op reduce = PITH_SUM; reduce <= PITH_BXOR; reduce++) {
      if (is_float(dtype) ? reduce >= PITH_BAND : reduce == PITH_MEAN) {
        continue;
      }
      int ranks = reduce == PITH_PROD ? 4 : reduce == PITH_MEAN || test_below(2) ? 8 : 12;
      int per_host = reduce == PITH_PROD ? 1 : 1 + (int)test_below(2);
      plain p = {dtype, reduce, test_below(3000) >> test_below(9), "grid"};
      ranks_run_hosts("inproc", ranks, per_host, test_below(2) ? 64 : 0, NULL, reduce_plainly, &p);
    }
  }
}

/* On more than 32 ranks what is short is passed on. */
TEST_WITHIN(short_tensors_of_many_ranks, 120) {
  for (int ranks = 33; ranks <= 64; ranks = 2 * ranks - 2) {
    plain p = {PITH_F32, PITH_SUM, 1 + test_below(400), "sra"};
    ranks_run("inproc", ranks, 0, reduce_plainly, &p);
  }
}

TEST_WITHIN(hosts_over_shared_memory_and_tcp, 60) {
  for (size_t n = 0; n < 40000; n = n * 3 + 1) {
    plain p = {PITH_F32, PITH_SUM, n, NULL};
    ranks_run_hosts("auto", 5, 2, 1000, NULL, reduce_plainly, &p);
  }
}

/* ---- Error feedback, also of owners ------------------------------------------------------------------------------ */

typedef struct feedback {
  const char *spec, *algorithm;
} feedback;

static float slope(int rank, size_t i) { return sinf((float)(i * 13 + (size_t)rank * 5)) * (1.0f + (float)(i % 7)); }

/* The same gradients step after step: what is left out once must come later, so the mean of results nears the true
 * mean. */
static void average(pith_comm *comm, void *argument) {
  enum { N = 3000, STEPS = 60 };
  const feedback *f = argument;
  int rank = pith_comm_rank(comm), ranks = pith_comm_size(comm);
  float x[N], y[N];
  double sum[N] = {0}, once = 0, over_time = 0;
  pith_call call = PITH_CALL_INIT;
  pith_codec *codec;
  CHECK_OK(pith_codec_create(f->spec, &codec));
  CHECK_OK(pith_state_create(codec, N, 0, &call.state));
  call.codec = codec;
  call.algorithm = f->algorithm;
  for (int step = 0; step < STEPS; step++) {
    for (size_t i = 0; i < N; i++) {
      x[i] = slope(rank, i);
    }
    call.step = (uint64_t)step;
    CHECK_OK(pith_allreduce(comm, (pith_cspan){x, N, PITH_F32}, (pith_span){y, N, PITH_F32}, PITH_MEAN, &call, NULL));
    for (size_t i = 0; i < N; i++) {
      double mean = 0;
      for (int r = 0; r < ranks; r++) {
        mean += (double)slope(r, i) / ranks;
      }
      sum[i] += y[i] - mean;
      once += (y[i] - mean) * (y[i] - mean) / STEPS;
    }
  }
  for (size_t i = 0; i < N; i++) {
    over_time += sum[i] / STEPS * (sum[i] / STEPS);
  }
  CHECK_MSG(over_time < once / 100, "%s by %s: the error of one step is %g, that of the mean over %d steps %g", f->spec,
            f->algorithm, sqrt(once), STEPS, sqrt(over_time));
  pith_state_destroy(call.state);
  pith_codec_destroy(codec);
}

TEST_WITHIN(what_ranks_and_owners_leave_out_comes_later, 120) {
  static const char *const specs[] = {"ef/q:2", "ef/q:4", "onebit", "efsignsgd", "ef/hadamard/q:2"};
  static const char *const algorithms[] = {"sra", "ring", "tree", "hierarchical", "grid"};
  for (size_t s = 0; s < 5; s++) {
    for (size_t a = 0; a < 5; a++) {
      feedback f = {specs[s], algorithms[a]};
      ranks_run_hosts("inproc", a == 4 ? 8 : 4, 2, 0, NULL, average, &f);
    }
  }
}

/* ---- Checkpoints ------------------------------------------------------------------------------------------------- */

static void steps(pith_comm *comm, const pith_codec *codec, pith_state *state, uint64_t from, uint64_t to, float *y) {
  enum { N = 2000 };
  float x[N];
  pith_call call = PITH_CALL_INIT;
  call.codec = codec;
  call.state = state;
  for (uint64_t step = from; step < to; step++) {
    for (size_t i = 0; i < N; i++) {
      x[i] = slope(pith_comm_rank(comm) + (int)step, i);
    }
    call.step = step;
    CHECK_OK(pith_allreduce(comm, (pith_cspan){x, N, PITH_F32}, (pith_span){y, N, PITH_F32}, PITH_MEAN, &call, NULL));
  }
}

/* What results lost is saved and loaded like the rest. */
static void resume(pith_comm *comm, void *argument) {
  (void)argument;
  enum { N = 2000 };
  float straight[N], resumed[N];
  pith_codec *codec;
  pith_state *one, *two;
  CHECK_OK(pith_codec_create("ef/q:2", &codec));
  CHECK_OK(pith_state_create(codec, N, 0, &one));
  CHECK_OK(pith_state_create(codec, N, 0, &two));
  steps(comm, codec, one, 0, 3, straight);
  pith_out out = {malloc(pith_state_save_size(one)), pith_state_save_size(one), 0};
  CHECK_OK(pith_state_save(one, &out));
  CHECK(out.size > pith_state_save_size(two)); /* it has results, a fresh one has none */
  CHECK_OK(pith_state_load(two, (pith_bytes){out.data, out.size}));
  CHECK_EQ(pith_state_save_size(two), out.size);
  steps(comm, codec, one, 3, 5, straight);
  steps(comm, codec, two, 3, 5, resumed);
  CHECK_BYTES(straight, resumed, sizeof straight);
  ((uint8_t *)out.data)[40] ^= 1; /* another number of results than bytes for them */
  CHECK_STATUS(pith_state_load(two, (pith_bytes){out.data, out.size}), PITH_ERR_CORRUPT);
  free(out.data);
  pith_state_destroy(one);
  pith_state_destroy(two);
  pith_codec_destroy(codec);
}

TEST(a_state_with_results_resumes_bit_by_bit) { ranks_run("inproc", 3, 0, resume, NULL); }

static pith_out saved_by[2]; /* ranks are threads */

static void swap_states(pith_comm *comm, void *argument) {
  (void)argument;
  enum { N = 2000 };
  float x[N] = {0};
  int rank = pith_comm_rank(comm);
  pith_codec *codec;
  pith_state *used, *fresh;
  CHECK_OK(pith_codec_create("ef/q:2", &codec));
  CHECK_OK(pith_state_create(codec, N, 0, &used));
  CHECK_OK(pith_state_create(codec, N, 0, &fresh));
  steps(comm, codec, used, 0, 1, x);
  saved_by[rank] = (pith_out){malloc(pith_state_save_size(used)), pith_state_save_size(used), 0};
  CHECK_OK(pith_state_save(used, &saved_by[rank]));
  CHECK_OK(pith_barrier(comm, NULL));
  pith_bytes other = {saved_by[1 - rank].data, saved_by[1 - rank].size};
  CHECK_STATUS(pith_state_load(used, other), PITH_ERR_STATE); /* it has been used by this rank */
  CHECK_ERROR_SAYS(rank == 0 ? "the state was saved by rank 1 of 2, and this is rank 0"
                             : "the state was saved by rank 0 of 2, and this is rank 1");
  CHECK_OK(pith_state_load(fresh, other)); /* it might be the other rank's, until this one uses it */
  pith_call call = PITH_CALL_INIT;
  call.codec = codec;
  call.state = fresh;
  CHECK_STATUS(pith_allreduce(comm, (pith_cspan){x, N, PITH_F32}, (pith_span){x, N, PITH_F32}, PITH_SUM, &call, NULL),
               PITH_ERR_STATE);
  CHECK_ERROR_SAYS("each rank loads what it saved itself");
  CHECK_OK(pith_barrier(comm, NULL));
  free(saved_by[rank].data);
  pith_state_destroy(used);
  pith_state_destroy(fresh);
  pith_codec_destroy(codec);
}

TEST(a_state_of_another_rank_is_refused) { ranks_run("inproc", 2, 0, swap_states, NULL); }

/* ---- Wishes ------------------------------------------------------------------------------------------------------ */

/* What is wished of a whole comm yields where it does not suit: "ring" was asked for in the environment. */
static void run_what_suits(pith_comm *comm, void *argument) {
  static const char *const specs[] = {"q:4", "topk:0.1", "signsgd", "powersgd:2"};
  (void)argument;
  for (size_t s = 0; s < 4; s++) {
    float x[2000];
    pith_call call = PITH_CALL_INIT;
    pith_codec *codec;
    CHECK_OK(pith_codec_create(specs[s], &codec));
    CHECK_OK(pith_state_create(codec, 2000, 40, &call.state));
    call.codec = codec;
    for (size_t i = 0; i < 2000; i++) {
      x[i] = slope(pith_comm_rank(comm), i);
    }
    CHECK_OK(
        pith_allreduce(comm, (pith_cspan){x, 2000, PITH_F32}, (pith_span){x, 2000, PITH_F32}, PITH_MEAN, &call, NULL));
    pith_state_destroy(call.state);
    pith_codec_destroy(codec);
  }
}

TEST(an_algorithm_for_all_yields_where_it_does_not_suit) {
  setenv("PITH_ALGO", "ring", 1);
  ranks_run("inproc", 3, 0, run_what_suits, NULL);
  unsetenv("PITH_ALGO");
}

TEST(a_misspelt_algorithm_or_inside_is_refused) {
  pith_config config = PITH_CONFIG_INIT;
  pith_comm *comm;
  config.rank = 0, config.ranks = 1, config.algorithm = "rong";
  CHECK_STATUS(pith_comm_create(&config, &comm), PITH_ERR_ARGUMENT);
  CHECK(strstr(pith_error(), "rong") && strstr(pith_error(), "hierarchical"));
  config.algorithm = NULL, config.inside = "ef/q:4";
  CHECK_STATUS(pith_comm_create(&config, &comm), PITH_ERR_UNSUPPORTED);
  config.inside = "topk:0.1";
  CHECK_STATUS(pith_comm_create(&config, &comm), PITH_ERR_UNSUPPORTED);
  config.inside = "q:5x";
  CHECK_STATUS(pith_comm_create(&config, &comm), PITH_ERR_SPEC);
}

/* Ranks that were told different algorithms are told so. */
static void disagree(pith_comm *comm, void *argument) {
  (void)argument;
  float x[600] = {1};
  pith_call call = PITH_CALL_INIT;
  pith_codec *codec;
  CHECK_OK(pith_codec_create("q:4", &codec));
  call.codec = codec;
  call.algorithm = pith_comm_rank(comm) ? "ring" : "sra";
  pith_status status =
      pith_allreduce(comm, (pith_cspan){x, 600, PITH_F32}, (pith_span){x, 600, PITH_F32}, PITH_SUM, &call, NULL);
  CHECK(status == PITH_ERR_MISMATCH || status == PITH_ERR_ABORTED); /* seen here, or by the other rank */
  CHECK(strstr(pith_error(), "has algorithm "));
  pith_codec_destroy(codec);
}

TEST(ranks_with_different_algorithms_are_told_so) { ranks_run("inproc", 2, 0, disagree, NULL); }
