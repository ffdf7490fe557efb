/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks for tests of a comm: threads over inproc, or processes over shm and tcp. */
#ifndef PITH_TESTS_RANKS_H
#define PITH_TESTS_RANKS_H

#include <pith/comm.h>
#include <sys/types.h>

typedef void (*ranks_fn)(pith_comm *comm, void *argument);

/* Runs `run` on every rank of a fresh comm and waits for all. Threads for "inproc", else a process for each rank.
 * `chunk` 0: the default. A check that fails on any rank fails the test. */
void ranks_run(const char *transport, int ranks, size_t chunk, ranks_fn run, void *argument);

/* The same with `per_host` ranks on what they take for a host, and with a spec for the inside of hosts (NULL: none). */
void ranks_run_hosts(const char *transport, int ranks, int per_host, size_t chunk, const char *inside, ranks_fn run,
                     void *argument);

/* The same with a process for each rank on any transport but inproc; does not wait, so that the caller can do them
 * harm. */
void ranks_start(const char *transport, int ranks, double timeout, ranks_fn run, void *argument, pid_t *child);

/* Waits for all of them but one (-1: all); they must have passed their checks, left promptly and leaked no descriptor.
 */
void ranks_wait(const pid_t *child, int ranks, int but);

/* Skips the test where the folder has no module for UCX, or UCX cannot run. `networks` are UCX's. */
void ranks_need_ucx(const char *modules, const char *networks);

/* A port of 127.0.0.1 that is free right now. */
int ranks_free_port(void);

#endif
