/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waits that a program may end. Signal handlers of the system return, and the wait goes on; interpreters handle signals
 * later, outside of handlers, and must be asked.
 */
#ifndef PITH_BASE_INTERRUPT_H
#define PITH_BASE_INTERRUPT_H

#define PITH_INTERRUPT_SECONDS 0.1 /* between two questions */

typedef struct pith_interrupt {
  int (*ask)(void *context); /* anything but 0: the wait should end; NULL: it never does */
  void *context;
} pith_interrupt;

/* Whether anybody is to be asked on this thread: only the main one handles signals. */
int pith__interrupt_is_possible(const pith_interrupt *interrupt);

/* Asks. Not while it is being asked already: what handles a signal may wait itself. */
int pith__interrupt_ask(const pith_interrupt *interrupt);

#endif
