/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a comm is made from: the caller's config, else the variables of the environment, else the launcher's, else a
 * default.
 */
#ifndef PITH_COMM_SETTINGS_H
#define PITH_COMM_SETTINGS_H

#include "collective/cost.h"
#include "transport/launcher.h"
#include "transport/rendezvous.h"
#include "transport/tls.h"
#include "transport/unique_id.h"

#define PITH_RANKS_MOST 4096

typedef struct pith_settings {
  pith_rendezvous rendezvous;
  pith_launch launch;
  pith_id_content id; /* if the config has one */
  const char *transport, *interface, *host_id, *inside;
  pith_algorithm algorithm;
  int connections, threads, eager;
  size_t chunk;
  double timeout, liveness; /* liveness: seconds a host may not answer */
  const char *timeout_from; /* what set it, for messages */
  pith_tls_config tls;
} pith_settings;

/* Texts are the caller's or the environment's: they are not copied. */
pith_status pith__settings_read(const pith_config *config, pith_settings *settings);

/* A copy with texts of its own, but for secrets, which are not kept; to be freed also after a failure. */
pith_status pith__settings_keep(const pith_settings *given, pith_settings *kept);
void pith__settings_free(pith_settings *kept);

#endif
