/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Faults on purpose: a job of two or three ranks is created, reduces values compressed and uncompressed, takes a step
 * of a reducer, saves and loads its checkpoint, and ends; in each run one system call or allocation fails, or does less
 * than it was asked for (injection.h). Whatever happens:
 *
 *   - no rank has a wrong result, crashes, hangs, or leaves a descriptor or (with LeakSanitizer) memory behind;
 *   - a signal, a call to be tried again and a short read or write change nothing at all;
 *   - after any other fault a rank has its results, or an error with a message, and no rank gets two steps ahead.
 *
 * Each run is a process of its own, and several run at a time. Of the calls of a kind, a few are chosen at random;
 * PITH_TEST_INJECT=all takes all of them, with all faults.
 */
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/status.h"
#include "descriptors.h"
#include "injection.h"
#include "ranks.h"
#include "test.h"
#include "transport/shm_segment.h"

enum { RANKS_MOST = 3, VALUES = 3000, LAYER = 300, RUNS_AT_ONCE = 6, EACH_KIND = 8, CALLS_MOST = 400 };

static const double soft_timeout = 30, hard_timeout = 0.5, run_seconds = 45;

/* ---- The scenario ------------------------------------------------------------------------------------------------ */

/* What a rank has in the end. */
typedef struct results {
  float plain[VALUES], coded[VALUES], layers[2][LAYER];
} results;

typedef struct rank_run {
  pith_config config;
  results results;
  int steps; /* that were completed */
  pith_status status;
  char message[300];
} rank_run;

static atomic_int created; /* comms */

static float value_of(int rank, int i) { return (float)((i * 7 + rank * 13) % 101 - 50); }

static pith_status reduce_coded(pith_comm *comm, float *values) {
  pith_codec *codec;
  pith_call call = PITH_CALL_INIT;
  pith_status status = pith_codec_create("q:4", &codec);
  if (status == PITH_OK) {
    call.codec = codec;
    call.algorithm = "sra"; /* a rank that cannot tell its host may change what is cheapest */
    status = pith_allreduce(comm, (pith_cspan){values, VALUES, PITH_F32}, (pith_span){values, VALUES, PITH_F32},
                            PITH_MEAN, &call, NULL);
    pith_codec_destroy(codec);
  }
  return status;
}

static pith_status save_and_load(pith_reducer *reducer) {
  pith_out out = {.capacity = pith_reducer_save_size(reducer)};
  out.data = __real_malloc(out.capacity); /* the test's own */
  pith_status status = pith_reducer_save(reducer, &out);
  if (status == PITH_OK) {
    status = pith_reducer_load(reducer, (pith_bytes){out.data, out.size});
  }
  free(out.data);
  return status;
}

static pith_status step(pith_reducer *reducer, float layers[2][LAYER]) {
  size_t layer[2], shape = LAYER;
  pith_status status = PITH_OK;
  for (int l = 0; l < 2 && status == PITH_OK; l++) {
    status = pith_reducer_add(
        reducer, &(pith_layer){sizeof(pith_layer), l ? "b.bias" : "a.weight", &shape, 1, PITH_F32, NULL}, &layer[l]);
  }
  for (int l = 0; l < 2 && status == PITH_OK; l++) {
    status = pith_reducer_start(reducer, layer[l], layers[l]);
  }
  if (status == PITH_OK) {
    status = pith_reducer_finish(reducer);
  }
  return status == PITH_OK ? save_and_load(reducer) : status;
}

static pith_status use_reducer(pith_comm *comm, float layers[2][LAYER]) {
  pith_reducer *reducer;
  pith_status status = pith_reducer_create(comm, "*.bias=none;*=ef/q:4", 1, &reducer);
  if (status == PITH_OK) {
    status = step(reducer, layers);
    char message[300];
    snprintf(message, sizeof message, "%s", pith_error());
    pith_reducer_destroy(reducer);
    return status == PITH_OK ? PITH_OK : pith_fail(status, "%s", message);
  }
  return status;
}

