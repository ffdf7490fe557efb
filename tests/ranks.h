/* Ranks for tests of a comm: threads over inproc, or processes over shm and tcp. */
#ifndef PITH_TESTS_RANKS_H
#define PITH_TESTS_RANKS_H

#include <pith/comm.h>

typedef void (*ranks_fn)(pith_comm *comm, void *argument);

/* Runs `run` on every rank of a fresh comm and waits for all. Threads for "inproc", else a process for each rank. `chunk` 0:
 * the default. A check that fails on any rank fails the test. */
void ranks_run(const char *transport, int ranks, size_t chunk, ranks_fn run, void *argument);

/* A port of 127.0.0.1 that is free right now. */
int ranks_free_port(void);

#endif
