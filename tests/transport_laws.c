/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks as threads or processes, and the laws of transport_laws.h. */
#include "transport_laws.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "descriptors.h"
#include "directory.h"
#include "transport/link_key.h"

#define JOB 0x5eed0b0b5eed0b0bu
#define PATIENCE 10.0 /* seconds after which a wake-up counts as lost */

/* Memory that all ranks see, of whatever kind they are. */
typedef struct world_shared {
  atomic_int arrived; /* at barriers, ever */
  atomic_int left;    /* ranks that are done, and those that were never in; for launched ones */
  atomic_int flag;    /* for bodies */
  pid_t pid[WORLD_RANKS_MOST];
  pith_address address[WORLD_RANKS_MOST];
} world_shared;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void pause_ms(long ms) { nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL); }

/* ---- A rank ------------------------------------------------------------------------------------------------------ */

uint64_t world_below(world_rank *me, uint64_t limit) { /* splitmix64; test_random() is not for several threads */
  uint64_t x = me->random += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return (x ^ (x >> 31)) % limit;
}

/* All ranks must come. They count up for ever, so that one number does for all barriers. */
void world_barrier(world_rank *me) {
  int round = atomic_fetch_add(&me->shared->arrived, 1) / me->ranks;
  double end = now() + PATIENCE;
  while (atomic_load(&me->shared->arrived) < (round + 1) * me->ranks) {
    CHECK_MSG(now() < end, "rank %d waits in vain for the others", me->rank);
    pause_ms(1);
  }
}

pid_t world_pid(const world_rank *me, int rank) { return me->shared->pid[rank]; }
const pith_address *world_address(const world_rank *me, int rank) { return &me->shared->address[rank]; }

void world_listen(world_rank *me, double timeout) {
  pith_transport_config config = {.rank = me->rank, .ranks = me->ranks, .timeout = timeout};
  CHECK_OK(me->world->ops->listen(&config, &me->transport, &me->shared->address[me->rank]));
}

pith_status world_connect(world_rank *me, const uint8_t *wanted) {
  pith_directory directory = directory_of(me->shared->address);
  return me->world->ops->connect(me->transport, &directory, wanted, &me->key);
}

static void connect_to_all(world_rank *me) {
  uint8_t wanted[WORLD_RANKS_MOST];
  for (int rank = 0; rank < me->ranks; rank++) {
    wanted[rank] = rank != me->rank;
  }
  CHECK_OK(world_connect(me, wanted));
}

static void close_transport(world_rank *me) {
  if (me->transport) {
    me->world->ops->close(me->transport);
  }
  me->transport = NULL;
}

/* Sleeps as the comm does. A transport that only polls is asked again after a nap. */
static void doze(world_rank *me, const uint8_t *sending, double seconds, const char *what) {
  struct pollfd fds[4 * WORLD_RANKS_MOST];
  const pith_transport_ops *ops = me->world->ops;
  int count = ops->descriptors(me->transport, sending, fds, 4 * WORLD_RANKS_MOST);
  CHECK(count > 0 || ops->polls);
  for (double end = now() + seconds; !ops->sleep(me->transport, 1); ops->sleep(me->transport, 0)) {
    struct timespec nap = {0, 50000};
    int ready = ops->polls ? ppoll(fds, (nfds_t)count, &nap, NULL) : poll(fds, (nfds_t)count, (int)(seconds * 1e3));
    CHECK_MSG(ready > 0 || (ops->polls && now() < end), "rank %d of %d was not %s within %g s", me->rank, me->ranks,
              what, seconds);
    if (ready > 0) {
      break;
    }
  }
  ops->sleep(me->transport, 0);
}

void world_wait(world_rank *me, double seconds) {
  uint8_t sending[WORLD_RANKS_MOST] = {0};
  doze(me, sending, seconds, "woken");
}

/* As world_wait, when there are bytes for a peer: some transports must be told. */
static void wait_to_send(world_rank *me, int peer) {
  uint8_t sending[WORLD_RANKS_MOST] = {0};
  sending[peer] = 1;
  doze(me, sending, PATIENCE, "told of room");
}

