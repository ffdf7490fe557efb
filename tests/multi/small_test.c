/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small allreduces, which need no schedule: the same results as with one, bit by bit, and understood by ranks that make
 * the same call with one (a request, a trace), whatever the order in which they come.
 */
#include <stdlib.h>
#include <unistd.h>

#include "comm/comm.h"
#include "ranks.h"
#include "test.h"

#define RANKS_MOST 4
#define BYTES_MOST 9000 /* beyond what is small for any number of ranks */
#define ROUNDS 300

static const char *const transports[] = {"inproc", "shm", "tcp"};
static const pith_dtype types[] = {PITH_F32, PITH_BF16, PITH_F64, PITH_I32};
static const pith_reduce_op reductions[] = {PITH_SUM, PITH_MAX, PITH_MIN, PITH_PROD};

/* The same on all ranks for the same round: all values are small whole numbers, as floats or integers. */
static void fill(void *data, size_t n, pith_dtype dtype, int rank, int round) {
  for (size_t i = 0; i < n; i++) {
    int value = (int)((i * 31 + (size_t)rank * 7 + (size_t)round * 13) % 11) - 5;
    switch (dtype) {
      case PITH_F64:
        ((double *)data)[i] = value * 0.3;
        break;
      case PITH_I32:
        ((int32_t *)data)[i] = value;
        break;
      case PITH_BF16:
        ((uint16_t *)data)[i] = (uint16_t)(0x3f80 + value * 3);
        break;
      default:
        ((float *)data)[i] = (float)value * 0.1f;
    }
  }
}

/* Rounds of random shapes; every rank goes its own way in each. */
static void reduce_small(pith_comm *comm, void *argument) {
  uint64_t seed = *(uint64_t *)argument;
  int rank = pith_comm_rank(comm), ranks = pith_comm_size(comm);
  uint8_t *x = malloc(BYTES_MOST), *y = malloc(BYTES_MOST), *expected = malloc(BYTES_MOST),
          *all = malloc((size_t)ranks * BYTES_MOST);
  for (int round = 0; round < ROUNDS; round++) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    pith_dtype dtype = types[seed >> 40 & 3];
    pith_reduce_op reduce = reductions[seed >> 44 & 3];
    size_t width = pith_dtype_size(dtype), most = seed >> 50 & 1 ? BYTES_MOST : 200,
           n = (size_t)(seed >> 20) % (most / width);
    uint64_t own = (seed >> 10) * (uint64_t)(rank * 2 + 3) >> 7;
    int in_place = (int)(own & 1), asks = (int)(own >> 1 & 1);
    const void *sources[RANKS_MOST];
    for (int r = 0; r < ranks; r++) {
      fill(all + (size_t)r * BYTES_MOST, n, dtype, r, round);
      sources[r] = all + (size_t)r * BYTES_MOST;
    }
    pith__reduce_many(dtype, reduce, sources, ranks, expected, n);
    fill(x, n, dtype, rank, round);
    void *to = in_place ? x : y;
    pith_request *request = NULL;
    CHECK_OK(pith_allreduce(comm, (pith_cspan){x, n, dtype}, (pith_span){to, n, dtype}, reduce, NULL,
                            asks ? &request : NULL));
    if (asks) {
      CHECK_OK(pith_wait(request));
    }
    CHECK_BYTES(to, expected, n * width);
    if ((own >> 3 & 63) == 0) {
      usleep(300); /* others run ahead */
    }
  }
  free(x), free(y), free(expected), free(all);
}

TEST(short_allreduces_are_those_of_a_schedule_bit_by_bit) {
  for (size_t t = 0; t < 3; t++) {
    for (int ranks = 2; ranks <= RANKS_MOST; ranks++) {
      uint64_t seed = test_random();
      ranks_run(transports[t], ranks, 0, reduce_small, &seed);
    }
  }
}

/* One rank has another type: nobody sums. */
static void one_differs(pith_comm *comm, void *argument) {
  (void)argument;
  float x[4] = {1, 2, 3, 4}, y[4] = {-7, -7, -7, -7};
  pith_dtype dtype = pith_comm_rank(comm) == 1 ? PITH_I32 : PITH_F32;
  pith_status status = pith_allreduce(comm, (pith_cspan){x, 4, dtype}, (pith_span){y, 4, dtype}, PITH_SUM, NULL, NULL);
  CHECK_MSG(status == PITH_ERR_MISMATCH || status == PITH_ERR_ABORTED, "rank %d got %s", pith_comm_rank(comm),
            pith_status_string(status));
  CHECK(y[0] == -7);
}

/* Ranks wait at once or later, each as it likes: a grid is wished for, and all take it. */
static void reduce_over_a_grid(pith_comm *comm, void *argument) {
  int rank = pith_comm_rank(comm), ranks = pith_comm_size(comm);
  (void)argument;
  for (int round = 0; round < 40; round++) {
    int32_t x[] = {rank + round, 2 * rank}, sum[2] = {0};
    pith_request *request = NULL;
    int asks = (round / (rank + 1)) & 1;
    CHECK_OK(pith_allreduce(comm, (pith_cspan){x, 2, PITH_I32}, (pith_span){sum, 2, PITH_I32}, PITH_SUM, NULL,
                            asks ? &request : NULL));
    if (asks) {
      CHECK_OK(pith_wait(request));
    }
    CHECK(sum[0] == ranks * (ranks - 1) / 2 + ranks * round && sum[1] == ranks * (ranks - 1));
  }
}

TEST(short_allreduces_take_the_grid_that_is_wished_for) {
  setenv("PITH_ALGO", "grid", 1);
  for (int ranks = 2; ranks <= 8; ranks++) {
    ranks_run("inproc", ranks, 0, reduce_over_a_grid, NULL);
  }
}

TEST(short_allreduces_that_differ_are_told_so) {
  for (size_t t = 0; t < 3; t++) {
    ranks_run(transports[t], 3, 0, one_differs, NULL);
  }
}

/* Bytes of a slow link are left to gather for a moment. Where a large tensor has a short payload, none are worth that.
 */
static void reduce_to_few_bytes(pith_comm *comm, void *argument) {
  size_t n = 1 << 20;
  float *x = calloc(n, sizeof *x), *y = calloc(n, sizeof *y);
  pith_call call = PITH_CALL_INIT;
  pith_codec *codec;
  CHECK_OK(pith_codec_create(argument, &codec));
  CHECK_OK(pith_state_create(codec, n, 0, &call.state));
  call.codec = codec;
  call.algorithm = pith_codec_rounds(codec) ? "sra" : "gather";
  fill(x, n, PITH_F32, pith_comm_rank(comm), 0);
  for (int round = 0; round < 3; round++) {
    CHECK_OK(pith_allreduce(comm, (pith_cspan){x, n, PITH_F32}, (pith_span){y, n, PITH_F32}, PITH_MEAN, &call, NULL));
  }
  CHECK_MSG(comm->networked && comm->nap == 0, "%s: networked %d, nap %ld ns", (char *)argument, comm->networked,
            comm->nap);
  pith_state_destroy(call.state);
  pith_codec_destroy(codec);
  free(x), free(y);
}

TEST(short_payloads_of_large_tensors_are_not_left_to_gather) {
  ranks_run_hosts("tcp", 2, 1, 0, NULL, reduce_to_few_bytes, "powersgd:4");
  ranks_run_hosts("tcp", 2, 1, 0, NULL, reduce_to_few_bytes, "topk:0.01");
}
