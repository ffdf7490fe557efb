/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL for tests without a GPU: ranks are threads, device memory is main memory, and an operation is complete when it
 * returns. Included by one file of a program that shows its symbols, where Pith finds them as it finds those of the
 * real one. Ranks must make the same calls in the same order; what does not match is an error. `fake_nccl_fault` makes
 * an operation fail.
 */
#ifndef PITH_TESTS_FAKE_NCCL_H
#define PITH_TESTS_FAKE_NCCL_H

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define FAKE_RANKS 8
#define FAKE_SHOWN __attribute__((visibility("default")))

typedef struct fake_message {
  const void *send;
  void *receive;
  size_t size;
  int peer;
} fake_message;

typedef struct fake_world {
  int ranks;
  pthread_barrier_t barrier;
  const void *given[FAKE_RANKS];
  const fake_message *sent[FAKE_RANKS];
  size_t sizes[FAKE_RANKS];
  struct fake_world *next; /* of those that ncclGetUniqueId made, which live as long as the process */
} fake_world;

typedef struct fake_comm {
  fake_world *world;
  int rank, device;
} fake_comm;

/* ncclUniqueId: the address of a world. */
typedef struct fake_id {
  char bytes[128];
} fake_id;

static _Thread_local fake_message fake_group[4 * FAKE_RANKS];
static _Thread_local size_t fake_group_size;
static _Thread_local fake_comm *fake_group_comm;
static const char *fake_nccl_fault; /* the operation that fails */
static int fake_nccl_async;         /* what happened to operations that have begun */

static int fake_fails(const char *operation) { return fake_nccl_fault && strcmp(fake_nccl_fault, operation) == 0; }

static void fake_barrier(const fake_comm *comm) { pthread_barrier_wait(&comm->world->barrier); }

FAKE_SHOWN int ncclGetVersion(int *version);
FAKE_SHOWN const char *ncclGetErrorString(int result);
FAKE_SHOWN const char *ncclGetLastError(void *comm);
FAKE_SHOWN int ncclCommGetAsyncError(void *comm, int *result);
FAKE_SHOWN int ncclCommCount(const void *comm, int *ranks);
FAKE_SHOWN int ncclCommUserRank(const void *comm, int *rank);
FAKE_SHOWN int ncclCommCuDevice(const void *comm, int *device);
FAKE_SHOWN int ncclGetUniqueId(fake_id *id);
FAKE_SHOWN int ncclCommInitRank(void **comm, int ranks, fake_id id, int rank);
FAKE_SHOWN int ncclCommAbort(void *comm);
FAKE_SHOWN int ncclGroupStart(void);
FAKE_SHOWN int ncclGroupEnd(void);
FAKE_SHOWN int ncclSend(const void *from, size_t n, int type, int peer, void *comm, void *stream);
FAKE_SHOWN int ncclRecv(void *to, size_t n, int type, int peer, void *comm, void *stream);
FAKE_SHOWN int ncclAllGather(const void *from, void *to, size_t n, int type, void *comm, void *stream);
FAKE_SHOWN int ncclAllReduce(const void *from, void *to, size_t n, int type, int op, void *comm, void *stream);

int ncclGetVersion(int *version) { return *version = 22000, 0; }
const char *ncclGetErrorString(int result) { return result == 6 ? "remote process exited" : "a made-up error"; }
const char *ncclGetLastError(void *comm) { return (void)comm, "the last words"; }
int ncclCommGetAsyncError(void *comm, int *result) { return (void)comm, *result = fake_nccl_async, 0; }
int ncclCommCount(const void *comm, int *ranks) { return *ranks = ((const fake_comm *)comm)->world->ranks, 0; }
int ncclCommUserRank(const void *comm, int *rank) { return *rank = ((const fake_comm *)comm)->rank, 0; }
int ncclCommCuDevice(const void *comm, int *device) { return *device = ((const fake_comm *)comm)->device, 0; }

static pthread_mutex_t fake_mutex = PTHREAD_MUTEX_INITIALIZER;
static fake_world *fake_worlds;

