/* SPDX-License-Identifier: Apache-2.0 */
/* One operation on one rank: its tensors and parameters, its schedule, and the work that schedules are made of. */
#ifndef PITH_COLLECTIVE_JOB_H
#define PITH_COLLECTIVE_JOB_H

#include "base/split.h"
#include "codec/codec.h"
#include "collective/grid.h"
#include "collective/layout.h"
#include "collective/schedule.h"
#include "memory/memory.h"

/* A layer of a joined tensor, or a piece of one. Its values stay where they are; in the joined tensor they have places
 * from `first` on, a multiple of the granule. */
typedef struct pith_member {
  size_t first, n;
  uint64_t layer;
  pith_state *state;
  void *values;  /* src and dst at once */
  size_t offset; /* of values[0] in its layer */
} pith_member;

struct pith_job {
  pith_schedule schedule;
  int rank, ranks;
  pith_cspan src; /* of joined layers with a codec: their number and type alone */
  pith_span dst;
  pith_reduce_op reduce;
  const pith_codec *codec; /* NULL: uncompressed */
  pith_state *state;
  pith_ctx ctx;
  const pith_member
      *members;        /* of a joined tensor, in their order, all with the same FIXED block codec or ROUNDS codec */
  size_t member_count; /* 0: it is one layer */
  pith_thread_pool *threads;          /* encode and decode with us; NULL: there are none */
  const pith_encode_scratch *scratch; /* one for each thread, the first is ours */
  const pith_layout *layout;          /* of the hosts for hierarchical algorithms, flat for the others */
  const pith_grid *grid;              /* for those that reduce in several steps; else NULL */
  const pith_codec *inside;           /* the intra-host codec, for values sent to a leader; NULL: uncompressed */
  void *inside_chain;
  const pith_codec *entries; /* sparse and without loss, for pith__allreduce_ranges */
  void *entries_chain;
  size_t chunk;   /* bytes of a tensor worked on at a time */
  size_t message; /* and of an uncompressed message at most */
  double encode_seconds, decode_seconds;
};

/* A segment of a range of values that belongs to one layer. */
typedef struct pith_segment {
  int number;    /* from 1; zeroed: before the first */
  size_t at, n;  /* in the range */
  size_t offset; /* in the layer */
  uint64_t layer;
  pith_state *state;
  void *values; /* where they are; NULL: in the operation's own tensors */
} pith_segment;

/* The next segment of [first, first + n), or 0. Without members there is one segment, also of an empty range. */
int pith__next_segment(const pith_job *job, size_t first, size_t n, pith_segment *s);

/* Our values of a segment of [first, …). */
pith_cspan pith__segment_values(const pith_job *job, size_t first, const pith_segment *s);

/* ---- Work on values ---------------------------------------------------------------------------------------------- */

/* Encodes src[first, first + n) into the piece, or task->values (n floats) in their place: sums of src over ranks, or
 * of what ranks sent (mode PITH_GATHERED: gamma is in them already). */
pith_status pith__work_encode(pith_job *job, const pith_task *task);
#define PITH_GATHERED 1

/* task->values (n floats) += src[first, first + n), times gamma where there is a memory. */
pith_status pith__work_add_own(pith_job *job, const pith_task *task);

/* task->values (n floats) = or += src[first, first + n), or the n floats of the piece in their place, behind the memory
 * and as they are: our own share of a part that we own. task->mode: PITH_SET or PITH_ADD. */
pith_status pith__work_sum_own(pith_job *job, const pith_task *task);

/* Decodes the piece, encoded by rank task->peer, into task->values (n floats): sets or adds, as task->mode says. */
pith_status pith__work_decode(pith_job *job, const pith_task *task);

/* Sums become means where asked, or votes. */
void pith__make_result(const pith_job *job, float *x, size_t n);

/* Makes the result of the sum in task->values (n floats) and encodes it into the piece. */
pith_status pith__work_encode_result(pith_job *job, const pith_task *task);

/* Decodes the piece, a result encoded by its owner task->peer, into dst[at, at + n). */
pith_status pith__work_decode_result(pith_job *job, const pith_task *task);

/* Schedules that, for a result of dst's values in `range`, after task `arrived`. */
uint32_t pith__add_decode_result(pith_job *job, int owner, pith_piece *piece, pith_range range, uint32_t arrived);

/* Makes the result of the sum in task->values and writes it to dst[at, at + n). */
pith_status pith__work_store_result(pith_job *job, const pith_task *task);

/* Decodes the piece, encoded by task->peer with no sum in between, into dst[at, at + n). */
pith_status pith__work_decode_to_dst(pith_job *job, const pith_task *task);

/* Does nothing: a task that waits for several others. */
pith_status pith__work_join(pith_job *job, const pith_task *task);

/* ---- Uncompressed ------------------------------------------------------------------------------------------------ */

/* A tensor in memory, whatever its type. */
typedef struct pith_raw {
  const uint8_t *src;
  uint8_t *dst;
  size_t n;
  pith_dtype dtype;
  pith_reduce_op reduce;
} pith_raw;

/* out = the reduction of `count` sources of n values, in their order; sums of halves are in f32, rounded once. out may
 * be one of the sources. A mean is the sum over `count`, divided. */
void pith__reduce_many(pith_dtype dtype, pith_reduce_op reduce, const void *const *sources, int count, void *out,
                       size_t n);

/* sum (n floats) = or += values[first, first + n). */
void pith__sum_values(pith_cspan values, size_t first, float *sum, size_t n, int is_first);

/* What a task of pith__work_reduce has in task->values: sources in rank order, of task->n values. */
typedef struct pith_reduction {
  pith_dtype dtype;
  pith_reduce_op reduce;
  int count;
  const void **sources;
  void *out;
} pith_reduction;

