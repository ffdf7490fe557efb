/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One process, one poll loop. Every rank has a process group of its own, so that a signal reaches what it started too.
 *
 * Nothing may stay behind, in four ways. Ranks are asked to end, and killed after the grace. What they left in their
 * groups becomes a child of this process (a subreaper), which waits for it and kills it in the end. If this process is
 * killed, the kernel kills the ranks, and a guardian, which notices at the end of a pipe, kills their groups. Ranks
 * behind ssh lose their connection (remote.c).
 */
#include "cli/launch/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cli/base/cli.h"
#include "cli/base/lines.h"
#include "cli/launch/spawn.h"

enum { TEXT_SIZE = 256, KILL_WAIT = 2000, INPUT_PIECE = 4096 };

typedef cli_rank rank;

typedef struct launch {
  const cli_job *job;
  rank *rank;
  size_t started;
  cli_spawner spawner;
  pid_t guardian;
  int signals;
  int code, failed; /* exit code; whether a rank has failed */
  int interrupts, last_signal, killed, broken[3];
  long long deadline; /* when ranks are killed; 0: never */
  struct pollfd *polls;
  int room; /* whether it is waited for room in the pipe to rank 0 */
  cli_buffer text;
} launch;

static long long now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000LL + time.tv_nsec / 1000000;
}

static const char *signal_name(int number) {
  static const char *const names[] = {
      [SIGHUP] = "HUP",   [SIGINT] = "INT",   [SIGQUIT] = "QUIT", [SIGILL] = "ILL",   [SIGTRAP] = "TRAP",
      [SIGABRT] = "ABRT", [SIGBUS] = "BUS",   [SIGFPE] = "FPE",   [SIGKILL] = "KILL", [SIGUSR1] = "USR1",
      [SIGSEGV] = "SEGV", [SIGUSR2] = "USR2", [SIGPIPE] = "PIPE", [SIGALRM] = "ALRM", [SIGTERM] = "TERM",
      [SIGCONT] = "CONT", [SIGSTOP] = "STOP", [SIGTSTP] = "TSTP", [SIGXCPU] = "XCPU", [SIGSYS] = "SYS"};
  const char *name = number > 0 && number < (int)(sizeof names / sizeof *names) ? names[number] : NULL;
  return name ? name : "?";
}

/* ---- Signals to ranks -------------------------------------------------------------------------------------------- */

static void signal_rank(rank *r, int number) {
  if (r->gone) {
    return;
  }
  if (r->control < 0) {
    if (kill(-r->pid, number) != 0 && !r->ended) { /* it has moved to another group */
      kill(r->pid, number);
    }
    return;
  }
  char line[16];
  int length = snprintf(line, sizeof line, "%s\n", signal_name(number));
  if (write(r->control, line, (size_t)length) < 0 || number == SIGKILL) { /* its end kills, too */
    close(r->control);
    r->control = -1;
  }
}

static void signal_all(launch *l, int number) {
  for (size_t i = 0; i < l->started; i++) {
    signal_rank(&l->rank[i], number);
  }
}

static void kill_all(launch *l) {
  signal_all(l, SIGKILL);
  l->killed++;
  l->deadline = now() + KILL_WAIT;
}

/* Asks all to end; a stopped one could not hear it. */
static void end_all(launch *l) {
  if (!l->deadline) {
    signal_all(l, SIGTERM);
    signal_all(l, SIGCONT);
    l->deadline = now() + (long long)l->job->grace * 1000;
  }
}

/* ---- How ranks end ----------------------------------------------------------------------------------------------- */

