/* SPDX-License-Identifier: Apache-2.0 */
/* Foreign calls of XLA: the handler against an XLA of our own, so that it is tested without one.
 * tests/python/test_jax.py has the real one. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "fake_xla.h"
#include "ranks.h"
#include "test.h"
#include "xla/programs.h"

static int make_call(fake_call *c, const char *part) { return make_call_by(pith_xla_allreduce_host, c, part); }

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

enum { N = 2048 };

typedef struct rank_state {
  uint32_t token[4];
  float gradient[N], residual[N], result[N];
} rank_state;

static pith_reducer *make_reducer(pith_comm *comm, const char *spec, int lent) {
  pith_reducer_options options = PITH_REDUCER_OPTIONS_INIT;
  pith_reducer *r;
  size_t shape[2] = {32, N / 32};
  pith_layer layer = {sizeof layer, "fc", shape, 2, PITH_F32, NULL};
  options.lent = lent;
  CHECK_OK(pith_reducer_create_with(comm, spec, 1, &options, &r));
  CHECK_OK(pith_reducer_add(r, &layer, NULL));
  return r;
}

static rank_state *make_state(pith_comm *comm) {
  rank_state *s = calloc(1, sizeof *s);
  s->token[2] = (uint32_t)pith_comm_rank(comm);
  s->token[3] = (uint32_t)pith_comm_size(comm);
  return s;
}

static void fill(float *gradient, int rank, int step) {
  for (int i = 0; i < N; i++) {
    gradient[i] = (float)((i * 37 + rank * 11 + step * 5) % 101) - 50.0f;
  }
}

static int64_t key_of(pith_comm *comm) { return 100 + pith_comm_rank(comm); } /* ranks are threads of one process */

static void describe(fake_call *c, pith_comm *comm, rank_state *s) {
  begin_call(c, key_of(comm));
  add_buffer(c, XLA_U32, s->token, 4);
  add_buffer(c, XLA_F32, s->gradient, N);
  add_buffer(c, XLA_F32, s->residual, N);
  add_buffer(c, XLA_F32, s->result, N);
}

static void take_steps(pith_comm *comm, void *argument) {
  (void)argument;
  int rank = pith_comm_rank(comm);
  pith_reducer *kept = make_reducer(comm, "ef/q:4", 0), *lent = make_reducer(comm, "ef/q:4", 1);
  rank_state *s = make_state(comm);
  CHECK_OK(pith_xla_bind((uint64_t)key_of(comm), comm, lent));
  CHECK_STATUS(pith_xla_bind((uint64_t)key_of(comm), comm, lent), PITH_ERR_ARGUMENT);
  for (int step = 0; step < 4; step++) {
    fake_call c;
    float expected[N];
    fill(expected, rank, step);
    fill(s->gradient, rank, step);
    CHECK_OK(pith_reducer_start(kept, 0, expected));
    CHECK_OK(pith_reducer_finish(kept));
    describe(&c, comm, s);
    CHECK_EQ(make_call(&c, ""), 0);
    CHECK(memcmp(expected, s->gradient, sizeof expected) == 0);
    CHECK_EQ(s->token[0], (uint32_t)step + 1);
  }
  pith_xla_unbind((uint64_t)key_of(comm));
  free(s);
  pith_reducer_destroy(lent);
  pith_reducer_destroy(kept);
}

TEST(a_call_takes_one_step_with_the_bits_of_the_reducer) { ranks_run("inproc", 2, 0, take_steps, NULL); }

static void keep_arguments(pith_comm *comm, void *argument) {
  (void)argument;
  pith_reducer *lent = make_reducer(comm, "ef/q:4", 1);
  rank_state *before = make_state(comm), *after = make_state(comm), *copy = make_state(comm);
  fill(before->gradient, pith_comm_rank(comm), 0);
  *copy = *before;
  fake_call c, d;
  CHECK_OK(pith_xla_bind((uint64_t)key_of(comm), comm, lent));
  describe(&c, comm, before);
  describe(&d, comm, after);
  add_buffer(&c, XLA_U32, copy->token, 4); /* an argument that only orders calls */
  c.frame.results = d.frame.results;
  CHECK_EQ(make_call(&c, ""), 0);
  CHECK(memcmp(before, copy, sizeof *copy) == 0);
  CHECK(memcmp(after->gradient, copy->gradient, sizeof copy->gradient) != 0);
  CHECK_EQ(after->token[0], 1);
  pith_xla_unbind((uint64_t)key_of(comm));
  pith_reducer_destroy(lent);
  free(before);
  free(after);
  free(copy);
}

TEST(arguments_with_buffers_of_their_own_are_not_changed) { ranks_run("inproc", 2, 0, keep_arguments, NULL); }

/* ---- What is refused --------------------------------------------------------------------------------------------- */

typedef struct mistake {
  void (*make)(fake_call *c, rank_state *s);
  int code;
  const char *text;
} mistake;