static pith_status take_part(rank_run *r, pith_comm **comm) {
  results *x = &r->results;
  int rank = r->config.rank;
  for (int i = 0; i < VALUES; i++) {
    x->plain[i] = x->coded[i] = value_of(rank, i);
  }
  for (int i = 0; i < 2 * LAYER; i++) {
    x->layers[i / LAYER][i % LAYER] = value_of(rank, i);
  }
  PITH_TRY(pith_comm_create(&r->config, comm));
  r->steps++;
  is_injecting_each |= ++created == r->config.ranks;
  PITH_TRY(pith_allreduce(*comm, (pith_cspan){x->plain, VALUES, PITH_F32}, (pith_span){x->plain, VALUES, PITH_F32},
                          PITH_SUM, NULL, NULL));
  r->steps++;
  PITH_TRY(reduce_coded(*comm, x->coded));
  r->steps++;
  PITH_TRY(use_reducer(*comm, x->layers));
  r->steps++;
  PITH_TRY(pith_barrier(*comm, NULL));
  r->steps++;
  return PITH_OK;
}

static void *run_rank(void *argument) {
  rank_run *r = argument;
  pith_comm *comm = NULL;
  r->status = take_part(r, &comm);
  snprintf(r->message, sizeof r->message, "%s", r->status == PITH_OK ? "" : pith_error());
  pith_comm_destroy(comm);
  return NULL;
}

/* ---- One run ----------------------------------------------------------------------------------------------------- */

typedef struct run {
  const char *transport;
  int ranks, number, port; /* number: each has addresses of its own */
  injection fault;
  int is_soft; /* must change nothing */
} run;

/* What runs tell the test. */
static struct shared {
  results right; /* of a run without a fault */
  long calls[INJECTED_KINDS];
  atomic_int hits[INJECTED_KINDS];
  long last_calls[INJECTED_KINDS]; /* of the latest run whose fault is of this kind */
  atomic_int errors;               /* runs in which a rank had an error */
} *shared;

static const char *const kind_names[] = {
#define INJECTED_NAME(name) #name,
    INJECTED_CALLS(INJECTED_NAME)};

static void say(const run *r, const char *what, const char *more) {
  const char *fault = r->fault.fault == INJECT_ONE_BYTE ? "one byte only"
                      : r->fault.fault == INJECT_PART   ? "a part only"
                                                        : strerror(r->fault.fault);
  printf("  %d ranks over %s, call %ld of %s, %s: %s%s\n", r->ranks, r->transport, r->fault.number,
         kind_names[r->fault.kind], fault, what, more);
}

int __lsan_do_recoverable_leak_check(void) __attribute__((weak));

/* Whether a rank ended as it must. */
static int is_rank_right(const run *r, const rank_run *x) {
  char text[400];
  if (x->status == PITH_OK) {
    int is_right = memcmp(&x->results, &shared->right, sizeof x->results) == 0;
    if (!is_right) {
      say(r, "wrong results", "");
    }
    return is_right;
  }
  if (r->is_soft || !x->message[0]) {
    snprintf(text, sizeof text, "%s (%s)", pith_status_string(x->status), x->message);
    say(r, r->is_soft ? "an error: " : "an error without a message: ", text);
    return 0;
  }
  return 1;
}

static int are_ranks_right(const run *r, const rank_run *x) {
  int least = 99, most = 0, good = 1, errors = 0;
  for (int p = 0; p < r->ranks; p++) {
    good &= is_rank_right(r, &x[p]);
    least = x[p].steps < least ? x[p].steps : least;
    most = x[p].steps > most ? x[p].steps : most;
    errors += x[p].status != PITH_OK;
  }
  shared->errors += errors > 0;
  if (most > least + 1) {
    say(r, "a rank went on without the others", "");
  }
  return good && most <= least + 1;
}