static int exit_code(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

static void say_failure(const launch *l, const rank *r) {
  char place[TEXT_SIZE] = "", how[TEXT_SIZE];
  if (r->host->name) {
    snprintf(place, sizeof place, " on %s", r->host->name);
  }
  if (WIFSIGNALED(r->status)) {
    if (WTERMSIG(r->status) == l->last_signal) { /* as it was told to */
      return;
    }
    snprintf(how, sizeof how, "was killed by SIG%s%s", signal_name(WTERMSIG(r->status)),
             WCOREDUMP(r->status) ? " (core dumped)" : "");
  } else {
    snprintf(how, sizeof how, "ended with status %d%s", WEXITSTATUS(r->status),
             r->host->login && WEXITSTATUS(r->status) == 255 ? " (that of ssh when it fails)" : "");
  }
  cli_fail(0, "rank %zu%s %s%s", r->number, place, how, l->job->ranks > 1 ? "; ending the others" : "");
}

static void note_end(launch *l, rank *r, int status) {
  r->ended = 1;
  r->status = status;
  if (status && !l->failed) {
    l->failed = 1;
    l->code = exit_code(status);
    say_failure(l, r);
    end_all(l);
  }
}

/* The rank and whatever it left in its group. While a member lives, the group's number is not given to others. */
static void reap(launch *l, rank *r) {
  while (!r->gone) {
    int status;
    pid_t pid = waitpid(-r->pid, &status, WNOHANG);
    if (pid == r->pid) {
      note_end(l, r, status);
    } else if (pid < 0 && errno == ECHILD) {
      r->gone = 1;
      if (!r->ended) { /* it has moved to another group */
        pid = waitpid(r->pid, &status, WNOHANG);
        r->gone = pid != 0;
        if (pid == r->pid) {
          note_end(l, r, status);
        }
        r->ended = r->gone;
        return;
      }
    } else if (pid <= 0) {
      return;
    }
  }
}

static void reap_all(launch *l) {
  for (size_t i = 0; i < l->started; i++) {
    reap(l, &l->rank[i]);
  }
}

static int all_ended(const launch *l) {
  for (size_t i = 0; i < l->started; i++) {
    if (!l->rank[i].ended) {
      return 0;
    }
  }
  return 1;
}

static int finished(const launch *l) {
  for (size_t i = 0; i < l->started; i++) {
    const rank *r = &l->rank[i];
    if (!r->ended || (!r->gone && !l->killed) || r->output[0].fd >= 0 || r->output[1].fd >= 0) {
      return 0;
    }
  }
  return 1;
}

/* Killed, and something still holds on: ssh, or a process outside of its group that keeps the output open. */
static void let_go(launch *l) {
  for (size_t i = 0; i < l->started; i++) {
    rank *r = &l->rank[i];
    if (!r->gone) {
      kill(-r->pid, SIGKILL);
    }
    cli_lines_close(&r->output[0]);
    cli_lines_close(&r->output[1]);
  }
  l->deadline = now() + KILL_WAIT;
}

static void check_deadline(launch *l) {
  int ended = all_ended(l);
  if (ended && !l->deadline) {
    l->deadline = now() + (long long)l->job->grace * 1000;
  }
  if (!l->deadline || now() < l->deadline) {
    return;
  }
  if (l->killed) {
    let_go(l);
  } else {
    cli_fail(0, "%s", ended ? "killing processes that ranks left behind" : "killing ranks that do not end");
    kill_all(l);
  }
}

/* ---- Signals to this process ------------------------------------------------------------------------------------- */

/* Ctrl-Z: the ranks stop, then this process, so that the shell takes over; all go on together. */
static void pause_all(launch *l) {
  signal_all(l, SIGTSTP);
  kill(getpid(), SIGSTOP);
  signal_all(l, SIGCONT);
}

static void take_signals(launch *l) {
  struct signalfd_siginfo info;
  while (read(l->signals, &info, sizeof info) == sizeof info) {
    int number = (int)info.ssi_signo;
    if (number == SIGCHLD) {
      reap_all(l);
    } else if (number == SIGTSTP) {
      pause_all(l);
    } else if (number == SIGINT && l->interrupts++) {
      l->last_signal = SIGKILL;
      kill_all(l);
    } else {
      l->last_signal = number;
      signal_all(l, number);
      signal_all(l, SIGCONT); /* a stopped one could not hear it */
    }
  }
}

/* Signals that we inherited as ignored (nohup) stay ignored. */
static void catch_signals(launch *l) {
  static const int wanted[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP};
  sigset_t set;
  sigemptyset(&set);
  for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
    struct sigaction action;
    if (sigaction(wanted[i], NULL, &action) == 0 && action.sa_handler == SIG_IGN && wanted[i] != SIGCHLD) {
      continue;
    }
    sigaddset(&set, wanted[i]);
  }
  signal(SIGCHLD, SIG_DFL); /* ignored, it would take the exit codes away */
  sigprocmask(SIG_BLOCK, &set, &l->spawner.mask);
  l->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  struct sigaction ignore = {.sa_handler = SIG_IGN};
  sigaction(SIGPIPE, &ignore, &l->spawner.pipe_action);
}

