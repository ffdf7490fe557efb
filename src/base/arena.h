/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bump allocator over memory that the caller owns: cuts scratch into aligned pieces and never fails silently.
 * The same calls with no memory behind them add up how much is needed, so that size and use cannot drift apart.
 */
#ifndef PITH_BASE_ARENA_H
#define PITH_BASE_ARENA_H

#include <stddef.h>
#include <stdint.h>

#define PITH_ARENA_ALIGN 64

typedef struct pith_arena {
  uint8_t *base;   /* NULL: only measure */
  size_t capacity; /* of base */
  size_t used;     /* grows past capacity when too much was asked for */
} pith_arena;

static inline pith_arena pith__arena_over(void *base, size_t capacity) {
  size_t skip = base ? (size_t)(-(uintptr_t)base % PITH_ARENA_ALIGN) : 0;
  if (skip > capacity) {
    skip = capacity;
  }
  return (pith_arena){base ? (uint8_t *)base + skip : NULL, capacity - skip, 0};
}

/* count × size bytes aligned to 64; NULL when measuring or when they are not there. */
static inline void *pith__arena_take(pith_arena *arena, size_t count, size_t size) {
  size_t bytes;
  if (__builtin_mul_overflow(count, size, &bytes) || bytes > SIZE_MAX - PITH_ARENA_ALIGN ||
      __builtin_add_overflow(arena->used, (bytes + PITH_ARENA_ALIGN - 1) / PITH_ARENA_ALIGN * PITH_ARENA_ALIGN,
                             &bytes)) {
    arena->used = SIZE_MAX;
    return NULL;
  }
  size_t start = arena->used;
  arena->used = bytes;
  return arena->base && bytes <= arena->capacity ? arena->base + start : NULL;
}

/* Bytes that pith__arena_over needs for the pieces taken so far, wherever the memory starts. */
static inline size_t pith__arena_need(const pith_arena *arena) {
  return arena->used > SIZE_MAX - PITH_ARENA_ALIGN ? SIZE_MAX : arena->used ? arena->used + PITH_ARENA_ALIGN : 0;
}

#endif
