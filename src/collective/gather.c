/*
 * Allreduce with codecs that need the whole tensor: everybody gets the payloads of all and adds them up in the same
 * order.
 *
 * With hosts, the first rank of each adds up its host's values, encodes the sum and passes the payloads of all hosts
 * on.
 */
#include "collective/job.h"

enum { PHASE_GATHER, PHASE_UP, PHASE_DOWN };

/* A place where the payloads of all hosts meet. */
typedef struct meeting {
  float *sum; /* dst itself if it can be: what is written there comes after all that is read from src */
  uint32_t last;
} meeting;

static void add_decode(pith_job *job, meeting *m, int host, int leader, pith_piece *piece, uint32_t arrived) {
  uint32_t decode = pith__add_work(job,
                                   (pith_task){.work = pith__work_decode,
                                               .peer = leader,
                                               .piece = piece,
                                               .n = job->src.n,
                                               .values = m->sum,
                                               .mode = host ? PITH_ADD : PITH_SET},
                                   arrived);
  pith__schedule_after(&job->schedule, decode, m->last);
  m->last = decode;
}

static pith_piece *add_encoded(pith_job *job, int crowded, float *sum, uint32_t *encoded) {
  pith_range all = {0, job->src.n};
  pith_piece *own = pith__piece_for(job, all.n);
  uint32_t summed = crowded ? pith__add_inside_sum(job, all, PITH_TAG(PHASE_UP, 0), sum, PITH_NO_TASK) : PITH_NO_TASK;
  *encoded = pith__add_work(
      job, (pith_task){.work = pith__work_encode, .piece = own, .n = all.n, .values = crowded ? sum : NULL}, summed);
  return own;
}

/* The first rank of a host. */
static void add_leader(pith_job *job, meeting *m, int host) {
  pith_schedule *s = &job->schedule;
  const pith_layout *layout = job->layout;
  uint32_t encoded;
  pith_piece *own = add_encoded(job, pith__layout_members(layout, host) > 1, m->sum, &encoded);
  for (int step = 1; step < layout->hosts; step++) {
    pith__schedule_send(s, pith__layout_rank(layout, (host + step) % layout->hosts, 0), PITH_TAG(PHASE_GATHER, 0), own,
                        encoded);
  }
  m->last = encoded;
  for (int h = 0; h < layout->hosts; h++) {
    int leader = pith__layout_rank(layout, h, 0);
    pith_piece *piece = h == host ? own : pith__piece_for(job, job->src.n);
    uint32_t arrived =
        h == host ? encoded : pith__schedule_receive(s, leader, PITH_TAG(PHASE_GATHER, 0), piece, PITH_NO_TASK);
    pith__add_inside_copies(job, PITH_TAG(PHASE_DOWN, h), piece, arrived);
    add_decode(job, m, h, leader, piece, arrived);
  }
}

static void add_follower(pith_job *job, meeting *m, int host) {
  const pith_layout *layout = job->layout;
  int first = pith__layout_rank(layout, host, 0);
  m->last = pith__add_inside_send(job, first, (pith_range){0, job->src.n}, PITH_TAG(PHASE_UP, 0), PITH_NO_TASK);
  for (int h = 0; h < layout->hosts; h++) {
    pith_piece *piece = pith__piece_for(job, job->src.n);
    uint32_t arrived = pith__schedule_receive(&job->schedule, first, PITH_TAG(PHASE_DOWN, h), piece, PITH_NO_TASK);
    add_decode(job, m, h, pith__layout_rank(layout, h, 0), piece, arrived);
  }
}

pith_status pith__allreduce_gather(pith_job *job) {
  int crowded = job->layout->hosts < job->ranks, in_dst = job->dst.dtype == PITH_F32 && !crowded;
  meeting m = {in_dst ? job->dst.data : pith__schedule_take(&job->schedule, job->src.n ? job->src.n : 1, sizeof(float)),
               PITH_NO_TASK};
  int host = job->layout->host[job->rank];
  if (job->layout->place[job->rank] == 0) {
    add_leader(job, &m, host);
  } else {
    add_follower(job, &m, host);
  }
  pith__add_work(job, (pith_task){.work = pith__work_store_result, .n = job->src.n, .values = m.sum}, m.last);
  return pith__schedule_finished(job);
}
