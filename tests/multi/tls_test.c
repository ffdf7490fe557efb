/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp with TLS: the laws of all transports, with the job's key and with certificates; and somebody on the wire between
 * two ranks, who reads, changes, repeats, cuts, and tries to be one of them. Then the same through pith_comm_create.
 */
#include "transport/tls.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/comm.h"
#include "ranks.h"
#include "transport/tcp.h"
#include "transport_laws.h"

/* ---- tcp with TLS, for the laws ---------------------------------------------------------------------------------- */

static pith_tls_config tls_of[WORLD_RANKS_MOST];
static int connections;
static pith_transport_ops tls;

static pith_status listen_with_tls(const pith_transport_config *config, pith_transport **transport,
                                   pith_address *address) {
  pith_transport_config changed = *config;
  changed.connections = connections;
  changed.rendezvous_host = "127.0.0.1";
  changed.tls = tls_of[config->rank];
  return pith__transport_tcp.listen(&changed, transport, address);
}

/* The module must be there, or the test cannot run. */
static void need_tls(void) {
  const pith_tls_ops *ops;
  setenv("PITH_MODULE_PATH", MODULES, 1);
  if (pith__tls_find(&ops) != PITH_OK) {
    LACKS("tls", "%s", pith_error());
  }
}

static const transport_world *world_of(world_kind kind, const pith_tls_config *config) {
  static transport_world world;
  need_tls();
  for (int i = 0; i < WORLD_RANKS_MOST; i++) {
    tls_of[i] = *config;
  }
  tls = pith__transport_tcp;
  tls.listen = listen_with_tls;
  world = (transport_world){&tls, kind};
  return &world;
}

static const pith_tls_config by_key = {.mode = PITH_TLS_PSK}, in_clear = {.mode = PITH_TLS_OFF};

#define PROCESSES world_of(WORLD_PROCESSES, &by_key)
#define THREADS world_of(WORLD_THREADS, &by_key)

TEST(bytes_arrive_in_order) { law_bytes_arrive_in_order(PROCESSES, 300000); }
TEST(bytes_arrive_in_order_among_threads) { law_bytes_arrive_in_order(THREADS, 100000); }

TEST(bytes_arrive_in_order_over_several_connections) {
  for (connections = 2; connections <= 4; connections++) {
    pith__tcp_block_size = connections == 3 ? 1 : test_below(5000) + 1;
    law_bytes_arrive_in_order(PROCESSES, connections == 3 ? 2000 : 100000);
  }
}

TEST(bytes_arrive_in_order_in_the_usual_blocks) {
  connections = 3;
  law_bytes_arrive_in_order(PROCESSES, 1500000);
}

TEST(bytes_arrive_in_order_while_keys_change) {
  pith_tls_config often = by_key;
  often.records_most = 3;
  law_bytes_arrive_in_order(world_of(WORLD_PROCESSES, &often), 300000);
}

TEST(no_wakeup_is_lost) { law_no_wakeup_is_lost(PROCESSES, 1500); }

TEST(no_wakeup_is_lost_over_several_connections) {
  connections = 3;
  pith__tcp_block_size = 3;
  law_no_wakeup_is_lost(PROCESSES, 1000);
}

TEST(one_silent_reader_blocks_no_other) { law_one_silent_reader_blocks_no_other(PROCESSES); }
TEST(last_bytes_of_a_closed_peer_arrive) { law_last_bytes_of_a_closed_peer_arrive(PROCESSES); }
TEST(last_bytes_of_a_killed_peer_arrive) { law_last_bytes_of_a_killed_peer_arrive(PROCESSES); }
TEST(a_spinning_rank_notices_a_killed_peer) { law_a_spinning_rank_notices_a_killed_peer(PROCESSES); }
TEST(a_stopped_peer_only_waits) { law_a_stopped_peer_only_waits(PROCESSES); }
TEST(groups_do_not_mix) { law_groups_do_not_mix(PROCESSES); }
TEST(one_rank_alone_works) { law_one_rank_alone_works(PROCESSES); }
TEST(a_missing_rank_is_named) { law_a_missing_rank_is_named(PROCESSES); }
TEST(another_job_is_not_met) { law_another_job_is_not_met(PROCESSES); }
TEST(nothing_leaks) { law_nothing_leaks(PROCESSES); }

