/* SPDX-License-Identifier: Apache-2.0 */
/* The command: see chaos.h. Some groups run side by side, since a group that waits for a time-out needs no core. */
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "chaos.h"
#include "cli/base/cli.h"
#include "cli/launch/network.h"

enum { GROUPS_MOST = 64, PROGRESS_SECONDS = 10 };

static const char usage[] =
    "usage: chaos [options]\n"
    "\n"
    "Runs operations on groups of 4 to 8 ranks while ranks are killed, stopped, cut off and restarted, and checks "
    "every\n"
    "result and every error. Ends with 0 if all were right, else with 1.\n"
    "\n"
    "  --faults N       how many in all; 2000\n"
    "  --seconds N      at most so long; 1800\n"
    "  --seed N         what everything follows from; by default the time\n"
    "  --groups N       groups side by side; 6\n"
    "  --timeout S      PITH_TIMEOUT of the groups, in seconds; 2\n"
    "  --only G:R       round R of group G, over and over\n"
    "  --no-network     no namespaces: no links are cut\n"
    "  -v               show every error\n";

/* What network.c needs of the command it belongs to. */
int cli_fail(int code, const char *format, ...) {
  va_list args;
  va_start(args, format);
  fputs("chaos: ", stderr);
  vfprintf(stderr, format, args);
  fputc('\n', stderr);
  va_end(args);
  return code;
}

static _Noreturn void misuse(const char *word) {
  fprintf(stderr, "chaos: what is \"%s\"? chaos --help lists the options\n", word);
  exit(2);
}

static double number_of(const char *name, const char *text) {
  char *end = NULL;
  double number = text ? strtod(text, &end) : -1;
  if (!text || end == text || *end || number < 0) {
    fprintf(stderr, "chaos: %s: expected a number\n", name);
    exit(2);
  }
  return number;
}

static void read_only(chaos_options *o, const char *text) {
  char *end = NULL;
  long group = text ? strtol(text, &end, 10) : -1;
  if (group < 0 || *end != ':') {
    fprintf(stderr, "chaos: --only: expected GROUP:ROUND\n");
    exit(2);
  }
  o->group = (int)group;
  o->only = (long)number_of("--only", end + 1);
}

static void read_options(chaos_options *o, char **argv) {
  for (char **at = argv + 1; *at; at++) {
    const char *name = *at;
    if (!strcmp(name, "--faults")) {
      o->faults = (long)number_of(name, *++at);
    } else if (!strcmp(name, "--seconds")) {
      o->seconds = number_of(name, *++at);
    } else if (!strcmp(name, "--seed")) {
      o->seed = at[1] ? strtoull(at[1], NULL, 10) : (uint64_t)number_of(name, NULL);
      at++;
    } else if (!strcmp(name, "--groups")) {
      o->groups = (int)number_of(name, *++at);
    } else if (!strcmp(name, "--timeout")) {
      o->timeout = number_of(name, *++at);
    } else if (!strcmp(name, "--only")) {
      read_only(o, *++at);
    } else if (!strcmp(name, "--no-network")) {
      o->has_network = 0;
    } else if (!strcmp(name, "-v")) {
      o->verbose = 1;
    } else if (!strcmp(name, "--help")) {
      fputs(usage, stdout);
      exit(0);
    } else {
      misuse(name);
    }
    if (!*at) {
      break;
    }
  }
  if (o->groups < 1 || o->groups > GROUPS_MOST || o->timeout <= 0) {
    fprintf(stderr, "chaos: expected 1 to %d groups, and a time-out above 0\n", GROUPS_MOST);
    exit(2);
  }
}

/* Returns whether there is a process for it. */
static int start_group(const chaos_options *o, int number, chaos_totals *totals) {
  chaos_options mine = *o;
  mine.group = o->only >= 0 ? o->group : number;
  pid_t parent = getpid(), pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
      _exit(1);
    }
    chaos_group_run(&mine, totals);
  }
  return pid > 0;
}

static void show_progress(const chaos_options *o, const chaos_totals *t) {
  printf("%6.0f s: %ld faults, %ld operations, %ld errors, %ld failures\n", pith__now() - o->start,
         atomic_load(&t->faults), atomic_load(&t->operations), atomic_load(&t->errors), chaos_failures(t));
  fflush(stdout);
}

