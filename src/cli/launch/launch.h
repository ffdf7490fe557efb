/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starting, watching and ending the ranks of a job: what `pith run` and `pith lab` share. They decide where ranks run;
 * here is what happens to them from the first fork to the last line of output.
 */
#ifndef PITH_CLI_LAUNCH_H
#define PITH_CLI_LAUNCH_H

#include <stddef.h>

#include "cli/base/options.h"

typedef struct cli_host {
  const char *name;      /* PITH_HOSTID, and in messages; NULL: there is only one */
  const char *login;     /* where ssh goes, "user@b"; NULL: ranks are started on this machine */
  const char *interface; /* PITH_IFNAME; NULL: any */
  int network;           /* a network namespace to enter; -1: that of this process */
  size_t ranks;
} cli_host;

typedef struct cli_job {
  char *const *command; /* ends with NULL */
  const cli_host *host; /* ranks are numbered host by host */
  size_t hosts, ranks;  /* of all hosts together */
  const char *master_addr;
  size_t master_port;
  cli_list env; /* "K=V" for every rank */
  int plain;    /* output is passed through, without prefixes */
  size_t grace; /* seconds between asking ranks to end and killing them */
} cli_job;

enum { CLI_RANKS_MAX = 4096, CLI_GRACE = 5 };

/* The options that fill a job, for the tables of commands. */
#define CLI_JOB_OPTIONS(job)                                                                                  \
  {"--master-port", CLI_COUNT, &(job)->master_port, "P", "port of the rendezvous, MASTER_PORT (a free one)"}, \
      {"--env", CLI_LIST, &(job)->env, "K=V", "a variable for every rank; may be repeated"},                  \
      {"--no-prefix", CLI_FLAG, &(job)->plain, NULL, "pass output through, without [rank] before each line"}, \
      {"--grace", CLI_COUNT, &(job)->grace, "SECONDS", "between asking ranks to end and killing them (5)"}

/* Reads the options of `usage`, then the command; checks what they share. CLI_PARSED_BAD: what is wrong was printed. */
cli_parsed cli_job_parse(const cli_usage *usage, int argc, char **argv, cli_job *job);

/*
 * Runs the job to its end and returns its exit code: 0 if every rank ended with 0, else that of the rank that failed
 * first (128 + the signal if one killed it). Nothing it started is left then, nor if this process is killed meanwhile.
 */
int cli_launch(const cli_job *job);

/* A port on which no process listens now, outside of the range that outgoing connections take theirs from; 0: there is
 * none. */
size_t cli_free_port(void);

#endif
