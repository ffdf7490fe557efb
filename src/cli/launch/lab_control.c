/* SPDX-License-Identifier: Apache-2.0 */
/* Links and hosts that change while a lab runs: see lab_control.h. */
#include "cli/launch/lab_control.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cli/base/cli.h"

enum { LINE = 64 };

typedef struct control {
  cli_network network;
  const cli_faults *schedule;
  size_t next; /* of the schedule */
  double start;
  uint8_t *is_faulty; /* of every host: its link is not as those of the others */
  int pipe;           /* -1: there is none */
  char line[LINE];
  size_t size;
} control;

static const char *pipe_path; /* for the handler */

static void leave(int number) {
  (void)number;
  if (pipe_path) {
    unlink(pipe_path);
  }
  _exit(0);
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* A link that has a fault gets the new rate when it is restored. */
static void change_links(control *c, const char *text, unsigned long long rate) {
  int good = 1;
  c->network.rate = rate;
  for (size_t i = 0; i < c->network.hosts && good; i++) {
    good = c->is_faulty[i] || cli_network_set_link(&c->network, i, CLI_LINK_WHOLE, rate);
  }
  if (good) {
    fprintf(stderr, "pith: lab: links of %s each way from now on\n", text);
  }
}

static void do_fault(control *c, const cli_fault *fault) {
  char text[CLI_REASON_SIZE];
  if (cli_fault_apply(&c->network, fault)) {
    fprintf(stderr, "pith: lab: %.1f s: %s\n", now() - c->start, cli_fault_describe(fault, text));
    if (fault->kind != CLI_FAULT_PAUSE && fault->kind != CLI_FAULT_RESUME) {
      c->is_faulty[fault->host] = fault->kind != CLI_FAULT_RESTORE;
    }
  }
}

static void obey_line(control *c) {
  unsigned long long rate;
  cli_fault fault;
  if (cli_rate_parse(c->line, &rate)) {
    change_links(c, c->line, rate);
  } else if (*c->line >= '0' && *c->line <= '9') {
    cli_fail(0, "lab: \"%s\" is not a rate; links stay as they are. Expected 100mbit, 1gbit, 2.5gbit", c->line);
  } else if (cli_fault_parse_line(c->line, c->network.hosts, &fault)) {
    do_fault(c, &fault);
  }
}

/* Lines end with a line feed. */
static void read_pipe(control *c) {
  char byte;
  ssize_t got = read(c->pipe, &byte, 1);
  if (got != 1) {
    if (got == 0 || errno != EINTR) {
      leave(0);
    }
  } else if (byte != '\n') {
    c->line[c->size] = byte;
    c->size += c->size < LINE - 1;
  } else {
    c->line[c->size] = '\0';
    c->size = 0;
    if (*c->line) {
      obey_line(c);
    }
  }
}

static _Noreturn void obey(control *c) {
  for (;;) {
    const cli_faults *schedule = c->schedule;
    double left = c->next < schedule->count ? schedule->item[c->next].time - (now() - c->start) : -1;
    if (c->next < schedule->count && left <= 0) {
      do_fault(c, &schedule->item[c->next++]);
      continue;
    }
    struct pollfd ready = {c->pipe, POLLIN, 0};
    if (poll(&ready, 1, left < 0 ? -1 : left < 60 ? (int)(left * 1000) + 1 : 60000) > 0) {
      read_pipe(c);
    }
  }
}

/* The launcher ends this process when the job has ended; keys pressed for the job are none of its business. */
static _Noreturn void become_control(const cli_network *network, const cli_faults *schedule, int pipe, const char *path,
                                     pid_t parent) {
  static const int ignored[] = {SIGINT, SIGQUIT, SIGHUP, SIGTSTP, SIGPIPE};
  pipe_path = path;
  for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++) {
    signal(ignored[i], SIG_IGN);
  }
  signal(SIGTERM, leave);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) {
    leave(0);
  }
  control c = {.network = *network, .schedule = schedule, .start = now(), .pipe = pipe};
  c.is_faulty = calloc(network->hosts, 1);
  if (!c.is_faulty) {
    cli_fail(0, "no memory");
    leave(0);
  }
  obey(&c);
}

/* Open for reading and writing, so that it does not end when a writer closes it. */
static int open_pipe(const char *path) {
  struct stat about;
  if (mkfifo(path, 0600) != 0 && (errno != EEXIST || stat(path, &about) != 0 || !S_ISFIFO(about.st_mode))) {
    cli_fail(0, "lab: --control %s: cannot make a named pipe: %s", path, strerror(errno));
    return -1;
  }
  int pipe = open(path, O_RDWR | O_CLOEXEC);
  if (pipe < 0) {
    cli_fail(0, "lab: --control %s: %s", path, strerror(errno));
  }
  return pipe;
}

pid_t cli_control_start(const cli_network *network, const cli_faults *schedule, const char *path) {
  int pipe = path ? open_pipe(path) : -1;
  if (path && pipe < 0) {
    return 0;
  }
  fflush(NULL);
  pid_t parent = getpid(), pid = fork();
  if (pid == 0) {
    become_control(network, schedule, pipe, path, parent);
  }
  if (pipe >= 0) {
    close(pipe);
  }
  if (pid < 0) {
    cli_fail(0, "lab: cannot start a process: %s", strerror(errno));
    if (path) {
      unlink(path);
    }
    return 0;
  }
  return pid;
}

void cli_control_end(pid_t pid) {
  if (pid > 0) {
    kill(pid, SIGTERM);
    waitpid(pid, NULL, 0);
  }
}
