/* SPDX-License-Identifier: Apache-2.0 */
/* What the environment variables of launchers say: pith_launch_find() without the process's own environment. */
#ifndef PITH_TRANSPORT_LAUNCHER_H
#define PITH_TRANSPORT_LAUNCHER_H

#include <pith/comm.h>

/* Like getenv(): the value of a variable, or NULL. Tests bring their own. */
typedef const char *(*pith_getenv_fn)(const char *name);
const char *pith__getenv(const char *name);

/* A variable that holds a whole number; -1 if it does not. */
int pith__getenv_number(pith_getenv_fn get, const char *name);

pith_status pith__launch_read(pith_getenv_fn get, pith_launch *launch);

/* The same for a rank and a size that the program gives: only where rank 0 is comes from the environment. */
void pith__launch_given(pith_getenv_fn get, int rank, int ranks, pith_launch *launch);

/* The first host of a Slurm node list, such as "gpu[03-07,12],login": "gpu03". Returns whether the list is one and the
 * name fits. */
int pith__slurm_first_host(const char *list, char *host, size_t size);

/* The number of tasks on the node of that index in a list such as "2(x3),1"; -1 if the list does not say. */
int pith__slurm_tasks(const char *list, int node);

#endif