static int do_run(const run *r) {
  static rank_run x[RANKS_MOST];
  pthread_t threads[RANKS_MOST];
  char host[32];
  snprintf(host, sizeof host, "127.%d.%d.%d", 1 + getppid() % 250, 1 + r->number / 250, 1 + r->number % 250);
  pith__shm_tuning = (pith_shm_tuning){8, 4096};
  injected = r->fault;
  int before = count_descriptors();
  is_injecting_each =
      r->fault.fault == EINTR; /* others from then on when the links stand: they have room for a hello */
  atomic_store(&is_injecting, 1);
  for (int p = 0; p < r->ranks; p++) {
    pith_config config = PITH_CONFIG_INIT;
    config.rank = p, config.ranks = r->ranks, config.host = host, config.port = r->port,
    config.transport = r->transport;
    config.timeout = r->is_soft ? soft_timeout : hard_timeout;
    x[p].config = config;
    if (__real_pthread_create(&threads[p], NULL, run_rank, &x[p]) != 0) {
      return 0;
    }
  }
  for (int p = 0; p < r->ranks; p++) {
    pthread_join(threads[p], NULL);
  }
  atomic_store(&is_injecting, 0);
  if (r->fault.number == INJECT_NOTHING) { /* the first: what is right, and how many calls there are */
    shared->right = x[0].results;
    for (int k = 0; k < INJECTED_KINDS; k++) {
      shared->calls[k] = atomic_load(&injected_calls[k]);
    }
  }
  shared->hits[r->fault.kind] += atomic_load(&injected_hits) > 0;
  shared->last_calls[r->fault.kind] = atomic_load(&injected_calls[r->fault.kind]);
  int good = are_ranks_right(r, x), after = count_descriptors();
  if (after != before) {
    say(r, "descriptors stayed open", "");
  }
  if (__lsan_do_recoverable_leak_check && __lsan_do_recoverable_leak_check()) {
    say(r, "memory leaked", "");
    good = 0;
  }
  return good && after == before;
}

/* ---- Many runs --------------------------------------------------------------------------------------------------- */

static struct {
  pid_t process;
  double until;
  run run;
} running[RUNS_AT_ONCE];
static int broken;

static void end_run(int place, int status) {
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    broken++;
    if (!WIFEXITED(status)) {
      say(&running[place].run, WTERMSIG(status) == SIGKILL ? "it hangs" : "it crashed", "");
    }
  }
  running[place].process = 0;
}

/* Waits until one of the runs is over, or all. */
static void await(int all) {
  for (;;) {
    int busy = 0;
    for (int i = 0; i < RUNS_AT_ONCE; i++) {
      int status;
      if (!running[i].process) {
        continue;
      }
      if (waitpid(running[i].process, &status, WNOHANG) == running[i].process) {
        end_run(i, status);
      } else if (pith__now() > running[i].until) {
        kill(running[i].process, SIGKILL);
      }
      busy += running[i].process != 0;
    }
    if (busy == 0 || (!all && busy < RUNS_AT_ONCE)) {
      return;
    }
    usleep(1000);
  }
}

static void start_run(const run *r) {
  static int number;
  await(0);
  for (int i = 0; i < RUNS_AT_ONCE; i++) {
    if (!running[i].process) {
      running[i].run = *r;
      running[i].run.number = number++;
      running[i].run.port = ranks_free_port();
      running[i].until = pith__now() + run_seconds;
      fflush(stdout);
      running[i].process = fork();
      CHECK(running[i].process >= 0);
      if (running[i].process == 0) {
        int good = do_run(&running[i].run);
        fflush(stdout);
        _exit(good ? 0 : 1);
      }
      return;
    }
  }
}

static int takes_all(void) {
  const char *text = getenv("PITH_TEST_INJECT");
  return text && strcmp(text, "all") == 0;
}

static void prepare(const char *transport, int ranks) {
  shared = __real_mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(shared != MAP_FAILED);
  CHECK(pith_method_count() > 0); /* opens the registry, which stays */
  run clean = {.transport = transport, .ranks = ranks, .is_soft = 1, .fault = {.number = INJECT_NOTHING}};
  start_run(&clean);
  await(1);
  CHECK_MSG(shared->calls[INJECT_poll] > 0 && !broken, "a run without faults failed");
  for (int i = 0; i < VALUES; i++) {
    float sum = 0;
    for (int p = 0; p < ranks; p++) {
      sum += value_of(p, i);
    }
    CHECK(shared->right.plain[i] == sum);
  }
}

