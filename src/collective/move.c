/* SPDX-License-Identifier: Apache-2.0 */
/* Operations that move values without reducing them: all-gather, broadcast, all-to-all, gather, scatter, barrier. */
#include <string.h>

#include "base/size.h"
#include "base/split.h"
#include "collective/job.h"

enum { PHASE_MOVE };

static pith_piece *piece_of(pith_job *job, const void *data, size_t first, size_t n, pith_dtype dtype) {
  size_t width = pith_dtype_size(dtype);
  return pith__schedule_piece_over(&job->schedule, (uint8_t *)(uintptr_t)data + first * width, n * width);
}

/* task->values is where to copy from, task->piece where to. */
static pith_status work_copy(pith_job *job, const pith_task *task) {
  (void)job;
  memmove(task->piece->data, task->values, task->piece->size);
  return PITH_OK;
}

static void add_copy(pith_job *job, const void *from, pith_piece *to) {
  if (to && to->size && from != to->data) {
    pith__schedule_work(&job->schedule, (pith_task){.work = work_copy, .piece = to, .values = (void *)(uintptr_t)from},
                        PITH_NO_TASK);
  }
}

static pith_status work_copy_all(pith_job *job, const pith_task *task) {
  (void)task;
  memmove(job->dst.data, job->src.data, job->dst.n * pith_dtype_size(job->dst.dtype));
  int is_vote = job->codec && (job->codec->caps & PITH_CAP_VOTE);
  return is_vote ? pith_aggregate(job->codec, job->dst, &(pith_ctx)PITH_CTX_INIT) : PITH_OK;
}

pith_status pith__schedule_copy(pith_job *job) {
  if (job->src.n) {
    pith__schedule_add(
        &job->schedule,
        (pith_task){.kind = PITH_TASK_WORK, .work = work_copy_all, .n = job->src.n, .effort = PITH_EFFORT_SUM});
  }
  return pith__schedule_finished(job);
}

/* Empty messages are not sent: both sides know the counts. */
static void add_send(pith_job *job, int peer, pith_piece *piece) {
  if (piece && piece->size) {
    pith__schedule_send(&job->schedule, peer, PITH_TAG(PHASE_MOVE, 0), piece, PITH_NO_TASK);
  }
}

static void add_receive(pith_job *job, int peer, pith_piece *piece) {
  if (piece && piece->size) {
    pith__schedule_receive(&job->schedule, peer, PITH_TAG(PHASE_MOVE, 0), piece, PITH_NO_TASK);
  }
}

/* ---- All-gather -------------------------------------------------------------------------------------------------- */

/* Every rank decodes the payloads of all ranks, its own too: all hold the same values. */
static void all_gather_encoded(pith_job *job, const size_t *counts) {
  pith_schedule *s = &job->schedule;
  pith_piece *own = pith__piece_for(job, job->src.n);
  uint32_t encode = pith__schedule_work(
      &job->schedule, (pith_task){.work = pith__work_encode, .piece = own, .n = job->src.n}, PITH_NO_TASK);
  for (int step = 1; step < job->ranks; step++) {
    pith__schedule_send(s, pith__peer_at(job, step), PITH_TAG(PHASE_MOVE, 0), own, encode);
  }
  for (int p = 0; p < job->ranks; p++) {
    pith_piece *piece = p == job->rank ? own : pith__piece_for(job, counts[p]);
    uint32_t arrived =
        p == job->rank ? encode : pith__schedule_receive(s, p, PITH_TAG(PHASE_MOVE, 0), piece, PITH_NO_TASK);
    uint32_t decode = pith__schedule_work(
        &job->schedule,
        (pith_task){
            .work = pith__work_decode_to_dst, .peer = p, .piece = piece, .n = counts[p], .at = pith__sum(counts, p)},
        arrived);
    pith__schedule_after(s, decode, encode); /* src may lie in dst */
  }
}

