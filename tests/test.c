/* SPDX-License-Identifier: Apache-2.0 */
/* The runner behind test.h: main(), a process for each test, checks that end it, and random numbers. */
#include "test.h"

#include <errno.h>
#include <fnmatch.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Exit codes of a test's process. Passing is not 0: code under test that calls exit(0) must not pass. */
typedef enum test_exit { EXIT_FAILED = 1, EXIT_PASSED = 42, EXIT_SKIPPED = 77 } test_exit;

typedef struct test_totals {
  unsigned passed, failed, skipped;
} test_totals;

static test_case *first, **last = &first;
static uint64_t base_seed, random_state;
static atomic_uint checks;

void test_register(test_case *test) {
  *last = test;
  last = &test->next;
}

/* ---- Inside a test ----------------------------------------------------------------------------------------------- */

void test_count_check(void) { atomic_fetch_add_explicit(&checks, 1, memory_order_relaxed); }

static _Noreturn void leave(test_exit code) {
  fflush(NULL);
  _exit(code);
}

void test_fail(const char *file, int line, const char *format, ...) {
  va_list args;
  va_start(args, format);
  printf("  %s:%d: ", file, line);
  vprintf(format, args);
  printf("\n");
  va_end(args);
  leave(EXIT_FAILED);
}

void test_skip(const char *reason, ...) {
  va_list args;
  va_start(args, reason);
  vprintf(reason, args);
  va_end(args);
  leave(EXIT_SKIPPED);
}

/* Whether a word is in the list PITH_TEST_REQUIRE. */
static int is_required(const char *what) {
  const char *list = getenv("PITH_TEST_REQUIRE");
  size_t length = strlen(what);
  while (list && *list) {
    size_t word = strcspn(list, ",");
    if (word == length && memcmp(list, what, word) == 0) {
      return 1;
    }
    list += word + (list[word] == ',');
  }
  return 0;
}

void test_lacks(const char *what, const char *reason, ...) {
  va_list args;
  va_start(args, reason);
  printf(is_required(what) ? "  PITH_TEST_REQUIRE has %s: " : "[%s] ", what);
  vprintf(reason, args);
  va_end(args);
  leave(is_required(what) ? EXIT_FAILED : EXIT_SKIPPED);
}

size_t test_first_difference(const void *a, const void *b, size_t size) {
  const unsigned char *x = a, *y = b;
  size_t i = 0;
  while (i < size && x[i] == y[i]) {
    i++;
  }
  return i;
}

uint64_t test_random(void) { /* splitmix64 */
  uint64_t x = random_state += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

uint64_t test_below(uint64_t limit) { return (uint64_t)(((unsigned __int128)test_random() * limit) >> 64); }

double test_uniform(void) { return (double)(test_random() >> 11) * 0x1p-53; }

float test_normal(void) { /* Box and Muller */
  double radius = sqrt(-2 * log(1 - test_uniform()));
  return (float)(radius * cos(6.283185307179586 * test_uniform()));
}

/* Runs in the child. A plain exit lets leak checkers have their say. */
static _Noreturn void run_here(const test_case *test, FILE *output) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  dup2(fileno(output), STDOUT_FILENO);
  dup2(fileno(output), STDERR_FILENO);
  random_state = base_seed;
  for (const char *c = test->name; *c; c++) {
    random_state = (random_state ^ (unsigned char)*c) * 0x100000001b3u;
  }
  test->run();
  if (atomic_load(&checks) == 0) {
    test_fail(__FILE__, __LINE__, "the test made no check: it proves nothing");
  }
  exit(EXIT_PASSED);
}

/* ---- Around a test ----------------------------------------------------------------------------------------------- */

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Waits until the child ends or its time is over; returns whether it ended. SIGCHLD is blocked, so none is missed. */
static int wait_for(pid_t child, unsigned seconds, int *status) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGCHLD);
  double end = now() + seconds;
  for (;;) {
    if (waitpid(child, status, WNOHANG) == child) {
      return 1;
    }
    double left = end - now();
    if (left <= 0) {
      return 0;
    }
    struct timespec wait = {(time_t)left, (long)((left - floor(left)) * 1e9)};
    sigtimedwait(&signals, NULL, &wait);
  }
}

