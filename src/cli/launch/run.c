/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `pith run`: a command once for each rank, on this machine or on others over ssh. Here it is decided which rank goes
 * where and how ranks find each other; launch.c does the rest.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/base/cli.h"
#include "cli/launch/launch.h"
#include "cli/launch/remote.h"
#include "cli/launch/run.h"

enum { HOSTS_MAX = 1024, NAME_SIZE = 256 };

typedef struct placement {
  cli_host host[HOSTS_MAX];
  size_t slots[HOSTS_MAX]; /* 0: not given */
  size_t count;
  char here[NAME_SIZE]; /* this machine's name */
} placement;

static int is_here(const placement *p, const char *name) {
  return !strcmp(name, "localhost") || !strcmp(name, "127.0.0.1") || !strcmp(name, p->here);
}

/* The name without the user. */
static const char *machine_of(const char *login) {
  const char *at = strrchr(login, '@');
  return at ? at + 1 : login;
}

/* "user@name:slots"; an address with several colons is taken as a whole. */
static int add_host(placement *p, char *text) {
  size_t slots = 0;
  char *colon = strchr(text, ':');
  if (colon && colon == strrchr(text, ':')) {
    *colon = 0;
    if (!cli_size_parse(colon + 1, &slots) || slots == 0 || slots > CLI_RANKS_MAX) {
      cli_fail(0, "run: --hosts %s:%s: the number of slots must be a number above 0", text, colon + 1);
      return 0;
    }
  }
  const char *name = machine_of(text);
  if (!*name || text[0] == '-' || strlen(name) >= NAME_SIZE / 2) {
    cli_fail(0, "run: --hosts: \"%s\" is not a host name", text);
    return 0;
  }
  for (size_t i = 0; i < p->count; i++) {
    if (!strcmp(p->host[i].name, name)) {
      cli_fail(0, "run: --hosts: %s is there twice; write %s:2 for two ranks", name, name);
      return 0;
    }
  }
  if (p->count == HOSTS_MAX) {
    cli_fail(0, "run: --hosts: more than %d hosts", HOSTS_MAX);
    return 0;
  }
  p->host[p->count] = (cli_host){.name = name, .login = is_here(p, text) ? NULL : text, .network = -1};
  p->slots[p->count++] = slots;
  return 1;
}

static int read_hosts(placement *p, char *text) {
  for (char *next; text; text = next) {
    next = strchr(text, ',');
    if (next) {
      *next++ = 0;
    }
    if (!add_host(p, text)) {
      return 0;
    }
  }
  return 1;
}

/* Slots are filled in order; hosts that were given none share the other ranks evenly. */
static int share_ranks(placement *p, size_t *ranks) {
  size_t fixed = 0, open = 0;
  for (size_t i = 0; i < p->count; i++) {
    fixed += p->slots[i];
    open += p->slots[i] == 0;
  }
  size_t total = *ranks ? *ranks : fixed + open, left = total > fixed ? total - fixed : 0, used = 0;
  for (size_t i = 0; i < p->count; i++) {
    size_t part = p->slots[i];
    if (!part) {
      part = (left + open - 1) / open;
      left -= part;
      open--;
    }
    p->host[i].ranks = part < total - used ? part : total - used;
    used += p->host[i].ranks;
  }
  if (used < total || total > CLI_RANKS_MAX) {
    cli_fail(0, "run: %zu ranks, but the hosts have %zu slots", total, used);
    return 0;
  }
  while (p->count && p->host[p->count - 1].ranks == 0) {
    p->count--;
  }
  *ranks = total;
  return 1;
}

/* A free port of another machine: the command there knows, if it is in the same place as here. */
static size_t remote_port(const char *login) {
  char self[4096], line[64] = "";
  ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  self[length > 0 ? length : 0] = 0;
  cli_buffer command = {NULL, 0, 0}, quoted = {NULL, 0, 0};
  cli_shell_quote(&quoted, self);
  static const char start[] = "ssh -T -n -o BatchMode=yes -o ConnectTimeout=20 ", end[] = " run --free-port";
  cli_buffer_add(&quoted, end, sizeof end);
  cli_buffer_add(&command, start, sizeof start - 1);
  cli_shell_quote(&command, login);
  cli_buffer_add(&command, " ", 1);
  cli_shell_quote(&command, quoted.data);
  cli_buffer_add(&command, "", 1);
  FILE *answer = popen(command.data, "re"); /* every word is quoted */
  int status = -1;
  if (answer) {
    if (!fgets(line, sizeof line, answer)) {
      line[0] = 0;
    }
    status = pclose(answer);
  }
  cli_buffer_free(&command);
  cli_buffer_free(&quoted);
  return status == 0 ? (size_t)strtoul(line, NULL, 10) : 0;
}

