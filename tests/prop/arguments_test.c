/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every operation, every wrong argument. Whatever a call is given, it returns a status that is no success, writes
 * nothing anywhere, and leaves a comm that works: after each call the ranks sum up once more. Ranks are threads; all
 * make the same mistake, since one that makes it alone is late, which is another test (fault_test.c).
 */
#include <stdio.h>
#include <stdlib.h>

#include "ranks.h"
#include "test.h"

enum { N = 12, GUARD = 64, ROOM = 4096, RANKS = 3 };

/* What an operation is called with. Each case changes one thing of calls that are right. */
typedef struct arguments {
  pith_comm *comm;
  pith_cspan src;
  pith_span dst;
  const size_t *counts, *receive;
  pith_reduce_op reduce;
  int root;
  pith_call call;
  const pith_call *called;
} arguments;

typedef pith_status (*operation_fn)(const arguments *a);

static pith_status do_allreduce(const arguments *a) {
  return pith_allreduce(a->comm, a->src, a->dst, a->reduce, a->called, NULL);
}
static pith_status do_reduce(const arguments *a) {
  return pith_reduce(a->comm, a->src, a->dst, a->reduce, a->root, a->called, NULL);
}
static pith_status do_reduce_scatter(const arguments *a) {
  return pith_reduce_scatter(a->comm, a->src, a->dst, a->counts, a->reduce, a->called, NULL);
}
static pith_status do_all_gather(const arguments *a) {
  return pith_all_gather(a->comm, a->src, a->dst, a->counts, a->called, NULL);
}
static pith_status do_broadcast(const arguments *a) {
  return pith_broadcast(a->comm, a->dst, a->root, a->called, NULL);
}
static pith_status do_all_to_all(const arguments *a) {
  return pith_all_to_all(a->comm, a->src, a->counts, a->dst, a->receive, NULL);
}
static pith_status do_gather(const arguments *a) {
  return pith_gather(a->comm, a->src, a->dst, a->counts, a->root, NULL);
}
static pith_status do_scatter(const arguments *a) {
  return pith_scatter(a->comm, a->src, a->counts, a->dst, a->root, NULL);
}
static pith_status do_send(const arguments *a) { return pith_send(a->comm, a->src, a->root, 0, NULL); }
static pith_status do_receive(const arguments *a) { return pith_recv(a->comm, a->dst, a->root, 0, NULL); }

/* What an operation has, so that a mistake in it is one. */
enum {
  HAS_SRC = 1,
  HAS_DST = 2,
  HAS_COUNTS = 4,
  HAS_REDUCE = 8,
  HAS_ROOT = 16,
  HAS_CALL = 32,
  HAS_TYPES = 64, /* src and dst must be of one type */
  ROOT_DST = 128, /* dst counts on the root only … */
  ROOT_SRC = 256, /* … or src does */
  IS_POINT = 512
};

typedef struct operation {
  const char *name;
  operation_fn run;
  unsigned has;
  size_t src, dst; /* values, in units of N */
} operation;

static const operation operations[] = {
    {"allreduce", do_allreduce, HAS_SRC | HAS_DST | HAS_REDUCE | HAS_CALL | HAS_TYPES, 1, 1},
    {"reduce", do_reduce, HAS_SRC | HAS_DST | HAS_REDUCE | HAS_ROOT | HAS_CALL | HAS_TYPES | ROOT_DST, 1, 1},
    {"reduce_scatter", do_reduce_scatter, HAS_SRC | HAS_DST | HAS_COUNTS | HAS_REDUCE | HAS_CALL | HAS_TYPES, RANKS, 1},
    {"all_gather", do_all_gather, HAS_SRC | HAS_DST | HAS_COUNTS | HAS_CALL | HAS_TYPES, 1, RANKS},
    {"broadcast", do_broadcast, HAS_DST | HAS_ROOT | HAS_CALL, 0, 1},
    {"all_to_all", do_all_to_all, HAS_SRC | HAS_DST | HAS_COUNTS | HAS_TYPES, RANKS, RANKS},
    {"gather", do_gather, HAS_SRC | HAS_DST | HAS_COUNTS | HAS_ROOT | HAS_TYPES | ROOT_DST, 1, RANKS},
    {"scatter", do_scatter, HAS_SRC | HAS_DST | HAS_COUNTS | HAS_ROOT | HAS_TYPES | ROOT_SRC, RANKS, 1},
    {"send", do_send, HAS_SRC | HAS_ROOT | IS_POINT, 1, 0},
    {"receive", do_receive, HAS_DST | HAS_ROOT | IS_POINT, 0, 1},
};

