/* SPDX-License-Identifier: Apache-2.0 */
/* The operations that `pith bench` measures, each with its call and its exact result. The root is always rank 0. */
#include "cli/bench/bench_operations.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "cli/bench/measure.h"

/* ---- Values ------------------------------------------------------------------------------------------------------ */

float cli_collective_value(int rank, size_t i) {
  uint32_t h = ((uint32_t)i + 1) * 2654435761u + (uint32_t)rank * 2246822519u;
  h ^= h >> 15;
  h *= 2246822519u;
  return (float)(int32_t)(h >> 18) * 0x1p-14f - 0.5f;
}

static double value(int rank, size_t i) { return (double)cli_collective_value(rank, i); }

static double sum_at(int ranks, size_t i) {
  double sum = 0;
  for (int r = 0; r < ranks; r++) {
    sum += value(r, i);
  }
  return sum;
}

static size_t part(int ranks, size_t n) { return n / (size_t)ranks; }
static pith_cspan from(const float *x, size_t n) { return (pith_cspan){x, n, PITH_F32}; }
static pith_span to(float *x, size_t n) { return (pith_span){x, n, PITH_F32}; }

pith_status cli_collective_largest(pith_comm *comm, double *x, size_t n) {
  return pith_allreduce(comm, (pith_cspan){x, n, PITH_F64}, (pith_span){x, n, PITH_F64}, PITH_MAX, NULL, NULL);
}

/* ---- Reductions -------------------------------------------------------------------------------------------------- */

static pith_status run_allreduce(pith_comm *comm, const cli_buffers *b, const pith_call *call) {
  return pith_allreduce(comm, from(b->src, b->n), to(b->dst, b->n), PITH_SUM, call, NULL);
}
static double expect_sum(int rank, int ranks, size_t n, size_t i) { return (void)rank, (void)n, sum_at(ranks, i); }

static pith_status run_reduce(pith_comm *comm, const cli_buffers *b, const pith_call *call) {
  return pith_reduce(comm, from(b->src, b->n), to(b->dst, b->n), PITH_SUM, 0, call, NULL);
}

static pith_status run_reduce_scatter(pith_comm *comm, const cli_buffers *b, const pith_call *call) {
  size_t each = part(pith_comm_size(comm), b->n);
  return pith_reduce_scatter(comm, from(b->src, b->n), to(b->dst, each), NULL, PITH_SUM, call, NULL);
}
static double expect_own_sum(int rank, int ranks, size_t n, size_t i) {
  return sum_at(ranks, (size_t)rank * part(ranks, n) + i);
}

/* ---- Moves ------------------------------------------------------------------------------------------------------- */

static pith_status run_all_gather(pith_comm *comm, const cli_buffers *b, const pith_call *call) {
  return pith_all_gather(comm, from(b->src, part(pith_comm_size(comm), b->n)), to(b->dst, b->n), NULL, call, NULL);
}
static double expect_parts(int rank, int ranks, size_t n, size_t i) {
  size_t each = part(ranks, n);
  return (void)rank, value((int)(i / each), i % each);
}

static pith_status run_all_to_all(pith_comm *comm, const cli_buffers *b, const pith_call *call) {
  (void)call;
  return pith_all_to_all(comm, from(b->src, b->n), NULL, to(b->dst, b->n), NULL, NULL);
}
static double expect_exchanged(int rank, int ranks, size_t n, size_t i) {
  size_t each = part(ranks, n);
  return value((int)(i / each), (size_t)rank * each + i % each);
}

static pith_status run_broadcast(pith_comm *comm, const cli_buffers *b, const pith_call *call) {
  return pith_broadcast(comm, to(b->src, b->n), 0, call, NULL);
}
static double expect_first(int rank, int ranks, size_t n, size_t i) {
  return (void)rank, (void)ranks, (void)n, value(0, i);
}

static pith_status run_gather(pith_comm *comm, const cli_buffers *b, const pith_call *call) {
  (void)call;
  return pith_gather(comm, from(b->src, part(pith_comm_size(comm), b->n)), to(b->dst, b->n), NULL, 0, NULL);
}

static pith_status run_scatter(pith_comm *comm, const cli_buffers *b, const pith_call *call) {
  (void)call;
  return pith_scatter(comm, from(b->src, b->n), NULL, to(b->dst, part(pith_comm_size(comm), b->n)), 0, NULL);
}
static double expect_own_part(int rank, int ranks, size_t n, size_t i) {
  return value(0, (size_t)rank * part(ranks, n) + i);
}

/* To the right neighbour and from the left one, both at the same time. */
static pith_status run_sendrecv(pith_comm *comm, const cli_buffers *b, const pith_call *call) {
  int rank = pith_comm_rank(comm), ranks = pith_comm_size(comm);
  pith_request *receive, *send;
  (void)call;
  pith_status status = pith_recv(comm, to(b->dst, b->n), (rank + ranks - 1) % ranks, 0, &receive);
  if (status != PITH_OK) {
    return status;
  }
  status = pith_send(comm, from(b->src, b->n), (rank + 1) % ranks, 0, &send);
  if (status == PITH_OK) {
    status = pith_wait(send);
  }
  pith_status received = pith_wait(receive);
  return status != PITH_OK ? status : received;
}
static double expect_left(int rank, int ranks, size_t n, size_t i) {
  return (void)n, value((rank + ranks - 1) % ranks, i);
}