int ncclGetUniqueId(fake_id *id) {
  if (fake_fails("id")) {
    return 2;
  }
  fake_world *world = calloc(1, sizeof *world);
  memcpy(id->bytes, &world, sizeof world);
  pthread_mutex_lock(&fake_mutex);
  world->next = fake_worlds;
  fake_worlds = world;
  pthread_mutex_unlock(&fake_mutex);
  return 0;
}

int ncclCommInitRank(void **made, int ranks, fake_id id, int rank) {
  fake_comm *comm = calloc(1, sizeof *comm);
  memcpy(&comm->world, id.bytes, sizeof comm->world);
  comm->rank = rank;
  pthread_mutex_lock(&fake_mutex);
  if (!comm->world->ranks) {
    pthread_barrier_init(&comm->world->barrier, NULL, (unsigned)ranks);
    comm->world->ranks = ranks;
  }
  pthread_mutex_unlock(&fake_mutex);
  *made = comm;
  return fake_fails("init") && rank == 1 ? (free(comm), 2) : 0;
}

int ncclCommAbort(void *comm) { return free(comm), 0; }

int ncclGroupStart(void) { return fake_group_size = 0, fake_group_comm = NULL, 0; }

static int fake_add(fake_message message, void *comm) {
  if (fake_group_size == sizeof fake_group / sizeof *fake_group) {
    return 3;
  }
  fake_group[fake_group_size++] = message;
  fake_group_comm = comm;
  return 0;
}

int ncclSend(const void *from, size_t n, int type, int peer, void *comm, void *stream) {
  (void)stream;
  return fake_fails("send") ? 6 : type != 1 ? 4 : fake_add((fake_message){from, NULL, n, peer}, comm);
}

int ncclRecv(void *to, size_t n, int type, int peer, void *comm, void *stream) {
  (void)stream;
  return type != 1 ? 4 : fake_add((fake_message){NULL, to, n, peer}, comm);
}

/* The only message that a rank sends to another in a group. */
static const fake_message *fake_find(const fake_world *world, int from, int to) {
  for (size_t i = 0; i < world->sizes[from]; i++) {
    if (world->sent[from][i].send && world->sent[from][i].peer == to) {
      return &world->sent[from][i];
    }
  }
  return NULL;
}

int ncclGroupEnd(void) {
  const fake_comm *comm = fake_group_comm;
  int result = 0;
  if (!comm) {
    return 0;
  }
  comm->world->sent[comm->rank] = fake_group;
  comm->world->sizes[comm->rank] = fake_group_size;
  fake_barrier(comm);
  for (size_t i = 0; i < fake_group_size; i++) {
    if (fake_group[i].receive) {
      const fake_message *found = fake_find(comm->world, fake_group[i].peer, comm->rank);
      if (found && found->size == fake_group[i].size) {
        memcpy(fake_group[i].receive, found->send, found->size);
      } else {
        result = 5; /* sizes that differ hang the real one */
      }
    }
  }
  fake_barrier(comm);
  return result;
}

int ncclAllGather(const void *from, void *to, size_t n, int type, void *c, void *stream) {
  const fake_comm *comm = c;
  (void)stream;
  if (fake_fails("gather") || type != 1) {
    return 2;
  }
  comm->world->given[comm->rank] = from;
  comm->world->sizes[comm->rank] = n;
  fake_barrier(comm);
  int result = 0;
  for (int p = 0; p < comm->world->ranks; p++) {
    if (comm->world->sizes[p] != n) {
      result = 5;
    } else if (p != comm->rank || from != (const char *)to + (size_t)p * n) {
      memcpy((char *)to + (size_t)p * n, comm->world->given[p], n);
    }
  }
  fake_barrier(comm);
  return result;
}

int ncclAllReduce(const void *from, void *to, size_t n, int type, int op, void *c, void *stream) {
  const fake_comm *comm = c;
  float *sums = calloc(n + 1, sizeof *sums);
  (void)stream;
  comm->world->given[comm->rank] = from;
  fake_barrier(comm);
  for (int p = 0; p < comm->world->ranks; p++) {
    for (size_t i = 0; i < n; i++) {
      sums[i] += ((const float *)comm->world->given[p])[i];
    }
  }
  fake_barrier(comm);
  memcpy(to, sums, n * sizeof *sums);
  free(sums);
  return type == 7 && op == 0 ? 0 : 4;
}

#endif