void world_send(world_rank *me, int peer, const void *bytes, size_t size) {
  for (size_t done = 0; done < size;) {
    struct iovec piece = {(char *)bytes + done, size - done};
    size_t taken = 0;
    CHECK_OK(me->world->ops->send(me->transport, peer, &piece, 1, &taken));
    CHECK(taken <= size - done);
    done += taken;
    if (done < size) {
      wait_to_send(me, peer);
    }
  }
}

void world_receive(world_rank *me, int peer, void *bytes, size_t size) {
  for (size_t done = 0; done < size;) {
    size_t got = 0;
    CHECK_OK(me->world->ops->receive(me->transport, peer, (char *)bytes + done, size - done, &got));
    CHECK(got <= size - done);
    done += got;
    if (done < size && got == 0) {
      world_wait(me, PATIENCE);
    }
  }
}

/* ---- Starting ranks ---------------------------------------------------------------------------------------------- */

typedef struct world_start {
  world_rank rank;
  world_body body;
  int connected;
} world_start;

static void *run_rank(void *argument) {
  world_start *start = argument;
  world_rank *me = &start->rank;
  if (start->connected) {
    world_listen(me, PATIENCE);
    world_barrier(me);
    connect_to_all(me);
  }
  start->body(me);
  close_transport(me);
  return NULL;
}

static void run_threads(world_start *starts, int ranks) {
  pthread_t threads[WORLD_RANKS_MOST];
  for (int i = 0; i < ranks; i++) {
    CHECK_EQ(pthread_create(&threads[i], NULL, run_rank, &starts[i]), 0);
  }
  for (int i = 0; i < ranks; i++) {
    pthread_join(threads[i], NULL);
  }
}

static void run_processes(world_start *starts, int ranks, unsigned lost) {
  for (int i = 0; i < ranks; i++) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      starts[i].rank.shared->pid[i] = getpid();
      run_rank(&starts[i]);
      exit(42); /* not 0: an exit nobody meant must not pass */
    }
    starts[i].rank.shared->pid[i] = child;
  }
  for (int i = 0; i < ranks; i++) {
    int status;
    CHECK_EQ(waitpid(starts[0].rank.shared->pid[i], &status, 0), starts[0].rank.shared->pid[i]);
    CHECK_MSG((lost >> i & 1) || (WIFEXITED(status) && WEXITSTATUS(status) == 42), "rank %d ended with status 0x%x", i,
              status);
  }
}

/* Launched ranks: who we are, and how many worlds there have been. */
static struct {
  int rank, ranks, worlds;
  char folder[200];
} launched;

void world_join(int rank, int ranks, const char *folder) {
  CHECK(rank >= 0 && rank < ranks && ranks <= WORLD_RANKS_MOST);
  launched.rank = rank;
  launched.ranks = ranks;
  launched.worlds = 0;
  CHECK(snprintf(launched.folder, sizeof launched.folder, "%s", folder) < (int)sizeof launched.folder);
}

/* Memory for one world; launched ranks have a file for each, which is zeros at first whoever makes it. */
static world_shared *share(const transport_world *world) {
  char path[256];
  int fd = -1, flags = MAP_SHARED | MAP_ANONYMOUS;
  if (world->kind == WORLD_LAUNCHED) {
    snprintf(path, sizeof path, "%s/world-%d", launched.folder, launched.worlds++);
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && ftruncate(fd, sizeof(world_shared)) == 0);
    flags = MAP_SHARED;
  }
  world_shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, flags, fd, 0);
  CHECK(shared != MAP_FAILED);
  if (fd >= 0) {
    close(fd);
  }
  return shared;
}

/* Our part of a world of launched ranks. Nobody begins the next one before all are done with this. */
static void run_launched(world_start *starts, int ranks) {
  world_shared *shared = starts[0].rank.shared;
  CHECK(ranks <= launched.ranks);
  if (launched.rank < ranks) {
    shared->pid[launched.rank] = getpid();
    run_rank(&starts[launched.rank]);
  }
  atomic_fetch_add(&shared->left, 1);
  for (double end = now() + 6 * PATIENCE; atomic_load(&shared->left) < launched.ranks; pause_ms(1)) {
    CHECK_MSG(now() < end, "process %d waits in vain for the others to be done", launched.rank);
  }
}

