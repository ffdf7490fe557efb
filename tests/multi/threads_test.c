/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several threads of a rank: those of the caller, who send, receive and ask at once, and those of the library, who
 * share encoding and decoding, with the same bits as one and the same errors.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/thread_pool.h"
#include "memory/memory.h"
#include "ranks.h"
#include "test.h"

/* ---- Threads of the caller --------------------------------------------------------------------------------------- */

static const char *const transports[] = {"inproc", "shm", "tcp"};

enum { THREADS = 4, ROUNDS = 60, LENGTH = 500 };

typedef struct talker {
  pith_comm *comm;
  int number;
} talker;

/* Sends and receives with a tag of its own, every third time with a request that it looks after. */
static void *talk(void *argument) {
  const talker *me = argument;
  int peer = 1 - pith_comm_rank(me->comm);
  for (int round = 0; round < ROUNDS; round++) {
    float x[LENGTH], y[LENGTH] = {0};
    for (int i = 0; i < LENGTH; i++) {
      x[i] = (float)((me->number * 977 + (round + i) * 7919) % 2001);
    }
    pith_request *sent;
    int done = round % 3;
    CHECK_OK(pith_send(me->comm, (pith_cspan){x, LENGTH, PITH_F32}, peer, (uint32_t)me->number, &sent));
    CHECK_OK(pith_recv(me->comm, (pith_span){y, LENGTH, PITH_F32}, peer, (uint32_t)me->number, NULL));
    while (!done) {
      CHECK_OK(pith_test(sent, &done));
    }
    CHECK_OK(pith_wait(sent));
    CHECK_BYTES(x, y, sizeof x);
  }
  return NULL;
}

static void run_threads(pith_comm *comm, void *(*routine)(void *)) {
  pthread_t thread[THREADS];
  talker who[THREADS];
  for (int t = 0; t < THREADS; t++) {
    who[t] = (talker){comm, t};
    CHECK(pthread_create(&thread[t], NULL, routine, &who[t]) == 0);
  }
  for (int t = 0; t < THREADS; t++) {
    pthread_join(thread[t], NULL);
  }
}

static void many_talk(pith_comm *comm, void *argument) {
  (void)argument;
  run_threads(comm, talk);
}

TEST(threads_of_a_rank_exchange_messages_at_once) {
  for (size_t t = 0; t < 3; t++) {
    ranks_run(transports[t], 2, 0, many_talk, NULL);
  }
}

/* Asks for its requests in a tight loop, as do all the others: whoever drives must get on all the same. */
static void *ask(void *argument) {
  const talker *me = argument;
  int peer = 1 - pith_comm_rank(me->comm);
  for (int round = 0; round < ROUNDS; round++) {
    float x = (float)round, y = -1;
    pith_request *sent, *received;
    CHECK_OK(pith_recv(me->comm, (pith_span){&y, 1, PITH_F32}, peer, (uint32_t)me->number, &received));
    CHECK_OK(pith_send(me->comm, (pith_cspan){&x, 1, PITH_F32}, peer, (uint32_t)me->number, &sent));
    for (int done = 0, both = 0; !both; both &= done) {
      CHECK_OK(pith_test(sent, &both));
      CHECK_OK(pith_test(received, &done));
    }
    CHECK_OK(pith_wait(sent));
    CHECK_OK(pith_wait(received));
    CHECK(y == x);
  }
  return NULL;
}

static void many_ask(pith_comm *comm, void *argument) {
  (void)argument;
  run_threads(comm, ask);
}

TEST(threads_that_ask_all_the_time_do_not_stop_the_driver) {
  for (size_t t = 0; t < 3; t++) {
    ranks_run(transports[t], 2, 0, many_ask, NULL);
  }
}

static void *receive_the_last(void *argument) {
  float x = 0;
  CHECK_OK(pith_recv(argument, (pith_span){&x, 1, PITH_F32}, 1, 1, NULL));
  CHECK(x == 3);
  return NULL;
}