/* ---- Certificates ------------------------------------------------------------------------------------------------ */

static char folder[64];

static void forget_folder(void) {
  char command[128];
  snprintf(command, sizeof command, "rm -rf %s", folder);
  CHECK_EQ(system(command), 0);
}

/* Makes NAME.pem and NAME.key, signed by the authority `by`, or by itself. */
static void make_certificate(const char *name, const char *by) {
  char command[1024];
  int used = snprintf(command, sizeof command,
                      "cd %s && openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 "
                      "-subj /CN=%s -keyout %s.key -out %s.pem",
                      folder, name, name, name);
  if (by) {
    used += snprintf(command + used, sizeof command - (size_t)used,
                     " -CA %s.pem -CAkey %s.key -addext basicConstraints=critical,CA:false", by, by);
  }
  snprintf(command + used, sizeof command - (size_t)used, " >/dev/null 2>&1");
  if (system("command -v openssl >/dev/null") != 0) {
    LACKS("tls", "no openssl command to make certificates with");
  }
  CHECK_MSG(system(command) == 0, "%s", command);
}

static const char *in_folder(const char *name) {
  static char paths[16][128];
  static int next;
  char *path = paths[next++ % 16];
  snprintf(path, sizeof paths[0], "%s/%s", folder, name);
  return path;
}

/* Two authorities, a rank of each. `openssl req -CA` came with OpenSSL 3. */
static void make_certificates(void) {
  need_tls();
  snprintf(folder, sizeof folder, "/tmp/pith_tls_test_%d", (int)getpid());
  CHECK_EQ(mkdir(folder, 0700), 0);
  make_certificate("ca", NULL);
  make_certificate("rank", "ca");
  make_certificate("foreign_ca", NULL);
  make_certificate("foreign", "foreign_ca");
}

static pith_tls_config certificates(const char *certificate, const char *key, const char *authority) {
  return (pith_tls_config){.mode = PITH_TLS_CERT,
                           .certificate = in_folder(certificate),
                           .key = in_folder(key),
                           .authority = in_folder(authority)};
}

TEST(certificates_carry_bytes_and_other_jobs_with_them_are_not_met) {
  make_certificates();
  pith_tls_config config = certificates("rank.pem", "rank.key", "ca.pem");
  law_bytes_arrive_in_order(world_of(WORLD_PROCESSES, &config), 100000);
  law_last_bytes_of_a_killed_peer_arrive(world_of(WORLD_PROCESSES, &config));
  law_another_job_is_not_met(world_of(WORLD_PROCESSES, &config));
  forget_folder();
}

/* Rank 1's certificate is of another authority, or rank 1 expects another one. */
static void be_foreign(world_rank *me) {
  world_listen(me, 1);
  world_barrier(me);
  CHECK(world_connect(me, (const uint8_t[]){me->rank != 0, me->rank != 1}) != PITH_OK);
  CHECK_ERROR_SAYS(me->rank ? "rank 0" : "rank 1");
  int refuses = (strcmp(me->argument, "by rank 1") == 0) == (me->rank == 1);
  CHECK_ERROR_SAYS(refuses ? "its certificate is refused" : "the alert \"unknown CA\"");
  world_barrier(me);
}

TEST(certificates_of_another_authority_are_refused) {
  make_certificates();
  const transport_world *world = world_of(WORLD_PROCESSES, &by_key);
  tls_of[0] = certificates("rank.pem", "rank.key", "ca.pem");
  tls_of[1] = certificates("foreign.pem", "foreign.key", "ca.pem");
  world_run_unconnected(world, 2, 0, be_foreign, "by rank 0");
  tls_of[1] = certificates("rank.pem", "rank.key", "foreign_ca.pem");
  world_run_unconnected(world, 2, 0, be_foreign, "by rank 1");
  forget_folder();
}

static void check_files(const pith_tls_config *config, const char *variable, const char *file) {
  const pith_tls_ops *ops;
  pith_tls *made;
  CHECK_OK(pith__tls_find(&ops));
  CHECK_STATUS(ops->open(config, &made), PITH_ERR_ARGUMENT);
  CHECK_ERROR_SAYS(variable);
  CHECK_ERROR_SAYS(file);
}

