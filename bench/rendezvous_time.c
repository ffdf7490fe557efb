/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long a rendezvous of many ranks takes: rank 0 as one process, the others as threads of another one, which may be
 * in another network namespace (bench/rendezvous_lab.sh). Each rank brings what a comm's address record has with
 * `auto`.
 *
 *   rendezvous_time server HOST PORT RANKS [TIMEOUT]    rank 0; prints the seconds until all clients have the table
 *   rendezvous_time clients HOST PORT RANKS [TIMEOUT]   all others; prints the seconds until the last one has the table
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "transport/rendezvous.h"

enum { RECORD = 57, STACK = 128 << 10 };

typedef struct client {
  pith_rendezvous r;
  uint8_t record[RECORD];
  pith_status status;
  char error[256];
  size_t bytes;
  pthread_t thread;
} client;

static void *exchange(void *argument) {
  client *c = argument;
  pith_records all;
  uint64_t job;
  memset(c->record, c->r.rank, sizeof c->record);
  c->status = pith__rendezvous_exchange(&c->r, c->record, sizeof c->record, &all, &job);
  if (c->status == PITH_OK) {
    c->bytes = all.at[c->r.ranks];
    pith__records_free(&all);
  } else {
    snprintf(c->error, sizeof c->error, "%s", pith_error());
  }
  return NULL;
}

static int report(const char *who, int ranks, size_t bytes, double seconds) {
  printf("%s: %d ranks exchanged addresses in %.2f s, with records of %zu bytes in all\n", who, ranks, seconds, bytes);
  return 0;
}

static int run_server(pith_rendezvous r) {
  client c = {.r = r};
  double start = pith__now();
  exchange(&c);
  if (c.status != PITH_OK) {
    fprintf(stderr, "rank 0: %s\n", c.error);
    return 1;
  }
  return report("rank 0", r.ranks, c.bytes, pith__now() - start);
}

static int run_clients(pith_rendezvous r) {
  client *clients = calloc((size_t)r.ranks, sizeof *clients);
  pthread_attr_t small;
  int failed = 0;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, STACK);
  double start = pith__now();
  for (int p = 1; clients && p < r.ranks; p++) {
    clients[p].r = r;
    clients[p].r.rank = p;
    if (pthread_create(&clients[p].thread, &small, exchange, &clients[p]) != 0) {
      fprintf(stderr, "no thread for rank %d\n", p);
      return 1;
    }
  }
  for (int p = 1; clients && p < r.ranks; p++) {
    pthread_join(clients[p].thread, NULL);
    if (clients[p].status != PITH_OK && failed++ == 0) {
      fprintf(stderr, "rank %d: %s\n", p, clients[p].error);
    }
  }
  double seconds = pith__now() - start;
  size_t bytes = clients ? clients[1].bytes : 0;
  free(clients);
  return failed ? 1 : report("clients", r.ranks, bytes, seconds);
}

int main(int argc, char **argv) {
  if (argc < 5) {
    fprintf(stderr, "rendezvous_time server|clients HOST PORT RANKS [TIMEOUT]\n");
    return 2;
  }
  pith_rendezvous r = {.host = argv[2],
                       .port = (uint16_t)atoi(argv[3]),
                       .ranks = atoi(argv[4]),
                       .timeout = argc > 5 ? atof(argv[5]) : 120,
                       .secret = getenv("PITH_SECRET")};
  return strcmp(argv[1], "server") == 0 ? run_server(r) : run_clients(r);
}