/* Rank 0's first thread waits for what is only sent once its second has received, and answered, something else. */
static void wait_in_turn(pith_comm *comm, void *argument) {
  (void)argument;
  float x = 3;
  if (pith_comm_rank(comm) == 0) {
    pthread_t first;
    CHECK(pthread_create(&first, NULL, receive_the_last, comm) == 0);
    usleep(20000); /* it drives, and sleeps */
    CHECK_OK(pith_recv(comm, (pith_span){&x, 1, PITH_F32}, 1, 2, NULL));
    CHECK_OK(pith_send(comm, (pith_cspan){&x, 1, PITH_F32}, 1, 3, NULL));
    pthread_join(first, NULL);
  } else {
    usleep(40000);
    CHECK_OK(pith_send(comm, (pith_cspan){&x, 1, PITH_F32}, 0, 2, NULL));
    CHECK_OK(pith_recv(comm, (pith_span){&x, 1, PITH_F32}, 0, 3, NULL));
    CHECK_OK(pith_send(comm, (pith_cspan){&x, 1, PITH_F32}, 0, 1, NULL));
  }
}

TEST(a_thread_is_told_although_another_drives) {
  for (size_t t = 0; t < 3; t++) {
    double best = 1e9;
    for (int i = 0; i < 5 && best >= 1; i++) { /* a busy machine may be slow now and then */
      double start = pith__now();
      ranks_run(transports[t], 2, 0, wait_in_turn, NULL);
      best = pith__now() - start < best ? pith__now() - start : best;
    }
    CHECK_MSG(best < 1, "%s: somebody slept over a message", transports[t]);
  }
}

/* ---- Thread pools ------------------------------------------------------------------------------------------------ */

typedef struct tally {
  atomic_uint calls[PITH_THREADS_MOST];
} tally;

static void count(void *argument, unsigned part) {
  tally *t = argument;
  atomic_fetch_add(&t->calls[part], 1);
}

/* With pauses that let threads fall asleep, too. */
TEST(every_part_is_run_once) {
  enum { PIECES = 300 };
  for (unsigned threads = 1; threads <= 5; threads += 2) {
    pith_thread_pool *pool;
    tally t = {0};
    unsigned wanted[PITH_THREADS_MOST] = {0};
    CHECK_OK(pith__thread_pool_create(threads, &pool));
    CHECK_EQ(pith__thread_pool_size(pool), threads);
    for (int round = 0; round < PIECES; round++) {
      unsigned parts = 1 + (unsigned)test_below(threads);
      pith__thread_pool_run(pool, parts, count, &t);
      for (unsigned part = 0; part < parts; part++) {
        wanted[part]++;
      }
      for (unsigned part = 0; part < threads; part++) {
        CHECK_EQ(atomic_load(&t.calls[part]), wanted[part]);
      }
      if (round % 50 == 0) {
        usleep(2000);
      }
    }
    pith__thread_pool_destroy(pool);
  }
}

