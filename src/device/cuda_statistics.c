/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Statistics of a gradient where it is, on the device: what src/profile/error_table.c does in main memory, for the same
 * values and the same samples. All of it is enqueued on the reducer's stream behind the gradient, and before anything
 * that changes the gradient; a table of a few KiB is copied to pinned memory behind it, with an event behind that,
 * for which no step waits.
 *
 *  - magnitudes.cu counts bins and adds up the norm; of these the device keeps the energies that were asked for;
 *  - block codecs see a sample, as f32: uniform levels of all widths in one pass (errors.cu), any other codec encodes
 *    and decodes it, and the difference is squared;
 *  - low rank runs in a copy of the layer's sketch, which is kept if the gradient was finite;
 *  - codecs of whole tensors encode and decode the gradient.
 */
#include "device/cuda_statistics.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "codec/codec.h"
#include "device/cuda_tasks.h"

#define ALIGNMENT 256
#define NAMED 3 /* finite, norm, top: the first numbers of a table */
#define UNIFORM 32
#define TIMED_MOST 8
#define TIMED_RUNS 3
#define TIMED_VALUES ((size_t)1 << 21) /* most that are encoded to time a codec */
#define TIMED_ROWS 1024
#define NUMBERS (NAMED + UNIFORM + 2 * PITH_CANDIDATES_MAX + PITH_COLUMNS_MAX + TIMED_MOST * TIMED_RUNS * 3)
#define SLAB 32                           /* tickets that are made at a time */
#define TOGETHER 8                        /* codecs that encode a small sample in one call, … */
#define TOGETHER_VALUES ((size_t)1 << 21) /* … of as many values in all */

/* Where what is in a table. */
typedef struct ticket {
  double *numbers; /* pinned */
  void *event;
  int is_used, is_enqueued;
  uint16_t at[PITH_CANDIDATES_MAX];   /* of a candidate's number … */
  uint16_t size[PITH_CANDIDATES_MAX]; /* … and of its bytes, where only the device knows them; 0: nowhere */
  size_t columns, stamps, timed, timed_values, count;
} ticket;

typedef struct slab {
  struct slab *next;
  void *pinned;
  ticket ticket[SLAB];
} slab;

typedef struct cuda_measurer {
  pith_measurer base; /* the first */
  pith_cuda_space *space;
  void *memory; /* of the device, for all that is enqueued, one layer after another */
  size_t room;
  slab *slabs;
  pthread_mutex_t mutex; /* of the tickets' is_used */
} cuda_measurer;

/* Places in `memory`. */
typedef struct places {
  void *statistics, *workspace, *payload, *part, *round;
  double *numbers;
  float *sample, *wide, *decoded, *memory;
  size_t workspace_size, used;
  size_t together; /* codecs that encode the sample in one call */
} places;

/* What is being enqueued. */
typedef struct job {
  cuda_measurer *self;
  const pith_cuda_module *gpu;
  const pith_measurement *m;
  pith_codec *const *timed;
  size_t timed_count;
  void *stream;
  places p;
  ticket *ticket;
} job;

/* ---- Which way --------------------------------------------------------------------------------------------------- */

/* A codec as it is without what it keeps between steps. */
static pith_codec without_memory(const pith_codec *codec) {
  pith_codec plain = *codec;
  plain.memory = NULL;
  return plain;
}

/* The place of a codec's error among those of uniform levels; -1: it is none of them. */
static int uniform_place(const pith_codec *codec) {
  pith_gpu_task task;
  pith_codec plain = without_memory(codec);
  int has_tail = codec->traits->gpu_tail_apart && codec->traits->gpu_tail_apart(codec->args);
  if (!pith__gpu_is_block(codec) || codec->transform || has_tail) {
    return -1;
  }
  pith_cuda_item item = {.size = sizeof item, .codec = &plain, .n = codec->granule};
  pith__gpu_next_task(&item, 1, 0, &task);
  int bucket = 0;
  while (bucket < 4 && 128u << bucket != task.bucket) {
    bucket++;
  }
  int fits = task.kind == PITH_WIRE_Q && task.choice == PITH_ROUND_NEAREST && bucket < 4 && task.bits <= 8;
  return fits ? 8 * bucket + task.bits - 1 : -1;
}

static size_t part_bytes(const pith_measurement *m) {
  return m->run < m->candidates ? pith_cuda_part(m->codec[m->run], m->x.n, m->ctx.rows) : 0;
}