static void start_world(const transport_world *world, int ranks, unsigned lost, int connected, world_body body,
                        const void *argument) {
  world_start starts[WORLD_RANKS_MOST];
  world_shared *shared = share(world);
  CHECK(ranks <= WORLD_RANKS_MOST);
  for (int i = 0; i < ranks; i++) {
    world_rank rank = {world, i, ranks, NULL, shared, argument, test_random(), {0}};
    pith__link_key_make("secret", JOB, &rank.key);
    starts[i] = (world_start){rank, body, connected};
  }
  switch (world->kind) {
    case WORLD_THREADS:
      run_threads(starts, ranks);
      break;
    case WORLD_PROCESSES:
      run_processes(starts, ranks, lost);
      break;
    case WORLD_LAUNCHED:
      run_launched(starts, ranks);
      break;
  }
  munmap(shared, sizeof *shared);
}

void world_run(const transport_world *world, int ranks, unsigned lost, world_body body, const void *argument) {
  start_world(world, ranks, lost, 1, body, argument);
}

void world_run_unconnected(const transport_world *world, int ranks, unsigned lost, world_body body,
                           const void *argument) {
  start_world(world, ranks, lost, 0, body, argument);
}

/* ---- Law: bytes arrive in order ---------------------------------------------------------------------------------- */

/* Byte k of what one rank sends another: both know it, and no two streams or places look alike. */
static uint8_t stream_byte(int from, int to, size_t k) {
  uint64_t x = (k / 8 + 1) * 0x9e3779b97f4a7c15u ^ (uint64_t)(from * 64 + to + 1) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 29)) * 0x94d049bb133111ebu;
  return (uint8_t)((x ^ (x >> 32)) >> k % 8 * 8);
}

static size_t stream_length(int from, int to, size_t most) {
  return (size_t)(from * 31 + to * 17 + 1) * 7919 % (most + 1);
}

typedef struct streams {
  size_t sent[WORLD_RANKS_MOST], got[WORLD_RANKS_MOST];
} streams;

#define PIECE_MOST 5000

/* Random pieces, some of them empty; returns whether any byte went. */
static int send_some(world_rank *me, streams *s, int peer, size_t most) {
  uint8_t bytes[4][PIECE_MOST];
  struct iovec pieces[4];
  size_t end = stream_length(me->rank, peer, most), at = s->sent[peer], offered = 0, taken = 0;
  int count = 1 + (int)world_below(me, 4);
  for (int i = 0; i < count; i++) {
    size_t n = world_below(me, 4) == 0 ? 0 : world_below(me, world_below(me, 2) ? PIECE_MOST : 40);
    n = i == count - 1 && offered + n == 0 ? 1 : n; /* who offers nothing is not told of room */
    n = n < end - at - offered ? n : end - at - offered;
    for (size_t k = 0; k < n; k++) {
      bytes[i][k] = stream_byte(me->rank, peer, at + offered + k);
    }
    pieces[i] = (struct iovec){bytes[i], n};
    offered += n;
  }
  CHECK_OK(me->world->ops->send(me->transport, peer, pieces, count, &taken));
  CHECK(taken <= offered);
  s->sent[peer] += taken;
  return taken > 0;
}

static int receive_some(world_rank *me, streams *s, int peer, size_t most) {
  uint8_t bytes[PIECE_MOST];
  size_t size = 1 + world_below(me, world_below(me, 2) ? PIECE_MOST : 40), got = 0;
  size_t rest = stream_length(peer, me->rank, most) - s->got[peer];
  size = size < rest ? size : rest;
  CHECK_OK(me->world->ops->receive(me->transport, peer, bytes, size, &got));
  CHECK(got <= size);
  for (size_t k = 0; k < got; k++) {
    if (bytes[k] != stream_byte(peer, me->rank, s->got[peer] + k)) {
      CHECK_MSG(0, "byte %zu from rank %d to %d is wrong", s->got[peer] + k, peer, me->rank);
    }
  }
  s->got[peer] += got;
  return got > 0;
}

static int streams_are_done(const world_rank *me, const streams *s, size_t most, uint8_t *sending) {
  int done = 1;
  for (int peer = 0; peer < me->ranks; peer++) {
    sending[peer] = peer != me->rank && s->sent[peer] < stream_length(me->rank, peer, most);
    done &= peer == me->rank || (!sending[peer] && s->got[peer] == stream_length(peer, me->rank, most));
  }
  return done;
}

