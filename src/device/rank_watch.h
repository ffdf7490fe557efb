/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which rank of a comm is gone. Work on a device that waits for other ranks says neither which of them is gone nor, for
 * long, that one is. So on a comm of its own every rank waits for a message of each other one that never comes: what
 * ends such a wait is the end of a rank, or its last words.
 */
#ifndef PITH_DEVICE_RANK_WATCH_H
#define PITH_DEVICE_RANK_WATCH_H

#include <pith/comm.h>

typedef struct pith_rank_watch pith_rank_watch;

/* The comm is used for nothing else from now on, and has no time-out any more. */
pith_status pith__rank_watch_start(pith_comm *comm, pith_rank_watch **watch);

/* When a rank was found to be gone, by pith__now(); 0: none is. Waits for nothing; by any thread. NULL: none is. */
double pith__rank_watch_look(pith_rank_watch *watch);

/* Fails with what became of it; the message names the rank. */
pith_status pith__rank_watch_fail(pith_rank_watch *watch);

/* The comm was destroyed before. */
void pith__rank_watch_end(pith_rank_watch *watch);

#endif
