/* SPDX-License-Identifier: Apache-2.0 */
/* A comm's life: making it, splitting, asking, leaving. join.c links its ranks. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "base/clock.h"
#include "base/forked.h"
#include "base/size.h"
#include "base/struct_size.h"
#include "comm/comm.h"
#include "transport/link_key.h"

/* ---- The object -------------------------------------------------------------------------------------------------- */

static pith_status make_comm(const pith_settings *s, pith_comm **made) {
  int ranks = s->rendezvous.ranks;
  pith_comm *comm = calloc(1, sizeof *comm);
  PITH_REQUIRE(comm, PITH_ERR_MEMORY, "no memory for a comm");
  *comm = (pith_comm){.made_in = pith__fork_number(),
                      .rank = s->rendezvous.rank,
                      .ranks = ranks,
                      .interrupt = s->rendezvous.interrupt,
                      .wake = -1,
                      .door_wake = -1,
                      .chooser = {.cost = pith__cost_default, .wish = s->algorithm}};
  comm->running_end = &comm->running;
  comm->tracing = pith__trace_start(comm->rank);
  comm->link = calloc((size_t)ranks, sizeof(pith_link *));
  comm->links = calloc((size_t)ranks, sizeof(pith_link *));
  comm->kind = calloc((size_t)ranks, 1);
  comm->wake = pith__fd_keep(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  pith__pool_init(&comm->pool);
  pthread_mutex_init(&comm->mutex, NULL);
  pthread_mutex_init(&comm->gate, NULL);
  pthread_cond_init(&comm->changed, NULL);
  *made = comm;
  PITH_TRY(pith__settings_keep(s, &comm->settings));
  PITH_REQUIRE(comm->link && comm->links && comm->kind, PITH_ERR_MEMORY, "no memory for the links to %d ranks", ranks);
  PITH_TRY(pith__layout_create(ranks, NULL, &comm->flat));
  PITH_TRY(pith_codec_create("threshold:1e-45", &comm->entries));
  PITH_TRY(strcmp(s->inside, "none") ? pith_codec_create(s->inside, &comm->inside) : PITH_OK);
  const pith_codec *inside = comm->inside;
  PITH_REQUIRE(!inside || ((inside->caps & PITH_CAP_CHUNKED) && !inside->memory && !(inside->caps & PITH_CAP_VOTE)),
               PITH_ERR_UNSUPPORTED,
               "%s cannot be used inside hosts: that takes a codec for pieces, without memory or vote", s->inside);
  PITH_REQUIRE(comm->wake >= 0, PITH_ERR_SYSTEM, "eventfd: %s", strerror(errno));
  return s->threads > 1 ? pith__thread_pool_create((unsigned)s->threads, &comm->threads) : PITH_OK;
}

static void free_comm(pith_comm *comm) {
  if (!comm) {
    return;
  }
  pith__comm_close_door(comm);
  for (int i = 0; i < comm->link_count; i++) {
    pith__link_clear(comm->links[i]);
    free(comm->links[i]);
  }
  for (int t = 0; t < comm->transports; t++) {
    comm->transport[t]->ops->close(comm->transport[t]);
  }
  pith__fd_close(comm->wake);
  pith__thread_pool_destroy(comm->threads);
  pith__pool_fini(&comm->pool);
  pthread_mutex_destroy(&comm->mutex);
  pthread_mutex_destroy(&comm->gate);
  pthread_cond_destroy(&comm->changed);
  pith__settings_free(&comm->settings);
  pith__layout_destroy(comm->chooser.hosts);
  pith__layout_destroy(comm->flat);
  pith_codec_destroy(comm->inside);
  pith_codec_destroy(comm->entries);
  for (int i = 0; i < comm->spec_count; i++) {
    free(comm->specs[i].text);
  }
  pith__records_free(&comm->records);
  free(comm->kind);
  free(comm->links);
  free(comm->link);
  free(comm);
}

static pith_status hand_out(pith_status status, pith_comm *comm, pith_comm **made) {
  if (status == PITH_OK) {
    *made = comm;
  } else {
    free_comm(comm);
  }
  return status;
}

static pith_status exchange_at_rendezvous(void *how, const pith_address_record *mine, pith_records *all,
                                          pith_link_key *key) {
  pith_rendezvous *rendezvous = how, with_listener = *rendezvous;
  uint8_t bytes[PITH_ADDRESS_RECORD_MOST];
  uint64_t job;
  rendezvous->listener = 0; /* the rendezvous closes it */
  pith_status status =
      pith__rendezvous_exchange(&with_listener, bytes, pith__address_record_write(mine, bytes), all, &job);
  if (all->at) {
    pith__link_key_make(rendezvous->secret, job, key);
  }
  return status;
}

pith_status pith_comm_create(const pith_config *config, pith_comm **made) {
  pith_settings s;
  pith_comm *comm = NULL;
  PITH_REQUIRE(made, PITH_ERR_ARGUMENT, "pith_comm_create: comm must not be NULL");
  PITH_TRY(pith__settings_read(config, &s));
  pith_status status = make_comm(&s, &comm);
  if (status == PITH_OK && comm->ranks == 1) {
    status = pith__layout_create(1, NULL, &comm->chooser.hosts);
  }
  if (status == PITH_OK && comm->ranks > 1) {
    status = pith__comm_join(comm, exchange_at_rendezvous, &s.rendezvous);
  }
  if (s.rendezvous.listener > 0) { /* of a unique id, and the rendezvous was not reached */
    pith__fd_close(s.rendezvous.listener);
  }
  return hand_out(status, comm, made);
}

/* ---- Splitting --------------------------------------------------------------------------------------------------- */

typedef struct member {
  int64_t color, key, rank; /* rank in the parent */
} member;

typedef struct group {
  pith_comm *parent;
  member *members; /* in the order of their new ranks */
  int ranks, rank;
} group;

static int by_key(const void *a, const void *b) {
  const member *x = a, *y = b;
  if (x->key != y->key) {
    return x->key < y->key ? -1 : 1;
  }
  return (x->rank > y->rank) - (x->rank < y->rank);
}

/* Gathers the colours and keys of all ranks of the parent; keeps those of our colour, sorted. */
static pith_status find_group(group *g, int color, int key) {
  pith_comm *parent = g->parent;
  member mine = {color, key, parent->rank};
  PITH_REQUIRE(g->members, PITH_ERR_MEMORY, "no memory to split %d ranks", parent->ranks);
  PITH_TRY(pith_all_gather(parent, (pith_cspan){&mine, sizeof mine, PITH_U8},
                           (pith_span){g->members, (size_t)parent->ranks * sizeof mine, PITH_U8}, NULL, NULL, NULL));
  for (int p = 0; p < parent->ranks; p++) {
    if (g->members[p].color == color) {
      g->members[g->ranks++] = g->members[p];
    }
  }
  qsort(g->members, (size_t)g->ranks, sizeof *g->members, by_key);
  while (g->members[g->rank].rank != parent->rank) {
    g->rank++;
  }
  return PITH_OK;
}

/* What all ranks of the parent brought: how many bytes each, then the bytes. */
static pith_status gather_records(pith_comm *parent, const uint8_t *mine, size_t size, size_t *counts,
                                  uint8_t **bytes) {
  uint64_t own = size;
  PITH_FREED uint64_t *sizes = calloc((size_t)parent->ranks, sizeof *sizes);
  PITH_REQUIRE(sizes, PITH_ERR_MEMORY, "no memory to split %d ranks", parent->ranks);
  PITH_TRY(pith_all_gather(parent, (pith_cspan){&own, sizeof own, PITH_U8},
                           (pith_span){sizes, (size_t)parent->ranks * sizeof *sizes, PITH_U8}, NULL, NULL, NULL));
  for (int p = 0; p < parent->ranks; p++) {
    PITH_REQUIRE(sizes[p] <= PITH_ADDRESS_RECORD_MOST, PITH_ERR_CORRUPT, "rank %d's address record is malformed", p);
    counts[p] = (size_t)sizes[p];
  }
  size_t total = pith__sum(counts, parent->ranks);
  *bytes = malloc(total + 1);
  PITH_REQUIRE(*bytes, PITH_ERR_MEMORY, "no memory to split %d ranks", parent->ranks);
  return pith_all_gather(parent, (pith_cspan){mine, size, PITH_U8}, (pith_span){*bytes, total, PITH_U8}, counts, NULL,
                         NULL);
}

/* Those of the group, of what all ranks of the parent brought. */
static pith_status keep_records(const group *g, const uint8_t *found, const size_t *counts, pith_records *kept) {
  size_t total = 0;
  for (int p = 0; p < g->ranks; p++) {
    total += counts[g->members[p].rank];
  }
  pith_records made = {.at = malloc(((size_t)g->ranks + 1) * sizeof *made.at), .bytes = malloc(total + 1)};
  if (!made.at || !made.bytes) {
    pith__records_free(&made);
    return pith_fail(PITH_ERR_MEMORY, "no memory for the addresses of %d ranks", g->ranks);
  }
  made.at[0] = 0;
  for (int p = 0; p < g->ranks; p++) {
    int rank = (int)g->members[p].rank;
    memcpy(made.bytes + made.at[p], found + pith__sum(counts, rank), counts[rank]);
    made.at[p + 1] = made.at[p] + (uint32_t)counts[rank];
  }
  *kept = made;
  return PITH_OK;
}

/* All ranks of the parent take part, also those that join no group. */
static pith_status exchange_over_parent(void *how, const pith_address_record *mine, pith_records *all,
                                        pith_link_key *key) {
  group *g = how;
  uint8_t bytes[PITH_ADDRESS_RECORD_MOST];
  PITH_FREED uint8_t *found = NULL;
  PITH_FREED size_t *counts = calloc((size_t)g->parent->ranks, sizeof *counts);
  pith__link_key_split(&g->parent->key, ++g->parent->splits, key); /* whatever comes: all ranks count alike */
  PITH_REQUIRE(counts, PITH_ERR_MEMORY, "no memory to split %d ranks", g->parent->ranks);
  PITH_TRY(gather_records(g->parent, bytes, pith__address_record_write(mine, bytes), counts, &found));
  return all ? keep_records(g, found, counts, all) : PITH_OK;
}

pith_status pith_comm_split(pith_comm *parent, int color, int key, pith_comm **made) {
  PITH_REQUIRE(parent && made, PITH_ERR_ARGUMENT, "pith_comm_split: comm and group must not be NULL");
  PITH_TRY(pith__check_comm(parent));
  PITH_FREED member *members = calloc((size_t)parent->ranks, sizeof *members);
  group g = {.parent = parent, .members = members};
  pith_comm *comm = NULL;
  PITH_TRY(find_group(&g, color, key));
  if (color < 0) {
    pith_link_key unused;
    return hand_out(exchange_over_parent(&g, &(pith_address_record){0}, NULL, &unused), NULL, made);
  }
  pith_settings s = parent->settings;
  s.rendezvous.rank = g.rank;
  s.rendezvous.ranks = g.ranks;
  pith_status status = make_comm(&s, &comm);
  status = status == PITH_OK ? pith__comm_join(comm, exchange_over_parent, &g) : status;
  return hand_out(status, comm, made);
}

/* ---- Asking and leaving ------------------------------------------------------------------------------------------ */

/* Whether this process is a child of the one whose comm it is. */
static int is_forked(const pith_comm *comm) { return comm->made_in != pith__fork_number(); }

int pith_comm_rank(const pith_comm *comm) { return comm ? comm->rank : -1; }

int pith_comm_size(const pith_comm *comm) { return comm ? comm->ranks : 0; }

const char *pith_comm_transport(const pith_comm *comm, int peer) {
  return !comm || peer < 0 || peer >= comm->ranks ? "none"
         : peer == comm->rank                     ? "self"
                                                  : comm->by_kind[comm->kind[peer]]->ops->name;
}

double pith_comm_timeout(const pith_comm *comm) {
  pith_comm *locked = (pith_comm *)(uintptr_t)comm;
  pith__comm_lock(locked);
  double seconds = comm->settings.timeout;
  pthread_mutex_unlock(&locked->mutex);
  return seconds;
}

pith_status pith_comm_set_timeout(pith_comm *comm, double seconds) {
  PITH_REQUIRE(comm, PITH_ERR_ARGUMENT, "pith_comm_set_timeout: comm must not be NULL");
  PITH_REQUIRE(seconds > 0 && seconds < 1e9, PITH_ERR_RANGE,
               "a time-out of %g s: more than 0 and less than 1e9 are expected", seconds);
  pith__comm_lock(comm);
  comm->settings.timeout = seconds;
  comm->settings.timeout_from = "pith_comm_set_timeout()";
  pith__comm_wake(comm); /* it may sleep for longer than that */
  pthread_mutex_unlock(&comm->mutex);
  return PITH_OK;
}

pith_status pith_comm_stats(const pith_comm *comm, pith_stats *stats) {
  PITH_REQUIRE(comm && stats, PITH_ERR_ARGUMENT, "pith_comm_stats: comm and stats must not be NULL");
  PITH_TRY(pith__check_comm(comm));
  pith_comm *locked = (pith_comm *)(uintptr_t)comm;
  pith__comm_lock(locked);
  pith_stats found = comm->stats;
  for (int i = 0; i < comm->link_count; i++) {
    found.links += (uint64_t)comm->links[i]->linked;
  }
  pthread_mutex_unlock(&locked->mutex);
  return PITH_STRUCT_WRITE(pith_stats, &found, stats);
}

const char *pith__operation_name(unsigned kind) {
  static const char *const names[] = {"?",          "allreduce", "reduce",  "reduce_scatter", "all_gather", "broadcast",
                                      "all_to_all", "gather",    "scatter", "barrier",        "send"};
  return kind < sizeof names / sizeof *names ? names[kind] : "?";
}

void pith__traffic_add(pith_traffic *sum, const pith_traffic *t, double share) {
  sum->operations += t->operations;
  sum->uncompressed += t->uncompressed;
  sum->messages += t->messages;
  sum->raw_bytes += (uint64_t)((double)t->raw_bytes * share);
  sum->sent_bytes += (uint64_t)((double)t->sent_bytes * share);
  sum->encode += t->encode * share;
  sum->decode += t->decode * share;
  sum->wire += t->wire * share;
}

pith_status pith_comm_traffic(const pith_comm *comm, const char *operation, pith_traffic *traffic) {
  PITH_REQUIRE(comm && operation && traffic, PITH_ERR_ARGUMENT,
               "pith_comm_traffic: comm, operation and traffic must not be NULL");
  PITH_TRY(pith__check_comm(comm));
  unsigned kind = 1;
  while (kind < PITH_OP_KINDS && strcmp(pith__operation_name(kind), operation) != 0) {
    kind++;
  }
  PITH_REQUIRE(kind < PITH_OP_KINDS, PITH_ERR_ARGUMENT, "there is no operation \"%s\"", operation);
  pith_comm *locked = (pith_comm *)(uintptr_t)comm;
  pith__comm_lock(locked);
  pith_traffic found = comm->traffic[kind];
  pthread_mutex_unlock(&locked->mutex);
  return PITH_STRUCT_WRITE(pith_traffic, &found, traffic);
}

void pith_comm_abort(pith_comm *comm, const char *why) {
  if (!comm || is_forked(comm)) {
    return;
  }
  pith__comm_lock(comm);
  pith__comm_fail(comm, PITH_ERR_ABORTED, "rank %d gave up: %s", comm->rank, why ? why : "no reason given");
  pith__comm_flush(comm, comm->failed_at + 0.5);
  pthread_mutex_unlock(&comm->mutex);
}

void pith_comm_destroy(pith_comm *comm) {
  if (!comm) {
    return;
  }
  /* In a child no thread is there to drive, mutexes and lists may be in any state, and requests may still point at the
   * comm: only what the transports hold goes, above all shared memory. Nothing is sent. */
  if (is_forked(comm)) {
    while (comm->transports > 0) {
      pith_transport *transport = comm->transport[--comm->transports];
      transport->ops->close(transport);
    }
    return;
  }
  pith_kept_error error;
  pith__error_keep(&error);
  pith__comm_stop_thread(comm);
  pith__comm_close_door(comm);
  pith__comm_lock(comm);
  if (comm->failed == PITH_OK) {
    for (int i = 0; i < comm->link_count; i++) {
      pith__link_notice(comm->links[i], PITH_FRAME_GOODBYE, "");
    }
  }
  pith__comm_flush(comm, (comm->failed == PITH_OK ? pith__now() : comm->failed_at) + 1.0);
  for (pith_operation *op = comm->running; op; op = op->next) { /* requests live until the program waits for them */
    op->status = op->done ? op->status : PITH_ERR_ABORTED;
    op->comm = NULL;
    op->job.schedule.pool = NULL;
    op->done = 1;
  }
  pthread_mutex_unlock(&comm->mutex);
  free_comm(comm);
  pith__error_restore(&error);
}