/* ---- Barrier ----------------------------------------------------------------------------------------------------- */

static pith_status run_barrier(pith_comm *comm, const cli_buffers *b, const pith_call *call) {
  return (void)b, (void)call, pith_barrier(comm, NULL);
}

/* A number that differs from boot to boot: who has the same number has the same clock. */
static double boot_number(void) {
  char id[64] = "";
  FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
  double number = 0;
  if (file) {
    for (const char *c = fgets(id, sizeof id, file); c && *c && c < id + 12; c++) {
      number = number * 64 + (*c & 63); /* 48 bits, which a double holds */
    }
    fclose(file);
  }
  return number;
}

/* The last rank comes late; no other may have left before. To be seen where all ranks read the same clock. */
static pith_status check_barrier(pith_comm *comm, int *is_checked, double *bad) {
  int is_last = pith_comm_rank(comm) == pith_comm_size(comm) - 1;
  const struct timespec pause = {0, is_last ? 2000000 : 0};
  double boot = boot_number();
  nanosleep(&pause, NULL);
  double came = cli_now();
  pith_status status = pith_barrier(comm, NULL);
  double left = cli_now(), facts[3] = {came, boot, -boot};
  if (status == PITH_OK) {
    status = cli_collective_largest(comm, facts, 3);
  }
  *is_checked = status == PITH_OK && boot > 0 && facts[1] == -facts[2];
  *bad = *is_checked && left < facts[0];
  return status;
}

/* ---- The table --------------------------------------------------------------------------------------------------- */

static size_t results_whole(int rank, int ranks, size_t n) { return (void)rank, (void)ranks, n; }
static size_t results_part(int rank, int ranks, size_t n) { return (void)rank, part(ranks, n); }
static size_t results_root(int rank, int ranks, size_t n) { return (void)ranks, rank == 0 ? n : 0; }
static size_t results_none(int rank, int ranks, size_t n) { return (void)rank, (void)ranks, (void)n, 0; }

static double bus_twice(int ranks) { return 2.0 * (ranks - 1) / ranks; }
static double bus_once(int ranks) { return (double)(ranks - 1) / ranks; }
static double bus_whole(int ranks) { return (void)ranks, 1.0; }
static double bus_none(int ranks) { return (void)ranks, 0.0; }

/* clang-format off */
static const cli_collective collectives[] = {
    /* name, counted as, what it does,   encodes, parts, in place, replicas, joins, at once */
    {"allreduce", "allreduce", "the sum of all ranks' tensors, on every rank",
     1, 0, 0, 1, 1, 1, run_allreduce, results_whole, expect_sum, NULL, bus_twice},
    {"reduce", "reduce", "the sum of all ranks' tensors, on rank 0",
     1, 0, 0, 0, 0, 1, run_reduce, results_root, expect_sum, NULL, bus_whole},
    {"reduce_scatter", "reduce_scatter", "the sum of all ranks' tensors, a part on each rank",
     1, 1, 0, 0, 1, 1, run_reduce_scatter, results_part, expect_own_sum, NULL, bus_once},
    {"all_gather", "all_gather", "the parts of all ranks, on every rank",
     1, 1, 0, 1, 1, 1, run_all_gather, results_whole, expect_parts, NULL, bus_once},
    {"all_to_all", "all_to_all", "a part from every rank to every rank",
     0, 1, 0, 0, 1, 1, run_all_to_all, results_whole, expect_exchanged, NULL, bus_once},
    {"broadcast", "broadcast", "the tensor of rank 0, on every rank",
     1, 0, 1, 1, 0, 1, run_broadcast, results_whole, expect_first, NULL, bus_whole},
    {"gather", "gather", "the parts of all ranks, on rank 0",
     0, 1, 0, 0, 0, 1, run_gather, results_root, expect_parts, NULL, bus_once},
    {"scatter", "scatter", "a part of rank 0's tensor to each rank",
     0, 1, 0, 0, 0, 1, run_scatter, results_part, expect_own_part, NULL, bus_once},
    {"barrier", "barrier", "returns on every rank once all have called it",
     0, 0, 0, 0, 1, 1, run_barrier, results_none, expect_sum, check_barrier, bus_none},
    {"sendrecv", "send", "a tensor to the next rank, and one from the previous rank",
     0, 0, 0, 0, 0, 2, run_sendrecv, results_whole, expect_left, NULL, bus_whole},
};
/* clang-format on */
enum { COLLECTIVE_COUNT = sizeof collectives / sizeof *collectives };

const cli_collective *cli_collective_get(size_t index) { return index < COLLECTIVE_COUNT ? &collectives[index] : NULL; }

const cli_collective *cli_collective_find(const char *name) {
  for (size_t i = 0; i < COLLECTIVE_COUNT; i++) {
    if (!strcmp(collectives[i].name, name)) {
      return &collectives[i];
    }
  }
  return NULL;
}

size_t cli_collective_size(const cli_collective *c, int ranks, size_t bytes) {
  size_t n = bytes / sizeof(float), each = part(ranks, n);
  if (c->check) {
    return 0;
  }
  return (c->parts ? (each ? each : 1) * (size_t)ranks : n) * sizeof(float);
}

size_t cli_collective_encoded(const cli_collective *c, int ranks, size_t n) {
  return c->run == run_all_gather ? part(ranks, n) : n;
}