/* Whether all parts are short, equal, and of many ranks: then they are passed on, as in short.c. */
static int is_passed_on(const pith_job *job, const size_t *counts) {
  for (int p = 0; p < job->ranks; p++) {
    if (counts[p] != counts[0]) {
      return 0;
    }
  }
  return pith__is_bruck(counts[0] * pith_dtype_size(job->src.dtype), job->ranks);
}

static void pass_on(pith_job *job, size_t count) {
  pith_schedule *s = &job->schedule;
  size_t bytes = count * pith_dtype_size(job->src.dtype);
  uint8_t *blocks = pith__schedule_buffer(s, (size_t)job->ranks, bytes);
  if (blocks) {
    uint32_t copied = pith__add_bruck_copy(job, blocks, job->src.data, bytes, count, PITH_NO_TASK);
    uint32_t ready = pith__add_bruck(job, blocks, bytes, PHASE_MOVE, copied);
    for (int p = 0; p < job->ranks; p++) {
      pith_piece *to =
          piece_of(job, job->dst.data, (size_t)((job->rank + p) % job->ranks) * count, count, job->src.dtype);
      pith__schedule_work(s, (pith_task){.work = work_copy, .piece = to, .values = blocks + (size_t)p * bytes}, ready);
    }
  }
}

pith_status pith__all_gather(pith_job *job, const size_t *counts) {
  if (job->ranks == 1) {
    return pith__schedule_copy(job);
  }
  if (job->codec) {
    all_gather_encoded(job, counts);
    return pith__schedule_finished(job);
  }
  if (is_passed_on(job, counts)) {
    pass_on(job, counts[0]);
    return pith__schedule_finished(job);
  }
  pith_dtype dtype = job->src.dtype;
  add_copy(job, job->src.data, piece_of(job, job->dst.data, pith__sum(counts, job->rank), job->src.n, dtype));
  for (int step = 1; step < job->ranks; step++) {
    int to = pith__peer_at(job, step), from = pith__peer_at(job, job->ranks - step);
    add_send(job, to, piece_of(job, job->src.data, 0, job->src.n, dtype));
    add_receive(job, from, piece_of(job, job->dst.data, pith__sum(counts, from), counts[from], dtype));
  }
  return pith__schedule_finished(job);
}

/* ---- Broadcast: a binomial tree, chunk after chunk --------------------------------------------------------------- */

/* Ranks count from the root; the parent of v is v without its highest bit. */
static int parent_of(int v) {
  int bit = 1;
  while (2 * bit <= v) {
    bit *= 2;
  }
  return v - bit;
}

static void add_broadcast_piece(pith_job *job, int root, uint32_t tag, pith_piece *piece, uint32_t ready) {
  int v = (job->rank - root + job->ranks) % job->ranks, bit = 1;
  while (bit <= v) {
    bit *= 2;
  }
  for (; v + bit < job->ranks; bit *= 2) {
    pith__schedule_send(&job->schedule, (v + bit + root) % job->ranks, tag, piece, ready);
  }
}

static uint32_t add_broadcast_arrival(pith_job *job, int root, uint32_t tag, pith_piece *piece) {
  int v = (job->rank - root + job->ranks) % job->ranks;
  return pith__schedule_receive(&job->schedule, (parent_of(v) + root) % job->ranks, tag, piece, PITH_NO_TASK);
}

static void broadcast_encoded(pith_job *job, int root) {
  pith_piece *piece = pith__piece_for(job, job->src.n);
  uint32_t tag = PITH_TAG(PHASE_MOVE, 0), ready;
  if (job->rank == root) {
    ready = pith__schedule_work(&job->schedule, (pith_task){.work = pith__work_encode, .piece = piece, .n = job->src.n},
                                PITH_NO_TASK);
  } else {
    ready = add_broadcast_arrival(job, root, tag, piece);
  }
  add_broadcast_piece(job, root, tag, piece, ready);
  pith__schedule_work(&job->schedule,
                      (pith_task){.work = pith__work_decode_to_dst, .peer = root, .piece = piece, .n = job->src.n},
                      ready);
}

