/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory that ranks of one host share: each rank has one segment, which its peers map, or several, each for some of
 * its peers.
 *
 *   state              whether the owner sleeps, and for what
 *   inbox 0 … n-1      one for each peer that sends to the owner: a ring of slots, and how many cells were emptied
 *   cell 0 … c-1       bytes that the owner sends, to whomever
 *
 * Cells belong to the sender, so that memory grows with the number of ranks; what grows with its square are the
 * inboxes, a few hundred bytes for each pair. One inbox for each pair, and not one queue for all senders, keeps the
 * ranks apart: no rank waits for a sender that was stopped in the middle of a step, the bytes of each sender are in
 * order without sorting, and invalid data has one possible source.
 *
 * A slot is one 64-bit word: lap, cell and length. The lap tells a new slot from an old one, so that the reader writes
 * nothing but its count of emptied cells. Cells are emptied in the order they were sent; hence the count is all the
 * owner must know.
 */
#ifndef PITH_TRANSPORT_SHM_SEGMENT_H
#define PITH_TRANSPORT_SHM_SEGMENT_H

#include <stdatomic.h>

#include "base/status.h"

#define PITH_SHM_LINE 64

typedef struct pith_shm_shape {
  uint32_t cells, cell_size;
  uint32_t inboxes;
  uint32_t slots; /* of each inbox: a power of two */
} pith_shm_shape;

/* Bits of pith_shm_state.word; the others count, so that one sleep can be told from the next. */
#define PITH_SHM_ASLEEP 1u   /* wants to be woken for new slots */
#define PITH_SHM_STARVING 2u /* and for emptied cells */
#define PITH_SHM_NEXT 4u

typedef struct pith_shm_state {
  _Alignas(PITH_SHM_LINE) _Atomic uint32_t word; /* written by the owner of the segment */
} pith_shm_state;

typedef struct pith_shm_inbox {
  _Alignas(PITH_SHM_LINE) _Atomic uint32_t emptied; /* written by the owner of the segment: cells it gave back, ever */
  _Alignas(PITH_SHM_LINE) _Atomic uint64_t slot[];  /* written by the sender */
} pith_shm_inbox;

typedef struct pith_shm_segment {
  uint8_t *base; /* NULL: not mapped */
  size_t size;
  pith_shm_shape shape; /* a private copy: a peer may change what is in shared memory at any time */
} pith_shm_segment;

/* For tests, to be set before any connect: the least that works is filled in. 0: the transport's own choice. */
typedef struct pith_shm_tuning {
  uint32_t cells, cell_size;
} pith_shm_tuning;
extern pith_shm_tuning pith__shm_tuning;

/* The shape of a segment for that many peers. Where they need many cells, the cells become smaller rather than the pool
 * of them larger than `pool`. */
#define PITH_SHM_POOL (4u << 20)
pith_shm_shape pith__shm_shape(uint32_t peers, uint32_t pool);
size_t pith__shm_segment_size(const pith_shm_shape *shape);

/* Makes and maps a segment of zeros; the descriptor is for the peers. The segment can neither shrink nor grow: no
 * process that has the descriptor can make an access fail. */
pith_status pith__shm_segment_create(const pith_shm_shape *shape, pith_shm_segment *segment, int *fd);

/* Maps the segment of a peer after checking that it is what the peer says. Leaves the descriptor open. */
pith_status pith__shm_segment_map(int fd, const pith_shm_shape *shape, int rank, pith_shm_segment *segment);
void pith__shm_segment_unmap(pith_shm_segment *segment);

static inline size_t pith__shm_inbox_size(const pith_shm_shape *shape) {
  size_t size = sizeof(pith_shm_inbox) + shape->slots * sizeof(uint64_t);
  return (size + PITH_SHM_LINE - 1) / PITH_SHM_LINE * PITH_SHM_LINE;
}

static inline size_t pith__shm_cells_offset(const pith_shm_shape *shape) {
  size_t size = sizeof(pith_shm_state) + shape->inboxes * pith__shm_inbox_size(shape);
  return (size + 4095) / 4096 * 4096;
}

static inline pith_shm_state *pith__shm_state_of(const pith_shm_segment *segment) {
  return (pith_shm_state *)(void *)segment->base;
}

static inline pith_shm_inbox *pith__shm_inbox_of(const pith_shm_segment *segment, uint32_t inbox) {
  return (pith_shm_inbox *)(void *)(segment->base + sizeof(pith_shm_state) +
                                    inbox * pith__shm_inbox_size(&segment->shape));
}

static inline uint8_t *pith__shm_cell_of(const pith_shm_segment *segment, uint32_t cell) {
  return segment->base + pith__shm_cells_offset(&segment->shape) + (size_t)cell * segment->shape.cell_size;
}

/* ---- Slots ---- */

static inline uint64_t pith__shm_slot(uint16_t lap, uint32_t cell, uint32_t length) {
  return (uint64_t)lap << 48 | (uint64_t)(uint16_t)cell << 32 | length;
}

static inline uint16_t pith__shm_slot_lap(uint64_t slot) { return (uint16_t)(slot >> 48); }
static inline uint32_t pith__shm_slot_cell(uint64_t slot) { return (uint16_t)(slot >> 32); }
static inline uint32_t pith__shm_slot_length(uint64_t slot) { return (uint32_t)slot; }

/* The lap of the count-th slot; memory of zeros is the lap before the first. */
static inline uint16_t pith__shm_lap(uint32_t count, uint32_t slots) { return (uint16_t)(count / slots + 1); }

#endif