/* ---- Mistakes ---------------------------------------------------------------------------------------------------- */

typedef enum mistake {
  NO_COMM,
  NO_SRC,
  NO_DST,
  SRC_TYPE,
  DST_TYPE,
  TYPES_DIFFER, /* dst is narrower than src: what fits by number of values does not by bytes */
  SRC_HUGE,
  DST_HUGE,
  SRC_LONG,
  DST_SHORT,
  OVERLAP_LOW,
  OVERLAP_HIGH,
  ROOT_LOW,
  ROOT_HIGH,
  ROOT_SELF,
  REDUCE_UNKNOWN,
  REDUCE_BITS,
  COUNTS_SHORT,
  COUNTS_LONG,
  COUNTS_WRAP,
  CALL_SIZE,
  CODEC_TYPE,
  CODEC_REDUCE,
  ALGORITHM,
  MISTAKES
} mistake;

static const size_t short_counts[RANKS] = {N, N, N - 1}, long_counts[RANKS] = {N, N, N + 1},
                    wrapping_counts[RANKS] = {N, SIZE_MAX - N + 1, 2 * N};

/* Makes the mistake in arguments that are right; 0 if the operation cannot make it on this rank. */
static int make_mistake(mistake m, unsigned has, int rank, uint8_t *memory, const pith_codec *codec, arguments *a) {
  int has_src = (has & HAS_SRC) && (!(has & ROOT_SRC) || rank == a->root);
  int has_dst = (has & HAS_DST) && (!(has & ROOT_DST) || rank == a->root);
  int has_both = (has & HAS_TYPES) && has_src && has_dst, has_counts = (has & HAS_COUNTS) && has_both;
  switch (m) {
    case NO_COMM:
      a->comm = NULL;
      return 1;
    case NO_SRC:
      a->src.data = NULL;
      return has_src;
    case NO_DST:
      a->dst.data = NULL;
      return has_dst;
    case SRC_TYPE:
      a->src.dtype = (pith_dtype)77;
      return has_src;
    case DST_TYPE:
      a->dst.dtype = (pith_dtype)-1;
      return has_dst;
    case TYPES_DIFFER:
      a->src.dtype = PITH_F64, a->dst.dtype = PITH_U8;
      return has_both;
    case SRC_HUGE:
      a->src.n = SIZE_MAX / 2;
      return has_src;
    case DST_HUGE:
      a->dst.n = SIZE_MAX / 2;
      return has_dst;
    case SRC_LONG:
      a->src.n++;
      return has_both;
    case DST_SHORT:
      a->dst.n--;
      return has_both;
    case OVERLAP_LOW:
      a->src.data = memory + GUARD, a->dst.data = memory + GUARD + 1;
      return has_both;
    case OVERLAP_HIGH:
      a->dst.data = memory + GUARD, a->src.data = memory + GUARD + 4 * (N / 2);
      return has_both;
    case ROOT_LOW:
      a->root = has & IS_POINT ? PITH_ANY_RANK - 1 : -1; /* a receive from any rank is none */
      return (has & HAS_ROOT) != 0;
    case ROOT_HIGH:
      a->root = RANKS;
      return (has & HAS_ROOT) != 0;
    case ROOT_SELF:
      a->root = rank;
      return (has & IS_POINT) != 0;
    case REDUCE_UNKNOWN:
      a->reduce = (pith_reduce_op)99;
      return (has & HAS_REDUCE) != 0;
    case REDUCE_BITS:
      a->reduce = PITH_BXOR;
      return (has & HAS_REDUCE) != 0;
    case COUNTS_SHORT:
      a->counts = short_counts;
      return has_counts;
    case COUNTS_LONG:
      a->counts = long_counts;
      return has_counts;
    case COUNTS_WRAP:
      a->counts = wrapping_counts;
      return has_counts;
    case CALL_SIZE:
      a->call.size = 3, a->called = &a->call;
      return (has & HAS_CALL) != 0;
    case CODEC_TYPE:
      a->call.codec = codec, a->called = &a->call;
      a->src.dtype = a->dst.dtype = PITH_I32;
      return (has & HAS_CALL) && (has & HAS_REDUCE);
    case CODEC_REDUCE:
      a->call.codec = codec, a->called = &a->call, a->reduce = PITH_MAX;
      return (has & HAS_CALL) && (has & HAS_REDUCE);
    case ALGORITHM:
      a->call.algorithm = "no such way", a->called = &a->call;
      return (has & HAS_CALL) && (has & HAS_REDUCE) && !(has & (HAS_ROOT | HAS_COUNTS));
    case MISTAKES:
      break;
  }
  return 0;
}

