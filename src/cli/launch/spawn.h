/* SPDX-License-Identifier: Apache-2.0 */
/* One rank of a job as a process: its variables, its pipes, its process group. launch.c watches over it then. */
#ifndef PITH_CLI_SPAWN_H
#define PITH_CLI_SPAWN_H

#include <signal.h>
#include <stddef.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "cli/base/lines.h"
#include "cli/launch/launch.h"

typedef struct cli_rank {
  size_t number, local;
  const cli_host *host;
  size_t group;    /* the host's number */
  pid_t pid;       /* also that of its process group; 0: it was not started */
  int ended, gone; /* the rank itself; its whole group */
  int status;      /* as of wait */
  int control;     /* standard input of its ssh; -1: it has none */
  cli_lines output[2];
} cli_rank;

typedef struct cli_spawner {
  const cli_job *job;
  pid_t self;
  int guardian;  /* a pipe to who wants to know the process groups */
  int terminal;  /* a pipe to rank 0, for input from a terminal; -1: there is none */
  int colour[2]; /* of prefixes in output and errors */
  sigset_t mask; /* what ranks inherit, as it was before we changed it */
  struct sigaction pipe_action;
  struct rlimit files;
} cli_spawner;

/* Starts a rank. Returns 0 with errno if that failed, or if the command cannot be run: then there is a process, too. */
int cli_spawn(cli_spawner *spawner, cli_rank *rank);

/* A pipe, closed on exec. Returns 0 with errno. */
int cli_pipe_open(int *ours, int *childs, int child_reads);

#endif
