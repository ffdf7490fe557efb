/* SPDX-License-Identifier: Apache-2.0 */
/* What launchers say in the environment: every launcher, nested ones, Slurm's lists, and what is said when something is
 * missing. */
#include "transport/launcher.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "test.h"

/* ---- An environment ---------------------------------------------------------------------------------------------- */

static const char *const *variables; /* "NAME=value", …, NULL */

static const char *get(const char *name) {
  size_t length = strlen(name);
  for (const char *const *v = variables; *v; v++) {
    if (strncmp(*v, name, length) == 0 && (*v)[length] == '=') {
      return *v + length + 1;
    }
  }
  return NULL;
}

#define ENVIRONMENT(...) \
  variables = (const char *const[]) { __VA_ARGS__, NULL }

static pith_launch read_it(void) {
  pith_launch l = PITH_LAUNCH_INIT;
  pith_status status = pith__launch_read(get, &l);
  CHECK_MSG(status == PITH_OK, "%s", pith_error());
  return l;
}

static void check(const pith_launch *l, const char *launcher, int rank, int ranks, int local_rank, int local_ranks,
                  const char *host) {
  CHECK_MSG(strcmp(l->launcher, launcher) == 0, "%s, not %s", l->launcher, launcher);
  CHECK_EQ(l->rank, rank);
  CHECK_EQ(l->ranks, ranks);
  CHECK_EQ(l->local_rank, local_rank);
  CHECK_EQ(l->local_ranks, local_ranks);
  CHECK_MSG(strcmp(l->host, host) == 0, "host \"%s\", not \"%s\"", l->host, host);
}

static void check_refused(const char *words) {
  pith_launch l = PITH_LAUNCH_INIT;
  CHECK_EQ(pith__launch_read(get, &l), PITH_ERR_ARGUMENT);
  CHECK_MSG(strstr(pith_error(), words), "\"%s\" does not say \"%s\"", pith_error(), words);
}

/* ---- Each launcher ----------------------------------------------------------------------------------------------- */

TEST(torchrun_keeps_its_port_for_its_own_store) {
  ENVIRONMENT("RANK=3", "WORLD_SIZE=8", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=node7", "MASTER_PORT=29500",
              "TORCHELASTIC_RUN_ID=run");
  pith_launch l = read_it();
  check(&l, "torchrun", 3, 8, 1, 2, "node7");
  CHECK(l.port != 29500 && l.port >= 10240 && l.port < 10240 + 8192);
}

TEST(rank_and_world_size_are_enough) {
  ENVIRONMENT("RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=10.0.0.1", "MASTER_PORT=4000");
  pith_launch l = read_it();
  check(&l, "environment", 0, 2, -1, -1, "10.0.0.1");
  CHECK_EQ(l.port, 4000);
}

TEST(open_mpi_on_one_host_needs_no_address) {
  ENVIRONMENT("OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_RANK=1",
              "OMPI_COMM_WORLD_LOCAL_SIZE=4", "PMIX_NAMESPACE=1109721089", "PMIX_RANK=1");
  pith_launch one = read_it();
  check(&one, "Open MPI", 1, 4, 1, 4, "127.0.0.1");
  ENVIRONMENT("OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_RANK=1",
              "OMPI_COMM_WORLD_LOCAL_SIZE=4", "PMIX_NAMESPACE=1109721090", "PMIX_RANK=1");
  CHECK(one.port > 0 && read_it().port != one.port); /* two jobs on one host */
}

TEST(open_mpi_on_several_hosts_does_not_know_the_first) {
  ENVIRONMENT("OMPI_COMM_WORLD_RANK=5", "OMPI_COMM_WORLD_SIZE=8", "OMPI_COMM_WORLD_LOCAL_RANK=1",
              "OMPI_COMM_WORLD_LOCAL_SIZE=4", "PMIX_NAMESPACE=7");
  pith_launch l = read_it();
  check(&l, "Open MPI", 5, 8, 1, 4, "");
}

TEST(mpich_names_no_job_and_has_one_parent) {
  ENVIRONMENT("PMI_RANK=0", "PMI_SIZE=2", "MPI_LOCALRANKID=0", "MPI_LOCALNRANKS=2");
  pith_launch l = read_it();
  check(&l, "PMI", 0, 2, 0, 2, "127.0.0.1");
  CHECK(l.port > 0);
}

/* ---- Slurm ------------------------------------------------------------------------------------------------------- */

TEST(srun_says_who_and_where) {
  ENVIRONMENT("SLURM_PROCID=3", "SLURM_STEP_NUM_TASKS=4", "SLURM_NTASKS=4", "SLURM_LOCALID=1", "SLURM_NODEID=1",
              "SLURM_STEP_TASKS_PER_NODE=2(x2)", "SLURM_STEP_NODELIST=gpu[07-08]", "SLURM_JOB_ID=12",
              "SLURM_STEP_ID=0");
  pith_launch l = read_it();
  check(&l, "Slurm", 3, 4, 1, 2, "gpu07");
  ENVIRONMENT("SLURM_PROCID=3", "SLURM_STEP_NUM_TASKS=4", "SLURM_JOB_ID=12", "SLURM_STEP_ID=1");
  CHECK(l.port > 0 && read_it().port > 0 && read_it().port != l.port); /* another step of the job */
}