static void exchange_streams(world_rank *me) {
  size_t most = *(const size_t *)me->argument;
  streams s = {0};
  uint8_t sending[WORLD_RANKS_MOST];
  while (!streams_are_done(me, &s, most, sending)) {
    int moved = 0, first = (int)world_below(me, (uint64_t)me->ranks);
    for (int i = 0; i < me->ranks; i++) {
      int peer = (first + i) % me->ranks;
      if (peer != me->rank) {
        moved |= sending[peer] && send_some(me, &s, peer, most);
        moved |= receive_some(me, &s, peer, most);
      }
    }
    if (!moved) {
      doze(me, sending, PATIENCE, "woken");
    }
  }
  world_barrier(me); /* nobody goes while others still read */
}

void law_bytes_arrive_in_order(const transport_world *world, size_t most) {
  for (int ranks = 1; ranks <= 6; ranks++) {
    world_run(world, ranks, 0, exchange_streams, &most);
  }
}

/* ---- Law: no wake-up is lost ------------------------------------------------------------------------------------- */

/* A token goes around; everybody sleeps at once, or after looking a random number of times. */
static void pass_token(world_rank *me) {
  int rounds = *(const int *)me->argument, next = (me->rank + 1) % me->ranks,
      last = (me->rank + me->ranks - 1) % me->ranks;
  for (int round = 0; round < rounds; round++) {
    int token = round;
    if (me->rank == 0) {
      world_send(me, next, &token, sizeof token);
    }
    for (uint64_t spins = world_below(me, 3) ? 0 : world_below(me, 200); spins > 0; spins--) {
      size_t got = 0;
      CHECK_OK(me->world->ops->receive(me->transport, last, &token, 0, &got));
    }
    world_receive(me, last, &token, sizeof token);
    CHECK_EQ(token, round);
    if (me->rank != 0) {
      world_send(me, next, &token, sizeof token);
    }
  }
  world_barrier(me);
}

void law_no_wakeup_is_lost(const transport_world *world, int rounds) {
  world_run(world, 2, 0, pass_token, &rounds);
  world_run(world, 4, 0, pass_token, &rounds);
}

/* ---- Law: a silent reader blocks no other ------------------------------------------------------------------------ */

/* Rank 1 reads nothing until rank 2 has all; rank 0 offers both as much as they take. */
static void send_past_silence(world_rank *me) {
  enum { TOTAL = 300000 };
  uint8_t *bytes = calloc(1, TOTAL);
  CHECK(bytes != NULL);
  if (me->rank == 0) {
    size_t taken = 1, to_silent = 0;
    while (taken > 0 && to_silent < TOTAL) {
      CHECK_OK(me->world->ops->send(me->transport, 1, &(struct iovec){bytes, TOTAL - to_silent}, 1, &taken));
      to_silent += taken;
    }
    world_send(me, 2, bytes, TOTAL);
    world_send(me, 1, bytes, TOTAL - to_silent);
  } else if (me->rank == 2) {
    world_receive(me, 0, bytes, TOTAL);
    world_send(me, 1, "x", 1);
  } else {
    world_receive(me, 2, bytes, 1);
    world_receive(me, 0, bytes, TOTAL);
  }
  world_barrier(me);
  free(bytes);
}

void law_one_silent_reader_blocks_no_other(const transport_world *world) {
  world_run(world, 3, 0, send_past_silence, NULL);
}

/* ---- Laws: the dead ---------------------------------------------------------------------------------------------- */

#define LAST_WORDS 3000

/* Everything that rank 1 sent, then an error that names it, within two seconds; asleep or spinning. */
static void read_last_words(world_rank *me, int spins) {
  uint8_t bytes[LAST_WORDS + 1];
  size_t sum = 0, got = 0;
  pith_status status = PITH_OK;
  double end = now() + 2.5;
  while (status == PITH_OK) {
    status = me->world->ops->receive(me->transport, 1, bytes + sum, sizeof bytes - sum, &got);
    if (status == PITH_OK) {
      sum += got;
      CHECK_MSG(now() < end, "the death of rank 1 was not noticed");
    }
    if (status == PITH_OK && got == 0 && !spins) {
      world_wait(me, 2);
    }
  }
  CHECK_EQ(status, PITH_ERR_PEER);
  CHECK_ERROR_SAYS("rank 1");
  CHECK_EQ(sum, LAST_WORDS);
  for (size_t k = 0; k < sum; k++) {
    CHECK_EQ(bytes[k], stream_byte(1, 0, k));
  }
  CHECK_STATUS(me->world->ops->receive(me->transport, 1, bytes, 1, &got), PITH_ERR_PEER); /* and it stays so */
}

