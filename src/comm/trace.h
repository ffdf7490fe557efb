/*
 * PITH_TRACE=FILE: what every rank does when, for chrome://tracing or ui.perfetto.dev. %r is the rank, %h the host, %p
 * the process; without %r or %p each rank adds its number to the name. Costs nothing when it is off.
 */
#ifndef PITH_COMM_TRACE_H
#define PITH_COMM_TRACE_H

/* Opens the file at the first call of a process that has a name for one; whether there is one. */
int pith__trace_start(int rank);

/* One event from `start` to `end` (pith__now()). Texts are plain. `detail` is shown as an argument; NULL: none. */
void pith__trace(int rank, const char *kind, const char *name, const char *detail, double start, double end);

#endif