TEST(a_thread_pool_has_limits) {
  pith_thread_pool *pool;
  CHECK_EQ(pith__thread_pool_create(0, &pool), PITH_ERR_ARGUMENT);
  CHECK_EQ(pith__thread_pool_create(PITH_THREADS_MOST + 1, &pool), PITH_ERR_ARGUMENT);
  CHECK_EQ(pith__thread_pool_size(NULL), 1);
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

enum { VALUES = 150001, STEPS = 3, RANKS = 3 };

typedef struct trial {
  const char *spec;
  float *results; /* of rank 0 after every step; shared */
} trial;

static void reduce_some(pith_comm *comm, void *argument) {
  const trial *t = argument;
  pith_codec *codec;
  pith_call call = PITH_CALL_INIT;
  float *x = malloc(VALUES * sizeof *x), *y = malloc(VALUES * sizeof *y);
  CHECK_OK(pith_codec_create(t->spec, &codec));
  CHECK_OK(pith_state_create(codec, VALUES, 0, &call.state));
  call.codec = codec;
  for (int step = 0; step < STEPS; step++) {
    for (size_t i = 0; i < VALUES; i++) {
      x[i] = (float)((i * 7919 + (size_t)(step * 31 + pith_comm_rank(comm)) * 104729) % 2001) * 0.001f - 1.0f;
    }
    call.step = (uint64_t)step;
    CHECK_OK(pith_allreduce(comm, (pith_cspan){x, VALUES, PITH_F32}, (pith_span){y, VALUES, PITH_F32}, PITH_MEAN, &call,
                            NULL));
    if (pith_comm_rank(comm) == 0) {
      memcpy(t->results + step * VALUES, y, VALUES * sizeof *y);
    }
  }
  pith_state_destroy(call.state);
  pith_codec_destroy(codec);
  free(x);
  free(y);
}

/* Chunks must be long enough to be shared. */
TEST(threads_make_the_same_bits) {
  static const char *const specs[] = {"q:4",
                                      "q:3,round=stochastic",
                                      "ef/q:2",
                                      "terngrad",
                                      "signsgd",
                                      "efsignsgd",
                                      "hadamard/q:4",
                                      "momentum/q:8",
                                      "bf16",
                                      "ef/topk:0.01",
                                      "ef/powersgd:2",
                                      "ef,store=8/q:2",
                                      "ef,store=bf16/q:2",
                                      "ef,store=8/topk:0.01"};
  size_t bytes = STEPS * VALUES * sizeof(float);
  float *one = mmap(NULL, 2 * bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0),
        *many = one + STEPS * VALUES;
  CHECK(one != MAP_FAILED);
  for (size_t s = 0; s < sizeof specs / sizeof *specs; s++) {
    setenv("PITH_THREADS", "1", 1);
    ranks_run("shm", RANKS, (size_t)1 << 20, reduce_some, &(trial){specs[s], one});
    setenv("PITH_THREADS", "3", 1);
    ranks_run("shm", RANKS, (size_t)1 << 20, reduce_some, &(trial){specs[s], many});
    CHECK_MSG(memcmp(one, many, bytes) == 0, "%s: three threads make other bits than one", specs[s]);
  }
  unsetenv("PITH_THREADS");
  munmap(one, 2 * bytes);
}

TEST(too_many_threads_are_an_error) {
  pith_config config = PITH_CONFIG_INIT;
  pith_comm *comm;
  config.rank = 0, config.ranks = 1, config.threads = PITH_THREADS_MOST + 1;
  CHECK_EQ(pith_comm_create(&config, &comm), PITH_ERR_ARGUMENT);
  CHECK(strstr(pith_error(), "65 threads") != NULL);
  config.threads = 2;
  CHECK_OK(pith_comm_create(&config, &comm));
  pith_comm_destroy(comm);
}

/* ---- Errors ------------------------------------------------------------------------------------------------------ */

static pith_status fail_behind(const pith_codec *codec, pith_state *state, pith_cspan src, pith_out *out,
                               const pith_encode_scratch *scratch, const pith_ctx *ctx) {
  (void)codec, (void)state, (void)src, (void)out, (void)scratch;
  return ctx->offset ? pith_fail(PITH_ERR_CORRUPT, "something is wrong at value %llu", (unsigned long long)ctx->offset)
                     : PITH_OK;
}

TEST(an_error_of_any_thread_is_told) {
  enum { N = 65536 };
  static float x[N];
  static uint8_t bytes[N];
  pith_encode_scratch scratch[2] = {{0}};
  pith_ctx ctx = PITH_CTX_INIT;
  pith_codec *codec;
  pith_thread_pool *pool;
  CHECK_OK(pith_codec_create("q:4", &codec));
  CHECK_OK(pith__thread_pool_create(2, &pool));
  pith_out out = {bytes, sizeof bytes, 0};
  CHECK_EQ(pith__encode_in_threads(pool, fail_behind, codec, NULL, (pith_cspan){x, N, PITH_F32}, &out, scratch, &ctx),
           PITH_ERR_CORRUPT);
  CHECK_STR(pith_error(), "something is wrong at value 32768");
  pith__thread_pool_destroy(pool);
  pith_codec_destroy(codec);
}
