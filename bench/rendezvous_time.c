/*
 * How long a rendezvous of many ranks takes: rank 0 as one process, the others as threads of another one, which may be
 * in another network namespace (bench/rendezvous_lab.sh). Each rank brings what a comm's address record has with
 * `auto`.
 *
 *   rendezvous_time host  HOST PORT RANKS [TIMEOUT]    rank 0; prints the seconds from the first guest's coming on
 *   rendezvous_time guests HOST PORT RANKS [TIMEOUT]   all others; prints the seconds until the last one has the table
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "transport/rendezvous.h"

enum { RECORD = 57, STACK = 128 << 10 };

typedef struct guest {
  pith_rendezvous r;
  uint8_t record[RECORD];
  pith_status status;
  char error[256];
  size_t bytes;
  pthread_t thread;
} guest;

static void *visit(void *argument) {
  guest *g = argument;
  pith_records all;
  uint64_t job;
  memset(g->record, g->r.rank, sizeof g->record);
  g->status = pith__rendezvous_exchange(&g->r, g->record, sizeof g->record, &all, &job);
  if (g->status == PITH_OK) {
    g->bytes = all.at[g->r.ranks];
    pith__records_free(&all);
  } else {
    snprintf(g->error, sizeof g->error, "%s", pith_error());
  }
  return NULL;
}

static int report(const char *who, int ranks, size_t bytes, double seconds) {
  printf("%s: %d ranks met in %.2f s, with records of %zu bytes in all\n", who, ranks, seconds, bytes);
  return 0;
}

static int run_host(pith_rendezvous r) {
  guest g = {.r = r};
  double start = pith__now();
  visit(&g);
  if (g.status != PITH_OK) {
    fprintf(stderr, "rank 0: %s\n", g.error);
    return 1;
  }
  return report("rank 0", r.ranks, g.bytes, pith__now() - start);
}

static int run_guests(pith_rendezvous r) {
  guest *guests = calloc((size_t)r.ranks, sizeof *guests);
  pthread_attr_t small;
  int failed = 0;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, STACK);
  double start = pith__now();
  for (int p = 1; guests && p < r.ranks; p++) {
    guests[p].r = r;
    guests[p].r.rank = p;
    if (pthread_create(&guests[p].thread, &small, visit, &guests[p]) != 0) {
      fprintf(stderr, "no thread for rank %d\n", p);
      return 1;
    }
  }
  for (int p = 1; guests && p < r.ranks; p++) {
    pthread_join(guests[p].thread, NULL);
    if (guests[p].status != PITH_OK && failed++ == 0) {
      fprintf(stderr, "rank %d: %s\n", p, guests[p].error);
    }
  }
  double seconds = pith__now() - start;
  size_t bytes = guests ? guests[1].bytes : 0;
  free(guests);
  return failed ? 1 : report("guests", r.ranks, bytes, seconds);
}

int main(int argc, char **argv) {
  if (argc < 5) {
    fprintf(stderr, "rendezvous_time host|guests HOST PORT RANKS [TIMEOUT]\n");
    return 2;
  }
  pith_rendezvous r = {.host = argv[2],
                       .port = (uint16_t)atoi(argv[3]),
                       .ranks = atoi(argv[4]),
                       .timeout = argc > 5 ? atof(argv[5]) : 120,
                       .secret = getenv("PITH_SECRET")};
  return strcmp(argv[1], "host") == 0 ? run_host(r) : run_guests(r);
}