static void show_output(FILE *output) {
  char line[1024];
  rewind(output);
  while (fgets(line, sizeof line, output)) {
    fputs(line, stdout);
  }
}

static unsigned time_limit(const test_case *test) {
  const char *wanted = getenv("PITH_TEST_TIMEOUT");
  return wanted && atoi(wanted) > 0 ? (unsigned)atoi(wanted) : test->seconds;
}

static void report_failure(const test_case *test, int ended, int status, FILE *output) {
  printf("FAIL %s", test->name);
  if (!ended) {
    printf(": no end after %u s", time_limit(test));
  } else if (WIFSIGNALED(status)) {
    printf(": %s", strsignal(WTERMSIG(status)));
  } else if (WEXITSTATUS(status) != EXIT_FAILED) {
    printf(": its process ended with status %d", WEXITSTATUS(status));
  }
  printf("\n");
  show_output(output);
  printf("  repeat with PITH_TEST_SEED=%llu\n", (unsigned long long)base_seed);
}

static void report(const test_case *test, int ended, int status, FILE *output, int verbose, test_totals *totals) {
  int code = ended && WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_FAILED;
  if (code == EXIT_PASSED) {
    totals->passed++;
    printf("ok   %s\n", test->name);
    if (verbose) {
      show_output(output);
    }
  } else if (code == EXIT_SKIPPED) {
    totals->skipped++;
    printf("skip %s: ", test->name);
    show_output(output);
    printf("\n");
  } else {
    totals->failed++;
    report_failure(test, ended, status, output);
  }
  fflush(stdout);
}

static void run(const test_case *test, int verbose, test_totals *totals) {
  FILE *output = tmpfile();
  fflush(NULL);
  pid_t child = output ? fork() : -1;
  if (child < 0) {
    printf("FAIL %s: cannot start it: %s\n", test->name, strerror(errno));
    totals->failed++;
    return;
  }
  if (child == 0) {
    run_here(test, output);
  }
  setpgid(child, child); /* both sides set it: whoever comes first */
  int status = 0, ended = wait_for(child, time_limit(test), &status);
  kill(-child, SIGKILL); /* the test if it hangs, and whatever it started */
  if (!ended) {
    waitpid(child, &status, 0);
  }
  report(test, ended, status, output, verbose, totals);
  fclose(output);
}

/* ---- The program ------------------------------------------------------------------------------------------------- */

static void choose_seed(void) {
  const char *wanted = getenv("PITH_TEST_SEED");
  base_seed = wanted ? strtoull(wanted, NULL, 0) : (uint64_t)time(NULL) * 1000003u + (uint64_t)getpid();
}

/* Whether the arguments that are not options name the test; without any, all are meant. */
static int is_chosen(const test_case *test, char **arguments) {
  int any = 0;
  for (; *arguments; arguments++) {
    if ((*arguments)[0] != '-') {
      any = 1;
      if (fnmatch(*arguments, test->name, 0) == 0) {
        return 1;
      }
    }
  }
  return !any;
}

static int has_option(char **arguments, const char *option) {
  for (; *arguments; arguments++) {
    if (strcmp(*arguments, option) == 0) {
      return 1;
    }
  }
  return 0;
}

static void block_child_signal(void) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGCHLD);
  sigprocmask(SIG_BLOCK, &signals, NULL);
}

int main(int argc, char **argv) {
  (void)argc;
  test_totals totals = {0};
  choose_seed();
  block_child_signal();
  for (const test_case *test = first; test; test = test->next) {
    if (!is_chosen(test, argv + 1)) {
      continue;
    }
    if (has_option(argv + 1, "-l")) {
      printf("%s\n", test->name);
    } else {
      run(test, has_option(argv + 1, "-v"), &totals);
    }
  }
  if (has_option(argv + 1, "-l")) {
    return EXIT_SUCCESS;
  }
  printf("%u passed, %u failed, %u skipped\n", totals.passed, totals.failed, totals.skipped);
  return totals.failed || totals.passed + totals.skipped == 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
