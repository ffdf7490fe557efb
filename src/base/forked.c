/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors that children close, a bit for each. */
#include "base/forked.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

atomic_uint pith__forks;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static uint64_t *kept;
static size_t words;

static void before_fork(void) { pthread_mutex_lock(&mutex); }

static void in_parent(void) { pthread_mutex_unlock(&mutex); }

static void in_child(void) {
  for (size_t w = 0; w < words; w++) {
    for (; kept[w]; kept[w] &= kept[w] - 1) {
      close((int)(64 * w) + __builtin_ctzll(kept[w]));
    }
  }
  atomic_fetch_add_explicit(&pith__forks, 1, memory_order_relaxed);
  pthread_mutex_unlock(&mutex);
}

static void watch_forks(void) { pthread_atfork(before_fork, in_parent, in_child); }

/* Makes room for a descriptor; 0 without memory. */
static int reach(size_t word) {
  if (word < words) {
    return 1;
  }
  size_t more = 2 * (word + 1);
  uint64_t *larger = realloc(kept, more * sizeof *larger);
  if (!larger) {
    return 0;
  }
  memset(larger + words, 0, (more - words) * sizeof *larger);
  kept = larger;
  words = more;
  return 1;
}

int pith__fd_keep(int fd) {
  int error = errno;
  pthread_once(&once, watch_forks);
  if (fd >= 0) {
    pthread_mutex_lock(&mutex);
    if (reach((size_t)fd / 64)) { /* else a child holds it open, as it would without us */
      kept[fd / 64] |= (uint64_t)1 << fd % 64;
    }
    pthread_mutex_unlock(&mutex);
  }
  errno = error;
  return fd;
}

/* Forgotten first: once it is closed, another thread may be given the number. */
void pith__fd_close(int fd) {
  if (fd < 0) {
    return;
  }
  pthread_mutex_lock(&mutex);
  if ((size_t)fd / 64 < words) {
    kept[fd / 64] &= ~((uint64_t)1 << fd % 64);
  }
  pthread_mutex_unlock(&mutex);
  close(fd);
}
