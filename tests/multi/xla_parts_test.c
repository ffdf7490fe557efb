/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of foreign calls in parts: layers start in several calls, in the order in which they become ready, and one call
 * finishes. In memory of the host and of a made-up device. */
#include "cuda/fake/fake_nccl.h"
#include "fake_xla.h"
#include "ranks.h"
#include "test.h"
#include "xla/programs.h"

enum { LAYERS = 4, ROWS = 32, COLUMNS = 64, N = ROWS * COLUMNS, STEPS = 3 };

typedef struct rank_state {
  uint32_t token[4];
  float gradient[LAYERS][N], residual[LAYERS][N], result[LAYERS][N];
} rank_state;

static int on_device;

/* Before the first reducer on the device. */
static void use_device(int whether) {
  setenv("PITH_MODULE_PATH", FAKE_MODULE, 1);
  on_device = whether;
}

static int64_t key_of(pith_comm *comm) { return 300 + pith_comm_rank(comm); }

static int make_call(fake_call *c, const char *part) {
  return make_call_by(on_device ? pith_xla_allreduce_cuda : pith_xla_allreduce_host, c, part);
}

static void add_layers(pith_reducer *r) {
  size_t shape[2] = {ROWS, COLUMNS};
  for (int i = 0; i < LAYERS; i++) {
    char name[16];
    snprintf(name, sizeof name, "fc%d", i);
    pith_layer layer = {sizeof layer, name, shape, 2, PITH_F32, NULL};
    CHECK_OK(pith_reducer_add(r, &layer, NULL));
  }
}

static pith_reducer *bind_reducer(pith_comm *comm) {
  pith_reducer_options options = PITH_REDUCER_OPTIONS_INIT;
  pith_reducer *r = NULL;
  options.lent = 1;
  CHECK_OK(on_device ? pith_xla_cuda_reducer(comm, 0, "comm", "ef/q:4", 1, 1, &r)
                     : pith_reducer_create_with(comm, "ef/q:4", 1, &options, &r));
  add_layers(r);
  CHECK_OK(pith_xla_bind((uint64_t)key_of(comm), comm, r));
  return r;
}

static void close_reducer(pith_comm *comm, pith_reducer *r) {
  pith_xla_unbind((uint64_t)key_of(comm));
  pith_reducer_destroy(r);
}

static rank_state *make_state(pith_comm *comm) {
  rank_state *s = calloc(1, sizeof *s);
  s->token[2] = (uint32_t)pith_comm_rank(comm);
  s->token[3] = (uint32_t)pith_comm_size(comm);
  return s;
}

static void fill(float (*gradient)[N], int rank, int step) {
  for (int i = 0; i < LAYERS * N; i++) {
    gradient[i / N][i % N] = (float)((i * 37 + rank * 11 + step * 5) % 101) - 50.0f;
  }
}

/* The operands of some layers. */
static void add_layer_buffers(fake_call *c, rank_state *s, const int64_t *layers, size_t count) {
  add_buffer(c, XLA_U32, s->token, 4);
  for (size_t k = 0; k < count; k++) {
    add_buffer(c, XLA_F32, s->gradient[layers[k]], N);
  }
  for (size_t k = 0; k < count; k++) {
    add_buffer(c, XLA_F32, s->residual[layers[k]], N);
    add_buffer(c, XLA_F32, s->result[layers[k]], N);
  }
}

static void describe_part(fake_call *c, pith_comm *comm, rank_state *s, int64_t part, int64_t *order, size_t from,
                          size_t count) {
  begin_call(c, key_of(comm));
  set_part(c, part, order + from, count, part == 0 ? order : NULL, LAYERS);
  add_layer_buffers(c, s, order + from, count);
}

static void describe_end(fake_call *c, pith_comm *comm, rank_state *s) {
  static const int64_t all[LAYERS] = {0, 1, 2, 3};
  begin_call(c, key_of(comm));
  set_part(c, PITH_XLA_FINISH, NULL, 0, NULL, 0);
  add_layer_buffers(c, s, all, LAYERS);
}

static int moves; /* XLA copies everything before the last call, and goes on with the copies */

