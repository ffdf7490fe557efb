/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From fork to exec. Every descriptor is closed on exec, so that a rank has none but its standard ones. One more pipe
 * tells whether exec has worked: it closes then, and has the error in it else.
 */
#include "cli/launch/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "cli/launch/remote.h"

extern char **environ;

enum { STARTED_VARIABLES = 16, TEXT_SIZE = 256 };

typedef struct variables {
  char *item[STARTED_VARIABLES + 2 * CLI_LIST_MAX];
  size_t count;
  char text[STARTED_VARIABLES][TEXT_SIZE];
} variables;

static void set_text(variables *v, const char *name, const char *value) {
  snprintf(v->text[v->count], TEXT_SIZE, "%s=%s", name, value);
  v->item[v->count] = v->text[v->count];
  v->count++;
}

static void set_count(variables *v, const char *name, size_t value) {
  char text[24];
  snprintf(text, sizeof text, "%zu", value);
  set_text(v, name, text);
}

static void set_variables(const cli_job *job, const cli_rank *r, variables *v) {
  v->count = 0;
  set_count(v, "RANK", r->number);
  set_count(v, "WORLD_SIZE", job->ranks);
  set_count(v, "LOCAL_RANK", r->local);
  set_count(v, "LOCAL_WORLD_SIZE", r->host->ranks);
  set_count(v, "GROUP_RANK", r->group);
  set_text(v, "MASTER_ADDR", job->master_addr);
  set_count(v, "MASTER_PORT", job->master_port);
  if (r->host->name) {
    set_text(v, "PITH_HOSTID", r->host->name);
  }
  if (r->host->interface) { /* so that others than Pith can be compared, too */
    set_text(v, "PITH_IFNAME", r->host->interface);
    set_text(v, "GLOO_SOCKET_IFNAME", r->host->interface);
    set_text(v, "NCCL_SOCKET_IFNAME", r->host->interface);
  }
  for (size_t i = 0; i < job->env.count; i++) {
    v->item[v->count++] = (char *)job->env.item[i];
  }
}

static int is_secret(const char *entry) { return !strncmp(entry, "PITH_SECRET=", 12); }

static const char *find_secret(const cli_job *job) {
  const char *secret = getenv("PITH_SECRET");
  for (size_t i = 0; i < job->env.count; i++) {
    secret = is_secret(job->env.item[i]) ? job->env.item[i] + 12 : secret;
  }
  return secret;
}

/* What goes to another machine: our own variables that are set here, then those of the rank. */
static char *ssh_command(const cli_job *job, const variables *v) {
  char *item[sizeof v->item / sizeof *v->item + CLI_LIST_MAX], *folder = getcwd(NULL, 0);
  size_t count = 0;
  for (char **entry = environ; *entry && count < CLI_LIST_MAX; entry++) {
    if (!strncmp(*entry, "PITH_", 5) && !is_secret(*entry)) {
      item[count++] = *entry;
    }
  }
  for (size_t i = 0; i < v->count; i++) {
    if (!is_secret(v->item[i])) {
      item[count++] = v->item[i];
    }
  }
  char *line = cli_remote_command(folder ? folder : "/", item, count, find_secret(job) != NULL, job->command);
  free(folder);
  return line;
}

typedef struct ends {
  int input, output[2], error; /* of the child */
} ends;

static _Noreturn void die(const ends *child) {
  int number = errno;
  ssize_t written = write(child->error, &number, sizeof number);
  _exit(written < 0 ? 126 : 127);
}

/* In the new process: from fork to exec. */
static _Noreturn void become_rank(const cli_spawner *s, const cli_rank *r, const ends *child) {
  variables v;
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != s->self) {
    _exit(1); /* it died before that */
  }
  if ((child->input != 0 && dup2(child->input, 0) < 0) ||
      (child->output[0] >= 0 && (dup2(child->output[0], 1) < 0 || dup2(child->output[1], 2) < 0)) ||
      (r->host->network >= 0 && setns(r->host->network, CLONE_NEWNET) != 0)) {
    die(child);
  }
  setrlimit(RLIMIT_NOFILE, &s->files);
  sigaction(SIGPIPE, &s->pipe_action, NULL);
  sigprocmask(SIG_SETMASK, &s->mask, NULL);
  set_variables(s->job, r, &v);
  if (r->host->login) {
    execlp("ssh", "ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20", r->host->login,
           ssh_command(s->job, &v), (char *)NULL);
  } else {
    for (size_t i = 0; i < v.count; i++) {
      putenv(v.item[i]);
    }
    execvp(s->job->command[0], s->job->command);
  }
  die(child);
}

static void close_end(int *fd) {
  if (*fd >= 0) {
    close(*fd);
  }
  *fd = -1;
}

int cli_pipe_open(int *ours, int *childs, int child_reads) {
  int fd[2];
  if (pipe2(fd, O_CLOEXEC) != 0) {
    return 0;
  }
  *ours = fd[child_reads];
  *childs = fd[!child_reads];
  return 1;
}

/* Standard input: ssh's carries signals, rank 0 gets ours (by way of a pipe from a terminal), the others have none. */
static int open_input(cli_spawner *s, cli_rank *r, ends *child) {
  if (r->host->login) {
    return cli_pipe_open(&r->control, &child->input, 1);
  }
  if (r->number == 0 && isatty(0)) {
    return cli_pipe_open(&s->terminal, &child->input, 1);
  }
  child->input = r->number == 0 ? fcntl(0, F_DUPFD_CLOEXEC, 3) : open("/dev/null", O_RDONLY | O_CLOEXEC);
  return child->input >= 0;
}

static void set_prefix(cli_lines *lines, size_t number, int colour) {
  if (colour) {
    snprintf(lines->prefix, sizeof lines->prefix, "\033[%zum[%zu]\033[0m ", 31 + number % 6, number);
  } else {
    snprintf(lines->prefix, sizeof lines->prefix, "[%zu] ", number);
  }
}

static int open_ends(cli_spawner *s, cli_rank *r, ends *child, int *error) {
  if (!open_input(s, r, child) || !cli_pipe_open(error, &child->error, 0)) {
    return 0;
  }
  for (int i = 0; i < 2 && !s->job->plain; i++) {
    if (!cli_pipe_open(&r->output[i].fd, &child->output[i], 0)) {
      return 0;
    }
    r->output[i].to = i + 1;
    set_prefix(&r->output[i], r->number, s->colour[i]);
  }
  return 1;
}

static void send_secret(const cli_job *job, const cli_rank *r) {
  const char *secret = find_secret(job);
  if (r->control >= 0 && secret) {
    dprintf(r->control, "%s\n", secret);
  }
}

int cli_spawn(cli_spawner *s, cli_rank *r) {
  ends child = {-1, {-1, -1}, -1};
  int error = -1, number = 0;
  pid_t pid = -1;
  if (open_ends(s, r, &child, &error) && (pid = fork()) == 0) {
    become_rank(s, r, &child);
  }
  number = pid < 0 ? errno : 0;
  close_end(&child.input);
  close_end(&child.output[0]);
  close_end(&child.output[1]);
  close_end(&child.error);
  if (pid > 0) {
    setpgid(pid, pid);
    r->pid = pid;
    send_secret(s->job, r);
    if (write(s->guardian, &pid, sizeof pid) < 0) {
      number = errno;
    } else if (read(error, &number, sizeof number) != sizeof number) { /* closed by exec */
      number = 0;
    }
  }
  close_end(&error);
  errno = number;
  return number == 0;
}