/* What can happen to a call of a kind: errno values after which everything must be as if nothing had happened, then
 * others. */
typedef struct faults {
  injected_kind kind;
  int soft[6], hard[6];
} faults;

static void run_kind(const char *transport, int ranks, const faults *f) {
  int all[12], soft = 0, count = 0;
  for (; soft < 6 && f->soft[soft]; soft++) {
    all[count++] = f->soft[soft];
  }
  for (int i = 0; i < 6 && f->hard[i]; i++) {
    all[count++] = f->hard[i];
  }
  long calls = shared->calls[f->kind] < CALLS_MOST ? shared->calls[f->kind] : CALLS_MOST;
  long most = takes_all() ? calls : calls < EACH_KIND ? calls : EACH_KIND;
  for (long i = 0; i < (most > count ? most : count) && calls > 0; i++) {
    for (int k = 0; k < (takes_all() ? count : 1); k++) { /* in turns, else */
      int which = (int)(takes_all() ? k : i % count);
      long number = most == calls ? i % calls : (long)test_below((uint64_t)calls);
      run r = {.transport = transport,
               .ranks = ranks,
               .is_soft = which < soft,
               .fault = {.kind = f->kind, .number = number, .fault = all[which]}};
      start_run(&r);
    }
  }
  for (int i = 0; i < soft && calls > 0; i++) { /* half of all calls */
    run r = {.transport = transport,
             .ranks = ranks,
             .is_soft = 1,
             .fault = {.kind = f->kind, .number = INJECT_EACH, .fault = all[i]}};
    start_run(&r);
  }
}

/* How often a call is made depends on timing: over shm, send wakes a peer only if it sleeps. So where no run had its
 * fault, the first call of another run has it; a run that makes no such call has nothing to show. */
static void must_hit(const char *transport, int ranks, const faults *f) {
  if (shared->hits[f->kind] || !shared->calls[f->kind]) {
    return;
  }
  run r = {.transport = transport,
           .ranks = ranks,
           .is_soft = f->soft[0] != 0,
           .fault = {.kind = f->kind, .number = 0, .fault = f->soft[0] ? f->soft[0] : f->hard[0]}};
  start_run(&r);
  await(1);
  CHECK_MSG(shared->hits[f->kind] || !shared->last_calls[f->kind], "no call of %s failed", kind_names[f->kind]);
}

static void run_all(const char *transport, int ranks, const faults *f, size_t count) {
  prepare(transport, ranks);
  for (size_t i = 0; i < count; i++) {
    run_kind(transport, ranks, &f[i]);
  }
  await(1);
  for (size_t i = 0; i < count; i++) {
    must_hit(transport, ranks, &f[i]);
  }
  CHECK_MSG(broken == 0, "%d runs failed", broken);
  CHECK_MSG(shared->errors > 0, "no fault was ever noticed");
}

/* ---- The tests --------------------------------------------------------------------------------------------------- */

#define ALL_DESCRIPTORS EMFILE, ENFILE