TEST(files_that_are_no_certificates_are_named) {
  make_certificates();
  pith_tls_config config = certificates("nowhere.pem", "rank.key", "ca.pem");
  check_files(&config, "PITH_TLS_CERT", "nowhere.pem cannot be read: No such file");
  config = certificates("rank.key", "rank.key", "ca.pem");
  check_files(&config, "PITH_TLS_CERT", "rank.key");
  config = certificates("rank.pem", "foreign.key", "ca.pem");
  check_files(&config, "PITH_TLS_KEY", "foreign.key cannot be used: key values mismatch");
  config = certificates("rank.pem", "rank.key", "rank.key");
  check_files(&config, "PITH_TLS_CA", "rank.key");
  CHECK_EQ(system("openssl ec -aes128 -passout pass:hush -in /dev/null 2>/dev/null; true"), 0);
  char command[256];
  snprintf(command, sizeof command, "cd %s && openssl ec -aes128 -passout pass:hush -in rank.key -out locked.key 2>&1",
           folder);
  CHECK_EQ(system(command), 0);
  config = certificates("rank.pem", "locked.key", "ca.pem");
  check_files(&config, "PITH_TLS_KEY", "locked.key"); /* and nobody is asked for the passphrase */
  forget_folder();
}

/* ---- Ranks that do not agree about it ---------------------------------------------------------------------------- */

static void differ(world_rank *me) {
  world_listen(me, 5);
  world_barrier(me);
  CHECK_STATUS(world_connect(me, (const uint8_t[]){me->rank != 0, me->rank != 1}), PITH_ERR_MISMATCH);
  CHECK_ERROR_SAYS("rank 0 has PITH_TLS=off");
  CHECK_ERROR_SAYS("rank 1 has PITH_TLS=psk");
  world_barrier(me);
}

TEST(one_rank_without_encryption_is_an_error_on_both) {
  const transport_world *world = PROCESSES;
  tls_of[0] = in_clear;
  world_run_unconnected(world, 2, 0, differ, NULL);
}

/* Rank 1 finds no module: it says so, and so does rank 0. */
static void lack_the_module(world_rank *me) {
  if (me->rank == 1) {
    setenv("PITH_MODULE_PATH", "/nowhere", 1);
  }
  world_listen(me, 5);
  world_barrier(me);
  CHECK_STATUS(world_connect(me, (const uint8_t[]){me->rank != 0, me->rank != 1}),
               me->rank ? PITH_ERR_UNSUPPORTED : PITH_ERR_PEER);
  CHECK_ERROR_SAYS("rank 1 cannot encrypt (PITH_TLS=psk): no pith_tls.so");
  CHECK_ERROR_SAYS("/nowhere");
  world_barrier(me);
}

TEST(a_rank_without_the_module_is_named_with_the_reason) {
  world_run_unconnected(PROCESSES, 2, 0, lack_the_module, NULL);
}

/* ---- Somebody on the wire ---------------------------------------------------------------------------------------- */

enum { RECORDED_MOST = 1 << 20, TO_LISTENER = 0, TO_CALLER = 1 };

typedef enum proxy_deed { PASS, CHANGE, REPEAT, CUT } proxy_deed;

/* Stands between rank 1, which calls, and rank 0, which listens. */
typedef struct proxy {
  int listener, caller, target; /* descriptors */
  uint16_t port;
  pthread_t thread;
  pthread_mutex_t mutex;
  proxy_deed deed; /* with the next bytes for the listener */
  size_t recorded[2];
  uint8_t *record[2];
} proxy;

static int dial(uint16_t port) {
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port)};
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  CHECK_EQ(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
  return fd;
}

static void throw(int fd, const void *bytes, size_t size) {
  CHECK(send(fd, bytes, size, MSG_NOSIGNAL) == (ssize_t)size || errno == EPIPE || errno == ECONNRESET);
}