static void finish_elsewhere(pith_comm *comm, rank_state **s, rank_state **other) {
  fake_call c;
  if (moves) {
    rank_state *before = *s;
    **other = **s;
    memset(*s, 0xff, sizeof **s);
    *s = *other;
    *other = before;
  }
  describe_end(&c, comm, *s);
  CHECK_EQ(make_call(&c, ""), 0);
}

/* Orders that differ from rank to rank are no error on a device, where groups are sent in that of rank 0; over a comm
 * each message names its layer. */
static void take_steps(pith_comm *comm, void *argument) {
  (void)argument;
  int rank = pith_comm_rank(comm);
  int64_t orders[2][LAYERS] = {{2, 0, 3, 1}, {1, 2, 3, 0}}, *order = orders[on_device ? rank % 2 : 0];
  pith_reducer *kept = NULL, *lent = bind_reducer(comm);
  rank_state *s = make_state(comm), *other = make_state(comm);
  float(*expected)[N] = calloc(LAYERS, sizeof *expected);
  CHECK_OK(pith_reducer_create(comm, "ef/q:4", 1, &kept));
  add_layers(kept);
  for (int step = 0; step < STEPS; step++) {
    fake_call c;
    fill(expected, rank, step);
    fill(s->gradient, rank, step);
    for (size_t i = 0; i < LAYERS; i++) {
      CHECK_OK(pith_reducer_start(kept, i, expected[i]));
    }
    CHECK_OK(pith_reducer_finish(kept));
    describe_part(&c, comm, s, 0, order, 0, 1);
    CHECK_EQ(make_call(&c, ""), 0);
    describe_part(&c, comm, s, 1, order, 1, 3);
    CHECK_EQ(make_call(&c, ""), 0);
    CHECK_EQ(s->token[0], (uint32_t)step);
    finish_elsewhere(comm, &s, &other);
    CHECK(memcmp(expected, s->gradient, LAYERS * sizeof *expected) == 0);
    CHECK_EQ(s->token[0], (uint32_t)step + 1);
  }
  free(s);
  free(other);
  free(expected);
  pith_reducer_destroy(kept);
  close_reducer(comm, lent);
}

TEST(steps_in_parts_have_the_bits_of_whole_ones) {
  moves = 0;
  for (int device = 0; device < 2; device++) {
    use_device(device);
    ranks_run("inproc", 3, 0, take_steps, NULL);
  }
}

TEST(steps_whose_buffers_are_moved_between_parts_have_the_same_bits) {
  moves = 1;
  for (int device = 0; device < 2; device++) {
    use_device(device);
    ranks_run("inproc", 2, 0, take_steps, NULL);
  }
}

/* The first step shows whether buffers stay: in the second one layers start with their part. */
static void start_early(pith_comm *comm, void *argument) {
  (void)argument;
  int64_t order[LAYERS] = {3, 2, 1, 0};
  pith_reducer *lent = bind_reducer(comm);
  rank_state *s = make_state(comm);
  for (int step = 0; step < 2; step++) {
    fake_call c;
    pith_layer_stats stats = PITH_LAYER_STATS_INIT;
    describe_part(&c, comm, s, 0, order, 0, 2);
    CHECK_EQ(make_call(&c, ""), 0);
    CHECK_OK(pith_reducer_layer_stats(lent, 3, &stats));
    CHECK_EQ(stats.steps, (uint64_t)(step ? 2 : 0));
    describe_part(&c, comm, s, 1, order, 2, 2);
    CHECK_EQ(make_call(&c, ""), 0);
    describe_end(&c, comm, s);
    CHECK_EQ(make_call(&c, ""), 0);
  }
  close_reducer(comm, lent);
  free(s);
}

TEST(layers_start_with_their_part_from_the_second_step_on) {
  for (int device = 0; device < 2; device++) {
    use_device(device);
    ranks_run("inproc", 1, 0, start_early, NULL);
  }
}

/* ---- What is refused --------------------------------------------------------------------------------------------- */

