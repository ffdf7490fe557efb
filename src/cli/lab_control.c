/* Links that change while a lab runs: see lab_control.h. */
#include "cli/lab_control.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/cli.h"

enum { LINE = 64 };

static const char *pipe_path; /* for the handler */

static void leave(int number) {
  (void)number;
  unlink(pipe_path);
  _exit(0);
}

static void change_links(const cli_network *network, const char *text) {
  cli_network changed = *network;
  if (!cli_rate_parse(text, &changed.rate)) {
    cli_fail(0, "lab: \"%s\" is no rate; links stay as they are. Expected 100mbit, 1gbit, 2.5gbit", text);
  } else if (cli_network_change(&changed)) {
    fprintf(stderr, "pith: lab: links of %s each way from now on\n", text);
  }
}

/* Lines end with a line feed, words with anything that is no part of them. */
static _Noreturn void obey(const cli_network *network, int pipe) {
  char line[LINE];
  size_t size = 0;
  for (;;) {
    char c;
    ssize_t got = read(pipe, &c, 1);
    if (got != 1) {
      _exit(got < 0 && errno == EINTR ? 0 : 1);
    }
    if (c != '\n') {
      line[size] = c;
      size += size < LINE - 1;
      continue;
    }
    line[size] = '\0';
    size = 0;
    if (*line) {
      change_links(network, line);
    }
  }
}

/* The launcher ends this process when the job has ended; keys pressed for the job are none of its business. */
static _Noreturn void become_control(const cli_network *network, int pipe, const char *path, pid_t parent) {
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
  obey(network, pipe);
}

/* Open for reading and writing, lest it ends when a writer closes it. */
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

pid_t cli_control_start(const cli_network *network, const char *path) {
  int pipe = open_pipe(path);
  if (pipe < 0) {
    return 0;
  }
  fflush(NULL);
  pid_t parent = getpid(), pid = fork();
  if (pid == 0) {
    become_control(network, pipe, path, parent);
  }
  close(pipe);
  if (pid < 0) {
    cli_fail(0, "lab: cannot start a process: %s", strerror(errno));
    unlink(path);
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
