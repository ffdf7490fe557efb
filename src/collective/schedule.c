/* SPDX-License-Identifier: Apache-2.0 */
/* Growing arrays of tasks and edges, and the memory of pieces, which is used again: the system takes long to give new
 * pages. */
#include "collective/schedule.h"

#include <stdlib.h>

#define CLASS_LEAST 13 /* blocks have room for a power of two: this one where small takes share it */
#define KEPT_MOST ((size_t)64 << 20)

typedef struct memory_block {
  struct memory_block *next;
  size_t used, room;
  max_align_t data[];
} memory_block;

/* ---- The pool ---------------------------------------------------------------------------------------------------- */

static int class_of(size_t bytes) {
  int class = CLASS_LEAST;
  while (class < PITH_POOL_CLASSES && ((size_t)1 << class) < bytes) {
    class ++;
  }
  return class; /* PITH_POOL_CLASSES: too large to be kept */
}

static memory_block *take_kept(pith_pool *pool, int class) {
  pthread_mutex_lock(&pool->mutex);
  memory_block *block = pool->kept[class];
  if (block) {
    pool->kept[class] = block->next;
    pool->bytes -= block->room;
  }
  pthread_mutex_unlock(&pool->mutex);
  return block;
}

static void give_back(pith_pool *pool, memory_block *block) {
  int class = class_of(block->room);
  if (pool && class < PITH_POOL_CLASSES) {
    pthread_mutex_lock(&pool->mutex);
    if (pool->bytes + block->room <= KEPT_MOST) {
      pool->bytes += block->room;
      block->next = pool->kept[class];
      pool->kept[class] = block;
      block = NULL;
    }
    pthread_mutex_unlock(&pool->mutex);
  }
  free(block);
}

void pith__pool_init(pith_pool *pool) {
  *pool = (pith_pool){.bytes = 0};
  pthread_mutex_init(&pool->mutex, NULL);
}

void pith__pool_fini(pith_pool *pool) {
  for (int class = 0; class < PITH_POOL_CLASSES; class ++) {
    for (memory_block *block = pool->kept[class], *next; block; block = next) {
      next = block->next;
      free(block);
    }
  }
  pthread_mutex_destroy(&pool->mutex);
}

/* ---- Tasks and edges --------------------------------------------------------------------------------------------- */

static int grow(void **array, uint32_t *room, uint32_t used, size_t size) {
  if (used < *room) {
    return 1;
  }
  uint32_t more = *room ? 4 * *room : 8;
  void *larger = realloc(*array, more * size);
  if (!larger) {
    return 0;
  }
  *array = larger;
  *room = more;
  return 1;
}

uint32_t pith__schedule_add(pith_schedule *s, pith_task task) {
  if (s->failed || !grow((void **)&s->task, &s->task_room, s->tasks, sizeof *s->task)) {
    s->failed = 1;
    return PITH_NO_TASK;
  }
  task.waits = 0;
  task.edges = PITH_NO_TASK;
  s->task[s->tasks] = task;
  return s->tasks++;
}

