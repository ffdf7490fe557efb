/* SPDX-License-Identifier: Apache-2.0 */
/* Levels of hosts: see hosts_carrier.h. Tickets say which level they are of. */
#include "device/hosts_carrier.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "device/comm_nccl.h"

typedef struct hosts_carrier {
  pith_comm *parent, *comm[PITH_LEVELS]; /* of levels: our own, from the first exchange on */
  pith_carrier level[PITH_LEVELS];
  pith_device_way across;
  pith_hosts place;
} hosts_carrier;

int pith__hosts_fit(const pith_comm *comm) {
  const pith_layout *l = comm->chooser.hosts;
  int is_even = l->hosts > 1 && comm->settings.algorithm == PITH_ALGORITHM_HIERARCHICAL;
  for (int h = 0; h < l->hosts && is_even; h++) {
    int members = pith__layout_members(l, h);
    is_even = members > 1 && members == pith__layout_members(l, 0);
  }
  return is_even;
}

/* All ranks take part. */
static pith_status open_levels(hosts_carrier *c) {
  const pith_hosts *p = &c->place;
  pith_comm **comm = c->comm;
  PITH_TRY(pith_comm_split(c->parent, p->host, p->local, &comm[PITH_LEVEL_INSIDE]));
  PITH_TRY(pith_comm_split(c->parent, p->local, p->host, &comm[PITH_LEVEL_ACROSS]));
  PITH_TRY(pith__device_carrier(comm[PITH_LEVEL_INSIDE], PITH_DEVICE_AUTO, 0, &c->level[PITH_LEVEL_INSIDE]));
  PITH_TRY(
      c->across == PITH_DEVICE_NCCL
          ? pith__comm_nccl_carrier(comm[PITH_LEVEL_ACROSS], PITH_NCCL_REQUIRED, &c->level[PITH_LEVEL_ACROSS], NULL)
          : pith__device_carrier(comm[PITH_LEVEL_ACROSS], c->across, 0, &c->level[PITH_LEVEL_ACROSS]));
  PITH_LOG_INFO("rank %d: gradients of the device are summed within hosts (%s) before they leave them (%s)",
                c->parent->rank, p->inside ? p->inside->spec : "uncompressed",
                c->across == PITH_DEVICE_NCCL ? "by NCCL" : "through pinned memory");
  return PITH_OK;
}

/* A level numbers its ranks from 0: its errors are told with the numbers they have in the comm. */
static pith_status told(const hosts_carrier *c, uint64_t level, pith_status status) {
  const int *ranks = level == PITH_LEVEL_INSIDE ? c->place.here : c->place.alike;
  int count = level == PITH_LEVEL_INSIDE ? c->place.locals : c->place.hosts;
  char list[128] = "";
  if (status == PITH_OK || level == PITH_LEVEL_ALL) {
    return status;
  }
  for (int i = 0; i < count; i++) {
    size_t used = strlen(list);
    snprintf(list + used, sizeof list - used, "%s%d", i ? ", " : "", ranks[i]);
  }
  pith_kept_error error;
  pith__error_keep(&error);
  return pith_fail(status, "among ranks %s, which are 0 to %d here: %s", list, count - 1, error.text);
}

pith_status pith__hosts_start(const pith_carrier *carrier, pith_level level, const pith_exchange *x, uint64_t *ticket) {
  hosts_carrier *c = carrier->self;
  uint64_t inner = 0;
  PITH_TRY(c->level[PITH_LEVEL_ACROSS].start ? PITH_OK : open_levels(c));
  PITH_TRY(told(c, level, c->level[level].start(c->level[level].self, x, &inner)));
  *ticket = inner * PITH_LEVELS + (uint64_t)level;
  return PITH_OK;
}

static pith_status start(void *self, const pith_exchange *x, uint64_t *ticket) {
  return pith__hosts_start(&(pith_carrier){.self = self}, PITH_LEVEL_ALL, x, ticket);
}

static pith_status wait(void *self, uint64_t ticket) {
  const hosts_carrier *c = self;
  const pith_carrier *level = &c->level[ticket % PITH_LEVELS];
  return told(c, ticket % PITH_LEVELS, level->wait(level->self, ticket / PITH_LEVELS));
}

static int interrupted(void *self) {
  const hosts_carrier *c = self;
  const pith_carrier *all = &c->level[PITH_LEVEL_ALL];
  return all->interrupted(all->self);
}

static pith_status check(void *self, double waited) {
  const hosts_carrier *c = self;
  for (int i = 0; i < PITH_LEVELS; i++) {
    PITH_TRY(c->level[i].check ? told(c, (uint64_t)i, c->level[i].check(c->level[i].self, waited)) : PITH_OK);
  }
  return PITH_OK;
}

static void give_up(void *self, const char *why) {
  const hosts_carrier *c = self;
  for (int i = 0; i < PITH_LEVELS; i++) {
    if (c->level[i].abort) {
      c->level[i].abort(c->level[i].self, why);
    }
  }
}

static void release(void *self) {
  hosts_carrier *c = self;
  for (int i = 0; i < PITH_LEVELS; i++) {
    if (c->level[i].release) {
      c->level[i].release(c->level[i].self);
    }
    pith_comm_destroy(c->comm[i]);
  }
  free(c->place.here);
  free(c->place.alike);
  free(c);
}

static const pith_carrier functions = {
    .start = start, .wait = wait, .interrupted = interrupted, .check = check, .abort = give_up, .release = release};

const pith_hosts *pith__hosts_of(const pith_carrier *carrier) {
  return carrier->start == start ? &((const hosts_carrier *)carrier->self)->place : NULL;
}

static pith_status find_place(hosts_carrier *c) {
  const pith_layout *l = c->parent->chooser.hosts;
  pith_hosts *p = &c->place;
  *p = (pith_hosts){.hosts = l->hosts,
                    .locals = pith__layout_members(l, 0),
                    .host = l->host[c->parent->rank],
                    .local = l->local_rank[c->parent->rank],
                    .inside = c->parent->inside};
  p->here = calloc((size_t)p->locals, sizeof *p->here);
  p->alike = calloc((size_t)p->hosts, sizeof *p->alike);
  PITH_REQUIRE(p->here && p->alike, PITH_ERR_MEMORY, "no memory for a carrier");
  for (int i = 0; i < p->locals; i++) {
    p->here[i] = pith__layout_rank(l, p->host, i);
  }
  for (int h = 0; h < p->hosts; h++) {
    p->alike[h] = pith__layout_rank(l, h, p->local);
  }
  return PITH_OK;
}

pith_status pith__hosts_carrier(pith_comm *comm, pith_device_way way, pith_device_way across, pith_carrier *carrier) {
  hosts_carrier *c = calloc(1, sizeof *c);
  PITH_REQUIRE(c, PITH_ERR_MEMORY, "no memory for a carrier");
  c->parent = comm;
  c->across = across;
  pith_status status = find_place(c);
  status = status == PITH_OK ? pith__device_carrier(comm, way, 0, &c->level[PITH_LEVEL_ALL]) : status;
  if (status != PITH_OK) {
    release(c);
    return status;
  }
  *carrier = pith__carrier_of(comm, c, &functions);
  return PITH_OK;
}