/* ---- Output and input -------------------------------------------------------------------------------------------- */

/* The reader is gone: the ranks get the error that they would get without us. */
static void give_up_output(launch *l, int to) {
  if (errno != EPIPE) {
    cli_fail(0, "cannot write to standard %s: %s", to == 1 ? "output" : "error", strerror(errno));
    l->code = l->code ? l->code : CLI_FAILED;
  }
  l->broken[to] = 1;
  for (size_t i = 0; i < l->started; i++) {
    cli_lines_close(&l->rank[i].output[to - 1]);
  }
}

/* Writes, in pieces that a pipe takes at once, and listens to signals while the reader is slow. */
static void put(launch *l, int to) {
  const cli_buffer *text = &l->text;
  for (size_t at = 0; at < text->size && !l->broken[to];) {
    struct pollfd wait[] = {{to, POLLOUT, 0}, {l->signals, POLLIN, 0}};
    int ready = poll(wait, 2, 1000);
    if (wait[1].revents) {
      take_signals(l);
    }
    check_deadline(l);
    if (ready == 0 && l->killed) {
      return; /* the output was not read for a second: do not wait for it */
    }
    if (!wait[0].revents) {
      continue;
    }
    size_t left = text->size - at;
    ssize_t written = write(to, text->data + at, left < PIPE_BUF ? left : PIPE_BUF);
    if (written >= 0) {
      at += (size_t)written;
    } else if (errno != EAGAIN && errno != EINTR) {
      give_up_output(l, to);
    }
  }
}

static void read_output(launch *l, cli_lines *lines) {
  l->text.size = 0;
  cli_lines_read(lines, &l->text);
  put(l, lines->to);
}

/* A terminal can be read only by the group in its foreground, which no rank is in. */
static void read_terminal(launch *l) {
  if (!l->room) {
    l->room = 1;
    return;
  }
  char piece[INPUT_PIECE];
  ssize_t got = read(0, piece, sizeof piece);
  if (got <= 0 || write(l->spawner.terminal, piece, (size_t)got) != got) {
    close(l->spawner.terminal);
    l->spawner.terminal = -1;
  }
  l->room = 0;
}

static struct pollfd poll_terminal(const launch *l) {
  if (l->spawner.terminal < 0 || tcgetpgrp(0) != getpgrp()) {
    return (struct pollfd){-1, 0, 0};
  }
  return l->room ? (struct pollfd){l->spawner.terminal, POLLOUT, 0} : (struct pollfd){0, POLLIN, 0};
}

static int poll_time(const launch *l) {
  if (l->deadline) {
    long long left = l->deadline - now();
    return left < 0 ? 0 : (int)(left < 1000 ? left : 1000);
  }
  return l->spawner.terminal >= 0 ? 1000 : -1;
}

static void watch(launch *l) {
  for (;;) {
    check_deadline(l);
    if (finished(l)) {
      return;
    }
    struct pollfd *polls = l->polls;
    polls[0] = (struct pollfd){l->signals, POLLIN, 0};
    polls[1] = poll_terminal(l);
    for (size_t i = 0; i < 2 * l->started; i++) {
      polls[2 + i] = (struct pollfd){l->rank[i / 2].output[i % 2].fd, POLLIN, 0};
    }
    if (poll(polls, 2 + 2 * l->started, poll_time(l)) <= 0) {
      continue;
    }
    if (polls[0].revents) {
      take_signals(l);
    }
    if (polls[1].revents) {
      read_terminal(l);
    }
    for (size_t i = 0; i < 2 * l->started; i++) {
      cli_lines *lines = &l->rank[i / 2].output[i % 2];
      if (polls[2 + i].revents && lines->fd == polls[2 + i].fd) {
        read_output(l, lines);
      }
    }
  }
}

/* ---- Starting ---------------------------------------------------------------------------------------------------- */

/* Those whose process is there are watched, even if it could not become the command. */
static int start(launch *l, rank *r) {
  int good = cli_spawn(&l->spawner, r);
  l->started += r->pid > 0;
  return good;
}