static void say_last_words(world_rank *me) {
  uint8_t bytes[LAST_WORDS];
  for (size_t k = 0; k < sizeof bytes; k++) {
    bytes[k] = stream_byte(1, 0, k);
  }
  world_send(me, 0, bytes, sizeof bytes);
}

/* Sending to the dead ends in an error as well, not in a signal or in silence. */
static void send_to_the_dead(world_rank *me) {
  char bytes[4096] = {0};
  size_t taken;
  pith_status status = PITH_OK;
  for (double end = now() + 2; status == PITH_OK && now() < end;) {
    status = me->world->ops->send(me->transport, 1, &(struct iovec){bytes, sizeof bytes}, 1, &taken);
  }
  CHECK_EQ(status, PITH_ERR_PEER);
  CHECK_ERROR_SAYS("rank 1");
}

typedef enum death { DEATH_BY_CLOSE, DEATH_BY_SIGNAL, DEATH_WHILE_WATCHED } death;

static void survive(world_rank *me) {
  death how = *(const death *)me->argument;
  if (me->rank == 1) {
    say_last_words(me);
    pause_ms((long)world_below(me, 20)); /* before the others sleep, or after */
    if (how == DEATH_BY_CLOSE) {
      close_transport(me);
    } else {
      raise(SIGKILL);
    }
  } else if (me->rank == 0) {
    read_last_words(me, how == DEATH_WHILE_WATCHED);
    send_to_the_dead(me);
    world_send(me, 2, "x", 1); /* the living still talk */
  } else {
    char byte;
    world_receive(me, 0, &byte, 1);
  }
}

static void check_death(const transport_world *world, death how) {
  for (int i = 0; i < 5; i++) {
    world_run(world, 3, how == DEATH_BY_CLOSE ? 0 : 1u << 1, survive, &how);
  }
}

void law_last_bytes_of_a_closed_peer_arrive(const transport_world *world) { check_death(world, DEATH_BY_CLOSE); }
void law_last_bytes_of_a_killed_peer_arrive(const transport_world *world) { check_death(world, DEATH_BY_SIGNAL); }
void law_a_spinning_rank_notices_a_killed_peer(const transport_world *world) {
  check_death(world, DEATH_WHILE_WATCHED);
}

/* ---- Law: the stopped -------------------------------------------------------------------------------------------- */

static void wait_until_stopped(pid_t pid) {
  char path[64], text[512];
  snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
  for (double end = now() + PATIENCE; now() < end; pause_ms(5)) {
    FILE *file = fopen(path, "r");
    CHECK(file != NULL);
    size_t size = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[size] = 0;
    if (strstr(text, ") T ")) {
      return;
    }
  }
  CHECK_MSG(0, "rank 1 does not stop");
}

static void outlast_a_stop(world_rank *me) {
  enum { TOTAL = 8 << 20 };
  uint8_t *bytes = calloc(1, TOTAL);
  CHECK(bytes != NULL);
  if (me->rank == 1) {
    raise(SIGSTOP);
    world_receive(me, 0, bytes, TOTAL);
  } else {
    wait_until_stopped(world_pid(me, 1));
    size_t sum = 0, taken = 0, got = 0;
    for (double end = now() + 0.3; now() < end && sum < TOTAL; sum += taken) {
      CHECK_OK(me->world->ops->send(me->transport, 1, &(struct iovec){bytes + sum, TOTAL - sum}, 1, &taken));
      CHECK_OK(me->world->ops->receive(me->transport, 1, bytes, 1, &got));
      CHECK_EQ(got, 0);
    }
    CHECK(sum < TOTAL);
    kill(world_pid(me, 1), SIGCONT);
    world_send(me, 1, bytes + sum, TOTAL - sum);
    while (me->world->ops->has_output && me->world->ops->has_output(me->transport)) {
      wait_to_send(me, 1); /* what was taken may still be here, and nobody moves it in the barrier */
    }
  }
  world_barrier(me);
  free(bytes);
}

