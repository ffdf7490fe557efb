/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds out who started this process: rank, size and where rank 0 is, from the variables that launchers set.
 *
 * Launchers nest: mpirun inside a Slurm job starts its helpers with srun, so its ranks also carry the SLURM_* variables
 * of those helpers. Therefore a rank and a size always come from the same launcher, the innermost one is asked first,
 * and Slurm only adds what another launcher left out if both agree about rank and size.
 */
#include "transport/launcher.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/status.h"
#include "base/struct_size.h"

/* Ports made from a job id lie below those that systems give to outgoing connections. The upper half of the range is
 * for what a framework opens beside Pith (python/pith/torch/_launcher.py). */
#define FIRST_PORT 10240
#define PORTS 8192
#define PORT_MOST 65535

/* ---- Slurm's lists ----------------------------------------------------------------------------------------------- */

int pith__slurm_first_host(const char *list, char *host, size_t size) {
  size_t used = 0;
  int inside = 0, taken = 0; /* in brackets; past the first number there */
  for (; *list && (inside || *list != ','); list++) {
    if (*list == '[' || *list == ']') {
      if (inside == (*list == '[')) {
        return 0;
      }
      inside = *list == '[';
      taken = 0;
      continue;
    }
    taken |= inside && (*list == '-' || *list == ',');
    if (taken) {
      continue;
    }
    if (used + 1 >= size) {
      return 0;
    }
    host[used++] = *list;
  }
  host[used] = 0;
  return used > 0 && !inside;
}

int pith__slurm_tasks(const char *list, int node) {
  while (*list) {
    char *end;
    long tasks = strtol(list, &end, 10), nodes = 1;
    if (end == list || tasks < 0 || tasks > INT_MAX) {
      return -1;
    }
    if (strncmp(end, "(x", 2) == 0) {
      nodes = strtol(end + 2, &end, 10);
      if (*end++ != ')' || nodes < 1) {
        return -1;
      }
    }
    if (node < nodes) {
      return (int)tasks;
    }
    node -= (int)nodes;
    list = *end == ',' ? end + 1 : end;
    if (*end && *end != ',') {
      return -1;
    }
  }
  return -1;
}

/* ---- Launchers --------------------------------------------------------------------------------------------------- */

typedef struct launcher {
  const char *name;
  const char *rank, *ranks, *ranks_too; /* ranks_too: another variable with the size, or NULL */
  const char *local_rank, *local_ranks;
  const char *job, *job_too;
} launcher;

