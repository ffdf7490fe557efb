/* Growing arrays of tasks and edges, and the memory of pieces. */
#include "collective/schedule.h"

#include <stdlib.h>

/* Memory blocks of a schedule, linked. */
typedef struct memory_block {
  struct memory_block *next;
  max_align_t data[];
} memory_block;

static int grow(void **array, uint32_t *room, uint32_t used, size_t size) {
  if (used < *room) {
    return 1;
  }
  uint32_t more = *room ? 2 * *room : 32;
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

void *pith__schedule_take(pith_schedule *s, size_t count, size_t size) {
  size_t bytes;
  memory_block *block = NULL;
  if (!__builtin_mul_overflow(count, size, &bytes) && bytes < SIZE_MAX - sizeof *block) {
    block = calloc(1, sizeof *block + bytes);
  }
  if (!block) {
    s->failed = 1;
    return NULL;
  }
  block->next = s->memory;
  s->memory = block;
  return block->data;
}

pith_piece *pith__schedule_piece_over(pith_schedule *s, void *data, size_t size) {
  pith_piece *piece = pith__schedule_take(s, 1, sizeof *piece);
  if (piece) {
    *piece = (pith_piece){data, size, size, size};
  }
  return piece;
}

pith_piece *pith__schedule_piece(pith_schedule *s, size_t capacity) {
  void *data = pith__schedule_take(s, capacity ? capacity : 1, 1);
  pith_piece *piece = data ? pith__schedule_piece_over(s, data, capacity) : NULL;
  if (piece) {
    piece->least = 0;
  }
  return piece;
}

uint32_t pith__schedule_send(pith_schedule *s, int peer, uint32_t tag, pith_piece *piece, uint32_t before) {
  uint32_t task = pith__schedule_add(s, (pith_task){.kind = PITH_TASK_SEND, .peer = peer, .tag = tag, .piece = piece});
  pith__schedule_after(s, task, before);
  return task;
}

uint32_t pith__schedule_receive(pith_schedule *s, int peer, uint32_t tag, pith_piece *piece, uint32_t before) {
  uint32_t task = pith__schedule_add(s, (pith_task){.kind = PITH_TASK_RECEIVE, .peer = peer, .tag = tag, .piece = piece});
  pith__schedule_after(s, task, before);
  return task;
}

void pith__schedule_fini(pith_schedule *s) {
  for (memory_block *block = s->memory, *next; block; block = next) {
    next = block->next;
    free(block);
  }
  free(s->task);
  free(s->edge);
  *s = (pith_schedule){0};
}