void law_a_stopped_peer_only_waits(const transport_world *world) { world_run(world, 2, 0, outlast_a_stop, NULL); }

/* ---- Laws: connecting -------------------------------------------------------------------------------------------- */

static void connect_in_groups(world_rank *me) {
  uint8_t wanted[WORLD_RANKS_MOST] = {0};
  for (int peer = 0; peer < me->ranks; peer++) {
    wanted[peer] = peer != me->rank && peer % 2 == me->rank % 2;
  }
  world_listen(me, PATIENCE);
  world_barrier(me);
  CHECK_OK(world_connect(me, wanted));
  for (int peer = 0; peer < me->ranks; peer++) {
    if (wanted[peer]) {
      int from = -1;
      world_send(me, peer, &me->rank, sizeof me->rank);
      world_receive(me, peer, &from, sizeof from);
      CHECK_EQ(from, peer);
    }
  }
  world_barrier(me);
}

void law_groups_do_not_mix(const transport_world *world) {
  world_run_unconnected(world, 6, 0, connect_in_groups, NULL);
}

static void be_alone(world_rank *me) {
  uint8_t sending = 0;
  struct pollfd fds[4];
  int count = me->world->ops->descriptors(me->transport, &sending, fds, 4);
  CHECK(count >= 0 && count <= 4);
  CHECK_EQ(me->world->ops->sleep(me->transport, 1), 0);
  me->world->ops->sleep(me->transport, 0);
}

void law_one_rank_alone_works(const transport_world *world) { world_run(world, 1, 0, be_alone, NULL); }

/* Rank 2 listens and never connects. */
static void wait_for_the_absent(world_rank *me) {
  uint8_t wanted[3] = {me->rank != 0, me->rank != 1, me->rank != 2};
  world_listen(me, me->rank == 2 ? PATIENCE : 0.3);
  world_barrier(me);
  if (me->rank != 2) {
    double start = now();
    CHECK_STATUS(world_connect(me, wanted), PITH_ERR_TIMEOUT);
    CHECK_ERROR_SAYS("rank 2");
    CHECK(now() - start < 2);
  }
  world_barrier(me);
}

void law_a_missing_rank_is_named(const transport_world *world) {
  world_run_unconnected(world, 3, 0, wait_for_the_absent, NULL);
}

static void be_of_another_job(world_rank *me) {
  uint8_t wanted[2] = {me->rank != 0, me->rank != 1};
  pith_transport_config config = {.rank = me->rank, .ranks = 2, .timeout = 0.3};
  pith__link_key_make("secret", JOB + (uint64_t)me->rank, &me->key);
  CHECK_OK(me->world->ops->listen(&config, &me->transport, &me->shared->address[me->rank]));
  world_barrier(me);
  CHECK(world_connect(me, wanted) != PITH_OK);
  CHECK_ERROR_SAYS(me->rank ? "rank 0" : "rank 1");
  world_barrier(me);
}

void law_another_job_is_not_met(const transport_world *world) {
  world_run_unconnected(world, 2, 0, be_of_another_job, NULL);
}

/* ---- Law: nothing leaks ------------------------------------------------------------------------------------------ */

static void come_and_go(world_rank *me) {
  int before = count_descriptors();
  for (int i = 0; i < 20; i++) {
    world_listen(me, PATIENCE);
    world_barrier(me);
    connect_to_all(me);
    int token = i;
    world_send(me, (me->rank + 1) % me->ranks, &token, sizeof token);
    world_receive(me, (me->rank + me->ranks - 1) % me->ranks, &token, sizeof token);
    world_barrier(me);
    close_transport(me);
    world_barrier(me);
  }
  CHECK(me->world->kind == WORLD_THREADS || count_descriptors() == before);
}

void law_nothing_leaks(const transport_world *world) {
  int before = count_descriptors();
  world_run_unconnected(world, 3, 0, come_and_go, NULL);
  CHECK_EQ(count_descriptors(), before);
}