static int choose_port(const placement *p, cli_job *job) {
  if (job->master_port) {
    return 1;
  }
  const char *login = p->count ? p->host[0].login : NULL;
  job->master_port = login ? remote_port(login) : cli_free_port();
  if (!job->master_port) {
    cli_fail(0,
             login ? "run: cannot ask %s for a free port; choose one with --master-port"
                   : "run: there is no free port%s; choose one with --master-port",
             login ? login : "");
    return 0;
  }
  return 1;
}

static void choose_address(const placement *p, cli_job *job) {
  if (job->master_addr) {
    return;
  }
  job->master_addr = p->count ? machine_of(p->host[0].name) : "127.0.0.1";
  if (p->count && !p->host[0].login) { /* its name says nothing elsewhere, if it is "localhost" */
    job->master_addr = p->count > 1 ? p->here : "127.0.0.1";
  }
}

/* What was asked for, before anything is looked at. */
static int check(placement *p, char *hosts, cli_job *job) {
  if (!*job->command) {
    cli_fail(0, "run: which command? pith run -n 4 -- COMMAND");
    return 0;
  }
  if (!hosts && !job->ranks) {
    cli_fail(0, "run: how many ranks? pith run -n 4 -- COMMAND");
    return 0;
  }
  return !hosts || (read_hosts(p, hosts) && share_ranks(p, &job->ranks));
}

static int run(placement *p, char *hosts, cli_job *job) {
  gethostname(p->here, sizeof p->here - 1);
  if (!check(p, hosts, job)) {
    return CLI_USAGE;
  }
  if (!choose_port(p, job)) {
    return CLI_FAILED;
  }
  choose_address(p, job);
  if (!p->count) {
    p->host[p->count++] = (cli_host){.network = -1, .ranks = job->ranks};
  }
  job->host = p->host;
  job->hosts = p->count;
  return cli_launch(job);
}

static int print_free_port(void) {
  size_t port = cli_free_port();
  printf("%zu\n", port);
  return port ? CLI_OK : CLI_FAILED;
}

int cli_run(int argc, char **argv) {
  cli_job job = {.grace = CLI_GRACE};
  const char *hosts = NULL;
  int free_port = 0;
  const cli_option options[] = {
      {"-n", CLI_POSITIVE, &job.ranks, "RANKS", "how many ranks (with --hosts: all slots)"},
      {"--hosts", CLI_TEXT, &hosts, "A,B:2,…", "machines to start ranks on over ssh, with their slots"},
      {"--master-addr", CLI_TEXT, &job.master_addr, "A", "host of the rendezvous, MASTER_ADDR (the first host)"},
      CLI_JOB_OPTIONS(&job),
      {"--free-port", CLI_FLAG, &free_port, NULL, "print a port that is free on this machine, and start nothing"},
      {.name = NULL}};
  const cli_usage usage = {
      "run", "-- COMMAND [ARGUMENT]…",
      "Runs a command once for each rank, on this machine or on others. It sets RANK, WORLD_SIZE, LOCAL_RANK, "
      "LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR and MASTER_PORT, and with --hosts also PITH_HOSTID.\n"
      "\n"
      "Each line of output begins with the rank that wrote it. Input goes to rank 0 if it is on this machine. Signals "
      "are passed on to the ranks; a second Ctrl-C kills them. If a rank fails, the others are ended, and the exit "
      "code is that of the rank: its status, or 128 plus the signal that killed it.\n"
      "\n"
      "Other machines need ssh without a password and the same folder. They get the variables PITH_… and those of "
      "--env. Hosts without a number of slots share the ranks evenly.",
      options};
  cli_parsed parsed = cli_job_parse(&usage, argc, argv, &job);
  if (parsed != CLI_PARSED) {
    return parsed == CLI_PARSED_HELP ? CLI_OK : CLI_USAGE;
  }
  if (free_port) {
    return print_free_port();
  }
  placement *p = calloc(1, sizeof *p);
  char *text = hosts ? strdup(hosts) : NULL;
  int code = p && (text || !hosts) ? run(p, text, &job) : cli_fail(CLI_FAILED, "no memory");
  free(text);
  free(p);
  return code;
}