static const launcher launchers[] = {
    {"environment", "RANK", "WORLD_SIZE", NULL, "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID", NULL},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", NULL, "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"},
    {"PMI", "PMI_RANK", "PMI_SIZE", NULL, "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_JOBID", NULL},
    {"PMIx", "PMIX_RANK", "WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMIX_LOCAL_RANK", "PMIX_LOCAL_SIZE", "PMIX_NAMESPACE",
     NULL},
    /* The script of sbatch has SLURM_PROCID and SLURM_NTASKS, too, but is no rank: only srun sets the size of a step.
     */
    {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", NULL, "SLURM_LOCALID", NULL, NULL, NULL},
};
enum { LAUNCHERS = sizeof launchers / sizeof *launchers, SLURM = LAUNCHERS - 1 };

const char *pith__getenv(const char *name) { return getenv(name); }

int pith__getenv_number(pith_getenv_fn get, const char *name) {
  const char *text = name ? get(name) : NULL;
  char *end;
  long value = text && *text ? strtol(text, &end, 10) : -1;
  return value >= 0 && value < INT_MAX && *end == 0 ? (int)value : -1;
}

static int number_of_ranks(pith_getenv_fn get, const launcher *from) {
  int ranks = pith__getenv_number(get, from->ranks);
  return ranks < 0 ? pith__getenv_number(get, from->ranks_too) : ranks;
}

static const char *text(pith_getenv_fn get, const char *name) {
  const char *value = name ? get(name) : NULL;
  return value && *value ? value : NULL;
}

/* Whether the variables of srun are about this rank. */
static int is_slurm(pith_getenv_fn get, const pith_launch *l) {
  return pith__getenv_number(get, launchers[SLURM].rank) == l->rank &&
         pith__getenv_number(get, launchers[SLURM].ranks) == l->ranks;
}

/* A number that all ranks of the job know, and no other job on these hosts; 0 if the launcher gives none. */
static uint64_t find_job(pith_getenv_fn get, const launcher *from, const pith_launch *l) {
  const char *job = text(get, from->job);
  job = job ? job : text(get, from->job_too);
  if (!job && is_slurm(get, l)) {
    job = text(get, "SLURM_JOB_ID");
    return job ? pith__hash64(job, strlen(job), (uint64_t)pith__getenv_number(get, "SLURM_STEP_ID") + 2) : 0;
  }
  if (!job && from != launchers &&
      l->local_ranks == l->ranks) { /* MPICH names no job; ranks of one host have one parent */
    return pith__mix64((uint64_t)getppid());
  }
  return job ? pith__hash64(job, strlen(job), 1) : 0;
}

/* Under torchrun MASTER_PORT belongs to its own store, so the ranks make another port from it.
 * TORCHELASTIC_RESTART_COUNT is no part of it: every host counts its own restarts. */
static int find_port(pith_getenv_fn get, const launcher *from, const pith_launch *l) {
  int own = pith__getenv_number(get, "PITH_PORT"), master = pith__getenv_number(get, "MASTER_PORT");
  uint64_t job = find_job(get, from, l);
  int is_torchrun = from == launchers && job;
  if (own > 0 || (master > 0 && !is_torchrun)) {
    return own > 0 ? own : master;
  }
  return job ? FIRST_PORT + (int)(pith__mix64(job + (uint64_t)master + 1) % PORTS) : 0;
}

static void find_host(pith_getenv_fn get, pith_launch *l) {
  const char *master = text(get, "MASTER_ADDR"), *nodes = is_slurm(get, l) ? text(get, "SLURM_STEP_NODELIST") : NULL;
  if (master || l->local_ranks == l->ranks) {
    snprintf(l->host, sizeof l->host, "%s", master ? master : "127.0.0.1");
  } else if (!nodes || !pith__slurm_first_host(nodes, l->host, sizeof l->host)) {
    l->host[0] = 0;
  }
}

static void find_place_on_host(pith_getenv_fn get, const launcher *from, pith_launch *l) {
  l->local_rank = pith__getenv_number(get, from->local_rank);
  l->local_ranks = pith__getenv_number(get, from->local_ranks);
  const char *tasks = is_slurm(get, l) ? text(get, "SLURM_STEP_TASKS_PER_NODE") : NULL;
  int node = pith__getenv_number(get, "SLURM_NODEID");
  if (tasks && node >= 0) {
    l->local_rank = l->local_rank < 0 ? pith__getenv_number(get, launchers[SLURM].local_rank) : l->local_rank;
    l->local_ranks = l->local_ranks < 0 ? pith__slurm_tasks(tasks, node) : l->local_ranks;
  }
}

static void fill(pith_getenv_fn get, const launcher *from, pith_launch *l) {
  find_place_on_host(get, from, l);
  find_host(get, l);
  l->port = find_port(get, from, l);
  l->launcher = from == launchers && text(get, from->job) ? "torchrun" : from->name;
}

/* What is missing, in the words of the launcher whose variables are there. */
static pith_status explain(pith_getenv_fn get) {
  for (const launcher *from = launchers; from < launchers + SLURM; from++) {
    PITH_REQUIRE(pith__getenv_number(get, from->rank) < 0, PITH_ERR_ARGUMENT,
                 "%s says that this is rank %d, but of how many? Set %s", from->rank,
                 pith__getenv_number(get, from->rank), from->ranks);
  }
  PITH_REQUIRE(pith__getenv_number(get, "SLURM_PROCID") < 0, PITH_ERR_ARGUMENT,
               "this is the script of a Slurm job, not one of its ranks: start the program with srun there");
  return pith_fail(
      PITH_ERR_ARGUMENT,
      "which rank of how many is this? Start it with pith run, torchrun, mpirun or srun, or set RANK and WORLD_SIZE");
}

pith_status pith__launch_read(pith_getenv_fn get, pith_launch *launch) {
  for (const launcher *from = launchers; from < launchers + LAUNCHERS; from++) {
    int rank = pith__getenv_number(get, from->rank), ranks = number_of_ranks(get, from);
    if (rank >= 0 && ranks > 0) {
      pith_launch found = {.size = sizeof found, .rank = rank, .ranks = ranks};
      fill(get, from, &found);
      PITH_REQUIRE(found.port <= PORT_MOST, PITH_ERR_ARGUMENT, "%s=%d is no port: 1 to %d are",
                   pith__getenv_number(get, "PITH_PORT") > 0 ? "PITH_PORT" : "MASTER_PORT", found.port, PORT_MOST);
      *launch = found;
      return PITH_OK;
    }
  }
  return explain(get);
}

void pith__launch_given(pith_getenv_fn get, int rank, int ranks, pith_launch *launch) {
  *launch = (pith_launch){.size = sizeof *launch, .rank = rank, .ranks = ranks};
  fill(get, launchers, launch);
}

pith_status pith_launch_find(pith_launch *launch) {
  PITH_REQUIRE(launch, PITH_ERR_ARGUMENT, "pith_launch_find: launch must not be NULL");
  pith_launch found;
  PITH_TRY(pith__launch_read(pith__getenv, &found));
  return PITH_STRUCT_WRITE(pith_launch, &found, launch);
}
