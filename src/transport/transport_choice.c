/* SPDX-License-Identifier: Apache-2.0 */
/* Transports by name: those of the library, and those of modules. */
#include "transport/transport_choice.h"

#include <pith/comm.h>
#include <string.h>

#include "transport/module.h"
#include "transport/tls.h"

static pith_status find(const char *name, const pith_transport_ops **found) {
  static const pith_transport_ops *const all[] = {&pith__transport_shm, &pith__transport_tcp, &pith__transport_inproc};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    if (strcmp(all[i]->name, name) == 0) {
      *found = all[i];
      return PITH_OK;
    }
  }
  PITH_REQUIRE(strcmp(name, "mpi") == 0 || strcmp(name, "ucx") == 0, PITH_ERR_ARGUMENT,
               "there is no transport \"%s\": auto, shm, tcp, mpi, ucx or inproc", name);
  return pith__transport_open(name, found);
}

pith_status pith_transport_probe(const char *name) {
  PITH_REQUIRE(name, PITH_ERR_ARGUMENT, "pith_transport_probe: name must not be NULL");
  const pith_transport_ops *transport = NULL;
  PITH_TRY(find(name, &transport));
  return transport->probe();
}

static pith_status choose(const char *name, pith_tls_mode tls, const pith_transport_ops **chosen) {
  if (strcmp(name, "auto") == 0) {
    chosen[PITH_KIND_LOCAL] = pith__transport_shm.probe() == PITH_OK ? &pith__transport_shm : NULL;
    chosen[PITH_KIND_NETWORK] = &pith__transport_tcp;
    return PITH_OK;
  }
  PITH_REQUIRE(tls == PITH_TLS_OFF || (strcmp(name, "mpi") != 0 && strcmp(name, "ucx") != 0), PITH_ERR_UNSUPPORTED,
               "PITH_TLS=%s cannot be kept: the %s transport sends in clear, and tcp is the one that encrypts",
               pith__tls_mode_name(tls), name);
  const pith_transport_ops *only = NULL;
  PITH_TRY(find(name, &only));
  PITH_TRY(only->probe());
  chosen[only == &pith__transport_shm || only == &pith__transport_inproc ? PITH_KIND_LOCAL : PITH_KIND_NETWORK] = only;
  return PITH_OK;
}

pith_status pith__transports_listen(const char *name, const pith_transport_config *config,
                                    pith_transport *transport[PITH_KINDS], pith_address_record *mine) {
  const pith_transport_ops *chosen[PITH_KINDS] = {NULL, NULL};
  PITH_TRY(choose(name, config->tls.mode, chosen));
  for (int k = 0; k < PITH_KINDS; k++) {
    if (chosen[k]) {
      PITH_TRY(chosen[k]->listen(config, &transport[k], &mine->address[k]));
    }
  }
  return PITH_OK;
}

/* Locally if both can and share a host and a user (or, for threads, whatever they call their hosts), else over the
 * network. */
int pith__transports_kind(const char *name, const pith_address_record *mine, const pith_address_record *theirs) {
  int together =
      (mine->host == theirs->host && mine->user == theirs->user) || strcmp(name, pith__transport_inproc.name) == 0;
  int local = mine->address[PITH_KIND_LOCAL].size && theirs->address[PITH_KIND_LOCAL].size && together;
  int network = mine->address[PITH_KIND_NETWORK].size && theirs->address[PITH_KIND_NETWORK].size;
  return local ? PITH_KIND_LOCAL : network ? PITH_KIND_NETWORK : -1;
}

void pith__transports_close(pith_transport *transport[PITH_KINDS]) {
  for (int k = 0; k < PITH_KINDS; k++) {
    if (transport[k]) {
      transport[k]->ops->close(transport[k]);
    }
  }
}
