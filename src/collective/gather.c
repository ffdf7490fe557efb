/*
 * Allreduce with codecs that need the whole tensor: every rank gets the payloads of all ranks and adds them up in
 * the same order.
 *
 * Hierarchically, the first rank of each host is its leader: it adds up the values of its host, encodes the sum, and
 * passes the payloads of all hosts on.
 */
#include "collective/job.h"

enum { PHASE_GATHER, PHASE_UP, PHASE_DOWN };

/* The sum of the payloads so far. */
typedef struct running_sum {
  float *sum;    /* dst itself if it can be: what is written there comes after all that is read from src */
  uint32_t last; /* the last task that writes to it */
} running_sum;

static void add_decode(pith_job *job, running_sum *r, int host, int leader, pith_piece *piece, uint32_t arrived) {
  uint32_t decode = pith__add_work(job,
                                   (pith_task){.work = pith__work_decode,
                                               .peer = leader,
                                               .piece = piece,
                                               .n = job->src.n,
                                               .values = r->sum,
                                               .mode = host ? PITH_ADD : PITH_SET},
                                   arrived);
  pith__schedule_after(&job->schedule, decode, r->last);
  r->last = decode;
}

static pith_piece *add_encoded(pith_job *job, int crowded, float *sum, uint32_t *encoded) {
  pith_range all = {0, job->src.n};
  pith_piece *own = pith__piece_for(job, all.n);
  uint32_t summed =
      crowded ? pith__add_intra_host_sum(job, all, PITH_TAG(PHASE_UP, 0), sum, PITH_NO_TASK) : PITH_NO_TASK;
  *encoded = pith__add_work(
      job, (pith_task){.work = pith__work_encode, .piece = own, .n = all.n, .values = crowded ? sum : NULL}, summed);
  return own;
}

/* The first rank of a host. */
static void add_leader(pith_job *job, running_sum *r, int host) {
  pith_schedule *s = &job->schedule;
  const pith_layout *layout = job->layout;
  uint32_t encoded;
  pith_piece *own = add_encoded(job, pith__layout_members(layout, host) > 1, r->sum, &encoded);
  for (int step = 1; step < layout->hosts; step++) {
    pith__schedule_send(s, pith__layout_rank(layout, (host + step) % layout->hosts, 0), PITH_TAG(PHASE_GATHER, 0), own,
                        encoded);
  }
  r->last = encoded;
  for (int h = 0; h < layout->hosts; h++) {
    int leader = pith__layout_rank(layout, h, 0);
    pith_piece *piece = h == host ? own : pith__piece_for(job, job->src.n);
    uint32_t arrived =
        h == host ? encoded : pith__schedule_receive(s, leader, PITH_TAG(PHASE_GATHER, 0), piece, PITH_NO_TASK);
    pith__add_intra_host_copies(job, PITH_TAG(PHASE_DOWN, h), piece, arrived);
    add_decode(job, r, h, leader, piece, arrived);
  }
}

static void add_follower(pith_job *job, running_sum *r, int host) {
  const pith_layout *layout = job->layout;
  int first = pith__layout_rank(layout, host, 0);
  r->last = pith__add_intra_host_send(job, first, (pith_range){0, job->src.n}, PITH_TAG(PHASE_UP, 0), PITH_NO_TASK);
  for (int h = 0; h < layout->hosts; h++) {
    pith_piece *piece = pith__piece_for(job, job->src.n);
    uint32_t arrived = pith__schedule_receive(&job->schedule, first, PITH_TAG(PHASE_DOWN, h), piece, PITH_NO_TASK);
    add_decode(job, r, h, pith__layout_rank(layout, h, 0), piece, arrived);
  }
}

pith_status pith__allreduce_gather(pith_job *job) {
  int crowded = job->layout->hosts < job->ranks, in_dst = job->dst.dtype == PITH_F32 && !crowded;
  running_sum r = {
      in_dst ? job->dst.data : pith__schedule_take(&job->schedule, job->src.n ? job->src.n : 1, sizeof(float)),
      PITH_NO_TASK};
  int host = job->layout->host[job->rank];
  if (job->layout->local_rank[job->rank] == 0) {
    add_leader(job, &r, host);
  } else {
    add_follower(job, &r, host);
  }
  pith__add_work(job, (pith_task){.work = pith__work_store_result, .n = job->src.n, .values = r.sum}, r.last);
  return pith__schedule_finished(job);
}
