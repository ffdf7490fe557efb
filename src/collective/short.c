/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Short tensors: every rank gets the values of all ranks, and reduces them in rank order. So the bits are those of the
 * long way.
 *
 * Few ranks send each other all they have, in one step. Many would have too many messages: there, as Bruck's algorithm
 * does, a rank passes on all that it has got so far, to a rank twice as far away in every step. That takes ⌈log₂ N⌉
 * steps and messages for as many bytes.
 */
#include <string.h>

#include "collective/job.h"

#define DIRECT_RANKS 32
#define DIRECT_SENT ((size_t)16 << 10) /* bytes that a rank sends at most */
#define BRUCK_SENT ((size_t)64 << 10)

int pith__is_bruck(size_t bytes, int ranks) {
  return bytes && ranks > DIRECT_RANKS && bytes <= BRUCK_SENT / (size_t)(ranks - 1);
}

int pith__is_short(size_t bytes, int ranks) {
  return pith__is_bruck(bytes, ranks) || (bytes && ranks > 1 && bytes <= DIRECT_SENT / (size_t)(ranks - 1));
}

uint32_t pith__add_bruck(pith_job *job, uint8_t *blocks, size_t bytes, unsigned phase, uint32_t before) {
  pith_schedule *s = &job->schedule;
  uint32_t last = before;
  for (int have = 1, round = 0; have < job->ranks; have *= 2, round++) {
    int more = have < job->ranks - have ? have : job->ranks - have;
    int to = (job->rank + job->ranks - have) % job->ranks, from = (job->rank + have) % job->ranks;
    uint32_t tag = PITH_TAG(phase, round);
    pith__schedule_send(s, to, tag, pith__schedule_piece_over(s, blocks, (size_t)more * bytes), last);
    last = pith__schedule_receive(
        s, from, tag, pith__schedule_piece_over(s, blocks + (size_t)have * bytes, (size_t)more * bytes), last);
  }
  return last;
}

/* task->values to the piece. */
static pith_status work_copy(pith_job *job, const pith_task *task) {
  (void)job;
  memcpy(task->piece->data, task->values, task->piece->size);
  return PITH_OK;
}

uint32_t pith__add_bruck_copy(pith_job *job, uint8_t *blocks, const void *own, size_t bytes, size_t n,
                              uint32_t before) {
  return pith__schedule_work(&job->schedule,
                             (pith_task){.work = work_copy,
                                         .effort = PITH_EFFORT_SUM,
                                         .piece = pith__schedule_piece_over(&job->schedule, blocks, bytes),
                                         .n = n,
                                         .values = (void *)(uintptr_t)own},
                             before);
}

/* In one step; the sends are done when the result is: dst may be src. */
static void add_direct(pith_job *job, const pith_raw *raw, unsigned phase, uint8_t *staging, size_t bytes,
                       const pith_reduction *r, uint32_t reduce, uint32_t before) {
  pith_schedule *s = &job->schedule;
  pith_piece *own = pith__schedule_piece_over(s, (void *)(uintptr_t)raw->src, bytes);
  r->sources[job->rank] = raw->src;
  for (int step = 1; step < job->ranks; step++) {
    int to = pith__peer_at(job, step), from = pith__peer_at(job, job->ranks - step);
    uint8_t *into = staging + (size_t)from * bytes;
    r->sources[from] = into;
    pith__schedule_after(s, reduce, pith__schedule_send(s, to, PITH_TAG(phase, 0), own, before));
    pith__schedule_after(
        s, reduce,
        pith__schedule_receive(s, from, PITH_TAG(phase, 0), pith__schedule_piece_over(s, into, bytes), before));
  }
}

uint32_t pith__add_allreduce_short(pith_job *job, const pith_raw *raw, unsigned phase, uint32_t before) {
  pith_schedule *s = &job->schedule;
  size_t bytes = raw->n * pith_dtype_size(raw->dtype);
  pith_reduction *r = pith__schedule_reduction(job, raw->dtype, raw->reduce, job->ranks, raw->dst);
  uint8_t *staging = pith__schedule_buffer(s, (size_t)job->ranks, bytes);
  if (!r || !staging) {
    return PITH_NO_TASK;
  }
  uint32_t reduce = pith__schedule_work(
      s,
      (pith_task){.work = pith__work_reduce, .effort = PITH_EFFORT_SUM, .passes = job->ranks, .n = raw->n, .values = r},
      before);
  if (!pith__is_bruck(bytes, job->ranks)) {
    add_direct(job, raw, phase, staging, bytes, r, reduce, before);
    return reduce;
  }
  uint32_t copied = pith__add_bruck_copy(job, staging, raw->src, bytes, raw->n, before);
  for (int p = 0; p < job->ranks; p++) {
    r->sources[(job->rank + p) % job->ranks] = staging + (size_t)p * bytes;
  }
  pith__schedule_after(s, reduce, pith__add_bruck(job, staging, bytes, phase, copied));
  return reduce;
}
