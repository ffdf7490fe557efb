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
  int connections, threads;
  size_t chunk;
  double timeout, liveness;
  const char *timeout_from;
  pith_tls_config tls;
} pith_settings;

/* Texts are the caller's or the environment's: they are not copied. */
pith_status pith__settings_read(const pith_config *config, pith_settings *settings);

#endif