static size_t timed_values(const pith_measurement *m) {
  size_t n = pith__least(m->x.n, TIMED_VALUES);
  return n >= TIMED_ROWS ? n / TIMED_ROWS * TIMED_ROWS : n;
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static pith_cuda_item item_of(const pith_codec *codec, const void *values, size_t n, pith_dtype dtype,
                              const pith_ctx *ctx) {
  return pith__gpu_item(codec, (pith_span){(void *)(uintptr_t)values, n, dtype}, ctx);
}

static size_t aligned(size_t bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

/* How many codecs encode n values in one call. */
static size_t together(size_t n) { return n ? pith__most(1, pith__least(TOGETHER, TOGETHER_VALUES / n)) : 1; }

/* What encoding and decoding by `count` codecs like this one needs, at most. */
static void need_trips(const pith_codec *codec, size_t n, const pith_ctx *ctx, size_t count, size_t *payload,
                       size_t *workspace) {
  pith_cuda_item item = item_of(codec, NULL, n, PITH_F32, ctx);
  *payload = pith__most(*payload, count * aligned(pith_codec_bound(codec, n)));
  *workspace = pith__most(*workspace, count * pith_cuda_workspace(&item, 1));
}

static void *take_place(places *p, void *memory, size_t bytes) {
  void *at = memory ? (uint8_t *)memory + p->used : NULL;
  p->used += aligned(bytes);
  return bytes ? at : NULL;
}

static pith_ctx timed_ctx(const job *j) {
  pith_ctx ctx = j->m->ctx;
  ctx.rows = timed_values(j->m) % TIMED_ROWS ? 0 : TIMED_ROWS;
  return ctx;
}

/* Sizes depend on nothing but the layer, the codecs and the sample's length. */
static places lay_out(const job *j, void *memory) {
  const pith_measurement *m = j->m;
  size_t payload = 0, workspace = 0, decoded = 0, wide = 0, sample = m->piece * (m->x.n / m->piece / m->stride + 2);
  size_t timed = j->timed_count ? timed_values(m) : 0, part = part_bytes(m), round = 0;
  for (size_t c = 0; c < m->candidates; c++) {
    pith_codec plain = without_memory(m->codec[c]);
    if (m->by[c] == PITH_BY_PIECES && uniform_place(m->codec[c]) < 0) {
      need_trips(&plain, sample, &m->ctx, together(sample), &payload, &workspace);
      decoded = pith__most(decoded, together(sample) * sample);
    } else if (m->by[c] == PITH_BY_ENCODING) {
      need_trips(&plain, m->x.n, &m->ctx, 1, &payload, &workspace);
      decoded = pith__most(decoded, m->x.n + ALIGNMENT);
      wide = m->x.dtype == PITH_F32 ? 0 : m->x.n;
    }
  }
  if (part) {
    pith_codec plain = without_memory(m->codec[m->run]);
    pith_cuda_item item = item_of(&plain, NULL, m->x.n, m->x.dtype, &m->ctx);
    workspace = pith__most(workspace, pith_cuda_workspace(&item, 1));
    round = part; /* a round has P or Q, the part both */
  }
  for (size_t k = 0; k < j->timed_count; k++) {
    pith_ctx ctx = timed_ctx(j);
    if (j->timed[k]) {
      need_trips(j->timed[k], timed, &ctx, 1, &payload, &workspace);
      decoded = pith__most(decoded, timed);
      part = pith__most(part, pith_cuda_part(j->timed[k], timed, ctx.rows));
    }
  }
  places p = {.workspace_size = workspace, .together = together(sample)};
  p.statistics = take_place(&p, memory, PITH_GPU_STATISTICS_SPACE);
  p.numbers = take_place(&p, memory, NUMBERS * sizeof(double));
  p.workspace = take_place(&p, memory, workspace);
  p.payload = take_place(&p, memory, payload);
  p.part = take_place(&p, memory, part);
  p.round = take_place(&p, memory, round);
  p.sample = take_place(&p, memory, sample * sizeof(float));
  p.wide = take_place(&p, memory, wide * sizeof(float));
  p.decoded = take_place(&p, memory, decoded * sizeof(float));
  p.memory = take_place(&p, memory, timed * sizeof(float));
  return p;
}

/* Grows; what is enqueued so far is done with the old memory before anybody else has it, as with all memory of spaces.
 */
static pith_status find_memory(job *j) {
  cuda_measurer *self = j->self;
  size_t need = lay_out(j, NULL).used;
  if (need > self->room) {
    pith__space_release(self->base.space, self->memory);
    self->memory = NULL, self->room = 0;
    PITH_TRY(pith__space_zeros(self->base.space, need, &self->memory));
    self->room = need;
  }
  j->p = lay_out(j, self->memory);
  return PITH_OK;
}

static pith_status add_slab(cuda_measurer *self) {
  const pith_cuda_module *gpu = self->space->gpu;
  slab *s = calloc(1, sizeof *s);
  PITH_REQUIRE(s, PITH_ERR_MEMORY, "no memory for statistics");
  s->next = self->slabs;
  self->slabs = s;
  PITH_CUDA_TRY(gpu->pin, (size_t)SLAB * NUMBERS * sizeof(double), &s->pinned);
  for (size_t i = 0; i < SLAB; i++) {
    PITH_CUDA_TRY(gpu->event_create, &s->ticket[i].event);
    s->ticket[i].numbers = (double *)s->pinned + i * NUMBERS;
  }
  return PITH_OK;
}

static ticket *unused_ticket(cuda_measurer *self) {
  ticket *found = NULL;
  pthread_mutex_lock(&self->mutex);
  for (slab *s = self->slabs; s && !found; s = s->next) {
    for (size_t i = 0; i < SLAB && !found; i++) {
      found = s->ticket[i].numbers && !s->ticket[i].is_used ? &s->ticket[i] : NULL;
    }
  }
  if (found) {
    *found = (ticket){.numbers = found->numbers, .event = found->event, .is_used = 1, .count = NAMED};
  }
  pthread_mutex_unlock(&self->mutex);
  return found;
}

static pith_status find_ticket(job *j) {
  j->ticket = unused_ticket(j->self);
  if (!j->ticket) {
    PITH_TRY(add_slab(j->self));
    j->ticket = unused_ticket(j->self);
  }
  return PITH_OK;
}

/* ---- Kinds of candidates ----------------------------------------------------------------------------------------- */

/* The table's next numbers; 0 is the first one's. */
static double *next_numbers(job *j, size_t count) {
  double *at = j->p.numbers + j->ticket->count;
  j->ticket->count += count;
  return at;
}

static uint16_t place_of(const job *j, const double *number) { return (uint16_t)(number - j->p.numbers); }

static pith_status measure_magnitudes(job *j) {
  const pith_measurement *m = j->m;
  pith_gpu_magnitudes task = {.values = m->x.data,
                              .numbers = j->p.numbers,
                              .space = j->p.statistics,
                              .n = m->x.n,
                              .tops = 1,
                              .dtype = (uint8_t)m->x.dtype,
                              .top = {m->top}};
  PITH_REQUIRE(m->x.n <= PITH_GPU_WHOLE_VALUES, PITH_ERR_RANGE,
               "layer %s has %zu values; statistics on a GPU are for layers of at most %u", m->name, m->x.n,
               PITH_GPU_WHOLE_VALUES);
  for (size_t c = 0; c < m->candidates; c++) {
    if (m->by[c] == PITH_BY_LARGEST) {
      task.top[task.tops++] = m->largest[c];
      j->ticket->at[c] = place_of(j, next_numbers(j, 1)); /* magnitudes come first: they are in a row */
    }
  }
  PITH_CUDA_TRY(j->gpu->magnitudes, &task, j->stream);
  return PITH_OK;
}

static pith_status copy_values(job *j, size_t piece, size_t stride, size_t first, size_t count, float *to) {
  pith_gpu_sample task = {.values = j->m->x.data,
                          .sample = to,
                          .n = j->m->x.n,
                          .count = count,
                          .piece = (uint32_t)piece,
                          .stride = (uint32_t)stride,
                          .first = (uint32_t)first,
                          .dtype = (uint8_t)j->m->x.dtype};
  PITH_CUDA_TRY(j->gpu->sample, &task, j->stream);
  return PITH_OK;
}

/* f32 values there and back, by some candidates. */
static pith_status measure_trips(job *j, const size_t *which, size_t count, const float *x, size_t n) {
  pith_codec plain[TOGETHER];
  pith_cuda_item items[TOGETHER] = {{0}};
  pith_gpu_difference tasks[TOGETHER];
  uint8_t *payload = j->p.payload;
  float *decoded = j->p.decoded;
  size_t stride = aligned(n * sizeof(float)) / sizeof(float);
  for (size_t i = 0; i < count; payload += aligned(pith_codec_bound(&plain[i], n)), i++) {
    double *size = next_numbers(j, 1), *error = next_numbers(j, 1);
    plain[i] = without_memory(j->m->codec[which[i]]);
    int is_fixed = (plain[i].caps & PITH_CAP_FIXED) != 0;
    items[i] = item_of(&plain[i], x, n, PITH_F32, &j->m->ctx);
    items[i].payload = payload;
    items[i].payload_size = is_fixed ? NULL : (uint64_t *)(void *)size;
    tasks[i] = (pith_gpu_difference){x, decoded + i * stride, error, n};
    j->ticket->size[which[i]] = is_fixed ? 0 : place_of(j, size);
    j->ticket->at[which[i]] = place_of(j, error);
  }
  PITH_TRY(pith_cuda_encode(items, count, j->p.workspace, j->p.workspace_size, j->stream));
  for (size_t i = 0; i < count; i++) {
    items[i].values = decoded + i * stride;
  }
  PITH_TRY(pith_cuda_decode(items, count, PITH_SET, j->p.workspace, j->p.workspace_size, j->stream));
  PITH_CUDA_TRY(j->gpu->differences, tasks, count, j->p.statistics, j->stream);
  return PITH_OK;
}

static pith_status measure_sample(job *j) {
  const pith_measurement *m = j->m;
  size_t n = pith__measured_values(m), pieces = 0;
  uint32_t wanted = 0;
  for (size_t c = 0; c < m->candidates; c++) {
    int place = m->by[c] == PITH_BY_PIECES ? uniform_place(m->codec[c]) : -1;
    wanted |= place >= 0 ? 1u << place : 0;
    pieces += m->by[c] == PITH_BY_PIECES;
  }
  if (!pieces || !n) {
    return PITH_OK;
  }
  double *errors = next_numbers(j, wanted ? UNIFORM : 0);
  size_t which[TOGETHER], count = 0;
  PITH_TRY(copy_values(j, m->piece, m->stride, m->first, n, j->p.sample));
  for (size_t c = 0; c < m->candidates; c++) {
    int place = m->by[c] == PITH_BY_PIECES ? uniform_place(m->codec[c]) : -1;
    if (place >= 0) {
      j->ticket->at[c] = place_of(j, errors + place);
    } else if (m->by[c] == PITH_BY_PIECES) {
      which[count++] = c;
    }
    if (count == j->p.together || (count && c + 1 == m->candidates)) {
      PITH_TRY(measure_trips(j, which, count, j->p.sample, n));
      count = 0;
    }
  }
  if (wanted) {
    pith_gpu_uniform task = {
        .values = j->p.sample, .errors = errors, .space = j->p.statistics, .n = n, .wanted = wanted};
    PITH_CUDA_TRY(j->gpu->uniform_errors, &task, j->stream);
  }
  return PITH_OK;
}

static pith_status measure_whole(job *j) {
  const pith_measurement *m = j->m;
  const float *x = j->p.wide ? j->p.wide : m->x.data;
  PITH_TRY(j->p.wide ? copy_values(j, PITH_GPU_TASK_VALUES, 1, 0, m->x.n, j->p.wide) : PITH_OK);
  for (size_t c = 0; c < m->candidates; c++) {
    PITH_TRY(m->by[c] == PITH_BY_ENCODING ? measure_trips(j, &c, 1, x, m->x.n) : PITH_OK);
  }
  return PITH_OK;
}

/* As an exchange of one rank: P = MQ, orthonormal, and Q = MᵀP. */
static pith_status iterate(job *j, const pith_cuda_item *item) {
  PITH_TRY(pith_cuda_produce(item, 1, 0, j->p.workspace, j->p.workspace_size, j->stream));
  PITH_TRY(pith_cuda_consume(item, 1, 0, j->p.workspace, j->p.workspace_size, j->stream));
  return pith_cuda_produce(item, 1, 1, j->p.workspace, j->p.workspace_size, j->stream);
}

static pith_status measure_columns(job *j) {
  const pith_measurement *m = j->m;
  size_t part = part_bytes(m);
  if (!part) {
    return PITH_OK;
  }
  pith_codec plain = without_memory(m->codec[m->run]);
  pith_cuda_item item = item_of(&plain, m->x.data, m->x.n, m->x.dtype, &m->ctx);
  size_t length = plain.traits->nested->columns(plain.args, m->x.n, m->ctx.rows) / sizeof(float) / m->columns;
  double *energy = next_numbers(j, m->columns);
  item.part = j->p.part;
  item.payload = j->p.round;
  j->ticket->columns = place_of(j, energy);
  PITH_CUDA_TRY(j->gpu->move, j->p.part, m->sketch, part, j->stream);
  for (int i = 0; i < m->iterations; i++) {
    PITH_TRY(iterate(j, &item));
  }
  pith_gpu_difference tasks[PITH_COLUMNS_MAX];
  for (size_t k = 0; k < m->columns; k++) {
    tasks[k] = (pith_gpu_difference){(const float *)j->p.part + k * length, NULL, energy + k, length};
  }
  PITH_CUDA_TRY(j->gpu->differences, tasks, m->columns, j->p.statistics, j->stream);
  PITH_CUDA_TRY(j->gpu->keep_if, j->p.numbers, m->sketch, j->p.part, part / sizeof(float), j->stream);
  return PITH_OK;
}

/* ---- How fast codecs are ----------------------------------------------------------------------------------------- */

static pith_status time_codec(job *j, const pith_codec *codec, double *stamps) {
  pith_ctx ctx = timed_ctx(j);
  size_t n = timed_values(j->m);
  pith_cuda_item item = item_of(codec, j->m->x.data, n, j->m->x.dtype, &ctx), back;
  item.payload = j->p.payload;
  item.payload_size = (uint64_t *)(void *)(j->p.numbers + NUMBERS - 1);
  item.memory = codec->memory ? j->p.memory : NULL;
  item.part = pith_cuda_part(codec, n, ctx.rows) ? j->p.part : NULL;
  back = item;
  back.values = j->p.decoded, back.dtype = PITH_F32, back.memory = NULL, back.part = NULL;
  PITH_CUDA_TRY(j->gpu->clear, j->p.memory, n * sizeof(float), j->stream);
  for (size_t run = 0; run < TIMED_RUNS; run++, stamps += 3) {
    PITH_CUDA_TRY(j->gpu->stamp, &stamps[0], j->stream);
    PITH_TRY(pith_cuda_encode(&item, 1, j->p.workspace, j->p.workspace_size, j->stream));
    PITH_CUDA_TRY(j->gpu->stamp, &stamps[1], j->stream);
    PITH_TRY(pith_cuda_decode(&back, 1, PITH_SET, j->p.workspace, j->p.workspace_size, j->stream));
    PITH_CUDA_TRY(j->gpu->stamp, &stamps[2], j->stream);
  }
  return PITH_OK;
}

static pith_status time_codecs(job *j) {
  double *stamps = next_numbers(j, j->timed_count * TIMED_RUNS * 3);
  j->ticket->stamps = place_of(j, stamps);
  j->ticket->timed = j->timed_count;
  j->ticket->timed_values = timed_values(j->m);
  for (size_t k = 0; k < j->timed_count; k++, stamps += TIMED_RUNS * 3) {
    PITH_TRY(j->timed[k] ? time_codec(j, j->timed[k], stamps) : PITH_OK);
  }
  return PITH_OK;
}

/* An encoding and two decodings, as src/adapt/adapt_worker.c times them; the fastest run. */
static double seconds_of(const ticket *t, size_t k) {
  double best = 0;
  for (size_t run = 0; run < TIMED_RUNS; run++) {
    const double *stamps = t->numbers + t->stamps + (k * TIMED_RUNS + run) * 3;
    double seconds = 1e-9 * (stamps[1] - stamps[0] + 2 * (stamps[2] - stamps[1]));
    best = run == 0 || seconds < best ? seconds : best;
  }
  return best > 0 ? best / (double)t->timed_values : 0;
}

/* ---- The measurer ------------------------------------------------------------------------------------------------ */

static cuda_measurer *measurer_of(pith_measurer *base) { return (cuda_measurer *)base; }

static pith_status enqueue(job *j) {
  PITH_TRY(find_memory(j));
  PITH_CUDA_TRY(j->gpu->clear, j->p.numbers, NUMBERS * sizeof(double), j->stream);
  PITH_TRY(measure_magnitudes(j));
  PITH_TRY(measure_sample(j));
  PITH_TRY(measure_columns(j));
  PITH_TRY(measure_whole(j));
  PITH_TRY(j->timed_count ? time_codecs(j) : PITH_OK);
  PITH_CUDA_TRY(j->gpu->to_host, j->ticket->numbers, j->p.numbers, j->ticket->count * sizeof(double), j->stream);
  j->ticket->is_enqueued = 1;
  PITH_CUDA_TRY(j->gpu->event_record, j->ticket->event, j->stream);
  return PITH_OK;
}

static void drop(pith_measurer *base, void *given) {
  cuda_measurer *self = measurer_of(base);
  pthread_mutex_lock(&self->mutex);
  ((ticket *)given)->is_used = 0;
  pthread_mutex_unlock(&self->mutex);
}

static pith_status begin(pith_measurer *base, const pith_measurement *m, pith_codec *const *timed, size_t count,
                         void **made) {
  cuda_measurer *self = measurer_of(base);
  job j = {.self = self,
           .gpu = self->space->gpu,
           .m = m,
           .timed = timed,
           .timed_count = pith__least(count, TIMED_MOST),
           .stream = self->space->stream};
  PITH_TRY(find_ticket(&j));
  pith_status status = enqueue(&j);
  if (status != PITH_OK) {
    drop(base, j.ticket);
    return status;
  }
  *made = j.ticket;
  return PITH_OK;
}

static pith_status poll(pith_measurer *base, void *given, int *is_done) {
  cuda_measurer *self = measurer_of(base);
  ticket *t = given;
  PITH_TRY(pith__cuda_space_enter(self->space));
  PITH_CUDA_TRY(self->space->gpu->event_done, t->event, is_done);
  return PITH_OK;
}

static void take(pith_measurer *base, void *given, const pith_measurement *m, pith_measured *found, double *seconds) {
  const ticket *t = given;
  (void)base;
  memset(found, 0, sizeof *found);
  found->finite = t->numbers[0] != 0;
  found->norm = t->numbers[1];
  found->top = t->numbers[2];
  for (size_t c = 0; c < m->candidates; c++) {
    found->error[c] = t->at[c] ? t->numbers[t->at[c]] : 0;
    uint64_t size = 0;
    if (t->size[c]) {
      memcpy(&size, &t->numbers[t->size[c]], sizeof size);
    } else if (m->by[c] == PITH_BY_ENCODING) {
      size = pith_codec_bound(m->codec[c], m->x.n);
    }
    found->bytes[c] = m->by[c] == PITH_BY_PIECES && !t->size[c] ? pith__measured_bytes(m, c) : (double)size;
  }
  for (size_t k = 0; t->columns && k < m->columns; k++) {
    found->energy[k] = t->numbers[t->columns + k];
  }
  for (size_t k = 0; k < t->timed; k++) {
    seconds[k] = seconds_of(t, k);
  }
}

static pith_status add(pith_measurer *base, pith_cspan x, float *sum) {
  const pith_cuda_space *space = measurer_of(base)->space;
  pith_ctx ctx = PITH_CTX_INIT;
  pith_cuda_item item = item_of(space->raw, x.data, x.n, x.dtype, &ctx);
  item.payload = sum;
  for (size_t first = 0; first < x.n;) {
    pith_gpu_own task;
    first += pith__gpu_next_own(&item, 1, first, &task);
    PITH_CUDA_TRY(space->gpu->own, &task, 1, space->stream);
  }
  return PITH_OK;
}

/* Pinned memory that the device has yet to write to stays: a rank that waits for a dead one must not wait here. */
static void destroy_slab(cuda_measurer *self, slab *s) {
  const pith_cuda_module *gpu = self->space->gpu;
  int all_done = 1;
  for (size_t i = 0; i < SLAB; i++) {
    char text[256];
    int is_done = 1;
    if (s->ticket[i].is_enqueued && gpu->event_done(s->ticket[i].event, &is_done, text)) {
      is_done = 1; /* a device that failed writes no more */
    }
    all_done &= is_done;
    if (s->ticket[i].event) {
      gpu->event_destroy(s->ticket[i].event);
    }
  }
  if (s->pinned && all_done) {
    gpu->unpin(s->pinned);
  }
  free(s);
}

static void destroy(pith_measurer *base) {
  cuda_measurer *self = measurer_of(base);
  while (self->slabs) {
    slab *s = self->slabs;
    self->slabs = s->next;
    destroy_slab(self, s);
  }
  pith__space_release(base->space, self->memory);
  pthread_mutex_destroy(&self->mutex);
  free(self);
}

pith_status pith__cuda_measurer_create(pith_cuda_space *space, pith_measurer **made) {
  cuda_measurer *self = calloc(1, sizeof *self);
  PITH_REQUIRE(self, PITH_ERR_MEMORY, "no memory for statistics");
  self->base = (pith_measurer){&space->base, begin, poll, take, drop, add, destroy};
  self->space = space;
  pthread_mutex_init(&self->mutex, NULL);
  *made = &self->base;
  return PITH_OK;
}
