/* SPDX-License-Identifier: Apache-2.0 */
/* Links the ranks of a comm: which transports it uses, which peer each of them reaches, who is linked from the start,
 * and what a failure tells. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "comm/comm.h"

#define ABORT_SECONDS 0.5 /* to tell the others why a comm could not be made */
#define HURRY_SECONDS 2.0 /* to make the links over which they are told */
#define GRACE_SECONDS 3.0 /* for ranks that are still within that, of a group whose ranks are not all linked */

/* ---- Who is linked from the start -------------------------------------------------------------------------------- */

/* Neighbours are 1, 4, 16, … ranks away, in both directions: about log2 of the ranks for each. Over their links the
 * news of a failure reaches everybody in about as many steps, also if several ranks are gone. */
int pith__are_neighbours(int a, int b, int ranks) {
  int up = (b - a + ranks) % ranks, down = ranks - up;
  for (int distance = 1; distance <= ranks / 2; distance *= 4) {
    if (up == distance || down == distance) {
      return 1;
    }
  }
  return 0;
}

static uint8_t wish_of(const pith_comm *comm, int peer) {
  int is_now = comm->ranks <= comm->settings.eager || pith__are_neighbours(comm->rank, peer, comm->ranks);
  return is_now ? PITH_LINK_NOW : PITH_LINK_LATER;
}

/* ---- Transports ------------------------------------------------------------------------------------------------- */

static pith_status read_record(const pith_records *records, int rank, pith_address_record *record) {
  return pith__address_record_read(records->bytes + records->at[rank], records->at[rank + 1] - records->at[rank], rank,
                                   record);
}

static pith_status find_address(const void *from, int rank, pith_address *address) {
  const pith_directory_of *directory = from;
  pith_address_record record;
  PITH_TRY(read_record(directory->records, rank, &record));
  *address = record.address[directory->kind];
  return PITH_OK;
}

/* How every peer is reached, and which ranks share hosts. */
static pith_status read_records(pith_comm *comm) {
  pith_address_record mine, theirs;
  PITH_FREED uint64_t *host = calloc((size_t)comm->ranks, sizeof *host);
  PITH_REQUIRE(host, PITH_ERR_MEMORY, "no memory for the hosts of %d ranks", comm->ranks);
  PITH_TRY(read_record(&comm->records, comm->rank, &mine));
  for (int p = 0; p < comm->ranks; p++) {
    PITH_TRY(read_record(&comm->records, p, &theirs));
    int kind = p == comm->rank ? PITH_KIND_LOCAL : pith__transports_kind(comm->settings.transport, &mine, &theirs);
    PITH_REQUIRE(kind >= 0, PITH_ERR_UNSUPPORTED,
                 "ranks %d and %d have no transport in common: they are on different hosts, run as different users, or "
                 "chose different ones",
                 comm->rank, p);
    comm->kind[p] = (uint8_t)kind;
    host[p] = theirs.host;
  }
  PITH_TRY(pith__layout_create(comm->ranks, host, &comm->chooser.hosts));
  for (int p = 0; p < comm->ranks; p++) {
    comm->is_networked |= pith__is_remote(comm, p);
  }
  return PITH_OK;
}

/* After a failure within the host the ranks of other hosts are linked all the same: they must hear of it, and a rank
 * that cannot be reached there may be the cause. `has_failed`: the group has failed before, and all must hear of it. */