/* Returns whether all groups ended by themselves. */
static int watch(const chaos_options *o, const chaos_totals *t) {
  int left = o->groups, good = 1;
  double shown = pith__now();
  while (left > 0) {
    int status;
    pid_t pid = waitpid(-1, &status, WNOHANG);
    if (pid > 0) {
      left--;
      good &= WIFEXITED(status) && WEXITSTATUS(status) == 0;
    } else if (pid < 0) {
      return 0;
    } else {
      usleep(20000);
    }
    if (pith__now() - shown > PROGRESS_SECONDS) {
      shown = pith__now();
      show_progress(o, t);
    }
  }
  return good;
}

static void summarize(const chaos_options *o, const chaos_totals *t, const char *no_network) {
  static const struct {
    const char *name;
    size_t offset;
  } rows[] = {
      {"operations, complete on a rank", offsetof(chaos_totals, operations)},
      {"rounds", offsetof(chaos_totals, rounds)},
      {"  groups formed anew", offsetof(chaos_totals, formed)},
      {"  without an error", offsetof(chaos_totals, whole)},
      {"errors reported by ranks", offsetof(chaos_totals, errors)},
      {"wrong sums", offsetof(chaos_totals, wrong_sums)},
      {"hangs", offsetof(chaos_totals, hangs)},
      {"ranks wrongly blamed", offsetof(chaos_totals, wrong_blames)},
      {"errors of another kind", offsetof(chaos_totals, wrong_errors)},
      {"crashes", offsetof(chaos_totals, crashes)},
      {"leaks of descriptors", offsetof(chaos_totals, leaks)},
  };
  static const char *const phases[] = {
      [PHASE_CREATING] = "while the group was made", "while it worked", "while it left"};
  double seconds = pith__now() - o->start;
  printf("\n%-34s %10ld   in %.0f s, seed %llu\n", "faults", atomic_load(&t->faults), seconds,
         (unsigned long long)o->seed);
  for (int k = 0; k < FAULT_KINDS; k++) {
    printf("  %-32s %10ld%s%s\n", chaos_kind_name((chaos_kind)k), atomic_load(&t->by_kind[k]),
           k >= FAULT_CUT && no_network ? "   skipped: " : "", k >= FAULT_CUT && no_network ? no_network : "");
  }
  for (int p = PHASE_CREATING; p <= PHASE_LEAVING; p++) {
    printf("  %-32s %10ld\n", phases[p], atomic_load(&t->by_phase[p]));
  }
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    printf("%-34s %10ld\n", rows[i].name, atomic_load((const atomic_long *)((const char *)t + rows[i].offset)));
  }
}

int main(int argc, char **argv) {
  (void)argc;
  chaos_options o = {.seed = (uint64_t)time(NULL), .faults = 2000, .seconds = 1800, .timeout = 2, .groups = 6};
  char reason[CLI_REASON_SIZE] = "";
  int own_user;
  o.only = -1, o.has_network = 1;
  read_options(&o, argv);
  const char *no_network = !o.has_network ? "--no-network" : cli_network_probe(reason, &own_user) ? NULL : reason;
  o.has_network = !no_network;
  chaos_totals *totals = mmap(NULL, sizeof *totals, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (totals == MAP_FAILED) {
    return cli_fail(2, "no memory");
  }
  printf("chaos: %ld faults on %d groups of 4 to 8 ranks, seed %llu\n", o.faults, o.groups, (unsigned long long)o.seed);
  fflush(stdout);
  o.start = pith__now();
  int good = 1;
  for (int i = 0; i < o.groups && good; i++) {
    good = start_group(&o, i, totals);
  }
  good = good && watch(&o, totals);
  summarize(&o, totals, no_network);
  long failures = chaos_failures(totals);
  if (!good) {
    return cli_fail(2, "a group did not run to its end");
  }
  if (failures || !atomic_load(&totals->faults) || !atomic_load(&totals->operations)) {
    return cli_fail(1, "%ld failures", failures);
  }
  puts("all sums right, no hang, every error names a rank that was at fault");
  return 0;
}