static void other_rank(fake_call *c, rank_state *s) { (void)c, s->token[2] = 3, s->token[3] = 1; }
static void other_ranks(fake_call *c, rank_state *s) { (void)c, s->token[3] = 4; }
static void other_size(fake_call *c, rank_state *s) { (void)s, c->dims[1]--; }
static void other_type(fake_call *c, rank_state *s) { (void)s, c->buffer[1].type = 15; }
static void other_count(fake_call *c, rank_state *s) { add_buffer(c, XLA_F32, s->result, N); }
static void other_key(fake_call *c, rank_state *s) { (void)s, c->key = 77; }
static void no_key(fake_call *c, rank_state *s) { (void)s, c->name[0].size = 2; }
static void other_stage(fake_call *c, rank_state *s) { (void)s, c->frame.stage = 0; }
static void short_frame(fake_call *c, rank_state *s) { (void)s, c->frame.size = 64; }
static void other_major(fake_call *c, rank_state *s) { (void)s, c->api.version.major = 1; }
static void older_minor(fake_call *c, rank_state *s) { (void)s, c->api.version.minor = 0; }

static void refuse_call(pith_comm *comm, void *argument) {
  const mistake *m = argument;
  pith_reducer *lent = make_reducer(comm, "ef/q:4", 1);
  rank_state *s = make_state(comm);
  fake_call c;
  CHECK_OK(pith_xla_bind((uint64_t)key_of(comm), comm, lent));
  describe(&c, comm, s);
  m->make(&c, s);
  CHECK_EQ(make_call(&c, m->text), m->code);
  pith_xla_unbind((uint64_t)key_of(comm));
  pith_reducer_destroy(lent);
  free(s);
}

TEST(calls_that_do_not_fit_are_errors) {
  static const mistake mistakes[] = {
      {other_rank, XLA_FAILED_PRECONDITION, "the state is of rank 3 of 1, and this is rank 0"},
      {other_ranks, XLA_FAILED_PRECONDITION, "with another number of ranks"},
      {other_size, XLA_INVALID_ARGUMENT, "operand 1 of the foreign call has 8188 bytes, and its layer 8192"},
      {other_type, XLA_INVALID_ARGUMENT, "operand 1 of the foreign call has XLA's type 15"},
      {other_count, XLA_INVALID_ARGUMENT, "has 5 operands, and its reducer takes 4"},
      {other_key, XLA_FAILED_PRECONDITION, "there is no reducer for this program"},
      {no_key, XLA_INVALID_ARGUMENT, "no attribute key"},
      {other_stage, XLA_UNIMPLEMENTED, "stage 0"},
      {short_frame, XLA_UNIMPLEMENTED, "call frame of XLA has 64 bytes"},
      {other_major, XLA_UNIMPLEMENTED, "by version 1.3 of XLA's interface, and Pith"},
      {older_minor, XLA_UNIMPLEMENTED, "knows 0.1 to 0.3"},
  };
  for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
    ranks_run("inproc", 1, 0, refuse_call, (void *)(uintptr_t)&mistakes[i]);
  }
}

static void call_from_two_devices(pith_comm *comm, void *argument) {
  (void)argument;
  pith_reducer *lent = make_reducer(comm, "ef/q:4", 1);
  rank_state *s = make_state(comm);
  fake_call c;
  CHECK_OK(pith_xla_bind((uint64_t)key_of(comm), comm, lent));
  describe(&c, comm, s);
  CHECK_EQ(make_call(&c, ""), 0);
  CHECK_OK(pith_xla_check(comm));
  ordinal_now = 1;
  CHECK_EQ(make_call(&c, "devices 0 and 1 of one process"), XLA_UNIMPLEMENTED);
  ordinal_now = 0;
  CHECK_EQ(make_call(&c, "gave up"), XLA_ABORTED); /* all ranks know it */
  CHECK_STATUS(pith_xla_check(comm), PITH_ERR_ABORTED);
  CHECK(strstr(pith_error(), "devices 0 and 1 of one process") != NULL);
  pith_xla_unbind((uint64_t)key_of(comm));
  pith_reducer_destroy(lent);
  free(s);
}

TEST(a_second_device_is_an_error) { ranks_run("inproc", 1, 0, call_from_two_devices, NULL); }

static void call_two_at_once(pith_comm *comm, void *argument) {
  (void)argument;
  pith_reducer *lent = make_reducer(comm, "ef/q:4", 1), *other = make_reducer(comm, "ef/q:4", 1);
  rank_state *s = make_state(comm);
  fake_call c;
  pith_xla_program *under_way = NULL;
  CHECK_OK(pith_xla_bind((uint64_t)key_of(comm), comm, lent));
  CHECK_OK(pith_xla_bind(7, comm, other));
  CHECK_OK(pith__xla_enter(&(pith_xla_call){.key = 7, .part = PITH_XLA_WHOLE}, &under_way));
  describe(&c, comm, s);
  CHECK_EQ(make_call(&c, "two allreduces of one comm are under way at once"), XLA_FAILED_PRECONDITION);
  pith__xla_leave(under_way, &(pith_xla_call){.part = PITH_XLA_WHOLE}, PITH_OK);
  pith_xla_unbind(7);
  pith_xla_unbind((uint64_t)key_of(comm));
  pith_reducer_destroy(other);
  pith_reducer_destroy(lent);
  free(s);
}

