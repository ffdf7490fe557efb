/* A comm's life: who we are, how each peer is reached, splitting, leaving. */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/forked.h"
#include "base/hash.h"
#include "base/log.h"
#include "engine/choose.h"
#include "engine/launcher.h"
#include "engine/submit.h"
#include "engine/trace.h"
#include "transport/link_key.h"
#include "transport/module.h"
#include "transport/rendezvous.h"
#include "transport/tls.h"
#include "transport/unique_id.h"

#define DEFAULT_PORT 29499
#define DEFAULT_TIMEOUT 300.0
#define DEFAULT_CHUNK ((size_t)512 << 10)
#define RANKS_MOST 4096

/* ---- Settings ---------------------------------------------------------------------------------------------------- */

static const char *text_of(const char *given, const char *variable, const char *otherwise) {
  const char *value = given ? given : getenv(variable);
  return value && *value ? value : otherwise;
}

/* The first of several variables that holds a number; -1 if none does. */
static int number_of(int given, const char *const *variables) {
  for (; given < 0 && *variables; variables++) {
    const char *text = getenv(*variables);
    char *end;
    long value = text && *text ? strtol(text, &end, 10) : -1;
    if (value >= 0 && value < INT32_MAX && *end == 0) {
      return (int)value;
    }
  }
  return given;
}

typedef struct settings {
  pith_rendezvous meet;
  pith_launch launch;
  pith_id_content id; /* if the config has one */
  const char *transport, *interface, *host_id, *inside;
  pith_algorithm algorithm;
  int connections, threads;
  size_t chunk;
  double timeout;
  const char *timeout_from;
  pith_tls_config tls;
} settings;

static const char *environment(const char *name) { return getenv(name); }

/* Every version of the header has had these fields in these places; what an older one lacks has its default. */
static pith_status copy_config(const pith_config *given, pith_config *config) {
  *config = (pith_config)PITH_CONFIG_INIT;
  if (given) {
    PITH_REQUIRE(given->size == offsetof(pith_config, id) || given->size == offsetof(pith_config, tls) ||
                     given->size == sizeof *config,
                 PITH_ERR_ARGUMENT, "pith_config.size is %zu: start from PITH_CONFIG_INIT", given->size);
    memcpy(config, given, given->size);
  }
  return PITH_OK;
}

/* Who we are and where rank 0 is: what the program says, and the launcher for the rest. */
static pith_status find_place(const pith_config *c, settings *s) {
  pith_status status = pith__launch_read(environment, &s->launch);
  if (status != PITH_OK && c->rank >= 0 && c->ranks > 0) {
    pith__launch_given(environment, c->rank, c->ranks, &s->launch);
    status = PITH_OK;
  }
  PITH_TRY(status);
  s->meet.rank = c->rank >= 0 ? c->rank : s->launch.rank;
  s->meet.ranks = c->ranks >= 0 ? c->ranks : s->launch.ranks;
  PITH_REQUIRE(s->meet.ranks > 0 && s->meet.rank < s->meet.ranks && s->meet.ranks <= RANKS_MOST, PITH_ERR_ARGUMENT,
               "rank %d of %d is impossible", s->meet.rank, s->meet.ranks);
  int port = c->port ? c->port : s->launch.port;
  s->meet.port = (uint16_t)(port > 0 ? port : DEFAULT_PORT);
  s->meet.host = c->host && *c->host ? c->host : s->launch.host;
  PITH_REQUIRE(*s->meet.host || c->id || s->launch.local_ranks < 0 || s->meet.ranks != s->launch.ranks,
               PITH_ERR_ARGUMENT,
               "the ranks run on several hosts, and %s does not say where rank 0 is: set MASTER_ADDR to an address of "
               "its host that all "
               "can reach",
               s->launch.launcher);
  s->meet.host = *s->meet.host ? s->meet.host : "127.0.0.1";
  return PITH_OK;
}