/* Moves what came one way; returns 0 at the end of it. */
static int carry(proxy *p, int way) {
  uint8_t bytes[4096];
  int from = way == TO_LISTENER ? p->caller : p->target, to = way == TO_LISTENER ? p->target : p->caller;
  ssize_t got = recv(from, bytes, sizeof bytes, 0);
  pthread_mutex_lock(&p->mutex);
  proxy_deed deed = way == TO_LISTENER && got > 0 ? p->deed : PASS;
  p->deed = deed == PASS ? p->deed : PASS;
  if (got > 0 && p->recorded[way] + (size_t)got <= RECORDED_MOST) {
    memcpy(p->record[way] + p->recorded[way], bytes, (size_t)got);
    p->recorded[way] += (size_t)got;
  }
  pthread_mutex_unlock(&p->mutex);
  if (got <= 0 || deed == CUT) {
    return 0;
  }
  if (deed == CHANGE) {
    bytes[got / 2] ^= 1;
  }
  throw(to, bytes, (size_t)got);
  if (deed == REPEAT) {
    throw(to, bytes, (size_t)got);
  }
  return 1;
}

static void *run_proxy(void *argument) {
  proxy *p = argument;
  p->caller = accept(p->listener, NULL, NULL);
  p->target = dial(p->port);
  struct pollfd fds[2] = {{p->caller, POLLIN, 0}, {p->target, POLLIN, 0}};
  for (int open = 1; open && poll(fds, 2, 10000) > 0;) {
    open = !fds[0].revents || carry(p, TO_LISTENER);
    open = open && (!fds[1].revents || carry(p, TO_CALLER));
  }
  close(p->caller);
  close(p->target);
  return NULL;
}