TEST(two_calls_at_once_are_an_error) { ranks_run("inproc", 1, 0, call_two_at_once, NULL); }

static void *unbind(void *ended) {
  pith_xla_unbind(8);
  atomic_store((atomic_int *)ended, 1);
  return NULL;
}

static void unbind_under_way(pith_comm *comm, void *argument) {
  (void)argument;
  pith_reducer *lent = make_reducer(comm, "ef/q:4", 1);
  const pith_xla_call whole = {.key = 8, .part = PITH_XLA_WHOLE};
  pith_xla_program *under_way = NULL;
  atomic_int ended = 0;
  pthread_t thread;
  CHECK_OK(pith_xla_bind(8, comm, lent));
  CHECK_OK(pith__xla_enter(&whole, &under_way));
  CHECK_EQ(pthread_create(&thread, NULL, unbind, &ended), 0);
  nanosleep(&(struct timespec){0, 20000000}, NULL);
  CHECK_EQ(atomic_load(&ended), 0);
  pith__xla_leave(under_way, &whole, PITH_OK);
  CHECK_EQ(pthread_join(thread, NULL), 0);
  CHECK_EQ(atomic_load(&ended), 1);
  CHECK_STATUS(pith__xla_enter(&whole, &under_way), PITH_ERR_STATE);
  pith_reducer_destroy(lent);
}

TEST(a_reducer_is_taken_back_when_no_call_uses_it) { ranks_run("inproc", 1, 0, unbind_under_way, NULL); }

static void adapt_by_itself(pith_comm *comm, void *argument) {
  (void)argument;
  pith_reducer *kept = make_reducer(comm, "ef/q:4", 0); /* as those of adaptive specs */
  rank_state *s = make_state(comm);
  fake_call c;
  CHECK_OK(pith_xla_bind((uint64_t)key_of(comm), comm, kept));
  begin_call(&c, key_of(comm));
  add_buffer(&c, XLA_U32, s->token, 4);
  add_buffer(&c, XLA_F32, s->gradient, N);
  CHECK_EQ(make_call(&c, ""), 0);
  CHECK_EQ(make_call(&c, ""), 0);
  CHECK_EQ(s->token[0], 2);
  s->token[0] = 1;
  CHECK_EQ(make_call(&c, "the state is of step 1, and the reducer"), XLA_FAILED_PRECONDITION);
  pith_xla_unbind((uint64_t)key_of(comm));
  pith_reducer_destroy(kept);
  free(s);
}

TEST(a_reducer_that_keeps_its_states_takes_each_step_once) { ranks_run("inproc", 1, 0, adapt_by_itself, NULL); }

static void fail_alone(pith_comm *comm, void *argument) {
  (void)argument;
  pith_reducer *lent = make_reducer(comm, "ef/q:4", 1);
  rank_state *s = make_state(comm);
  fake_call c;
  CHECK_OK(pith_xla_bind((uint64_t)key_of(comm), comm, lent));
  describe(&c, comm, s);
  if (pith_comm_rank(comm) == 1) {
    s->token[2] = 0;
    CHECK_EQ(make_call(&c, "the state is of rank 0 of 2, and this is rank 1"), XLA_FAILED_PRECONDITION);
  } else {
    CHECK_EQ(make_call(&c, "rank 1 gave up: the state is of rank 0 of 2"), XLA_ABORTED);
  }
  pith_xla_unbind((uint64_t)key_of(comm));
  pith_reducer_destroy(lent);
  free(s);
}

TEST(a_rank_that_fails_tells_the_others) { ranks_run("inproc", 2, 0, fail_alone, NULL); }

/* ---- Versions ---------------------------------------------------------------------------------------------------- */

static xla_version registered(const xla_api *api) {
  xla_metadata metadata = {.size = sizeof metadata, .traits = 9};
  xla_metadata_extension extension = {{sizeof extension, XLA_EXTENSION_METADATA, NULL}, &metadata};
  xla_frame frame = {.size = sizeof frame, .extensions = &extension.base, .api = api};
  CHECK(pith_xla_allreduce_host(&frame) == NULL);
  CHECK_EQ(metadata.traits, 0);
  return metadata.version;
}

TEST(a_handler_says_which_version_it_speaks) {
  int major = -1, minor = -1;
  xla_api second = make_api(0, 2), ninth = make_api(0, 9), other = make_api(1, 0);
  CHECK_EQ(registered(NULL).minor, 1); /* as 0.1 asks */
  CHECK_OK(pith_xla_version(&major, &minor));
  CHECK_EQ(major, 0);
  CHECK_EQ(minor, 1);
  CHECK_EQ(registered(&second).minor, 2);
  CHECK_EQ(registered(&ninth).minor, XLA_MINOR_LAST); /* XLA decides whether it still calls by that */
  CHECK_OK(pith_xla_version(&major, &minor));
  registered(&other);
  CHECK_STATUS(pith_xla_version(&major, &minor), PITH_ERR_UNSUPPORTED);
  CHECK(strstr(pith_error(), "version 1.0 of XLA's interface") != NULL);
}