static pith_status connect_all(pith_comm *comm, pith_transport **transport, int has_failed) {
  pith_status status = PITH_OK;
  int is_sparse = comm->ranks > comm->settings.eager,
      has_hosts = comm->chooser.hosts->hosts < comm->ranks && strcmp(comm->settings.transport, "auto") == 0;
  char why[sizeof comm->failure] = "";
  PITH_FREED uint8_t *wanted = malloc((size_t)comm->ranks);
  PITH_REQUIRE(wanted, PITH_ERR_MEMORY, "no memory for the links to %d ranks", comm->ranks);
  for (int k = 0; k < PITH_KINDS; k++) {
    int count = 0;
    for (int p = 0; p < comm->ranks; p++) {
      int is_ours = p != comm->rank && comm->kind[p] == k;
      wanted[p] = is_ours ? wish_of(comm, p) : PITH_LINK_NEVER;
      count += is_ours;
    }
    if (!count || !transport[k]) {
      continue;
    }
    pith_transport *made = transport[k];
    transport[k] = NULL; /* the comm's now */
    comm->transport[comm->transports++] = comm->by_kind[k] = made;
    comm->directory[k] = (pith_directory_of){&comm->records, k};
    made->hurry = status == PITH_OK && !has_failed ? 0 : HURRY_SECONDS;
    made->grace = is_sparse && has_hosts && k == PITH_KIND_NETWORK ? GRACE_SECONDS : 0;
    pith_directory directory = {find_address, &comm->directory[k]};
    pith_status now = made->ops->connect(made, &directory, wanted, &comm->key);
    if (now != PITH_OK) {
      size_t used = strlen(why);
      snprintf(why + used, sizeof why - used, "%s%s", used ? "; " : "", pith_error());
      status = status == PITH_OK ? now : status;
    }
  }
  pith__comm_note_linked(comm);
  return status == PITH_OK ? PITH_OK : pith_fail(status, "%s", why);
}

/* Not all links could be made. Those that are established tell more than which ranks are missing: a rank that gave up
 * has said why, and one that is gone without a message is the cause of what happened to the others. We pass the reason
 * on to all ranks that are linked with us. */
static pith_status give_up(pith_comm *comm, pith_status status) {
  char why[sizeof comm->failure];
  int more = 1;
  comm->is_made = 0;
  snprintf(why, sizeof why, "%s", pith_error());
  for (int t = 0; t < comm->transports; t++) {
    comm->transport[t]->ops->sleep(comm->transport[t], 0); /* so that they notice which peers are gone */
  }
  while (more && comm->failed == PITH_OK) {
    more = 0;
    for (int i = 0; i < comm->link_count && comm->failed == PITH_OK; i++) {
      more |= pith__link_progress(comm->links[i]);
    }
  }
  for (int i = 0; i < comm->link_count; i++) { /* one of them may be the cause */
    size_t used = strlen(why);
    if (comm->links[i]->ended > 0) {
      snprintf(why + used, sizeof why - used, "; rank %d is gone", comm->links[i]->peer);
    }
  }
  pith__comm_fail(comm, status, "%s", why);
  pith__comm_flush(comm, pith__now() + ABORT_SECONDS);
  return pith_fail(comm->failed, "%s", comm->failure);
}

pith_status pith__comm_join(pith_comm *comm, pith_exchange_fn exchange, void *how) {
  const pith_settings *s = &comm->settings;
  pith_transport *transport[PITH_KINDS] = {NULL, NULL};
  pith_address_record mine = pith__address_record_here(s->host_id);
  pith_transport_config config = {.rank = comm->rank,
                                  .ranks = comm->ranks,
                                  .interface = s->interface,
                                  .connections = s->connections,
                                  .timeout = s->timeout,
                                  .liveness = s->liveness,
                                  .rendezvous_host = s->rendezvous.host,
                                  .interrupt = comm->interrupt,
                                  .tls = s->tls};
  char why[sizeof comm->failure];
  pith_status status = pith__transports_listen(s->transport, &config, transport, &mine), failed = PITH_OK;
  status = status == PITH_OK ? exchange(how, &mine, &comm->records, &comm->key) : status;
  if (status != PITH_OK && comm->records.at) { /* the others have the addresses, and do not know yet who is lost */
    snprintf(why, sizeof why, "%s", pith_error());
    failed = status;
    status = PITH_OK;
  }
  status = status == PITH_OK ? read_records(comm) : status;
  if (status == PITH_OK) {
    status = connect_all(comm, transport, failed != PITH_OK);
    status = failed != PITH_OK ? pith_fail(failed, "%s", why) : status;
    comm->is_made = status == PITH_OK;
    status = status == PITH_OK ? pith__comm_open_door(comm) : status;
    status = status == PITH_OK ? PITH_OK : give_up(comm, status);
  }
  pith__transports_close(transport);
  return status;
}
