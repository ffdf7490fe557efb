/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stopwatch for operations between ranks.
 *
 * Operations follow each other without a pause, as they do in training; those in which a rank could run ahead of the
 * others begin with a barrier, which is not timed. Every rank times each of them; an operation is as long as it took
 * the slowest rank, and the median of those is what is reported: on a machine with other work a mean tells of that
 * work.
 */
#include "cli/bench/bench_timing.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cli/base/cli.h"
#include "cli/bench/measure.h"

enum { LAPS_MOST = 1 << 16 }; /* of more repetitions than this, the last ones count */

#define TRY(call)                 \
  do {                            \
    pith_status status_ = (call); \
    if (status_ != PITH_OK) {     \
      return status_;             \
    }                             \
  } while (0)

/* ---- Results ----------------------------------------------------------------------------------------------------- */

static void fill(int rank, const cli_buffers *b) {
  for (size_t i = 0; i < b->n; i++) {
    b->src[i] = cli_collective_value(rank, i);
    b->dst[i] = NAN; /* what is not written is not right */
  }
}

/* Compares the bits of the results, as 48 bits that a double holds. */
static double fingerprint(const float *x, size_t n) {
  uint64_t h = 1469598103934665603u;
  for (size_t i = 0; i < n; i++) {
    uint32_t bits;
    memcpy(&bits, &x[i], sizeof bits);
    h = (h ^ bits) * 1099511628211u;
  }
  return (double)(h >> 16);
}

static void compare(const cli_collective *c, pith_comm *comm, const cli_buffers *b, double *wrong, double *error) {
  int rank = pith_comm_rank(comm), ranks = pith_comm_size(comm);
  const float *result = c->in_place ? b->src : b->dst;
  double distance = 0, norm = 0;
  *wrong = 0;
  for (size_t i = 0, n = c->results(rank, ranks, b->n); i < n; i++) {
    double wanted = c->expected(rank, ranks, b->n, i), d = (double)result[i] - wanted;
    *wrong += d != 0;
    distance += d * d;
    norm += wanted * wanted;
  }
  *error = norm > 0 ? sqrt(distance / norm) : sqrt(distance);
  *error = isnan(*error) ? INFINITY : *error; /* the largest of all ranks is wanted, and NaN is not large */
}

static pith_status check_results(const cli_collective *c, pith_comm *comm, const cli_buffers *b, cli_timing *t) {
  double worst[4];
  if (c->check) {
    TRY(c->check(comm, &t->is_checked, &t->wrong));
    return cli_collective_largest(comm, &t->wrong, 1);
  }
  compare(c, comm, b, &worst[0], &worst[1]);
  worst[2] = c->replicas ? fingerprint(c->in_place ? b->src : b->dst, b->n) : 0;
  worst[3] = -worst[2];
  TRY(cli_collective_largest(comm, worst, 4));
  t->is_checked = 1;
  t->wrong = worst[0];
  t->error = worst[1];
  t->differs = worst[2] != -worst[3];
  return PITH_OK;
}

/* ---- Times ------------------------------------------------------------------------------------------------------- */

static pith_status step(const cli_collective *c, pith_comm *comm, const cli_buffers *b, pith_call *call) {
  call->step++;
  return c->run(comm, b, call);
}

/* All repetitions; *seconds together. The end of one is the beginning of the next. */
static pith_status run_laps(const cli_collective *c, pith_comm *comm, const cli_buffers *b, pith_call *call,
                            size_t repetitions, double *laps, double *seconds) {
  *seconds = 0;
  double before = cli_now();
  for (size_t i = 0; i < repetitions; i++) {
    if (!c->joins) {
      TRY(pith_barrier(comm, NULL));
      before = cli_now();
    }
    TRY(step(c, comm, b, call));
    double after = cli_now();
    laps[i % LAPS_MOST] = after - before;
    *seconds += after - before;
    before = after;
  }
  return PITH_OK;
}

static pith_status time_laps(const cli_collective *c, pith_comm *comm, const cli_buffers *b, pith_call *call,
                             size_t repetitions, double *laps, cli_timing *t) {
  pith_traffic before = PITH_TRAFFIC_INIT, after = PITH_TRAFFIC_INIT;
  double seconds, each = 1.0 / (double)repetitions, part = each / c->at_once;
  size_t kept = repetitions < LAPS_MOST ? repetitions : LAPS_MOST;
  TRY(pith_barrier(comm, NULL));
  TRY(pith_comm_traffic(comm, c->counted_as, &before));
  TRY(run_laps(c, comm, b, call, repetitions, laps, &seconds));
  TRY(pith_comm_traffic(comm, c->counted_as, &after));
  double worst[5] = {seconds * each, (after.encode - before.encode) * each, (after.wire - before.wire) * part,
                     (after.decode - before.decode) * each, (double)(after.sent_bytes - before.sent_bytes) * each};
  TRY(cli_collective_largest(comm, worst, 5));
  TRY(cli_collective_largest(comm, laps, kept));
  t->seconds = cli_median(laps, kept);
  t->mean = worst[0];
  t->encode = worst[1];
  t->wire = worst[2];
  t->decode = worst[3];
  t->sent = worst[4];
  return PITH_OK;
}

pith_status cli_timing_measure(const cli_collective *c, pith_comm *comm, const cli_buffers *b, pith_call *call,
                               size_t repetitions, size_t warmup, int check, cli_timing *timing) {
  *timing = (cli_timing){0};
  fill(pith_comm_rank(comm), b);
  TRY(c->run(comm, b, call));
  if (check) {
    TRY(check_results(c, comm, b, timing));
  }
  for (size_t i = 0; i < warmup; i++) {
    TRY(step(c, comm, b, call));
  }
  double *laps = malloc(LAPS_MOST * sizeof *laps);
  if (!laps) {
    exit(cli_fail(CLI_FAILED, "out of memory: %zu bytes", LAPS_MOST * sizeof *laps));
  }
  pith_status status = time_laps(c, comm, b, call, repetitions, laps, timing);
  free(laps);
  return status;
}
