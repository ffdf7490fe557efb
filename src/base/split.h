/* SPDX-License-Identifier: Apache-2.0 */
/* How values are cut into parts, one for each rank or thread, and a part into chunks. Pure functions, no network. */
#ifndef PITH_BASE_SPLIT_H
#define PITH_BASE_SPLIT_H

#include <stddef.h>
#include <stdint.h>

typedef struct pith_range {
  size_t first, n;
} pith_range;

/* Random numbers of the second encoding, of results, must not be those of the first: it counts as one more rank's,
 * whoever owns the value. */
static inline uint32_t pith__result_rank(int ranks) { return (uint32_t)ranks; }

/* Part `index` of n values cut into `parts` of nearly the same size, at multiples of the granule. Later parts may be
 * empty; together they are all of it. */
static inline pith_range pith__split(size_t n, size_t granule, size_t parts, size_t index) {
  size_t granules = n / granule + (n % granule != 0), each = granules / parts, more = granules % parts;
  size_t first = (index * each + (index < more ? index : more)) * granule;
  size_t count = (each + (index < more)) * granule;
  if (first >= n) {
    return (pith_range){n, 0};
  }
  return (pith_range){first, count < n - first ? count : n - first};
}

/* The part of owner `index` where owners take turns, starting with owner `turn`. */
static inline pith_range pith__split_turned(size_t n, size_t granule, size_t parts, size_t index, uint64_t turn) {
  return pith__split(n, granule, parts, (index + parts - (size_t)(turn % parts)) % parts);
}

/* How many chunks of at most `chunk` values (a multiple of the granule) the largest part has: every rank cuts its part
 * into that many, so that all agree on the number of messages. */
static inline size_t pith__split_chunks(size_t n, size_t granule, size_t parts, size_t chunk) {
  size_t largest = pith__split(n, granule, parts, 0).n;
  return largest / chunk + (largest % chunk != 0);
}

/* Chunk `index` of a part. */
static inline pith_range pith__split_chunk(pith_range part, size_t chunk, size_t index) {
  size_t skip = index * chunk;
  if (skip >= part.n) {
    return (pith_range){part.first + part.n, 0};
  }
  return (pith_range){part.first + skip, chunk < part.n - skip ? chunk : part.n - skip};
}

#endif
