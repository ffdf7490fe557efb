/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the settings of a comm, and answers what can be asked of them without one. */
#include "comm/settings.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/struct_size.h"
#include "comm/comm.h"

#define DEFAULT_PORT 29499
#define DEFAULT_TIMEOUT 300.0
#define DEFAULT_LIVENESS 15.0
#define DEFAULT_EAGER 16
#define DEFAULT_CHUNK ((size_t)512 << 10)

static const char *text_of(const char *given, const char *variable, const char *otherwise) {
  const char *value = given ? given : getenv(variable);
  return value && *value ? value : otherwise;
}

static pith_status copy_config(const pith_config *given, pith_config *config) {
  *config = (pith_config)PITH_CONFIG_INIT;
  return given ? PITH_STRUCT_READ(pith_config, given, config) : PITH_OK;
}

/* Who we are and where rank 0 is: what the program says, and the launcher for the rest. */
static pith_status find_place(const pith_config *c, pith_settings *s) {
  pith_status status = pith__launch_read(pith__getenv, &s->launch);
  if (status != PITH_OK && c->rank >= 0 && c->ranks > 0) {
    pith__launch_given(pith__getenv, c->rank, c->ranks, &s->launch);
    status = PITH_OK;
  }
  PITH_TRY(status);
  s->rendezvous.rank = c->rank >= 0 ? c->rank : s->launch.rank;
  s->rendezvous.ranks = c->ranks >= 0 ? c->ranks : s->launch.ranks;
  PITH_REQUIRE(
      s->rendezvous.ranks > 0 && s->rendezvous.rank < s->rendezvous.ranks && s->rendezvous.ranks <= PITH_RANKS_MOST,
      PITH_ERR_ARGUMENT, "rank %d of %d is impossible", s->rendezvous.rank, s->rendezvous.ranks);
  int port = c->port ? c->port : s->launch.port;
  PITH_REQUIRE(port <= UINT16_MAX, PITH_ERR_ARGUMENT, "%d is no port for the rendezvous: it must be from 1 to %d", port,
               UINT16_MAX);
  s->rendezvous.port = (uint16_t)(port > 0 ? port : DEFAULT_PORT);
  s->rendezvous.host = c->host && *c->host ? c->host : s->launch.host;
  PITH_REQUIRE(*s->rendezvous.host || c->id || s->launch.local_ranks < 0 || s->rendezvous.ranks != s->launch.ranks,
               PITH_ERR_ARGUMENT,
               "the ranks run on several hosts, and %s does not say where rank 0 is: set MASTER_ADDR to an address of "
               "its host that all "
               "can reach",
               s->launch.launcher);
  s->rendezvous.host = *s->rendezvous.host ? s->rendezvous.host : "127.0.0.1";
  return PITH_OK;
}

static pith_status use_id(const pith_unique_id *id, pith_settings *s) {
  PITH_TRY(pith__unique_id_read(id, &s->id));
  s->rendezvous.host = s->id.hosts;
  s->rendezvous.port = s->id.port;
  s->rendezvous.secret = s->rendezvous.secret ? s->rendezvous.secret : s->id.secret[0] ? s->id.secret : NULL;
  if (s->rendezvous.rank == 0 && s->rendezvous.ranks > 1) {
    s->rendezvous.listener = pith__unique_id_listener(id);
    PITH_REQUIRE(s->rendezvous.listener > 0, PITH_ERR_STATE,
                 "rank 0 did not create this unique id in this process, or has used it already: an id is for one comm");
  }
  return PITH_OK;
}

/* The secret of a unique id does not count: the id may have travelled in clear. */
static pith_status read_tls(const pith_config *c, pith_settings *s) {
  PITH_TRY(pith__tls_mode_parse(text_of(c->tls, "PITH_TLS", "off"), &s->tls.mode));
  PITH_REQUIRE(s->tls.mode != PITH_TLS_PSK || s->rendezvous.secret, PITH_ERR_ARGUMENT,
               "PITH_TLS=psk takes its key from PITH_SECRET, which is not set: set the same secret on all ranks");
  if (s->tls.mode != PITH_TLS_CERT) {
    return PITH_OK;
  }
  s->tls.certificate = text_of(c->tls_cert, "PITH_TLS_CERT", NULL);
  s->tls.key = text_of(c->tls_key, "PITH_TLS_KEY", NULL);
  s->tls.authority = text_of(c->tls_ca, "PITH_TLS_CA", NULL);
  PITH_REQUIRE(s->tls.certificate && s->tls.key && s->tls.authority, PITH_ERR_ARGUMENT,
               "PITH_TLS=cert needs three files in PEM, and %s is not set: PITH_TLS_CERT, PITH_TLS_KEY and PITH_TLS_CA",
               !s->tls.certificate ? "PITH_TLS_CERT"
               : !s->tls.key       ? "PITH_TLS_KEY"
                                   : "PITH_TLS_CA");
  return PITH_OK;
}

