/* SPDX-License-Identifier: Apache-2.0 */
/* Which rank of a comm is gone: see rank_watch.h. */
#include "device/rank_watch.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "comm/comm.h"

#define WATCH_TAG 0x70697468u
#define WATCH_TIMEOUT 9e8 /* seconds: for ever */

typedef struct watched_rank {
  pith_request *request;
  uint8_t byte;
} watched_rank;

struct pith_rank_watch {
  int ranks;
  pthread_mutex_t mutex;
  double lost_at;
  pith_status lost;
  char why[512];
  watched_rank rank[];
};

pith_status pith__rank_watch_start(pith_comm *comm, pith_rank_watch **made) {
  int ranks = pith_comm_size(comm);
  PITH_TRY(pith_comm_set_timeout(comm, WATCH_TIMEOUT));
  comm->is_watch = 1;
  pith_rank_watch *w = calloc(1, sizeof *w + (size_t)ranks * sizeof *w->rank);
  PITH_REQUIRE(w, PITH_ERR_MEMORY, "no memory for a carrier");
  w->ranks = ranks;
  pthread_mutex_init(&w->mutex, NULL);
  *made = w; /* also after a failure: requests need their bytes until the comm is gone */
  for (int p = 0; p < ranks; p++) {
    PITH_TRY(p == pith_comm_rank(comm)
                 ? PITH_OK
                 : pith_recv(comm, (pith_span){&w->rank[p].byte, 1, PITH_U8}, p, WATCH_TAG, &w->rank[p].request));
  }
  return PITH_OK;
}

double pith__rank_watch_look(pith_rank_watch *w) {
  if (!w) {
    return 0;
  }
  pthread_mutex_lock(&w->mutex);
  for (int p = 0; p < w->ranks && !w->lost_at; p++) {
    int is_done = 0;
    if (w->rank[p].request && pith_test(w->rank[p].request, &is_done) == PITH_OK && is_done) {
      w->lost = pith_wait(w->rank[p].request);
      w->rank[p].request = NULL;
      w->lost = w->lost == PITH_OK ? PITH_ERR_PEER : w->lost;
      snprintf(w->why, sizeof w->why, "%s", pith_error());
      w->lost_at = pith__now();
    }
  }
  double lost_at = w->lost_at;
  pthread_mutex_unlock(&w->mutex);
  return lost_at;
}

pith_status pith__rank_watch_fail(pith_rank_watch *w) { return pith_fail(w->lost, "%s", w->why); }

void pith__rank_watch_end(pith_rank_watch *w) {
  if (!w) {
    return;
  }
  for (int p = 0; p < w->ranks; p++) {
    if (w->rank[p].request) {
      pith_wait(w->rank[p].request); /* the comm is gone: nobody waits */
    }
  }
  pthread_mutex_destroy(&w->mutex);
  free(w);
}
