/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank of a job in which one of them comes to harm at a random moment. mpirun starts it (cli/mpi.sh):
 *
 *   mpi_faults VICTIM SIGNAL SEED
 *
 * Every rank allreduces up to 200 times and looks at each sum. The victim sends itself the signal somewhere on the way;
 * the others must get an error that names it, unless MPI ends them first. Prints "told: …", or "wrong: …" for a wrong
 * sum, another error, or none at all.
 */
#include <pith/comm.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OPERATIONS = 200, VALUES = 20000 };

static int harm_signal;
static useconds_t harm_after;

static void *harm(void *argument) {
  (void)argument;
  usleep(harm_after);
  raise(harm_signal); /* KILL and STOP are the whole process's matter */
  return NULL;
}

static void start_harm(void) {
  pthread_t thread;
  if (pthread_create(&thread, NULL, harm, NULL) == 0) {
    pthread_detach(thread);
  }
}

static int is_right(const float *sum, int ranks, int step) {
  for (int i = 0; i < VALUES; i++) {
    if (sum[i] != (float)(ranks * (i % 7 + step))) {
      return 0;
    }
  }
  return 1;
}

static pith_status reduce(pith_comm *comm, int step, int *right) {
  static float x[VALUES], sum[VALUES];
  for (int i = 0; i < VALUES; i++) {
    x[i] = (float)(i % 7 + step);
  }
  pith_status status =
      pith_allreduce(comm, (pith_cspan){x, VALUES, PITH_F32}, (pith_span){sum, VALUES, PITH_F32}, PITH_SUM, NULL, NULL);
  *right = status != PITH_OK || is_right(sum, pith_comm_size(comm), step);
  return status;
}

static int judge(pith_status status, int right, int victim) {
  char name[16];
  snprintf(name, sizeof name, "rank %d", victim);
  int told = status != PITH_OK && strstr(pith_error(), name) != NULL;
  printf("%s: %s\n", right && told ? "told" : "wrong",
         right ? status == PITH_OK ? "nobody came to harm" : pith_error() : "sums");
  fflush(stdout);
  return right && told ? 7 : 1;
}

int main(int argc, char **argv) {
  pith_comm *comm;
  if (argc != 4 || pith_comm_create(NULL, &comm) != PITH_OK) {
    fprintf(stderr, "wrong: %s\n", argc == 4 ? pith_error() : "mpi_faults VICTIM SIGNAL SEED");
    return 2;
  }
  int victim = atoi(argv[1]);
  harm_signal = strcmp(argv[2], "STOP") == 0 ? SIGSTOP : SIGKILL;
  srand((unsigned)atoi(argv[3]));
  int moment = rand() % OPERATIONS, right = 1;
  harm_after = (useconds_t)(rand() % 300);
  int is_victim = pith_comm_rank(comm) == victim;
  pith_status status = PITH_OK;
  for (int step = 0; step < OPERATIONS && status == PITH_OK && right; step++) {
    if (step == moment && is_victim) {
      start_harm();
    }
    status = reduce(comm, step, &right);
  }
  while (is_victim) {
    pause(); /* the harm is under way */
  }
  if (status == PITH_OK && right) {
    status = pith_barrier(comm, NULL); /* the victim does not come */
  }
  int code = judge(status, right, victim);
  pith_comm_destroy(comm);
  return code;
}