pith_status pith__settings_read(const pith_config *config, pith_settings *s) {
  pith_config c;
  const char *timeout = getenv("PITH_TIMEOUT"), *liveness = getenv("PITH_LIVENESS");
  memset(s, 0, sizeof *s);
  PITH_TRY(copy_config(config, &c));
  PITH_TRY(find_place(&c, s));
  s->rendezvous.secret = text_of(c.secret, "PITH_SECRET", NULL);
  PITH_TRY(read_tls(&c, s));
  int is_in_environment = timeout && atof(timeout) > 0;
  s->timeout = c.timeout > 0 ? c.timeout : is_in_environment ? atof(timeout) : DEFAULT_TIMEOUT;
  s->timeout_from = c.timeout > 0       ? "pith_config.timeout"
                    : is_in_environment ? "PITH_TIMEOUT"
                                        : "default; PITH_TIMEOUT changes it";
  s->liveness = c.liveness > 0 ? c.liveness : liveness && atof(liveness) > 0 ? atof(liveness) : DEFAULT_LIVENESS;
  s->rendezvous.timeout = s->timeout;
  s->rendezvous.interrupt = (pith_interrupt){c.interrupted, c.context};
  s->transport = text_of(c.transport, "PITH_TRANSPORT", "auto");
  s->interface = text_of(c.interface, "PITH_IFNAME", NULL);
  s->host_id = text_of(c.host_id, "PITH_HOSTID", NULL);
  s->threads = c.threads ? c.threads : pith__getenv_number(pith__getenv, "PITH_THREADS");
  s->threads = s->threads > 0 ? s->threads : 1;
  s->chunk = c.chunk ? c.chunk : DEFAULT_CHUNK * (size_t)s->threads;
  s->inside = text_of(c.inside, "PITH_INSIDE", "none");
  s->connections = c.connections ? c.connections : pith__getenv_number(pith__getenv, "PITH_CONNECTIONS");
  s->connections = s->connections > 0 ? s->connections : 0;
  s->eager = c.eager ? c.eager : pith__getenv_number(pith__getenv, "PITH_EAGER");
  s->eager = s->eager > 0 ? s->eager : DEFAULT_EAGER;
  PITH_TRY(pith__algorithm_parse(text_of(c.algorithm, "PITH_ALGO", "auto"), &s->algorithm));
  return c.id ? use_id(c.id, s) : PITH_OK;
}

/* The text that is at one of these places. */
static const size_t texts[] = {offsetof(pith_settings, rendezvous.host), offsetof(pith_settings, transport),
                               offsetof(pith_settings, interface),       offsetof(pith_settings, host_id),
                               offsetof(pith_settings, inside),          offsetof(pith_settings, tls.certificate),
                               offsetof(pith_settings, tls.key),         offsetof(pith_settings, tls.authority)};
enum { TEXTS = sizeof texts / sizeof *texts };

static char **text_at(pith_settings *s, size_t place) { return (char **)(void *)((uint8_t *)s + place); }

pith_status pith__settings_keep(const pith_settings *given, pith_settings *kept) {
  int failed = 0;
  *kept = *given;
  kept->rendezvous.secret = NULL;
  memset(&kept->id, 0, sizeof kept->id);
  for (int i = 0; i < TEXTS; i++) {
    char **text = text_at(kept, texts[i]);
    failed |= *text && !(*text = strdup(*text));
  }
  PITH_REQUIRE(!failed, PITH_ERR_MEMORY, "no memory for the settings of a comm");
  return PITH_OK;
}

void pith__settings_free(pith_settings *kept) {
  for (int i = 0; i < TEXTS; i++) {
    free(*text_at(kept, texts[i]));
  }
}

pith_status pith_unique_id_create(const pith_config *config, pith_unique_id *id) {
  pith_config c;
  PITH_REQUIRE(id, PITH_ERR_ARGUMENT, "pith_unique_id_create: id must not be NULL");
  PITH_TRY(copy_config(config, &c));
  const char *towards = c.host && *c.host ? c.host : getenv("MASTER_ADDR"),
             *interface = text_of(c.interface, "PITH_IFNAME", NULL);
  int with_secret = !text_of(c.secret, "PITH_SECRET", NULL);
  if (towards && *towards && !interface && pith__unique_id_create(NULL, towards, with_secret, id) == PITH_OK) {
    return PITH_OK;
  }
  return pith__unique_id_create(interface, NULL, with_secret, id);
}

pith_status pith_tls_probe(const pith_config *config, const char **version) {
  const pith_tls_ops *ops;
  pith_tls *tls;
  pith_config c;
  pith_settings s = {0};
  PITH_TRY(copy_config(config, &c));
  s.rendezvous.secret = text_of(c.secret, "PITH_SECRET", NULL);
  PITH_TRY(read_tls(&c, &s));
  PITH_TRY(pith__tls_find(&ops));
  if (s.tls.mode != PITH_TLS_OFF) {
    PITH_TRY(ops->open(&s.tls, &tls));
    ops->close(tls);
  }
  if (version) {
    *version = ops->version();
  }
  return PITH_OK;
}