static void check_comm_works(pith_comm *comm, const char *after, int mistake_number) {
  float one = 1, sum = 0;
  pith_status status =
      pith_allreduce(comm, (pith_cspan){&one, 1, PITH_F32}, (pith_span){&sum, 1, PITH_F32}, PITH_SUM, NULL, NULL);
  CHECK_MSG(status == PITH_OK && sum == RANKS, "after mistake %d in %s the comm does not work: %s", mistake_number,
            after, pith_error());
}

static void make_all_mistakes(pith_comm *comm, void *argument) {
  static const size_t counts[RANKS] = {N, N, N};
  int rank = pith_comm_rank(comm), *made = argument;
  uint8_t memory[2 * ROOM], before[2 * ROOM];
  pith_codec *codec;
  CHECK_OK(pith_codec_create("q:4", &codec));
  for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
    const operation *op = &operations[i];
    for (mistake m = 0; m < MISTAKES; m++) {
      arguments a = {.comm = comm,
                     .src = {memory + GUARD, op->src * N, PITH_F32},
                     .dst = {memory + ROOM + GUARD, op->dst * N, PITH_F32},
                     .counts = op->has & HAS_COUNTS ? counts : NULL,
                     .receive = op->has & HAS_COUNTS ? counts : NULL,
                     .reduce = PITH_SUM,
                     .root = 0,
                     .call = PITH_CALL_INIT};
      memset(memory, 0x5a, sizeof memory);
      memcpy(before, memory, sizeof before);
      if (make_mistake(m, op->has, rank, memory, codec, &a)) {
        pith_status status = op->run(&a);
        CHECK_MSG(status != PITH_OK, "%s: mistake %d was not noticed by rank %d", op->name, (int)m, rank);
        CHECK_MSG(pith_error()[0] != 0, "%s: mistake %d has no message", op->name, (int)m);
        CHECK_BYTES(memory, before, sizeof memory);
        made[rank]++;
      }
      check_comm_works(comm, op->name, (int)m);
    }
  }
  pith_codec_destroy(codec);
}

TEST(no_wrong_argument_is_taken_or_does_harm) {
  int made[RANKS] = {0};
  ranks_run("inproc", RANKS, 0, make_all_mistakes, made);
  CHECK(made[0] > 100 && made[1] > 60);
}

/* ---- Types that only differ between ranks ------------------------------------------------------------------------ */