pith_status pith__broadcast(pith_job *job, int root) {
  if (job->codec) {
    broadcast_encoded(job, root);
    return pith__schedule_finished(job);
  }
  size_t width = pith_dtype_size(job->dst.dtype), chunk = job->chunk / width ? job->chunk / width : 1;
  for (size_t first = 0, number = 0; first < job->dst.n; first += chunk, number++) {
    size_t n = chunk < job->dst.n - first ? chunk : job->dst.n - first;
    uint32_t tag = PITH_TAG(PHASE_MOVE, number);
    pith_piece *piece = piece_of(job, job->dst.data, first, n, job->dst.dtype);
    uint32_t ready = job->rank == root ? PITH_NO_TASK : add_broadcast_arrival(job, root, tag, piece);
    add_broadcast_piece(job, root, tag, piece, ready);
  }
  return pith__schedule_finished(job);
}

/* ---- All-to-all, gather, scatter, barrier ------------------------------------------------------------------------ */

pith_status pith__all_to_all(pith_job *job, const size_t *send, const size_t *receive) {
  pith_dtype dtype = job->src.dtype;
  size_t width = pith_dtype_size(dtype);
  const uint8_t *own = (const uint8_t *)job->src.data + pith__sum(send, job->rank) * width;
  add_copy(job, own, piece_of(job, job->dst.data, pith__sum(receive, job->rank), receive[job->rank], dtype));
  for (int step = 1; step < job->ranks; step++) {
    int to = pith__peer_at(job, step), from = pith__peer_at(job, job->ranks - step);
    add_send(job, to, piece_of(job, job->src.data, pith__sum(send, to), send[to], dtype));
    add_receive(job, from, piece_of(job, job->dst.data, pith__sum(receive, from), receive[from], dtype));
  }
  return pith__schedule_finished(job);
}

pith_status pith__gather(pith_job *job, const size_t *counts, int root) {
  pith_dtype dtype = job->src.dtype;
  if (job->rank != root) {
    add_send(job, root, piece_of(job, job->src.data, 0, job->src.n, dtype));
    return pith__schedule_finished(job);
  }
  for (int p = 0; p < job->ranks; p++) {
    pith_piece *piece = piece_of(job, job->dst.data, pith__sum(counts, p), counts[p], dtype);
    if (p == root) {
      add_copy(job, job->src.data, piece);
    } else {
      add_receive(job, p, piece);
    }
  }
  return pith__schedule_finished(job);
}

pith_status pith__scatter(pith_job *job, const size_t *counts, int root) {
  pith_dtype dtype = job->dst.dtype;
  if (job->rank != root) {
    add_receive(job, root, piece_of(job, job->dst.data, 0, job->dst.n, dtype));
    return pith__schedule_finished(job);
  }
  for (int p = 0; p < job->ranks; p++) {
    pith_piece *piece = piece_of(job, job->src.data, pith__sum(counts, p), counts[p], dtype);
    if (p == root && piece) {
      add_copy(job, piece->data, piece_of(job, job->dst.data, 0, job->dst.n, dtype));
    } else {
      add_send(job, p, piece);
    }
  }
  return pith__schedule_finished(job);
}

/* In round k every rank tells the rank 2^k further on that all ranks up to here have come. */
pith_status pith__barrier(pith_job *job) {
  uint32_t last = PITH_NO_TASK;
  for (int distance = 1, round = 0; distance < job->ranks; distance *= 2, round++) {
    int to = (job->rank + distance) % job->ranks, from = (job->rank - distance + job->ranks) % job->ranks;
    uint32_t tag = PITH_TAG(PHASE_MOVE, round);
    pith__schedule_send(&job->schedule, to, tag, pith__schedule_piece(&job->schedule, 0), last);
    last = pith__schedule_receive(&job->schedule, from, tag, pith__schedule_piece(&job->schedule, 0), last);
  }
  return pith__schedule_finished(job);
}