static int start_failed(launch *l) {
  int number = errno;
  l->code = number == ENOENT ? 127 : number == EACCES || number == ENOEXEC ? 126 : CLI_FAILED;
  cli_fail(0, "cannot start %s: %s", l->rank[l->started ? l->started - 1 : 0].host->login ? "ssh" : l->job->command[0],
           strerror(number));
  l->failed = 1;
  l->last_signal = SIGTERM;
  end_all(l);
  return l->code;
}

static void place_ranks(launch *l) {
  size_t number = 0;
  for (size_t group = 0; group < l->job->hosts; group++) {
    for (size_t local = 0; local < l->job->host[group].ranks; local++, number++) {
      l->rank[number] = (rank){.number = number, .local = local, .host = &l->job->host[group], .group = group};
      l->rank[number].control = -1;
      l->rank[number].output[0].fd = l->rank[number].output[1].fd = -1;
    }
  }
}

/* Whether a signal that ends the job has come between two starts. */
static int start_all(launch *l) {
  for (size_t i = 0; i < l->job->ranks && !l->last_signal && !l->failed; i++) {
    if (!start(l, &l->rank[i])) {
      return start_failed(l);
    }
    take_signals(l);
  }
  if (l->started < l->job->ranks && !l->failed) {
    l->code = 128 + l->last_signal;
  }
  return l->code;
}

/* ---- The guardian ------------------------------------------------------------------------------------------------ */

/* Has the groups by heart, and nothing to do unless this process is killed. */
static _Noreturn void guard(int pipe) {
  static pid_t groups[CLI_RANKS_MAX];
  size_t count = 0;
  pid_t pid;
  setsid();
  close(0);
  close(1);
  close(2);
  while (count < CLI_RANKS_MAX && read(pipe, &pid, sizeof pid) == sizeof pid) {
    groups[count++] = pid;
  }
  for (size_t i = 0; i < count; i++) {
    kill(-groups[i], SIGKILL);
  }
  _exit(0);
}

static int post_guardian(launch *l) {
  int pipe = -1;
  if (!cli_pipe_open(&l->spawner.guardian, &pipe, 1) || (l->guardian = fork()) < 0) {
    return 0;
  }
  if (l->guardian == 0) {
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    close(l->spawner.guardian);
    guard(pipe);
  }
  close(pipe);
  return 1;
}

static void dismiss_guardian(launch *l) {
  kill(l->guardian, SIGKILL);
  waitpid(l->guardian, NULL, 0);
  close(l->spawner.guardian);
}

/* ---- A job ------------------------------------------------------------------------------------------------------- */

static int wants_colour(int fd) {
  const char *terminal = getenv("TERM"), *none = getenv("NO_COLOR");
  return isatty(fd) && terminal && strcmp(terminal, "dumb") != 0 && !(none && *none);
}

/* Two pipes for every rank are more than 1024 files soon. */
static void raise_limit(launch *l) {
  getrlimit(RLIMIT_NOFILE, &l->spawner.files);
  struct rlimit most = {l->spawner.files.rlim_max, l->spawner.files.rlim_max};
  setrlimit(RLIMIT_NOFILE, &most);
}

/* Else a pipe could become standard output. */
static void open_standard_files(void) {
  int fd;
  do {
    fd = open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= 2);
  if (fd >= 0) {
    close(fd);
  }
}

int cli_launch(const cli_job *job) {
  launch l = {.job = job, .spawner = {.job = job, .self = getpid(), .terminal = -1}};
  open_standard_files();
  fflush(NULL); /* so that no child writes it again */
  l.rank = calloc(job->ranks, sizeof *l.rank);
  l.polls = calloc(2 + 2 * job->ranks, sizeof *l.polls);
  if (!l.rank || !l.polls) {
    free(l.rank);
    free(l.polls);
    return cli_fail(CLI_FAILED, "no memory for %zu ranks", job->ranks);
  }
  l.spawner.colour[0] = wants_colour(1);
  l.spawner.colour[1] = wants_colour(2);
  place_ranks(&l);
  raise_limit(&l);
  catch_signals(&l);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  if (post_guardian(&l)) {
    start_all(&l);
    watch(&l);
    dismiss_guardian(&l);
  } else {
    l.code = cli_fail(CLI_FAILED, "cannot start a process: %s", strerror(errno));
  }
  cli_buffer_free(&l.text);
  free(l.rank);
  free(l.polls);
  return l.code;
}