/* The root expects other values than the others send. All get an error, and nothing is written past dst. */
static void gather_other_types(pith_comm *comm, void *argument) {
  (void)argument;
  int rank = pith_comm_rank(comm);
  double src[10];
  uint8_t memory[1024];
  memset(src, 0x11, sizeof src);
  memset(memory, 0x5a, sizeof memory);
  size_t counts[RANKS] = {10, 10, 10};
  pith_cspan mine = rank == 0 ? (pith_cspan){src, 10, PITH_U8} : (pith_cspan){src, 10, PITH_F64};
  pith_status status = pith_gather(comm, mine, (pith_span){memory + GUARD, 30, PITH_U8}, counts, 0, NULL);
  status = status == PITH_OK ? pith_barrier(comm, NULL) : status;
  CHECK_MSG(status == PITH_ERR_MISMATCH || status == PITH_ERR_ABORTED, "rank %d got %s", rank,
            pith_status_string(status));
  for (size_t i = 0; i < sizeof memory; i++) {
    CHECK_MSG(memory[i] == 0x5a || (i >= GUARD && i < GUARD + 30), "byte %zu was written", i);
  }
}

TEST(a_gather_of_other_types_writes_nothing_past_its_destination) {
  ranks_run("inproc", RANKS, 0, gather_other_types, NULL);
}

/* ---- In place ---------------------------------------------------------------------------------------------------- */

/* Overlap that is allowed still works. */
static void work_in_place(pith_comm *comm, void *argument) {
  (void)argument;
  int rank = pith_comm_rank(comm);
  float x[RANKS * N], *own = x + rank * N;
  for (size_t i = 0; i < RANKS * N; i++) {
    x[i] = (float)(rank + 1);
  }
  CHECK_OK(
      pith_all_gather(comm, (pith_cspan){own, N, PITH_F32}, (pith_span){x, RANKS * N, PITH_F32}, NULL, NULL, NULL));
  for (size_t i = 0; i < RANKS * N; i++) {
    CHECK(x[i] == (float)(i / N + 1));
  }
  CHECK_OK(pith_reduce_scatter(comm, (pith_cspan){x, RANKS * N, PITH_F32}, (pith_span){own, N, PITH_F32}, NULL,
                               PITH_SUM, NULL, NULL));
  for (size_t i = 0; i < N; i++) {
    CHECK(own[i] == (float)(RANKS * (rank + 1)));
  }
  CHECK_OK(pith_gather(comm, (pith_cspan){own, N, PITH_F32}, (pith_span){x, RANKS * N, PITH_F32}, NULL, 1, NULL));
  for (size_t i = 0; i < RANKS * N && rank == 1; i++) {
    CHECK(x[i] == (float)(RANKS * (i / N + 1)));
  }
  CHECK_OK(pith_scatter(comm, (pith_cspan){x, RANKS * N, PITH_F32}, NULL, (pith_span){own, N, PITH_F32}, 1, NULL));
  for (size_t i = 0; i < N; i++) {
    CHECK(own[i] == (float)(RANKS * (rank + 1)));
  }
  CHECK_OK(pith_allreduce(comm, (pith_cspan){own, N, PITH_F32}, (pith_span){own, N, PITH_F32}, PITH_MAX, NULL, NULL));
  CHECK(own[0] == RANKS * RANKS);
}

TEST(operations_in_place_work) { ranks_run("inproc", RANKS, 0, work_in_place, NULL); }

/* ---- What else takes a comm, a reducer or a request -------------------------------------------------------------- */

