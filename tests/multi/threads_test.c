/* Ranks whose work is shared by several threads: the same bits as with one, for every method, and the same errors. */
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/crew.h"
#include "engine/shared.h"
#include "ranks.h"
#include "test.h"

/* ---- Crews ------------------------------------------------------------------------------------------------------- */

typedef struct tally {
  atomic_uint calls[PITH_CREW_MOST];
} tally;

static void count(void *argument, unsigned part) {
  tally *t = argument;
  atomic_fetch_add(&t->calls[part], 1);
}

/* With pauses that let members fall asleep, too. */
TEST(every_part_is_run_once) {
  enum { ROUNDS = 300 };
  for (unsigned threads = 1; threads <= 5; threads += 2) {
    pith_crew *crew;
    tally t = {0};
    unsigned wanted[PITH_CREW_MOST] = {0};
    CHECK_OK(pith__crew_create(threads, &crew));
    CHECK_EQ(pith__crew_size(crew), threads);
    for (int round = 0; round < ROUNDS; round++) {
      unsigned parts = 1 + (unsigned)test_below(threads);
      pith__crew_run(crew, parts, count, &t);
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
    pith__crew_destroy(crew);
  }
}

TEST(a_crew_has_limits) {
  pith_crew *crew;
  CHECK_EQ(pith__crew_create(0, &crew), PITH_ERR_ARGUMENT);
  CHECK_EQ(pith__crew_create(PITH_CREW_MOST + 1, &crew), PITH_ERR_ARGUMENT);
  CHECK_EQ(pith__crew_size(NULL), 1);
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
    call.ctx.step = (uint64_t)step;
    CHECK_OK(pith_allreduce(comm, (pith_cspan){x, VALUES, PITH_F32}, (pith_span){y, VALUES, PITH_F32}, PITH_MEAN, &call, NULL));
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
  static const char *const specs[] = {"q:4", "q:3,round=stochastic", "ef/q:2", "terngrad", "signsgd", "efsignsgd", "hadamard/q:4",
                                      "momentum/q:8", "bf16", "ef/topk:0.01", "ef/powersgd:2"};
  size_t bytes = STEPS * VALUES * sizeof(float);
  float *one = mmap(NULL, 2 * bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), *many = one + STEPS * VALUES;
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
  config.rank = 0, config.ranks = 1, config.threads = PITH_CREW_MOST + 1;
  CHECK_EQ(pith_comm_create(&config, &comm), PITH_ERR_ARGUMENT);
  CHECK(strstr(pith_error(), "65 threads") != NULL);
  config.threads = 2;
  CHECK_OK(pith_comm_create(&config, &comm));
  pith_comm_destroy(comm);
}

/* ---- Errors ------------------------------------------------------------------------------------------------------ */

static pith_status fail_behind(const pith_codec *codec, pith_state *state, pith_cspan src, pith_out *out,
                               const pith_feed_scratch *scratch, const pith_ctx *ctx) {
  (void)codec, (void)state, (void)src, (void)out, (void)scratch;
  return ctx->offset ? pith_fail(PITH_ERR_CORRUPT, "something is wrong at value %llu", (unsigned long long)ctx->offset) : PITH_OK;
}

TEST(an_error_of_any_thread_is_told) {
  enum { N = 65536 };
  static float x[N];
  static uint8_t bytes[N];
  pith_feed_scratch scratch[2] = {{0}};
  pith_ctx ctx = PITH_CTX_INIT;
  pith_codec *codec;
  pith_crew *crew;
  CHECK_OK(pith_codec_create("q:4", &codec));
  CHECK_OK(pith__crew_create(2, &crew));
  pith_out out = {bytes, sizeof bytes, 0};
  CHECK_EQ(pith__shared_encode(crew, fail_behind, codec, NULL, (pith_cspan){x, N, PITH_F32}, &out, scratch, &ctx), PITH_ERR_CORRUPT);
  CHECK_STR(pith_error(), "something is wrong at value 32768");
  pith__crew_destroy(crew);
  pith_codec_destroy(codec);
}
