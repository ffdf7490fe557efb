/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Children that are forked. A child gets copies of the parent's memory and descriptors, but none of its threads. It
 * must not send in the name of its parent, and its copies must not keep a connection open when the parent dies: peers
 * would not notice the death. So every descriptor of a comm is kept here and closed in the child at once, and objects
 * remember in which process they were made. Children that exec need none of this: descriptors are CLOEXEC.
 */
#ifndef PITH_BASE_FORKED_H
#define PITH_BASE_FORKED_H

#include <stdatomic.h>

/* Forks that lead from the process in which the library was first used to this one. */
extern atomic_uint pith__forks;

/* An object notes this number when it is made. In a child it differs, and the object is the parent's. */
static inline unsigned pith__fork_number(void) { return atomic_load_explicit(&pith__forks, memory_order_relaxed); }

/* From now on children close their copy of the descriptor. Returns it, also -1, with errno as it was. */
int pith__fd_keep(int fd);

/* Closes a descriptor that was kept. Each must be closed by this: its number may come again as somebody else's. */
void pith__fd_close(int fd);

#endif