/* Changes rank 0's address into that of a proxy. */
static void start_proxy(proxy *p, pith_address *address) {
  tcp_place place;
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof at;
  *p = (proxy){.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  pthread_mutex_init(&p->mutex, NULL);
  p->record[0] = malloc(RECORDED_MOST), p->record[1] = malloc(RECORDED_MOST);
  CHECK(p->record[0] && p->record[1]);
  CHECK(bind(p->listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(p->listener, 4) == 0);
  CHECK_EQ(getsockname(p->listener, (struct sockaddr *)&at, &size), 0);
  CHECK_OK(pith__tcp_address_decode(address, 0, &place));
  p->port = pith__sockaddr_port(&place.at[0]);
  place.count = 1;
  CHECK(pith__sockaddr_parse("127.0.0.1", 0, &place.at[0]));
  pith__tcp_address_encode(&place, ntohs(at.sin_port), address);
  CHECK_EQ(pthread_create(&p->thread, NULL, run_proxy, p), 0);
}

static void end_proxy(proxy *p) {
  pthread_join(p->thread, NULL);
  close(p->listener);
  free(p->record[0]);
  free(p->record[1]);
}

static void set_deed(proxy *p, proxy_deed deed) {
  pthread_mutex_lock(&p->mutex);
  p->deed = deed;
  pthread_mutex_unlock(&p->mutex);
}

static proxy between; /* ranks are threads here */

static void connect_through_a_proxy(world_rank *me) {
  world_listen(me, 10);
  if (me->rank == 0) {
    start_proxy(&between, (pith_address *)(uintptr_t)world_address(me, 0));
  }
  world_barrier(me);
  CHECK_OK(world_connect(me, (const uint8_t[]){me->rank != 0, me->rank != 1}));
}

static void close_rank(world_rank *me) {
  me->world->ops->close(me->transport);
  me->transport = NULL;
}

static void leave_through_a_proxy(world_rank *me) {
  close_rank(me);
  world_barrier(me);
  if (me->rank == 0) {
    end_proxy(&between);
  }
}

/* ---- … who reads ------------------------------------------------------------------------------------------------- */

static const char values[] = "gradients that nobody else is to see";

static void talk_of_values(world_rank *me) {
  char heard[sizeof values];
  connect_through_a_proxy(me);
  world_send(me, !me->rank, values, sizeof values);
  world_receive(me, !me->rank, heard, sizeof heard);
  CHECK_STR(heard, values);
  world_barrier(me);
  if (me->rank == 0) {
    int wanted = *(const int *)me->argument;
    for (int way = 0; way < 2; way++) {
      CHECK(between.recorded[way] > 2 * sizeof values);
      CHECK_EQ(memmem(between.record[way], between.recorded[way], values, sizeof values) != NULL, wanted);
      CHECK_EQ(memmem(between.record[way], between.recorded[way], TCP_HELLO_MAGIC, 8) != NULL, wanted);
    }
  }
  leave_through_a_proxy(me);
}

TEST(what_is_on_the_wire_does_not_show_the_values) {
  world_run_unconnected(THREADS, 2, 0, talk_of_values, &(int){0});
  world_run_unconnected(world_of(WORLD_THREADS, &in_clear), 2, 0, talk_of_values,
                        &(int){1}); /* where they can be seen */
}

/* ---- … who changes, repeats or cuts ------------------------------------------------------------------------------ */

/* Receives until it fails; returns how many bytes came. The error must name the peer. */
static size_t receive_until_the_end(world_rank *me) {
  uint8_t bytes[1000];
  size_t sum = 0, got;
  pith_status status;
  while ((status = me->world->ops->receive(me->transport, !me->rank, bytes, sizeof bytes, &got)) == PITH_OK) {
    sum += got;
    if (got == 0) {
      world_wait(me, 5);
    }
  }
  CHECK_EQ(status, PITH_ERR_PEER);
  CHECK_ERROR_SAYS(me->rank ? "rank 0 is gone" : "rank 1 is gone");
  return sum;
}

typedef struct harm {
  proxy_deed deed;
  size_t arrives;    /* bytes that come before */
  const char *error; /* of the one who is harmed */
} harm;

static void suffer(world_rank *me) {
  const harm *h = me->argument;
  uint8_t first = 1, bytes[500] = {0};
  connect_through_a_proxy(me);
  if (me->rank == 1) {
    world_send(me, 0, &first, 1);
  } else {
    world_receive(me, 1, &first, 1);
    set_deed(&between, h->deed);
  }
  world_barrier(me);
  if (me->rank == 1) {
    world_send(me, 0, bytes, sizeof bytes);
  } else {
    CHECK_EQ(receive_until_the_end(me), h->arrives);
    CHECK_ERROR_SAYS(h->error);
    size_t got;
    CHECK_STATUS(me->world->ops->receive(me->transport, 1, bytes, 1, &got), PITH_ERR_PEER); /* again */
    CHECK_ERROR_SAYS(h->error);
    close_rank(me);
  }
  world_barrier(me);
  if (me->rank == 1) {
    receive_until_the_end(me);
    close_rank(me);
  }
  world_barrier(me);
  if (me->rank == 0) {
    end_proxy(&between);
  }
}

TEST(a_changed_record_is_an_error_that_names_the_rank) {
  world_run_unconnected(THREADS, 2, 0, suffer, &(harm){CHANGE, 0, "changed on the way"});
}

TEST(a_repeated_record_is_an_error_that_names_the_rank) {
  world_run_unconnected(THREADS, 2, 0, suffer, &(harm){REPEAT, 500, "changed on the way"});
}

TEST(a_stream_that_is_cut_is_not_taken_for_its_end) {
  world_run_unconnected(THREADS, 2, 0, suffer, &(harm){CUT, 0, "without TLS's closing message"});
}

static void say_and_go(world_rank *me) {
  if (me->rank == 1) {
    world_send(me, 0, values, sizeof values);
    close_rank(me);
  } else {
    CHECK_EQ(receive_until_the_end(me), sizeof values);
    CHECK_ERROR_SAYS("it closed its connection");
  }
}

TEST(a_stream_that_is_closed_is_told_from_one_that_is_cut) { world_run(PROCESSES, 2, 0, say_and_go, NULL); }

/* ---- … who wants to be a rank ------------------------------------------------------------------------------------ */

static size_t replay_size;
static uint8_t replay_bytes[RECORDED_MOST];

static void keep_record(world_rank *me) {
  connect_through_a_proxy(me);
  world_send(me, !me->rank, values, sizeof values);
  world_receive(me, !me->rank, &(char[sizeof values]){0}, sizeof values);
  world_barrier(me);
  if (me->rank == 0) {
    replay_size = between.recorded[TO_LISTENER];
    memcpy(replay_bytes, between.record[TO_LISTENER], replay_size);
  }
  leave_through_a_proxy(me);
}

/* How a stranger talks to rank 0. */
typedef enum stranger { SILENCE, NOISE, PLAIN_HELLO, HALF_A_HANDSHAKE, REPLAY, STRANGERS } stranger;

static void be_stranger(world_rank *me, int fd, stranger how) {
  uint8_t noise[700];
  tcp_place place;
  CHECK_OK(pith__tcp_address_decode(world_address(me, 0), 0, &place));
  tcp_hello hello = {
      .version = TCP_HELLO_VERSION, .order = TCP_HELLO_ORDER, .ranks = 2, .rank = 1, .token = place.token};
  memcpy(hello.magic, TCP_HELLO_MAGIC, 8);
  for (size_t i = 0; i < sizeof noise; i++) {
    noise[i] = (uint8_t)world_below(me, 256);
  }
  if (how == NOISE) {
    throw(fd, noise, sizeof noise);
  } else if (how == PLAIN_HELLO) {
    throw(fd, &hello, sizeof hello);
  } else if (how == HALF_A_HANDSHAKE || how == REPLAY) {
    throw(fd, replay_bytes, how == REPLAY ? replay_size : 100);
  }
}

/* Strangers come first, and stay; then rank 1 comes. Whatever they say, they hear no bytes of a hello. */
static void connect_among_strangers(world_rank *me) {
  int fds[STRANGERS], from = -1;
  world_listen(me, 10);
  world_barrier(me);
  if (me->rank == 1) {
    tcp_place place;
    CHECK_OK(pith__tcp_address_decode(world_address(me, 0), 0, &place));
    for (int i = 0; i < STRANGERS; i++) {
      fds[i] = dial(pith__sockaddr_port(&place.at[0]));
      be_stranger(me, fds[i], (stranger)i);
    }
    usleep(100000); /* they are heard before the rank is */
  }
  CHECK_OK(world_connect(me, (const uint8_t[]){me->rank != 0, me->rank != 1}));
  world_send(me, !me->rank, &me->rank, sizeof me->rank);
  world_receive(me, !me->rank, &from, sizeof from);
  CHECK_EQ(from, !me->rank);
  for (int i = 0; me->rank == 1 && i < STRANGERS; i++) {
    uint8_t heard[4096];
    ssize_t got = recv(fds[i], heard, sizeof heard, MSG_DONTWAIT);
    CHECK(got <= 0 || !memmem(heard, (size_t)got, TCP_HELLO_MAGIC, 8));
    close(fds[i]);
  }
  world_barrier(me);
}

TEST(strangers_and_recorded_bytes_do_not_become_a_rank) {
  world_run_unconnected(THREADS, 2, 0, keep_record, NULL);
  CHECK(replay_size > sizeof values);
  world_run_unconnected(THREADS, 2, 0, connect_among_strangers, NULL);
}

/* Only the recorded bytes of rank 1 come, and rank 1 itself does not. */
static void wait_for_a_replay(world_rank *me) {
  world_listen(me, 1);
  world_barrier(me);
  if (me->rank == 1) {
    tcp_place place;
    CHECK_OK(pith__tcp_address_decode(world_address(me, 0), 0, &place));
    int fd = dial(pith__sockaddr_port(&place.at[0]));
    throw(fd, replay_bytes, replay_size);
    world_barrier(me);
    close(fd);
    return;
  }
  CHECK_STATUS(world_connect(me, (const uint8_t[]){0, 1}), PITH_ERR_TIMEOUT);
  CHECK_ERROR_SAYS("rank 0 has no encrypted connection with rank 1");
  world_barrier(me);
}

TEST(recorded_bytes_alone_make_no_link) {
  world_run_unconnected(THREADS, 2, 0, keep_record, NULL);
  world_run_unconnected(THREADS, 2, 0, wait_for_a_replay, NULL);
}

/* ---- Through a comm ---------------------------------------------------------------------------------------------- */

#define SECRET "known to the ranks"

typedef struct job {
  const char *tls[2], *secret[2], *transport;
  int connections;
  pith_status status; /* of pith_comm_create on both */
  const char *error;
} job;

static void reduce(pith_comm *comm, int rank) {
  enum { VALUES = 300000 };
  float *mine = malloc(VALUES * sizeof *mine), *sum = malloc(VALUES * sizeof *sum);
  CHECK(mine && sum);
  for (int i = 0; i < VALUES; i++) {
    mine[i] = (float)(i % 1000 + rank);
  }
  CHECK_OK(pith_allreduce(comm, (pith_cspan){mine, VALUES, PITH_F32}, (pith_span){sum, VALUES, PITH_F32}, PITH_SUM,
                          NULL, NULL));
  for (int i = 0; i < VALUES; i++) {
    CHECK_MSG(sum[i] == (float)(2 * (i % 1000) + 1), "value %d is %g", i, (double)sum[i]);
  }
  free(mine);
  free(sum);
}

static _Noreturn void be_rank(const job *j, int rank, int port) {
  pith_config config = PITH_CONFIG_INIT;
  pith_comm *comm = NULL, *group = NULL;
  config.rank = rank, config.ranks = 2, config.port = port, config.host = "127.0.0.1", config.timeout = 10;
  config.transport = j->transport, config.connections = j->connections;
  config.tls = j->tls[rank], config.secret = j->secret[rank], config.host_id = rank ? "one host" : "another";
  CHECK_STATUS(pith_comm_create(&config, &comm), j->status);
  if (j->status != PITH_OK) {
    CHECK_ERROR_SAYS(j->error);
    _exit(0);
  }
  CHECK_STR(pith_comm_transport(comm, !rank), "tcp");
  CHECK(comm->link[!rank]->remote && !comm->link[!rank]->checked); /* TLS protects payloads: no checksum beside it */
  reduce(comm, rank);
  CHECK_OK(pith_comm_split(comm, 0, rank, &group));
  reduce(group, rank);
  pith_comm_destroy(group);
  pith_comm_destroy(comm);
  _exit(0);
}

static void run_job(const job *j) {
  pid_t child[2];
  int port = ranks_free_port();
  need_tls();
  for (int rank = 0; rank < 2; rank++) {
    child[rank] = fork();
    CHECK(child[rank] >= 0);
    if (child[rank] == 0) {
      be_rank(j, rank, port);
    }
  }
  ranks_wait(child, 2, -1);
}

TEST(a_comm_and_its_groups_are_encrypted_by_the_secret) {
  run_job(&(job){{"psk", "psk"}, {SECRET, SECRET}, "tcp", 1, PITH_OK, NULL});
  run_job(&(job){{"psk", "psk"}, {SECRET, SECRET}, "tcp", 4, PITH_OK, NULL});
}

TEST(a_comm_and_its_groups_are_encrypted_by_certificates) {
  make_certificates();
  setenv("PITH_TLS_CERT", in_folder("rank.pem"), 1);
  setenv("PITH_TLS_KEY", in_folder("rank.key"), 1);
  setenv("PITH_TLS_CA", in_folder("ca.pem"), 1);
  run_job(&(job){{"cert", "cert"}, {SECRET, SECRET}, "tcp", 1, PITH_OK, NULL});
  run_job(&(job){{"cert", "cert"}, {NULL, NULL}, "tcp", 2, PITH_OK, NULL});
  unsetenv("PITH_TLS_KEY");
  run_job(&(job){{"cert", "cert"}, {SECRET, SECRET}, "tcp", 1, PITH_ERR_ARGUMENT, "PITH_TLS_KEY is not set"});
  forget_folder();
}

TEST(ranks_that_disagree_about_encryption_do_not_connect_in_clear) {
  run_job(&(job){{"psk", "off"}, {SECRET, SECRET}, "tcp", 1, PITH_ERR_MISMATCH, "rank 1 has PITH_TLS=off"});
  run_job(&(job){{"off", "psk"}, {SECRET, SECRET}, "tcp", 1, PITH_ERR_MISMATCH, "rank 0 has PITH_TLS=off"});
}

TEST(a_key_needs_a_secret) {
  run_job(&(job){{"psk", "psk"}, {NULL, NULL}, "tcp", 1, PITH_ERR_ARGUMENT, "PITH_SECRET, which is not set"});
}

TEST(transports_that_do_not_encrypt_are_refused) {
  run_job(&(job){{"psk", "psk"}, {SECRET, SECRET}, "ucx", 1, PITH_ERR_UNSUPPORTED, "ucx transport sends in clear"});
  run_job(&(job){{"psk", "psk"}, {SECRET, SECRET}, "mpi", 1, PITH_ERR_UNSUPPORTED, "mpi transport sends in clear"});
}

TEST(unknown_settings_are_refused) {
  run_job(&(job){{"yes", "yes"}, {SECRET, SECRET}, "tcp", 1, PITH_ERR_ARGUMENT, "PITH_TLS=yes is unknown: psk"});
}
