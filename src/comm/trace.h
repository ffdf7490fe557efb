/*
 * PITH_TRACE=FILE: what every rank does when, for chrome://tracing or ui.perfetto.dev. %r is the rank, %h the host, %p
 * the process; without %r or %p each rank adds its number to the name. Costs nothing when it is off.
 */
#ifndef PITH_COMM_TRACE_H
#define PITH_COMM_TRACE_H

#include "comm/comm.h"

/* Opens the file at the first call of a process that has a name for one; whether there is one. */
int pith__trace_start(int rank);

/* A piece of work that began then and ends now; an operation that ends now. */
void pith__trace_work(const pith_operation *op, const pith_task *task, double start);
void pith__trace_operation(const pith_operation *op);

#endif