void pith__schedule_after(pith_schedule *s, uint32_t task, uint32_t before) {
  if (task == PITH_NO_TASK || before == PITH_NO_TASK) {
    return;
  }
  if (s->failed || !grow((void **)&s->edge, &s->edge_room, s->edges, sizeof *s->edge)) {
    s->failed = 1;
    return;
  }
  s->edge[s->edges] = (struct pith_edge){task, s->task[before].edges};
  s->task[before].edges = s->edges++;
  s->task[task].waits++;
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* A block of its own for what is large, behind the one that small takes share. */
static memory_block *add_block(pith_schedule *s, size_t bytes) {
  int class = class_of(bytes);
  size_t room = class < PITH_POOL_CLASSES ? (size_t)1 << class : bytes;
  memory_block *block = s->pool && class < PITH_POOL_CLASSES ? take_kept(s->pool, class) : NULL, *first = s->memory;
  if (!block && bytes < SIZE_MAX - sizeof *block) {
    block = malloc(sizeof *block + room);
  }
  if (!block) {
    return NULL;
  }
  block->used = 0;
  block->room = room;
  if (first && class > CLASS_LEAST) {
    block->next = first->next;
    first->next = block;
  } else {
    block->next = first;
    s->memory = block;
  }
  return block;
}

void *pith__schedule_take(pith_schedule *s, size_t count, size_t size) {
  const size_t align = sizeof(max_align_t);
  size_t bytes;
  memory_block *block = s->memory;
  if (__builtin_mul_overflow(count, size, &bytes) || __builtin_add_overflow(bytes, align - 1, &bytes)) {
    s->failed = 1;
    return NULL;
  }
  bytes = bytes / align * align;
  if (!block || block->room - block->used < bytes) {
    block = add_block(s, bytes);
  }
  if (!block) {
    s->failed = 1;
    return NULL;
  }
  void *taken = (uint8_t *)block->data + block->used;
  block->used += bytes;
  return taken;
}

#define DRY_ADDRESS ((uintptr_t)1 << 32) /* of the first buffer of a dry schedule */

void *pith__schedule_buffer(pith_schedule *s, size_t count, size_t size) {
  size_t bytes;
  if (!s->is_dry) {
    return pith__schedule_take(s, count, size);
  }
  if (__builtin_mul_overflow(count, size, &bytes) || __builtin_add_overflow(s->buffers, bytes, &bytes)) {
    s->failed = 1;
    return NULL;
  }
  void *taken = (void *)(DRY_ADDRESS + s->buffers);
  s->buffers = bytes;
  return taken;
}

pith_piece *pith__schedule_piece_over(pith_schedule *s, void *data, size_t size) {
  pith_piece *piece = pith__schedule_take(s, 1, sizeof *piece);
  if (piece) {
    *piece = (pith_piece){data, size, size, size};
  }
  return piece;
}

pith_piece *pith__schedule_piece(pith_schedule *s, size_t capacity) {
  void *data = pith__schedule_buffer(s, capacity ? capacity : 1, 1);
  pith_piece *piece = data ? pith__schedule_piece_over(s, data, capacity) : NULL;
  if (piece) {
    piece->least = 0;
  }
  return piece;
}

static uint32_t add_after(pith_schedule *s, pith_task task, uint32_t before) {
  uint32_t added = pith__schedule_add(s, task);
  pith__schedule_after(s, added, before);
  return added;
}

uint32_t pith__schedule_work(pith_schedule *s, pith_task work, uint32_t before) {
  work.kind = PITH_TASK_WORK;
  return add_after(s, work, before);
}

uint32_t pith__schedule_send(pith_schedule *s, int peer, uint32_t tag, pith_piece *piece, uint32_t before) {
  return add_after(s, (pith_task){.kind = PITH_TASK_SEND, .peer = peer, .tag = tag, .piece = piece}, before);
}

uint32_t pith__schedule_receive(pith_schedule *s, int peer, uint32_t tag, pith_piece *piece, uint32_t before) {
  return add_after(s, (pith_task){.kind = PITH_TASK_RECEIVE, .peer = peer, .tag = tag, .piece = piece}, before);
}

/* ---- What can run ------------------------------------------------------------------------------------------------ */

pith_status pith__schedule_start(pith_schedule *s) {
  s->ready = pith__schedule_take(s, s->tasks + 1, sizeof *s->ready);
  PITH_REQUIRE(s->ready, PITH_ERR_MEMORY, "no memory for an operation");
  return PITH_OK;
}

static void swap(uint32_t *a, uint32_t *b) {
  uint32_t t = *a;
  *a = *b;
  *b = t;
}

void pith__schedule_push(pith_schedule *s, uint32_t task) {
  uint32_t *heap = s->ready, at = s->ready_count++;
  heap[at] = task;
  for (; at && heap[at] < heap[(at - 1) / 2]; at = (at - 1) / 2) {
    swap(&heap[at], &heap[(at - 1) / 2]);
  }
}

uint32_t pith__schedule_pop(pith_schedule *s) {
  uint32_t *heap = s->ready, top = heap[0], at = 0;
  heap[0] = heap[--s->ready_count];
  for (;;) {
    uint32_t least = at, left = 2 * at + 1, right = 2 * at + 2;
    least = left < s->ready_count && heap[left] < heap[least] ? left : least;
    least = right < s->ready_count && heap[right] < heap[least] ? right : least;
    if (least == at) {
      return top;
    }
    swap(&heap[at], &heap[least]);
    at = least;
  }
}

void pith__schedule_fini(pith_schedule *s) {
  for (memory_block *block = s->memory, *next; block; block = next) {
    next = block->next;
    give_back(s->pool, block);
  }
  free(s->task);
  free(s->edge);
  *s = (pith_schedule){0};
}