static void call_with_nothing(pith_comm *comm, void *argument) {
  (void)argument;
  pith_comm *group;
  pith_reducer *r;
  pith_request *request;
  pith_stats stats = {.size = sizeof stats}, wrong = {.size = 1};
  pith_traffic traffic = PITH_TRAFFIC_INIT;
  pith_layer_stats layer = PITH_LAYER_STATS_INIT;
  pith_out out = {0};
  size_t index, shape[1] = {5};
  float x[5];
  int done;
  CHECK_STATUS(pith_comm_create(NULL, NULL), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_comm_create(&(pith_config){.size = 1}, &group), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_unique_id_create(NULL, NULL), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_comm_split(NULL, 0, 0, &group), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_comm_split(comm, 0, 0, NULL), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_barrier(NULL, NULL), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_barrier(NULL, &request), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_wait(NULL), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_test(NULL, &done), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_comm_stats(NULL, &stats), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_comm_stats(comm, NULL), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_comm_stats(comm, &wrong), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_comm_traffic(NULL, "send", &traffic), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_comm_traffic(comm, NULL, &traffic), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_comm_traffic(comm, "sing", &traffic), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_transport_probe(NULL), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_transport_probe("pigeon"), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_tls_probe(&(pith_config){.size = 12}, NULL), PITH_ERR_ARGUMENT);
  CHECK_EQ(pith_comm_rank(NULL), -1);
  CHECK_EQ(pith_comm_size(NULL), 0);
  CHECK_STR(pith_comm_transport(NULL, 0), "none");
  CHECK_STR(pith_comm_transport(comm, RANKS), "none");
  pith_comm_abort(NULL, NULL);
  pith_comm_destroy(NULL);
  CHECK_STATUS(pith_reducer_create(NULL, "none", 0, &r), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_reducer_create(comm, NULL, 0, &r), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_reducer_create(comm, "none", 0, NULL), PITH_ERR_ARGUMENT);
  CHECK_OK(pith_reducer_create(comm, "none", 0, &r));
  CHECK_STATUS(pith_reducer_add(NULL, &(pith_layer){sizeof(pith_layer), "a", shape, 1, PITH_F32, NULL}, &index),
               PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_reducer_add(r, &(pith_layer){sizeof(pith_layer), NULL, shape, 1, PITH_F32, NULL}, &index),
               PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_reducer_add(r, &(pith_layer){sizeof(pith_layer), "a", NULL, 1, PITH_F32, NULL}, &index),
               PITH_ERR_ARGUMENT);
  CHECK_STATUS(
      pith_reducer_add(r, &(pith_layer){sizeof(pith_layer), "a", (size_t[]){SIZE_MAX, 3}, 2, PITH_F32, NULL}, &index),
      PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_reducer_add(r, &(pith_layer){sizeof(pith_layer), "a", shape, 1, PITH_I64, NULL}, &index),
               PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_reducer_add(r, &(pith_layer){sizeof(pith_layer), "a", shape, 1, (pith_dtype)55, NULL}, &index),
               PITH_ERR_ARGUMENT);
  CHECK_OK(pith_reducer_add(r, &(pith_layer){sizeof(pith_layer), "a", shape, 1, PITH_F32, NULL}, &index));
  CHECK_STATUS(pith_reducer_add(r, &(pith_layer){sizeof(pith_layer), "a", shape, 1, PITH_F32, NULL}, &index),
               PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_reducer_start(NULL, 0, x), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_reducer_start(r, 1, x), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_reducer_start(r, 0, NULL), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_reducer_flush(NULL), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_reducer_finish(NULL), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_reducer_check(NULL), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_reducer_scale(NULL, 1), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_reducer_scale_residual(NULL, 0, 1), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_reducer_scale_residual(r, 1, 1), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_reducer_scale_residual(r, 0, 0), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_reducer_layer_stats(NULL, 0, &layer), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_reducer_layer_stats(r, 9, &layer), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_reducer_layer_stats(r, 0, NULL), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_reducer_save(NULL, &out), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_reducer_save(r, &out), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_reducer_load(r, (pith_bytes){0}), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_reducer_load(NULL, (pith_bytes){x, 5}), PITH_ERR_ARGUMENT);
  CHECK_EQ(pith_reducer_layers(NULL), 0);
  CHECK_EQ(pith_reducer_save_size(NULL), 0);
  pith_reducer_destroy(NULL);
  pith_reducer_destroy(r);
  check_comm_works(comm, "all of these", -1);
}

TEST(nothing_in_place_of_an_object_is_an_error) { ranks_run("inproc", RANKS, 0, call_with_nothing, NULL); }