static pith_status use_id(const pith_unique_id *id, settings *s) {
  PITH_TRY(pith__unique_id_read(id, &s->id));
  s->meet.host = s->id.hosts;
  s->meet.port = s->id.port;
  s->meet.secret = s->meet.secret ? s->meet.secret : s->id.secret[0] ? s->id.secret : NULL;
  if (s->meet.rank == 0 && s->meet.ranks > 1) {
    s->meet.listener = pith__unique_id_listener(id);
    PITH_REQUIRE(s->meet.listener > 0, PITH_ERR_STATE,
                 "rank 0 did not create this unique id in this process, or has used it already: an id is for one comm");
  }
  return PITH_OK;
}

/* The secret of a unique id does not count: the id may have travelled in clear. */
static pith_status read_tls(const pith_config *c, settings *s) {
  PITH_TRY(pith__tls_mode_parse(text_of(c->tls, "PITH_TLS", "off"), &s->tls.mode));
  PITH_REQUIRE(s->tls.mode != PITH_TLS_PSK || s->meet.secret, PITH_ERR_ARGUMENT,
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

static pith_status read_settings(const pith_config *config, settings *s) {
  static const char *const connection_names[] = {"PITH_CONNECTIONS", NULL}, *const thread_names[] = {"PITH_THREADS",
                                                                                                     NULL};
  pith_config c;
  const char *timeout = getenv("PITH_TIMEOUT");
  memset(s, 0, sizeof *s);
  PITH_TRY(copy_config(config, &c));
  PITH_TRY(find_place(&c, s));
  s->meet.secret = text_of(c.secret, "PITH_SECRET", NULL);
  PITH_TRY(read_tls(&c, s));
  int is_in_environment = timeout && atof(timeout) > 0;
  s->timeout = c.timeout > 0 ? c.timeout : is_in_environment ? atof(timeout) : DEFAULT_TIMEOUT;
  s->timeout_from = c.timeout > 0       ? "pith_config.timeout"
                    : is_in_environment ? "PITH_TIMEOUT"
                                        : "default; PITH_TIMEOUT changes it";
  s->meet.timeout = s->timeout;
  s->transport = text_of(c.transport, "PITH_TRANSPORT", "auto");
  s->interface = text_of(c.interface, "PITH_IFNAME", NULL);
  s->host_id = text_of(c.host_id, "PITH_HOSTID", NULL);
  s->threads = c.threads ? c.threads : number_of(-1, thread_names);
  s->threads = s->threads > 0 ? s->threads : 1;
  s->chunk = c.chunk ? c.chunk : DEFAULT_CHUNK * (size_t)s->threads;
  s->inside = text_of(c.inside, "PITH_INSIDE", "none");
  s->connections = c.connections ? c.connections : number_of(-1, connection_names);
  s->connections = s->connections > 0 ? s->connections : 0;
  PITH_TRY(pith__algorithm_parse(text_of(c.algorithm, "PITH_ALGO", "auto"), &s->algorithm));
  return c.id ? use_id(c.id, s) : PITH_OK;
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

/* ---- Addresses --------------------------------------------------------------------------------------------------- */

enum { KIND_LOCAL, KIND_NETWORK, KINDS };

/* What every rank tells the others before they connect. */
typedef struct card {
  uint64_t host; /* ranks with the same number share memory, … */
  uint64_t user; /* … if they run as the same user */
  pith_address address[KINDS];
} card;

static uint64_t hash_file(const char *path, uint64_t start) {
  char text[256];
  ssize_t size = readlink(path, text, sizeof text);
  if (size < 0) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    size = file >= 0 ? read(file, text, sizeof text) : 0;
    if (file >= 0) {
      close(file);
    }
  }
  return pith__hash64(text, size > 0 ? (size_t)size : 0, start);
}

static uint64_t host_number(const char *host_id) {
  if (host_id) {
    return pith__hash64(host_id, strlen(host_id), 1);
  }
  return hash_file("/proc/self/ns/net", hash_file("/proc/sys/kernel/random/boot_id", 2));
}

/* Which transports a comm may use, by kind; NULL for none. */
typedef struct choice {
  const pith_transport_ops *kind[KINDS];
} choice;

static pith_status find_transport(const char *name, const pith_transport_ops **found) {
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
  PITH_TRY(find_transport(name, &transport));
  return transport->probe();
}

pith_status pith_tls_probe(const pith_config *config, const char **version) {
  const pith_tls_ops *ops;
  pith_tls *tls;
  pith_config c;
  settings s = {0};
  PITH_TRY(copy_config(config, &c));
  s.meet.secret = text_of(c.secret, "PITH_SECRET", NULL);
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

static pith_status choose_transports(const char *name, pith_tls_mode tls, choice *chosen) {
  *chosen = (choice){{NULL, NULL}};
  if (strcmp(name, "auto") == 0) {
    chosen->kind[KIND_LOCAL] = pith__transport_shm.probe() == PITH_OK ? &pith__transport_shm : NULL;
    chosen->kind[KIND_NETWORK] = &pith__transport_tcp;
    return PITH_OK;
  }
  PITH_REQUIRE(tls == PITH_TLS_OFF || (strcmp(name, "mpi") != 0 && strcmp(name, "ucx") != 0), PITH_ERR_UNSUPPORTED,
               "PITH_TLS=%s cannot be kept: the %s transport sends in clear, and tcp is the one that encrypts",
               pith__tls_mode_name(tls), name);
  const pith_transport_ops *only = NULL;
  PITH_TRY(find_transport(name, &only));
  PITH_TRY(only->probe());
  chosen->kind[only == &pith__transport_shm || only == &pith__transport_inproc ? KIND_LOCAL : KIND_NETWORK] = only;
  return PITH_OK;
}

static pith_status listen_all(const choice *chosen, const pith_transport_config *config, pith_transport **transport,
                              card *mine) {
  for (int k = 0; k < KINDS; k++) {
    transport[k] = NULL;
    mine->address[k].size = 0;
    if (chosen->kind[k]) {
      PITH_TRY(chosen->kind[k]->listen(config, &transport[k], &mine->address[k]));
    }
  }
  return PITH_OK;
}

static void close_all(pith_transport **transport) {
  for (int k = 0; k < KINDS; k++) {
    if (transport[k]) {
      transport[k]->ops->close(transport[k]);
    }
  }
}

static pith_status connect_kind(pith_comm *comm, pith_transport *transport, int kind, const card *cards,
                                const uint8_t *wanted) {
  pith_address *address = calloc((size_t)comm->ranks, sizeof *address);
  PITH_REQUIRE(address, PITH_ERR_MEMORY, "no memory for the addresses of %d ranks", comm->ranks);
  for (int p = 0; p < comm->ranks; p++) {
    address[p] = cards[p].address[kind];
    if (wanted[p]) {
      comm->link[p].transport = transport;
      comm->link[p].remote = kind == KIND_NETWORK && cards[p].host != cards[comm->rank].host;
      comm->link[p].checked = comm->link[p].remote && comm->tls == PITH_TLS_OFF; /* TLS finds damage by itself */
    }
  }
  pith_status status = transport->ops->connect(transport, address, wanted, &comm->key);
  free(address);
  return status;
}

/* A peer is reached locally if both can and share a host and a user (or, for threads, whatever they call their hosts),
 * else over the network. */
static int kind_of(const pith_comm *comm, const card *mine, const card *theirs) {
  int together = (mine->host == theirs->host && mine->user == theirs->user) ||
                 strcmp(comm->transport_name, pith__transport_inproc.name) == 0;
  int local = mine->address[KIND_LOCAL].size && theirs->address[KIND_LOCAL].size && together;
  int network = mine->address[KIND_NETWORK].size && theirs->address[KIND_NETWORK].size;
  return local ? KIND_LOCAL : network ? KIND_NETWORK : -1;
}

static pith_status connect_all(pith_comm *comm, pith_transport **transport, const card *cards) {
  uint8_t wanted[KINDS][RANKS_MOST] = {{0}};
  int count[KINDS] = {0};
  for (int p = 0; p < comm->ranks; p++) {
    if (p == comm->rank) {
      continue;
    }
    int kind = kind_of(comm, &cards[comm->rank], &cards[p]);
    PITH_REQUIRE(kind >= 0, PITH_ERR_UNSUPPORTED,
                 "ranks %d and %d have no transport in common: they are on different hosts, run as different users, or "
                 "chose different ones",
                 comm->rank, p);
    wanted[kind][p] = 1;
    count[kind]++;
  }
  for (int k = 0; k < KINDS; k++) {
    if (count[k] && transport[k]) {
      PITH_TRY(connect_kind(comm, transport[k], k, cards, wanted[k]));
      comm->transport[comm->transports++] = transport[k];
      transport[k] = NULL; /* the comm's now */
    }
  }
  return PITH_OK;
}

/* ---- Hosts ------------------------------------------------------------------------------------------------------- */

static pith_status lay_out(pith_comm *comm, const card *cards) {
  uint64_t *host = calloc((size_t)comm->ranks, sizeof *host);
  PITH_REQUIRE(host, PITH_ERR_MEMORY, "no memory for the hosts of %d ranks", comm->ranks);
  for (int p = 0; p < comm->ranks; p++) {
    host[p] = cards[p].host;
  }
  pith_status status = pith__layout_create(comm->ranks, host, &comm->hosts);
  free(host);
  return status;
}

/* The codecs a comm itself needs. */
static pith_status make_codecs(pith_comm *comm, const char *inside) {
  PITH_TRY(pith_codec_create("threshold:1e-45", &comm->entries));
  if (strcmp(inside, "none") == 0) {
    return PITH_OK;
  }
  PITH_TRY(pith_codec_create(inside, &comm->inside));
  PITH_REQUIRE(
      (comm->inside->caps & PITH_CAP_CHUNKED) && !comm->inside->memory && !(comm->inside->caps & PITH_CAP_VOTE),
      PITH_ERR_UNSUPPORTED, "%s cannot be used inside hosts: that takes a codec for pieces, without memory or vote",
      inside);
  return PITH_OK;
}

/* ---- The object -------------------------------------------------------------------------------------------------- */

static void init_links(pith_comm *comm) {
  for (int p = 0; p < comm->ranks; p++) {
    pith_link *link = &comm->link[p];
    *link = (pith_link){.comm = comm, .peer = p};
    link->out_end = &link->out;
    link->posted_end = &link->posted;
    link->early_end = &link->early;
  }
}

/* A copy, for splits later; NULL stays NULL. */
static pith_status keep_text(const char *text, char **copy) {
  *copy = text ? strdup(text) : NULL;
  PITH_REQUIRE(*copy || !text, PITH_ERR_MEMORY, "no memory for the settings of a comm");
  return PITH_OK;
}

static pith_status make_comm(int rank, int ranks, const settings *s, pith_comm **made) {
  pith_comm *comm = calloc(1, sizeof *comm);
  PITH_REQUIRE(comm, PITH_ERR_MEMORY, "no memory for a comm");
  *comm = (pith_comm){.made_in = pith__fork_number(),
                      .rank = rank,
                      .ranks = ranks,
                      .timeout = s->timeout,
                      .timeout_from = s->timeout_from,
                      .chunk = s->chunk,
                      .wake = -1,
                      .cost = pith__cost_default,
                      .algorithm = s->algorithm,
                      .connections = s->connections,
                      .tls = s->tls.mode};
  comm->running_end = &comm->running;
  comm->tracing = pith__trace_start(rank);
  comm->link = calloc((size_t)ranks, sizeof *comm->link);
  comm->wake = pith__fd_keep(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  pith__pool_init(&comm->pool);
  pthread_mutex_init(&comm->mutex, NULL);
  pthread_mutex_init(&comm->gate, NULL);
  pthread_cond_init(&comm->changed, NULL);
  *made = comm;
  PITH_TRY(keep_text(s->meet.host, &comm->host));
  PITH_TRY(keep_text(s->transport, &comm->transport_name));
  PITH_TRY(keep_text(s->interface, &comm->interface));
  PITH_TRY(keep_text(s->host_id, &comm->host_id));
  PITH_TRY(keep_text(s->tls.certificate, &comm->tls_files[0]));
  PITH_TRY(keep_text(s->tls.key, &comm->tls_files[1]));
  PITH_TRY(keep_text(s->tls.authority, &comm->tls_files[2]));
  PITH_REQUIRE(comm->link, PITH_ERR_MEMORY, "no memory for the links to %d ranks", ranks);
  init_links(comm);
  PITH_TRY(pith__layout_create(ranks, NULL, &comm->flat));
  PITH_TRY(make_codecs(comm, s->inside));
  PITH_REQUIRE(comm->wake >= 0, PITH_ERR_SYSTEM, "eventfd: %s", strerror(errno));
  return s->threads > 1 ? pith__crew_create((unsigned)s->threads, &comm->crew) : PITH_OK;
}

static void free_comm(pith_comm *comm) {
  if (!comm) {
    return;
  }
  for (int t = 0; t < comm->transports; t++) {
    comm->transport[t]->ops->close(comm->transport[t]);
  }
  pith__fd_close(comm->wake);
  pith__crew_destroy(comm->crew);
  pith__pool_fini(&comm->pool);
  pthread_mutex_destroy(&comm->mutex);
  pthread_mutex_destroy(&comm->gate);
  pthread_cond_destroy(&comm->changed);
  free(comm->host);
  free(comm->transport_name);
  free(comm->interface);
  free(comm->host_id);
  for (int i = 0; i < 3; i++) {
    free(comm->tls_files[i]);
  }
  pith__layout_destroy(comm->hosts);
  pith__layout_destroy(comm->flat);
  pith_codec_destroy(comm->inside);
  pith_codec_destroy(comm->entries);
  for (int i = 0; i < comm->spec_count; i++) {
    free(comm->specs[i].text);
  }
  free(comm->link);
  free(comm);
}

/* How the cards of all ranks are exchanged: at the rendezvous, or over the parent of a split. */
typedef pith_status (*exchange_fn)(void *how, const card *mine, card *all, pith_link_key *key);

static pith_status join(pith_comm *comm, const settings *s, exchange_fn exchange, void *how) {
  choice chosen;
  pith_transport *transport[KINDS] = {NULL, NULL};
  card *cards = calloc((size_t)comm->ranks, sizeof *cards);
  PITH_REQUIRE(cards, PITH_ERR_MEMORY, "no memory for the addresses of %d ranks", comm->ranks);
  card mine = {.host = host_number(s->host_id), .user = geteuid()};
  pith_transport_config config = {.rank = comm->rank,
                                  .ranks = comm->ranks,
                                  .interface = s->interface,
                                  .connections = s->connections,
                                  .timeout = s->timeout,
                                  .rendezvous_host = s->meet.host,
                                  .tls = s->tls};
  pith_status status = choose_transports(s->transport, s->tls.mode, &chosen);
  if (status == PITH_OK) {
    status = listen_all(&chosen, &config, transport, &mine);
  }
  if (status == PITH_OK) {
    status = exchange(how, &mine, cards, &comm->key);
  }
  if (status == PITH_OK) {
    status = connect_all(comm, transport, cards);
  }
  if (status == PITH_OK) {
    status = lay_out(comm, cards);
  }
  close_all(transport);
  free(cards);
  return status;
}

static pith_status exchange_at_rendezvous(void *how, const card *mine, card *all, pith_link_key *key) {
  pith_rendezvous *meet = how, with_listener = *meet;
  uint64_t job;
  meet->listener = 0; /* the rendezvous closes it */
  PITH_TRY(pith__rendezvous_exchange(&with_listener, mine, sizeof *mine, all, &job));
  pith__link_key_make(meet->secret, job, key);
  return PITH_OK;
}

pith_status pith_comm_create(const pith_config *config, pith_comm **made) {
  settings s;
  pith_comm *comm = NULL;
  PITH_REQUIRE(made, PITH_ERR_ARGUMENT, "pith_comm_create: comm must not be NULL");
  PITH_TRY(read_settings(config, &s));
  pith_status status = make_comm(s.meet.rank, s.meet.ranks, &s, &comm);
  if (status == PITH_OK && comm->ranks == 1) {
    status = pith__layout_create(1, NULL, &comm->hosts);
  }
  if (status == PITH_OK && comm->ranks > 1) {
    status = join(comm, &s, exchange_at_rendezvous, &s.meet);
  }
  if (s.meet.listener > 0) { /* an id's, and nobody has come to use it */
    pith__fd_close(s.meet.listener);
  }
  if (status != PITH_OK) {
    free_comm(comm);
    return status;
  }
  *made = comm;
  return PITH_OK;
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

/* Everybody's colour and key over the parent; those of our colour stay, sorted. */
static pith_status find_group(pith_comm *parent, int color, int key, group *g) {
  member mine = {color, key, parent->rank};
  g->parent = parent;
  g->members = calloc((size_t)parent->ranks, sizeof *g->members);
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

/* All ranks of the parent take part, also those that join no group. */
static pith_status exchange_over_parent(void *how, const card *mine, card *all, pith_link_key *key) {
  group *g = how;
  card *cards = calloc((size_t)g->parent->ranks, sizeof *cards);
  PITH_REQUIRE(cards, PITH_ERR_MEMORY, "no memory to split %d ranks", g->parent->ranks);
  pith_status status =
      pith_all_gather(g->parent, (pith_cspan){mine, sizeof *mine, PITH_U8},
                      (pith_span){cards, (size_t)g->parent->ranks * sizeof *cards, PITH_U8}, NULL, NULL, NULL);
  for (int p = 0; p < g->ranks && status == PITH_OK && all; p++) {
    all[p] = cards[g->members[p].rank];
  }
  free(cards);
  pith__link_key_split(&g->parent->key, ++g->parent->splits, key);
  return status;
}

static pith_status join_group(pith_comm *parent, group *g, pith_comm **made) {
  settings s = {.meet = {.host = parent->host},
                .transport = parent->transport_name,
                .interface = parent->interface,
                .host_id = parent->host_id,
                .chunk = parent->chunk,
                .timeout = parent->timeout,
                .timeout_from = parent->timeout_from,
                .algorithm = parent->algorithm,
                .connections = parent->connections,
                .threads = (int)pith__crew_size(parent->crew),
                .inside = parent->inside ? parent->inside->spec : "none",
                .tls = {.mode = parent->tls,
                        .certificate = parent->tls_files[0],
                        .key = parent->tls_files[1],
                        .authority = parent->tls_files[2]}};
  PITH_TRY(make_comm(g->rank, g->ranks, &s, made));
  return join(*made, &s, exchange_over_parent, g);
}

pith_status pith_comm_split(pith_comm *parent, int color, int key, pith_comm **made) {
  PITH_REQUIRE(parent && made, PITH_ERR_ARGUMENT, "pith_comm_split: comm and group must not be NULL");
  PITH_TRY(pith__check_comm(parent));
  group g = {0};
  pith_comm *comm = NULL;
  pith_status status = find_group(parent, color, key, &g);
  if (status == PITH_OK && color < 0) {
    card nothing = {0};
    pith_link_key unused;
    status = exchange_over_parent(&g, &nothing, NULL, &unused);
  } else if (status == PITH_OK) {
    status = join_group(parent, &g, &comm);
  }
  free(g.members);
  if (status != PITH_OK) {
    free_comm(comm);
    return status;
  }
  *made = comm;
  return PITH_OK;
}

/* ---- Asking and leaving ------------------------------------------------------------------------------------------ */

/* Whether this process is a child of the one whose comm it is. */
static int is_forked(const pith_comm *comm) { return comm->made_in != pith__fork_number(); }

int pith_comm_rank(const pith_comm *comm) { return comm ? comm->rank : -1; }

int pith_comm_ranks(const pith_comm *comm) { return comm ? comm->ranks : 0; }

const char *pith_comm_transport(const pith_comm *comm, int peer) {
  return !comm || peer < 0 || peer >= comm->ranks ? "none"
         : comm->link[peer].transport             ? comm->link[peer].transport->ops->name
                                                  : "self";
}

double pith_comm_timeout(const pith_comm *comm) {
  pith_comm *locked = (pith_comm *)(uintptr_t)comm;
  pith__comm_lock(locked);
  double seconds = comm->timeout;
  pthread_mutex_unlock(&locked->mutex);
  return seconds;
}

pith_status pith_comm_set_timeout(pith_comm *comm, double seconds) {
  PITH_REQUIRE(comm, PITH_ERR_ARGUMENT, "pith_comm_set_timeout: comm must not be NULL");
  PITH_REQUIRE(seconds > 0 && seconds < 1e9, PITH_ERR_RANGE,
               "a time-out of %g s: more than 0 and less than 1e9 are expected", seconds);
  pith__comm_lock(comm);
  comm->timeout = seconds;
  comm->timeout_from = "pith_comm_set_timeout()";
  pith__comm_wake(comm); /* it may sleep for longer than that */
  pthread_mutex_unlock(&comm->mutex);
  return PITH_OK;
}

pith_status pith_comm_stats(const pith_comm *comm, pith_stats *stats) {
  PITH_REQUIRE(comm && stats, PITH_ERR_ARGUMENT, "pith_comm_stats: comm and stats must not be NULL");
  PITH_TRY(pith__check_comm(comm));
  PITH_REQUIRE(stats->size == sizeof *stats, PITH_ERR_ARGUMENT, "pith_stats.size is %zu, not %zu", stats->size,
               sizeof *stats);
  pith_comm *locked = (pith_comm *)(uintptr_t)comm;
  pith__comm_lock(locked);
  *stats = comm->stats;
  pthread_mutex_unlock(&locked->mutex);
  stats->size = sizeof *stats;
  return PITH_OK;
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
  *traffic = comm->traffic[kind];
  pthread_mutex_unlock(&locked->mutex);
  return PITH_OK;
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

/* Requests outlive the comm until somebody waits for them. */
static void disown_requests(pith_comm *comm) {
  for (pith_operation *op = comm->running; op; op = op->next) {
    op->status = op->done ? op->status : PITH_ERR_ABORTED;
    op->comm = NULL;
    op->job.schedule.pool = NULL;
    op->done = 1;
  }
}

/* In a child. No thread is there to drive, mutexes and lists may be in any state, and requests may still point at the
 * comm: only what the transports hold goes, above all shared memory. Nothing is sent. */
static void destroy_copy(pith_comm *comm) {
  while (comm->transports > 0) {
    pith_transport *transport = comm->transport[--comm->transports];
    transport->ops->close(transport);
  }
}

void pith_comm_destroy(pith_comm *comm) {
  if (!comm) {
    return;
  }
  if (is_forked(comm)) {
    destroy_copy(comm);
    return;
  }
  pith__comm_stop_thread(comm);
  pith__comm_lock(comm);
  if (comm->failed == PITH_OK) {
    for (int p = 0; p < comm->ranks; p++) {
      pith__link_notice(&comm->link[p], PITH_FRAME_GOODBYE, "");
    }
  }
  pith__comm_flush(comm, (comm->failed == PITH_OK ? pith__now() : comm->failed_at) + 1.0);
  disown_requests(comm);
  for (int p = 0; p < comm->ranks; p++) {
    pith__link_clear(&comm->link[p]);
  }
  pthread_mutex_unlock(&comm->mutex);
  free_comm(comm);
}