/* A reduction without its sources' addresses, which are the caller's to fill; NULL marks the schedule as failed. */
pith_reduction *pith__schedule_reduction(pith_job *job, pith_dtype dtype, pith_reduce_op reduce, int count, void *out);

pith_status pith__work_reduce(pith_job *job, const pith_task *task);

/* Sums in several steps, first of some ranks, then of their sums: the type of the first sums (those of halves are f32,
 * so that they too are rounded once), how the tensor's own values become one, and how one becomes a result. */
pith_dtype pith__partial_type(pith_dtype dtype, pith_reduce_op reduce);
void pith__partial_sum(const pith_raw *raw, const void *const *sources, int count, void *sum, size_t n);
/* `sum` is changed. */
void pith__partial_finish(const pith_raw *raw, int ranks, void *sum, uint8_t *to, size_t n);

/* PITH_OK, or why this type cannot be reduced that way. */
pith_status pith__reduce_check(pith_dtype dtype, pith_reduce_op reduce);

/* ---- Algorithms: each writes job->schedule; docs/algorithms.md has steps and bytes ------------------------------- */

/* A piece that can hold n encoded values. */
pith_piece *pith__piece_for(pith_job *job, size_t n);

/* Bytes of an uncompressed message at most, for tensors of so many bytes. */
size_t pith__message_size(int is_networked, size_t bytes, int ranks, size_t chunk);

/* PITH_OK, unless memory ran out while the schedule was written. */
pith_status pith__schedule_finished(const pith_job *job);

/* Peers are served in the order rank + 1, rank + 2, …: then no rank is the first peer of all others. */
static inline int pith__peer_at(const pith_job *job, int step) { return (job->rank + step) % job->ranks; }

/* Tags: a phase of the operation and the number of a chunk. */
#define PITH_TAG(phase, number) ((uint32_t)(phase) << 24 | (uint32_t)(number))

/* Adds the tasks that reduce raw->src of all ranks into raw->dst, after `before`; returns the task that ends it. Phases
 * `phase` … `phase` + PITH_RAW_PHASES - 1 are used for tags. */
uint32_t pith__add_allreduce(pith_job *job, const pith_raw *raw, unsigned phase, uint32_t before);
uint32_t pith__add_allreduce_hosts(pith_job *job, const pith_raw *raw, unsigned phase, uint32_t before);
uint32_t pith__add_allreduce_grid(pith_job *job, const pith_raw *raw, unsigned phase, uint32_t before);
#define PITH_RAW_PHASES 4

/* Whether all ranks send each other so many bytes rather than parts of them; and whether they pass them on then. */
int pith__is_short(size_t bytes, int ranks);
int pith__is_bruck(size_t bytes, int ranks);
uint32_t pith__add_allreduce_short(pith_job *job, const pith_raw *raw, unsigned phase, uint32_t before);

/* Bruck's all-gather of a block of so many bytes from each rank: block i comes to be that of the rank i behind ours;
 * block 0 is there after `before`. Returns the task after which all are. */
uint32_t pith__add_bruck(pith_job *job, uint8_t *blocks, size_t bytes, unsigned phase, uint32_t before);
/* Makes block 0 of n values. */
uint32_t pith__add_bruck_copy(pith_job *job, uint8_t *blocks, const void *own, size_t bytes, size_t n, uint32_t before);

/* Within a host: sends our values of a range to a leader; and, on the leader, sums those of all ranks of the host in
 * rank order, into `sum`. Both return the task that ends it. */
uint32_t pith__add_intra_host_send(pith_job *job, int leader, pith_range range, uint32_t tag, uint32_t before);
uint32_t pith__add_intra_host_sum(pith_job *job, pith_range range, uint32_t tag, float *sum, uint32_t before);
/* Sends the same bytes to all other ranks of our host, after `before`. */
void pith__add_intra_host_copies(pith_job *job, uint32_t tag, pith_piece *piece, uint32_t before);

pith_status pith__allreduce_plain(pith_job *job);       /* uncompressed */
pith_status pith__allreduce_blocks(pith_job *job);      /* CHUNKED codecs: scatter, reduce, all-gather */
pith_status pith__allreduce_ring(pith_job *job);        /* CHUNKED codecs: from neighbour to neighbour */
pith_status pith__allreduce_tree(pith_job *job);        /* CHUNKED codecs: up and down a binomial tree */
pith_status pith__allreduce_gather(pith_job *job);      /* all codecs: everybody gets all payloads */
pith_status pith__allreduce_ranges(pith_job *job);      /* SPARSE codecs: scatter, reduce, all-gather of entries */
pith_status pith__allreduce_linear(pith_job *job);      /* LINEAR payloads: their plain sum */
pith_status pith__allreduce_rounds(pith_job *job);      /* ROUNDS codecs */
pith_status pith__allreduce_grid_blocks(pith_job *job); /* over job->grid: FIXED and CHUNKED codecs … */
pith_status pith__allreduce_grid_ranges(pith_job *job); /* … and SPARSE ones */

/* On one rank: dst becomes src. */
pith_status pith__schedule_copy(pith_job *job);

/* counts[p]: the values of rank p's part. */
pith_status pith__reduce_scatter(pith_job *job, const size_t *counts);
pith_status pith__reduce_to(pith_job *job, int root);
pith_status pith__all_gather(pith_job *job, const size_t *counts);
pith_status pith__broadcast(pith_job *job, int root);
pith_status pith__all_to_all(pith_job *job, const size_t *send, const size_t *receive);
pith_status pith__gather(pith_job *job, const size_t *counts, int root);
pith_status pith__scatter(pith_job *job, const size_t *counts, int root);
pith_status pith__barrier(pith_job *job);

#endif