static void refuse_parts(pith_comm *comm, void *argument) {
  int64_t order[LAYERS] = {3, 2, 1, 0}, twice[LAYERS] = {3, 3, 1, 0}, beyond[LAYERS] = {9, 2, 1, 0};
  pith_reducer *lent = bind_reducer(comm);
  rank_state *s = make_state(comm), *moved = make_state(comm);
  fake_call c;
  switch (*(const int *)argument) {
    case 0:
      describe_part(&c, comm, s, 1, order, 1, 3);
      CHECK_EQ(make_call(&c, "part 1 of an allreduce comes after 0 others"), XLA_FAILED_PRECONDITION);
      break;
    case 1:
      describe_part(&c, comm, s, 0, order, 0, 1);
      CHECK_EQ(make_call(&c, ""), 0);
      describe_part(&c, comm, s, 0, order, 0, 1);
      CHECK_EQ(make_call(&c, "two allreduces of one comm are under way at once"), XLA_FAILED_PRECONDITION);
      break;
    case 2:
      describe_part(&c, comm, s, 0, order, 0, 1);
      CHECK_EQ(make_call(&c, ""), 0);
      describe_end(&c, comm, s);
      CHECK_EQ(make_call(&c, "an allreduce ends, and buffer 1 has not come"), XLA_FAILED_PRECONDITION);
      break;
    case 3:
      describe_part(&c, comm, s, 0, order, 0, 4);
      CHECK_EQ(make_call(&c, ""), 0);
      describe_end(&c, comm, s); /* they stay in the first step … */
      CHECK_EQ(make_call(&c, ""), 0);
      describe_part(&c, comm, s, 0, order, 0, 4);
      CHECK_EQ(make_call(&c, ""), 0);
      describe_end(&c, comm, moved); /* … and do not in the second */
      CHECK_EQ(make_call(&c, "XLA moved 12 of 12 buffers of an allreduce"), XLA_FAILED_PRECONDITION);
      break;
    case 4:
      describe_part(&c, comm, s, 0, order, 0, 1);
      c.array[0].data = beyond;
      CHECK_EQ(make_call(&c, "the foreign call starts layer 9, and there are 4"), XLA_INVALID_ARGUMENT);
      break;
    default:
      describe_part(&c, comm, s, 0, order, 0, 1);
      c.array[1].data = twice;
      CHECK_EQ(make_call(&c, on_device ? "the order of layers has number 3, which is twice" : ""),
               on_device ? XLA_INVALID_ARGUMENT : 0);
      break;
  }
  close_reducer(comm, lent);
  free(s);
  free(moved);
}

TEST(parts_that_do_not_fit_are_errors) {
  for (int device = 0; device < 2; device++) {
    use_device(device);
    for (int mistake = 0; mistake < 6; mistake++) {
      ranks_run("inproc", 1, 0, refuse_parts, &mistake);
    }
  }
}

/* The other rank waits for parts that never come, and learns why. */
static void fail_between(pith_comm *comm, void *argument) {
  (void)argument;
  int64_t order[LAYERS] = {3, 2, 1, 0};
  int rank = pith_comm_rank(comm);
  pith_reducer *lent = bind_reducer(comm);
  rank_state *s = make_state(comm);
  fake_call c;
  for (int step = 0; step < 2; step++) {
    describe_part(&c, comm, s, 0, order, 0, 2);
    CHECK_EQ(make_call(&c, ""), 0);
    if (step == 0) {
      describe_part(&c, comm, s, 1, order, 2, 2);
      CHECK_EQ(make_call(&c, ""), 0);
      describe_end(&c, comm, s);
      CHECK_EQ(make_call(&c, ""), 0);
    }
  }
  CHECK_OK(pith_barrier(comm, NULL)); /* the first part has come on both */
  describe_part(&c, comm, s, 1, order, 2, 2);
  c.dims[1] -= rank; /* the wrong size on rank 1 */
  int code = make_call(&c, rank ? "operand 1 of the foreign call has 8188 bytes" : NULL);
  if (code == 0) {
    describe_end(&c, comm, s);
    code = make_call(&c, "rank 1");
  }
  CHECK(code != 0);
  close_reducer(comm, lent);
  free(s);
}

TEST(a_part_that_fails_ends_the_step_on_all_ranks) {
  for (int device = 0; device < 2; device++) {
    use_device(device);
    ranks_run("inproc", 2, 0, fail_between, NULL);
  }
}
