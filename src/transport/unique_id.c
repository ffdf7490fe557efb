/* SPDX-License-Identifier: Apache-2.0 */
/* Unique ids. The open sockets of ids whose comm does not exist yet wait in a small table. */
#include "transport/unique_id.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/forked.h"
#include "base/hash.h"
#include "base/log.h"
#include "transport/tcp.h"

/* ---- Sockets that wait ------------------------------------------------------------------------------------------- */

enum { WAITING_MOST = 64 };

typedef struct waiting {
  pith_unique_id id;
  int fd; /* 0: the place is free */
} waiting;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static waiting table[WAITING_MOST];
static unsigned next_place; /* where the oldest one is, once the table is full */

static void keep_listener(const pith_unique_id *id, int fd) {
  pthread_mutex_lock(&lock);
  waiting *place = &table[next_place++ % WAITING_MOST];
  if (place->fd) {
    PITH_LOG_WARN("%d unique ids were never used: the port of the oldest is closed", WAITING_MOST);
    pith__fd_close(place->fd);
  }
  *place = (waiting){*id, fd};
  pthread_mutex_unlock(&lock);
}

int pith__unique_id_listener(const pith_unique_id *id) {
  int fd = -1;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < WAITING_MOST && fd < 0; i++) {
    if (table[i].fd && memcmp(&table[i].id, id, sizeof *id) == 0) {
      fd = table[i].fd;
      table[i].fd = 0;
    }
  }
  pthread_mutex_unlock(&lock);
  return fd;
}

/* ---- Bytes: docs/format.md --------------------------------------------------------------------------------------- */

enum { MAGIC_SIZE = 8, SUM_AT = MAGIC_SIZE, PORT_AT = 16, HOSTS_AT = 18, SECRET_AT = HOSTS_AT + PITH_ID_HOSTS };
static const char magic[MAGIC_SIZE + 1] = "PITHID01";
_Static_assert(SECRET_AT + PITH_ID_SECRET <= PITH_UNIQUE_ID_SIZE, "an id must fit");

static uint64_t sum_of(const pith_unique_id *id) {
  return pith__hash64(id->bytes + PORT_AT, sizeof id->bytes - PORT_AT, 0);
}

static void write_id(const pith_id_content *content, pith_unique_id *id) {
  memset(id, 0, sizeof *id);
  memcpy(id->bytes, magic, MAGIC_SIZE);
  id->bytes[PORT_AT] = (uint8_t)content->port;
  id->bytes[PORT_AT + 1] = (uint8_t)(content->port >> 8);
  memcpy(id->bytes + HOSTS_AT, content->hosts, sizeof content->hosts);
  memcpy(id->bytes + SECRET_AT, content->secret, sizeof content->secret);
  uint64_t sum = sum_of(id);
  memcpy(id->bytes + SUM_AT, &sum, sizeof sum);
}

pith_status pith__unique_id_read(const pith_unique_id *id, pith_id_content *content) {
  uint64_t sum;
  memcpy(&sum, id->bytes + SUM_AT, sizeof sum);
  PITH_REQUIRE(memcmp(id->bytes, magic, MAGIC_SIZE) == 0 && sum == sum_of(id), PITH_ERR_CORRUPT,
               "these bytes are no unique id: send all %d bytes of rank 0's to every rank", PITH_UNIQUE_ID_SIZE);
  content->port = (uint16_t)(id->bytes[PORT_AT] | id->bytes[PORT_AT + 1] << 8);
  memcpy(content->hosts, id->bytes + HOSTS_AT, sizeof content->hosts);
  memcpy(content->secret, id->bytes + SECRET_AT, sizeof content->secret);
  PITH_REQUIRE(memchr(content->hosts, 0, sizeof content->hosts) && memchr(content->secret, 0, sizeof content->secret) &&
                   content->hosts[0] && content->port,
               PITH_ERR_CORRUPT, "this unique id names no host");
  return PITH_OK;
}

/* ---- Making one -------------------------------------------------------------------------------------------------- */

/* Loopback only where there is nothing else: on another host it would be that host. */
static pith_status write_hosts(const tcp_place *place, char hosts[PITH_ID_HOSTS]) {
  size_t used = 0;
  int others = 0;
  for (int i = 0; i < place->count; i++) {
    others += !pith__sockaddr_is_loopback(&place->at[i]);
  }
  for (int i = 0; i < place->count; i++) {
    char text[PITH_SOCKADDR_TEXT];
    if (others && pith__sockaddr_is_loopback(&place->at[i])) {
      continue;
    }
    int length =
        snprintf(hosts + used, PITH_ID_HOSTS - used, "%s%s", used ? "," : "", pith__sockaddr_name(&place->at[i], text));
    PITH_REQUIRE(length > 0 && (size_t)length < PITH_ID_HOSTS - used, PITH_ERR_RANGE,
                 "the addresses of this host do not fit in an id");
    used += (size_t)length;
  }
  return PITH_OK;
}

static pith_status write_secret(char secret[PITH_ID_SECRET]) {
  uint8_t random[(PITH_ID_SECRET - 1) / 2];
  PITH_TRY(pith__random_bytes(random, sizeof random));
  for (size_t i = 0; i < sizeof random; i++) {
    snprintf(secret + 2 * i, 3, "%02x", random[i]);
  }
  return PITH_OK;
}

pith_status pith__unique_id_create(const char *interface, const char *towards, int with_secret, pith_unique_id *id) {
  pith_transport_config config = {.interface = interface, .rendezvous_host = towards};
  pith_id_content content = {0};
  pith_sockaddr bind_to;
  tcp_place place;
  PITH_TRY(pith__tcp_choose(&config, &bind_to, &place));
  PITH_TRY(write_hosts(&place, content.hosts));
  PITH_TRY(with_secret ? write_secret(content.secret) : PITH_OK);
  int fd = pith__socket_listen(&bind_to);
  PITH_REQUIRE(fd >= 0 && pith__socket_local(fd, &bind_to) == 0, PITH_ERR_SYSTEM, "rank 0 cannot open a port: %s",
               strerror(errno));
  content.port = pith__sockaddr_port(&bind_to);
  write_id(&content, id);
  keep_listener(id, fd);
  return PITH_OK;
}
