/* Links the ranks of a comm: which transports it uses, which peer each of them reaches, and what a failure tells. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "comm/comm.h"

#define ABORT_SECONDS 0.5 /* to tell the others why a comm could not be made */
#define HURRY_SECONDS 2.0 /* to make the links over which they are told */

/* ---- Transports ------------------------------------------------------------------------------------------------- */

/* Payloads have a checksum unless bytes stay on this host for sure. That both call their host the same is not enough:
 * machines that were cloned do, too. Ranks that are connected by a loopback address cannot be on two hosts, unless a
 * tunnel joins them: hence both. A transport that does not tell finds damage itself, and so does TLS. */
static pith_status connect_kind(pith_comm *comm, pith_transport *transport, int kind,
                                const pith_address_record *records, const uint8_t *wanted) {
  const pith_transport_ops *ops = transport->ops;
  PITH_FREED pith_address *address = calloc((size_t)comm->ranks, sizeof *address);
  PITH_REQUIRE(address, PITH_ERR_MEMORY, "no memory for the addresses of %d ranks", comm->ranks);
  for (int p = 0; p < comm->ranks; p++) {
    address[p] = records[p].address[kind];
  }
  pith_status status = ops->connect(transport, address, wanted, &comm->key);
  for (int p = 0; p < comm->ranks; p++) { /* also after a failure: those that are established tell the peers of it */
    if (wanted[p]) {
      pith_link *link = &comm->link[p];
      link->transport = transport;
      link->remote = kind == PITH_KIND_NETWORK && records[p].host != records[comm->rank].host;
      int stays_here = !link->remote && (!ops->is_loopback || ops->is_loopback(transport, p));
      link->checked = kind == PITH_KIND_NETWORK && comm->settings.tls.mode == PITH_TLS_OFF && !stays_here;
    }
  }
  return status;
}

/* After a failure within the host the ranks of other hosts are linked all the same: they must hear of it, and a rank
 * that cannot be reached there may be the cause. */
static pith_status connect_all(pith_comm *comm, pith_transport **transport, const pith_address_record *records) {
  uint8_t wanted[PITH_KINDS][PITH_RANKS_MOST] = {{0}};
  int count[PITH_KINDS] = {0};
  for (int p = 0; p < comm->ranks; p++) {
    if (p == comm->rank) {
      continue;
    }
    int kind = pith__transports_kind(comm->settings.transport, &records[comm->rank], &records[p]);
    PITH_REQUIRE(kind >= 0, PITH_ERR_UNSUPPORTED,
                 "ranks %d and %d have no transport in common: they are on different hosts, run as different users, or "
                 "chose different ones",
                 comm->rank, p);
    wanted[kind][p] = 1;
    count[kind]++;
  }
  pith_status status = PITH_OK;
  char why[sizeof comm->failure] = "";
  for (int k = 0; k < PITH_KINDS; k++) {
    if (!count[k] || !transport[k]) {
      continue;
    }
    pith_transport *made = transport[k];
    transport[k] = NULL; /* the comm's now */
    comm->transport[comm->transports++] = made;
    made->hurry = status == PITH_OK ? 0 : HURRY_SECONDS;
    pith_status now = connect_kind(comm, made, k, records, wanted[k]);
    if (now != PITH_OK) {
      size_t used = strlen(why);
      snprintf(why + used, sizeof why - used, "%s%s", used ? "; " : "", pith_error());
      status = status == PITH_OK ? now : status;
    }
  }
  return status == PITH_OK ? PITH_OK : pith_fail(status, "%s", why);
}

/* Not all links could be made. Those that are established tell more than which ranks are missing: a rank that gave up
 * has said why, and one that is gone without a message is the cause of what happened to the others. We pass the reason
 * on to all ranks that are linked with us. */
static pith_status give_up(pith_comm *comm, pith_status status) {
  char why[sizeof comm->failure];
  int more = 1;
  snprintf(why, sizeof why, "%s", pith_error());
  for (int p = 0; p < comm->ranks; p++) {
    pith_link *link = &comm->link[p];
    if (link->transport && !(link->transport->ops->is_linked && link->transport->ops->is_linked(link->transport, p))) {
      link->transport = NULL;
    } else if (link->transport) {
      link->transport->ops->sleep(link->transport, 0); /* so that it notices which peers are gone */
    }
  }
  while (more && comm->failed == PITH_OK) {
    more = 0;
    for (int p = 0; p < comm->ranks && comm->failed == PITH_OK; p++) {
      more |= pith__link_progress(&comm->link[p]);
    }
  }
  pith__comm_fail(comm, status, "%s", why);
  pith__comm_flush(comm, pith__now() + ABORT_SECONDS);
  return pith_fail(comm->failed, "%s", comm->failure);
}

/* ---- Hosts ------------------------------------------------------------------------------------------------------- */

static pith_status lay_out(pith_comm *comm, const pith_address_record *records) {
  PITH_FREED uint64_t *host = calloc((size_t)comm->ranks, sizeof *host);
  PITH_REQUIRE(host, PITH_ERR_MEMORY, "no memory for the hosts of %d ranks", comm->ranks);
  for (int p = 0; p < comm->ranks; p++) {
    host[p] = records[p].host;
  }
  return pith__layout_create(comm->ranks, host, &comm->chooser.hosts);
}

pith_status pith__comm_join(pith_comm *comm, pith_exchange_fn exchange, void *how) {
  const pith_settings *s = &comm->settings;
  pith_transport *transport[PITH_KINDS] = {NULL, NULL};
  PITH_FREED pith_address_record *records = calloc((size_t)comm->ranks, sizeof *records);
  PITH_REQUIRE(records, PITH_ERR_MEMORY, "no memory for the addresses of %d ranks", comm->ranks);
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
  pith_status status = pith__transports_listen(s->transport, &config, transport, &mine);
  status = status == PITH_OK ? exchange(how, &mine, records, &comm->key) : status;
  if (status == PITH_OK) {
    status = connect_all(comm, transport, records);
    status = status == PITH_OK ? lay_out(comm, records) : give_up(comm, status);
  }
  pith__transports_close(transport);
  return status;
}