TEST(the_script_of_sbatch_is_no_rank) {
  ENVIRONMENT("SLURM_PROCID=0", "SLURM_NTASKS=4", "SLURM_LOCALID=0", "SLURM_JOB_ID=12");
  check_refused("srun");
}

TEST(srun_with_pmix_and_pmi2) {
  ENVIRONMENT("PMIX_RANK=1", "PMIX_NAMESPACE=slurm.pmix.3.0", "SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=2",
              "SLURM_LOCALID=0", "SLURM_NODEID=1", "SLURM_STEP_TASKS_PER_NODE=1(x2)", "SLURM_STEP_NODELIST=a1,a2");
  pith_launch l = read_it();
  check(&l, "PMIx", 1, 2, 0, 1, "a1");
  ENVIRONMENT("PMI_RANK=1", "PMI_SIZE=2", "PMI_JOBID=4.0", "SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=2",
              "SLURM_LOCALID=1", "SLURM_NODEID=0", "SLURM_STEP_TASKS_PER_NODE=2", "SLURM_STEP_NODELIST=a1");
  l = read_it();
  check(&l, "PMI", 1, 2, 1, 2, "127.0.0.1");
}

/* mpirun starts one helper on every node with srun; its ranks inherit the helper's variables. */
TEST(mpirun_inside_a_slurm_job_is_asked_first) {
  ENVIRONMENT("OMPI_COMM_WORLD_RANK=5", "OMPI_COMM_WORLD_SIZE=8", "OMPI_COMM_WORLD_LOCAL_RANK=1",
              "OMPI_COMM_WORLD_LOCAL_SIZE=4", "SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=2", "SLURM_LOCALID=0",
              "SLURM_NODEID=1", "SLURM_STEP_TASKS_PER_NODE=1(x2)", "SLURM_STEP_NODELIST=n[1-2]");
  pith_launch l = read_it();
  check(&l, "Open MPI", 5, 8, 1, 4, "");
}

TEST(torchrun_inside_srun_is_asked_first) {
  ENVIRONMENT("RANK=2", "WORLD_SIZE=4", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=n1", "MASTER_PORT=29500",
              "TORCHELASTIC_RUN_ID=1", "SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_NODELIST=n[1-2]");
  pith_launch l = read_it();
  check(&l, "torchrun", 2, 4, 0, 2, "n1");
}

static void check_first(const char *list, const char *first) {
  char host[16];
  int is_list = pith__slurm_first_host(list, host, sizeof host);
  CHECK_MSG(is_list == (first != NULL), "\"%s\"", list);
  CHECK_MSG(!first || strcmp(host, first) == 0, "\"%s\": %s, not %s", list, host, first);
}

TEST(node_lists) {
  check_first("node", "node");
  check_first("a,b", "a");
  check_first("gpu[03-07,12],login", "gpu03");
  check_first("gpu[5]", "gpu5");
  check_first("rack[2,4]-node[01-16]", "rack2-node01");
  check_first("n[1-2]x,b", "n1x");
  check_first("", NULL);
  check_first("n[1-2", NULL);
  check_first("n]1", NULL);
  check_first("n[[1]]", NULL);
  check_first("a-name-that-is-too-long", NULL);
}

TEST(tasks_of_nodes) {
  CHECK_EQ(pith__slurm_tasks("2(x3),1", 0), 2);
  CHECK_EQ(pith__slurm_tasks("2(x3),1", 2), 2);
  CHECK_EQ(pith__slurm_tasks("2(x3),1", 3), 1);
  CHECK_EQ(pith__slurm_tasks("2(x3),1", 4), -1);
  CHECK_EQ(pith__slurm_tasks("4", 0), 4);
  CHECK_EQ(pith__slurm_tasks("", 0), -1);
  CHECK_EQ(pith__slurm_tasks("x", 0), -1);
  CHECK_EQ(pith__slurm_tasks("2(x", 1), -1);
  CHECK_EQ(pith__slurm_tasks("2;3", 1), -1);
}

/* ---- What is missing --------------------------------------------------------------------------------------------- */

TEST(a_rank_without_a_size_is_asked_for_it) {
  ENVIRONMENT("RANK=1");
  check_refused("WORLD_SIZE");
  ENVIRONMENT("PMIX_RANK=1");
  check_refused("PMIX_RANK says that this is rank 1");
  ENVIRONMENT("RANK=one", "WORLD_SIZE=2");
  check_refused("which rank of how many");
  ENVIRONMENT("PATH=/bin");
  check_refused("srun");
}

TEST(a_rank_and_a_size_never_come_from_two_launchers) {
  ENVIRONMENT("RANK=1", "OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2");
  pith_launch l = read_it();
  check(&l, "Open MPI", 0, 2, -1, -1, "");
}

TEST(structs_of_another_size_are_refused) {
  pith_launch l = {.size = 8};
  CHECK_EQ(pith_launch_find(&l), PITH_ERR_ARGUMENT);
  CHECK_EQ(pith_launch_find(NULL), PITH_ERR_ARGUMENT);
}
