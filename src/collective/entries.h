/* SPDX-License-Identifier: Apache-2.0 */
/* Entries of sparse payloads, taken apart by index ranges: what ranges.c and grid_ranges.c are made of. Entries travel
 * as they are, by a codec that loses nothing (job->entries). */
#ifndef PITH_COLLECTIVE_ENTRIES_H
#define PITH_COLLECTIVE_ENTRIES_H

#include "collective/job.h"

/* A piece that can hold the entries of n values. */
pith_piece *pith__entries_piece(pith_job *job, size_t n);

/* Our values, encoded and decoded again: n floats, there after *decoded. */
float *pith__entries_decoded(pith_job *job, uint32_t *decoded);

/* Work on the values of a range, `values` being where they are. `mode`: what pith__work_unpack_sum does. `passes`: of
 * how many ranks the entries are, 0 for all of them. */
uint32_t pith__entries_work(pith_job *job, pith_work_fn work, pith_piece *piece, pith_range range, float *values,
                            int mode, pith_effort effort, int passes, uint32_t before);

pith_status pith__work_pack(pith_job *job, const pith_task *task);          /* values to entries … */
pith_status pith__work_pack_result(pith_job *job, const pith_task *task);   /* … after the sum has become the result */
pith_status pith__work_unpack_sum(pith_job *job, const pith_task *task);    /* values = or += entries */
pith_status pith__work_unpack_result(pith_job *job, const pith_task *task); /* dst = entries */

#endif