static const faults system_calls[] = {
    {INJECT_socket, {0}, {ALL_DESCRIPTORS, ENOMEM, ENOBUFS}},
    {INJECT_bind, {0}, {EADDRINUSE, ENOMEM}},
    {INJECT_listen, {0}, {EADDRINUSE}},
    {INJECT_accept4, {EINTR, EAGAIN, ALL_DESCRIPTORS, ENOMEM, ENOBUFS}, {0}},
    {INJECT_connect, {EINTR}, {ECONNREFUSED, EAGAIN, ENOBUFS, ETIMEDOUT}},
    {INJECT_shutdown, {ENOTCONN}, {0}},
    {INJECT_close, {EINTR, EIO}, {0}},
    {INJECT_setsockopt, {ENOBUFS}, {0}},
    {INJECT_getsockopt, {0}, {ENOBUFS}},
    {INJECT_getsockname, {0}, {ENOBUFS}},
    {INJECT_getpeername, {ENOTCONN}, {0}},
    {INJECT_getifaddrs, {0}, {ENOMEM, EMFILE}},
    {INJECT_getaddrinfo, {0}, {EAI_AGAIN > 0 ? EAI_AGAIN : EAGAIN}},
    {INJECT_recv, {EINTR, EAGAIN, INJECT_ONE_BYTE, INJECT_PART}, {ECONNRESET, ENOMEM}},
    {INJECT_recvmsg, {EINTR, EAGAIN, INJECT_ONE_BYTE, INJECT_PART}, {ECONNRESET, ENOMEM}},
    {INJECT_send, {EINTR}, {EPIPE, ECONNRESET, ENOBUFS}},
    {INJECT_sendmsg, {EINTR, EAGAIN, INJECT_ONE_BYTE, INJECT_PART}, {EPIPE, ECONNRESET, ENOBUFS, ENOMEM}},
    {INJECT_poll, {EINTR}, {ENOMEM}},
    {INJECT_ppoll, {EINTR}, {ENOMEM}},
    {INJECT_epoll_create1, {0}, {ALL_DESCRIPTORS, ENOMEM}},
    {INJECT_epoll_ctl, {0}, {ENOMEM, ENOSPC}},
    {INJECT_epoll_wait, {EINTR}, {0}},
    {INJECT_eventfd, {0}, {ALL_DESCRIPTORS, ENOMEM}},
    {INJECT_read, {EINTR}, {EAGAIN, EIO}},
    {INJECT_write, {EINTR, EAGAIN}, {0}},
    {INJECT_open, {0}, {ALL_DESCRIPTORS}},
    {INJECT_readlink, {0}, {ENOMEM, EACCES}},
    {INJECT_fstat, {0}, {ENOMEM}},
    {INJECT_fcntl, {0}, {ENOMEM, EPERM}},
    {INJECT_ioctl, {EINTR, ENOTTY}, {0}},
    {INJECT_memfd_create, {0}, {ALL_DESCRIPTORS, ENOMEM}},
    {INJECT_ftruncate, {EINTR}, {ENOSPC, ENOMEM}},
    {INJECT_fallocate, {EINTR}, {ENOSPC, ENOMEM}},
    {INJECT_mmap, {0}, {ENOMEM, ENFILE}},
    {INJECT_getrandom, {EINTR}, {ENOSYS}},
    {INJECT_syscall, {EMFILE, ENOSYS}, {0}},
    {INJECT_pthread_create, {0}, {EAGAIN}},
};

TEST_WITHIN(a_failing_system_call_over_shm, 240) {
  run_all("shm", 2, system_calls, sizeof system_calls / sizeof *system_calls);
}

TEST_WITHIN(a_failing_system_call_over_tcp, 240) {
  run_all("tcp", 3, system_calls, sizeof system_calls / sizeof *system_calls);
}

/* Every allocation fails once; more of them than of calls, since each has its own way out. */
static void run_allocations(const char *transport) {
  enum { CHOSEN = 60 };
  prepare(transport, 2);
  long calls = shared->calls[INJECT_allocation], most = takes_all() || calls < CHOSEN ? calls : CHOSEN;
  for (long i = 0; i < most; i++) {
    run r = {.transport = transport,
             .ranks = 2,
             .fault = {.kind = INJECT_allocation,
                       .number = i * calls / most + (long)test_below((uint64_t)(calls / most)),
                       .fault = ENOMEM}};
    start_run(&r);
  }
  await(1);
  CHECK_MSG(broken == 0, "%d runs failed", broken);
  CHECK_MSG(shared->errors > 0 && shared->hits[INJECT_allocation] > 0, "no fault was ever noticed");
}

TEST_WITHIN(a_failing_allocation_over_shm, 240) { run_allocations("shm"); }

TEST_WITHIN(a_failing_allocation_over_tcp, 240) { run_allocations("tcp"); }
